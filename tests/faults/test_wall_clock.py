"""A wall clock that jumps by a day, back and forth, under a running service."""

from __future__ import annotations

import itertools
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.support import running

if TYPE_CHECKING:
    import httpx

_DAY_S = 86_400


@pytest.fixture
def jumping_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the wall clock shows another day."""
    real, days = time.time, itertools.cycle((0, 1, -1, 1, 0, -1))
    monkeypatch.setattr(time, "time", lambda: real() + next(days) * _DAY_S)


def submit(http: httpx.Client, offset: int, **more: Any) -> Any:
    body = {"group": "g", "offsets": [{"topic": "t", "partition": 0, "offset": offset}], **more}
    return http.post("/v1/offsets", json=body).raise_for_status().json()


@pytest.mark.fault(19)
def test_a_clock_that_jumps_by_a_day_changes_no_interval(jumping_clock: None) -> None:
    """Commits come in their interval, no lease lapses, no deadline is over before its time."""
    with running() as service, service.http("etl") as http:
        for offset in range(1, 11):
            answer = submit(http, offset, wait=True, timeout_s=60)
            assert (len(answer["committed"]), answer["uncommitted"]) == (1, [])
        (manager,) = http.get("/v1/managers").raise_for_status().json()["managers"]
        assert manager["client"] == "etl"
        # Without anybody waiting, the interval alone commits it.
        submit(http, 11)
        with http.stream("GET", "/v1/events") as events:
            data = (line.removeprefix("data:") for line in events.iter_lines() if "data:" in line)
            told = (json.loads(each).get("offset") for each in data)
            assert 11 in itertools.islice(told, 10)

        service.coordinator.pause()
        began_s = time.monotonic()
        (left,) = submit(http, 12, wait=True, timeout_s=0.5)["uncommitted"]
        assert left["offset"] == 12
        assert time.monotonic() - began_s > 0.4
        service.coordinator.resume()
        assert submit(http, 13, wait=True, timeout_s=60)["uncommitted"] == []
