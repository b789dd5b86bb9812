"""The topics that consumers read, and what they report: once per cause, in the log too."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from offsetmgr.consumer import (
    AckConsumer,
    AckSettings,
    ConsumerSettings,
    GroupConsumer,
    PartitionedConsumer,
    RetryPolicy,
    topics,
)
from offsetmgr.consumer.topics import Subscription
from offsetmgr.errors import KafkaRequestError, ManagerStoppedError
from offsetmgr.stores import MemoryOffsetStore
from tests.conftest import create_topic
from tests.fork import in_child
from tests.kafka.messages import (
    PARTITIONS,
    filled,
    number_of,
    polled,
    produce,
    recreate,
    running,
    send,
)
from tests.kafka.test_rights import User
from tests.secured import user_login
from tests.tables import delete, grow
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from offsetmgr.devkafka import DevKafka
    from offsetmgr.types import TopicPartition

FAST: dict[str, object] = {"topic.metadata.refresh.interval.ms": 1000}


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        ("orders", None, {"orders", "eu-orders", "orders.v2"}),
        ("^orders", None, {"orders", "orders.v2"}),
        ("orders$", None, {"orders", "eu-orders"}),
        (r"orders\.v\d", None, {"orders.v2"}),
        ("orders|payments", "eu|v2", {"orders", "payments"}),
        (".*", "orders", {"payments", "printer.retry.9x", "other.dlq"}),
        (".", ".", set()),
        ("__consumer", None, {"__consumer_offsets"}),
    ],
)
def test_patterns_match_anywhere(include: str, exclude: str | None, expected: set[str]) -> None:
    """Kafka's own topics only if the pattern names them; own retries and dead letters never."""
    existing = [
        *("orders", "eu-orders", "orders.v2", "payments", "__consumer_offsets", "other.dlq"),
        *("printer.retry.1", "printer.retry.12", "printer.dlq", "printer.retry.9x"),
    ]
    own = r"printer\.(retry\.[0-9]+|dlq)"
    found = Subscription([], include, exclude, own=own).of(existing)
    assert set(found) == expected
    named = Subscription(["__consumer_offsets", "printer.dlq"], "payments", own=own)
    assert named.of(existing) == ["__consumer_offsets", "printer.dlq", "payments"]


@pytest.mark.parametrize(
    ("include", "expected"),
    [("orders", {"orders"}), (r"orders.*\.dlq", {"orders-b.dlq"}), ("retry", {"orders-b.retry.2"})],
)
def test_retries_and_dead_letters_of_other_groups_match_if_they_are_named(
    include: str, expected: set[str]
) -> None:
    """Two groups that read each other's would multiply a message that fails in both."""
    existing = ["orders", *(f"orders-{e}.{end}" for e in "ab" for end in ("retry.2", "dlq"))]
    with AckConsumer("127.0.0.1:9", "orders-a", include=include) as consumer:
        assert set(consumer._member._discovery.subscription.of(existing)) == expected


def test_a_topic_that_appears_later_is_read(kafka: DevKafka, group: str) -> None:
    filled(kafka, f"eu-{group}-1", 4)
    config = {"bootstrap.servers": kafka.bootstrap_servers, **FAST}
    with GroupConsumer(config, group, include=group, exclude="-9$") as consumer:
        first = polled(consumer)
        create_topic(kafka, f"{group}-9", 1)
        filled(kafka, f"{group}-2", 4)
        seen: Counter[str | None] = Counter({first.topic(): 1})
        while seen.total() < 8:
            message = polled(consumer)
            seen[message.topic()] += 1
        assert seen == {f"eu-{group}-1": 4, f"{group}-2": 4}
        assert set(consumer.subscriptions()) == set(seen)
        assert consumer.errors() == []


