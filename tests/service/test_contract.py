"""A client of the service and offsets of this process: one Protocol, and the same promises."""

from __future__ import annotations

import itertools
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

from offsetmgr import (
    InvalidValueError,
    ManagerExistsError,
    ManagerKey,
    ManagerStoppedError,
    OffsetAndMetadata,
    OffsetCommitError,
    OffsetManagerError,
    OffsetManagerHandle,
    OffsetRegressionError,
    Offsets,
    OffsetTimeoutError,
    ServiceError,
    StopResult,
    TopicPartition,
)
from offsetmgr.coordinator.memory import MemoryCoordinator, Refuse
from offsetmgr.workers import Question
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.coordinator.memory import SentRequest

WHERE: Final = TopicPartition("orders", 3)
KEY: Final = ManagerKey("g", *WHERE)
METADATA_TOO_LARGE: Final = 12


def at(offset: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset)


def looks_of(kafka: MemoryCoordinator) -> list[SentRequest]:
    return [request for request in kafka.requests if request.operation == "topic_ids"]


@pytest.fixture
def kafka(coordinator: MemoryCoordinator) -> MemoryCoordinator:
    """The Kafka behind it, with a topic."""
    coordinator.broker.create_topic("orders", 4)
    coordinator.broker.set_log(WHERE, 10, 90, {10: 1_000, 50: 2_000}, last_stable_offset=70)
    return coordinator


@pytest.mark.fault(6)
def test_a_submit_that_waits(offsets: Offsets, kafka: MemoryCoordinator) -> None:
    """Kafka has all of it when it returns, also what it refused first and what nobody spawned."""
    kafka.inject("commit", *[Refuse(14)] * 3)
    offsets.submit("g", {("orders", 3): 42, ("orders", 1): at(7)}, sync=True, timeout=WAIT_S)
    assert kafka.broker.committed("g") == {WHERE: at(42), TopicPartition("orders", 1): at(7)}
    offsets.submit("g", {("orders", 3): 42}, sync=True, timeout=WAIT_S)


def test_a_flush_returns_committed_offsets(offsets: Offsets, kafka: MemoryCoordinator) -> None:
    """The named managers alone are flushed."""
    offsets.submit("g", {("orders", 3): 42, ("orders", 1): 7})
    offsets.submit("h", {("orders", 3): 1})
    first = offsets.flush(timeout=WAIT_S, group="g", partitions=[WHERE])
    assert first == ({KEY: at(42)}, {})
    every = offsets.flush(timeout=WAIT_S)
    assert set(every.committed.values()) == {at(42), at(7), at(1)}
    assert not every.uncommitted


def test_a_flush_returns_uncommitted_offsets(offsets: Offsets, kafka: MemoryCoordinator) -> None:
    """With the reason; it is kept, and committed once Kafka answers."""
    kafka.pause()
    offsets.submit("g", {WHERE: 42})
    left = offsets.flush(timeout=0.3).uncommitted[KEY]
    assert left.offset == at(42)
    assert isinstance(left.error, OffsetManagerError)
    with pytest.raises(OffsetTimeoutError, match=r"orders-3|orders/3"):
        offsets.submit("g", {WHERE: 43}, sync=True, timeout=0.3)
    kafka.resume()
    assert offsets.flush(timeout=WAIT_S) == ({KEY: at(43)}, {})


def test_an_offset_of_a_stopped_manager_is_not_kept(
    offsets: Offsets, kafka: MemoryCoordinator
) -> None:
    """A submit that waits reports a stop by another thread, and no time-out of that one."""
    kafka.pause()
    submitting = Question(lambda: offsets.submit("g", {WHERE: 42}, sync=True, timeout=600))
    until(lambda: offsets.flush(timeout=0.01).uncommitted)
    assert list(offsets.stop_managers(timeout=0.01).uncommitted) == [KEY]
    assert isinstance(submitting.answer.exception(WAIT_S), ManagerStoppedError)


