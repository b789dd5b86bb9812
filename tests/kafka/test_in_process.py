"""The factory in process over a real Kafka, as the README shows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from offsetmgr import LocalOffsets
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.manager import Factory
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    import pytest

    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory

EXAMPLE = Path(__file__).parents[2] / "examples" / "in_process.py"


def test_the_example_runs_as_it_stands(kafka: DevKafka, new_topic: TopicFactory) -> None:
    """Twice, the second time from where the first one ended; it prints nothing but its own."""
    name = new_topic(1)
    options = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic", name, "--group", name]
    for committed in (42, 84):
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), *options],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert f"begins at offset {committed - 42} " in done.stdout
        assert f"committed: {OffsetAndMetadata(committed)}\n" in done.stdout
        assert done.stderr == ""


def test_a_broker_that_is_away_is_logged_and_nothing_is_printed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A stop says why; librdkafka's own lines are not for standard output."""
    with KafkaCoordinator("127.0.0.1:1", clients=1) as kafka, Factory(kafka) as factory:
        manager = factory.spawn("g", "t", 0)
        manager.submit(1)
        result = manager.stop(timeout=2)
        factory.stop(0)
        kafka.close(0)  # librdkafka might write for twelve seconds yet
    assert result[:2] == (None, OffsetAndMetadata(1))
    assert "Kafka has not answered within 2 s" in str(result.error)
    assert capfd.readouterr() == ("", "")


_EXITS = """
import sys
from offsetmgr import LocalOffsets
from offsetmgr.client import offsets as every
every.AT_EXIT_S = float(sys.argv[2])
offsets = LocalOffsets(sys.argv[1])
offsets.submit("{group}", {{("{topic}", 0): 7}})
"""


def test_a_process_exits_without_a_close(kafka: DevKafka, new_topic: TopicFactory) -> None:
    """Offsets of LocalOffsets are committed, or the log says that they are not; no thread hangs."""
    topic = new_topic(1)
    script = _EXITS.format(group=f"{topic}-etl", topic=topic)
    left = {}
    for servers, at_exit_s in ((kafka.bootstrap_servers, "60"), ("127.0.0.1:1", "1")):
        command = [sys.executable, "-c", script, servers, at_exit_s]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        left[servers] = done.stderr
    assert left.pop(kafka.bootstrap_servers) == ""
    assert f"not committed: {topic}-etl/{topic}/0 at 7" in left.popitem()[1]
    with LocalOffsets(kafka.bootstrap_servers) as offsets:
        assert offsets.committed(f"{topic}-etl") == {TopicPartition(topic, 0): OffsetAndMetadata(7)}
