"""The fence on a real Kafka: who may commit to a group, and what the others are told."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from offsetmgr.coordinator.base import CommitResult, FenceCounts
from offsetmgr.coordinator.fence import wire
from offsetmgr.coordinator.fence.coordinator import FencedCoordinator, with_fence
from offsetmgr.coordinator.fence.finder import Finder, brokers_of
from offsetmgr.coordinator.fence.link import Links
from offsetmgr.coordinator.fence.seat import COMMON_PROTOCOL, INSTANCE
from offsetmgr.coordinator.fence.security import security_of
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.devkafka.errors import DevKafkaError
from offsetmgr.errors import Verdict
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.conftest import USER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from offsetmgr.coordinator.base import Coordinator, Failure
    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory

WAIT_S = 60.0
"""Far beyond what anything here takes: a guard, not a measure."""

DEADLINE_S = 0.5
"""Of a request that is not to be answered."""

HELD, LOST = FenceCounts(held=1, fenced=0), FenceCounts(held=0, fenced=1)


@contextmanager
def service(
    kafka: DevKafka, config: Mapping[str, str] | None = None
) -> Iterator[FencedCoordinator]:
    """What one service has of Kafka, closed at the end."""
    given = config or {"bootstrap.servers": kafka.bootstrap_servers}
    plain = KafkaCoordinator(given, clients=1)
    # The shortest that Kafka takes: what Kafka is told more often is told sooner.
    opened = with_fence(given, plain, session_timeout_s=6.0)
    try:
        yield opened
    finally:
        opened.close(WAIT_S)


def commit(
    by: Coordinator, group: str, topic: str, offset: int, timeout_s: float = WAIT_S
) -> Failure | None:
    """Commit to partition 0; why not, where it is not committed."""
    partition = TopicPartition(topic, 0)
    offsets = {partition: OffsetAndMetadata(offset)}
    failures = by.commit(group, offsets, timeout_s).get(timeout=2 * WAIT_S).failures
    return failures.get(partition)


def committed(by: Coordinator, group: str, topic: str) -> int | None:
    """What the group has committed for partition 0, read without taking the group over."""
    partition = TopicPartition(topic, 0)
    fetched = by.reader.fetch(group, [partition], WAIT_S).get(timeout=WAIT_S)
    value = fetched.offsets[partition]
    return None if value is None else value.offset


def until(what: str, holds: Callable[[], bool]) -> None:
    """Wait for what comes by itself."""
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s, f"not so after {WAIT_S} s: {what}"
        time.sleep(0.01)


def ask(kafka: DevKafka, group: str, request: wire.Request, client_id: str = "test") -> bytes:
    """Send a request of the test's own to the group's coordinator."""

    async def send() -> bytes:
        links = Links(security_of({}), client_id)
        broker = await Finder(links, brokers_of(kafka.bootstrap_servers)).find(group)
        link = await links.get(broker, 0)
        answer = await link.send(request)
        links.close()
        return answer

    return asyncio.run(send())


def unseat(kafka: DevKafka, group: str) -> None:
    """Take its place from whoever has it, as Kafka does when it was silent for too long."""
    answer = ask(kafka, group, wire.leave_group(wire.Place(group, INSTANCE, "")))
    assert wire.read_left(answer) == 0


@pytest.mark.fault(7)
def test_a_newer_service_takes_the_group_over_by_reading_it(
    kafka: DevKafka, new_topic: TopicFactory, group: str
) -> None:
    """What it reads is final: the older one's commits are refused from then on, for good."""
    topic = new_topic()
    with service(kafka) as old, service(kafka) as new:
        assert commit(old, group, topic, 5) is None
        assert old.fence == HELD
        read = new.fetch(group, [TopicPartition(topic, 0)], WAIT_S).get(timeout=WAIT_S)
        assert read.offsets == {TopicPartition(topic, 0): OffsetAndMetadata(5)}
        refused = commit(old, group, topic, 6)
        assert refused is not None
        assert (refused.info.name, refused.info.retriable) == ("FENCED_INSTANCE_ID", False)
        assert refused.info.verdict is Verdict.REFUSED
        assert f"group {group} is now owned by the service on " in refused.detail
        assert "(address /127.0.0.1) since 20" in refused.detail
        assert commit(new, group, topic, 7) is None
        # Also when the newer one has gone, and although managers were spawned anew.
        new.release(group)
        old.release(group)
        assert commit(old, group, topic, 8) == refused
        assert (old.fence, committed(old, group, topic)) == (LOST, 7)


