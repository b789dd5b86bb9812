"""The thread that reads the service's event stream: commits and failures, as they come."""

from __future__ import annotations

import json
import logging
import random
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from offsetmgr.client import wire
from offsetmgr.client.sender import SendTimes
from offsetmgr.client.transport import CONNECT_TIMEOUT_S, Deadline
from offsetmgr.errors import ClientFencedError, OffsetManagerError, ServiceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.client.core import Core
    from offsetmgr.client.transport import Connection

READ_TIMEOUT_S: Final = 30.0
"""The service sends something every 10 s: after three of them in silence it is gone."""

MAX_EVENT_BYTES: Final = 1024 * 1024
"""An event longer than this is no event of ours."""

log = logging.getLogger("offsetmgr.client")


class ServerSentEvent(NamedTuple):
    """One event of a stream; its id is "" where it has none."""

    event: str
    data: str
    id: str


class EventTooLongError(ValueError):
    """The stream sent an event longer than `MAX_EVENT_BYTES`."""


class EventParser:
    """Server-sent events as our service writes them: lines that end with LF."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[ServerSentEvent]:
        """Yield the events which `piece` completes."""
        self._rest += piece
        *texts, self._rest = self._rest.split(b"\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLongError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        for text in texts:
            lines = text.decode("utf-8", "replace").split("\n")
            fields = {name: value for name, _, value in (line.partition(": ") for line in lines)}
            if "data" in fields:
                yield ServerSentEvent(
                    fields.get("event", "message"), fields["data"], fields.get("id", "")
                )


class EventReader:
    """Reads until the client is closed or fenced; reconnects and goes on where it was."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._times = SendTimes(random.Random())  # noqa: S311 -- jitter is no secret
        self._connection: Connection | None = None
        self._last_id = ""
        """Rises over restarts of the service too, so that it can be named to any of them."""

    def run(self) -> None:
        core = self._core
        with core.lock:
            # A stream from nowhere misses what fails before it opens.  The sender meets the service
            # before it hands anything over that could fail.
            core.changed.wait_for(
                lambda: core.first_event_id or core.ended.is_set() or core.fenced is not None
            )
            self._last_id = core.first_event_id
        while not core.ended.is_set() and core.fenced is None:
            try:
                self._read()
            except ClientFencedError as error:
                core.fence(error)
                return
            except (OffsetManagerError, EventTooLongError) as error:
                log.debug("event stream: %s", error)
            now = time.monotonic()
            self._times.failed(now)
            core.ended.wait(self._times.resume_at - now)

    def abort(self) -> None:
        """End a read that another thread is in."""
        connection = self._connection
        if connection is not None:
            connection.abort()

    def close(self) -> None:
        """Close what the thread left open that did not come along in a fork."""
        connection = self._connection
        if connection is not None:
            connection.close()

    def _read(self) -> None:
        session = self._core.session
        connection = self._connection = session.connect(Deadline(CONNECT_TIMEOUT_S))
        parser = EventParser()
        try:
            if self._core.ended.is_set():
                return
            for piece in session.stream(connection, wire.EVENTS, self._last_id, READ_TIMEOUT_S):
                for event in parser.feed(piece):
                    self._last_id = event.id or self._last_id
                    try:
                        self._apply(event)
                    except ServiceError as error:  # a newer service may send more than we know
                        log.debug("event ignored: %s", error)
                    self._times.succeeded()
                if self._core.ended.is_set():
                    return
        finally:
            self._connection = None
            connection.close()

    def _apply(self, event: ServerSentEvent) -> None:
        with wire.reading(f"the event {event.event!r}"):
            data = json.loads(event.data)
            if event.event == "committed":
                self._core.committed(wire.key_of(data), wire.offset_of(data))
            elif event.event == "failed":
                key = wire.key_of(data)
                self._core.deliver(key, wire.error_of(data["error"], key))
            elif event.event == "dropped":
                self._lose(data)

    def _lose(self, data: dict[str, Any]) -> None:
        count, key = int(data["count"]), wire.key_of(data) if "group" in data else None
        whose = "" if key is None else f" of {key}"
        text = "%d errors%s were dropped: more came at once than the service keeps"
        log.warning(text, count, whose)
        if key is not None:
            self._core.lose(key, count)
