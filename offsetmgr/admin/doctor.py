"""Gathers facts of a cluster, its groups and a service, and judges them.

``gather`` asks; the checks are pure.  Each check returns what it found: trouble with the command
that mends it, that it could not look, or that all is well.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import confluent_kafka
from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from offsetmgr.admin.history import CommitStep, Move, steps
from offsetmgr.admin.times import seconds_text, time_before, time_text
from offsetmgr.errors import OffsetManagerError, listed
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.commit_log import TOPIC, read_commits
from offsetmgr.kafka.config import INSTANCE
from offsetmgr.kafka.errors import does_not_exist, request_error, tried

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from offsetmgr.admin.service import ServiceFacts, ServiceReader
    from offsetmgr.kafka.cluster import GroupDescription
    from offsetmgr.kafka.commit_log import CommitRecord
    from offsetmgr.types import OffsetAndMetadata, PartitionRange, TopicPartition

_EXPIRY_SHARE: Final = 0.75
"""Commits older than this part of the retention are about to expire."""
_SKEW_S: Final = 2.0
"""A difference of clocks that is no chance."""
_RECENT_S: Final = 86_400.0
"""Older deletions are taken for wanted ones."""
_RETENTION: Final = "offsets.retention.minutes"


class Level(str, Enum):
    """The severity of a finding."""

    TROUBLE = "trouble"
    UNKNOWN = "unknown"
    """It could not be checked."""
    OK = "ok"


class Finding(NamedTuple):
    """The result of one check."""

    level: Level
    check: str
    what: str
    why: str = ""
    """Why it matters; empty where all is well."""
    mend: str = ""
    """The command that mends it, or what to do where there is none."""
    group: str = ""


class GroupFacts(NamedTuple):
    """Facts of a group; an error takes the place of a fact that could not be read."""

    description: GroupDescription | OffsetManagerError
    committed: Mapping[TopicPartition, OffsetAndMetadata] | OffsetManagerError

    @property
    def offsets(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """The committed offsets; none if they could not be read."""
        return {} if isinstance(self.committed, OffsetManagerError) else self.committed


@dataclass(frozen=True)
class Facts:
    """The input of all checks."""

    now_s: float
    versions: Mapping[str, str]
    cluster: str | OffsetManagerError
    """The cluster and its brokers in words."""
    stuck_after_s: float = 600.0
    retention_s: float | OffsetManagerError = 7 * 86_400.0
    groups: Mapping[str, GroupFacts] = field(default_factory=dict)
    logs: Mapping[TopicPartition, PartitionRange | OffsetManagerError] = field(default_factory=dict)
    topic_rights: Mapping[str, frozenset[str] | OffsetManagerError] = field(default_factory=dict)
    history: Mapping[str, Sequence[CommitStep]] | OffsetManagerError = field(default_factory=dict)
    service: ServiceFacts | OffsetManagerError | None = None
    """None where no service was named."""

    def steps(self, group: str) -> Sequence[CommitStep]:
        """Return the steps of a group, none if they could not be read."""
        return () if isinstance(self.history, OffsetManagerError) else self.history.get(group, ())

    def log(self, where: TopicPartition) -> PartitionRange | None:
        """Return the range of a log, None if it could not be read."""
        found = self.logs.get(where)
        return None if isinstance(found, OffsetManagerError) else found


def gather(
    config: Mapping[str, object],
    groups: Iterable[str] | None,
    service: ServiceReader | None,
    *,
    version: str,
    stuck_after_s: float = 600.0,
    timeout_s: float = 10.0,
) -> Facts:
    """Return the facts of ``groups``, of all groups of the cluster where None.

    What could not be learned stands in them as an error.  ``config`` is librdkafka's, ``version``
    that of this product.  Raises InvalidValueError where librdkafka does not take a setting.
    """
    versions = {
        "offsetmgr": version,
        "confluent-kafka": str(confluent_kafka.version()),
        "librdkafka": confluent_kafka.libversion()[0],
        "Python": sys.version.split()[0],
    }
    with ClusterReader(config, timeout_s=timeout_s) as reader:
        cluster = tried(_cluster, reader)
        asked = None if service is None else tried(service.facts)
        if isinstance(cluster, OffsetManagerError):
            return Facts(time.time(), versions, cluster, service=asked)
        names = [each.name for each in reader.groups()] if groups is None else list(groups)
        described, committed = reader.describe(names), reader.committed(names)
        history, now_s = tried(_history, config, names), time.time()
        partitions = {
            where
            for each in committed.values()
            if not isinstance(each, OffsetManagerError)
            for where in each
        }
        topics = {where.topic for where in partitions}
        if not isinstance(history, OffsetManagerError):
            partitions.update(*(deletions(each, now_s) for each in history.values()))
        return Facts(
            now_s=now_s,
            versions=versions,
            cluster=cluster,
            stuck_after_s=stuck_after_s,
            retention_s=tried(_retention_s, reader),
            groups={name: GroupFacts(described[name], committed[name]) for name in names},
            logs=reader.log_ranges(partitions),
            topic_rights=reader.topic_rights(topics),
            history=history,
            service=asked,
        )


def _cluster(reader: ClusterReader) -> str:
    began_s = time.monotonic()
    try:
        found = reader.admin.list_topics(TOPIC, timeout=reader.timeout_s)
    except KafkaException as error:
        raise request_error("connection to Kafka", error) from None
    took_ms = (time.monotonic() - began_s) * 1_000
    brokers = ", ".join(f"{each.host}:{each.port}" for each in found.brokers.values())
    return f"cluster {found.cluster_id} ({brokers}) answered in {took_ms:.0f} ms"


def _retention_s(reader: ClusterReader) -> float:
    broker = next(iter(reader.admin.list_topics(TOPIC, timeout=reader.timeout_s).brokers))
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    sent = reader.admin.describe_configs([resource])[resource]
    found = reader.result(sent, f"setting {_RETENTION} of the brokers")
    return float(found[_RETENTION].value) * 60.0


def _history(config: Mapping[str, object], groups: list[str]) -> dict[str, list[CommitStep]]:
    records: dict[str, list[CommitRecord]] = {group: [] for group in groups}
    for record in read_commits(config, records.keys()):
        records[record.key.group].append(record)
    return {group: list(steps(each)) for group, each in records.items()}


def examine(facts: Facts) -> list[Finding]:
    """Return the findings of all checks, trouble first."""
    found = [*_connection(facts), *_service(facts), *_clock(facts)]
    if not isinstance(facts.cluster, OffsetManagerError):
        for group, each in facts.groups.items():
            for check in _CHECKS:
                name = check.__name__.strip("_").replace("_", " ")
                bad = [
                    finding._replace(check=name, group=group)
                    for finding in check(facts, group, each)
                ]
                found += bad or [Finding(Level.OK, name, f"group {group}", group=group)]
    order = list(Level)
    return sorted(found, key=lambda finding: order.index(finding.level))


def deletions(steps: Iterable[CommitStep], now_s: float) -> dict[TopicPartition, CommitStep]:
    """Return the partitions whose last step is a deletion of the last day."""
    last = {step.partition: step for step in steps}
    return {
        where: step
        for where, step in last.items()
        if step.move is Move.DELETED and now_s - step.at_s < _RECENT_S
    }


def _connection(facts: Facts) -> Iterable[Finding]:
    if isinstance(facts.cluster, OffsetManagerError):
        yield _trouble(
            str(facts.cluster),
            "without Kafka nothing is committed, and nothing else can be checked",
            "offsetmgr config check shows the settings that are used",
            check="connection",
        )
        return
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    yield Finding(Level.OK, "connection", facts.cluster)
    yield Finding(Level.OK, "versions", versions)


def _service(facts: Facts) -> Iterable[Finding]:
    service = facts.service
    if service is None:
        return
    if isinstance(service, OffsetManagerError):
        yield _trouble(
            str(service),
            "its clients keep their newest offsets, and commit nothing until it is back",
            "offsetmgr serve",
            check="service",
        )
        return
    if service.fenced_groups:
        yield _trouble(
            f"another service has taken {service.fenced_groups} groups over from {service.url}",
            "this service commits nothing of those groups any more",
            "stop one of the two services, then restart this one",
            check="fence",
        )
    if not service.ready:
        problem = "is stopping" if service.draining else f"is not ready: {service.kafka}"
        yield _trouble(
            f"the service at {service.url} {problem}",
            "nothing is committed meanwhile; clients keep their newest offsets",
            "see its log; without a reason there, offsetmgr config check",
            check="service",
        )
    elif not service.fenced_groups:
        clients = sorted({each.client for each in service.managers})
        named = f"clients {listed(clients)}" if clients else "no clients"
        yield Finding(Level.OK, "service", f"{service.url} is ready, with {named}")


def _clock(facts: Facts) -> Iterable[Finding]:
    if isinstance(facts.history, OffsetManagerError):
        return
    newest_s = max((step.at_s for steps in facts.history.values() for step in steps), default=0.0)
    ahead_s = newest_s - facts.now_s
    if ahead_s > _SKEW_S:
        yield _trouble(
            f"the newest commit is {seconds_text(ahead_s)} in the future: a clock is wrong",
            "resets by time and the age of commits are off by as much",
            "set the clocks of this machine and of the brokers by NTP",
            check="clock",
        )


# Of one group.


def _rights(facts: Facts, group: str, each: GroupFacts) -> Iterable[Finding]:
    why = "its offsets cannot be committed"
    grant = "kafka-acls --add --allow-principal User:NAME --operation Read"
    described = each.description
    if isinstance(described, OffsetManagerError):
        yield _unknown(described, why)
    elif described.state != "Dead" and "READ" not in described.rights:
        what = f"this user lacks READ on group {group}"
        yield _trouble(what, why, f"{grant} --group {group}")
    for topic in sorted({where.topic for where in each.offsets}):
        rights = facts.topic_rights.get(topic, frozenset())
        if isinstance(rights, OffsetManagerError):
            if not does_not_exist(rights):
                yield _unknown(rights, why)
        elif "READ" not in rights:
            what = f"this user lacks READ on topic {topic}"
            yield _trouble(what, why, f"{grant} --topic {topic}")


def _members(_facts: Facts, group: str, each: GroupFacts) -> Iterable[Finding]:
    if isinstance(each.description, OffsetManagerError):
        yield _unknown(each.description, "members would refuse other commits")
        return
    # A service with a fence is the only member of its groups.
    members = [one for one in each.description.members if one.group_instance_id != INSTANCE]
    if not members:
        return
    named = listed([f"{one.client_id} (host {one.host.lstrip('/')})" for one in members])
    yield _trouble(
        f"group {group} has live members: {named}",
        "Kafka takes commits from them alone: those of a service or a job, and resets, are refused",
        "stop these consumers, or give them or the job another group",
    )


def _commits(facts: Facts, group: str, _each: GroupFacts) -> Iterable[Finding]:
    service = facts.service
    if service is None or isinstance(service, OffsetManagerError):
        return
    failing = [one for one in service.managers if one.group == group and one.error]
    for reason in sorted({one.error for one in failing}):
        same = [one for one in failing if one.error == reason]
        yield _trouble(
            f"client {listed(sorted({one.client for one in same}))} reports of "
            f"{_places(one.partition for one in same)}: {reason}",
            "the group does not show, or not yet, how far the job has come",
            "mend what the error names; the service tries again by itself",
        )


def _stuck(facts: Facts, group: str, each: GroupFacts) -> Iterable[Finding]:
    steps = facts.steps(group)
    if not steps:
        return
    quiet_s = facts.now_s - steps[-1].at_s
    behind = {}
    for where, committed in each.offsets.items():
        log = facts.log(where)
        if log is not None and log.high_watermark > committed.offset:
            behind[where] = log.high_watermark - committed.offset
    if behind and quiet_s > facts.stuck_after_s:
        yield _trouble(
            f"nothing was committed to group {group} for {seconds_text(quiet_s)}, and "
            f"{sum(behind.values())} records wait in {_places(behind)}",
            "the job has stopped, hangs, or cannot commit",
            "look at the job, and at offsetmgr spark status --checkpoint PATH; start it again",
        )


def _retention(facts: Facts, group: str, each: GroupFacts) -> Iterable[Finding]:
    why = "a job without a checkpoint and without offsets starts anew: it repeats or skips records"
    if isinstance(facts.history, OffsetManagerError):
        yield _unknown(facts.history, why)
        return
    if isinstance(facts.retention_s, OffsetManagerError):
        yield _unknown(facts.retention_s, why)
        return
    if not isinstance(each.description, OffsetManagerError) and each.description.members:
        return  # the offsets of a group with members do not expire
    last = {step.partition: step.at_s for step in facts.steps(group)}
    ages = {where: facts.now_s - last[where] for where in each.offsets if where in last}
    old = {where: s for where, s in ages.items() if s > _EXPIRY_SHARE * facts.retention_s}
    if old:
        age_s = max(old.values())
        yield _trouble(
            f"the offsets of {_places(old)} were last committed {seconds_text(age_s)} ago; "
            f"Kafka may forget them in {seconds_text(facts.retention_s - age_s)}",
            f"{why}; to commit them again:",
            f"offsetmgr reset {group} --all-topics --to-current --execute",
        )


def _regressions(facts: Facts, group: str, each: GroupFacts) -> Iterable[Finding]:
    """Find partitions that went backwards and are still behind where they were."""
    why = "what was processed already is read again from there"
    if isinstance(facts.history, OffsetManagerError):
        yield _unknown(facts.history, why)
        return
    highest: dict[TopicPartition, CommitStep] = {}
    for step in facts.steps(group):
        if step.move is Move.BACKWARD and step.before is not None:
            known = highest.get(step.partition)
            if known is None or (known.before or 0) < step.before:
                highest[step.partition] = step
    fallen = [
        step
        for where, step in highest.items()
        if where in each.offsets and each.offsets[where].offset < (step.before or 0)
    ]
    if not fallen:
        return
    first = min(fallen, key=lambda step: step.at_s)
    at, before = time_text(first.at_s), time_before(first.at_s)
    yield _trouble(
        f"{_places(step.partition for step in fallen)} went backwards, first at {at} "
        f"({first.partition} from {first.before} to {first.after})",
        f"{why}; to go back to where they were:",
        f"offsetmgr reset {group} --to-history {before} --execute",
    )


def _outside_log(facts: Facts, group: str, each: GroupFacts) -> Iterable[Finding]:
    beyond, expired = [], []
    for where, committed in each.offsets.items():
        log = facts.log(where)
        if log is not None and committed.offset > log.high_watermark:
            beyond.append(where)
        elif log is not None and committed.offset < log.log_start_offset:
            expired.append(where)
    if beyond:
        yield _trouble(
            f"{_places(beyond)}: committed beyond the end of the log; the topic was made anew, or "
            "the offset is wrong",
            "lag is shown as 0, and records up to that offset are skipped",
            f"offsetmgr reset {group} {_options(beyond)} --to-earliest --execute",
        )
    if expired:
        yield _trouble(
            f"{_places(expired)}: committed before the start of the log; records expired unread",
            "a job that starts there fails (failOnDataLoss) or skips to the start of the log",
            f"offsetmgr reset {group} {_options(expired)} --to-earliest --execute",
        )


def _deleted(facts: Facts, group: str, each: GroupFacts) -> Iterable[Finding]:
    """Find offsets that were deleted or expired in the last day, and not committed again."""
    if isinstance(each.committed, OffsetManagerError):
        return
    why = "a job without a checkpoint starts anew there: it repeats or skips records"
    gone: list[TopicPartition] = []
    anew: list[TopicPartition] = []
    expired: dict[TopicPartition, CommitStep] = {}
    for where, step in deletions(facts.steps(group), facts.now_s).items():
        log = facts.log(where)
        if where in each.committed:
            continue
        if does_not_exist(facts.logs.get(where)):
            gone.append(where)
        elif log is not None and (step.before or 0) > log.high_watermark:
            anew.append(where)
        elif log is not None:
            expired[where] = step
    if gone:
        yield _trouble(
            f"{_places(gone)}: the topic was deleted, and Kafka deleted the offsets with it",
            "a job that reads it fails, or waits for it",
            "take the topic out of the job; in Kafka there is nothing to mend",
        )
    if anew:
        yield _trouble(
            f"{_places(anew)}: the topic was made anew, and Kafka deleted the offsets",
            why,
            f"offsetmgr reset {group} {_options(anew)} --to-earliest --execute",
        )
    if expired:
        before = time_before(min(step.at_s for step in expired.values()))
        yield _trouble(
            f"{_places(expired)}: the offsets expired, or somebody deleted them",
            f"{why}; to bring them back:",
            f"offsetmgr reset {group} {_options(expired)} --to-history {before} --execute",
        )


def _topics_gone(facts: Facts, group: str, each: GroupFacts) -> Iterable[Finding]:
    gone = [where for where in each.offsets if does_not_exist(facts.logs.get(where))]
    if gone:
        yield _trouble(
            f"{_places(gone)}: committed, but there is no such partition; Kafka has not deleted it",
            "lag tools alert on it for ever; for a new topic of that name it is a wrong start",
            f"offsetmgr delete-offsets {group} {_options(gone)} --execute",
        )


def _offsets(_facts: Facts, group: str, each: GroupFacts) -> Iterable[Finding]:
    if isinstance(each.committed, OffsetManagerError):
        yield _unknown(each.committed, f"nothing can be said of group {group}")
    elif not each.committed:
        yield _trouble(
            f"group {group} has no committed offsets",
            "a job without a checkpoint starts anew: it repeats or skips records",
            f"offsetmgr history {group}",
        )


_CHECKS: Final[tuple[Callable[[Facts, str, GroupFacts], Iterable[Finding]], ...]] = (
    _offsets,
    _rights,
    _members,
    _commits,
    _stuck,
    _retention,
    _regressions,
    _outside_log,
    _deleted,
    _topics_gone,
)


def _trouble(what: str, why: str, mend: str, check: str = "") -> Finding:
    """Return a finding of ``check``; ``examine`` names the checks of a group."""
    return Finding(Level.TROUBLE, check, what, why, mend)


def _unknown(error: OffsetManagerError, why: str) -> Finding:
    mend = f"grant READ on {TOPIC}" if TOPIC in str(error) else "grant what the error names"
    return Finding(Level.UNKNOWN, "", f"could not be checked: {error}", why, mend)


def _by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    numbers = defaultdict(list)
    for topic, number in sorted(set(partitions)):
        numbers[topic].append(number)
    return numbers


def _places(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions in words, such as ``orders 0, 3``."""
    return "; ".join(f"{topic} {listed(each)}" for topic, each in _by_topic(partitions).items())


def _options(partitions: Iterable[TopicPartition]) -> str:
    return " ".join(
        f"--topic {topic}:{','.join(map(str, each))}"
        for topic, each in _by_topic(partitions).items()
    )
