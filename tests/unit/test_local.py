"""Offsets of this process: what holds of them and not of a client of the service."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from offsetmgr import (
    InvalidValueError,
    LocalOffsets,
    ManagerStoppedError,
    OffsetCommitError,
    OffsetRegressionError,
    ServiceError,
)
from offsetmgr.codes import NOT_SENT
from offsetmgr.coordinator.memory import MemoryCoordinator, Refuse, SentRequest
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.fork import in_child
from tests.interrupted import interrupted
from tests.service.support import local_over
from tests.waiting import WAIT_S, eventually

WHERE = TopicPartition("orders", 3)

UNSTABLE_OFFSET_COMMIT = 88

_WITHOUT = """
import sys
sys.modules[{package!r}] = None
from offsetmgr import *
from offsetmgr.spark import commit_offsets, kafka_batch, starting_offsets
try:
    LocalOffsets("localhost:9092")
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("package", ["confluent_kafka", "pykka"])
def test_a_missing_package_is_named_by_the_constructor(package: str) -> None:
    """Importing everything else needs the standard library alone."""
    command = [sys.executable, "-c", _WITHOUT.format(package=package)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.strip() == (
        f"LocalOffsets needs the package {package}: pip install 'offsetmgr[kafka]'"
    )


def test_it_shows_where_it_commits_and_no_secret() -> None:
    """The settings of librdkafka hold passwords."""
    settings = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "tell-nobody"}
    with LocalOffsets(settings, name="etl") as offsets:
        assert repr(offsets) == "LocalOffsets('kafka://127.0.0.1:1', name='etl')"
        assert offsets.url == "kafka://127.0.0.1:1"


@pytest.mark.parametrize(
    ("kafka", "field"), [("", "bootstrap.servers"), ({}, "bootstrap.servers"), (7, "config")]
)
def test_bad_settings(kafka: object, field: str) -> None:
    """They are refused by name."""
    with pytest.raises(InvalidValueError) as caught:
        LocalOffsets(kafka)  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize("bad", [{"store": "nodb://x"}, {"settings": "x"}])
def test_a_constructor_that_fails_leaves_no_connections(bad: dict[str, Any]) -> None:
    """A program that tries again and again would run out of threads."""

    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    before = threads()
    with pytest.raises(InvalidValueError):
        LocalOffsets("127.0.0.1:1", **bad)
    eventually(lambda: threads() <= before, expected=True)


def test_it_stays_in_its_process() -> None:
    """Pickling it says what to do instead, and so does its use in the child of a fork."""
    with local_over(MemoryCoordinator()) as offsets:
        offsets.submit("g", {WHERE: 42})
        with pytest.raises(TypeError, match="cannot be pickled; make one in each process"):
            pickle.dumps(offsets)

        def use() -> None:
            for ask in (offsets.flush, lambda: offsets.submit("g", {WHERE: 43})):
                with pytest.raises(ManagerStoppedError, match="make one in each process"):
                    ask()
            offsets.close()

        in_child(use)
        assert offsets.flush(timeout=WAIT_S).committed


@pytest.mark.parametrize(
    ("notice", "last"), [("TOPIC_RECREATED", 90), ("TOPIC_RECREATED", 91), ("TOPIC_DELETED", 90)]
)
def test_a_stop_after_a_notice_hides_no_recreated_topic(notice: str, last: int) -> None:
    """The last offset of the former log is refused again, and a higher one is of the new log."""
    kafka = MemoryCoordinator()

    def create() -> None:
        kafka.broker.create_topic("orders", 4)
        kafka.broker.set_log(WHERE, 0, 100)

    create()
    offsets = local_over(kafka)
    offsets.submit("g", {WHERE: 90}, sync=True, timeout=WAIT_S)
    notices: list[str] = []
    offsets.watch_errors(lambda _, error: notices.append(error.code))
    kafka.broker.delete_topic("orders")
    if notice == "TOPIC_RECREATED":
        create()
    with suppress(OffsetRegressionError):  # which has the topic looked at, as a higher one does
        offsets.submit("g", {WHERE: 91 if last == 91 else 89})
    eventually(lambda: notices[:1], [notice])
    if notice == "TOPIC_DELETED":
        create()
    for _ in range(2):
        offsets.stop_managers(timeout=WAIT_S)
        offsets.spawn("g", *WHERE).initial_offset(timeout=WAIT_S)
        for _ in range(2):
            with pytest.raises(OffsetCommitError, match="recreated"):
                offsets.submit("g", {WHERE: last}, sync=True, timeout=WAIT_S)
    offsets.stop_managers(timeout=WAIT_S)
    offsets.submit("g", {WHERE: last + 1}, sync=True, timeout=WAIT_S)
    assert kafka.broker.committed("g") == {WHERE: OffsetAndMetadata(last + 1)}
    assert offsets.close(timeout=WAIT_S).ok


