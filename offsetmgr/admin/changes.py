"""Plans a change of a consumer group, and carries it out: offsets set or deleted.

Only a group that nobody holds is changed.  Kafka refuses it where the group has live members; where
a job commits to it through a service, that job would commit over the change.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.admin.history import read_causes, steps, targets_at
from offsetmgr.admin.reset import (
    NOT_KNOWN,
    PlannedOffset,
    Target,
    parse_csv,
    parse_offsets,
    parse_value,
    plan,
    targets,
)
from offsetmgr.admin.times import parse_time
from offsetmgr.answers import Failure
from offsetmgr.codes import TIMED_OUT, Verdict
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import (
    InvalidValueError,
    KafkaRequestError,
    OffsetConflictError,
    OffsetManagerError,
    OffsetTimeoutError,
    ServiceUnavailableError,
)
from offsetmgr.kafka.clients import Closing
from offsetmgr.kafka.commit_log import read_commits
from offsetmgr.kafka.config import INSTANCE
from offsetmgr.kafka.errors import (
    RIGHT_CODES,
    code_of,
    does_not_exist,
    known,
    request_error,
    tried,
)
from offsetmgr.lag.store_reader import listings_of, open_cluster
from offsetmgr.stores import open_store
from offsetmgr.stores.base import refusals
from offsetmgr.stores.broker import BrokerOffsetStore
from offsetmgr.text import listed, visible
from offsetmgr.types import OffsetAndMetadata, TopicPartition, check_existing_group

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future as Pending

    from offsetmgr.admin.history import CommitStep
    from offsetmgr.admin.service import ServiceReader
    from offsetmgr.kafka.cluster import GroupDescription
    from offsetmgr.types import PartitionRange

_LOADING: Final = 14
_FOLLOW: Final = "follow"
"""The owner of the managers that a service has for the checkpoints it follows."""
_FREE: Final = frozenset({"Empty", "Dead"})


class GroupHeldError(OffsetManagerError):
    """Somebody commits to the group: its members, or clients of a service."""

    code = "group_held"


def check_unowned(group: str, clients: Collection[str], url: str) -> None:
    """Raise GroupHeldError where ``clients`` of the service at ``url`` hold the group."""
    if clients:
        names = listed([repr(name) for name in sorted(clients)])
        who, fix = f"client {names} of the service at {url}, whose job", "stop the job"
        if _FOLLOW in clients:
            who = f"the service at {url}, which follows a checkpoint of its job and"
            fix = "take [follow.NAME] out of its configuration"
        raise GroupHeldError(
            f"group {group} is held by {who} would commit over the change; {fix}, or let the "
            "service set the offsets: reset --live"
        )


class GroupChanges(Closing):
    """Changes of groups on one cluster; every method waits for Kafka and raises KafkaRequestError.

    Nothing is changed but by ``carry_out``, ``commit`` and ``delete_group``.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        service: ServiceReader | None = None,
        *,
        timeout_s: float = 30.0,
        history_s: float | None = None,
        store: str | None = None,
    ) -> None:
        """``config`` is librdkafka's; ``service`` is asked for the owners of groups.

        ``history_s`` is the time for reading a history, by default ``timeout_s``.  ``store`` is the
        URL of an offset store that keeps the groups instead of Kafka.

        Raises InvalidValueError where librdkafka does not take a setting.
        """
        self.reader = open_cluster(config, store, timeout_s)
        self._store = store
        self._config = config
        self._service = service
        self._history_s = history_s or timeout_s
        self.topic_ids: dict[str, str] = {}
        """The topics of all plans, as of before their logs were read."""

    def check_free(self, group: str, right: str = "READ") -> GroupDescription:
        """Return the group's description.

        Raises GroupHeldError, with the owner's name, where others hold the group, InvalidValueError
        where it is of a kind that commits no offsets, and KafkaRequestError; ``right`` is the one
        that the change needs.
        """
        found = self.reader.describe([group])[group]
        if isinstance(found, KafkaRequestError) and found.info.code in RIGHT_CODES:
            raise self._error(found.what, Failure(found.info), right, group)
        found = known(found)
        if found.state not in _FREE:
            members = [
                f"{visible(each.client_id, 100)} (host {each.host.lstrip('/')})"
                for each in found.members
            ]
            fenced = any(each.group_instance_id == INSTANCE for each in found.members)
            fix = "that service can set the offsets: reset --live --service URL"
            raise GroupHeldError(
                f"group {visible(group, 100)} is {found.state}: held by its members "
                f"{listed(members) or 'that join now'}; "
                f"{fix if fenced else 'stop them, then try again'}"
            )
        for each in listings_of(self.reader.groups).groups if found.state == "Dead" else ():
            if each.name == group and not each.has_offsets:
                fix = "use Kafka's own tool for such groups: kafka-share-groups, for example"
                raise InvalidValueError("group", group, f"is a {each.type} group", fix)
        if self._service is not None:
            owners = {each.client for each in self._service.managers(group)}
            check_unowned(group, owners, self._service.url)
        return found

    def committed(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what the group has committed."""
        return known(self.reader.committed([group])[group])

    def history(self, group: str, *chosen: Any) -> Iterator[CommitStep]:
        """Return the steps of a group; ``chosen`` are the limits that ``steps`` takes."""
        answer = self.reader.committed([group])[group]  # before its log, for which READ is enough
        committed = {} if code_of(answer) in RIGHT_CODES else known(answer)
        commits = read_commits(self._config, {group}, timeout_s=self._history_s)
        return steps(commits, committed, time.time(), *chosen)

    def plan(
        self,
        group: str,
        mode: str,
        value: str,
        scope: Mapping[str, list[int] | None] | None,
        option: str = "",
        seen: Callable[[str], bool] = lambda _topic: True,
    ) -> list[PlannedOffset]:
        """Return where an option of ``reset``, such as ``to-offset``, ``42``, puts ``scope``.

        The mode ``set`` takes single offsets, such as ``orders:0=42 orders:1=7``.  None stands for
        all partitions that are committed, or that the given offsets name, of the topics that may be
        ``seen``.  Errors name ``option``, by default that of the command line.  Raises
        InvalidValueError, and OSError where a file cannot be read.
        """
        option = option or f"--{mode}"
        number = parse_value(mode, value, option, time.time())
        wanted = self._given(group, mode, value, option)
        committed = {at: each for at, each in self.committed(group).items() if seen(at.topic)}
        if scope is not None:
            partitions = self._partitions_in(scope)
        else:
            found = committed if wanted is None else wanted
            partitions = [where for where in found if seen(where.topic)]
        if not partitions:
            place = ("group", group) if wanted is None else (option, value)
            fix = "check the name of the group, or name topics (--topic)"
            raise InvalidValueError(*place, "has no committed offsets", fix)
        ids = self.reader.topic_ids({at.topic for at in partitions})
        self.topic_ids |= {topic: each for topic, each in ids.items() if isinstance(each, str)}
        logs, unread = self.readable_logs(partitions)
        if mode in {"to-datetime", "by-duration"} and number > 0:
            wanted = self._at_time(logs, number)
        elif wanted is None:
            wanted = targets(mode, int(number), option, committed, logs)
        within_logs = mode != "to-current"
        return plan(partitions, wanted, committed, logs, unread, within_logs=within_logs)

    def _given(
        self, group: str, mode: str, value: str, option: str
    ) -> dict[TopicPartition, Target] | None:
        """Return the targets of a file, of another group or of the history; else None."""
        match mode:
            case "set":
                offsets = parse_offsets(value.split())
            case "from-file":
                offsets = parse_csv(Path(value).read_bytes(), group)
            case "from-group":
                offsets = self.committed(check_existing_group(value, option))
            case "to-history" if self._store is not None:
                fix = "use another mode: a store keeps no earlier offsets"
                raise InvalidValueError(option, value, "is of groups in Kafka", fix)
            case "to-history":
                at_s = parse_time(value, option)
                walked = list(self.history(group))
                since = (step for step in walked if step.at_s > at_s)
                return targets_at(walked, at_s, value, read_causes(self.reader, since))
            case _:
                return None
        return {where: Target(each) for where, each in offsets.items()}

    def readable_logs(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[dict[TopicPartition, PartitionRange], dict[TopicPartition, str]]:
        """Return the logs of those that exist, and why others could not be read."""
        logs, unread = {}, {}
        for where, log in self.reader.log_ranges(partitions).items():
            if not isinstance(log, OffsetManagerError):
                logs[where] = log
            elif not does_not_exist(log):
                unread[where] = f"left as it is: {log}"
        return logs, unread

    def _at_time(
        self, logs: Mapping[TopicPartition, PartitionRange], at_s: float
    ) -> dict[TopicPartition, Target]:
        found: dict[TopicPartition, Target] = {}
        answers = self.reader.offsets_at(dict.fromkeys(logs, round(at_s * 1_000)))
        for where, answer in answers.items():
            if isinstance(answer, OffsetManagerError):
                found[where] = Target(None, f"left as it is: {answer}")
            elif answer is None:
                end = OffsetAndMetadata(logs[where].high_watermark)
                found[where] = Target(end, "no record is so young: end of the log")
            else:
                found[where] = Target(OffsetAndMetadata(answer))
        return found

    def check_unchanged(
        self,
        group: str,
        rows: Iterable[PlannedOffset],
        topic_ids: Mapping[str, str],
        *,
        live: bool = False,
    ) -> dict[TopicPartition, str]:
        """Return why partitions of a plan cannot be set any more: their logs lack the offset.

        Raises OffsetConflictError if committed offsets or topics are not as they were at the plan;
        with ``live`` the offsets may have advanced, as the job commits on.  A topic with another id
        was recreated: the plan is of its former log.
        """
        changed = [row for row in rows if row.is_changed]
        committed = self.committed(group)
        moved = []
        for row in changed:
            value = committed.get(row.partition)
            now, then = None if value is None else value.offset, row.current
            has_advanced = now is not None and now >= (then or 0)
            if now != then and not (live and has_advanced):
                moved.append(f"{row.partition} (planned at {then}, now {now})")
        text = "nothing was changed: make a new plan"
        if moved:
            what = f"somebody has moved {listed(moved)} of group {group} since the plan was made"
            raise OffsetConflictError(f"{what}; {text}")
        # An offset that is committed again, such as by --to-current, may be outside its log.
        new = {
            row.partition: row.new.offset
            for row in changed
            if row.new is not None and row.new.offset != row.current
        }
        logs, unread = self.readable_logs(new)
        topics = {row.partition.topic for row in changed}
        planned = {topic: each for topic, each in topic_ids.items() if topic in topics}
        ids = self.reader.existing_ids(planned)
        recreated = [topic for topic, then in planned.items() if ids.get(topic) != then]
        if recreated:
            what = f"topic {listed(recreated)} was deleted or recreated since the plan was made"
            raise OffsetConflictError(f"{what}; {text}")
        stale = {}
        for where, offset in new.items():
            if where not in logs:
                stale[where] = unread.get(where, "does not exist any more")
            elif not logs[where].log_start_offset <= offset <= logs[where].high_watermark:
                start, end = logs[where]
                stale[where] = (
                    f"its log is from {start} to {end}, without {offset}: make a new plan"
                )
        return stale

    def carry_out(
        self, group: str, rows: Sequence[PlannedOffset], live: ServiceReader | None = None
    ) -> dict[TopicPartition, str]:
        """Execute a plan: of offsets to delete, or one of this object.

        The managers of the service ``live`` set the offsets if it is given.  Returns as ``commit``.
        Raises OffsetConflictError, having changed nothing, if the offsets or topics are not those
        of the plan any more; OffsetTimeoutError if it is not known whether offsets were deleted;
        ServiceError.
        """
        stale = self.check_unchanged(group, rows, self.topic_ids, live=live is not None)
        if deleted := [row.partition for row in rows if row.deleted]:
            return self._delete(group, deleted)
        offsets = {
            row.partition: row.new
            for row in rows
            if row.new is not None and row.partition not in stale
        }
        if live is None or not offsets:
            return stale | self.commit(group, offsets)
        answer = tried(live.rewind, group, offsets, self.topic_ids)
        if isinstance(answer, ServiceUnavailableError):  # it may have ended behind the change
            answer = dict.fromkeys(offsets, f"{NOT_KNOWN}{answer}; look again")
        return stale | known(answer)

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, str]:
        """Commit offsets; return why those of some partitions were not.

        What a coordinator refuses that still loads the group is tried again.
        """
        if not offsets:
            return {}
        failures: dict[TopicPartition, OffsetManagerError] = {}
        opened = (
            open_store(self._store)
            if self._store
            else BrokerOffsetStore(self._config, timeout_s=self.reader.timeout_s)
        )
        with opened as store:
            for _ in Deadline(self.reader.timeout_s).polls():
                error = tried(store.commit, group, offsets)
                failures = {} if error is None else refusals(error, offsets)
                infos = (getattr(each, "info", None) for each in failures.values())
                if not any(info is not None and info.code == _LOADING for info in infos):
                    break
        return {where: self._reason(each, group, where) for where, each in failures.items()}

    def _delete(self, group: str, partitions: list[TopicPartition]) -> dict[TopicPartition, str]:
        what = f"deletion of offsets of group {visible(group, 100)}"
        sent = self.reader.group_client.delete(group, partitions, self.reader.limit_s)
        answer = self._result(sent, what, group)
        return {
            where: self._reason(KafkaRequestError(what, *failure), group, where)
            for where, failure in answer.failures.items()
        }

    def delete_group(self, group: str) -> None:
        """Delete a group with all that it has committed.

        Raises OffsetTimeoutError if it is not known whether that was done.
        """
        delete = self.reader.admin.delete_consumer_groups
        sent = delete([group], request_timeout=self.reader.limit_s)[group]
        self._result(sent, f"deletion of group {visible(group, 100)}", group)

    def _reason(self, error: OffsetManagerError, group: str, where: TopicPartition) -> str:
        """Return why a partition was not changed, with the right if one is missing."""
        info, detail = getattr(error, "info", None), getattr(error, "detail", "")
        if info is not None and info.code in RIGHT_CODES and not detail:
            detail = self._error("", Failure(info), "READ", group, where.topic).detail
        text = f"{detail or getattr(error, 'hint', error)} ({error.code})"
        if info is None or info.verdict is Verdict.REFUSED:
            return text
        text = text.replace("; tried again", "")  # as a service does
        return f"{NOT_KNOWN}{text}; look again"

    def _error(
        self, what: str, cause: Failure | BaseException, right: str, group: str, topic: str = ""
    ) -> KafkaRequestError:
        servers = self._config["bootstrap.servers"]
        return request_error(what, cause, right=right, group=group, topic=topic, servers=servers)

    def _result(self, pending: Pending[Any], what: str, group: str) -> Any:
        try:
            return self.reader.result(pending, what, group, right="DELETE")
        except KafkaRequestError as error:
            if error.info.code != TIMED_OUT:
                raise
            text = "no answer from Kafka in time; whether it was done is not known: look again"
            raise OffsetTimeoutError(f"{what}: {text}") from None

    def _partitions_in(self, scope: Mapping[str, list[int] | None]) -> list[TopicPartition]:
        """Return the partitions that ``scope`` names, all those of a topic where it has None."""
        numbers_of = {topic: numbers for topic, numbers in scope.items() if numbers is not None}
        whole_topics = scope.keys() - numbers_of.keys()
        for topic, answer in self.reader.partitions_of(whole_topics).items():
            if does_not_exist(answer):
                fix = "check its name; delete-offsets removes what is committed of a deleted topic"
                raise InvalidValueError("--topic", topic, "does not exist", fix)
            numbers_of[topic] = known(answer)
        return [TopicPartition(topic, each) for topic in numbers_of for each in numbers_of[topic]]

    def close(self) -> None:
        self.reader.close()
