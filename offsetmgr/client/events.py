"""The thread that reads the service's event stream: commits and failures, as they come."""

from __future__ import annotations

import json
import logging
import random
import time
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.client import wire
from offsetmgr.client.sender import SendTimes
from offsetmgr.client.transport import Unreachable
from offsetmgr.errors import ClientFencedError, OffsetManagerError, ServiceError

if TYPE_CHECKING:
    from offsetmgr.client.core import Core

READ_TIMEOUT_S: Final = 30.0
"""The service sends something every 10 s: after three of them in silence it is gone."""

MAX_EVENT_BYTES: Final = 1024 * 1024
"""An event longer than this is no event of ours."""

log = logging.getLogger("offsetmgr.client")


class EventParser:
    """Server-sent events as our service writes them: lines that end with LF."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[dict[str, str]]:
        """Return the events which `piece` completes, as their fields."""
        *texts, self._rest = (self._rest + piece).split(b"\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise Unreachable(f"sent an event of more than {MAX_EVENT_BYTES} bytes")
        lines = (text.decode("utf-8", "replace").split("\n") for text in texts)
        events = [dict(line.split(": ", 1) for line in each if ": " in line) for each in lines]
        return [event for event in events if "data" in event]


class EventReader:
    """Reads until the client is closed or fenced; reconnects and goes on where it was."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._times = SendTimes(random.Random())  # noqa: S311 -- jitter is no secret
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
            except OffsetManagerError as error:
                log.debug("event stream: %s", error)
            now = time.monotonic()
            self._times.failed(now)
            core.ended.wait(self._times.resume_at - now)

    def _read(self) -> None:
        core, parser = self._core, EventParser()
        pieces = core.session.stream(wire.EVENTS, self._last_id, READ_TIMEOUT_S)
        with closing(pieces):
            for event in chain.from_iterable(map(parser.feed, pieces)):
                self._last_id = event.get("id", self._last_id)
                try:
                    self._apply(event.get("event", ""), event["data"])
                except ServiceError as error:  # a newer service may send more than we know
                    log.debug("event ignored: %s", error)
                self._times.succeeded()
                if core.ended.is_set():
                    return

    def _apply(self, event: str, text: str) -> None:
        with wire.reading(f"the event {event!r}"):
            data = json.loads(text)
            if event == "committed":
                self._core.committed(wire.key_of(data), wire.offset_of(data))
            elif event == "failed":
                key = wire.key_of(data)
                self._core.deliver(key, wire.error_of(data["error"], key))
            elif event == "dropped":
                self._lose(data)

    def _lose(self, data: dict[str, Any]) -> None:
        count, key = int(data["count"]), wire.key_of(data) if "group" in data else None
        whose = "" if key is None else f" of {key}"
        text = "%d errors%s were dropped: more came at once than the service keeps"
        log.warning(text, count, whose)
        if key is not None:
            self._core.lose(key, count)
