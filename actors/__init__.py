"""Actors on a shared pool of threads: pykka with supervision, timers, bounds and a simulator."""

from __future__ import annotations

from actors.actor import ActorRef, ActorSystem, InboxFullError, PooledActor
from actors.dispatcher import Dispatcher, PoolDispatcher, Runnable
from actors.future import Future
from actors.mailbox import DropOldest, Latest, Mailbox, MailboxClosed, OneShot
from actors.timers import Clock, MonotonicClock, ThreadTimers, TimerHandle, Timers

__all__ = [
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
    "ThreadTimers",
    "TimerHandle",
    "Timers",
]
