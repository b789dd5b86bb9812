"""Reconciling a group with a checkpoint, by the command and the real service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import offsetmgr.spark
from offsetmgr.cli.app import app
from offsetmgr.client import OffsetClient
from offsetmgr.errors import InvalidValueError, OffsetConflictError
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.service.support import Running, running
from tests.unit.spark.broker import CLICKS, forbid, managers, recreate
from tests.unit.spark.checkpoints import WrittenCheckpoint, orders

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typer.testing import Result

GROUP = "orders-etl"


@pytest.fixture(scope="module")
def serving() -> Iterator[Running]:
    with running() as here:
        broker = here.coordinator.broker
        broker.create_topic("orders", 4)
        for partition in range(4):
            broker.set_log(TopicPartition("orders", partition), 0, 100)
        yield here


@pytest.fixture
def service(serving: Running) -> Running:
    """The group is ahead of the checkpoint, behind it, where it is, and nowhere."""
    serving.coordinator.broker.forget(GROUP)
    committed = {
        TopicPartition("orders", number): OffsetAndMetadata(offset)
        for number, offset in enumerate((12, 5, 30))
    }
    serving.coordinator.broker.commit_externally(GROUP, committed)
    return serving


@pytest.fixture
def checkpoint(checkpoint: WrittenCheckpoint) -> WrittenCheckpoint:
    """A query that has finished its third batch."""
    checkpoint.batch(2, orders(10, 20, 30, 40))
    return checkpoint


def reconcile(service: Running, checkpoint: WrittenCheckpoint, *options: str) -> Result:
    place = ["--checkpoint", str(checkpoint.root), "--service", service.address]
    return CliRunner().invoke(app, ["spark", "reconcile", "--group", GROUP, *place, *options])


def committed(service: Running) -> list[int]:
    found = service.coordinator.broker.committed(GROUP)
    return [entry.offset for _, entry in sorted(found.items())]


def test_a_group_is_brought_to_its_checkpoint(
    service: Running, checkpoint: WrittenCheckpoint
) -> None:
    """Forward and back; before that the difference is shown, and after it nothing is left or held.

    A crash of the file system empties the newest file: the batch before it counts.
    """
    checkpoint.batch(3, orders(50, 50, 50, 50))
    checkpoint.write("commits/3", "")
    found = reconcile(service, checkpoint)
    assert found.exit_code == 3, found.output
    rows = [line.split() for line in found.stdout.splitlines() if line.startswith("orders")]
    assert [row[1:4] for row in rows] == [
        ["0", "10", "12"],
        ["1", "20", "5"],
        ["2", "30", "30"],
        ["3", "40", "-"],
    ]
    for text in ("group is 2 ahead", "group is 15 behind", "3 of 4 partitions differ"):
        assert text in found.stdout
    assert committed(service) == [12, 5, 30]
    done = reconcile(service, checkpoint, "--execute")
    assert done.exit_code == 0, done.output
    assert "commits/3 is empty" in done.stdout
    assert "Committed 3 of 4 partitions" in done.stdout
    assert committed(service) == [10, 20, 30, 40]
    again = reconcile(service, checkpoint)
    assert again.exit_code == 0
    assert "is at the end of batch 2" in again.stdout
    assert managers(service) == 0


def test_the_address_of_a_client_is_refused() -> None:
    address: Any = "http://127.0.0.1:8741"
    with pytest.raises(InvalidValueError, match="is not a client"):
        offsetmgr.spark.reconcile(address, GROUP, "checkpoint")


def test_a_running_job_is_left_alone(service: Running, checkpoint: WrittenCheckpoint) -> None:
    """Its own offsets are newer than what was read of its checkpoint: it is named instead."""
    with OffsetClient(service.address, "the-driver") as client:
        client.claim(GROUP, [("orders", 0)])
        refused = reconcile(service, checkpoint, "--execute")
        assert refused.exit_code == 1
        assert "the-driver" in refused.stderr
        assert committed(service) == [12, 5, 30]


def test_a_checkpoint_without_a_finished_batch_commits_nothing(
    service: Running, tmp_path: Path
) -> None:
    """A job that has finished nothing, or another folder, says nothing about its group."""
    folder = WrittenCheckpoint(tmp_path)
    done = reconcile(service, folder, "--execute")
    assert done.exit_code == 0
    assert "no finished batch" in done.stdout
    (tmp_path / "metadata").unlink()
    failed = reconcile(service, folder, "--execute")
    assert failed.exit_code == 1
    assert "no file named metadata" in failed.stderr
    assert committed(service) == [12, 5, 30]


@pytest.fixture
def recreated(service: Running) -> Iterator[Running]:
    """The log of one partition ends below the checkpoint, and another partition is gone."""
    place = TopicPartition("orders", 0)
    service.coordinator.broker.set_log(place, 0, 7)
    yield service
    service.coordinator.broker.set_log(place, 0, 100)


def test_offsets_of_a_former_log_are_refused_by_name(
    recreated: Running, checkpoint: WrittenCheckpoint
) -> None:
    """A topic was recreated: nothing is committed, or with --partial the others alone.

    A log without a right to read it, as one without a leader, is named and blocks no other.
    """
    recreated.coordinator.broker.create_topic(CLICKS.topic)
    forbid(recreated.coordinator.broker, CLICKS.topic)
    checkpoint.batch(3, {"orders": {"0": 10, "1": 20}, "gone": {"5": 3}, "clicks": {"0": 5}})
    shown = reconcile(recreated, checkpoint)
    assert shown.exit_code == 3
    assert "offset 10 is beyond the end of the log, 7: the topic was deleted" in shown.stdout
    refused = reconcile(recreated, checkpoint, "--execute")
    assert refused.exit_code == 1
    assert "orders-0 (offset 10 is beyond the end of the log" in refused.stderr
    assert "gone-5 (the partition does not exist any more)" in refused.stderr
    assert "clicks-0 (its log cannot be read: " in refused.stderr
    assert committed(recreated) == [12, 5, 30]
    done = reconcile(recreated, checkpoint, "--execute", "--partial")
    assert done.exit_code == 3, done.output
    assert "Committed 1 of 4 partitions" in done.stdout
    assert committed(recreated) == [12, 20, 30]
    # Equal offsets of which one is not in the log are reported all the same.
    checkpoint.batch(4, {"orders": {"0": 12, "1": 20, "2": 30}})
    equal = reconcile(recreated, checkpoint)
    assert equal.exit_code == 3
    assert "1 of 3 partitions are of a former log, or cannot be read." in equal.stdout


@pytest.mark.parametrize("end", [19, 100])
def test_a_topic_recreated_after_the_comparison_gets_no_offset_of_the_former(
    service: Running, checkpoint: WrittenCheckpoint, unique_name: str, end: int
) -> None:
    """As while somebody reads what would change: only the comparison was refused."""
    recreate(service.coordinator.broker, unique_name, 100)
    checkpoint.batch(3, {unique_name: {"0": 20}})
    with OffsetClient(service.address, "operator") as client:
        found = offsetmgr.spark.reconcile(client, GROUP, str(checkpoint.root))
        recreate(service.coordinator.broker, unique_name, end)
        with pytest.raises(OffsetConflictError, match=r"recreated.*nothing was committed"):
            found.execute(client)
        assert committed(service) == [12, 5, 30]
        checkpoint.batch(4, orders(11))
        offsetmgr.spark.reconcile(client, GROUP, str(checkpoint.root)).execute(client)
        assert managers(service) == 0, "the client holds nothing of the group"
    assert committed(service) == [11, 5, 30]


def test_a_longer_log_that_is_newer_than_the_batch_is_named(
    service: Running, checkpoint: WrittenCheckpoint
) -> None:
    """A topic was recreated and has more records than before: its times alone show it."""
    times_ms = {0: 1_700_000_000_001}  # the batch is a millisecond older
    place = TopicPartition("orders", 1)
    service.coordinator.broker.set_log(place, 0, 100, times_ms)
    text = "the log's first record is newer than this batch: was the topic recreated?"
    assert reconcile(service, checkpoint).stdout.count(text) == 1
    service.coordinator.broker.set_log(place, 0, 100, {0: 1_699_999_999_999, 15: times_ms[0]})
    assert text not in reconcile(service, checkpoint).stdout