def test_a_question_at_its_deadline_keeps_the_reason() -> None:
    """The answer to the last try, which came too late to be sent, does not hide why it was tried.

    The kind: an error that only the end of the time causes takes the place of the real one.
    """
    asked_s: list[float] = []

    def plan(_: SentRequest) -> Refuse:
        asked_s.append(time.monotonic())
        if len(asked_s) == 1:
            return Refuse(UNSTABLE_OFFSET_COMMIT)
        eventually(lambda: time.monotonic() > asked_s[0] + 2.0, expected=True)
        return Refuse(NOT_SENT.code)

    with (
        local_over(MemoryCoordinator(plan=plan)) as offsets,
        pytest.raises(ServiceError, match="a transaction holds offsets"),
    ):
        offsets.committed("g", timeout=2.0)


def test_a_handler_that_raises_anywhere_costs_no_later_commit() -> None:
    """Ctrl-C in a submit, of a new manager or group too: what is submitted next is committed.

    The kind: a wake-up that was noted as sent, and was not, stops a whole group for good.
    """
    kafka = MemoryCoordinator()
    offsets = local_over(kafka, commit_interval_s=0.01)
    before: dict[str, tuple[str, int] | None] = {
        "a submit": WHERE,
        "a new manager": ("bills", 0),
        "a new group": None,
    }
    groups = []
    for what, place in before.items():
        for at in count(1, 3):
            group = f"{what} {at}"
            if place is not None:
                offsets.submit(group, {place: 1})
            was_interrupted = interrupted(lambda: offsets.submit(group, {WHERE: 2}), at)  # noqa: B023
            offsets.submit(group, {WHERE: 9})
            groups.append(group)
            if not was_interrupted:
                break

    def left() -> list[str]:
        done = OffsetAndMetadata(9)
        return [each for each in groups if kafka.broker.committed(each).get(WHERE) != done]

    eventually(left, [])
    assert offsets.close(timeout=WAIT_S).ok


def test_a_close_that_a_handler_with_a_submit_and_a_close_interrupts_anywhere() -> None:
    """Neither close waits for the other, and the offset is committed, or refused in sight.

    The kind: a lock that a handler has interrupted; a call that it has left to the other.
    """
    for at in count(1, 2):
        kafka = MemoryCoordinator()
        offsets = local_over(kafka, commit_interval_s=0.01)
        offsets.submit("g", {WHERE: 1})
        refused: list[object] = []
        offsets.watch_errors(lambda key, error: refused.append((key, error)))  # noqa: B023

        def handle() -> None:
            try:
                offsets.submit("g", {WHERE: 2})  # noqa: B023
            except ManagerStoppedError as error:
                refused.append(error)  # noqa: B023
            offsets.close(timeout=600)  # noqa: B023

        was_interrupted = interrupted(
            lambda: offsets.close(timeout=600),  # noqa: B023
            at,
            handle,
            within="/offsetmgr/",
        )
        assert offsets.close(timeout=WAIT_S).ok
        if not was_interrupted:
            return
        assert refused or kafka.broker.committed("g") == {WHERE: OffsetAndMetadata(2)}