@pytest.mark.fault(7)
def test_an_idle_service_finds_out_by_itself(
    kafka: DevKafka, new_topic: TopicFactory, group: str
) -> None:
    """It need not commit to learn that it was replaced."""
    topic = new_topic()
    with service(kafka) as old, service(kafka) as new:
        assert commit(old, group, topic, 5) is None
        assert commit(new, group, topic, 6) is None
        until("the older service is fenced", lambda: old.fence == LOST)


@pytest.mark.fault(8)
def test_who_was_cut_off_gets_its_place_back_where_nobody_else_had_it(
    kafka: DevKafka, new_topic: TopicFactory, group: str
) -> None:
    """An outage of the network, however long, needs no operator."""
    topic = new_topic()
    with service(kafka) as only:
        for offset in (5, 6):
            assert commit(only, group, topic, offset) is None
            unseat(kafka, group)
            refused = commit(only, group, topic, 100)
            assert refused is not None
            assert (refused.info.name, refused.info.retriable) == ("NOT_SEATED", True)
            assert committed(only, group, topic) == offset
        assert commit(only, group, topic, 7) is None
        assert (only.fence, committed(only, group, topic)) == (HELD, 7)


@pytest.mark.fault(8)
def test_who_was_cut_off_is_fenced_where_another_service_had_the_group(
    kafka: DevKafka, new_topic: TopicFactory, group: str
) -> None:
    """Also where that one has gone again and the group is nobody's: the generation tells."""
    topic = new_topic()
    with service(kafka) as old, service(kafka) as new:
        assert commit(old, group, topic, 5) is None
        unseat(kafka, group)
        assert commit(new, group, topic, 9) is None
        new.release(group)
        until("Kafka knows it", lambda: not new.reader.members(group, WAIT_S).get(timeout=WAIT_S))
        refusals = [commit(old, group, topic, 6), commit(old, group, topic, 7)]
        last = refusals[-1]
        assert last is not None
        assert last.info.name == "FENCED_INSTANCE_ID"
        assert "was owned by another service while this one was cut off" in last.detail
        assert (old.fence, committed(old, group, topic)) == (LOST, 9)


@pytest.mark.fault(8)
@pytest.mark.parametrize("whose", ["its own", "another's"])
def test_a_lost_answer_is_not_taken_for_another_service(
    kafka: DevKafka, new_topic: TopicFactory, group: str, whose: str
) -> None:
    """Who asked for its place, and never heard that it was given, is not fenced by itself."""
    topic = new_topic()
    with service(kafka) as cut_off:
        assert commit(cut_off, group, topic, 5) is None
        unseat(kafka, group)
        assert commit(cut_off, group, topic, 6) is not None
        identity = cut_off._keeper._identity
        client_id = identity.client_id if whose == "its own" else "offsetmgr-another"
        protocols = f"{COMMON_PROTOCOL}-{client_id}", COMMON_PROTOCOL
        join = wire.join_group(wire.Place(group, INSTANCE, ""), protocols, b"", 30_000, 30_000)
        ask(kafka, group, join, client_id)
        cut_off._keeper._seats[group].unanswered = 1
        refused = commit(cut_off, group, topic, 7)
        if whose == "its own":
            assert refused is None
            assert (cut_off.fence, committed(cut_off, group, topic)) == (HELD, 7)
        else:
            assert refused is not None
            assert refused.info.name == "FENCED_INSTANCE_ID"
            assert (cut_off.fence, committed(cut_off, group, topic)) == (LOST, 5)


