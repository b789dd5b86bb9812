"""The simulation finds bugs about the ends of logs: planted ones, each within a few seeds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from offsetmgr.manager.bounds import Bounds, Outside
from tests.sim.run import FINITE_SEEDS, SeedError, run_seed, silence

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from offsetmgr.coordinator.base import TopicLog
    from offsetmgr.manager.bounds import Found, LogsRequest
    from offsetmgr.manager.slot import Version
    from offsetmgr.types import TopicPartition

    Rewinds: TypeAlias = Callable[[TopicPartition], bool]

MOST_SEEDS = 300


def found() -> str:
    """What the simulation says of the planted bug."""
    with silence():
        for seed in FINITE_SEEDS[:MOST_SEEDS]:
            try:
                run_seed(seed)
            except SeedError as error:
                return str(error)
    pytest.fail(f"{MOST_SEEDS} seeds did not find the bug")


def test_a_clamp_that_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies outside its log, and is committed as it was submitted, is found."""
    monkeypatch.setattr(Outside, "nearest", property(lambda self: self.version))
    assert "by no look it lies in its log" in found()


def test_a_clamp_to_where_the_log_ended_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An offset that is moved to ends which were known before it was submitted is found."""
    read = Bounds.read

    def outdated(
        self: Bounds, request: LogsRequest, logs: Mapping[str, TopicLog], rewinds: Rewinds
    ) -> list[Found]:
        before = dict(self._ends)
        return [
            each._replace(outside=each.outside._replace(start=known[0], end=known[1]))
            if each.outside is not None and (known := before.get(each.partition))
            else each
            for each in read(self, request, logs, rewinds)
        ]

    monkeypatch.setattr(Bounds, "read", outdated)
    assert "no log has ended there since" in found()


def test_a_look_that_serves_what_came_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A judgement by ends that were read before the offset was submitted is found."""
    admit = Bounds.admit

    def hasty(
        self: Bounds, partition: TopicPartition, version: Version, settled: int
    ) -> Version | None:
        admitted = admit(self, partition, version, settled)
        if admitted is None and partition in self._reading:
            self._reading[partition] = version
        return admitted

    monkeypatch.setattr(Bounds, "admit", hasty)
    assert re.search("no log (has ended|was found to end)", found())


def test_a_refused_offset_that_goes_out_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is tried again without another look is found."""
    read = Bounds.read

    def forgetful(
        self: Bounds, request: LogsRequest, logs: Mapping[str, TopicLog], rewinds: Rewinds
    ) -> list[Found]:
        looked = read(self, request, logs, rewinds)
        for each in looked:
            if each.outside is not None and self.policy == "refuse":
                self.clear(each.partition, each.version)
        return looked

    monkeypatch.setattr(Bounds, "read", forgetful)
    assert "by no look it lies in its log" in found()


def test_an_offset_that_goes_out_behind_a_later_rewind(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that still waited for the ends of its log when what is newer needed none is found."""
    admit = Bounds.admit

    def hasty(
        self: Bounds, partition: TopicPartition, version: Version, _settled: int
    ) -> Version | None:
        reading = self._reading.copy()
        admitted = admit(self, partition, version, 0)
        self._reading = reading
        return admitted

    monkeypatch.setattr(Bounds, "admit", hasty)
    assert "the committed offset went back" in found()


def test_an_offset_that_is_moved_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed in place of what was submitted, with nobody told, is found."""
    monkeypatch.setattr(Bounds, "is_news", lambda _self, found: found.outside is None)
    assert "nobody was told" in found()


def test_ends_that_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the log holds by now, and is refused as at the first look, is found."""
    read = Bounds.read
    first: dict[tuple[Bounds, str], TopicLog] = {}

    def stubborn(
        self: Bounds, request: LogsRequest, logs: Mapping[str, TopicLog], rewinds: Rewinds
    ) -> list[Found]:
        seen = {topic: first.setdefault((self, topic), log) for topic, log in logs.items()}
        return read(self, request, seen, rewinds)

    monkeypatch.setattr(Bounds, "read", stubborn)
    assert "no log was found to end so" in found()
