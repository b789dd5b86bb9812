"""The examples of streams and views run on Spark as they stand, the counter on two executors."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsetmgr.devkafka.cluster import free_ports
from offsetmgr.devkafka.jars import cache_dir
from offsetmgr.devkafka.process import WatchedProcess
from tests.conftest import create_topic
from tests.spark.lab import messages, table
from tests.spark.support import EXAMPLES
from tests.tables import send

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.devkafka import DevKafka

PARTITIONS = 4


@pytest.fixture
def example(run_example: Callable[..., None], kafka: DevKafka) -> Callable[..., None]:
    servers = ["--bootstrap-servers", kafka.bootstrap_servers]
    return lambda name, *words: run_example(name, *servers, *words)


@pytest.fixture
def run(example: Callable[..., None], tmp_path: Path) -> Callable[[str], None]:
    """Run a graph over what its topics hold."""

    def run_graph(graph: str) -> None:
        checkpoint = str(tmp_path / graph.replace(":", "-"))
        options = ["--checkpoint", checkpoint, "--available-now", "--no-samples"]
        example("stream_on_spark", graph, *options)

    return run_graph


def test_examples_of_an_emitter_and_of_a_lookup(
    example: Callable[..., None], unique_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Spark job finds what the emitter has written."""
    example("emitter_promises", "--topic", unique_name)
    said = capsys.readouterr().out
    assert said.count("written to partition") == 3
    assert "the pump is at offset" in said
    example("view_lookup", "--topic", unique_name)
    said = capsys.readouterr().out
    assert "order 1: bicycle for 499.0" in said
    assert "order 3: rocket for None" in said
    assert "3 prices, the highest is that of the bicycle" in said


def test_example_of_a_view_beside_a_processor(
    example: Callable[..., None], unique_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Counts of a processor are read over HTTP while it runs."""
    (port,) = free_ports(1)
    example("view_beside_processor", "--group", unique_name, "--port", str(port))
    assert "bob has clicked 2 times" in capfd.readouterr().out


def test_clicks_are_joined_with_profiles(kafka: DevKafka, run: Callable[[str], None]) -> None:
    brokers = kafka.bootstrap_servers
    for topic in ("clicks", "profiles"):
        create_topic(kafka, topic, PARTITIONS)
    send(kafka, "profiles", ("bob", '{"name": "Bob", "country": "CH"}'))
    send(kafka, "clicks", ("bob", "/cart"), ("ann", "/pay"))
    run("user_profiles:graph")
    found = {
        message.key(): json.loads(message.value())
        for message in messages(brokers, "country-clicks")
    }
    assert found == {
        b"bob": {"url": "/cart", "country": "CH"},
        b"ann": {"url": "/pay", "country": "unknown"},
    }


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """The installed Spark under a path of its own: executors leave their logs there."""
    import pyspark  # noqa: PLC0415 -- for its folder alone

    home = tmp_path / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    return home


@pytest.mark.chaos
def test_the_counter_runs_on_executors_of_their_own(
    kafka: DevKafka, spark_home: Path, tmp_path: Path
) -> None:
    """Two executors are processes of their own, as in a cluster; Spark's workers are not."""
    brokers = kafka.bootstrap_servers
    create_topic(kafka, "clicks", PARTITIONS)
    send(kafka, "clicks", *((f"user-{number % 50}", "/") for number in range(1_000)))
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(f"spark.jars.ivy {cache_dir() / 'ivy-home'}\n")
    env = {
        "SPARK_CONF_DIR": str(conf),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "SPARK_HOME": str(spark_home),
    }
    command = [
        *("env", *(f"{name}={value}" for name, value in env.items())),
        *(sys.executable, str(EXAMPLES / "stream_on_spark.py"), "click_counter:graph"),
        *("--bootstrap-servers", brokers, "--master", "local-cluster[2,1,1024]"),
        *("--available-now", "--no-samples", "--checkpoint", str(tmp_path / "checkpoint")),
    ]
    log = tmp_path / "driver.log"
    driver = WatchedProcess(command, cwd=tmp_path, log_path=log)
    driver.wait(300)
    assert driver.status() == 0, log.read_text()[-3_000:]
    counts = table(brokers, "click-counter-table")
    assert {f"user-{number}": b"20" for number in range(50)}.items() <= counts.items()
    assert len(list(spark_home.glob("work/app-*/*/stderr"))) == 2
