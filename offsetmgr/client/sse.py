"""Server-Sent Events out of bytes, however the network cut them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

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
