"""The simulation of the fence finds bugs of it, each within a few seeds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors import Future
from offsetmgr.coordinator.base import Failure
from offsetmgr.coordinator.fence import keeper as keeper_module
from offsetmgr.coordinator.fence import wire
from offsetmgr.coordinator.fence.coordinator import FencedCoordinator
from offsetmgr.coordinator.fence.keeper import Keeper
from offsetmgr.coordinator.fence.seat import JOINING, NOT_SEATED, Seat, Standing
from tests.sim.run import FENCE_SEEDS, SeedError, run_seed, silence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.coordinator.base import CommitResult
    from offsetmgr.coordinator.fence.wire import Place
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

MOST_SEEDS = 200


def found(since: int = 0) -> str:
    """What the simulation says of the planted bug; seeds before ``since`` only take time."""
    with silence():
        for number in range(since, since + MOST_SEEDS):
            try:
                run_seed(FENCE_SEEDS[number])
            except SeedError as error:
                return str(error)
    pytest.fail(f"{MOST_SEEDS} seeds did not find the bug")


def test_a_fenced_service_that_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes being replaced for an outage, and its group back, is found."""

    def forget(self: Seat, why: str) -> None:
        self.standing, self.place, self.why = Standing.OUT, None, why

    monkeypatch.setattr(Seat, "fence", forget)
    assert "had taken over" in found()


def test_a_lost_seat_taken_back_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not look whether somebody else was there meanwhile is found."""
    monkeypatch.setattr(Seat, "regained", lambda *_, **__: True)
    assert "had taken over" in found(since=20)


def test_a_refused_commit_that_is_sent_as_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that commits without its seat, once that is lost, is found."""
    commit = FencedCoordinator.commit

    def plain(
        self: FencedCoordinator,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout_s: float,
    ) -> Future[CommitResult]:
        answer: Future[CommitResult] = Future()

        def again(done: Future[CommitResult]) -> None:
            result = done.get(timeout=0)
            if any(failure.info == NOT_SEATED for failure in result.failures.values()):
                plainly = self._inner.commit(group, offsets, timeout_s)
                plainly.add_done_callback(lambda last: answer.set(last.get(timeout=0)))
            else:
                answer.set(result)

        commit(self, group, offsets, timeout_s).add_done_callback(again)
        return answer

    monkeypatch.setattr(FencedCoordinator, "commit", plain)
    assert "had taken over" in found(since=15)


def test_a_zombie_that_gives_its_successors_seat_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that leaves as the instance, and not as the member that it was, is found."""
    leave = wire.leave_group

    def anybody(place: Place) -> wire.Request:
        return leave(place._replace(member=""))

    monkeypatch.setattr(wire, "leave_group", anybody)
    assert "took away the place of" in found(since=70)


def test_a_service_that_fences_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that forgets which place it was given back, and meets itself there, is found."""
    take = Seat.take

    def forget(self: Seat, place: Place) -> None:
        del self, place

    def taken(self: Seat, place: Place, now_s: float) -> None:
        take(self, place, now_s)
        self.place = place

    monkeypatch.setattr(Seat, "grant", forget)
    monkeypatch.setattr(Seat, "take", taken)
    assert "last, and yet" in found(since=1_525)


def test_heartbeats_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seat that is confirmed at every look is found."""
    monkeypatch.setattr(keeper_module, "HEARTBEATS", 1_000)
    assert "more heartbeats" in found()


def test_questions_that_pile_up_in_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that keeps what it asks in vain until it has its seat, and none then, is found."""
    claim = Keeper.claim

    async def keep(self: Keeper, group: str, deadline_s: float) -> Failure | None:
        failure = await claim(self, group, deadline_s)
        if failure is None:
            vars(self).pop("in_vain", None)
        elif failure == Failure(JOINING):
            vars(self).setdefault("in_vain", []).append(group)
        return failure

    monkeypatch.setattr(Keeper, "claim", keep)
    assert "entries in Keeper.in_vain" in found()


def test_an_end_that_waits_for_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that does not end before it has left all groups is found."""

    async def patient(self: Keeper) -> None:
        while any(seat.place is not None for seat in self._seats.values()):
            await release_all(self)
            await asyncio.sleep(1.0)

    release_all: Any = Keeper.release_all

    async def endless(self: FencedCoordinator, _timeout_s: float) -> None:
        await self._keeper.release_all()
        await end(self, 0.0)

    end = FencedCoordinator._end
    monkeypatch.setattr(Keeper, "release_all", patient)
    monkeypatch.setattr(FencedCoordinator, "_end", endless)
    assert "has not ended by its deadline" in found()
