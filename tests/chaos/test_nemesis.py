"""What the nemesis may meet: processes that have just ended, or are about to."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from offsetmgr.devkafka import DevKafka
from tests.chaos.history import EventLog, Key, Tag
from tests.chaos.nemesis import Nemesis, Targets
from tests.chaos.plan import Fault, Injection
from tests.chaos.processes import Supervised, cut_connections
from tests.chaos.workload import Life, reached

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_END_S = 30.0
_SLEEP = ["timeit", "-n1", "-r1", "import time; time.sleep(600)"]


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Supervised]:
    """A process that does nothing, and has no connections."""
    process = Supervised("sleeper", tmp_path / "log", lambda _: _SLEEP, frozenset())
    process.start()
    yield process
    process.close()


def test_a_process_that_has_ended_has_nothing_to_cut() -> None:
    """It is told apart from one that may not be touched."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(_END_S)
    with pytest.raises(ProcessLookupError):
        cut_connections(process.pid)


def test_a_fault_that_finds_no_target_is_missed(sleeper: Supervised) -> None:
    """Be it connections, or the whole process."""
    nemesis = Nemesis(Targets(DevKafka(), sleeper, [], []))
    assert nemesis.inject(Injection(0.0, 1.0, Fault.SERVICE_CUT, 0)) is None
    assert (nemesis.missed, nemesis.injected) == (1, {})
    assert nemesis.inject(Injection(0.0, 1.0, Fault.SERVICE_KILL, 0)) is None
    assert (nemesis.missed, nemesis.injected) == (1, {Fault.SERVICE_KILL.value: 1})
    assert sleeper.process.wait(_END_S)
    for fault in (Fault.SERVICE_CUT, Fault.SERVICE_PAUSE, Fault.SERVICE_TERM):
        assert nemesis.inject(Injection(0.0, 1.0, fault, 0)) is None
    assert nemesis.missed == 4


def test_a_client_is_replaced_only_when_it_has_begun(sleeper: Supervised, tmp_path: Path) -> None:
    """One that was frozen while it started would take over from its own successor."""
    life = Life(tmp_path, "", "sleeper", 1, 0, "orders", (0,), ("etl",))
    nemesis = Nemesis(Targets(DevKafka(), sleeper, [sleeper], [life]))
    zombie = Injection(0.0, 1.0, Fault.CLIENT_ZOMBIE, 0)
    assert nemesis.inject(zombie) is None
    assert (nemesis.missed, sleeper.life) == (1, 1)
    log = EventLog(tmp_path, "sleeper", 1)
    assert nemesis.inject(zombie) is None
    log.write("invoke", "submit", Tag("sleeper", 1, 1), Key("etl", 0), 10)
    assert nemesis.inject(zombie) is not None
    assert (nemesis.missed, sleeper.life) == (2, 2)
    nemesis.close()


def test_who_was_told_to_end_does_not_stay(sleeper: Supervised) -> None:
    """It must take no further orders, which would be lost with it or hit its next life."""
    assert sleeper.stays()
    sleeper.kill()
    assert not sleeper.stays()
    assert sleeper.process.wait(_END_S)
    sleeper.process.close()
    sleeper.start()
    assert sleeper.stays()


def test_a_life_goes_on_where_the_ones_before_it_came_to(tmp_path: Path) -> None:
    """The newest life that submitted to a key counts, and what was lower does not."""
    for number, partition, offset in ((1, 0, 10), (1, 1, 20), (2, 0, 30), (9, 0, 40), (10, 0, 35)):
        path = EventLog(tmp_path, "driver", number * 10 + partition)
        path.write("invoke", "submit", Tag("driver", number, 1), Key("etl", partition), offset)
        path.write("invoke", "lower", Tag("driver", number, 2), Key("etl", partition), offset - 1)
    life = Life(tmp_path, "", "driver", 200, 0, "orders", (0, 1), ("etl",))
    assert reached(life) == {Key("etl", 0): 35, Key("etl", 1): 20}
