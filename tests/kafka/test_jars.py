"""Kafka's jars come once, whole or not at all, and what is missing is named."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyspark
import pytest

from offsetmgr.devkafka import DevKafka, DevKafkaError, kafka_jars, spark_kafka_jars
from offsetmgr.devkafka.jars import find_java

# Nothing listens on port 1: whatever the machine's network is like, no repository is reached.
_NO_NETWORK = " ".join(
    f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort=1" for scheme in ("http", "https")
)


def test_jars_of_spark() -> None:
    """Spark gets its connector and what that needs, and nothing that Spark brings itself."""
    names = {jar.name.rsplit("-", 1)[0] for jar in spark_kafka_jars()}
    scala = "2.12" if pyspark.__version__.startswith("3.") else "2.13"
    assert names == {
        "commons-pool2",
        "kafka-clients",
        f"spark-sql-kafka-0-10_{scala}",
        f"spark-token-provider-kafka-0-10_{scala}",
    }


def test_jars_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jars that were fetched once are there without a network, and nobody is told of a fetch."""
    before = kafka_jars()
    told: list[str] = []
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", _NO_NETWORK)
    assert kafka_jars(told.append) == before
    assert told == []


def test_failed_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that fails says so twice, and never leaves half of the jars as if they were all."""
    monkeypatch.setenv("OFFSETMGR_CACHE", str(tmp_path))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", _NO_NETWORK)
    for _ in range(2):
        with pytest.raises(DevKafkaError, match=r"(?s)Check the network; behind a proxy, set"):
            kafka_jars()
    assert not list(tmp_path.rglob("*.jar"))


def test_a_cache_that_is_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that cannot be written is named, with the setting that moves it."""
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("OFFSETMGR_CACHE", str(file))
    with pytest.raises(DevKafkaError, match="set OFFSETMGR_CACHE"):
        kafka_jars()


def test_java_is_found_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME comes before the PATH, as for Spark; one that is missing or too old is named."""
    found = shutil.which("java")
    assert found is not None
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.symlink_to(Path(found).resolve())
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.pathsep.join(("/nowhere", os.environ["PATH"])))
    assert find_java() == str(java)

    java.unlink()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    with pytest.raises(DevKafkaError, match=f"{java} is not Java 17 or newer: install"):
        find_java()

    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DevKafkaError, match="none on the PATH: install Java 17"):
        DevKafka().start()
