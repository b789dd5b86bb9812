"""Gathers facts of a cluster, its groups and a service, and judges them.

``gather`` asks; the checks are pure.  Each check returns what it found: trouble with the command
that mends it, that it could not look, or that all is well.
"""

from __future__ import annotations

import platform
import re
import socket
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from confluent_kafka import libversion
from confluent_kafka.admin import ConfigResource, ResourceType

from offsetmgr.admin.commands import Connection, by_topic, topic_options
from offsetmgr.admin.history import Cause, CommitStep, Move, read_causes, steps
from offsetmgr.admin.service import ServiceFacts
from offsetmgr.admin.times import seconds_text, time_before, time_text
from offsetmgr.codes import Fault
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import KafkaRequestError, OffsetManagerError
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.commit_log import TOPIC, read_commits
from offsetmgr.kafka.config import INSTANCE
from offsetmgr.kafka.errors import (
    RIGHT_CODES,
    code_of,
    does_not_exist,
    grant_command,
    tried,
)
from offsetmgr.lag.measure import RecordAges, as_listed, read_groups
from offsetmgr.lag.store_reader import listings_of
from offsetmgr.text import listed, visible
from offsetmgr.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future as Pending

    from confluent_kafka.admin import BrokerMetadata

    from offsetmgr.admin.history import Causes
    from offsetmgr.admin.service import LiveManager, ServiceReader
    from offsetmgr.kafka.commit_log import CommitRecord
    from offsetmgr.lag.measure import GroupLag, PartitionLag

_EXPIRY_SHARE: Final = 0.75
"""Commits older than this part of the retention are about to expire."""
_SKEW_S: Final = 2.0
"""A difference of clocks beyond delays of requests."""
_RECENT_S: Final = 86_400.0
"""Older deletions are taken for wanted ones."""
_TURNS_S: Final = 3_600.0
"""Two programs that committed by turns longer ago have ended."""
_CONNECTIONS: Final = 64
"""Brokers to which it connects at once."""
_STEPS: Final = 6
"""Questions that follow one upon another, each with the same share of the time-out: the list of
groups, their members, their offsets, the logs, the history, and records in the logs."""
_ADVERTISED: Final = re.compile(r"/[0-9]+: Failed to resolve")
"""librdkafka's words for the address of a broker, unlike one of the bootstrap servers."""
_ADDRESSES: Final = (
    "set advertised.listeners of the brokers to addresses that their clients can reach, or make "
    "the names known here (DNS, /etc/hosts)"
)
_NOT_COMMITTED: Final = "its offsets cannot be committed"
_READ_AGAIN: Final = "what was processed already is read again from there"
_STARTS_ANEW: Final = "a job without a checkpoint starts anew: it repeats or skips records"
_DIRECT: Final = Connection()
_RETENTION: Final = "offsets.retention.minutes"
_UNANSWERED: Final = frozenset({Fault.BROKER, Fault.NETWORK})
_T = TypeVar("_T")


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
    """The command that mends it, to be pasted into a shell, or what to do if there is none."""
    group: str = ""


@dataclass(frozen=True)
class Facts:
    """The input of all checks."""

    now_s: float
    versions: Mapping[str, str]
    cluster: str | OffsetManagerError
    """The cluster and its brokers in words."""
    stuck_after_s: float = 600.0
    retention_s: float | OffsetManagerError = 7 * 86_400.0
    groups: Mapping[str, GroupLag] = field(default_factory=dict)
    """Those that committed nothing for long have their lag without the markers of transactions."""
    topic_rights: Mapping[str, frozenset[str] | OffsetManagerError] = field(default_factory=dict)
    history: Mapping[str, Sequence[CommitStep]] | OffsetManagerError = field(default_factory=dict)
    service: ServiceFacts | OffsetManagerError | None = None
    """None where no service was named."""
    unreachable: Sequence[str] = ()
    """The brokers whose advertised addresses lead nowhere from here, in words."""
    silent: Sequence[str] = ()
    """Those that take connections and answer nothing."""
    leaderless: Mapping[TopicPartition, Sequence[int]] = field(default_factory=dict)
    """Partitions without a leader, with the brokers that hold their replicas."""
    causes: Causes = field(default_factory=dict)
    """The causes of the deletions of the last day."""
    unlisted: Sequence[OffsetManagerError] = ()
    """Errors of brokers whose groups are missing."""
    connection: Connection = _DIRECT
    """The options for commands that are printed."""
    servers: str = ""
    """Kafka's bootstrap servers."""

    def managers(self, group: str) -> list[LiveManager]:
        """Return the live managers of a group in the service; none if none is known."""
        found = self.service.managers if isinstance(self.service, ServiceFacts) else ()
        return [each for each in found if each.group == group]

    def steps(self, group: str) -> Sequence[CommitStep]:
        """Return the steps of a group, none if they could not be read."""
        return () if isinstance(self.history, OffsetManagerError) else self.history.get(group, ())