@pytest.mark.parametrize("by_handle", [False, True])
def test_an_offset_of_a_former_log_is_refused_after_a_stop(
    offsets: Offsets, kafka: MemoryCoordinator, *, by_handle: bool
) -> None:
    """The next manager of the partition, and other groups, know the new log alone.

    Lower offsets are of that one, and so are all after the refusal.
    """
    for group in ("g", "h"):
        offsets.submit(group, {WHERE: 42}, sync=True, timeout=WAIT_S)
    offsets.stop_managers(group="g", timeout=WAIT_S)
    kafka.broker.delete_topic("orders")
    kafka.broker.create_topic("orders", 4)
    kafka.broker.set_log(WHERE, 0, 90)
    looks = len(looks_of(kafka))
    rising = itertools.count(6)

    def is_noticed() -> bool:
        with suppress(OffsetCommitError):  # those until the look at the new log is answered
            offsets.submit("h", {WHERE: next(rising)}, sync=True, timeout=WAIT_S)
            return len(looks_of(kafka)) > looks
        return False

    offsets.submit("h", {WHERE: 5}, rewind=True, sync=True, timeout=WAIT_S)
    until(is_noticed)
    if by_handle:
        offsets.spawn("g", *WHERE).submit(42)
        left = offsets.flush(group="g", timeout=WAIT_S).uncommitted[KEY]
        assert left.error.code == "TOPIC_RECREATED"
    else:
        with pytest.raises(OffsetCommitError, match="TOPIC_RECREATED"):
            offsets.submit("g", {WHERE: 42}, sync=True, timeout=WAIT_S)
    assert kafka.broker.committed("g") == {}
    offsets.submit("g", {WHERE: 43}, sync=True, timeout=WAIT_S)
    assert kafka.broker.committed("g") == {WHERE: at(43)}
    offsets.stop_managers(group="h", timeout=WAIT_S)
    kafka.broker.delete_topic("orders")
    kafka.broker.create_topic("orders", 4)
    offsets.submit("h", {WHERE: 0}, sync=True, timeout=WAIT_S)
    assert kafka.broker.committed("h") == {WHERE: at(0)}


def test_a_refusal_for_good(offsets: Offsets, kafka: MemoryCoordinator) -> None:
    """Waiting callers and watchers get it at once, until they end it.

    The error says group, topic, partition, offset, code, whether it is tried again, and what to do.
    """
    told: list[tuple[ManagerKey | None, OffsetManagerError]] = []
    seen = threading.Event()

    def tell(key: ManagerKey | None, error: OffsetManagerError) -> None:
        told.append((key, error))
        seen.set()

    end = offsets.watch_errors(tell)
    handle = offsets.spawn("g", *WHERE)
    handle.initial_offset(timeout=WAIT_S)
    kafka.inject("commit", *[Refuse(30, detail="grant READ")] * 20)
    with pytest.raises(OffsetCommitError, match="grant READ"):
        offsets.submit("g", {WHERE: 42}, sync=True, timeout=WAIT_S)
    assert seen.wait(WAIT_S)
    end()
    end()
    for key, error in (told[0], (KEY, handle.errors().get(WAIT_S))):
        assert key == KEY
        assert isinstance(error, OffsetCommitError)
        assert (error.group, error.topic, error.partition, error.offset) == (*KEY, 42)
        assert (error.code, error.retriable) == ("GROUP_AUTHORIZATION_FAILED", False)
        assert error.hint == "grant READ"
    assert handle.errors().dropped == 0


