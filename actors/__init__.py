"""Actors on a shared pool of threads: pykka with supervision, timers, bounds and a simulator."""

from __future__ import annotations

from actors.actor import ActorRef, ActorSystem, InboxFullError, PooledActor
from actors.dispatcher import Dispatcher, PoolDispatcher, Runnable, Strand
from actors.future import Future
from actors.timers import Clock, MonotonicClock, ThreadTimers, TimerHandle, Timers

__all__ = [
    "ActorRef",
    "ActorSystem",
    "Clock",
    "Dispatcher",
    "Future",
    "InboxFullError",
    "MonotonicClock",
    "PoolDispatcher",
    "PooledActor",
    "Runnable",
    "Strand",
    "ThreadTimers",
    "TimerHandle",
    "Timers",
]