def gather(
    config: Mapping[str, object],
    groups: Iterable[str] | None,
    service: ServiceReader | None,
    *,
    stuck_after_s: float = 600.0,
    timeout_s: float = 10.0,
    connection: Connection = _DIRECT,
) -> Facts:
    """Return the facts of ``groups``, of all groups of the cluster where None.

    What could not be learned within ``timeout_s``, which is for all of it, stands in them as an
    error.  ``config`` is librdkafka's, ``connection`` for the commands that are printed.  Raises
    InvalidValueError where librdkafka does not take a setting.
    """
    versions = {name: metadata.version(name) for name in ("offsetmgr", "confluent-kafka")}
    versions |= {"librdkafka": libversion()[0], "Python": platform.python_version()}
    servers = str(config["bootstrap.servers"])
    deadline, share_s = Deadline(timeout_s, "timeout_s"), timeout_s / _STEPS
    with (
        ClusterReader(config, timeout_s=share_s) as reader,
        ThreadPoolExecutor() as pool,
        ThreadPoolExecutor(_CONNECTIONS) as connections,
    ):
        answer = pool.submit(lambda: None if service is None else tried(service.facts))
        began_s = time.monotonic()
        cluster = tried(reader.metadata, f"connection to Kafka at {visible(servers)}")
        took_ms = (time.monotonic() - began_s) * 1_000
        if isinstance(cluster, OffsetManagerError):
            asked = answer.result()
            return Facts(time.time(), versions, cluster, service=asked, connection=connection)
        addresses = {number: f"{each.host}:{each.port}" for number, each in cluster.brokers.items()}
        brokers = ", ".join(addresses.values())
        text = f"cluster {cluster.cluster_id} ({brokers}) answered in {took_ms:.0f} ms"
        connected = connections.map(
            partial(_unreachable, timeout_s=share_s), cluster.brokers.values()
        )
        asked_brokers = pool.submit(_retentions_s, reader, cluster.brokers)
        names, unlisted = _names(reader, groups)
        found, _ = read_groups(reader, names)
        found |= as_listed(reader, found.values())
        # Their coordinators, which answer, lead the partitions with their history.
        readable = {name: each for name, each in found.items() if each.error is None}
        left_s = max(deadline.left_s - share_s, share_s)
        history, now_s = tried(_history, config, readable, left_s), time.time()
        topics = {each.topic for group in found.values() for each in group.offsets}
        rights = pool.submit(reader.topic_rights, topics)
        walked = {} if isinstance(history, OffsetManagerError) else history
        deleted = [step for each in walked.values() for step in deletions(each, now_s).values()]
        causes = pool.submit(read_causes, reader, deleted)
        leaderless = {
            TopicPartition(topic, number): list(partition.replicas)
            for topic, described in cluster.topics.items()
            for number, partition in described.partitions.items()
            if partition.leader < 0 and (groups is None or topic in {TOPIC, *topics})
        }
        last_s = {name: each[-1].at_s for name, each in walked.items() if each}
        quiet = (found[name] for name, at_s in last_s.items() if now_s - at_s > stuck_after_s)
        aged = RecordAges(reader).fill(quiet, now_s)
        retentions = asked_brokers.result()
        unreachable = dict(zip(addresses, connected, strict=True))
        return Facts(
            now_s=now_s,
            versions=versions,
            cluster=text,
            stuck_after_s=stuck_after_s,
            retention_s=_shortest(retentions),
            groups=found | {group.name: group for group in aged},
            topic_rights=rights.result(),
            history=history,
            service=answer.result(),
            unreachable=list(filter(None, unreachable.values())),
            silent=[
                f"broker {number} ({visible(addresses[number])})"
                for number, each in retentions.items()
                if isinstance(each, KafkaRequestError) and each.info.fault in _UNANSWERED
                if not unreachable[number]
            ],
            leaderless=leaderless,
            causes=causes.result(),
            unlisted=unlisted,
            connection=connection,
            servers=servers,
        )


