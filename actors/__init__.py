"""Actors on a shared pool of threads: pykka with supervision, timers, bounds and a simulator."""

from __future__ import annotations

from actors.actor import PooledActor
from actors.dispatcher import Dispatcher, PoolDispatcher, Runnable
from actors.errors import ActorCrashedError, InboxFullError, MailboxClosed, SystemStoppedError
from actors.future import Future
from actors.mailbox import Conflated, DropOldest, Latest, Mailbox, OneShot
from actors.ref import ActorRef
from actors.supervision import DEFAULT, ChildStopped, Directive, Supervision
from actors.system import ActorSystem
from actors.timers import Clock, MonotonicClock, TimerHandle, Timers

__all__ = [
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
]
