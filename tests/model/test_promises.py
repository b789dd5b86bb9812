"""Promises of the core under any input, any schedule, any crash and any wall clock."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.testing import SimSystem
from offsetmgr.config import CommitSettings
from offsetmgr.coordinator.memory import MemoryCoordinator
from offsetmgr.errors import InvalidValueError, OffsetRegressionError
from offsetmgr.manager import Factory
from offsetmgr.service.requests import SubmitRequest, decode
from offsetmgr.types import MAX_OFFSET, ManagerKey, TopicPartition
from tests.sim.drivers import Driver
from tests.sim.network import Network, Wire
from tests.sim.processes import Host
from tests.sim.referee import Referee, WatchedBroker
from tests.sim.run import silence
from tests.sim.server import ServiceProcess
from tests.sim.service_judge import ServiceJudge
from tests.sim.threads import jump_wall, simulated_time
from tests.sim.world import POISON

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsetmgr.manager import ManagerHandle

GROUP: Final = "g"
LONG_S: Final = 60.0
DAY_S: Final = 86_400.0

quick: Final = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


class Core:
    """A factory over a Kafka in memory, and managers of three partitions."""

    def __init__(self, seed: int) -> None:
        self.system = SimSystem(seed)
        self.coordinator = MemoryCoordinator(
            call_after=self.system.timers.call_after, clock=self.system.clock, latency_s=0.01
        )
        self.factory = Factory(
            self.coordinator,
            CommitSettings(commit_interval_s=0.5, request_timeout_s=1.0),
            system=self.system,
            rng=random.Random(seed),  # noqa: S311 -- jitter
        )
        self.handles: list[ManagerHandle] = [
            self.factory.spawn(GROUP, "t", partition) for partition in range(3)
        ]

    def committed(self) -> dict[int, int]:
        """What Kafka holds, by partition."""
        held = self.coordinator.broker.committed(GROUP)
        return {where.partition: value.offset for where, value in held.items()}


@pytest.mark.fault(3, 4)
@quick
@given(
    seed=st.integers(0, 2**32 - 1),
    submits=st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.sampled_from([0.0, 0.3, 0.6]))),
)
def test_a_lower_offset_is_refused_unless_it_is_a_rewind(
    seed: int, submits: list[tuple[int, bool, float]]
) -> None:
    """Whatever is refused is never sent, and what was taken last is committed at last."""
    core = Core(seed)
    handle, newest, taken = core.handles[0], -1, set()
    for offset, rewind, pause_s in submits:
        if offset < newest and not rewind:
            with pytest.raises(OffsetRegressionError) as refused:
                handle.submit(offset)
            assert refused.value.floor == newest
        else:
            (handle.rewind if rewind else handle.submit)(offset)
            newest = offset
            taken.add(offset)
        core.system.advance(pause_s)
    core.system.advance(LONG_S)
    requests = core.coordinator.requests
    assert {each.offset for asked in requests for each in asked.offsets.values()} <= taken
    assert core.committed() == ({} if newest < 0 else {0: newest})


WRONG: Final = (
    st.integers(max_value=-1)
    | st.integers(min_value=MAX_OFFSET + 1)
    | st.booleans()
    | st.floats()
    | st.text(max_size=3)
    | st.none()
)


@pytest.mark.fault(28)
@quick
@given(offset=WRONG, right=st.sampled_from([0, 1, MAX_OFFSET - 1, MAX_OFFSET]))
def test_an_offset_that_is_none_is_refused_at_every_door(offset: Any, right: int) -> None:
    """By handle, by group and by HTTP; nothing of it is kept, and the edges of int64 are taken."""
    core = Core(0)
    handle, where = core.handles[0], TopicPartition("t", 0)
    for refuse in (handle.submit, handle.rewind):
        with pytest.raises(InvalidValueError):
            refuse(offset)
    with pytest.raises(InvalidValueError):
        core.factory.submit(GROUP, {where: offset})
    with pytest.raises(InvalidValueError):
        decode(SubmitRequest, _body(offset))
    assert handle.status().submitted is None
    handle.submit(right)
    assert decode(SubmitRequest, _body(right)).submissions() == {where: right}
    core.system.advance(LONG_S)
    assert core.committed() == {0: right}


def _body(offset: object) -> bytes:
    entry = {"topic": "t", "partition": 0, "offset": offset}
    return json.dumps({"group": GROUP, "offsets": [entry]}).encode()


@pytest.mark.fault(33)
@quick
@given(
    seed=st.integers(0, 2**32 - 1),
    crashes=st.lists(st.tuples(st.integers(0, 2), st.floats(0, 2)), max_size=8),
)
def test_an_actor_that_raises_is_restarted_and_its_siblings_are_unhurt(
    seed: int, crashes: list[tuple[int, float]]
) -> None:
    """Whichever managers crash and when: all that was submitted is committed, by all of them."""
    core = Core(seed)
    with silence():
        for number, (victim, pause_s) in enumerate(crashes):
            for handle in core.handles:
                handle.submit(number)
            ref = core.handles[victim]._state.ref
            if ref is not None:
                ref.try_tell(POISON)
            core.system.advance(pause_s)
        for handle in core.handles:
            handle.submit(100)
        core.system.advance(LONG_S)
    assert core.committed() == dict.fromkeys(range(3), 100)
    assert {handle.status().phase for handle in core.handles} == {"ready"}


@pytest.mark.fault(19)
@settings(parent=quick, max_examples=10)
@given(jumps=st.lists(st.tuples(st.integers(1, 19), st.sampled_from([-DAY_S, DAY_S]))))
def test_a_wall_clock_that_jumps_by_a_day_moves_no_interval(
    jumps: list[tuple[int, float]],
) -> None:
    """Commits, keep-alive and leases come just when they do under a wall clock that stays."""
    assert _requests(jumps) == _requests([])


def _requests(jumps: Sequence[tuple[int, float]]) -> list[tuple[str, float]]:
    """What the service asks of Kafka and when, with a client that goes silent in between."""
    host = Host(0)
    rng = random.Random(0)  # noqa: S311 -- to be replayed
    judge = ServiceJudge()
    judge.begin(host)
    network = Network(host, rng, judge.met)
    network.rate = 0.0
    Wire.network = network
    with (
        silence(),
        simulated_time(host.clock, rng),
        mock.patch("offsetmgr.client.transport.Connection", Wire),
    ):
        service = _service(host, judge, network, rng)
        key = ManagerKey(GROUP, "t", 0)
        driver = Driver(host, judge, "driver", 1, [key])
        for second in range(1, 20):
            for _, by_s in (jump for jump in jumps if jump[0] == second):
                jump_wall(by_s)
            if second < 12:
                driver.submit(key, second // 4)
            elif second == 12:
                driver.process.kill()
            host.advance(1.0)
        assert service.assembly.service.owner(key) is None, "the lease has not lapsed"
        requests: list[tuple[str, float]] = [
            (each.operation, each.started_s) for each in service.coordinator.requests
        ]
        service.process.kill()
    return requests


def _service(
    host: Host, judge: ServiceJudge, network: Network, rng: random.Random
) -> ServiceProcess:
    service = ServiceProcess(
        host,
        1,
        network,
        CommitSettings(commit_interval_s=0.5, request_timeout_s=1.0, recommit_interval_s=2.0),
        4.0,
        rng,
        latency_s=0.01,
        plan=lambda _request: None,
        broker=WatchedBroker(_Indifferent()),
        judge=judge,
    )
    judge.began(service)
    network.server = service
    return service


class _Indifferent(Referee):
    """A judge who has no rules."""

    def read(self, group: str, found: object) -> None:
        """Fine."""

    def took_effect(self, group: str, offsets: object) -> None:
        """Fine."""
