"""Runs processors, views and emitters in memory: no broker, no threads, no time.

Every topic has one partition.  ``consume`` returns once all that it has caused is processed.  This
defines what processors do; on Spark they come to the same tables and outputs.
"""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from offsetmgr.answers import Written
from offsetmgr.errors import InvalidValueError
from offsetmgr.streams.codecs import check_codec, encoded
from offsetmgr.streams.emitter import Emitter, EmitterClosedError
from offsetmgr.streams.engine import Engine, Tables, visit_value
from offsetmgr.streams.errors import ProcessingError, ProcessorError
from offsetmgr.streams.memory import MemoryStorage
from offsetmgr.streams.messages import (
    Message,
    Record,
    decode_key,
    encode_key,
    header_list,
    update_rows,
)
from offsetmgr.streams.rows import TableRows
from offsetmgr.text import error_text, listed
from offsetmgr.types import check_choice, check_moment, check_offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from offsetmgr.streams.codecs import Codec
    from offsetmgr.streams.engine import Context, Effects, NilHandling
    from offsetmgr.streams.graph import GroupGraph
    from offsetmgr.streams.messages import Headers

    EmitHandler = Callable[[Record], object]

MAX_MESSAGES: Final = 100_000
"""Messages that one ``consume`` may cause; more is a loop without an end."""


class MemoryTopics:
    """The messages of all topics, and what a table of each would hold."""

    def __init__(self) -> None:
        self.logs: defaultdict[str, list[tuple[int, Message]]] = defaultdict(list)
        """Of each topic by offset: a message, and its number among those of all topics."""
        self.rows: defaultdict[str, dict[bytes, bytes]] = defaultdict(dict)
        self.emit_handler: EmitHandler | None = None
        self._codecs: dict[str, Codec] = {}
        self._numbers = count()

    def append(self, record: Record, timestamp_ms: int = -1) -> int:
        """Add a message to its topic and return its offset."""
        topic, key, value, headers = record
        log = self.logs[topic]
        message = Message(topic, key, value, 0, len(log), timestamp_ms, headers)
        log.append((next(self._numbers), message))
        update_rows(self.rows[topic], key, value)
        return message.offset

    def write(self, record: Record) -> int:
        """Write what a processor or emitter emits, unless the emit handler is there for it."""
        if self.emit_handler is None:
            return self.append(record)
        self.emit_handler(record)
        update_rows(self.rows[record.topic], record.key, record.value)
        return -1

    def register(self, *used: tuple[str, Codec]) -> None:
        """Raise InvalidValueError, and register none, where a topic has a codec of another type."""
        known = dict(self._codecs)
        for topic, codec in used:
            first = known.setdefault(topic, codec)
            if type(first) is not type(codec):
                names = f"{type(first).__name__} and {type(codec).__name__}"
                fix = "use one for all who read or write it"
                raise InvalidValueError("topic", topic, f"has two codecs, {names}", fix)
        self._codecs = known

    def codec(self, topic: str) -> Codec:
        """Raise InvalidValueError where nothing that was added uses the topic."""
        if topic not in self._codecs:
            fix = f"add a processor, view or emitter with it first; known: {listed(self._codecs)}"
            raise InvalidValueError("topic", topic, "has no codec", fix)
        return self._codecs[topic]


