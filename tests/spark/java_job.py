"""Runs NumbersJob.java as a driver of its own: Java alone, which has never heard of offsetmgr."""

from __future__ import annotations

import argparse
import os
import subprocess
import zipfile
from pathlib import Path

import pyspark

from offsetmgr.devkafka import spark_kafka_jars
from offsetmgr.devkafka.jars import find_java

SPARK = Path(pyspark.__file__).resolve().parent
SOURCE = Path(__file__).with_name("NumbersJob.java")


def compiled(folder: Path) -> Path:
    jar = folder / "numbers.jar"
    if not jar.exists():
        javac = Path(find_java()).resolve().with_name("javac")
        options = ["--release", "17", "-cp", f"{SPARK}/jars/*", "-d", str(folder)]
        subprocess.run([javac, *options, SOURCE], check=True)
        with zipfile.ZipFile(jar, "w") as packed:
            packed.write(folder / "NumbersJob.class", "NumbersJob.class")
    return jar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("brokers", "topic", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    settings = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        # Every batch of the checkpoint stays, so that a test can look at all of them.
        "spark.sql.streaming.minBatchesToRetain": "1000000",
        "spark.driver.memory": "512m",
        "spark.jars": ",".join(map(str, spark_kafka_jars())),
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = [str(SPARK / "bin" / "spark-submit"), "--class", "NumbersJob", *words]
    command += [str(compiled(Path(given.checkpoint).parent)), *vars(given).values()]
    home = str(Path(find_java()).resolve().parents[1])
    environment = {**os.environ, "SPARK_HOME": str(SPARK), "JAVA_HOME": home}
    os.execve(command[0], command, environment)  # noqa: S606 -- so that a kill reaches it


if __name__ == "__main__":
    main()