def _unreachable(broker: BrokerMetadata, timeout_s: float) -> str:
    """Return why a broker cannot be connected to at the address that it advertises, or nothing."""
    address = f"broker {broker.id} advertises {visible(str(broker.host))}:{broker.port}, "
    try:
        socket.create_connection((broker.host, broker.port), timeout_s).close()
    except (OSError, UnicodeError, OverflowError) as error:
        is_name = isinstance(error, (socket.gaierror, UnicodeError))
        why = "a name that cannot be resolved here" if is_name else "where nothing answers"
        return f"{address}{why} ({getattr(error, 'strerror', None) or error})"
    return ""


def _names(
    reader: ClusterReader, groups: Iterable[str] | None
) -> tuple[list[str], Sequence[OffsetManagerError]]:
    """Return the groups to look at, by default all that commit offsets."""
    if groups is not None:
        return list(groups), ()
    found, errors = listings_of(reader.groups)
    return [each.name for each in found if each.has_offsets], errors


def _retentions_s(
    reader: ClusterReader, brokers: Iterable[int]
) -> dict[int, float | OffsetManagerError]:
    """Return the retention of each broker, which has a setting of its own, or why not."""
    what = f"setting {_RETENTION} of the brokers"
    resources = {number: ConfigResource(ResourceType.BROKER, str(number)) for number in brokers}
    sent = {
        number: reader.admin.describe_configs([each])[each] for number, each in resources.items()
    }
    deadline = Deadline(reader.timeout_s)

    def read(pending: Pending[Any]) -> float:
        found = reader.result(pending, what, right="DESCRIBE_CONFIGS", deadline=deadline)
        try:
            return float(found[_RETENTION].value) * 60.0
        except (KeyError, TypeError, ValueError):  # not every broker is Apache Kafka
            raise OffsetManagerError(f"{what}: Kafka does not say") from None

    return {number: tried(read, pending) for number, pending in sent.items()}


def _shortest(retentions: Mapping[int, float | OffsetManagerError]) -> float | OffsetManagerError:
    """Return the shortest retention of the brokers that answer, or an error if none does."""
    known = [each for each in retentions.values() if isinstance(each, float)]
    return min(known) if known else next(iter(retentions.values()))


def _history(
    config: Mapping[str, object], groups: Mapping[str, GroupLag], timeout_s: float
) -> dict[str, list[CommitStep]]:
    records: dict[str, list[CommitRecord]] = {group: [] for group in groups}
    for record in read_commits(config, records.keys(), timeout_s=timeout_s):
        records[record.key.group].append(record)
    now_s = time.time()
    return {name: list(steps(each, groups[name].offsets, now_s)) for name, each in records.items()}


def examine(facts: Facts) -> list[Finding]:
    """Return the findings of all checks, trouble first."""
    found = []
    for check in _CHECKS:
        found += [each._replace(check=_name_of(check)) for each in check(facts)]
    for name, group in facts.groups.items():
        is_read = group.error is None
        well = [Finding(Level.OK, "", f"group {_name(name)}")] if is_read else []
        for group_check in _GROUP_CHECKS if is_read else (_commits,):
            seen = list(group_check(facts, group)) or well
            found += [each._replace(check=_name_of(group_check), group=name) for each in seen]
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
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    if isinstance(facts.cluster, OffsetManagerError):
        text, check = str(facts.cluster), facts.connection.command("config check")
        yield _trouble(
            text,
            "without Kafka nothing is committed, and nothing else can be checked",
            _ADDRESSES if _ADVERTISED.search(text) else check,
        )
    else:
        yield Finding(Level.OK, "", f"{facts.cluster}; {versions}")
    for error in facts.unlisted:
        yield _unknown(error, "the groups of a broker that does not answer are missing here")


