"""History and resets of groups over HTTP: what the commands of the same names do."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from offsetmgr.admin.changes import GroupChanges, GroupHeldError, check_unowned
from offsetmgr.admin.history import CommitStep, history_report, read_causes
from offsetmgr.admin.reset import NOT_KNOWN, PLAN_FIELDS, PlannedOffset, parse_scope, plan_rows
from offsetmgr.admin.service import rewind_failures
from offsetmgr.admin.times import parse_since
from offsetmgr.errors import InvalidValueError, OffsetConflictError, OffsetManagerError
from offsetmgr.http.errors import ErrorBody, HttpStatusError
from offsetmgr.service.access import Names, Requester, names_in
from offsetmgr.service.messages import (
    HistoryQuery,
    PlanRequest,
    ResetRequest,
    SubmitEntry,
    SubmitRequest,
    TopicIds,
    body_or_none,
)
from offsetmgr.service.openapi import operation
from offsetmgr.service.threads import ReadThreads
from offsetmgr.text import error_text, shown
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from offsetmgr.service.core import OffsetService
    from offsetmgr.service.settings import Settings

HISTORY_REQUESTS: Final = 12
"""A history may take as long as so many requests: a minute by default."""


class StepsAnswer(Struct, frozen=True):
    """Commits of a group, oldest first, as `offsetmgr history --json` prints them."""

    group: str
    left_out: Annotated[int, Meta(description="Older ones, beyond the limit.")]
    undo_to: Annotated[str | None, Meta(description="Just before the last step backwards.")]
    steps: list[dict[str, Any]]


class PlanAnswer(Struct, frozen=True):
    """A reset, planned or carried out; its partitions are those of `offsetmgr reset --json`."""

    group: str
    live: bool
    can_live: Annotated[bool, Meta(description="Clients of this service hold the group.")]
    refused: Annotated[ErrorBody | None, Meta(description="Why a reset would be refused.")]
    executed: bool
    partitions: list[dict[str, Any]]
    topic_ids: TopicIds = {}


def _names_of_plan(asked: PlanRequest) -> Names:
    topics = () if asked.topics is None else parse_scope(asked.topics, "topics").keys()
    other = {asked.value} if asked.mode == "from-group" and asked.value else set()
    return Names({asked.group, *other}, topics)


@dataclass(eq=False)
class Changes:
    """History, plan and reset; each works in a thread that may wait for Kafka."""

    settings: Settings
    service: OffsetService
    threads: ReadThreads
    wall: Callable[[], float]
    _histories: ReadThreads = field(init=False, default_factory=lambda: ReadThreads(1))
    """A history may be of a million commits: one at a time."""
    _resetting: set[str] = field(init=False, default_factory=set)
    """Groups of which a reset is under way: another one would be checked against the offsets
    before it."""

    @operation("GET", "/v1/history", HistoryQuery, StepsAnswer, needs=names_in("group", "topic"))
    async def history(self, by: Requester, asked: HistoryQuery) -> StepsAnswer:
        """Return the commits of a group that Kafka still has."""
        if self.settings.database is not None:
            fix = "ask for a group that Kafka keeps: a database keeps no earlier offsets"
            raise InvalidValueError("query.group", asked.group, "has no history", fix)
        since = asked.since
        since_s = 0.0 if since is None else parse_since(since, "query.since", self.wall())

        def read() -> StepsAnswer:
            newest: deque[CommitStep] = deque(maxlen=asked.limit)
            found = 0
            with self._changes() as change:
                chosen = since_s, asked.topic, asked.partition
                for step in change.history(asked.group, *chosen):
                    if by.sees(None, step.partition.topic):
                        found += 1
                        newest.append(step)
                causes = read_causes(change.reader, newest)
            report = history_report(asked.group, newest, causes)
            return StepsAnswer(left_out=found - len(newest), **report)

        return await self._histories.run(by, read)

    @operation("POST", "/v1/plan", PlanRequest, PlanAnswer, needs=_names_of_plan, reads=True)
    async def plan(self, by: Requester, asked: PlanRequest) -> PlanAnswer:
        """Plan a reset: return the new offsets, and why it would be refused; change nothing."""
        scope = None if asked.topics is None else parse_scope(asked.topics, "topics")

        def make() -> PlanAnswer:
            refused: OffsetManagerError | None = None
            with self._changes() as change:
                value, seen = asked.value or "", partial(by.sees, None)
                rows = change.plan(asked.group, asked.mode, value, scope, "value", seen)
                try:
                    self._check_owners(change, asked)
                except (GroupHeldError, HttpStatusError) as error:
                    refused = error
            answer = self._answer(asked, rows, refused=refused)
            return msgspec.structs.replace(answer, topic_ids=change.topic_ids)

        threads = self._histories if asked.mode == "to-history" else self.threads
        return await threads.run(by, make)

    @operation("POST", "/v1/reset", ResetRequest, PlanAnswer, needs=names_in("group", "partitions"))
    async def reset(self, by: Requester, asked: ResetRequest) -> PlanAnswer:
        """Execute a plan, if the committed offsets and the topics are still those of the plan."""
        offsets = {
            each.where: OffsetAndMetadata(each.new, each.metadata) for each in asked.partitions
        }
        before = {each.where: each.current for each in asked.partitions}
        rows = [PlannedOffset(where, before[where], new) for where, new in offsets.items()]
        begun = given_up = False

        def check_and_commit() -> dict[TopicPartition, str]:
            nonlocal begun
            with self._changes() as change:
                self._check_owners(change, asked)
                ids = asked.topic_ids
                stale = change.check_unchanged(asked.group, rows, ids, live=asked.live)
                begun = True
                if given_up:  # nothing is changed that the audit log does not have
                    raise OffsetConflictError("the service has stopped")
                for where in stale:
                    del offsets[where]
                return stale if asked.live else stale | change.commit(asked.group, offsets)

        if asked.group in self._resetting:
            text = f"another reset of group {shown(asked.group)} is under way: make a new plan"
            raise OffsetConflictError(text)
        self._resetting.add(asked.group)
        try:
            failures = await self.threads.run(by, check_and_commit)
            if asked.live and offsets:
                entries = [SubmitEntry(*where, *value[:2]) for where, value in offsets.items()]
                timeout_s = self.settings.commit.request_timeout_s
                rewind = SubmitRequest(
                    asked.group, entries, asked.topic_ids, wait=True, timeout_s=timeout_s
                )
                answer = await self.service.rewind(by, rewind)
                failures |= rewind_failures(msgspec.to_builtins(answer), offsets)
        except BaseException as error:  # also the stop of the service
            given_up = True
            if begun:
                self._record(by, "unknown", asked, {"error": error_text(error)})
            raise
        finally:
            self._resetting.discard(asked.group)
        failed = {str(where): text for where, text in failures.items()}
        is_unknown = any(text.startswith(NOT_KNOWN) for text in failures.values())
        outcome = "unknown" if is_unknown else "failed" if failed else "done"
        self._record(by, outcome, asked, failed)
        return self._answer(asked, rows, failures)

    def _record(
        self, by: Requester, outcome: str, asked: ResetRequest, failures: Mapping[str, str]
    ) -> None:
        moves = [
            {**each.where._asdict(), "from": each.current, "to": each.new}
            for each in asked.partitions
        ]
        done = {"partitions": moves, "live": asked.live, "failures": failures}
        self.service.audit.record(by, "reset", outcome, group=asked.group, **done)

    def _changes(self) -> GroupChanges:
        timeout_s = self.settings.commit.request_timeout_s
        return GroupChanges(
            self.settings.kafka.for_librdkafka(),
            timeout_s=timeout_s,
            history_s=HISTORY_REQUESTS * timeout_s,
            store=self.settings.database,
        )

    def _owners(self, group: str) -> set[str]:
        # Compared, since a client can hold no group of a name that it may not use.
        return {each.owner for each in self.service.factory.managers() if each.key.group == group}

    def _check_owners(self, change: GroupChanges, asked: PlanRequest | ResetRequest) -> None:
        """Raise GroupHeldError; HttpStatusError where a live reset finds no manager."""
        owners = self._owners(asked.group)
        if not asked.live:
            change.check_free(asked.group)
            check_unowned(asked.group, owners, "this address")
        elif not owners:
            text = f"no client of this service holds group {asked.group}: reset it without live"
            raise HttpStatusError(HTTPStatus.CONFLICT, "group_not_held", text)

    def _answer(
        self,
        asked: PlanRequest | ResetRequest,
        rows: list[PlannedOffset],
        failures: Mapping[TopicPartition, str] | None = None,
        refused: OffsetManagerError | None = None,
    ) -> PlanAnswer:
        planned = plan_rows({asked.group: rows}, {asked.group: failures or {}})
        return PlanAnswer(
            asked.group,
            asked.live,
            bool(self._owners(asked.group)),
            body_or_none(refused),
            failures is not None,
            [dict(zip(PLAN_FIELDS, row, strict=True)) for row in planned],
        )