def test_nobody_else_commits_or_joins(kafka: DevKafka, new_topic: TopicFactory, group: str) -> None:
    """A service without a fence, an ordinary consumer and Kafka's own tool are all kept out."""
    topic = new_topic()
    config = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group}
    plain = KafkaCoordinator({"bootstrap.servers": kafka.bootstrap_servers}, clients=1)
    consumer = Consumer(config)
    try:
        with service(kafka) as owner:
            assert commit(owner, group, topic, 5) is None
            refused = commit(plain, group, topic, 6)
            assert refused is not None
            assert f"group {group} has live members (offsetmgr-" in refused.detail
            consumer.subscribe([topic])
            told = consumer.poll(WAIT_S)
            assert told is not None
            error = told.error()
            assert error is not None
            assert error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL
            reset = ("--group", group, "--topic", topic, "--reset-offsets", "--to-earliest")
            with pytest.raises(DevKafkaError, match="the current state is Stable"):
                kafka.consumer_groups(*reset, "--execute")
            assert commit(owner, group, topic, 7) is None
            assert "offsetmgr" in kafka.consumer_groups("--describe", "--group", group, "--members")
    finally:
        consumer.close()
        plain.close(WAIT_S)


def test_a_released_group_is_free_at_once(
    kafka: DevKafka, new_topic: TopicFactory, group: str
) -> None:
    """When its last manager is gone others may commit; the service may come back too."""
    topic = new_topic()
    plain = KafkaCoordinator({"bootstrap.servers": kafka.bootstrap_servers}, clients=1)
    with service(kafka) as owner:
        assert commit(owner, group, topic, 5) is None
        owner.release(group)
        until("the service has left", lambda: owner.fence.held == 0)
        until("anybody may commit", lambda: commit(plain, group, topic, 6) is None)
        assert commit(owner, group, topic, 7) is None
        assert owner.fence == HELD
    until("a closed service has left", lambda: commit(plain, group, topic, 8) is None)
    plain.close(WAIT_S)


@pytest.mark.fault(26)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_live_consumers_keep_their_group(
    kafka: DevKafka, new_topic: TopicFactory, group: str, protocol: str
) -> None:
    """A group with ordinary members is not taken over: who they are is told, and waited for."""
    topic = new_topic()
    settings = {"group.id": group, "client.id": "spark-1", "group.protocol": protocol}
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, **settings})
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    with service(kafka) as late:
        refused = commit(late, group, topic, 5)
        assert refused is not None
        assert (refused.info.name, refused.info.retriable) == ("UNKNOWN_MEMBER_ID", True)
        assert refused.detail == (
            f"group {group} has live members (spark-1, host /127.0.0.1); "
            "commit to another group or stop them"
        )
        assert consumer.assignment()
        consumer.close()
        until("the group is free", lambda: commit(late, group, topic, 6) is None)


def test_a_silent_broker(breakable_kafka: DevKafka, new_topic: TopicFactory, group: str) -> None:
    """A commit under way is unknown at its deadline, one for a group not joined yet was not sent.

    When the broker answers again the place is still ours.
    """
    topic = new_topic(on=breakable_kafka)
    with service(breakable_kafka) as owner:
        assert commit(owner, group, topic, 5) is None
        breakable_kafka.broker(1).pause()
        try:
            lost = commit(owner, group, topic, 6, DEADLINE_S)
            unsent = commit(owner, f"{group}-2", topic, 6, DEADLINE_S)
        finally:
            breakable_kafka.broker(1).resume()
        assert lost is not None
        assert (lost.info.name, lost.info.verdict) == ("_TIMED_OUT", Verdict.UNKNOWN)
        assert unsent is not None
        assert (unsent.info.name, unsent.info.verdict) == ("JOINING", Verdict.REFUSED)
        assert commit(owner, group, topic, 7) is None
        assert committed(owner, group, topic) == 7