def _brokers(facts: Facts) -> Iterable[Finding]:
    if facts.unreachable:
        yield _trouble(
            "; ".join(facts.unreachable),
            "clients connect to the addresses that brokers advertise: groups and partitions of "
            "these brokers can be neither read nor committed from here",
            _ADDRESSES,
        )
    if facts.silent:
        yield _trouble(
            f"{'; '.join(facts.silent)}: takes connections, and does not answer",
            "groups and partitions of these brokers can be neither read nor committed",
            "look at the log of the broker and at its machine; restart it if it hangs",
        )


def _leaders(facts: Facts) -> Iterable[Finding]:
    if facts.leaderless:
        brokers = sorted({broker for each in facts.leaderless.values() for broker in each})
        yield _trouble(
            f"without a leader: {_places(facts.leaderless)}",
            "nobody can read or write them; groups that Kafka keeps in partitions of "
            f"{TOPIC} without a leader cannot commit either",
            f"start one of the brokers that hold them: {listed(brokers)}",
        )


def _service(facts: Facts) -> Iterable[Finding]:
    service = facts.service
    if isinstance(service, OffsetManagerError):
        yield _trouble(
            str(service),
            "its clients keep their newest offsets, and commit nothing until it is back",
            facts.connection.command("serve"),
        )
        return
    if service is None:
        return
    if not service.ready:
        problem = "is stopping" if service.draining else f"is not ready: {service.kafka}"
        yield _trouble(
            f"the service at {service.url} {problem}",
            "nothing is committed meanwhile; clients keep their newest offsets",
            facts.connection.command("config check"),
        )
    elif not service.fenced_groups:
        clients = sorted({each.client for each in service.managers})
        named = f"clients {listed(clients)}" if clients else "no clients"
        yield Finding(Level.OK, "", f"{service.url} is ready, with {named}")
    if service.fenced_groups:
        yield _trouble(
            f"another service has taken {service.fenced_groups} groups over from {service.url}",
            "this service commits nothing of those groups any more",
            "stop one of the two services, then restart this one",
        )
    for checkpoint, problem in service.failing_checkpoints.items():
        yield _trouble(
            f"checkpoint {checkpoint}, which the service follows: {problem}",
            "its group does not show how far the query has come",
            facts.connection.command("spark status", None, "--checkpoint", checkpoint),
        )


def _unread(facts: Facts) -> Iterable[Finding]:
    for fact, why in (
        (
            facts.history,
            "groups that are stuck, or whose offsets fell or were deleted, are missing",
        ),
        (facts.retention_s, "groups whose offsets expire soon are missing here"),
    ):
        if facts.groups and isinstance(fact, OffsetManagerError):
            yield _unknown(fact, why)


def _unread_groups(facts: Facts) -> Iterable[Finding]:
    errors = {name: each.error for name, each in facts.groups.items() if each.error is not None}
    for names in _by_code(errors):
        group = names[0] if len(names) == 1 else ""
        why = f"nothing can be said of group {listed(list(map(_name, names)))}"
        yield _unknown(errors[names[0]], why)._replace(group=group)


def _clock(facts: Facts) -> Iterable[Finding]:
    steps = (step for name in facts.groups for step in facts.steps(name))
    ahead_s = max((step.at_s for step in steps), default=0.0) - facts.now_s
    if ahead_s > _SKEW_S:
        yield _trouble(
            f"the newest commit is {seconds_text(ahead_s)} in the future: a clock is wrong",
            "resets by time and the age of commits are off by as much",
            "set the clocks of this machine and of the brokers by NTP",
        )


# Of one group.


def _offsets(facts: Facts, group: GroupLag) -> Iterable[Finding]:
    name = _name(group.name)
    unread = {
        each.partition: each.error
        for each in group.partitions
        if each.committed and each.error is not None and not does_not_exist(each.error)
        if each.partition not in facts.leaderless
    }
    hidden = [step for step in facts.steps(group.name) if step.move is Move.HIDDEN]
    unread |= {step.partition: OffsetManagerError(Cause.TRANSACTION.value) for step in hidden}
    yield from _unknowns(unread, f"not judged in group {name}")
    # Members may not have committed yet; what is empty and never had offsets was only tried out.
    state = group.description.state if group.description else "Dead"
    had_offsets = not group.members and facts.steps(group.name)
    if not group.offsets and (state == "Dead" or had_offsets):
        yield _trouble(
            f"group {name} has no committed offsets",
            _STARTS_ANEW,
            facts.connection.command("history", group.name),
        )