@pytest.mark.fault(3)
def test_a_lower_offset(offsets: Offsets, kafka: MemoryCoordinator) -> None:
    """It is refused and the others are taken; below what Kafka has, where somebody waits.

    A rewind is taken, also one of a handle.
    """
    kafka.broker.commit_externally("g", {TopicPartition("orders", 0): at(100)})
    offsets.submit("g", {("orders", 3): 42})
    with pytest.raises(OffsetRegressionError):
        offsets.submit("g", {("orders", 3): 41, ("orders", 1): 7})
    with pytest.raises(OffsetRegressionError):
        offsets.submit("g", {("orders", 0): 99}, sync=True, timeout=WAIT_S)
    offsets.submit("g", {("orders", 0): 99}, rewind=True, sync=True, timeout=WAIT_S)
    offsets.flush(timeout=WAIT_S)
    found = {where.partition: each.offset for where, each in offsets.committed("g").items()}
    assert found == {0: 99, 1: 7, 3: 42}
    handle = spawn(offsets)
    with pytest.raises(OffsetRegressionError):
        handle.submit(41)
    handle.rewind(5, "again", 3)
    assert handle.stop(timeout=WAIT_S) == StopResult(OffsetAndMetadata(5, "again", 3))


def test_a_manager_is_handed_out_once(offsets: Offsets, kafka: MemoryCoordinator) -> None:
    """Also one that a submit has made; then again after its stop, which may be repeated."""
    offsets.submit("g", {WHERE: 42})
    handle = offsets.spawn("g", *WHERE)
    with pytest.raises(ManagerExistsError, match="etl"):
        offsets.spawn("g", *WHERE)
    assert [handle.stop(timeout=WAIT_S).committed for _ in range(2)] == [at(42)] * 2
    assert offsets.spawn("g", *WHERE).initial_offset(timeout=WAIT_S) == at(42)


def test_a_claim_has_all_or_nothing(offsets: Offsets, kafka: MemoryCoordinator) -> None:
    """Until the managers are stopped."""
    offsets.claim("g", [("orders", 1)], timeout=WAIT_S)
    with pytest.raises(ManagerExistsError, match="etl"):
        offsets.claim("g", [("orders", 0), ("orders", 1)], timeout=WAIT_S)
    offsets.claim("g", [("orders", 0)], timeout=WAIT_S)
    offsets.submit("g", {("orders", 0): 1, ("orders", 1): 2})
    stopped = offsets.stop_managers(timeout=WAIT_S, group="g", partitions=[("orders", 1)])
    assert stopped == ({ManagerKey("g", "orders", 1): at(2)}, {})
    offsets.claim("g", [("orders", 1)], timeout=WAIT_S)


def test_reads_return_the_facts_of_kafka(offsets: Offsets, kafka: MemoryCoordinator) -> None:
    """Groups and topics are read."""
    kafka.broker.commit_externally("g", {WHERE: OffsetAndMetadata(7, "m", 2)})
    assert offsets.committed("g") == {WHERE: OffsetAndMetadata(7, "m", 2)}
    assert offsets.committed("nobody") == {}
    assert offsets.topics(["orders", "orders"]) == {
        "orders": {0: (0, 0), 1: (0, 0), 2: (0, 0), 3: (10, 90)}
    }
    assert offsets.offsets_at(["orders"], 1_500)[WHERE] == 50
    assert offsets.offsets_at(["orders"], 2_500)[WHERE] == 90
    assert offsets.stable_ends(["orders"])[WHERE] == 70
    assert offsets.topic_names() == ["orders"]


def test_refusals_of_kafka_are_raised(offsets: Offsets, kafka: MemoryCoordinator) -> None:
    """The error has its name, and questions about a new topic are repeated."""
    with pytest.raises(ServiceError, match="topic missing does not exist") as caught:
        offsets.topics(["orders", "missing"])
    assert caught.value.code == "UNKNOWN_TOPIC_OR_PARTITION"
    kafka.inject("fetch", Refuse(30))
    with pytest.raises(ServiceError, match="committed offsets of group") as caught:
        offsets.committed("g")
    assert caught.value.code == "GROUP_AUTHORIZATION_FAILED"
    kafka.inject("topic_logs", Refuse(6))
    assert offsets.topics(["orders"], timeout=WAIT_S)["orders"][3] == (10, 90)


