"""History and resets of groups over HTTP: what the commands of the same names do."""

from __future__ import annotations

import asyncio
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from offsetmgr.admin.changes import GroupChanges, GroupHeldError
from offsetmgr.admin.history import history_report, steps
from offsetmgr.admin.reset import PLAN_FIELDS, PlannedOffset, parse_scope, plan_rows
from offsetmgr.admin.service import LiveManager, rewind_failures
from offsetmgr.admin.times import parse_since
from offsetmgr.errors import InvalidValueError
from offsetmgr.lag.commit_log import read_commits
from offsetmgr.service.access import asker, check_group_seen
from offsetmgr.service.errors import HttpStatusError
from offsetmgr.service.messages import (
    ErrorAnswer,
    ErrorBody,
    HistoryQuery,
    PlanRequest,
    ResetRequest,
    SubmitEntry,
    SubmitRequest,
    body_or_none,
)
from offsetmgr.service.openapi import operation
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.admin.history import CommitStep
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.service.messages import Caller
    from offsetmgr.service.run import Assembly

HISTORY_REQUESTS: Final = 12
"""A history may take as long as so many requests: a minute by default."""

_KAFKA: Final = {502: ErrorAnswer, 504: ErrorAnswer}

ANSWER_S: Final = 5.0


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


class Changes:
    """History, plan and reset; each works in a thread that may wait for Kafka."""

    def __init__(self, parts: Assembly) -> None:
        self._parts = parts
        self._kafka = parts.settings.kafka.for_librdkafka()
        self._timeout_s = parts.settings.commit.request_timeout_s
        self._reading = asyncio.Lock()
        """A history may be of a million commits: one at a time."""

    @operation("GET", "/v1/history", HistoryQuery, StepsAnswer)
    async def history(self, _: Caller | None, asked: HistoryQuery) -> StepsAnswer:
        """Return the commits of a group that Kafka still has."""
        if self._parts.settings.database is not None:
            fix = "ask for a group that Kafka keeps: a database keeps no earlier offsets"
            raise InvalidValueError("query.group", asked.group, "has no history", fix)
        now_s = self._parts.wall()
        since_s = 0.0 if asked.since is None else parse_since(asked.since, "query.since", now_s)

        def read() -> StepsAnswer:
            timeout_s = HISTORY_REQUESTS * self._timeout_s
            newest: deque[CommitStep] = deque(maxlen=asked.limit)
            found = 0
            commits = read_commits(self._kafka, {asked.group}, timeout_s=timeout_s)
            for step in steps(commits, since_s, asked.topic, asked.partition):
                if asker().sees(None, step.partition.topic):
                    found += 1
                    newest.append(step)
            report = history_report(asked.group, newest)
            return StepsAnswer(left_out=found - len(newest), **report)

        async with self._reading:
            return await self._parts.watch.in_worker(read)

    @operation("POST", "/v1/plan", PlanRequest, PlanAnswer, others=_KAFKA, reads=True)
    async def plan(self, caller: Caller, asked: PlanRequest) -> PlanAnswer:
        """Return what a reset would set, and why it would be refused; change nothing."""
        scope = None if asked.topics is None else parse_scope(asked.topics, "topics")
        if asked.mode == "from-group" and asked.value:
            check_group_seen(asked.value)
        owners = _Owners(self._parts, caller)

        def make() -> PlanAnswer:
            refused: OffsetManagerError | None = None
            with self._changes(owners) as change:
                rows = change.plan(asked.group, asked.mode, asked.value or "", scope, "value")
                try:
                    owners.check(change, asked.group, live=asked.live)
                except (GroupHeldError, HttpStatusError) as error:
                    refused = error
                rows = [each for each in rows if asker().sees(None, each.partition.topic)]
            return self._answer(asked, rows, refused=refused)

        return await self._parts.watch.in_worker(make)

    @operation("POST", "/v1/reset", ResetRequest, PlanAnswer, others=_KAFKA)
    async def reset(self, caller: Caller, asked: ResetRequest) -> PlanAnswer:
        """Carry a plan out, if the group is still committed where the plan saw it."""
        owners = _Owners(self._parts, caller)
        before = {each.where: each.current for each in asked.partitions}
        rows = [
            PlannedOffset(each.where, each.current, OffsetAndMetadata(each.new, each.metadata))
            for each in asked.partitions
        ]

        def do() -> PlanAnswer:
            with self._changes(owners) as change:
                owners.check(change, asked.group, live=asked.live)
                change.check_unmoved(asked.group, before, live=asked.live)
                carry_out = change.rewind if asked.live else change.commit
                try:
                    failures = carry_out(asked.group, rows)
                except Exception as error:
                    self._record("unknown", asked, {"error": str(error)})
                    raise
            failed = {str(where): text for where, text in failures.items()}
            self._record("failed" if failed else "done", asked, failed)
            return self._answer(asked, rows, failures)

        return await self._parts.watch.in_worker(do)

    def _record(self, outcome: str, asked: ResetRequest, failures: Mapping[str, str]) -> None:
        moves = [
            {**each.where._asdict(), "from": each.current, "to": each.new}
            for each in asked.partitions
        ]
        done = {"partitions": moves, "live": asked.live, "failures": failures}
        self._parts.audit.record("reset", outcome, group=asked.group, **done)

    def _changes(self, owners: _Owners) -> GroupChanges:
        store = self._parts.settings.database
        return GroupChanges(self._kafka, owners, timeout_s=self._timeout_s, store=store)

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
            bool(self._parts.factory.managers(asked.group)),
            body_or_none(refused),
            failures is not None,
            [dict(zip(PLAN_FIELDS, row, strict=True)) for row in planned],
        )


class _Owners:
    """The managers of this process, as ``GroupChanges`` asks a service for them in a thread."""

    url = "this address"

    def __init__(self, parts: Assembly, caller: Caller) -> None:
        self._factory = parts.factory
        self._service = parts.service
        self._timeout_s = parts.settings.commit.request_timeout_s
        self._caller = caller
        self._loop = asyncio.get_running_loop()

    def check(self, change: GroupChanges, group: str, *, live: bool) -> None:
        """Raise GroupHeldError; HttpStatusError where a live reset finds no manager."""
        if not live:
            change.check_free(group)
        elif not self._factory.managers(group):
            text = f"no client of this service holds group {group}: reset it without live"
            raise HttpStatusError(HTTPStatus.CONFLICT, "group_not_held", text)

    def managers(self, group: str) -> list[LiveManager]:
        return [
            LiveManager(group, each.key.topic_partition, each.owner, "")
            for each in self._factory.managers(group)
        ]

    def rewind(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, str]:
        entries = [
            SubmitEntry(topic, partition, value.offset, value.metadata)
            for (topic, partition), value in offsets.items()
        ]
        asked = SubmitRequest(group, entries, wait=True, timeout_s=self._timeout_s)
        rewound = asyncio.run_coroutine_threadsafe(
            self._service.rewind(self._caller, asked), self._loop
        )
        # It answers in time; more than that means that the service has ended.
        answer = rewound.result(self._timeout_s + ANSWER_S)
        return rewind_failures(msgspec.to_builtins(answer), offsets)
