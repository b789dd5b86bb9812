"""The fence on a real Kafka: who may commit to a group, and what the others are told."""

from __future__ import annotations

import signal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka.admin import AdminClient

from offsetmgr.answers import FenceCounts
from offsetmgr.coordinator.fence import FencedCoordinator
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.devkafka import consumer_groups
from offsetmgr.devkafka.process import DevKafkaError
from offsetmgr.errors import Verdict
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.kafka import messages
from tests.kafka.conftest import service_of
from tests.secured import user_login
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

    from actors import Future
    from offsetmgr.coordinator.base import Coordinator, Failure, FetchResult
    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory
    from tests.service.support import ServeProcess

DEADLINE_S = 0.5
"""Of a request that is not to be answered."""

HELD, LOST = FenceCounts(held=1, fenced=0), FenceCounts(held=0, fenced=1)


def service(
    kafka: DevKafka, login: Mapping[str, str] = MappingProxyType({}), **options: Any
) -> FencedCoordinator:
    """A service's access to Kafka; nine heartbeats in each session."""
    config = {"bootstrap.servers": kafka.bootstrap_servers, **login}
    plain = KafkaCoordinator(config, clients=1)
    return FencedCoordinator(config, plain, **{"session_timeout_s": 12.0, **options})


def commit(
    by: Coordinator, group: str, topic: str, offset: int, timeout_s: float = WAIT_S
) -> Failure | None:
    """Commit to partition 0; why not, where it is not committed."""
    partition = TopicPartition(topic, 0)
    offsets = {partition: OffsetAndMetadata(offset)}
    failures = by.commit(group, offsets, timeout_s).get(timeout=2 * WAIT_S).failures
    return failures.get(partition)


def refusal(
    by: Coordinator, group: str, topic: str, offset: int, timeout_s: float = WAIT_S
) -> Failure:
    failure = commit(by, group, topic, offset, timeout_s)
    assert failure is not None
    return failure


def committed(by: Coordinator, group: str, topic: str) -> int | None:
    """The committed offset of partition 0, read without taking the group over."""
    partition = TopicPartition(topic, 0)
    fetched = by.fetch(group, None, WAIT_S).get(timeout=WAIT_S)
    value = fetched.offsets.get(partition)
    return None if value is None else value.offset


@pytest.mark.fault(7)
def test_a_newer_service_takes_the_group_over_by_reading_it(
    kafka: DevKafka, topic: str, group: str
) -> None:
    """Its first read is final: all later commits of the older service are refused."""
    with service(kafka) as old, service(kafka) as new:
        assert commit(old, group, topic, 5) is None
        assert old.fence == HELD
        read = new.fetch(group, [TopicPartition(topic, 0)], WAIT_S).get(timeout=WAIT_S)
        assert read.offsets == {TopicPartition(topic, 0): OffsetAndMetadata(5)}
        refused = refusal(old, group, topic, 6)
        assert (refused.info.name, refused.info.retriable) == ("FENCED_INSTANCE_ID", False)
        assert refused.info.verdict is Verdict.REFUSED
        assert f"group {group} is owned by another service now" in refused.detail
        assert commit(new, group, topic, 7) is None
        with service(kafka) as newest:
            assert commit(newest, group, topic, 8) is None
            until(lambda: new.fence == LOST)  # it need not commit to learn that it was replaced
            # Also when the newest one has gone, and although managers were spawned anew.
            newest.release(group)
            old.release(group)
            assert commit(old, group, topic, 9) == refused
        assert (old.fence, committed(old, group, topic)) == (LOST, 8)


def test_others_can_neither_commit_nor_reset(kafka: DevKafka, topic: str, group: str) -> None:
    """A service without a fence and Kafka's own tool are kept out."""
    with KafkaCoordinator(kafka.bootstrap_servers, clients=1) as plain, service(kafka) as owner:
        assert commit(owner, group, topic, 5) is None
        refused = refusal(plain, group, topic, 6)
        assert f"group {group} has live members (offsetmgr-" in refused.detail
        reset = ("--group", group, "--topic", topic, "--reset-offsets", "--to-earliest")
        with pytest.raises(DevKafkaError, match="the current state is Stable"):
            consumer_groups(kafka.bootstrap_servers, *reset, "--execute")
        assert commit(owner, group, topic, 7) is None