def test_bad_time_outs(offsets: Offsets) -> None:
    """They are refused by name."""
    asks: tuple[Callable[[Any], object], ...] = (
        lambda timeout: offsets.claim("g", [WHERE], timeout=timeout),
        lambda timeout: offsets.submit("g", {WHERE: 1}, timeout=timeout),
        lambda timeout: offsets.flush(timeout=timeout),
        lambda timeout: offsets.stop_managers(timeout=timeout),
        lambda timeout: offsets.committed("g", timeout=timeout),
        lambda timeout: offsets.topics(["orders"], timeout=timeout),
        lambda timeout: offsets.topic_names(timeout=timeout),
        lambda timeout: offsets.close(timeout=timeout),
    )
    for timeout in (-1, float("nan"), "5", True):
        for ask in asks:
            with pytest.raises(InvalidValueError, match=r"^timeout "):
                ask(timeout)
    assert offsets.flush(timeout=0) == ({}, {})


def test_bad_values(offsets: Offsets) -> None:
    """They are refused by name, and nothing is done."""
    bad: Any = None
    asks: dict[str, Callable[[], object]] = {
        "group": lambda: offsets.submit("", {WHERE: 1}),
        "topic": lambda: offsets.spawn("g", "no topic", 1),
        "offsets": lambda: offsets.submit("g", bad),
        "sync": lambda: offsets.submit("g", {WHERE: 1}, sync=bad),
        "partitions": lambda: offsets.flush(partitions=[WHERE]),
        "on_error": lambda: offsets.watch_errors(bad),
        "at_ms": lambda: offsets.offsets_at(["orders"], -1),
        "topics": lambda: offsets.topics("orders"),
    }
    for field, ask in asks.items():
        with pytest.raises(InvalidValueError) as caught:
            ask()
        assert caught.value.field == field
    assert offsets.flush(timeout=0) == ({}, {})


def test_the_end(offsets: Offsets, kafka: MemoryCoordinator) -> None:
    """Everything is committed; the answer stays the same, and nothing more is taken or asked."""
    offsets.submit("g", {WHERE: 42})
    assert offsets.close(timeout=WAIT_S) == offsets.close(timeout=0) == ({KEY: at(42)}, {})
    assert offsets.closed
    assert kafka.broker.committed("g") == {WHERE: at(42)}
    assert offsets.flush() == offsets.stop_managers() == ({}, {})
    for ask in (
        lambda: offsets.submit("g", {WHERE: 43}),
        lambda: offsets.spawn("g", *WHERE),
        lambda: offsets.claim("g", [WHERE]),
        lambda: offsets.committed("g"),
        lambda: offsets.topics(["orders"]),
        offsets.topic_names,
    ):
        with pytest.raises(ManagerStoppedError, match="closed"):
            ask()


