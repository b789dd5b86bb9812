"""The doctor finds each kind of trouble, and names the command that mends it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from offsetmgr.admin.commands import Connection
from offsetmgr.admin.doctor import Facts, Finding, Level, _retentions_s, _shortest, examine
from offsetmgr.admin.history import CommitStep, steps
from offsetmgr.admin.service import LiveManager, ServiceFacts
from offsetmgr.answers import GroupMember
from offsetmgr.errors import KafkaRequestError, ServiceUnavailableError, error_info
from offsetmgr.kafka.cluster import ClusterReader, GroupDescription
from offsetmgr.kafka.commit_log import CommitRecord
from offsetmgr.lag.measure import GroupLag, PartitionLag
from offsetmgr.types import ManagerKey, OffsetAndMetadata, TopicPartition

NOW_S = 1_700_000_000.0
DAY_S = 86_400.0
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
READ = frozenset({"READ", "DESCRIBE"})
EMPTY = GroupDescription("Empty", "classic", "b:9092 (1)", "", (), READ)
DENIED = KafkaRequestError("history of commits", error_info(29), "no READ on __consumer_offsets")
NO_TOPIC = KafkaRequestError("log of orders-0", error_info(3))


def commits(*offsets: int, ago_s: float = 60.0) -> list[CommitRecord]:
    """Commits of orders-0, a second apart, the last one so long ago."""
    return [
        CommitRecord(ManagerKey("etl", *P0), offset, "", NOW_S - ago_s - len(offsets) + index)
        for index, offset in enumerate(offsets, 1)
    ]


def lag(where: TopicPartition, committed: int, start: int, end: int, **more: Any) -> PartitionLag:
    behind = max(end - committed, 0)
    return PartitionLag(where, OffsetAndMetadata(committed), end, behind, start)._replace(**more)


def walked(records: list[CommitRecord]) -> list[CommitStep]:
    return list(steps(records))


def after(*offsets: int, ago_s: float = 60.0, **changes: Any) -> Facts:
    """The cluster of HEALTHY after these commits."""
    return replace(HEALTHY, history={"etl": walked(commits(*offsets, ago_s=ago_s))}, **changes)


UP = ServiceFacts(
    "http://s",
    ready=True,
    draining=False,
    kafka="ok",
    fenced_groups=0,
    managers=[LiveManager("etl", P0, "job", "")],
)
HEALTHY = Facts(
    now_s=NOW_S,
    versions={"offsetmgr": "0"},
    cluster="cluster c (b:9092) answered in 1 ms",
    groups={"etl": GroupLag("etl", EMPTY, (lag(P0, 50, 10, 60),))},
    topic_rights={"orders": READ},
    history={"etl": walked(commits(40, 50))},
    service=UP,
)


def bad(facts: Facts) -> list[Finding]:
    return [each for each in examine(facts) if each.level is not Level.OK]


def with_group(facts: Facts = HEALTHY, **changes: Any) -> Facts:
    return replace(facts, groups={"etl": facts.groups["etl"]._replace(**changes)})


def with_lag(*partitions: PartitionLag, facts: Facts = HEALTHY) -> Facts:
    return with_group(facts, partitions=partitions)


MEMBER = GroupMember("m", "reader", "/10.0.0.7", "", (P0,))
STABLE = EMPTY._replace(state="Stable", members=(MEMBER,))
GONE = CommitRecord(ManagerKey("etl", *P1), None, "", NOW_S - 10)
IDLE_S = 3_600.0
QUIET = after(50, ago_s=IDLE_S)
NO_LEADER = KafkaRequestError("log of orders-0", error_info(5))
UNREAD = PartitionLag(P0, OffsetAndMetadata(50))


def without_service(facts: Facts, **changes: Any) -> Facts:
    """Facts of a cluster whose doctor was asked without a service."""
    return replace(facts, service=None, **changes)


WELL: dict[str, Facts] = {
    "a job commits through the service": HEALTHY,
    "no service was named": without_service(HEALTHY),
    "a consumer group with a member": without_service(with_group(description=STABLE)),
    "a rebalance": without_service(
        with_group(description=STABLE._replace(state="PreparingRebalance"))
    ),
    "a KIP-848 group": without_service(with_group(description=STABLE._replace(type="consumer"))),
    "members that have not committed yet": without_service(
        with_group(description=STABLE, partitions=()), history={"etl": []}
    ),
    "a group without offsets that never had any": replace(
        with_group(partitions=()), history={"etl": []}
    ),
    "idle for an hour at the end of the log": with_lag(lag(P0, 50, 10, 50), facts=QUIET),
    "idle behind nothing but a transaction's marker": with_lag(
        lag(P0, 50, 10, 60, lag=0), facts=QUIET
    ),
    "idle for a week with a member": without_service(
        with_group(description=STABLE),
        history={"etl": walked(commits(50, ago_s=6.9 * DAY_S))},
        stuck_after_s=7 * DAY_S,
    ),
    "a lag that is read on": with_lag(lag(P0, 50, 0, 10**9)),
    "an empty log": with_lag(lag(P0, 0, 0, 0), facts=after(0)),
    "all records expired after they were read": with_lag(lag(P0, 50, 50, 50)),
    "a fall that was made good": after(45, 20, 50),
    "a reset that the job has read past": after(45, 20, 30, 40, 50),
    "an old deletion": replace(
        HEALTHY,
        history={"etl": walked([GONE._replace(at_s=NOW_S - 2 * DAY_S), *commits(50)])},
    ),
    "a deletion and a new commit": replace(
        HEALTHY,
        history={
            "etl": walked([*commits(50), GONE, GONE._replace(offset=5, at_s=NOW_S - 5)]),
        },
        groups={"etl": GroupLag("etl", EMPTY, (lag(P0, 50, 10, 60), lag(P1, 5, 0, 60)))},
    ),
    "a fall before the offset was deleted and committed again": replace(
        HEALTHY,
        history={
            "etl": walked(
                [
                    *commits(80, 20),
                    GONE._replace(key=ManagerKey("etl", *P0), at_s=NOW_S - 30),
                    *commits(40, 50, ago_s=9),
                ]
            )
        },
    ),
    "the same offset again and again": after(50, 50, 50, 50),
    "one second ahead of us": after(40, 50, ago_s=-1),
    "a fence of ours": with_group(
        description=STABLE._replace(members=(MEMBER._replace(group_instance_id="offsetmgr"),))
    ),
}
"""Healthy clusters."""

SICK: dict[str, tuple[Facts, str, str]] = {
    "the names of all brokers cannot be resolved": (
        replace(
            HEALTHY,
            groups={},
            cluster=KafkaRequestError(
                "connection to Kafka",
                error_info(-185),
                "no answer: kafka-1:9092/1: Failed to resolve 'kafka-1:9092'",
            ),
        ),
        "Failed to resolve 'kafka-1:9092'",
        "set advertised.listeners of the brokers",
    ),
    "service is away": (
        replace(HEALTHY, service=ServiceUnavailableError("the service is away")),
        "the service is away",
        "offsetmgr serve",
    ),
    "service is not ready": (
        replace(HEALTHY, service=UP._replace(ready=False, kafka="no answer")),
        "not ready: no answer",
        "config check",
    ),
    "another service has the group": (
        replace(HEALTHY, service=UP._replace(fenced_groups=2)),
        "taken 2 groups over",
        "stop one of the two services",
    ),
    "clock": (
        after(40, 50, ago_s=-90),
        "90 s in the future",
        "NTP",
    ),
    "a member next to the fence": (
        with_group(
            description=STABLE._replace(
                members=(MEMBER._replace(group_instance_id="offsetmgr"), MEMBER)
            )
        ),
        "live members: reader (host 10.0.0.7); client job of the service commits it too",
        "stop these consumers",
    ),
    "a broker advertises a name that cannot be resolved": (
        replace(HEALTHY, groups={}, unreachable=["broker 1 advertises kafka-1:9092, a name that"]),
        "broker 1 advertises kafka-1:9092",
        "set advertised.listeners of the brokers",
    ),
    "a frozen broker": (
        replace(HEALTHY, groups={}, silent=["broker 2 (kafka-2:9092)"]),
        "broker 2 (kafka-2:9092): takes connections, and does not answer",
        "restart it if it hangs",
    ),
    "no leader": (
        replace(with_lag(UNREAD._replace(error=NO_LEADER)), leaderless={P0: [2, 3], P1: [3]}),
        "without a leader: orders 0, 1",
        "start one of the brokers that hold them: 2, 3",
    ),
    "two services by turns": (
        after(20, 5, 30, 12, 41, 50),
        "two programs commit group etl by turns: orders 0 went back and forth",
        "fence = true",
    ),
    "two services by turns, one of them more often": (
        after(20, 5, 6, 30, 7, 8, 40, 9, 10, 50),
        "two programs commit group etl by turns",
        "stop one of the two",
    ),
    "stuck with a member": (
        without_service(with_group(description=STABLE), history=QUIET.history),
        "10 records wait in orders 0",
        "look at the job",
    ),
    "an open transaction": (
        with_lag(lag(P0, 50, 10, 60, held_back=True), facts=QUIET),
        "10 records wait in orders 0 behind an open transaction",
        "kafka-transactions finds and aborts it",
    ),
    "two resets by hand": (after(90, 10, 40, 95, 30, 50), "went backwards", "--to-history"),
    "commits fail": (
        replace(
            HEALTHY,
            service=UP._replace(managers=[LiveManager("etl", P0, "job", "it is refused")]),
        ),
        "client job reports of orders 0: it is refused",
        "the service tries again",
    ),
    "a followed checkpoint": (
        replace(
            HEALTHY,
            service=UP._replace(failing_checkpoints={"/jobs/a b": "it has no metadata"}),
            connection=Connection(("--bootstrap-servers", "k:1"), ("--service", "http://s")),
        ),
        "checkpoint /jobs/a b, which the service follows: it has no metadata",
        "offsetmgr spark status --checkpoint '/jobs/a b' --bootstrap-servers k:1",
    ),
    "about to expire": (
        after(50, ago_s=6 * DAY_S, stuck_after_s=7 * DAY_S),
        "orders 0 were last committed 6.0 d ago; Kafka may forget them in 24.0 h",
        "offsetmgr reset etl --all-topics --to-current --execute",
    ),
    "beyond the log": (
        with_lag(lag(P0, 50, 0, 49)),
        "orders 0: committed beyond the end",
        "offsetmgr reset etl --topic orders:0 --to-earliest --execute",
    ),
    "before the log": (
        with_lag(lag(P0, 50, 51, 60)),
        "orders 0: committed before the start",
        "offsetmgr reset etl --topic orders:0 --to-earliest --execute",
    ),
    "topic is gone": (
        replace(with_lag(UNREAD._replace(error=NO_TOPIC)), topic_rights={"orders": NO_TOPIC}),
        "orders 0: committed, but",
        "offsetmgr delete-offsets etl --topic orders:0 --execute",
    ),
    "offsets expired": (
        replace(HEALTHY, history={"etl": walked([*commits(50), GONE])}),
        "orders 1: the offsets expired, or somebody deleted them",
        "offsetmgr reset etl --topic orders:1 --to-history 2023-11-14T22:13:09.999Z --execute",
    ),
    "nothing committed": (with_group(partitions=()), "no committed offsets", "history etl"),
}


@pytest.mark.parametrize("well", WELL)
def test_a_healthy_cluster_raises_no_alarm(well: str) -> None:
    """Consumer groups with members, idle groups and old troubles among them."""
    assert not bad(WELL[well])


@pytest.mark.parametrize("sick", SICK)
def test_a_trouble_is_reported_once_with_the_command_that_mends_it(sick: str) -> None:
    """It says what is wrong, why it matters and what to do; it finds nothing else."""
    facts, what, mend = SICK[sick]
    (found,) = bad(facts)
    assert found.level is Level.TROUBLE
    assert what in found.what
    assert found.why
    assert mend in found.mend


DENIED_TOO = KafkaRequestError("setting", error_info(31), "no DESCRIBE_CONFIGS")


def deleted_unread() -> Facts:
    """Two partitions have lost their offsets, and their logs cannot be read."""
    records = [GONE._replace(key=ManagerKey("etl", *where)) for where in (P0, P1)]
    history = walked(records)
    kept = lag(TopicPartition("orders", 2), 50, 10, 60)
    causes = dict.fromkeys(history, DENIED)
    return replace(with_lag(kept), history={"etl": history}, causes=causes)


UNKNOWN: dict[str, tuple[Facts, str, str]] = {
    "history": (replace(HEALTHY, history=DENIED), "", "unread"),
    "retention": (replace(HEALTHY, retention_s=DENIED_TOO), "", "unread"),
    "groups of a broker": (replace(HEALTHY, unlisted=[DENIED]), "", "connection"),
    "group": (with_group(error=DENIED, description=None, partitions=()), "etl", "unread groups"),
    "hidden commits": (
        replace(HEALTHY, history={"etl": list(steps([], {P0: OffsetAndMetadata(50)}, NOW_S))}),
        "etl",
        "offsets",
    ),
    "two causes": (deleted_unread(), "etl", "deleted"),
    "two logs": (
        with_lag(UNREAD._replace(error=DENIED), UNREAD._replace(partition=P1, error=DENIED)),
        "etl",
        "offsets",
    ),
}


@pytest.mark.parametrize("unread", UNKNOWN)
def test_an_unread_fact_is_one_finding(unread: str) -> None:
    """It names the missing right, once, and hides no other group: its peers are judged."""
    facts, group, check = UNKNOWN[unread]
    peer = WELL["a consumer group with a member"].groups["etl"]._replace(name="peer")
    facts = replace(facts, groups={**facts.groups, "peer": peer})
    (found,) = bad(facts)
    assert (found.level, found.group, found.check) == (Level.UNKNOWN, group, check)
    assert "could not be checked" in found.what
    assert found.mend.startswith("grant") or unread == "hidden commits"
    assert {each.group for each in examine(facts) if each.level is Level.OK} >= {"peer"}
    if unread.startswith("two"):
        assert "orders 0, 1" in found.why


def test_groups_with_the_same_cause_are_one_finding() -> None:
    """The kind: a cause told once for each of thousands of groups.  None of them is called well."""
    etl = with_group(error=DENIED, description=None, partitions=()).groups["etl"]
    facts = replace(HEALTHY, groups={"etl": etl, "peer": etl._replace(name="peer")})
    (found,) = bad(facts)
    assert {each.group for each in examine(facts)} == {""}
    assert (found.group, found.why) == ("", "nothing can be said of group etl, peer")


class Brokers(ClusterReader):
    """Some brokers, each with a retention of its own or the error that it answers."""

    def __init__(self, *answers: str | KafkaRequestError) -> None:  # it connects to nothing
        self.timeout_s = 1.0
        self._admin = Mock()
        self._admin.describe_configs = lambda wanted: {
            each: answers[int(each.name)] for each in wanted
        }

    def result(self, pending: Any, *_: object, **__: object) -> Any:
        if isinstance(pending, KafkaRequestError):
            raise pending
        return {"offsets.retention.minutes": Mock(value=pending)}


def test_the_shortest_retention_of_all_brokers_counts() -> None:
    """The kind: one broker asked for all, as each expires the groups that it keeps by its own."""
    for answers, expected in ((("10080", DENIED, "1440"), DAY_S), ((DENIED, DENIED), DENIED)):
        assert _shortest(_retentions_s(Brokers(*answers), range(len(answers)))) == expected