class Tester:
    """A small Kafka in memory, with the processors, views and emitters that were added to it."""

    __test__ = False  # pytest would take it for a test

    def __init__(self) -> None:
        self._topics = MemoryTopics()
        self._processors: dict[str, TesterProcessor] = {}
        self._draining = False

    def add_processor(
        self,
        graph: GroupGraph,
        *,
        nil_handling: NilHandling = "ignore",
        default_headers: Headers | None = None,
        context_wrapper: Callable[[Context], Any] | None = None,
    ) -> TesterProcessor:
        """Start a processor at the ends of its inputs.  Arguments and errors as of ``Engine``."""
        engine = Engine(
            graph,
            nil_handling=nil_handling,
            default_headers=default_headers,
            context_wrapper=context_wrapper,
        )
        if graph.group in self._processors:
            fix = "add each group once"
            raise InvalidValueError("group", graph.group, "has a processor in this tester", fix)
        used = [(edge.topic, edge.codec) for edge in graph.all_edges if edge.codec is not None]
        self._topics.register(*used)
        processor = TesterProcessor(engine, self._topics, self.catch_up)
        self._processors[graph.group] = processor
        return processor

    def add_view(self, table: str, codec: Codec) -> TesterView:
        """Return a view of a table."""
        check_codec(codec, "codec", "decode")
        self._topics.register((table, codec))
        return TesterView(self._topics, table)

    def add_emitter(
        self, topic: str, codec: Codec, *, default_headers: Headers | None = None
    ) -> Emitter:
        """Return an emitter; ``emit`` returns when all that the message causes is processed."""
        emitter = _TesterEmitter(self._topics, self.catch_up, topic, codec, default_headers)
        self._topics.register((topic, codec))
        return emitter

    def queue_tracker(self, topic: str) -> QueueTracker:
        """Return a reader of what is written to ``topic`` from now on."""
        return QueueTracker(self._topics, topic)

    def consume(
        self,
        topic: str,
        key: str,
        value: Any,
        *,
        headers: Headers | None = None,
        timestamp: datetime | None = None,
    ) -> None:
        """Write a message as another program would, and process all that it causes.

        Raises the ProcessingError of a processor that has failed; the others have gone on.
        """
        codec = self._topics.codec(topic)
        data = None if value is None else encoded(codec, value)
        at_ms = -1 if timestamp is None else check_moment(timestamp, "timestamp")
        record = Record(topic, encode_key(key), data, header_list(headers))
        self._topics.append(record, at_ms)
        self.catch_up()

    def catch_up(self) -> None:
        """Process waiting messages, as after a late ``done``; raises as ``consume``."""
        if self._draining:
            return
        self._draining = True
        try:
            self._drain()
        finally:
            self._draining = False
        for processor in self._processors.values():
            processor.check()

    def table_value(self, table: str, key: str) -> Any:
        """Return a row of any table in use; None where there is none."""
        return TesterView(self._topics, table).get(key)

    def set_table_value(self, table: str, key: str, value: Any) -> None:
        """Put a row into a table without a message."""
        data = encoded(self._topics.codec(table), value)
        update_rows(self._topics.rows[table], encode_key(key), data)

    def table_keys(self, table: str) -> list[str]:
        """Return the keys of a table, sorted."""
        return [key for key, _ in TesterView(self._topics, table).items()]

    def clear_values(self) -> None:
        """Delete all rows of all tables without messages."""
        for rows in self._topics.rows.values():
            rows.clear()

    def replace_emit_handler(self, handler: EmitHandler | None) -> None:
        """Call ``handler`` with each record in place of a write; an error is that of the write."""
        self._topics.emit_handler = handler

    def _drain(self) -> None:
        """Process the oldest of all processors' next messages, until none has one."""
        for number in count(1):
            waiting = {
                arrival: (processor, message)
                for processor in reversed(self._processors.values())
                for arrival, message in processor.next_arrivals()
            }
            if not waiting:
                return
            processor, message = waiting[min(waiting)]
            if number > MAX_MESSAGES:
                problem = f"one message caused {MAX_MESSAGES}: does a loop never end?"
                processor.error = ProcessingError(processor.graph.group, message, problem)
                return
            processor.step(message)


