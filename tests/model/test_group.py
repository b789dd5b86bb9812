"""One group with several managers against a model of a few lines, in any order of commands."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, get_args

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.testing import SimSystem
from offsetmgr.config import CommitSettings
from offsetmgr.coordinator.memory import MemoryCoordinator, Operation, Refuse, Unknown
from offsetmgr.errors import ManagerExistsError, ManagerStoppedError, OffsetRegressionError
from offsetmgr.manager import Factory
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from offsetmgr.coordinator.memory import Incident
    from offsetmgr.manager import ManagerHandle

GROUP = "g"
PARTITIONS = 3
LONG_S = 60.0

partitions = st.integers(0, PARTITIONS - 1)
offsets = st.integers(0, 20) | st.sampled_from([2**63 - 1])
notes = st.sampled_from(["", "a", "b"])
incidents = st.sampled_from(
    [
        Refuse(14),
        Refuse(25),
        Refuse(3, [TopicPartition("t", 0)]),
        Unknown(-185, None),
        Unknown(-185, 0.0),
        Unknown(-195, 0.0, [TopicPartition("t", 1)]),
    ]
)


@dataclass
class Model:
    """The expected state of one partition."""

    committed: OffsetAndMetadata | None = None
    """The committed offset once nothing is under way."""
    newest: OffsetAndMetadata | None = None
    """The offset of the live manager."""
    handle: ManagerHandle | None = None


class GroupMachine(RuleBasedStateMachine):
    """Users submit, rewind, flush, stop and spawn; the coordinator fails now and then."""

    @initialize(seed=st.integers(0, 2**32 - 1), interval_s=st.sampled_from([0.5, 30.0]))
    def begin(self, seed: int, interval_s: float) -> None:
        """Start with an empty group."""
        self.system = SimSystem(seed)
        self.coordinator = MemoryCoordinator(
            call_after=self.system.timers.call_after, latency_s=0.01
        )
        self.factory = Factory(
            self.coordinator,
            CommitSettings(commit_interval_s=interval_s, request_timeout_s=1.0),
            system=self.system,
            rng=Random(seed),  # noqa: S311 -- jitter
        )
        self.models = [Model() for _ in range(PARTITIONS)]

    @rule(partition=partitions)
    def spawn(self, partition: int) -> None:
        """A manager starts where the last one ended, unless there is one."""
        model = self.models[partition]
        if model.handle is not None:
            with pytest.raises(ManagerExistsError):
                self.factory.spawn(GROUP, "t", partition)
            return
        model.handle = self.factory.spawn(GROUP, "t", partition)
        self.system.advance(LONG_S)
        assert model.handle.initial_offset(timeout=0) == model.committed

    @rule(partition=partitions, offset=offsets, note=notes)
    def submit(self, partition: int, offset: int, note: str) -> None:
        """Higher, or equal, is taken; lower is refused."""
        model = self.models[partition]
        if model.handle is None:
            return
        value, floor = OffsetAndMetadata(offset, note), model.newest or model.committed
        if floor is not None and offset < floor.offset:
            with pytest.raises(OffsetRegressionError):
                model.handle.submit(offset, note)
        else:
            model.handle.submit(offset, note)
            model.newest = value

    @rule(steps=st.lists(st.integers(-1, 3), min_size=PARTITIONS, max_size=PARTITIONS))
    def submit_groupwise(self, steps: list[int]) -> None:
        """Each partition by itself: what is not lower is taken, what is lower is refused."""
        given: dict[TopicPartition, int] = {}
        lower: set[TopicPartition] = set()
        for partition, model in self._live().items():
            floor = model.newest or model.committed or OffsetAndMetadata(0)
            offset = min(max(0, floor.offset + steps[partition]), 2**63 - 1)
            given[TopicPartition("t", partition)] = offset
            if offset < floor.offset:
                lower.add(TopicPartition("t", partition))
            else:
                model.newest = OffsetAndMetadata(offset)
        refused = self.factory.submit(GROUP, given)
        assert refused.keys() == lower
        assert all(isinstance(error, OffsetRegressionError) for error in refused.values())

    @rule(partition=partitions, offset=offsets, note=notes)
    def rewind(self, partition: int, offset: int, note: str) -> None:
        """Anything is taken."""
        model = self.models[partition]
        if model.handle is not None:
            model.handle.rewind(offset, note)
            model.newest = OffsetAndMetadata(offset, note)

    @rule(named=st.sets(partitions), stops=st.booleans())
    def flush(self, named: set[int], *, stops: bool) -> None:
        """All that was submitted is committed, and the answer says so; stopped ones are gone."""
        handles = {p: m.handle for p, m in self._live().items() if p in named and m.handle}
        ask = self.factory.stop_managers if stops else self.factory.flush
        answer = ask([handle.key for handle in handles.values()], LONG_S)
        self.system.advance(LONG_S)
        results = answer.get(timeout=0)
        assert results.keys() == {handle.key for handle in handles.values()}
        for partition, handle in handles.items():
            model = self.models[partition]
            model.committed = model.newest or model.committed
            assert results[handle.key] == (model.committed, None, None)
            if stops:
                model.handle = model.newest = None
                with pytest.raises(ManagerStoppedError):
                    handle.submit(2**63 - 1)

    @rule(incident=incidents, operation=st.sampled_from(get_args(Operation)[:2]))
    def fail(self, incident: Incident, operation: Operation) -> None:
        """One of the next requests fails; nobody above has to care."""
        self.coordinator.inject(operation, incident)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.6, 5.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.system.advance(seconds)

    @precondition(lambda self: self._live())
    @rule()
    def settle(self) -> None:
        """After a minute without a submit, all that was submitted is committed."""
        self.system.advance(LONG_S)
        self.system.advance(LONG_S)
        held = self.coordinator.broker.committed(GROUP)
        for partition, model in self._live().items():
            model.committed = model.newest or model.committed
            assert held.get(TopicPartition("t", partition)) == model.committed

    @invariant()
    def one_request_is_in_flight(self) -> None:
        """Always."""
        if hasattr(self, "coordinator"):
            assert self.coordinator.most_in_flight(GROUP) <= 1

    @invariant()
    def the_status_is_that_of_the_model(self) -> None:
        """The newest offset is known at once; the committed one is never beyond it."""
        for model in self._live().values():
            assert model.handle is not None
            status = model.handle.status()
            assert model.newest is None or status.submitted == model.newest

    def _live(self) -> dict[int, Model]:
        models = getattr(self, "models", [])
        return {p: model for p, model in enumerate(models) if model.handle is not None}


TestGroup = GroupMachine.TestCase
TestGroup.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
