"""Writes messages to one topic, from any program."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from concurrent.futures import TimeoutError as NotAnsweredError
from typing import TYPE_CHECKING, Any

from offsetmgr.errors import OffsetManagerError, OffsetTimeoutError
from offsetmgr.streams.codecs import check_codec, encoded
from offsetmgr.streams.errors import ProcessorError
from offsetmgr.streams.messages import Record, decode_key, encode_key, header_list
from offsetmgr.text import shown
from offsetmgr.types import check_timeout, check_topic

if TYPE_CHECKING:
    from concurrent.futures import Future

    from typing_extensions import Self

    from offsetmgr.answers import Written
    from offsetmgr.streams.codecs import Codec
    from offsetmgr.streams.messages import Headers


class EmitterClosedError(OffsetManagerError):
    """The emitter was finished before."""

    code = "emitter_closed"

    @classmethod
    def of(cls, record: Record) -> EmitterClosedError:
        key = shown(decode_key(record.key))
        text = f"the emitter of {record.topic} is finished, so key {key} was not written"
        return cls(f"{text}: emit before finish()")


class Emitter(ABC):
    """Encodes values and writes them, in the partitions that processors and views expect.

    Returned by ``kafka_emitter`` and by ``Tester.add_emitter``.
    """

    def __init__(self, topic: str, codec: Codec, default_headers: Headers | None = None) -> None:
        """``default_headers`` are added to each message that has no header of that name."""
        check_codec(codec, "codec", "encode")
        self.topic = check_topic(topic)
        self._codec = codec
        self._default_headers = dict(header_list(default_headers))
        self._closed = False
        """True once messages are refused."""
        self._finished = False
        self._error: BaseException | None = None

    def emit(self, key: str, value: Any, headers: Headers | None = None) -> Future[Written]:
        """Write a message; what is returned has ``result(timeout)`` and ``add_done_callback``.

        A value of None is a tombstone.  Raises InvalidValueError for a wrong key or header, what
        the codec raises, and EmitterClosedError; ManagerStoppedError in the child of a fork.
        """
        data = None if value is None else encoded(self._codec, value)
        every = header_list(headers, self._default_headers)
        outcome = self._write(Record(self.topic, encode_key(key), data, every))
        outcome.add_done_callback(self._done)
        return outcome

    def emit_sync(
        self, key: str, value: Any, headers: Headers | None = None, *, timeout: float | None = None
    ) -> Written:
        """Write a message and wait until Kafka has it; raises as ``emit``, and KafkaRequestError.

        Raises OffsetTimeoutError after ``timeout`` seconds; it may be written all the same.
        """
        wait_s = check_timeout(timeout, forever=True)
        self._check_may_wait()
        outcome = self.emit(key, value, headers)
        try:
            return outcome.result(min(wait_s, threading.TIMEOUT_MAX))
        except NotAnsweredError:
            if outcome.done():
                raise
            text = f"key {shown(key)} was not written to {self.topic} within {timeout} s"
            raise OffsetTimeoutError(f"{text}; it may be written later") from None

    def finish(self) -> None:
        """Wait until all is written or refused, and end.  Raises the first error of a message."""
        if self._finished:
            return
        self._check_may_wait()
        self._close()
        self._finished = True
        if self._error is not None:
            raise self._error

    @abstractmethod
    def _write(self, record: Record) -> Future[Written]:
        """Return where the record is, once it is written.  Raises EmitterClosedError."""

    @property
    def _in_callback(self) -> bool:
        """True in a callback of a message, where a wait would not end."""
        return False

    def _check_may_wait(self) -> None:
        if self._in_callback:
            text = "an emitter cannot wait in a callback of a message, which holds up all others"
            raise ProcessorError(f"{text}: call emit() there, and finish() in another thread")

    def _close(self) -> None:
        """Wait until all records are written or refused, and end."""
        self._closed = True

    def _done(self, outcome: Future[Written]) -> None:
        self._error = self._error or outcome.exception()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()
