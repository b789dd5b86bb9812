"""The thread that reads the service's event stream: commits and failures, as they come."""

from __future__ import annotations

import json
import logging
import random
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from offsetmgr.client import wire
from offsetmgr.client.backoff import SendTimes
from offsetmgr.client.deadline import Deadline
from offsetmgr.client.transport import CONNECT_TIMEOUT_S
from offsetmgr.errors import ClientFencedError, OffsetManagerError, ServiceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.client.core import Core
    from offsetmgr.client.transport import Connection

READ_TIMEOUT_S: Final = 30.0
"""The service says something every 10 s: after three of them in silence it is gone."""

MAX_EVENT_BYTES: Final = 1024 * 1024
"""An event longer than this is no event of ours."""


class ServerSentEvent(NamedTuple):
    """One event."""

    event: str
    """Its type, "message" where the stream names none."""
    data: str
    last_id: str
    """The newest id seen on the stream up to here, "" where there was none."""


class EventTooLongError(ValueError):
    """The stream sent an event longer than `MAX_EVENT_BYTES`."""


class EventParser:
    """Bytes in, events out, as the HTML standard tells; comments and `retry` are passed over."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._after_cr = False
        self._event = ""
        self._data: list[str] = []
        self._data_bytes = 0
        self._last_id = ""

    def feed(self, piece: bytes) -> Iterator[ServerSentEvent]:
        """The events which `piece` completes."""
        for line in self._lines(piece):
            if line:
                self._field(line)
                continue
            if self._data:
                yield ServerSentEvent(
                    self._event or "message", "\n".join(self._data), self._last_id
                )
            self._event, self._data, self._data_bytes = "", [], 0

    def _lines(self, piece: bytes) -> Iterator[str]:
        """Whole lines; they end with CR, LF or both."""
        for line in piece.splitlines(keepends=True):
            if self._after_cr and line == b"\n":  # a CR LF that was cut in two
                self._after_cr = False
                continue
            self._after_cr = line.endswith(b"\r")
            self._rest += line
            if len(self._rest) + self._data_bytes > MAX_EVENT_BYTES:
                raise EventTooLongError(f"an event of more than {MAX_EVENT_BYTES} bytes")
            if line.endswith((b"\n", b"\r")):
                text = self._rest.rstrip(b"\r\n").decode("utf-8", "replace")
                self._rest.clear()
                yield text

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._data_bytes += len(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._last_id = value


log = logging.getLogger("offsetmgr.client")


class EventReader:
    """Reads until the client is closed or fenced; reconnects and goes on where it was."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._times = SendTimes(random.Random())  # noqa: S311 -- jitter is no secret
        self._connection: Connection | None = None
        self._last_id = ""
        """Rises over restarts of the service too, so that it can be named to any of them."""

    def run(self) -> None:
        """Read until the client ends."""
        ended = self._core.ended
        self._await_first_event()
        while not ended.is_set() and self._core.fenced is None:
            try:
                self._read()
            except ClientFencedError as error:
                self._core.fence(error)
                return
            except (OffsetManagerError, EventTooLongError) as error:
                log.debug("event stream: %s", error)
            now = time.monotonic()
            self._times.failed(now)
            ended.wait(self._times.resume_at - now)

    def _await_first_event(self) -> None:
        """Wait until the service was met: a stream from nowhere misses what fails before it opens.

        The sender meets the service before it hands anything over that could fail.
        """
        core = self._core
        with core.lock:
            core.changed.wait_for(
                lambda: core.first_event_id or core.ended.is_set() or core.fenced is not None
            )

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
        connection = self._core.session.connect(Deadline(CONNECT_TIMEOUT_S))
        self._connection = connection
        try:
            if self._core.ended.is_set():
                return
            last_id = self._last_id or self._core.first_event_id
            pieces = self._core.session.stream(connection, wire.EVENTS, last_id, READ_TIMEOUT_S)
            parser = EventParser()
            for piece in pieces:
                for event in parser.feed(piece):
                    self._apply(event)
                    self._times.succeeded()
                if self._core.ended.is_set():
                    return
        finally:
            self._connection = None
            connection.close()

    def _apply(self, event: ServerSentEvent) -> None:
        if event.last_id:
            self._last_id = event.last_id
        try:
            self._tell(event)
        except ServiceError as error:  # a newer service may tell more than we know
            log.debug("event ignored: %s", error)

    def _tell(self, event: ServerSentEvent) -> None:
        with wire.reading(f"the event {event.event!r}"):
            data = json.loads(event.data)
            if event.event == "committed":
                self._core.committed(wire.key_of(data), wire.offset_of(data))
            elif event.event == "failed":
                key = wire.key_of(data)
                self._core.deliver(key, wire.error_of(data["error"], key))
            elif event.event == "stopped":
                self._core.released(wire.key_of(data))
            elif event.event == "dropped":
                self._lose(data)

    def _lose(self, data: dict[str, Any]) -> None:
        count = int(data["count"])
        if "group" not in data:
            log.warning("%d errors were dropped: more came at once than the service keeps", count)
            return
        key = wire.key_of(data)
        text = "%d errors of %s were dropped: more came at once than the service keeps"
        log.warning(text, count, key)
        self._core.lose(key, count)
