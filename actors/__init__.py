"""Actors on a shared pool of threads: pykka with supervision, timers, bounds and a simulator."""

from __future__ import annotations

from actors.actor import ActorRef, PooledActor
from actors.dispatcher import Dispatcher, PoolDispatcher, Runnable
from actors.errors import InboxFullError, MailboxClosed, SystemStoppedError
from actors.future import Future
from actors.mailbox import DropOldest, Latest, Mailbox, OneShot
from actors.supervision import DEFAULT, NEVER_GIVE_UP, Supervision
from actors.system import ActorSystem
from actors.timers import Clock, MonotonicClock, ThreadTimers, TimerHandle, Timers

__all__ = [
    "DEFAULT",
    "NEVER_GIVE_UP",
    "ActorRef",
    "ActorSystem",
    "Clock",
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
    "ThreadTimers",
    "TimerHandle",
    "Timers",
]
