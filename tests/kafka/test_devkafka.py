"""DevKafka is a real Kafka, survives what it should and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from offsetmgr.devkafka import KAFKA_VERSION, DevKafka, DevKafkaError, run_dev_kafka
from offsetmgr.devkafka.cluster import free_ports
from offsetmgr.devkafka.command import create_topic
from offsetmgr.errors import InvalidValueError
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.errors import known
from offsetmgr.types import TopicPartition
from tests.commands import Ran, run_alone
from tests.kafka.test_cluster_reader import commit, produce

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import TopicFactory

_WAIT_S = 180.0
_OFFSETMGR = (sys.executable, "-c", "from offsetmgr.cli import main; main()")


def test_consumer_groups_command(kafka: DevKafka, new_topic: TopicFactory, group: str) -> None:
    """The command passes the tool's options on, prints its output, and fails where it does."""
    topic = new_topic()
    produce(kafka, topic, 0, 1)
    commit(kafka, group, {TopicPartition(topic, 0): 1})

    def run(name: str) -> Ran:
        options = ("--bootstrap-server", kafka.bootstrap_servers, "--describe", "--group", name)
        return run_alone("kafka-consumer-groups", *options)

    described = run(group)
    assert described.status == 0
    rows = [line.split() for line in described.out.splitlines() if line.startswith(group)]
    assert [row[:6] for row in rows] == [[group, topic, "0", "1", "1", "0"]]
    missing = run(f"no-{group}")
    assert missing.status == 1
    _, error = missing.err.splitlines()  # without the tool's traceback
    assert error.endswith(f"Group no-{group} not found.")


@pytest.fixture
def no_process_left() -> Iterator[None]:
    """Hold a test to end with the child processes that it began with."""
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) <= before


# In the place of Java: prepares the storage, and starts for long.
_SLOW = ["/bin/sh", "-c", '[ "$1" != kafka.Kafka ] || exec sleep 600', "sh"]


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({}, "in time"),
        ({"group.max.size": "0"}, r"could not prepare its storage.*group\.max\.size"),
        ({"metric.reporters": "NoSuchClass"}, r"ended by itself \(exit status 1\).*NoSuchClass"),
    ],
)
@pytest.mark.usefixtures("no_process_left")
def test_failed_start_shows_the_log(
    properties: dict[str, str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Kafka that does not come up says why in its own words; no broker is left, and no data."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kafka = DevKafka(properties=properties)
    if not properties:
        monkeypatch.setattr("offsetmgr.devkafka.cluster.java_command", lambda *_, **__: _SLOW)
    with pytest.raises(DevKafkaError, match=f"(?s){reason}"):
        kafka.start(timeout_s=_WAIT_S if properties else 0.1)
    with pytest.raises(DevKafkaError, match="not started"):
        _ = kafka.bootstrap_servers
    assert not list(tmp_path.iterdir())


def test_topics_are_made_while_a_busy_broker_is_left_out(
    kafka: DevKafka, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller leaves out a broker that missed its heartbeats; then an answer is lost."""
    failures = [KafkaError.INVALID_REPLICATION_FACTOR, KafkaError.REQUEST_TIMED_OUT]

    class Busy:
        def __init__(self, servers: str) -> None:
            self.admin = AdminClient({"bootstrap.servers": servers})

        def create_topics(self, wanted: list[NewTopic], **options: Any) -> dict[str, Future[None]]:
            code = failures.pop(0) if failures else None
            answers = {}
            if code != KafkaError.INVALID_REPLICATION_FACTOR:
                answers = self.admin.create_topics(wanted, **options)
            if code is not None:
                wait(answers.values())
                answers = {topic.topic: Future() for topic in wanted}
                for answer in answers.values():
                    answer.set_exception(KafkaException(KafkaError(code)))
            return answers

    monkeypatch.setattr("offsetmgr.devkafka.command.quiet_admin", Busy)
    create_topic(kafka.bootstrap_servers, unique_name, 2)
    assert not failures


def test_a_closed_terminal_stops_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the process at once, and the broker's data stayed; nohup still outlives it.

    Here the command ends by itself: the port that another program listens on is named.
    """
    in_use = r"^port \d+ is in use; stop the program .*, or choose another with --port$"
    for handler, stops in ((signal.SIG_DFL, True), (signal.SIG_IGN, False)):
        set_up: dict[int, object] = {signal.SIGHUP: handler}
        monkeypatch.setattr(signal, "getsignal", set_up.get)
        monkeypatch.setattr(signal, "signal", set_up.__setitem__)
        with (
            pytest.raises(InvalidValueError, match=in_use),
            socket.create_server(("127.0.0.1", 0)) as server,
        ):
            run_dev_kafka(port=server.getsockname()[1])
        assert (set_up[signal.SIGHUP] is signal.default_int_handler) == stops


def _ends(port: int, topic: str, partitions: int) -> list[int]:
    wanted = [TopicPartition(topic, number) for number in range(partitions)]
    with ClusterReader(f"127.0.0.1:{port}", timeout_s=_WAIT_S) as reader:
        return [known(log).high_watermark for log in reader.log_ranges(wanted).values()]


@contextmanager
def dev_kafka(port: int, *options: str) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """Run the command and its broker in a block, at the end of which it has ended.

    It is a shell's background job, which is told to ignore Ctrl-C.
    """
    ignoring = ["/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
    with subprocess.Popen(
        [*ignoring, *_OFFSETMGR, "dev-kafka", "--port", str(port), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A group of its own, to be signalled whole, as a terminal does.
        start_new_session=True,
    ) as command:
        assert command.stdout is not None
        line = command.stdout.readline()
        assert line.startswith(f"Kafka {KAFKA_VERSION} is ready: 127.0.0.1:{port}"), line
        family = psutil.Process(command.pid).children(recursive=True)
        (broker,) = (each for each in family if "java" in each.name())
        yield command, broker


def test_command_makes_topics_and_fills_them() -> None:
    """Ctrl-C ends it with status 0, and no process is left."""
    (port,) = free_ports(1)
    options = ["--produce", "100", "--topic", "orders:8", "--topic", "refunds"]
    with dev_kafka(port, *options) as (command, broker):
        assert _ends(port, "orders", 8) == [13, 13, 13, 13, 12, 12, 12, 12]
        assert _ends(port, "refunds", 1) == [100]
        broker.suspend()
        os.killpg(command.pid, signal.SIGINT)
        output = command.communicate(timeout=_WAIT_S)[0]
    assert command.returncode == 0, output
    assert "Kafka has stopped." in output
    assert not broker.is_running()


@pytest.mark.chaos
def test_command_ends_with_its_broker() -> None:
    """It shows the end of the broker's log."""
    (port,) = free_ports(1)
    with dev_kafka(port) as (command, broker):
        broker.kill()
        output = command.communicate(timeout=_WAIT_S)[0]
    assert command.returncode == 1, output
    assert "broker 1 ended by itself (exit status 137); the end of its log" in output
