"""Kafka's classes as Java has parsed them: each broker of the tests takes a third less to start.

``python -m tests.shared_classes`` makes the archive where this machine has none.  Java ignores one
that does not fit, such as another Java's.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from offsetmgr.devkafka import KAFKA_VERSION, DevKafka
from offsetmgr.devkafka.jars import cache_dir

_ARCHIVE: Final = cache_dir() / f"kafka-{KAFKA_VERSION}.jsa"
_EXIT_S: Final = 300.0

# Most Java here lives for seconds: the second compiler takes half of the processor for its start
# and never pays off, nor do threads that collect garbage.  Spark reads what its launcher prints,
# so nothing is said of an archive that does not fit.
_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
JAVA_OPTIONS: Final = f'{_OPTIONS} "-XX:SharedArchiveFile={_ARCHIVE}"'
"""Value of JDK_JAVA_OPTIONS."""


def main() -> None:
    if _ARCHIVE.exists():
        return
    with TemporaryDirectory(dir=cache_dir()) as folder:
        made = Path(folder, _ARCHIVE.name)
        os.environ["JDK_JAVA_OPTIONS"] = f'{_OPTIONS} "-XX:ArchiveClassesAtExit={made}"'
        with DevKafka(data_dir=Path(folder, "kafka")) as kafka:
            kafka.broker(1).stop(_EXIT_S)  # it writes the archive at its end
        made.replace(_ARCHIVE)


if __name__ == "__main__":
    main()
