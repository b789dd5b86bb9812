"""Classes of Kafka and of Spark as Java has parsed them: each Java of the tests starts faster.

A broker takes a third less, a Spark half.  ``python -m tests.shared_classes kafka`` (or ``spark``)
makes the archive; without one, tests take longer.  Java ignores one that does not fit, such as
another Java's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from offsetmgr.devkafka import KAFKA_VERSION, DevKafka
from offsetmgr.devkafka.jars import cache_dir

_KAFKA: Final = cache_dir() / f"kafka-{KAFKA_VERSION}.jsa"
_SPARK: Final = cache_dir() / f"spark{str(Path(sys.prefix).resolve()).replace(os.sep, '-')}.jsa"
"""It is for the jars of this environment alone."""
_WARM_JOB: Final = Path(__file__).parent / "spark" / "warm_job.py"
_EXIT_S: Final = 240.0

# Most Java here lives for seconds: the second compiler takes half of the processor for its start
# and never pays off, nor do threads that collect garbage.  Spark reads what its launcher prints,
# so nothing is said of an archive that does not fit.
_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
JAVA_ENVIRONMENT: Final = {
    "JDK_JAVA_OPTIONS": f'{_OPTIONS} "-XX:SharedArchiveFile={_KAFKA}"',
    "SPARK_SUBMIT_OPTS": f'"-XX:SharedArchiveFile={_SPARK}"',
}


def archive_kafka(made: Path) -> None:
    os.environ["JDK_JAVA_OPTIONS"] = f"{_OPTIONS} {_dump(made)}"
    with DevKafka(data_dir=made.with_name("kafka")) as kafka:
        kafka.broker(1).stop(_EXIT_S)


def archive_spark(made: Path) -> None:
    import pyspark  # noqa: PLC0415 -- most tests do without

    os.environ |= {"JDK_JAVA_OPTIONS": _OPTIONS, "SPARK_SUBMIT_OPTS": _dump(made)}
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    spark = Path(pyspark.__file__).resolve().parent
    command = [f"{spark}/bin/spark-submit", "--conf", "spark.ui.enabled=false", str(_WARM_JOB)]
    subprocess.run(command, check=True, capture_output=True, cwd=made.parent, timeout=_EXIT_S)


def _dump(made: Path) -> str:
    """Return the option by which Java writes an archive at its end."""
    return f'"-XX:ArchiveClassesAtExit={made}"'


if __name__ == "__main__":
    archive, to = {"kafka": (archive_kafka, _KAFKA), "spark": (archive_spark, _SPARK)}[sys.argv[1]]
    if to is _SPARK or not to.exists():
        with TemporaryDirectory(dir=cache_dir()) as folder:
            try:
                archive(Path(folder, "made.jsa"))
            except subprocess.SubprocessError as error:
                sys.stderr.write(f"no archive of classes, each Java starts slower: {error}\n")
            else:
                Path(folder, "made.jsa").replace(to)
