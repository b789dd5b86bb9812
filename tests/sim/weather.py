"""The faults of one simulated run: a random plan for the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from offsetmgr.coordinator.memory import Refuse, Respond, Unknown

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable
    from random import Random

    from offsetmgr.coordinator.memory import Incident, SentRequest
    from offsetmgr.types import TopicPartition

REQUEST_TIMEOUT_S: Final = 2.0

LATEST_LANDING_S: Final = 5.0 * REQUEST_TIMEOUT_S
"""A lost commit lands at most this long after it was sent, also when it has been looked for."""

_TIMED_OUT, _TRANSPORT, _NOT_COORDINATOR, _REQUEST_TIMED_OUT = -185, -195, 16, 7
_GROUP_CODES = (14, 25, 27, 89)
_PARTITION_CODES = (3, 88, 100)
_DENIED_PARTITION_CODES = (12, 29)
_DENIED_GROUP_CODES = (30,)


class Weather:
    """Faults by chance; each seed draws which kinds there are at all, and how often."""

    def __init__(self, rng: Random, met: Counter[str]) -> None:
        self._rng = rng
        self._met = met
        kinds: list[Callable[[SentRequest], Incident]] = [
            self._slow,
            self._beyond_the_deadline,
            self._refuse_all,
            self._refuse_some,
            self._deny,
            self._lose,
            self._half_apply,
            self._land_late,
        ]
        self._kinds = rng.sample(kinds, rng.randint(1, len(kinds)))
        self.rate = rng.choice((0.0, 0.05, 0.2, 0.5, 0.9))
        self.latency_s = rng.choice((0.0, 0.01, 0.3))
        self.calm = self.rate == 0.0
        """True if nothing goes wrong, so that nothing may be left uncommitted."""

    def be_calm(self) -> None:
        self.rate = 0.0
        self.calm = True

    def clear(self) -> None:
        self.rate = 0.0

    def plan(self, request: SentRequest) -> Incident | None:
        """Return the fault of ``request``; None if it is answered properly."""
        if self._rng.random() >= self.rate:
            return None
        kind = self._rng.choice(self._kinds)
        self._met[f"{request.operation}: {kind.__name__[1:].replace('_', ' ')}"] += 1
        return kind(request)

    def plan_question(self) -> Incident | None:
        """Return the fault of a question about topics; None if it is answered properly."""
        if self._rng.random() >= self.rate / 2:
            return None
        slow_s = self._rng.uniform(0.01, 1.5) * REQUEST_TIMEOUT_S
        faults: list[Incident] = [Respond(slow_s), Refuse(_TRANSPORT), Unknown(_TIMED_OUT)]
        return self._rng.choice(faults)

    def _some(self, request: SentRequest) -> list[TopicPartition]:
        named = sorted(request.partitions or ())
        return self._rng.sample(named, self._rng.randint(1, len(named)))

    def _slow(self, _request: SentRequest) -> Incident:
        return Respond(self._rng.uniform(0.01, 0.95) * REQUEST_TIMEOUT_S)

    def _beyond_the_deadline(self, _request: SentRequest) -> Incident:
        return Respond(self._rng.uniform(REQUEST_TIMEOUT_S + 0.001, LATEST_LANDING_S))

    def _refuse_all(self, _request: SentRequest) -> Incident:
        return Refuse(self._rng.choice(_GROUP_CODES))

    def _refuse_some(self, request: SentRequest) -> Incident:
        return Refuse(self._rng.choice(_PARTITION_CODES), self._some(request))

    def _deny(self, request: SentRequest) -> Incident:
        if self._rng.random() < 0.3:
            return Refuse(self._rng.choice(_DENIED_GROUP_CODES))
        return Refuse(self._rng.choice(_DENIED_PARTITION_CODES), self._some(request))

    def _unclear(self) -> int:
        return self._rng.choice((_TIMED_OUT, _TRANSPORT, _NOT_COORDINATOR, _REQUEST_TIMED_OUT))

    def _lose(self, _request: SentRequest) -> Incident:
        return Unknown(self._unclear(), self._rng.choice((None, 0.0)))

    def _half_apply(self, request: SentRequest) -> Incident:
        return Unknown(self._unclear(), 0.0, self._some(request))

    def _land_late(self, request: SentRequest) -> Incident:
        late_s = self._rng.uniform(0.0, LATEST_LANDING_S)
        return Unknown(self._unclear(), late_s, self._some(request))
