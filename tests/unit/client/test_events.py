"""The event stream: what handles are told while it lives, breaks and comes back."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

from offsetmgr.client import core, wire
from offsetmgr.client.partitions import ERROR_LIMIT
from offsetmgr.errors import OffsetCommitError, OffsetFetchError, OffsetRegressionError
from offsetmgr.types import ManagerKey, OffsetAndMetadata
from tests.unit.client.scripted import DENIED, DROP, KEY, Fault, error_body
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.client import OffsetClient
    from tests.unit.client.scripted import Json, ScriptedService


def committed(offset: int) -> Json:
    return {**KEY._asdict(), **OffsetAndMetadata(offset)._asdict()}


def failed(offset: int | None) -> Json:
    error = {"code": "NOT_COORDINATOR", "message": "m", "kafka_code": 16, "offset": offset}
    return {**KEY._asdict(), "error": error}


def test_no_stream_until_somebody_reads(service: ScriptedService, client: OffsetClient) -> None:
    """A client whose user never looks at events opens no stream for them."""
    client.spawn("g", "orders", 3).submit(1)
    client.flush()
    assert not service.of("/v1/events", "GET")


def test_errors(service: ScriptedService, client: OffsetClient) -> None:
    """Failures come in order and as what they are: commits with an offset, fetches without."""
    manager = client.spawn("g", "orders", 3)
    errors = manager.errors()
    service.wait_for_readers()
    service.emit("failed", failed(5), 1)
    service.emit("failed", failed(None), 2)
    regression = {"code": "offset_regression", "message": "m", "offset": 5, "floor": 9}
    service.emit("failed", {**KEY._asdict(), "error": regression}, 3)
    first, second, third = (errors.get(timeout=WAIT_S) for _ in range(3))
    assert isinstance(first, OffsetCommitError)
    assert (first.offset, first.retriable) == (5, True)
    assert isinstance(second, OffsetFetchError)
    assert isinstance(third, OffsetRegressionError)


CHANGED = {"code": "OFFSET_CHANGED_EXTERNALLY", "message": "m", "kafka_code": 32_001}


@pytest.mark.parametrize("told", [{**CHANGED, "notice": True}, DENIED], ids=["reset", "refused"])
def test_the_same_offset_again(service: ScriptedService, client: OffsetClient, told: Json) -> None:
    """After a reset by somebody else, or a refusal for good, an equal offset is committed anew."""
    manager = client.spawn(*KEY)
    errors = manager.errors()
    service.wait_for_readers()
    client.submit("g", {KEY.topic_partition: 50}, sync=True)
    with service.lock:
        service.kafka[KEY] = OffsetAndMetadata(40)
    service.emit("failed", {**KEY._asdict(), "error": {**told, "offset": 50}}, 1)
    errors.get(timeout=WAIT_S)
    client.submit("g", {KEY.topic_partition: 50}, sync=True)
    assert service.kafka[KEY] == OffsetAndMetadata(50)
    before = service.paths()
    client.submit("g", {KEY.topic_partition: 50}, sync=True)
    assert client.flush().ok
    assert service.paths() == before, "what is committed is not sent again"


def test_unread_errors_are_bounded(service: ScriptedService, client: OffsetClient) -> None:
    """Unread errors make room for newer ones, and are counted."""
    manager = client.spawn("g", "orders", 3)
    errors = manager.errors()
    stream = manager.committed_offsets()
    service.wait_for_readers()
    for number in range(ERROR_LIMIT + 3):
        service.emit("failed", failed(number), number)
    service.emit("committed", committed(1))
    stream.get(timeout=WAIT_S)
    assert errors.dropped == 3
    first = errors.get(timeout=0)
    assert isinstance(first, OffsetCommitError)
    assert first.offset == 3


def test_a_broken_stream_goes_on_where_it_was(
    service: ScriptedService, client: OffsetClient
) -> None:
    """After a break the reader names the last failure it has seen, and repeats no commit."""
    manager = client.spawn("g", "orders", 3)
    stream = manager.committed_offsets()
    service.wait_for_readers()
    service.emit("committed", committed(1))
    service.emit("failed", failed(5), 41)
    service.emit("failed", failed(6), "ü€")  # with this one no stream would ever open again
    manager.errors().get(timeout=WAIT_S)
    assert stream.get(timeout=WAIT_S) == OffsetAndMetadata(1)
    service.down()
    service.wait_for(lambda: not service._readers)
    service.restart()
    service.up()
    service.wait_for_readers()
    assert service.of("/v1/events", "GET")[-1].headers["last-event-id"] == "41"
    service.emit("committed", committed(1))
    service.emit("committed", committed(2))
    assert stream.get(timeout=WAIT_S) == OffsetAndMetadata(2)


@pytest.mark.parametrize("event", ["committed", "failed", "stopped", "dropped", "news"])
def test_events_that_cannot_be_read_are_passed_over(
    service: ScriptedService, client: OffsetClient, event: str
) -> None:
    """An event of a newer service, or a broken one, ends neither the thread nor the stream."""
    stream = client.spawn("g", "orders", 3).committed_offsets()
    service.wait_for_readers()
    service.emit(event, {"count": "many", "group": 1})
    service.emit("committed", committed(1))
    assert stream.get(timeout=WAIT_S) == OffsetAndMetadata(1)
    assert len(service.of("/v1/events", "GET")) == 1


def test_no_stream_begins_before_the_service_was_met(
    service: ScriptedService, client: OffsetClient
) -> None:
    """It would miss what fails between its request and its beginning."""
    service.script("/v1/heartbeat", DROP, DROP)
    client.spawn("g", "orders", 3).errors()
    service.wait_for_readers()
    asked = [seen.headers.get("last-event-id") for seen in service.of("/v1/events", "GET")]
    assert asked == ["7"]


@pytest.mark.parametrize("newest", [-1, 10**30])
def test_an_odd_number_of_the_newest_event_keeps_no_stream_shut(
    service: ScriptedService, client: OffsetClient, newest: int
) -> None:
    """Such as of a service whose clock stands at 1970; no service takes that number."""
    beat = json.dumps({"lease_s": 30, "last_event_id": newest}).encode()
    service.script("/v1/heartbeat", Fault(status=200, body=beat))
    client.spawn(*KEY).errors()
    service.wait_for_readers()
    (asked,) = service.of("/v1/events", "GET")
    assert 0 <= int(asked.headers["last-event-id"]) < 2**63


def test_a_refused_event_stream_is_logged(
    service: ScriptedService,
    make_client: Callable[[str], OffsetClient],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kind: a client goes blind in silence, as where all streams of a service are taken."""
    monkeypatch.setattr(core, "FIRST_PAUSE_S", 0.001)
    client = make_client("etl")
    full = Fault(act=False, status=429, body=error_body("overloaded", "256 streams are open"))
    service.script("/v1/events", *[full] * 7)
    errors = client.spawn(*KEY).errors()
    service.wait_for_readers()
    service.emit("failed", failed(5), 1)
    assert isinstance(errors.get(timeout=WAIT_S), OffsetCommitError)
    (line,) = (each for each in caplog.messages if "sends no events" in each)
    assert "256 streams are open" in line