def test_an_end_without_kafka(
    offsets: Offsets, kafka: MemoryCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """It says what is left and whose fault it is, also in the log's last line."""
    kafka.pause()
    offsets.submit("g", {WHERE: 42})
    left = offsets.close(timeout=0.5).uncommitted[KEY]
    assert left.offset == at(42)
    assert "is closed; not committed: g/orders/3 at 42; reason: " in caplog.messages[-1]
    assert "Kafka has not answered" in caplog.messages[-1]


# Handles


def spawn(offsets: Offsets, partition: int = 3) -> OffsetManagerHandle:
    return offsets.spawn("g", "orders", partition)


@pytest.mark.fault(34)
def test_the_initial_offset(offsets: Offsets, coordinator: MemoryCoordinator) -> None:
    """It never changes; where nothing was committed it is None, never 0 or -1."""
    value = OffsetAndMetadata(7, "old", 1)
    coordinator.broker.commit_externally("g", {WHERE: value})
    handle = spawn(offsets)
    assert handle.key == KEY
    assert [handle.initial_offset(timeout=WAIT_S) for _ in range(2)] == [value] * 2
    assert handle.stop(timeout=WAIT_S) == StopResult(value)
    assert spawn(offsets, 4).initial_offset(timeout=None) is None


def test_errors_end_with_the_error_of_the_stop(
    offsets: Offsets, coordinator: MemoryCoordinator
) -> None:
    """Once, also if the stop is answered before its event, or the event never comes."""
    handle = spawn(offsets)
    assert handle.initial_offset(timeout=WAIT_S) is None
    errors = handle.errors()
    for _ in range(50):
        coordinator.inject("commit", Refuse(METADATA_TOO_LARGE))
    handle.submit(5)
    result = handle.stop(timeout=WAIT_S)
    assert isinstance(result.error, OffsetCommitError)
    assert [str(error) for error in errors] == [str(result.error)]


@pytest.mark.parametrize("early", [True, False])
def test_the_first_committed_offset_is_the_one_submitted(
    offsets: Offsets, coordinator: MemoryCoordinator, *, early: bool
) -> None:
    """Not what was there before: also where the mailbox is asked for first, and after a flush."""
    coordinator.broker.commit_externally("g", {WHERE: at(1000)})
    handle = spawn(offsets)
    stream = handle.committed_offsets() if early else None
    assert handle.initial_offset(timeout=WAIT_S) == at(1000)
    offsets.flush(timeout=WAIT_S)
    handle.submit(1042)
    stream = stream or handle.committed_offsets()
    assert stream.get(WAIT_S) == at(1042)
    assert handle.stop(timeout=WAIT_S) == StopResult(at(1042))
    assert list(stream) == []


@pytest.mark.parametrize("known", [True, False])
def test_a_submitted_offset_that_is_committed_already_is_reported(
    offsets: Offsets, coordinator: MemoryCoordinator, *, known: bool
) -> None:
    """A waiting caller gets its answer."""
    coordinator.broker.commit_externally("g", {WHERE: at(1000)})
    handle = spawn(offsets)
    stream = handle.committed_offsets()
    if known:
        handle.initial_offset(timeout=WAIT_S)
    handle.submit(1000)
    assert stream.get(WAIT_S) == at(1000)
    assert not [r for r in coordinator.requests if r.operation == "commit"]


def test_after_a_stop(offsets: Offsets, coordinator: MemoryCoordinator) -> None:
    """Known values and unread results can be read; everything else raises."""
    coordinator.broker.commit_externally("g", {WHERE: at(3)})
    handle = spawn(offsets)
    handle.initial_offset(timeout=WAIT_S)
    committed, errors = handle.committed_offsets(), handle.errors()
    handle.submit(7)
    handle.stop(timeout=WAIT_S)
    assert handle.initial_offset(timeout=0) == at(3)
    assert committed.get(WAIT_S) == at(7)
    assert list(errors) == []
    for ask in (committed.get, errors.get, lambda: handle.submit(8), lambda: handle.rewind(2)):
        with pytest.raises(ManagerStoppedError, match="g/orders/3 is stopped"):
            ask()


@pytest.mark.parametrize("timeout", [0, 0.3])
def test_a_stop_says_why_something_is_left(
    offsets: Offsets, coordinator: MemoryCoordinator, timeout: float
) -> None:
    """Also where Kafka has said nothing, and where nobody waits."""
    coordinator.pause()
    handle = spawn(offsets)
    handle.submit(7)
    for result in (handle.stop(timeout=timeout), handle.stop(timeout=timeout)):
        assert result[:2] == (None, at(7))
        assert isinstance(result.error, OffsetManagerError)
        assert str(result.error)


def test_time_outs(offsets: Offsets, coordinator: MemoryCoordinator) -> None:
    """0 does not wait; each says what did not come, by the product's own error.

    Nobody waits for the initial offset of a stopped manager.
    """
    coordinator.pause()
    handle = spawn(offsets)
    for timeout in (0, 0.05):
        with pytest.raises(OffsetTimeoutError, match="g/orders/3"):
            handle.initial_offset(timeout=timeout)
        for stream in (handle.committed_offsets(), handle.errors()):
            with pytest.raises(OffsetTimeoutError, match="g/orders/3"):
                stream.get(timeout)
    handle.stop(timeout=0)
    with pytest.raises(ManagerStoppedError):
        handle.initial_offset(timeout=None)
