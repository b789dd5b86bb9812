"""The thread that reads the service's event stream: commits and failures, as they come."""

from __future__ import annotations

import json
import logging
import random
import time
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.client import wire
from offsetmgr.client.deadline import Deadline
from offsetmgr.client.pace import Pace
from offsetmgr.client.sse import EventParser, EventTooLongError, ServerSentEvent
from offsetmgr.client.transport import CONNECT_TIMEOUT_S
from offsetmgr.errors import ClientFencedError, OffsetManagerError, ServiceError

if TYPE_CHECKING:
    from offsetmgr.client.core import Core
    from offsetmgr.client.transport import Connection

READ_TIMEOUT_S: Final = 30.0
"""The service says something every 10 s: after three of them in silence it is gone."""

log = logging.getLogger("offsetmgr.client")


class EventReader:
    """Reads until the client is closed or fenced; reconnects and goes on where it was."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._pace = Pace(random.Random())  # noqa: S311 -- jitter is no secret
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
            self._pace.failed(now)
            ended.wait(self._pace.resume_at - now)

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
            self._pace.heard(time.monotonic())
            parser = EventParser()
            for piece in pieces:
                for event in parser.feed(piece):
                    self._apply(event)
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
            log.debug("event passed over: %s", error)

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
            log.warning("%d failures were not told: too many at once", count)
            return
        key = wire.key_of(data)
        log.warning("%d failures of %s were not told: too many at once", count, key)
        self._core.lose(key, count)