def test_a_pattern_outlives_its_topics(kafka: DevKafka, group: str) -> None:
    """All topics that matched are deleted, and one comes again: no error but those of topics."""
    filled(kafka, group, 4, partitions=1)
    config = {"bootstrap.servers": kafka.bootstrap_servers, **FAST}
    with GroupConsumer(config, group, include=f"^{group}$") as consumer:
        assert consumer.poll(WAIT_S) is not None
        delete(kafka, group)
        texts: list[str] = []

        def nothing_matches() -> bool:
            consumer.poll(0.1)
            texts.extend(map(str, consumer.errors()))
            return any("no topic matches" in each for each in texts)

        until(nothing_matches)
        assert consumer.subscriptions() == {}
        recreate(kafka, group, 4)
        values = {message.value() for message in iter(lambda: consumer.poll(2.0), None)}
        assert values == {b"0", b"1", b"2", b"3"}


def test_an_unassigned_partition_is_read(
    kafka: DevKafka, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The members look some time after a rebalance, and join again.

    A topic that is away during a rebalance is assigned to nobody.  Once it is back with as many
    partitions, librdkafka sees no difference, as here where it refreshes no metadata.
    """
    monkeypatch.setattr(topics, "SETTLED_REFRESHES", 5 / 600)
    filled(kafka, group, 4, partitions=1)
    servers = kafka.bootstrap_servers
    config = {"bootstrap.servers": servers, "topic.metadata.refresh.interval.ms": 600_000}
    with GroupConsumer(config, group, [group]) as consumer:
        until(consumer.subscriptions)
        grow(kafka, group, 2)
        until(lambda: consumer.poll(0.1) is None and consumer.subscriptions() == {group: [0, 1]})
        (error,) = consumer.errors()
        assert f"{group}-1 were assigned to no member" in str(error)


def test_an_unreadable_topic_delays_no_other(kafka: DevKafka, group: str, tmp_path: Path) -> None:
    """With ``latest``, a topic without a right is reported, and read once there is one."""
    secret = f"{group}-secret"
    for topic in (group, secret):
        filled(kafka, topic, 4, partitions=1)
    user = User(kafka, tmp_path)
    user.may(AclOperation.READ, ResourceType.GROUP, group)
    user.may(AclOperation.READ, ResourceType.TOPIC, group)
    settings = ConsumerSettings(missing="latest")
    with GroupConsumer(user.login, group, [secret, group], settings=settings) as consumer:
        until(lambda: consumer.poll(0.1) is None and consumer.subscriptions() == {group: [0]})
        (error,) = consumer.errors()
        assert "TOPIC_AUTHORIZATION_FAILED" in str(error)
        assert secret in str(error)
        user.may(AclOperation.READ, ResourceType.TOPIC, secret)
        until(lambda: consumer.poll(0.1) is None and len(consumer.subscriptions()) == 2)
        produce(kafka, secret, [4], partitions=1)
        message = polled(consumer)
        assert message.value() == b"4"


def logged(caplog: pytest.LogCaptureFixture, text: str) -> int:
    """Return how many lines of the consumers' log have ``text``."""
    records = [each for each in caplog.records if each.name == "offsetmgr.consumer"]
    return sum(text in each.getMessage() for each in records)


def reported(consumer: Any, caplog: pytest.LogCaptureFixture, code: str) -> KafkaRequestError:
    """Wait for an error; it comes once, in the log and in ``errors``."""
    found: list[Any] = []

    def came() -> bool:
        found.extend(consumer.errors())
        return any(each.code == code for each in found)

    until(lambda: consumer.poll(0.1) is None and came())
    deadline = time.monotonic() + 1.5  # it would be repeated by then
    while time.monotonic() < deadline:
        consumer.poll(0.1)
    found.extend(consumer.errors())
    errors: list[KafkaRequestError] = [each for each in found if each.code == code]
    assert len(errors) == 1, found
    assert logged(caplog, str(errors[0])) == 1
    return errors[0]


def test_a_misspelt_topic_is_reported_once(
    kafka: DevKafka, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error names it; the others are read, and it is read as soon as it exists.

    So is a missing partition of a consumer alone, and later its deleted topic.
    """
    filled(kafka, group, 4)
    config = {"bootstrap.servers": kafka.bootstrap_servers, **FAST}
    with GroupConsumer(config, group, [group, f"{group}-no"]) as consumer:
        for _ in range(4):
            assert consumer.poll(WAIT_S) is not None
        error = reported(consumer, caplog, "UNKNOWN_TOPIC_OR_PARTITION")
        assert error.topic == f"{group}-no"
        filled(kafka, f"{group}-no", 1)
        assert consumer.poll(WAIT_S) is not None
    with GroupConsumer(config, group, include=f"{group}-n0") as consumer:
        error = reported(consumer, caplog, "UNKNOWN_TOPIC_OR_PARTITION")
        assert "no topic matches" in str(error)
    with GroupConsumer(config, group, partitions=[(group, 0), (group, 9)]) as consumer:
        assert reported(consumer, caplog, "UNKNOWN_TOPIC_OR_PARTITION").partition == 9
        delete(kafka, group)
        assert reported(consumer, caplog, "UNKNOWN_TOPIC_OR_PARTITION").topic == group


def test_another_strategy_in_the_group_is_reported_once(
    kafka: DevKafka, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    filled(kafka, group, 4)
    brokers, other = kafka.bootstrap_servers, ConsumerSettings(strategy="range")
    with GroupConsumer(brokers, group, [group]) as first:
        polled(first)
        with GroupConsumer(brokers, group, [group], settings=other) as second:
            error = reported(second, caplog, "INCONSISTENT_GROUP_PROTOCOL")
            assert "strategy" in str(error)


@pytest.mark.parametrize("code", ["_ALL_BROKERS_DOWN", "GROUP_AUTHORIZATION_FAILED"])
def test_a_refused_connection_or_right_is_reported_once(
    kafka: DevKafka, group: str, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    filled(kafka, group, 4)
    config = "127.0.0.1:9" if code == "_ALL_BROKERS_DOWN" else user_login(kafka)
    with GroupConsumer(config, group, [group]) as consumer:
        assert "group" in str(reported(consumer, caplog, code))


CLASSES: dict[str, Any] = {"run": AckConsumer, "partitions": PartitionedConsumer}
READERS: dict[str, Callable[[Any], object]] = {
    "poll": lambda consumer: consumer.poll(WAIT_S),
    "iteration": list,
    "batches": lambda consumer: list(consumer.batches()),
    "run": lambda consumer: consumer.run(lambda _: None),
    "partitions": lambda consumer: list(consumer.partitions()),
}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("how", [*READERS, "commit"])
def test_a_consumer_refuses_the_child_of_a_fork(group: str, how: str) -> None:
    """It has no threads there: reads would wait for good, or hand out the parent's messages."""
    call = READERS.get(how, GroupConsumer.commit_offsets)
    with CLASSES.get(how, GroupConsumer)("127.0.0.1:9", group, ["orders"]) as consumer:

        def use() -> None:
            with pytest.raises(ManagerStoppedError):
                call(consumer)
            consumer.close()

        in_child(use)


def until_it_raises(read: Callable[[Any], object], consumer: Any) -> None:
    while True:
        read(consumer)


@pytest.mark.parametrize("how", READERS)
def test_a_fenced_consumer_ends_with_its_error(
    kafka: DevKafka, group: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also while it is idle; the log has it once."""
    create_topic(kafka, group, PARTITIONS)
    config = {"bootstrap.servers": kafka.bootstrap_servers, "group.instance.id": "one"}
    with CLASSES.get(how, GroupConsumer)(config, group, [group]) as first:
        if how != "partitions":
            until(lambda: first.poll(0.1) is None and first.subscriptions())
        else:
            assert next(first.partitions()) is not None
        with GroupConsumer(config, group, [group]) as second:
            until(lambda: second.poll(0.1) is None and second.subscriptions())
            with pytest.raises(KafkaRequestError, match="fenced"):
                until_it_raises(READERS[how], first)
        assert first.closed
        assert [each for each in first.errors() if "fenced" in str(each)]
        assert logged(caplog, "Static consumer fenced") == 1
    assert first.closed
    if how == "poll":
        assert first.poll() is None


class Interrupted(logging.Handler):
    """A handler within which the main thread gets one SIGTERM."""

    done = False

    def emit(self, record: logging.LogRecord) -> None:
        del record
        if threading.current_thread() is threading.main_thread() and not self.done:
            self.done = True
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_within_a_log_call_ends_a_consumer(group: str) -> None:
    """SIGTERM is not lost where whatever a log handler raises is ignored."""
    interrupted = Interrupted()
    logging.getLogger("offsetmgr").addHandler(interrupted)
    try:
        consumer = AckConsumer("127.0.0.1:9", group, ["orders"], settings=AckSettings(dwell_s=0.1))
        with consumer, pytest.raises(SystemExit) as raised:
            consumer.run(lambda _: None, workers=1)
    finally:
        logging.getLogger("offsetmgr").removeHandler(interrupted)
    assert raised.value.code == 143


class ReleasedStore(MemoryOffsetStore):
    """A store that notes what it gets back."""

    def __init__(self) -> None:
        super().__init__()
        self.released: list[TopicPartition] = []

    def release(self, group: str, partitions: Collection[TopicPartition]) -> None:
        assert group
        self.released.extend(partitions)


def test_a_consumer_without_room_for_a_thread_leaves_nothing_behind(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither workers that take messages for nobody, nor claims that keep its successor out."""
    start, store = threading.Thread.start, ReleasedStore()

    def no_room(thread: threading.Thread) -> None:
        if thread.name in {"handler-2", f"member-{group}"}:
            raise RuntimeError("can't start new thread")
        start(thread)

    with AckConsumer("127.0.0.1:9", f"{group}-acks", ["orders"]) as consumer:
        monkeypatch.setattr(threading.Thread, "start", no_room)
        with pytest.raises(RuntimeError, match="new thread"):
            consumer.run(lambda _: None, workers=3)
    assert not [each for each in threading.enumerate() if each.name.startswith("handler-")]
    with pytest.raises(RuntimeError, match="new thread"):
        GroupConsumer("127.0.0.1:9", group, partitions=[("orders", 0)], store=store)
    assert store.released == [("orders", 0)]


class Broken(logging.Handler):
    """A handler of the application that always fails."""

    def emit(self, record: logging.LogRecord) -> None:
        raise SystemExit(record.getMessage())


def test_a_broken_log_handler_and_callbacks_stop_no_consumer(kafka: DevKafka, group: str) -> None:
    """Every message is handled, retried and committed, though each log call and callback raises."""
    filled(kafka, group, 40)

    def fail(*_: object) -> None:
        raise RuntimeError("of the application")

    servers = f"{kafka.bootstrap_servers},127.0.0.1:9"
    config: dict[str, Any] = {"bootstrap.servers": servers, "statistics.interval.ms": 50}
    config |= dict.fromkeys(["stats_cb", "error_cb", "on_commit", "throttle_cb"], fail)
    logger = logging.getLogger("offsetmgr")
    broken, level = Broken(), logger.level
    logger.addHandler(broken)
    logger.setLevel(logging.DEBUG)
    handled: Counter[int] = Counter()

    def handle(message: Any) -> None:
        handled[number_of(message)] += 1
        if message.tries == 1:
            raise ValueError("once")

    settings = AckSettings(retry=RetryPolicy(delays_s=(0.0,), partitions=1))
    try:
        consumer = AckConsumer(config, group, [group, f"{group}-no"], settings=settings)
        with running(consumer, handle):
            until(lambda: handled.total() == 80 and consumer.pending == 0)
            produce(kafka, group, [40])
            until(lambda: handled.total() == 82 and consumer.pending == 0)
        send(kafka, group, {"value": "41", "partition": 0})
        with PartitionedConsumer(config, group, [group]) as streams:
            for stream in streams.partitions():
                if stream.partition == 0:
                    assert next(iter(stream)).value() == b"41"
                    break
    finally:
        logger.removeHandler(broken)
        logger.setLevel(level)