def _rights(facts: Facts, group: GroupLag) -> Iterable[Finding]:
    for topic in sorted({where.topic for where in group.offsets}):
        rights = facts.topic_rights.get(topic, frozenset())
        if isinstance(rights, OffsetManagerError):
            if not does_not_exist(rights):
                yield _unknown(rights, _NOT_COMMITTED)
        elif "READ" not in rights:
            yield _lacks_read(facts, "topic", topic, topic)
    allowed = group.description.rights if group.description else frozenset()
    if allowed and "READ" not in allowed:
        yield _lacks_read(facts, "group", group.name, _name(group.name))


def _lacks_read(facts: Facts, kind: str, name: str, shown: str) -> Finding:
    grant = grant_command("READ", kind, name, facts.servers)
    return _trouble(f"this user lacks READ on {kind} {shown}", _NOT_COMMITTED, grant)


def _members(facts: Facts, group: GroupLag) -> Iterable[Finding]:
    # A service with a fence is the only member of its groups.
    members = [one for one in group.members if one.group_instance_id != INSTANCE]
    if not members:
        return
    named = listed([f"{one.client_id} (host {one.host.lstrip('/')})" for one in members])
    what = f"group {_name(group.name)} has live members: {named}"
    clients = sorted({one.client for one in facts.managers(group.name)})
    if not clients:
        yield Finding(Level.OK, "", f"{what}; commits and resets of others are refused")
        return
    yield _trouble(
        f"{what}; client {listed(clients)} of the service commits it too",
        "Kafka takes commits from members alone: those of the service are refused",
        "stop these consumers, or give them or the job another group",
    )


def _commits(facts: Facts, group: GroupLag) -> Iterable[Finding]:
    failing = [one for one in facts.managers(group.name) if one.error]
    for reason in sorted({one.error for one in failing}):
        same = [one for one in failing if one.error == reason]
        yield _trouble(
            f"client {listed(sorted({one.client for one in same}))} reports of "
            f"{_places(one.partition for one in same)}: {reason}",
            "the group does not show, or not yet, how far the job has come",
            "mend what the error names; the service tries again by itself",
        )


def _stuck(facts: Facts, group: GroupLag) -> Iterable[Finding]:
    seen = facts.steps(group.name)
    quiet_s = facts.now_s - seen[-1].at_s if seen else 0.0
    behind = [each for each in group.partitions if each.lag]
    if quiet_s <= facts.stuck_after_s or not behind:
        return
    since = f"nothing was committed to group {_name(group.name)} for {seconds_text(quiet_s)}"
    held = [each for each in behind if each.held_back]
    waiting = [each for each in behind if not each.held_back]
    if waiting:
        yield _trouble(
            f"{since}, and {_records(waiting)}",
            "the job has stopped, hangs, or cannot commit",
            "look at the job, and at offsetmgr spark status --checkpoint PATH; start it again",
        )
    if held:
        yield _trouble(
            f"{since}, and {_records(held)} behind an open transaction",
            "a consumer that reads committed records alone waits for its end",
            "end the producer's transaction; Kafka's own kafka-transactions finds and aborts it",
        )


def _retention(facts: Facts, group: GroupLag) -> Iterable[Finding]:
    if isinstance(facts.retention_s, OffsetManagerError) or group.members:
        return  # the offsets of a group with members do not expire
    last = {step.partition: step.at_s for step in facts.steps(group.name)}
    ages = {where: facts.now_s - last[where] for where in group.offsets if where in last}
    old = {where: s for where, s in ages.items() if s > _EXPIRY_SHARE * facts.retention_s}
    if old:
        age_s = max(old.values())
        left = seconds_text(facts.retention_s - age_s)
        options = "--all-topics", "--to-current"
        yield _trouble(
            f"the offsets of {_places(old)} were last committed {seconds_text(age_s)} ago; "
            f"Kafka may forget them in {left}",
            f"{_STARTS_ANEW}; to commit them again:",
            facts.connection.command("reset", group.name, *options, execute=True),
        )


