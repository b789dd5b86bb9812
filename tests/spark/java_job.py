"""Runs NumbersJob.java as a driver of its own: Java alone, which has never heard of offsetmgr."""

from __future__ import annotations

import argparse
import os
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from offsetmgr.devkafka import spark_kafka_jars
from offsetmgr.devkafka.jars import find_java

if TYPE_CHECKING:
    from collections.abc import Mapping

SPARK = Path(pyspark.__file__).parent
SOURCE = Path(__file__).with_name("NumbersJob.java")


def compiled(folder: Path) -> Path:
    """Compile the job by the JDK; return its jar."""
    jar = folder / "numbers.jar"
    if not jar.exists():
        javac = Path(find_java()).resolve().with_name("javac")
        options = ["--release", "17", "-cp", f"{SPARK}/jars/*", "-d", str(folder)]
        subprocess.run([javac, *options, SOURCE], check=True)
        with zipfile.ZipFile(jar, "w") as packed:
            packed.write(folder / "NumbersJob.class", "NumbersJob.class")
    return jar


def command(folder: Path, options: Mapping[str, object], *, once: bool = False) -> list[str]:
    """Return the command that runs the job; with ``once`` it ends when all is read."""
    settings = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        # Every batch of the checkpoint stays, so that a test can look at all of them.
        "spark.sql.streaming.minBatchesToRetain": "1000000",
        "spark.driver.memory": "512m",
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    jars = ",".join(map(str, spark_kafka_jars()))
    arguments = [str(options[name]) for name in ("brokers", "topic", "checkpoint")]
    return [
        *(str(SPARK / "bin" / "spark-submit"), "--class", "NumbersJob", *words, "--jars", jars),
        *(str(compiled(folder)), *arguments, *(["once"] if once else [])),
    ]


def environment() -> dict[str, str]:
    home = str(Path(find_java()).resolve().parents[1])
    return {**os.environ, "SPARK_HOME": str(SPARK), "JAVA_HOME": home}


def main() -> None:
    """Become the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("brokers", "topic", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    given = vars(parser.parse_args())
    words = command(Path(given["checkpoint"]).parent, given)
    os.execve(words[0], words, environment())  # noqa: S606 -- so that a kill reaches it


if __name__ == "__main__":
    main()
