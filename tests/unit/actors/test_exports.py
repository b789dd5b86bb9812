"""The names that others build on."""

from __future__ import annotations

import subprocess
import sys

import actors
import actors.testing

PUBLIC = {
    "DEFAULT",
    "ActorCrashedError",
    "ActorRef",
    "ActorSystem",
    "ChildStopped",
    "Clock",
    "Conflated",
    "Directive",
    "Dispatcher",
    "DropOldest",
    "Future",
    "InboxFullError",
    "Latest",
    "Mailbox",
    "MailboxClosed",
    "MonotonicClock",
    "OneShot",
    "PoolDispatcher",
    "PooledActor",
    "Runnable",
    "Supervision",
    "SystemStoppedError",
    "TimerHandle",
    "Timers",
}


def test_the_public_names_are_these() -> None:
    """A name that is added, renamed or lost is a decision, not an accident."""
    assert set(actors.__all__) == PUBLIC
    assert all(hasattr(actors, name) for name in PUBLIC)
    assert actors.testing.__all__ == ["ManualClock", "SimSystem", "SimulationError", "Step"]


def test_importing_actors_brings_nothing_of_kafka() -> None:
    """The runtime stands on pykka and structlog alone, and knows no package of ours."""
    code = "import actors.testing, sys; print(*{name.split('.')[0] for name in sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(found.stdout.split())
    assert {"actors", "pykka", "structlog"} <= loaded
    assert not loaded & {"offsetmgr", "confluent_kafka", "msgspec", "starlette", "pyspark"}