def _turns(facts: Facts, group: GroupLag) -> Iterable[Finding]:
    turns = by_turns(facts.steps(group.name), facts.now_s)
    if turns:
        first = min(turns.values(), key=lambda step: step.at_s)
        yield _trouble(
            f"two programs commit group {_name(group.name)} by turns: {_places(turns)} went back "
            f"and forth, first at {_fall(first)}",
            "each overwrites the other's offsets: after a restart either repeats or skips records",
            "stop one of the two, or give it a group of its own; with the setting fence = true "
            "Kafka refuses a second service",
        )


def by_turns(steps: Iterable[CommitStep], now_s: float) -> dict[TopicPartition, CommitStep]:
    """Return the partitions that two programs committed by turns in the last hour.

    With the first step backwards of each.  Both programs make progress: the partition falls again
    and again, each time to a higher offset, and between two falls it passes the former height in a
    single commit, or it falls three times.  A reset, or a job that reads again, falls once.
    """
    recent: dict[TopicPartition, list[CommitStep]] = defaultdict(list)
    for step in steps:
        if now_s - step.at_s <= _TURNS_S:
            recent[step.partition].append(step)
    turns = {where: _first_turn(each) for where, each in recent.items()}
    return {where: step for where, step in turns.items() if step is not None}


def _first_turn(steps: Iterable[CommitStep]) -> CommitStep | None:
    """Return the first step backwards of one partition if two programs commit it by turns."""
    first: CommitStep | None = None
    low = high = 0  # of the last fall
    climbed = 0  # since then beyond its height: 2 in a single commit, 1 in several
    sure = 0
    for step in steps:
        before, after = step.before, step.after
        if before is None or after is None:
            first = None
        elif step.move is Move.BACKWARD:
            if first is None or not climbed or after <= low:
                first, sure = step, 0
            else:
                sure += climbed
            if sure > 1:
                return first
            low, high, climbed = after, before, 0
        elif first is not None and after > high >= before:
            climbed = 2 if before == low else 1
    return None


def _regressions(facts: Facts, group: GroupLag) -> Iterable[Finding]:
    turns = by_turns(facts.steps(group.name), facts.now_s)
    highest: dict[TopicPartition, CommitStep] = {}
    for step in facts.steps(group.name):
        where = step.partition
        if step.move is Move.DELETED:  # perhaps with its topic: what came before is of another log
            highest.pop(where, None)
        if step.move is Move.BACKWARD and where not in turns:
            highest[where] = max(highest.get(where, step), step, key=lambda fall: fall.before or 0)
    fallen = [
        step
        for where, step in highest.items()
        if where in group.offsets and group.offsets[where].offset < (step.before or 0)
    ]
    if fallen:
        first = min(fallen, key=lambda step: step.at_s)
        places = [step.partition for step in fallen]
        yield _trouble(
            f"{_places(places)} went backwards, first at {_fall(first)}",
            f"{_READ_AGAIN}; to go back to where they were:",
            _reset(facts, group, places, "--to-history", time_before(first.at_s)),
        )


def _fall(step: CommitStep) -> str:
    return f"{time_text(step.at_s)} ({step.partition} from {step.before} to {step.after})"


def _outside_log(facts: Facts, group: GroupLag) -> Iterable[Finding]:
    outside = [each for each in group.partitions if each.out_of_range]
    beyond = [each.partition for each in outside if each.is_beyond_end]
    expired = [each.partition for each in outside if not each.is_beyond_end]
    if beyond:
        yield _trouble(
            f"{_places(beyond)}: committed beyond the end of the log; the topic was recreated, or "
            "the offset is wrong",
            "lag is shown as 0, and records up to that offset are skipped",
            _reset(facts, group, beyond, "--to-earliest"),
        )
    if expired:
        yield _trouble(
            f"{_places(expired)}: committed before the start of the log; records expired unread",
            "a job that starts there fails (failOnDataLoss) or skips to the start of the log",
            _reset(facts, group, expired, "--to-earliest"),
        )


