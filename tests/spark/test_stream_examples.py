"""The examples of streams run on Spark as they stand, the counter also on a cluster."""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsetmgr.devkafka.process import WatchedProcess
from tests.conftest import create_topic
from tests.spark.support import eventually
from tests.spark.test_processor import messages, send, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from offsetmgr.devkafka import DevKafka

EXAMPLES = Path(__file__).parents[2] / "examples"
PARTITIONS = 4


@pytest.fixture
def run(
    spark: SparkSession, kafka: DevKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Run a graph in this process, so that it finds the Spark that is there already."""
    assert spark is not None
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run_graph(graph: str) -> None:
        checkpoint = str(tmp_path / graph.replace(":", "-"))
        options = ["--brokers", kafka.bootstrap_servers, "--checkpoint", checkpoint]
        command = ["stream_on_spark.py", graph, *options, "--available-now"]
        monkeypatch.setattr(sys, "argv", command)
        runpy.run_path(str(EXAMPLES / "stream_on_spark.py"), run_name="__main__")

    return run_graph


def test_clicks_are_joined_with_profiles(kafka: DevKafka, run: Callable[[str], None]) -> None:
    brokers = kafka.bootstrap_servers
    for topic in ("clicks", "profiles"):
        create_topic(kafka, topic, PARTITIONS)
    send(brokers, "profiles", [("bob", b'{"name": "Bob", "country": "CH"}')])
    send(brokers, "clicks", [("bob", b"/cart"), ("ann", b"/pay")])
    run("user_profiles:graph")
    found = {each.key(): json.loads(each.value()) for each in messages(brokers, "country-clicks")}
    assert found == {
        b"bob": {"url": "/cart", "country": "CH"},
        b"ann": {"url": "/pay", "country": "unknown"},
    }


def test_a_loop_finds_fraud(kafka: DevKafka, run: Callable[[str], None]) -> None:
    brokers = kafka.bootstrap_servers
    create_topic(kafka, "payments", PARTITIONS)
    send(brokers, "payments", [("thief", b'{"payee": "mule", "cents": 200000}')])
    run("fraud_alerts:graph")
    run("fraud_alerts:graph")  # the loop is read by the next run
    send(brokers, "payments", [("mule", b'{"payee": "boss", "cents": 190000}')])
    run("fraud_alerts:graph")
    alerts = [each.key() for each in messages(brokers, "fraud-alerts")]
    assert alerts == [b"mule"]


def test_a_group_looks_up_words_of_another(kafka: DevKafka, run: Callable[[str], None]) -> None:
    brokers = kafka.bootstrap_servers
    for topic in ("block-word", "comments"):
        create_topic(kafka, topic, PARTITIONS)
    send(brokers, "block-word", [("spam", b"true"), ("ham", b"true"), ("ham", b"false")])
    send(brokers, "comments", [("bob", b"Spam and ham")])
    run("blocked_words:words")
    run("blocked_words:comments")
    (clean,) = messages(brokers, "clean-comments")
    assert clean.value() == b"**** and ham"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A standalone cluster of two workers with one core each; return its URL."""
    import pyspark  # noqa: PLC0415 -- for its folder alone

    spark_class = Path(pyspark.__file__).parent / "bin/spark-class"
    env = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(sys.path)}
    log = tmp_path / "master.Master.log"
    deploy = [str(spark_class), "org.apache.spark.deploy"]

    def begin(name: str, *arguments: str) -> WatchedProcess:
        command = [deploy[0], f"{deploy[1]}.{name}", *arguments, "--host", "127.0.0.1"]
        return WatchedProcess(
            ["env", *(f"{key}={value}" for key, value in env.items()), *command],
            cwd=tmp_path,
            log_path=tmp_path / f"{name}.log",
        )

    def master_url() -> str | None:
        found = re.search(
            r"(spark://127\.0\.0\.1:[0-9]+)", (tmp_path / "master.Master.log").read_text()
        )
        return found[1] if found else None

    started = [begin("master.Master", "--port", "0", "--webui-port", "0")]
    try:
        eventually(lambda: master_url() is None, expected=False)
        url = master_url()
        assert url is not None
        for number in range(2):
            folder = ["--work-dir", str(tmp_path / f"worker-{number}")]
            worker = ["--cores", "1", "--memory", "1g", "--webui-port", "0", *folder, url]
            started.append(begin("worker.Worker", *worker))
        eventually(lambda: log.read_text().count("Registering worker"), 2)
        yield url
    finally:
        for each in reversed(started):
            each.close()


def test_the_counter_runs_on_a_cluster_of_two_workers(
    kafka: DevKafka, cluster: str, tmp_path: Path
) -> None:
    brokers = kafka.bootstrap_servers
    send(brokers, "clicks", [(f"user-{number % 50}", b"/") for number in range(1_000)])
    command = [
        *(sys.executable, str(EXAMPLES / "stream_on_spark.py"), "click_counter:graph"),
        *("--brokers", brokers, "--master", cluster, "--available-now"),
        *("--checkpoint", str(tmp_path / "checkpoint")),
    ]
    log = tmp_path / "driver.log"
    driver = WatchedProcess(command, cwd=tmp_path, log_path=log)
    driver.wait(300)
    assert driver.status() == 0, log.read_text()[-3_000:]
    counts = table(brokers, "click-counter-table")
    assert {f"user-{number}": b"20" for number in range(50)}.items() <= counts.items()
    started = [f"{each}" for each in tmp_path.glob("worker-*/app-*/*/stderr")]
    assert len(started) == 2, "both workers have an executor"
