"""Writes messages to one topic, from any program."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

from offsetmgr.errors import OffsetManagerError, shown
from offsetmgr.streams.messages import Record, encode_key
from offsetmgr.types import check_topic

if TYPE_CHECKING:
    from concurrent.futures import Future
    from types import TracebackType

    from typing_extensions import Self

    from offsetmgr.streams.codecs import Codec
    from offsetmgr.streams.messages import Headers


class EmitterClosedError(OffsetManagerError):
    """The emitter was finished before."""

    code = "emitter_closed"


class Writer(Protocol):
    """Writes records for an emitter."""

    def write(self, record: Record) -> Future[int]:
        """Return the record's offset, once it is written; never waits."""

    def close(self) -> None:
        """End; nothing is left to write."""


class Emitter:
    """Encodes values and writes them, in the partitions that processors and views expect."""

    def __init__(
        self, writer: Writer, topic: str, codec: Codec, default_headers: Headers | None = None
    ) -> None:
        """``default_headers`` go with each message, unless it has its own of that name."""
        self.topic = check_topic(topic)
        self._writer = writer
        self._codec = codec
        self._default_headers = dict(default_headers or {})
        self._changed = threading.Condition()
        self._unwritten = 0
        self._finished = False

    def emit(self, key: str, value: Any, headers: Headers | None = None) -> Future[int]:
        """Write a message and return its offset to come, with ``add_done_callback``.

        A value of None is a tombstone.  Raises what the codec raises; EmitterClosedError.
        """
        data = None if value is None else self._codec.encode(value)
        every = {**self._default_headers, **(headers or {})}
        with self._changed:
            if self._finished:
                raise EmitterClosedError(
                    f"the emitter of {self.topic} is finished, so key {shown(key)} was not "
                    "written: emit before finish()"
                )
            self._unwritten += 1
        try:
            record = Record(self.topic, encode_key(key), data, tuple(every.items()))
            offset = self._writer.write(record)
        except BaseException:
            self._written()
            raise
        offset.add_done_callback(self._written)
        return offset

    def emit_sync(
        self, key: str, value: Any, headers: Headers | None = None, *, timeout: float | None = None
    ) -> int:
        """Write a message, wait until Kafka has it, and return its offset.

        Raises as ``emit`` does, what Kafka said, and TimeoutError after ``timeout`` seconds.
        """
        return self.emit(key, value, headers).result(timeout)

    def finish(self) -> None:
        """Wait until all messages are written or refused, then end; twice is harmless."""
        with self._changed:
            if self._finished:
                return
            self._finished = True
            self._changed.wait_for(lambda: not self._unwritten)
        self._writer.close()

    def _written(self, _: object = None) -> None:
        with self._changed:
            self._unwritten -= 1
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.finish()