def _deleted(facts: Facts, group: GroupLag) -> Iterable[Finding]:
    found: dict[Cause, list[TopicPartition]] = defaultdict(list)
    unread: dict[TopicPartition, OffsetManagerError] = {}
    deleted = deletions(facts.steps(group.name), facts.now_s)
    for where, step in deleted.items():
        cause = facts.causes.get(step, Cause.OTHER)
        if where in group.offsets:
            continue
        if isinstance(cause, OffsetManagerError):
            unread[where] = cause
        else:
            found[cause].append(where)
    yield from _unknowns(unread, "it is not known why the offsets were deleted")
    if gone := found[Cause.TOPIC_DELETED]:
        yield _trouble(
            f"{_places(gone)}: the topic was deleted, and Kafka deleted the offsets with it",
            "a job that reads it fails, or waits for it",
            "take the topic out of the job; in Kafka there is nothing to mend",
        )
    if recreated := found[Cause.TOPIC_RECREATED]:
        yield _trouble(
            f"{_places(recreated)}: the topic was recreated, and Kafka deleted the offsets",
            _STARTS_ANEW,
            _reset(facts, group, recreated, "--to-earliest"),
        )
    if expired := found[Cause.OTHER]:
        before = time_before(min(deleted[where].at_s for where in expired))
        yield _trouble(
            f"{_places(expired)}: the offsets expired, or somebody deleted them",
            f"{_STARTS_ANEW}; to bring them back:",
            _reset(facts, group, expired, "--to-history", before),
        )


def _topics_gone(facts: Facts, group: GroupLag) -> Iterable[Finding]:
    gone = [p.partition for p in group.partitions if p.committed and does_not_exist(p.error)]
    if gone:
        options = topic_options(gone)
        yield _trouble(
            f"{_places(gone)}: committed, but the topic does not have it; Kafka has not deleted it",
            "lag tools alert on it forever; for a new topic of that name it is a wrong start",
            facts.connection.command("delete-offsets", group.name, *options, execute=True),
        )


_CHECKS: Final[tuple[Callable[[Facts], Iterable[Finding]], ...]] = (
    _connection,
    _brokers,
    _leaders,
    _service,
    _unread,
    _unread_groups,
    _clock,
)
_GROUP_CHECKS: Final[tuple[Callable[[Facts, GroupLag], Iterable[Finding]], ...]] = (
    _offsets,
    _rights,
    _members,
    _commits,
    _stuck,
    _retention,
    _turns,
    _regressions,
    _outside_log,
    _deleted,
    _topics_gone,
)


def _trouble(what: str, why: str, mend: str) -> Finding:
    """Return a finding; ``examine`` adds its check and its group."""
    return Finding(Level.TROUBLE, "", what, why, mend)


def _unknown(error: OffsetManagerError, why: str) -> Finding:
    mend = "look at the brokers and the network to them, then ask again"
    if code_of(error) in RIGHT_CODES:
        mend = "grant what the error names"
    return Finding(Level.UNKNOWN, "", f"could not be checked: {error}", why, mend)


def _unknowns(errors: Mapping[TopicPartition, OffsetManagerError], why: str) -> Iterable[Finding]:
    """Return a finding for each code among the errors of some partitions."""
    for same in _by_code(errors):
        yield _unknown(errors[same[0]], f"{_places(same)}: {why}")


def _by_code(errors: Mapping[_T, OffsetManagerError]) -> Iterable[list[_T]]:
    """Return the keys of ``errors``, those with the same code together."""
    found: dict[object, list[_T]] = defaultdict(list)
    for key, error in errors.items():
        found[code_of(error) or str(error)].append(key)
    return found.values()


def _name_of(check: Callable[..., Iterable[Finding]]) -> str:
    return check.__name__.strip("_").replace("_", " ")


def _name(group: str) -> str:
    return visible(group) or "''"


def _places(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions in words, such as ``orders 0, 3``."""
    return "; ".join(f"{topic} {listed(each)}" for topic, each in by_topic(partitions).items())


def _records(partitions: Sequence[PartitionLag]) -> str:
    records = sum(each.lag or 0 for each in partitions)
    return f"{records} records wait in {_places(each.partition for each in partitions)}"


def _reset(facts: Facts, group: GroupLag, partitions: Iterable[TopicPartition], *mode: str) -> str:
    options = topic_options(partitions)
    return facts.connection.command("reset", group.name, *options, *mode, execute=True)