def test_no_thread_is_left(service: ScriptedService, client: OffsetClient) -> None:
    """A close ends both threads, though the event stream was waiting."""
    before = set(threading.enumerate())
    errors = client.spawn("g", "orders", 3).errors()
    service.wait_for_readers()
    new = set(threading.enumerate()) - before
    names = {"offsetmgr-etl", "offsetmgr-events-etl"}
    own = [thread for thread in new if thread.name in names]
    assert len(own) == len(names)
    client.close(timeout=WAIT_S)
    until(lambda: not any(thread.is_alive() for thread in own))
    assert list(errors) == []


def test_a_watcher_closes_its_client(service: ScriptedService, client: OffsetClient) -> None:
    """Such as of a fenced one: the close does not wait for the thread that calls the watcher."""
    closed: list[bool] = []
    client.watch_errors(lambda *_: closed.append(client.close(timeout=600).ok))
    client.submit("g", {KEY.topic_partition: 5}, sync=True)
    service.wait_for_readers()
    service.emit("failed", failed(5), 1)
    until(lambda: closed)
    assert closed == [True]


def test_texts_of_the_service_stay_on_one_line() -> None:
    """They repeat names of others: line breaks and the like are escaped, and it is cut."""
    text = "group a\n\x1b[2J" + "b" * 10_000
    kafka_error: dict[str, object] = {"kafka_code": 12, "hint": text, "offset": 5}
    for more in ({}, kafka_error):
        error = wire.error_of({"code": "odd\n", "message": text, **more}, ManagerKey("g", "t", 0))
        assert str(error).isprintable()
        assert len(str(error)) < 5_000
        assert error.code.isprintable()