class TesterProcessor:
    """A processor in a tester."""

    __test__ = False

    def __init__(self, engine: Engine, topics: MemoryTopics, catch_up: Callable[[], None]) -> None:
        self.graph = engine.graph
        self.error: ProcessingError | None = None
        """Why it has stopped."""
        self._engine = engine
        self._topics = topics
        self._catch_up = catch_up
        self._running = True
        self._positions = {topic: len(topics.logs[topic]) for topic in self.graph.streams}
        self._deferred: list[tuple[Message, Sequence[Future[None]]]] = []
        self._changes: list[tuple[Message, bytes | None]] = []
        """Messages that may come again, with the rows of their keys before them."""
        self._tables = Tables(
            topics.rows[self.graph.table_topic],
            {topic: topics.rows[topic] for topic in self.graph.joins},
            {topic: topics.rows[topic] for topic in self.graph.lookups},
        )

    def get(self, key: str) -> Any:
        """Return a row of the group table; None where there is none."""
        return TesterView(self._topics, self.graph.table_topic).get(key)

    def visit_all(self, name: str, meta: Any = None) -> int:
        """Call the visitor ``name`` for each row and return their number; raises as ``consume``.

        It gets ``meta`` as JSON has it.
        """
        self._engine.visitor(name)
        if not self._running:
            raise ProcessorError(f"processor {self.graph.group} does not run: restart() it")
        meta = msgspec.json.decode(visit_value(meta))
        self.check()
        keys = sorted(self._topics.rows[self.graph.table_topic])
        for key in keys:
            row = Message(name, key, None)
            self._process(row, partial(self._engine.visit, name, meta, row))
            if self.error is not None:
                raise self.error
        self._catch_up()
        return len(keys)

    def committed(self, topic: str) -> int:
        """Return the next offset to read after a restart: the first that is not finished."""
        check_choice(topic, "topic", self._positions)
        self._settle()
        unfinished = [message.offset for message, _ in self._deferred if message.topic == topic]
        return min(unfinished, default=self._positions[topic])

    def stop(self) -> None:
        """Process no further messages."""
        self._running = False

    def restart(self) -> None:
        """Go on at the committed offsets, as after a crash, also where it has failed."""
        self._positions = {topic: self.committed(topic) for topic in self._positions}
        for message, row in reversed(self._changes):
            if message.offset >= self._positions.get(message.topic, message.offset + 1):
                self._undo(message, row)
        self._changes.clear()
        self._deferred.clear()
        self.error = None
        self._running = True
        self._catch_up()

    def check(self) -> None:
        """Raise the error that has stopped it, if one has."""
        self._settle()
        if self._running and self.error is not None:
            raise self.error

    def next_arrivals(self) -> list[tuple[int, Message]]:
        """Return the next message of each topic, with its number; none if it has stopped."""
        if self.error is not None or not self._running:
            return []
        logs = self._topics.logs
        return [logs[topic][at] for topic, at in self._positions.items() if at < len(logs[topic])]

    def step(self, message: Message) -> None:
        """Process the next message; a failure stops the processor before it."""
        self._process(message, partial(self._engine.process, message))
        if self.error is None:
            self._positions[message.topic] += 1
        self._settle()

    def _process(self, message: Message, call: Callable[[Tables], Effects]) -> None:
        if not self._deferred:
            self._changes.clear()
        self._changes.append((message, self._tables.table.get(message.key)))
        try:
            effects = call(self._tables)
            for record in effects.records:
                self._write(record, message)
        except ProcessingError as error:
            self.error = error
            self._undo(*self._changes.pop())
        else:
            if effects.deferred:
                self._deferred.append((message, effects.deferred))

    def _undo(self, message: Message, row: bytes | None) -> None:
        """Restore the row that was there before a message."""
        update_rows(self._topics.rows[self.graph.table_topic], message.key, row)

    def _write(self, record: Record, message: Message) -> None:
        try:
            self._topics.write(record)
        except BaseException as error:
            problem = f"writing to {record.topic} failed: {error_text(error)}"
            raise ProcessingError(self.graph.group, message, problem) from error

    def _settle(self) -> None:
        """Forget deferred commits that are done; one that failed stops the processor."""
        waiting = []
        for message, outcomes in self._deferred:
            errors = [outcome.exception() for outcome in outcomes if outcome.done()]
            error = next(filter(None, errors), None)
            if error is not None and self.error is None:
                problem = f"its deferred commit failed: {error_text(error)}"
                self.error = ProcessingError(self.graph.group, message, problem)
                self.error.__cause__ = error
            if error is not None or len(errors) < len(outcomes):
                waiting.append((message, outcomes))
        self._deferred = waiting


class TesterView(TableRows):
    """A view of a table in a tester; its rows are those of the table at any time."""

    __test__ = False

    def __init__(self, topics: MemoryTopics, table: str) -> None:
        super().__init__(MemoryStorage(topics.rows[table]), topics.codec(table))
        self.topic = table


class TrackedMessage(NamedTuple):
    """A message of a topic as a tracker reads it."""

    key: str
    value: Any
    """Decoded; None of a tombstone."""
    headers: Headers
    offset: int


class QueueTracker:
    """Reads the messages of a topic one after the other."""

    def __init__(self, topics: MemoryTopics, topic: str) -> None:
        self.topic = topic
        self._topics = topics
        self.next_offset = self.high_watermark

    @property
    def high_watermark(self) -> int:
        """Offset of the next message to be written."""
        return len(self._topics.logs[self.topic])

    def next(self) -> TrackedMessage | None:
        """Return the next message; None where there is none."""
        message = self.next_raw()
        if message is None or message.value is None:
            return message
        return message._replace(value=self._topics.codec(self.topic).decode(message.value))

    def next_raw(self) -> TrackedMessage | None:
        """Return the next message with its value as bytes; None where there is none."""
        if self.next_offset >= self.high_watermark:
            return None
        _, message = self._topics.logs[self.topic][self.next_offset]
        self.next_offset += 1
        headers = dict(message.headers or ())
        return TrackedMessage(decode_key(message.key), message.value, headers, message.offset)

    def seek(self, offset: int) -> None:
        """Go on at ``offset``."""
        self.next_offset = check_offset(offset)

    def __iter__(self) -> Iterator[TrackedMessage]:
        """Iterate over what is there."""
        while (message := self.next()) is not None:
            yield message


class _TesterEmitter(Emitter):
    """Writes into a tester."""

    def __init__(self, topics: MemoryTopics, catch_up: Callable[[], None], *given: Any) -> None:
        super().__init__(*given)
        self._topics = topics
        self._catch_up = catch_up

    def _write(self, record: Record) -> Future[Written]:
        if self._closed:
            raise EmitterClosedError.of(record)
        outcome: Future[Written] = Future()
        try:
            outcome.set_result(Written(0, self._topics.write(record)))
        except BaseException as error:  # noqa: BLE001 -- the emit handler raises anything
            outcome.set_exception(error)
        self._catch_up()
        return outcome
