"""A commit plan with its members, and a coordinator played by hand."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from offsetmgr.config import CommitSettings
from offsetmgr.coordinator.base import CommitResult, Failure, FetchResult
from offsetmgr.errors import error_info
from offsetmgr.manager.ledger import Ledger
from offsetmgr.manager.plan import CommitPlan
from offsetmgr.manager.requests import CommitRequest, FetchRequest, ReadBackRequest
from offsetmgr.manager.slot import SubmitSlot
from offsetmgr.manager.tray import Tray
from tests.unit.core.core import at, tp

if TYPE_CHECKING:
    from offsetmgr.manager.requests import Note, Request
    from offsetmgr.manager.slot import Version
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

LATER = 1e6


class FakeMember:
    """A manager as its plan sees it."""

    def __init__(self, partition: int) -> None:
        self.tray = Tray("g")
        self.slot = SubmitSlot(self.tray, tp(partition))

    def acknowledge(self, version: Version, now: float) -> None:
        """Nobody listens."""


class Group:
    """A plan at second 0, and how its requests are answered."""

    def __init__(self, **settings: Any) -> None:
        settings = {
            "commit_interval_s": 10.0,
            "recommit_interval_s": 0.0,
            "verify_interval_s": 0.0,
            **settings,
        }
        self.settings = CommitSettings(**settings)
        self.ledger = Ledger(2 * self.settings.request_timeout_s, self.settings.on_external_change)
        self.plan = CommitPlan(self.settings, Random(1), self.ledger)  # noqa: S311 -- jitter
        self.members: dict[int, FakeMember] = {}
        self.now = 0.0
        self._in_flight: Request | None = None

    def attach(self, *partitions: int) -> None:
        """New managers."""
        fresh = {partition: FakeMember(partition) for partition in partitions}
        self.members.update(fresh)
        self.plan.attach({tp(partition): member for partition, member in fresh.items()})

    def start(self, *partitions: int, committed: int | None = 10) -> None:
        """Attach managers that know their initial offset."""
        self.attach(*partitions)
        self.fetch({tp(p): None if committed is None else at(committed) for p in partitions})

    def crash(self) -> None:
        """A new committer begins where the old one left its ledger and its managers."""
        self.plan = CommitPlan(self.settings, Random(1), self.ledger)  # noqa: S311 -- jitter
        members = {tp(number): member for number, member in self.members.items()}
        self.plan.recover(members, self.now)
        self._in_flight = None

    def detach(self, partition: int) -> None:
        """A manager is gone."""
        del self.members[partition]
        self.plan.detach(tp(partition), self.now)

    def fetch(
        self,
        offsets: dict[TopicPartition, OffsetAndMetadata | None],
        failures: dict[int, int] | None = None,
        *,
        told: bool = True,
    ) -> list[Note]:
        """Answer the fetch that is due; managers learn of it at once, where ``told``."""
        request = self.due()
        assert isinstance(request, FetchRequest)
        assert set(request.members) == set(offsets) | {tp(p) for p in failures or {}}
        self._in_flight = None
        notes = self.plan.fetched(request, FetchResult(offsets, _failures(failures)), self.now)
        for where, value in offsets.items() if told else ():
            self.members[where.partition].slot.establish(value)
        return [note for _, note in notes]

    def submit(self, offset: int, partition: int = 0, *, urgent: bool = False) -> None:
        """A submit that the committer has collected."""
        member = self.members[partition]
        member.slot.offer(at(offset))
        for slot in member.tray.collect(self.now)[0]:
            self.plan.mark_dirty(slot.where, self.now, urgent=urgent)

    def due(self) -> Request | None:
        """What is in flight, or else what the plan wants sent now."""
        if self._in_flight is None:
            self._in_flight = self.plan.next_request(self.now)[0]
        return self._in_flight

    def wait(self) -> None:
        """Let time pass until there is something to send."""
        for _ in range(10):
            if self.due() is not None:
                return
            self.now = max(self.now, self.plan.wake_at())
        raise AssertionError("there is nothing to wait for")

    def commit(self, *, after_s: float = LATER) -> CommitRequest:
        """The commit that is due ``after_s`` from now."""
        self.now += after_s
        request = self.due()
        assert isinstance(request, CommitRequest)
        return request

    def answer(self, request: CommitRequest, failures: dict[int, int] | None = None) -> list[Note]:
        """Answer a commit; ``failures`` are codes by partition."""
        self._in_flight = None
        result = CommitResult(_failures(failures))
        return [note for _, note in self.plan.committed(request, result, self.now)]

    def read(
        self, found: dict[int, int | None], failures: dict[int, int] | None = None
    ) -> list[Note]:
        """Answer the read-back that is due."""
        request = self.due()
        assert isinstance(request, ReadBackRequest)
        assert set(request.members) == {tp(p) for p in (*found, *(failures or {}))}
        self._in_flight = None
        offsets = {tp(p): None if value is None else at(value) for p, value in found.items()}
        result = FetchResult(offsets, _failures(failures))
        return [note for _, note in self.plan.read_back(request, result, self.now)]


def _failures(codes: dict[int, int] | None) -> dict[TopicPartition, Failure]:
    return {tp(p): Failure(error_info(code)) for p, code in (codes or {}).items()}


def sent(request: CommitRequest) -> dict[int, int]:
    """What a commit carries: offsets by partition."""
    return {where.partition: v.value.offset for where, v in request.versions.items()}
