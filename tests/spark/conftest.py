"""One Spark for the whole run, and the real service next to a real Kafka."""

from __future__ import annotations

import runpy
import sys
from typing import TYPE_CHECKING

import pytest

from offsetmgr.client import OffsetClient
from tests.service.support import serve_process
from tests.spark.lab import Lab
from tests.spark.support import EXAMPLES, Job, Topic, new_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory
    from tests.service.support import ServeProcess

PARTITIONS = 3


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark with the Kafka connector."""
    scratch = tmp_path_factory.mktemp("spark")
    session = new_session("local[2]", scratch)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def sidecar(kafka: DevKafka) -> Iterator[ServeProcess]:
    """The service of the shared Kafka: a test that kills one starts its own."""
    options = ("--listen", "127.0.0.1:0", "--bootstrap-servers", kafka.bootstrap_servers)
    with serve_process(*options) as process:
        yield process


@pytest.fixture
def client(sidecar: ServeProcess, unique_name: str) -> Iterator[OffsetClient]:
    with OffsetClient(sidecar.address, name=unique_name) as made:
        yield made


@pytest.fixture
def topic(kafka: DevKafka, new_topic: TopicFactory) -> Topic:
    return Topic(kafka, new_topic(PARTITIONS), PARTITIONS)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture
def job(
    spark: SparkSession, client: OffsetClient, topic: Topic, group: str, checkpoint: str
) -> Job:
    """A query over the topic, not started yet."""
    return Job(spark, client, topic, group, checkpoint)


@pytest.fixture
def run_example(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., None]]:
    """Run an example in this process, so that it finds the Spark that is there already."""
    setting = "spark.sql.shuffle.partitions"
    before = spark.conf.get(setting)

    def run(name: str, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")

    yield run
    assert before is not None
    spark.conf.set(setting, before)


@pytest.fixture
def lab(spark: SparkSession, kafka: DevKafka, group: str, tmp_path: Path) -> Lab:
    """Topics and processors of one group of streams."""
    return Lab(spark, kafka, group, tmp_path)
