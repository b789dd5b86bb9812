"""The doctor finds each kind of trouble, and names the command that mends it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from offsetmgr.admin.doctor import Facts, Finding, GroupFacts, Level, examine
from offsetmgr.admin.history import CommitStep, steps
from offsetmgr.admin.service import LiveManager, ServiceFacts
from offsetmgr.errors import KafkaRequestError, ServiceUnavailableError, error_info
from offsetmgr.kafka.cluster import GroupDescription, GroupMember
from offsetmgr.kafka.commit_log import CommitRecord
from offsetmgr.types import ManagerKey, OffsetAndMetadata, PartitionRange, TopicPartition

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


def walked(records: list[CommitRecord]) -> list[CommitStep]:
    return list(steps(records))


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
    groups={"etl": GroupFacts(EMPTY, {P0: OffsetAndMetadata(50)})},
    logs={P0: PartitionRange(10, 60)},
    topic_rights={"orders": READ},
    history={"etl": walked(commits(40, 50))},
    service=UP,
)


def bad(facts: Facts) -> list[Finding]:
    return [each for each in examine(facts) if each.level is not Level.OK]


def with_group(**changes: Any) -> Facts:
    return replace(HEALTHY, groups={"etl": HEALTHY.groups["etl"]._replace(**changes)})


def test_nothing_is_found_where_all_is_well() -> None:
    """Every check says that it was made."""
    assert not bad(HEALTHY)
    assert len(examine(HEALTHY)) > 8


MEMBER = GroupMember("m", "reader", "/10.0.0.7", "", (P0,))
GONE = CommitRecord(ManagerKey("etl", *P1), None, "", NOW_S - 10)
BOTH = {P0: PartitionRange(10, 60), P1: PartitionRange(0, 60)}
SICK: dict[str, tuple[Facts, str, str]] = {
    "connection": (
        replace(HEALTHY, cluster=KafkaRequestError("connection", error_info(-195))),
        "connection",
        "offsetmgr config check",
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
        replace(HEALTHY, history={"etl": walked(commits(40, 50, ago_s=-90))}),
        "90 s in the future",
        "NTP",
    ),
    "no right to the group": (
        with_group(description=EMPTY._replace(rights=frozenset({"DESCRIBE"}))),
        "lacks READ on group etl",
        "kafka-acls --add --allow-principal User:NAME --operation Read --group etl",
    ),
    "no right to the topic": (
        replace(HEALTHY, topic_rights={"orders": frozenset({"DESCRIBE"})}),
        "lacks READ on topic orders",
        "--operation Read --topic orders",
    ),
    "members": (
        with_group(description=EMPTY._replace(state="Stable", members=(MEMBER,))),
        "live members: reader (host 10.0.0.7)",
        "stop these consumers",
    ),
    "commits fail": (
        replace(
            HEALTHY,
            service=UP._replace(managers=[LiveManager("etl", P0, "job", "it is refused")]),
        ),
        "client job reports of orders 0: it is refused",
        "the service tries again",
    ),
    "stuck": (
        replace(HEALTHY, history={"etl": walked(commits(50, ago_s=3_600))}),
        "for 60.0 min, and 10 records wait in orders 0",
        "offsetmgr spark status",
    ),
    "about to expire": (
        replace(
            HEALTHY, history={"etl": walked(commits(50, ago_s=6 * DAY_S))}, stuck_after_s=7 * DAY_S
        ),
        "orders 0 were last committed 6.0 d ago; Kafka may forget them in 24.0 h",
        "offsetmgr reset etl --all-topics --to-current --execute",
    ),
    "went backwards": (
        replace(HEALTHY, history={"etl": walked(commits(80, 20, 50))}),
        "(orders-0 from 80 to 20)",
        "offsetmgr reset etl --to-history 2023-11-14T22:12:18.999Z --execute",
    ),
    "beyond the log": (
        replace(HEALTHY, logs={P0: PartitionRange(0, 49)}),
        "orders 0: committed beyond the end",
        "offsetmgr reset etl --topic orders:0 --to-earliest --execute",
    ),
    "before the log": (
        replace(HEALTHY, logs={P0: PartitionRange(51, 60)}),
        "orders 0: committed before the start",
        "offsetmgr reset etl --topic orders:0 --to-earliest --execute",
    ),
    "topic is gone": (
        replace(HEALTHY, logs={P0: NO_TOPIC}, topic_rights={"orders": NO_TOPIC}),
        "orders 0: committed, but",
        "offsetmgr delete-offsets etl --topic orders:0 --execute",
    ),
    "offsets expired": (
        replace(HEALTHY, history={"etl": walked([*commits(50), GONE])}, logs=BOTH),
        "orders 1: the offsets expired, or somebody deleted them",
        "offsetmgr reset etl --topic orders:1 --to-history 2023-11-14T22:13:09.999Z --execute",
    ),
    "topic was deleted": (
        replace(
            HEALTHY, history={"etl": walked([*commits(50), GONE])}, logs={**BOTH, P1: NO_TOPIC}
        ),
        "orders 1: the topic was deleted",
        "take the topic out of the job",
    ),
    "topic was made anew": (
        replace(
            HEALTHY,
            history={"etl": walked([*commits(50), GONE._replace(offset=7), GONE])},
            logs={**BOTH, P1: PartitionRange(0, 5)},
        ),
        "orders 1: the topic was made anew",
        "offsetmgr reset etl --topic orders:1 --to-earliest --execute",
    ),
    "nothing committed": (
        with_group(committed={}),
        "no committed offsets",
        "offsetmgr history etl",
    ),
}


@pytest.mark.parametrize("sick", SICK)
def test_trouble_is_told_once_with_the_command_that_mends_it(sick: str) -> None:
    """It says what is wrong, why it matters and what to do; it finds nothing else."""
    facts, what, mend = SICK[sick]
    (found,) = bad(facts)
    assert found.level is Level.TROUBLE
    assert what in found.what
    assert found.why
    assert mend in found.mend


def test_what_cannot_be_checked_is_no_trouble_and_no_silence() -> None:
    """Without READ on Kafka's log of commits their age and their direction are not known."""
    found = bad(replace(HEALTHY, history=DENIED))
    assert {each.check for each in found} == {"retention", "regressions"}
    assert all(each.level is Level.UNKNOWN and "READ" in each.mend for each in found)
    denied = KafkaRequestError("setting", error_info(31), "no DESCRIBE_CONFIGS")
    (found_too,) = bad(replace(HEALTHY, retention_s=denied))
    assert (found_too.level, found_too.check) == (Level.UNKNOWN, "retention")


def test_a_fall_that_was_made_good_is_no_trouble() -> None:
    """The group is past where it was."""
    assert not bad(replace(HEALTHY, history={"etl": walked(commits(45, 20, 50))}))


def test_an_old_deletion_is_taken_for_a_wanted_one() -> None:
    """Else it would be told until Kafka has compacted it away."""
    old = GONE._replace(at_s=NOW_S - 2 * DAY_S)
    assert not bad(replace(HEALTHY, history={"etl": walked([old, *commits(50)])}, logs=BOTH))


def test_a_fence_of_ours_is_no_stranger() -> None:
    """A service with a fence is the only member of its groups."""
    ours = MEMBER._replace(client_id="offsetmgr", group_instance_id="offsetmgr")
    description = EMPTY._replace(state="Stable", members=(ours,))
    assert not bad(with_group(description=description))
    both = description._replace(members=(ours, MEMBER))
    assert "reader" in bad(with_group(description=both))[0].what
