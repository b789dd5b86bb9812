"""The consumer groups, topics and logs of a Kafka cluster; nothing here changes them.

A group costs one request, a leader one for each end of the logs it leads, whatever the number of
partitions.
"""

from __future__ import annotations

import os
import time
import warnings
from concurrent.futures import Future as Pending
from concurrent.futures import TimeoutError as NotAnsweredError
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType

from offsetmgr.answers import Failure, FetchResult, GroupMember
from offsetmgr.codes import TIMED_OUT, TOPIC_REFUSED, TRANSPORT, UNKNOWN_TOPIC
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import ManagerStoppedError, OffsetManagerError
from offsetmgr.kafka.clients import (
    CLOSE_S,
    CLOSED,
    Closing,
    check_thread_room,
    in_short_waits,
    open_admin,
)
from offsetmgr.kafka.config import checked_config, client_config
from offsetmgr.kafka.connections import LIBRDKAFKA_S, MOVED_WAIT_S
from offsetmgr.kafka.errors import (
    code_of,
    does_not_exist,
    failure_of,
    known,
    request_error,
    tried,
)
from offsetmgr.kafka.librdkafka import CONSUMER, GroupClient
from offsetmgr.kafka.log_reader import next_records
from offsetmgr.kafka.reports import ConnectionReports
from offsetmgr.kafka.topics import (
    EARLIEST,
    LATEST,
    NO_LEADER,
    NO_LEADERS,
    id_of,
    list_offsets,
)
from offsetmgr.text import visible
from offsetmgr.types import (
    MAX_OFFSET,
    PartitionRange,
    TopicPartition,
    check_existing_group,
    check_list,
    check_timeout,
    check_topic,
    check_topic_partition,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from confluent_kafka.admin import AdminClient, ClusterMetadata

    from offsetmgr.errors import KafkaRequestError
    from offsetmgr.kafka.log_reader import NextRecord
    from offsetmgr.types import OffsetAndMetadata

_STATES: Final = {
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
}
"""The states that Kafka's tools do not write as one capitalised word."""

_MOVING: Final = frozenset({5, 6, 9, 14, 15, 16, 56, 74, 75, 78})
"""Codes of a broker that does not lead the partition or coordinate the group yet, or no longer,
such as just after the topic was created or the broker started."""

_DROPPED: Final = frozenset({TRANSPORT, 7, 13})
"""Codes of a request whose connection ended, as it does where a broker stops or has hung."""
_DROPPED_WAIT_S: Final = 0.2

_OFFSET_TYPES: Final = frozenset({"classic", "consumer", "streams", "unknown", "store"})
"""Types of groups that commit offsets; ``unknown`` is from brokers before Kafka 3.7."""

_NO_OFFSET: Final = -1001
"""librdkafka's OFFSET_INVALID, of a partition whose leader did not answer."""

_SOME_SHARE: Final = 0.8
"""Share of the time-out after which librdkafka ends a question to many brokers: until then it gives
no answer at all, so that one broker that hangs would hide those of the others."""
_LEAST_S: Final = 0.1
_TRY_SHARE: Final = 0.4
"""Share of the time-out for the broker that describes topics: the controller, which may hang.  Then
a new client learns of another one, and does not wait for a connection to the first."""

_LONGEST_S: Final = 3_600.0 - LIBRDKAFKA_S
"""librdkafka takes an hour as the longest time-out of a request."""

_INVALID_GROUP: Final = 24

_NAME_CHARS: Final = 100
"""A longer name is cut in a message."""

_K = TypeVar("_K")
_T = TypeVar("_T")


class GroupListing(NamedTuple):
    """A group of the cluster, as a list of all groups names it."""

    name: str
    state: str
    """As Kafka's tools write it: Stable, Empty, PreparingRebalance, CompletingRebalance, Dead;
    Unknown if no request tells it."""
    type: str
    """``classic``; ``consumer`` if the group rebalances by KIP-848; ``streams``; ``share``; or the
    protocol of another program, such as ``connect``."""

    @property
    def has_offsets(self) -> bool:
        """True for a group that commits offsets, and so has a lag."""
        return self.type in _OFFSET_TYPES


class GroupListings(NamedTuple):
    """The groups that the answering brokers coordinate."""

    groups: list[GroupListing]
    errors: tuple[OffsetManagerError, ...] = ()
    """Why brokers did not answer, whose groups are missing; each cause once."""


class GroupDescription(NamedTuple):
    """State and members of a group."""

    state: str
    """As of ``GroupListing``; Dead where there is no such group."""
    type: str
    coordinator: str
    """Its broker, as ``host:port (id)``; empty where it is not known."""
    assignor: str
    members: tuple[GroupMember, ...]
    rights: frozenset[str] = frozenset()
    """Operations that Kafka allows this user on the group, such as READ; none if it is Dead."""


_NAMELESS: Final = GroupDescription("Empty", "classic", "", "", ())
"""The group without a name: Kafka lets nobody join it."""


class ClusterReader(Closing):
    """Answers questions about groups and logs.  Thread-safe; every method waits for Kafka.

    A failure of one group or partition is its answer, an error in the place of its value.  A
    failure of the whole question is raised.  Both are KafkaRequestError.
    """

    def __init__(self, config: str | Mapping[str, object], *, timeout_s: float = 10.0) -> None:
        """``config`` is the bootstrap servers (``host:port,host:port``) or librdkafka's settings.

        Each method answers within ``timeout_s`` seconds, and within an hour.  Connects in the
        background.  Raises InvalidValueError if librdkafka refuses a setting.
        """
        settings = self._settings = checked_config(config)
        self._process = os.getpid()
        self.timeout_s = min(check_timeout(timeout_s, "timeout_s"), _LONGEST_S)
        self._reports = ConnectionReports()
        check_thread_room()
        self._admin: AdminClient | None = open_admin(settings, self._reports)
        self.group_client = GroupClient(client_config(settings), CONSUMER, self._reports)
        """For committed offsets, where ``admin`` is not safe: see librdkafka.py."""

    @property
    def admin(self) -> AdminClient:
        """confluent-kafka's own client, for requests that have no method here.

        Raises ManagerStoppedError after ``close``, and in the child of a fork.
        """
        self.check_process()  # else librdkafka would end it
        if self._admin is None:
            raise ManagerStoppedError(CLOSED)
        return self._admin

    def metadata(self, what: str) -> ClusterMetadata:
        """Return the brokers, and all topics with the leaders of their partitions.

        Raises KafkaRequestError, about ``what``.
        """
        try:
            ask: Callable[[float], ClusterMetadata] = partial(self.admin.list_topics, None)
            return in_short_waits(ask, Deadline(self.timeout_s))
        except KafkaException as error:
            self.admin.poll(0)  # passes failed connections on to the reports
            failure = self._reports.timed_out()
            raise request_error(what, failure if failure.detail else error) from None

    def groups(self) -> GroupListings:
        """Return the groups of the cluster, sorted by name, and the errors of silent brokers.

        Raises KafkaRequestError if no broker answered.
        """
        what = "list of consumer groups"
        deadline = Deadline(self.timeout_s * _SOME_SHARE)
        for _ in deadline.polls():
            limit_s = max(deadline.left_s, _LEAST_S)
            listed = self.result(self.admin.list_consumer_groups(request_timeout=limit_s), what)
            failures = [self._error(what, each) for each in listed.errors]
            if not (_DROPPED | _MOVING).intersection(map(code_of, failures)):
                break
        if failures and not listed.valid:
            raise failures[0]
        found = {
            each.group_id: GroupListing(each.group_id, _state(each.state), each.type.name.lower())
            for each in listed.valid
        }
        if not failures:
            failures = self._add_other_groups(found)
        errors = {str(each): each for each in failures}
        return GroupListings(sorted(found.values()), tuple(errors.values()))

    def _add_other_groups(self, found: dict[str, GroupListing]) -> list[KafkaRequestError]:
        """Add the groups that librdkafka's list of consumer groups leaves out; return failures.

        They belong to other protocols, such as Kafka Connect's, or to types that librdkafka does
        not know; asked for such a group as for a classic one, Kafka says that it is dead.
        """
        what = "list of share groups and groups of other programs"
        try:
            with warnings.catch_warnings():  # its successor leaves out just those
                warnings.simplefilter("ignore", DeprecationWarning)
                listed: list[Any] = self.admin.list_groups(timeout=self.timeout_s)
        except KafkaException as error:
            return [self._error(what, error)]
        others = {each.id: each for each in listed if each.id not in found}
        newer: list[str] = []
        for name, group in others.items():
            if group.protocol_type not in {"", "consumer"}:
                found[name] = GroupListing(name, group.state, group.protocol_type)
            elif group.state == "Dead" and not group.protocol_type and group.error is None:
                newer.append(name)
        for name, offsets in self.committed(newer).items():
            # A share group commits none; if that is not known, the group is read, and says why.
            kind = "streams" if offsets else "share"
            found[name] = GroupListing(name, "Unknown", kind)
        return [self._error(what, each.error) for each in others.values() if each.error]

    def describe(self, groups: Iterable[str]) -> dict[str, GroupDescription | OffsetManagerError]:
        """Return state and members of ``groups``; the state of a missing group is Dead."""

        def send(asked: list[str]) -> Mapping[str, Pending[Any]]:
            # One by one: of several groups librdkafka answers none until it can answer all.
            describe = partial(
                self.admin.describe_consumer_groups,
                include_authorized_operations=True,
                request_timeout=self.limit_s,
            )
            return {group: describe([group])[group] for group in asked}

        what = "description of group"
        found = self._ask(groups, send, what, _description, check_existing_group)
        if code_of(found.get("")) == _INVALID_GROUP:
            # Kafka describes no group without a name, but lists one and keeps its offsets.
            found[""] = _NAMELESS if self.committed([""])[""] else _NAMELESS._replace(state="Dead")
        return found

    def committed(
        self, groups: Iterable[str]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | OffsetManagerError]:
        """Return all committed offsets of ``groups``; none for a group that does not exist."""

        def send(asked: list[str]) -> Mapping[str, Pending[Any]]:
            self.check_process()
            fetch = self.group_client.fetch
            return {group: fetch(group, None, self.limit_s, stable=False) for group in asked}

        what = "committed offsets of group"
        return self._ask(groups, send, what, self._committed_of, check_existing_group)

    def stable_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of ``partitions``, for a member that takes them over.

        Raises KafkaRequestError, also while an open transaction is about to commit one of them.
        """
        self.check_process()
        pending = self.group_client.fetch(group, partitions, self.limit_s)
        answer = self.result(pending, f"committed offsets of group {group}", group)
        return self._committed_of(group, answer)

    def log_ranges(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, PartitionRange | OffsetManagerError]:
        """Return the first offset of each log, and the one after its last record."""
        wanted = list(dict.fromkeys(partitions))
        starts = self._offsets(dict.fromkeys(wanted, EARLIEST))
        # A leader that does not answer is not waited for twice.
        answered = [where for where in wanted if not isinstance(starts[where], OffsetManagerError)]
        ends = self._offsets(dict.fromkeys(answered, LATEST))

        def log(partition: TopicPartition) -> PartitionRange:
            return PartitionRange(known(starts[partition]), known(ends[partition]))

        return {partition: tried(log, partition) for partition in wanted}

    def offsets_at(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | OffsetManagerError | None]:
        """Return the first offset with a record of the given time or later; None if there is none.

        Times are milliseconds since 1970.  Negative ones, which Kafka takes for names of the ends
        of a log, stand for 1970; later ones than Kafka can note for its last moment.
        """
        known_ms = {where: min(max(ms, 0), MAX_OFFSET) for where, ms in times.items()}
        specs = {where: OffsetSpec.for_timestamp(ms) for where, ms in known_ms.items()}
        found = self._offsets(specs)
        return {where: None if offset == -1 else offset for where, offset in found.items()}

    def next_records(
        self, offsets: Mapping[TopicPartition, Collection[int]]
    ) -> dict[tuple[TopicPartition, int], NextRecord | OffsetManagerError]:
        """Return the first committed record at each of ``offsets`` or behind it.

        It needs the right READ on the topics.
        """
        return next_records(self._settings, offsets, self.timeout_s) if offsets else {}

    def partitions_of(self, topics: Iterable[str]) -> dict[str, list[int] | OffsetManagerError]:
        """Return the partition numbers of ``topics``, sorted."""
        return self._topics(topics, lambda _, found: sorted(each.id for each in found.partitions))

    def replicas_of(self, topics: Iterable[str]) -> dict[str, dict[int, int] | OffsetManagerError]:
        """Return the number of replicas of each partition of ``topics``."""
        return self._topics(
            topics, lambda _, found: {each.id: len(each.replicas) for each in found.partitions}
        )

    def topic_names(self) -> list[str]:
        """Return the names of all topics that this user may see.  Raises KafkaRequestError."""
        return list(self.metadata("list of topics").topics)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str | OffsetManagerError]:
        """Return the ids of ``topics``, which change when a topic is recreated.

        An id is empty if Kafka has none.
        """
        return self._topics(topics, lambda _, found: id_of(found.topic_id))

    def existing_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of those of ``topics`` that exist and that this user may see.

        Raises KafkaRequestError if Kafka does not answer.
        """
        return {
            topic: known(answer)
            for topic, answer in self.topic_ids(topics).items()
            if not does_not_exist(answer) and code_of(answer) != TOPIC_REFUSED
        }

    def topic_rights(self, topics: Iterable[str]) -> dict[str, frozenset[str] | OffsetManagerError]:
        """Return the operations that Kafka allows this user on ``topics``."""
        return self._topics(topics, _rights)

    def topic_settings(
        self, topics: Iterable[str]
    ) -> dict[str, dict[str, str] | OffsetManagerError]:
        """Return the settings of ``topics`` by Kafka's names, such as ``max.message.bytes``."""

        def send(asked: list[str]) -> Mapping[str, Pending[Any]]:
            resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in asked]
            sent = self.admin.describe_configs(resources, request_timeout=self.limit_s)
            return {resource.name: pending for resource, pending in sent.items()}

        def values(_topic: str, entries: Any) -> dict[str, str]:
            return {name: entry.value for name, entry in entries.items()}

        return self._ask(topics, send, "settings of topic", values, check_topic)

    def _topics(
        self, topics: Iterable[str], read: Callable[[str, Any], _T]
    ) -> dict[str, _T | OffsetManagerError]:
        clients: list[AdminClient] = []

        def send(asked: list[str]) -> Mapping[str, Pending[Any]]:
            clients.append(open_admin(self._settings, self._reports) if clients else self.admin)
            return clients[-1].describe_topics(
                TopicCollection(asked),
                include_authorized_operations=True,
                request_timeout=max(self.timeout_s * _TRY_SHARE, _LEAST_S),
            )

        return self._ask(topics, send, "description of topic", read, check_topic, {TIMED_OUT})

    def result(
        self,
        pending: Pending[Any],
        what: str,
        name: str = "",
        *,
        right: str = "DESCRIBE",
        deadline: Deadline | None = None,
    ) -> Any:
        """Wait for an answer of ``admin``; ``timeout_s`` without a deadline.

        ``name`` is the group or topic that was asked about, for which ``right`` is needed.  Raises
        KafkaRequestError.
        """
        try:
            result = pending.result(self.timeout_s if deadline is None else deadline.left_s)
        except NotAnsweredError:
            raise request_error(what, self._timed_out()) from None
        except KafkaException as error:
            raise self._error(what, error, name, right) from None
        if isinstance(result, Failure):
            raise self._error(what, result, name, right)
        self._reports.answered()
        return result

    def _timed_out(self) -> Failure:
        self.admin.poll(0)  # passes failed connections on to the reports
        failure = self._reports.timed_out()
        if failure.detail:
            return failure
        text = f"no answer from Kafka within {self.timeout_s:g} s; check the brokers and the "
        return failure._replace(detail=f"{text}network to them")

    def close(self) -> None:
        """End the connections; within 5 seconds.  In the child of a fork it does nothing."""
        if self.is_forked:
            return
        self.group_client.close(CLOSE_S)
        # Here, not in a garbage collection: the process ends where that is in librdkafka's thread.
        self._admin = None

    @property
    def limit_s(self) -> float:
        """More seconds than a request can need, for librdkafka's own time-out.

        It may abort the process where a request about a group times out in it: see connections.py.
        """
        return self.timeout_s + LIBRDKAFKA_S

    def _offsets(
        self, specs: Mapping[TopicPartition, OffsetSpec]
    ) -> dict[TopicPartition, int | OffsetManagerError]:
        deadline = Deadline(self.timeout_s * _SOME_SHARE)

        def send(asked: list[TopicPartition]) -> Mapping[TopicPartition, Pending[Any]]:
            request = {KafkaPartition(*partition): specs[partition] for partition in asked}
            limit_s = max(deadline.left_s, _LEAST_S)
            sent = list_offsets(self.admin, request, limit_s)
            return {TopicPartition(*where): pending for where, pending in sent.items()}

        def offset(where: TopicPartition, found: Any) -> int:
            if found.offset == _NO_OFFSET:
                failure = self._timed_out() if deadline.over else failure_of(TRANSPORT)
                raise request_error(f"log of {where}", failure)
            return int(found.offset)

        found = self._ask(specs, send, "log of", offset, check_topic_partition)
        unknown = [where for where, answer in found.items() if code_of(answer) == NO_LEADERS]
        topics = self.partitions_of({topic for topic, _ in unknown})
        for where in unknown:
            numbers = topics[where.topic]
            if isinstance(numbers, OffsetManagerError):
                found[where] = numbers
            else:
                code = NO_LEADER if where.partition in numbers else UNKNOWN_TOPIC
                found[where] = request_error(f"log of {where}", failure_of(code))
        return found

    def _committed_of(
        self, group: str, answer: FetchResult
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        for where, failure in answer.failures.items():
            what = f"committed offset of {where} in group {visible(group, _NAME_CHARS)}"
            raise self._error(what, failure, where.topic)
        return {where: offset for where, offset in answer.offsets.items() if offset is not None}

    def _ask(
        self,
        given: Iterable[_K],
        send: Callable[[list[_K]], Mapping[_K, Pending[Any]]],
        what: str,
        read: Callable[[_K, Any], _T],
        check: Callable[[_K], object],
        again: Collection[int] = (),
    ) -> dict[_K, _T | OffsetManagerError]:
        """Ask about names; again while there is time, where leader or coordinator is moving.

        Also after the end of a connection, and at once after an error of the codes ``again``.

        A name that no request can hold, such as of a topic in the assignment of a strange member,
        is an error of its own: Kafka, or librdkafka, would refuse the others with it.
        """
        deadline = Deadline(self.timeout_s)
        pauses_s = dict.fromkeys(again, 0.0) | dict.fromkeys(_DROPPED, _DROPPED_WAIT_S)
        pauses_s |= dict.fromkeys(_MOVING, MOVED_WAIT_S)
        checked = {name: tried(check, name) for name in check_list(given, "names", '["orders"]')}
        names = [name for name, e in checked.items() if not isinstance(e, OffsetManagerError)]

        def answer(name: _K, pending: Pending[Any]) -> _T:
            about = name.topic if isinstance(name, TopicPartition) else str(name)
            place = f"{what} {visible(str(name), _NAME_CHARS)}"
            return read(name, self.result(pending, place, about, deadline=deadline))

        found: dict[_K, _T | OffsetManagerError] = {
            name: e for name, e in checked.items() if isinstance(e, OffsetManagerError)
        }
        while names:
            for name, pending in send(names).items():
                found[name] = tried(answer, name, pending)
            left_s = deadline.left_s
            waits_s = {name: pauses_s.get(code_of(found[name]) or 0, left_s) for name in names}
            names = [name for name, wait_s in waits_s.items() if wait_s < left_s]
            time.sleep(max((waits_s[name] for name in names), default=0.0))
        return found

    def _error(
        self, what: str, error: Failure | BaseException, name: str = "", right: str = "DESCRIBE"
    ) -> KafkaRequestError:
        failure = error if isinstance(error, Failure) else failure_of(error)
        if failure.info.code == TIMED_OUT and not failure.detail:
            error = self._timed_out()
        return request_error(
            what,
            error,
            right=right,
            topic=name,
            group=name or None,
            servers=self._settings["bootstrap.servers"],
        )


def _state(found: Any) -> str:
    """Return a ``ConsumerGroupState`` as Kafka's tools write it."""
    name: str = found.name
    return _STATES.get(name, name.capitalize())


def _rights(_name: str, found: Any) -> frozenset[str]:
    return frozenset(operation.name for operation in found.authorized_operations or ())


def _assigned(found: Any) -> TopicPartition:
    """Return an assigned partition; its topic may be named by any bytes."""
    try:
        return TopicPartition(found.topic, found.partition)
    except UnicodeDecodeError:
        return TopicPartition("\N{REPLACEMENT CHARACTER}", found.partition)


def members_of(found: Any) -> list[GroupMember]:
    """Return the members of a described group."""
    return [
        GroupMember(
            member.member_id,
            member.client_id,
            member.host,
            member.group_instance_id or "",
            tuple(sorted(map(_assigned, member.assignment.topic_partitions))),
        )
        for member in found.members
    ]


def _description(name: str, found: Any) -> GroupDescription:
    node = found.coordinator
    return GroupDescription(
        _state(found.state),
        found.type.name.lower(),
        f"{node.host}:{node.port} ({node.id})" if node and node.host else "",
        found.partition_assignor or "",
        tuple(members_of(found)),
        _rights(name, found),
    )