@pytest.mark.parametrize("strategy", ["range,cooperative-sticky", "range,roundrobin"])
def test_a_later_consumer(
    kafka: DevKafka, topic: str, group: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka keeps one with Java's default strategies out; to one of librdkafka's the group goes.

    The service joins again without reading the whole group, which may be too large for that.
    """
    asked: list[object] = []
    fetch = KafkaCoordinator.fetch

    def noted(
        self: KafkaCoordinator, group: str, partitions: Any, timeout_s: float
    ) -> Future[FetchResult]:
        asked.append(partitions)
        return fetch(self, group, partitions, timeout_s)

    monkeypatch.setattr(KafkaCoordinator, "fetch", noted)
    settings = {"group.id": group, "client.id": "spark-1"}
    # librdkafka itself does not mix the two kinds of strategies.
    kept_out = "cooperative-sticky" in strategy
    settings["partition.assignment.strategy"] = "cooperative-sticky" if kept_out else strategy
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, **settings})
    try:
        with service(kafka) as owner:
            assert commit(owner, group, topic, 5) is None
            consumer.subscribe([topic])
            if kept_out:
                told = consumer.poll(WAIT_S)
                assert told is not None
                error = told.error()
                assert error is not None
                assert error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL
            else:
                until(lambda: consumer.poll(0.1) or consumer.assignment())
                until(lambda: owner.fence.held == 0)
                refused = refusal(owner, group, topic, 6)
                assert f"group {group} has live members (spark-1, " in refused.detail
                consumer.close()
            until(lambda: commit(owner, group, topic, 7) is None)
            assert asked == ([] if kept_out else [[TopicPartition(topic, 0)]])
            assert (owner.fence, committed(owner, group, topic)) == (HELD, 7)
    finally:
        consumer.close()


def test_a_released_group_is_free_at_once(kafka: DevKafka, topic: str, group: str) -> None:
    """When its last manager is gone others may commit; the service may come back too."""
    with KafkaCoordinator(kafka.bootstrap_servers, clients=1) as plain:
        with service(kafka) as owner:
            assert commit(owner, group, topic, 5) is None
            owner.release(group)
            until(lambda: owner.fence.held == 0)
            until(lambda: commit(plain, group, topic, 6) is None)
            assert commit(owner, group, topic, 7) is None
            assert owner.fence == HELD
        until(lambda: commit(plain, group, topic, 8) is None)


def test_a_group_that_is_given_up_while_a_consumer_has_it(
    kafka: DevKafka, topic: str, group: str
) -> None:
    """The service forgot it, and takes it from a newer service like any other group."""
    settings = {"group.id": group, "partition.assignment.strategy": "roundrobin"}
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, **settings})
    with service(kafka) as owner, service(kafka) as newer:
        assert commit(owner, group, topic, 5) is None
        consumer.subscribe([topic])
        until(lambda: consumer.poll(0.1) or consumer.assignment())
        until(lambda: owner.fence.held == 0)
        assert refusal(owner, group, topic, 6).info.name == "UNKNOWN_MEMBER_ID"
        owner.release(group)
        consumer.close()
        until(lambda: commit(newer, group, topic, 7) is None)
        assert commit(owner, group, topic, 8) is None
        until(lambda: newer.fence == LOST)


def test_a_silent_broker(breakable_kafka: DevKafka, new_topic: TopicFactory, group: str) -> None:
    """A commit under way is unknown at its deadline, one for a group not joined yet was not sent.

    When the broker answers again the place is still ours.
    """
    topic = new_topic(on=breakable_kafka)
    with service(breakable_kafka) as owner:
        assert commit(owner, group, topic, 5) is None
        breakable_kafka.broker(1).pause()
        try:
            lost = refusal(owner, group, topic, 6, DEADLINE_S)
            unsent = refusal(owner, f"{group}-2", topic, 6, DEADLINE_S)
        finally:
            breakable_kafka.broker(1).resume()
        assert (lost.info.name, lost.info.verdict) == ("_TIMED_OUT", Verdict.UNKNOWN)
        assert (unsent.info.name, unsent.info.verdict) == ("NOT_SENT", Verdict.REFUSED)
        until(lambda: commit(owner, group, topic, 7) is None)
        assert committed(owner, group, topic) == 7


@pytest.mark.chaos
@pytest.mark.fault(9)
def test_a_failed_coordinator_is_replaced(
    kafka3: DevKafka, new_topic: TopicFactory, group: str
) -> None:
    """The membership lives on at the next coordinator, where a newer service can take it."""
    topic = new_topic(on=kafka3)
    admin = AdminClient({"bootstrap.servers": kafka3.bootstrap_servers})
    # Its session does not run out while there is no coordinator.
    with service(kafka3, session_timeout_s=60.0) as owner, service(kafka3) as newer:
        assert commit(owner, group, topic, 5) is None
        described = admin.describe_consumer_groups([group])[group].result(WAIT_S)
        broker = kafka3.broker(described.coordinator.id)
        broker.stop()
        try:
            until(lambda: commit(owner, group, topic, 6, 5.0) is None)
            assert (owner.fence, committed(owner, group, topic)) == (HELD, 6)
            # The owner keeps its place, so it does not become free by itself.
            assert commit(newer, group, topic, 7) is None

            # Who is in the group now, it may ask the broker first that is gone.
            until(lambda: refusal(owner, group, topic, 8).info.name == "FENCED_INSTANCE_ID")
            assert committed(newer, group, topic) == 7
        finally:
            broker.start()


@pytest.mark.parametrize(
    ("login", "name", "words"),
    [
        ({}, "GROUP_AUTHORIZATION_FAILED", ""),  # joining needs READ on the group
        ({"sasl.password": "not-the-one"}, "_AUTHENTICATION", "Authentication failed"),
    ],
)
@pytest.mark.fault(21)
def test_missing_rights_and_refused_credentials_are_named(
    kafka: DevKafka, group: str, login: dict[str, str], name: str, words: str
) -> None:
    """Nothing is sent, and no secret is shown."""
    with service(kafka, {**user_login(kafka), **login}) as refused:
        denied = refusal(refused, group, "t", 6)
        assert (denied.info.name, denied.info.verdict) == (name, Verdict.REFUSED)
        assert words in denied.detail
        assert "not-the-one" not in denied.detail


def test_more_groups_than_the_limit_allows(kafka: DevKafka, topic: str, group: str) -> None:
    """One too many is refused with what to do, and has its turn when another is released."""
    with service(kafka, most_groups=1) as full:
        assert commit(full, group, topic, 5) is None
        refused = refusal(full, f"{group}-2", topic, 6)
        assert (refused.info.name, refused.info.retriable) == ("TOO_MANY_FENCED_GROUPS", True)
        assert f"group {group}-2 is one too many for 1 fenced groups" in refused.detail
        assert "limits.fenced_groups" in refused.info.hint
        assert commit(full, group, topic, 7) is None
        full.release(group)
        until(lambda: commit(full, f"{group}-2", topic, 8) is None)


def test_an_absent_topic_does_not_delay_others(kafka: DevKafka, topic: str, group: str) -> None:
    """Its partition is refused, or the group if there is no other one."""
    partitions = TopicPartition(topic, 0), TopicPartition(f"{topic}-missing", 0)
    with service(kafka) as owner:
        refused = refusal(owner, f"{group}-2", f"{topic}-missing", 5)
        assert refused.info.name == "UNKNOWN_TOPIC_OR_PARTITION"
        offsets = dict.fromkeys(partitions, OffsetAndMetadata(5))
        failures = owner.commit(group, offsets, WAIT_S).get(timeout=2 * WAIT_S).failures
        assert [each.info.name for each in failures.values()] == ["UNKNOWN_TOPIC_OR_PARTITION"]
        assert committed(owner, group, topic) == 5


SESSION_S = 10.0
"""Kafka takes six; a slow machine needs more to keep its place."""


def fenced_service(kafka: DevKafka) -> ServeProcess:
    """A service that commits when it is told to: what it was given stays in it until then."""
    settings = {"FENCE": "true", "FENCE_SESSION_TIMEOUT_S": str(SESSION_S), "LEASE_S": "3600"}
    return service_of(kafka, COMMIT__COMMIT_INTERVAL_S="3600", **settings)


def submit(http: httpx.Client, group: str, topic: str, offset: int, *, wait: bool) -> Any:
    offsets = [{"topic": topic, "partition": 0, "offset": offset}]
    body = {"group": group, "offsets": offsets, "wait": wait, "timeout_s": WAIT_S}
    return http.post("/v1/offsets", json=body).json()


def flush(http: httpx.Client, group: str) -> Any:
    """Commit what is held; the one offset that could not be."""
    answer = http.post("/v1/flush", json={"group": group, "timeout_s": WAIT_S}).json()
    (left,) = answer["uncommitted"]
    return left


def until_kafka_dropped_all(kafka: DevKafka, group: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    def dropped() -> bool:
        return not admin.describe_consumer_groups([group])[group].result(WAIT_S).members

    until(dropped, poll_s=0.1)  # some seconds of bare requests are a busy broker


@pytest.mark.fault(7, 8)
def test_a_frozen_service_commits_only_where_it_has_no_successor(
    kafka: DevKafka, topic: str, group: str
) -> None:
    """A service is frozen with offsets in hand, replaced, and thawed: they are refused.

    It names its successor, and is unready.  Also where Kafka had dropped it before its successor
    came, which is gone by then.  A group to which nobody else came is committed again, without an
    operator.
    """
    replaced, dropped, free = (f"{group}-{name}" for name in ("replaced", "dropped", "free"))
    with fenced_service(kafka) as zombie, zombie.http() as old:
        for name in (replaced, dropped, free):
            assert submit(old, name, topic, 10, wait=True)["uncommitted"] == []
        for name in (replaced, dropped):
            assert submit(old, name, topic, 99, wait=False)["accepted"] == 1
        with fenced_service(kafka) as second, second.http() as new:
            zombie.process.send_signal(signal.SIGSTOP)
            assert submit(new, replaced, topic, 20, wait=True)["uncommitted"] == []
            for name in (dropped, free):
                until_kafka_dropped_all(kafka, name)
            assert submit(new, dropped, topic, 20, wait=True)["uncommitted"] == []
            assert new.get("/readyz").json()["fenced_groups"] == 0
            assert "offsetmgr_held_groups 2.0" in new.get("/metrics").text
            assert second.stop() == 0
        zombie.process.send_signal(signal.SIGCONT)
        for name in (replaced, dropped):
            left = flush(old, name)
            assert (left["offset"], left["error"]["code"]) == (99, "FENCED_INSTANCE_ID")
            assert f"group {name} " in left["error"]["hint"]
            assert "stop the other and restart this one" in left["error"]["hint"]
        told = {zombie.wait_for("group_fenced", number)["group"] for number in (1, 2)}
        assert told == {replaced, dropped}
        assert submit(old, free, topic, 20, wait=True)["uncommitted"] == []
        ready = old.get("/readyz")
        assert (ready.status_code, ready.json()["fenced_groups"]) == (503, 2)
        assert group not in ready.text
        assert "offsetmgr_fenced_groups 2.0" in old.get("/metrics").text
        # Reading what is committed goes on, and takes nothing back.
        shown = old.get("/v1/offsets", params={"group": dropped}).json()
        assert [each["offset"] for each in shown["offsets"]] == [20]
        assert zombie.stop() == 3
    for name in (replaced, dropped, free):
        assert messages.committed(kafka, name, topic, 1) == {0: (20, None)}
