"""Claims and commits in the background, of a store that answers when the test lets it."""

from __future__ import annotations

import itertools
import threading
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError

from offsetmgr.consumer.offsets import Claims, Commits, MemberStore
from offsetmgr.errors import (
    InvalidValueError,
    KafkaRequestError,
    OffsetsUncommittedError,
    OffsetTimeoutError,
    error_info,
)
from offsetmgr.stores import MemoryOffsetStore, open_store
from offsetmgr.types import ManagerKey, OffsetAndMetadata, TopicPartition
from tests.interrupted import interrupted
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from offsetmgr.errors import OffsetManagerError

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


class SlowStore(MemoryOffsetStore):
    """A user's store whose claims and releases wait; it notes them in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[str, set[TopicPartition]]] = []
        self.answers = threading.Event()
        self.released = threading.Event()

    def claim(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        assert self.answers.wait(WAIT_S)
        self.steps.append(("claim", set(partitions)))
        found = self.fetch(group, partitions)
        assert isinstance(partitions, list)
        partitions.clear()  # it may do with its arguments as it likes
        return found

    def release(self, group: str, partitions: Collection[TopicPartition]) -> None:
        assert group == "etl"
        assert self.answers.wait(WAIT_S)
        self.steps.append(("release", set(partitions)))
        self.released.set()


def claims_of(store: SlowStore) -> Claims:
    def fail(error: OffsetManagerError, what: str) -> None:
        raise AssertionError(what) from error

    return Claims(store, "etl", fail)


def test_a_partition_dropped_during_its_claim_is_released_before_it_is_claimed_again() -> None:
    """Another process may have had it meanwhile; the others of the claim are kept."""
    store = SlowStore()
    claims = claims_of(store)
    claims.add([ZERO, ONE])
    assert claims.take() == {}
    claims.drop([ZERO])
    claims.add([ZERO])
    store.answers.set()
    assert claims.take(WAIT_S) == {ONE: None}
    assert claims.take(WAIT_S) == {ZERO: None}
    claims.drop([ZERO, ONE])  # taken: theirs is another way
    expected = [("claim", {ZERO, ONE}), ("release", {ZERO}), ("claim", {ZERO})]
    assert store.steps == expected


def test_a_claim_that_ends_after_the_consumer_is_released() -> None:
    store = SlowStore()
    claims = claims_of(store)
    claims.add([ZERO])
    claims.take()
    claims.close(0.0)
    store.answers.set()
    assert store.released.wait(WAIT_S)
    assert store.steps == [("claim", {ZERO}), ("release", {ZERO})]


def test_a_release_that_hangs_or_exits_delays_only_the_next_claim() -> None:
    """A poll waits for it as long as it is told to; the failure is reported."""
    store, failures = SlowStore(), list[object]()
    claims = Claims(store, "etl", lambda error, _: failures.append(error))
    claims.release([ZERO], 0.01)
    assert "release for group etl: the store has not answered" in str(failures.pop())
    claims.release([ONE])
    claims.add([ZERO])
    assert claims.take() == {}
    assert store.steps == []
    store.answers.set()
    assert claims.take(WAIT_S) == {ZERO: None}
    assert store.steps == [("release", {ZERO}), ("release", {ONE}), ("claim", {ZERO})]

    class ExitingStore(MemoryOffsetStore):
        def release(self, group: str, partitions: Collection[TopicPartition]) -> None:
            raise SystemExit(group, partitions)

    Claims(ExitingStore(), "etl", lambda error, _: failures.append(error)).release([ZERO], WAIT_S)
    until(lambda: failures)
    assert "SystemExit" in str(failures.pop())


class PickyStore(MemoryOffsetStore):
    """A user's store that fails every claim with one of its bad partitions."""

    def __init__(self, bad: set[TopicPartition]) -> None:
        super().__init__()
        self.bad = bad

    def claim(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        if not self.bad.isdisjoint(partitions):
            raise KeyError("no row")
        return self.fetch(group, partitions)


def test_a_partition_that_cannot_be_claimed_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is retried, and claimed once the store has it; failures are reported."""
    monkeypatch.setattr("offsetmgr.consumer.offsets._LONGEST_PAUSE_S", 0.0)
    partitions = {TopicPartition("orders", number) for number in range(40)}
    bad = {TopicPartition("orders", number) for number in (0, 7, 39)}
    store, failures, claimed = PickyStore(bad), [], set[TopicPartition]()
    claims = Claims(store, "etl", lambda error, _: failures.append(str(error)))
    claims.add(sorted(partitions))
    while claimed != partitions - bad:
        claimed.update(claims.take(WAIT_S))
    assert set(failures) == {
        "claim for group etl: KeyError: 'no row' (STORE_FAILED, fault: network)"
    }
    store.bad = set()
    while claimed != partitions:
        claimed.update(claims.take(WAIT_S))


def test_a_store_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim and a commit that hang would else look like a topic without messages."""
    monkeypatch.setattr("offsetmgr.consumer.offsets._LATE_S", 0.0)
    store, failures = SlowStore(), []
    claims = Claims(store, "etl", lambda error, _: failures.append(error))
    claims.add([ZERO])
    assert claims.take() == {}
    assert [type(each) for each in failures] == [OffsetTimeoutError]
    store.answers.set()
    assert claims.take(WAIT_S) == {ZERO: None}

    answers = threading.Event()

    class HangingStore(MemoryOffsetStore):
        def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
            assert answers.wait(WAIT_S)
            super().commit(group, offsets)
            assert isinstance(offsets, dict)
            offsets.clear()

    done: list[object] = []
    commits = Commits(HangingStore(), "etl", done.append, lambda *_: None)
    commits.begin({ZERO: OffsetAndMetadata(5)})
    assert isinstance(commits.end(), OffsetTimeoutError)
    assert isinstance(commits.unanswered(), OffsetTimeoutError)  # before a partition is released
    answers.set()
    assert commits.end(WAIT_S) is None
    assert done == [{ZERO: OffsetAndMetadata(5)}]


@pytest.mark.parametrize("names_partitions", [True, False])
def test_metadata_that_is_too_long_costs_no_offset(names_partitions: bool) -> None:  # noqa: FBT001
    """Metadata is an addition: a broker may take less of it than others, whichever way it says."""

    class StrictStore(MemoryOffsetStore):
        def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
            for where, at in offsets.items():
                if len(at.metadata) > 10:
                    place: dict[str, Any] = {"topic": where.topic, "partition": where.partition}
                    info = error_info(12)
                    raise KafkaRequestError("commit", info, **(place if names_partitions else {}))
            super().commit(group, offsets)

    store, failures = StrictStore(), []
    commits = Commits(store, "etl", lambda *_: None, lambda error, _: failures.append(error.code))
    for first, second, offset in ((30, 20, 5), (11, 10, 7)):
        zero, one = OffsetAndMetadata(offset, "x" * first), OffsetAndMetadata(8, "x" * second)
        commits.begin({ZERO: zero, ONE: one})
        assert commits.end(WAIT_S) is None
    kept = "x" * 10 if names_partitions else ""
    assert store.fetch("etl", [ZERO, ONE]) == {
        ZERO: OffsetAndMetadata(7),
        ONE: OffsetAndMetadata(8, kept),
    }
    assert set(failures) == {"OFFSET_METADATA_TOO_LARGE"}


@pytest.mark.parametrize("name", ["fetch", "commit", "claim", "release"])
def test_a_store_with_async_methods_is_refused(name: str) -> None:
    """Nobody awaits them: each commit would be a success that keeps nothing."""

    async def work(*_: object) -> None:
        raise AssertionError("it is never awaited")

    store = type("AsyncStore", (MemoryOffsetStore,), {name: work})()
    with pytest.raises(InvalidValueError, match=f"AsyncStore.{name} .*before its work is done"):
        open_store(store)


def test_refused_offsets_are_named_by_group_topic_and_partition() -> None:
    """As those of every other store."""
    consumer = Mock()
    consumer.commit.return_value = [
        Mock(topic=topic, partition=partition, offset=5, error=KafkaError(28))
        for topic, partition in (ZERO, ONE)
    ]
    with pytest.raises(OffsetsUncommittedError) as refused:
        MemberStore(lambda: consumer, Mock()).commit(
            "etl", dict.fromkeys((ZERO, ONE), OffsetAndMetadata(5))
        )
    assert refused.value.errors.keys() == {ManagerKey("etl", *ZERO), ManagerKey("etl", *ONE)}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_commit_that_a_signal_handler_interrupts_anywhere() -> None:
    """The interrupted start of its thread was taken for a failed one."""
    ended: list[object] = []
    for at in itertools.count(1):
        store = MemoryOffsetStore()
        commits = Commits(store, "billing", ended.append, lambda *_: None)
        if not interrupted(partial(commits.begin, {ZERO: OffsetAndMetadata(at)}), at):
            break
    assert commits.end(WAIT_S) is None
    assert ended == [{ZERO: OffsetAndMetadata(at)}]
