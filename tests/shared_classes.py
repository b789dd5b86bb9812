"""Classes of Kafka and of Spark as Java has parsed them: each Java of the tests starts faster.

A broker takes a third less, a Spark half.  ``python -m tests.shared_classes`` makes the archives.
Java ignores one that does not fit, such as another Java's.
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
_EXIT_S: Final = 600.0

# Most Java here lives for seconds: the second compiler takes half of the processor for its start
# and never pays off, nor do threads that collect garbage.  Spark reads what its launcher prints,
# so nothing is said of an archive that does not fit.
_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
JAVA_ENVIRONMENT: Final = {
    "JDK_JAVA_OPTIONS": f'{_OPTIONS} "-XX:SharedArchiveFile={_KAFKA}"',
    "SPARK_SUBMIT_OPTS": f'"-XX:SharedArchiveFile={_SPARK}"',
}


def main() -> None:
    import pyspark  # noqa: PLC0415 -- most tests do without

    with TemporaryDirectory(dir=cache_dir()) as folder:
        made = Path(folder, "made.jsa")
        dump = f'"-XX:ArchiveClassesAtExit={made}"'  # Java writes it at its end
        if not _KAFKA.exists():
            os.environ["JDK_JAVA_OPTIONS"] = f"{_OPTIONS} {dump}"
            with DevKafka(data_dir=Path(folder, "kafka")) as kafka:
                kafka.broker(1).stop(_EXIT_S)
            made.replace(_KAFKA)
        os.environ |= {"JDK_JAVA_OPTIONS": _OPTIONS, "SPARK_SUBMIT_OPTS": dump}
        os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        spark = Path(pyspark.__file__).resolve().parent
        command = [f"{spark}/bin/spark-submit", "--conf", "spark.ui.enabled=false", str(_WARM_JOB)]
        subprocess.run(command, check=True, capture_output=True, cwd=folder, timeout=_EXIT_S)
        made.replace(_SPARK)


if __name__ == "__main__":
    main()