@pytest.mark.fault(9)
def test_a_coordinator_that_goes_down_is_replaced(
    kafka3: DevKafka, new_topic: TopicFactory, group: str
) -> None:
    """The place in the group lives on at the next coordinator, where a newer service can take it.

    That coordinator knows of the older one only the protocol that was in use.
    """
    topic = new_topic(on=kafka3)

    async def coordinator() -> int:
        links = Links(security_of({}), "test")
        found = await Finder(links, brokers_of(kafka3.bootstrap_servers)).find(group)
        links.close()
        addresses = kafka3.bootstrap_servers.split(",")
        return addresses.index(f"{found.host}:{found.port}") + 1

    with service(kafka3) as owner, service(kafka3) as newer:
        assert commit(owner, group, topic, 5) is None
        broker = kafka3.broker(asyncio.run(coordinator()))
        broker.stop()
        try:
            until("committed elsewhere", lambda: commit(owner, group, topic, 6, 5.0) is None)
            assert (owner.fence, committed(owner, group, topic)) == (HELD, 6)
            # The owner keeps its place, so it does not become free by itself.
            assert commit(newer, group, topic, 7) is None
            refused = commit(owner, group, topic, 8)
            assert refused is not None
            assert refused.info.name == "FENCED_INSTANCE_ID"
        finally:
            broker.start()


def allow(kafka: DevKafka, kind: ResourceType, name: str, user: str) -> None:
    """Give ``user`` READ, which is all that committing without a fence needs."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    right = AclOperation.READ, AclPermissionType.ALLOW
    binding = AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", *right)
    admin.create_acls([binding])[binding].result(WAIT_S)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_passwords_and_tls(
    kafka: DevKafka, new_topic: TopicFactory, group: str, mechanism: str
) -> None:
    """The fence's own connections go the same safe way, with the same rights, as librdkafka's."""
    topic, user = new_topic(), USER
    login = kafka.login(USER)
    if mechanism != "PLAIN":
        user = f"scram-{group}"
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        made = UserScramCredentialUpsertion(user, info, login["sasl.password"].encode())
        admin.alter_user_scram_credentials([made])[user].result(WAIT_S)
    login |= {"sasl.mechanism": mechanism, "sasl.username": user}
    allow(kafka, ResourceType.TOPIC, topic, user)
    allow(kafka, ResourceType.GROUP, group, user)
    with service(kafka, login) as owner:
        assert commit(owner, group, topic, 5) is None
        assert (owner.fence, committed(owner, group, topic)) == (HELD, 5)
        denied = commit(owner, f"{group}-denied", topic, 6)
        assert denied is not None
        assert (denied.info.name, denied.info.retriable) == ("GROUP_AUTHORIZATION_FAILED", False)
        assert denied.info.verdict is Verdict.REFUSED


@pytest.mark.fault(21)
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"sasl.password": "not-the-one"}, "do not accept each other: .*Authentication failed"),
        ({"ssl.ca.location": None}, "certificate verify failed"),
    ],
    ids=["password", "certificate"],
)
def test_refused_credentials(
    kafka: DevKafka, group: str, wrong: dict[str, str | None], reason: str
) -> None:
    """What is not accepted, by either side, is told as that, with nothing sent and no secret."""
    login = {**kafka.login(USER), **wrong}
    given = {key: value for key, value in login.items() if value is not None}
    with service(kafka, given) as refused:
        failure = commit(refused, group, "t", 1)
        assert failure is not None
        assert (failure.info.name, failure.info.verdict) == ("NOT_SENT", Verdict.REFUSED)
        assert re.search(reason, failure.detail)
        assert "not-the-one" not in failure.detail


def test_a_closed_fence_sends_nothing(kafka: DevKafka, group: str) -> None:
    """What comes after the end is refused, not unknown."""
    with service(kafka) as closed:
        pass
    refused = commit(closed, group, "t", 1)
    assert refused is not None
    assert (refused.info.name, refused.info.verdict) == ("CLOSED", Verdict.REFUSED)
    fetched = closed.fetch(group, None, WAIT_S).get(timeout=WAIT_S)
    assert fetched.group_failure is not None
    assert closed.commit(group, {}, WAIT_S).get(timeout=WAIT_S) == CommitResult({})
