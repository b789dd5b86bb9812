"""Runs a group's graph as a query of Spark Structured Streaming.

One query reads inputs, loop, joined tables and, for recovery, the group's own table.  The rows of
a bucket of keys are processed in one Python call (``buckets``), and all that they write goes to
one Kafka sink.  State is exactly-once; what is written to Kafka is at-least-once, as a batch that
failed after it had written is written again.
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import StreamingQueryException

from offsetmgr.deadlines import Deadline
from offsetmgr.errors import InvalidValueError, OffsetManagerError, OffsetTimeoutError
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.config import checked_config
from offsetmgr.kafka.errors import does_not_exist
from offsetmgr.logs import SafeLogger
from offsetmgr.spark import OffsetCommits
from offsetmgr.spark.checkpoint import Checkpoint
from offsetmgr.spark.files import check_session, is_stopped, java_text
from offsetmgr.spark.group_state import Groups
from offsetmgr.spark.progress import read_offsets, report_of
from offsetmgr.spark.starting import check_client
from offsetmgr.streams.engine import Engine
from offsetmgr.streams.errors import ProcessorError
from offsetmgr.streams.graph import GroupGraph
from offsetmgr.streams.kafka import request_visit
from offsetmgr.streams.layout import TABLES, LayoutFiles
from offsetmgr.streams.memory import MemoryStorage
from offsetmgr.streams.planning import ProcessorSettings, Query
from offsetmgr.streams.spark_options import spark_options
from offsetmgr.streams.topics import TopicManager
from offsetmgr.streams.view import View
from offsetmgr.text import listed
from offsetmgr.types import check_instance, check_timeout
from offsetmgr.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from typing_extensions import Self

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.types import TopicPartition

_T = TypeVar("_T")

_log = SafeLogger("offsetmgr.streams")

STALLED_S: Final = 120.0
"""A batch that takes longer is reported as stalled."""

LOOK_S: Final = 5.0
"""Pause between two looks for topics that were recreated, deleted or cut."""

_STALL_S: Final = 30.0
_STOP_S: Final = 10.0
_OURS: Final = re.compile(r"^offsetmgr\.[\w.]*Error: (.+)$", re.MULTILINE)

_ROOT: Final = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(\w+: .+)"
    r"|\(most recent call last\):\n(?:[ \t].*\n)+(\S.*)"
)
"""An exception of Kafka's Java client, or the last line of a Python worker's traceback."""

_STACK: Final = re.compile(r"\n(?:\tat |=== Streaming Query ===)")
"""The first line of Java's stack, or of Spark's plan of the query."""

_CAUSES: Final = {
    "failOnDataLoss": "Kafka has no longer messages that come next, as a topic was deleted, "
    "recreated or cut: start the processor again, which reports what is missing",
    "UnknownTopicOrPartition|not present in metadata": "a topic was deleted, or recreated with "
    "fewer partitions: start the processor again, which names a topic that does not exist",
    "RecordTooLargeException": "a record is larger than its topic takes: start the processor "
    "again, which fails that message alone, or if it compresses, raise the topic's limit",
    "No module named": "an executor cannot import what callbacks or codecs need: install it there, "
    "send it with --py-files, or define them in the main program",
    "/(commits|offsets) does not exist|CONCURRENT_STREAM_LOG_UPDATE|queries are concurrently using"
    "|sources in the checkpoint offsets": "another processor uses its checkpoint, or files of the "
    "checkpoint were deleted: give each processor a checkpoint of its own, or a new one",
    "ArithmeticException: long overflow": "a message has a timestamp beyond the year 294000, which "
    "Spark cannot read (kafka-get-offsets.sh --time max-timestamp shows its offset): start the "
    "processor with a new checkpoint behind it, and have brokers refuse such messages "
    "(message.timestamp.after.max.ms)",
    "Python worker exited unexpectedly": "a Python worker has ended: a callback or a library exits "
    "or crashes, or the system was short of memory (the executor's log shows which): correct it, "
    "give executors more memory or lower max_offsets_per_trigger, and start the processor again",
    "CANNOT_LOAD_STATE_STORE": "the state in its checkpoint cannot be read, as after files of it "
    "were deleted: start the processor with a new checkpoint, which reads the table from its topic",
}
"""Causes of failures, by patterns of Spark's words that tell of them."""

_GONE: Final = (ConnectionError, Py4JNetworkError)
"""Raised by calls of a JVM that has ended."""

_processors: Final[WeakValueDictionary[str, Processor]] = WeakValueDictionary()
"""Processors of this process by the id of their query, which is that of its checkpoint."""


State = Literal["stopped", "initializing", "recovering", "running", "stalled", "failed"]


class ProcessorStats(NamedTuple):
    """The state of a processor after its last batch."""

    state: State
    batch_id: int | None
    """None before the first batch."""
    rows: int
    """Messages of inputs and loop in the last batch; rows of tables are not counted."""
    rows_per_s: float
    batch_s: float
    """Time that the last batch took."""
    read: Mapping[TopicPartition, int]
    """The next offset to read of each partition of inputs and loop."""
    lag: Mapping[TopicPartition, int]
    """Messages of inputs and loop that were not read when the batch began, per partition.  Those of
    an open transaction and behind it do not count."""
    buckets: int
    """Buckets that hold rows; 0 of a stateless processor."""
    state_bytes: int
    """Memory of Spark's state stores."""


class Processor:
    """A group's processor in a Spark session, which has the Kafka connector.

    ``kafka`` is the bootstrap servers or a mapping of librdkafka's settings, of which Spark's
    clients get those for TLS and SASL.  ``checkpoint`` is the checkpointLocation of its query.
    With ``offsets`` (an OffsetClient, or LocalOffsets) the group's offsets are committed, so that
    lag tools see it, and a new checkpoint starts from them.

    Raises GraphError, InvalidValueError.
    """

    def __init__(
        self,
        spark: SparkSession,
        graph: GroupGraph,
        kafka: str | Mapping[str, Any],
        *,
        checkpoint: str,
        offsets: Offsets | None = None,
        settings: ProcessorSettings | None = None,
    ) -> None:
        self.graph = graph
        self.settings = ProcessorSettings() if settings is None else settings
        check_instance(self.settings, ProcessorSettings, "settings")
        check_instance(graph, GroupGraph, "graph")
        self._engine = Engine(
            graph,
            nil_handling=self.settings.nil_handling,
            default_headers=self.settings.default_headers,
        )
        for table in self.settings.lookup_views:
            if table not in graph.lookups:
                fix = "add lookup() with it to the group"
                raise InvalidValueError("lookup_views", table, "is not a lookup table", fix)
        letters = self.settings.dead_letters
        if letters in {*graph.consumed, graph.table_topic, *graph.joins, *graph.lookups}:
            fix = "give a topic that the group does not read"
            raise InvalidValueError("dead_letters", letters, "is read by the group", fix)
        if not hasattr(spark, "_jvm"):
            fix = "give a session of the driver's own Spark"
            raise InvalidValueError("spark", spark, "is a session of Spark Connect", fix)
        check_session(spark)
        checked_config(kafka)
        self._kafka = {"bootstrap.servers": kafka} if isinstance(kafka, str) else dict(kafka)
        self._options = spark_options(self._kafka, self.settings.kafka_options)
        self._checkpoint = checkpoint
        self._offsets = offsets
        # Settings of its own: other queries of the session keep theirs.
        self._spark = spark.newSession()
        # Spark would end a query that has the same checkpoint, without an error.
        self._spark.conf.set("spark.sql.streaming.stopActiveRunOnRestart", "false")
        self._reads_tables = False
        self._is_stopped = False
        """True if a stop has come since the begin of the last start."""
        self.query: StreamingQuery | None = None
        """Spark's query; None before `start`."""
        self._started_s = 0.0
        """Time of the last start, since 1970."""
        self._commits: OffsetCommits | None = None
        self._committing = threading.RLock()
        self._error: ProcessorError | None = None
        """Why the watcher has stopped the query."""

    def start(self, *, available_now: bool = False) -> Self:
        """Check and create topics, and start the query.

        With ``available_now`` it ends once it has processed what its topics hold now; its own
        loop waits for the next start.  Raises TopicsError; ProcessorError if the checkpoint cannot
        be used with this graph; and what `starting_offsets` raises.
        """
        check_session(self._spark)
        if self._is_active:
            return self
        self._is_stopped = False
        try:
            self._begin(available_now=available_now)
        except Exception:
            if not self._is_stopped:  # in a signal's handler, which takes over Java's connection
                raise
        if self._is_stopped:
            self._asked(self._stop_queries)
        return self

    def _begin(self, *, available_now: bool) -> None:
        with (
            self._failing("cannot start"),
            TopicManager(self._kafka, self.settings.topics) as topics,
        ):
            self._check_unshared()
            self._stop_queries()
            query = Query(
                self._spark, self._engine, self.settings, topics, self._kafka, self._options,
                self._files(), self._offsets,
            )  # fmt: skip
        self._reads_tables = TABLES in query.layout.topics
        if self._offsets is not None and self._commits is None:
            group, tables = self.graph.group, query.layout.topics.get(TABLES, ())
            groups = Groups(None, dict.fromkeys(self.graph.consumed, group), tables)
            client = check_client(self._offsets)
            self._commits = OffsetCommits(self._spark, client, groups, group, None)
        self._error, self._started_s = None, time.time()
        try:
            writer = query.frame().writeStream.format("kafka").options(**self._options)
            writer = writer.option("checkpointLocation", self._checkpoint)
            interval_s = self.settings.trigger_interval_s
            if available_now:
                writer = writer.trigger(availableNow=True)
            elif interval_s:
                writer = writer.trigger(processingTime=f"{interval_s} seconds")
            self.query = writer.queryName(self.graph.group).start()
        except Exception as error:
            text = f"group {self.graph.group}: Spark does not start its query: {java_text(error)}"
            raise ProcessorError(text) from error
        _processors[str(self.query.id)] = self
        watch = partial(_log.guard, "its topics are not watched", self._watch)
        Worker(f"processor-{self.graph.group}", partial(watch, self.query, query)).ensure()
        _log.info(
            "processor %s started: %d buckets, %d rows of its table to recover",
            self.graph.group, query.layout.buckets, sum(query.layout.recovery.values()),
        )  # fmt: skip

    def run(self, *, available_now: bool = False) -> None:
        """Start, wait for the end, and commit.  Raises as ``start``, ProcessorError if it fails."""
        try:
            self.start(available_now=available_now)
            if not self._is_stopped:
                self.await_end()
        finally:
            self.stop()

    def await_end(self, timeout: float | None = None) -> bool:
        """Wait; return False if it still runs after ``timeout`` seconds.  Raises ProcessorError."""
        if self.query is None:
            raise ProcessorError(f"processor {self.graph.group} is not started: call start()")
        query, deadline, stalled = self.query, Deadline(timeout, forever=True), False

        def has_ended() -> bool | None:
            wait_s: Any = deadline.within_s(_STALL_S)  # PySpark takes a float, untyped
            return query.awaitTermination(wait_s)

        try:
            while True:
                if is_stopped(self._spark):  # which ends no query
                    raise self._session_ended()
                if self._asked(has_ended):
                    if self._error is not None:
                        raise self._error
                    return True
                if deadline.over:
                    return False
                before = stalled
                with suppress(Exception):  # of the checkpoint's file system; the query goes on
                    stalled = self.state == "stalled"
                if stalled and not before:
                    _log.error(
                        "processor %s has been at one batch for over %.0f s: look for a callback "
                        "that waits (Spark's page shows the task), or lower "
                        "max_offsets_per_trigger=%d",
                        self.graph.group, STALLED_S, self.settings.max_offsets_per_trigger,
                    )  # fmt: skip
        except StreamingQueryException as error:
            raise self._failure(error) from error

    def stop(self, timeout: float = _STOP_S) -> None:
        """Stop the query, whose batch is repeated by the next start, and commit the offsets."""
        check_timeout(timeout)
        self._is_stopped = True
        query = None if is_stopped(self._spark) else self.query
        try:
            self._asked(self._stop_queries)
        except ProcessorError:  # as Spark's JVM has ended
            query = None
        with self._committing:
            commits = self._commits
            if commits is not None:
                if query is not None:
                    commits.flush(query, timeout)
                commits.detach(timeout)
                self._commits = None  # not before: a stop that Ctrl-C has ended is done again

    def wait_until_ready(self, timeout: float = 60.0) -> None:
        """Wait until new messages are processed.  Raises ProcessorError, OffsetTimeoutError."""
        for _ in Deadline(timeout).polls():
            state = self._asked(lambda: self.state)
            if state == "running":
                return
            if state in {"stopped", "failed"}:
                self.await_end()
                return
        text = f"processor {self.graph.group} was not ready within {timeout} s"
        raise OffsetTimeoutError(f"{text}: it is {state}")

    def visit(self, name: str, meta: Any = None) -> None:
        """Have one of the next batches call the visitor ``name`` for each row, with ``meta``.

        ``meta`` is anything that JSON can hold.  Returns once Kafka has the request.  Raises
        InvalidValueError; ProcessorError if the processor does not run, or Kafka refuses.
        """
        self._engine.visitor(name)
        if not self._is_active:
            text = f"processor {self.graph.group} does not run: visit while it does, after start()"
            raise ProcessorError(text)
        request_visit(self._kafka, self.graph, name, meta)

    def view(self, path: str | Path | None = None) -> View:
        """Return a view of the table, not started; without a folder ``path`` it is in memory."""
        table = self.graph.group_table
        if table is None:
            text = f"group {self.graph.group} is stateless and has no rows: add persist() to it"
            raise ProcessorError(text)
        storage = MemoryStorage() if path is None else None
        return View(self._kafka, table.topic, table.codec, path, storage=storage)

    @property
    def state(self) -> State:
        """The processor's state now.  Raises ProcessorError if its checkpoint cannot be read."""
        query = self.query
        if query is None:
            return "stopped"
        if self._error or is_stopped(self._spark):
            return "failed"
        if not query.isActive:
            return "stopped" if query.exception() is None else "failed"
        with self._failing("is in an unknown state"):
            files = self._files()
            begun = files.last_begun()
            has_begun = begun or _has_starts(files)
            finished = begun and files.last_finished()
        # Until Spark has noted where its sources begin, new messages may be before that.
        if query.status["message"].startswith("Initializing") or not has_begun:
            return "initializing"
        if (
            begun
            and begun.at_s is not None
            and (not finished or finished.batch_id < begun.batch_id)
            # Of a batch that a former start has begun, the time since then does not count.
            and time.time() - max(begun.at_s, self._started_s) > STALLED_S
        ):
            return "stalled"
        return "recovering" if self._reads_tables and not finished else "running"

    def stats(self) -> ProcessorStats:
        """Return rates, lag and sizes after the last batch, which Spark measures as a whole.

        Raises ProcessorError if its checkpoint cannot be read.
        """
        query = None if is_stopped(self._spark) else self.query
        progress = None if query is None else query.lastProgress
        if progress is None:
            return ProcessorStats(self.state, None, 0, 0.0, 0.0, {}, {}, 0, 0)
        report: dict[str, Any] = report_of(progress)
        streams, *_ = report["sources"]
        newest = read_offsets(streams.get("latestOffset"))
        read = read_offsets(streams.get("endOffset"))
        stores = report.get("stateOperators", [])
        return ProcessorStats(
            self.state,
            report["batchId"],
            rows=streams["numInputRows"],
            rows_per_s=streams.get("processedRowsPerSecond", 0.0),
            batch_s=report["durationMs"].get("triggerExecution", 0) / 1_000,
            read=read,
            lag={place: max(0, newest.get(place, end) - end) for place, end in read.items()},
            buckets=sum(store["numRowsTotal"] for store in stores),
            state_bytes=sum(store["memoryUsedBytes"] for store in stores),
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _stop_queries(self) -> None:
        """Stop the query, also one that runs although Ctrl-C has ended its start."""
        if not is_stopped(self._spark):
            for query in self._spark.streams.active:  # its session has no others
                query.stop()

    @property
    def _is_active(self) -> bool:
        query = self.query
        return query is not None and not is_stopped(self._spark) and query.isActive

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Raise ProcessorError for what the file system of the checkpoint raises."""
        try:
            yield
        except OffsetManagerError:
            raise
        except OSError as error:
            text = f"group {self.graph.group} {what}: its checkpoint cannot be used ({error})"
            raise ProcessorError(f"{text}: make it readable, or give another one") from error

    def _files(self) -> Checkpoint:
        return Checkpoint(self._checkpoint, self._spark)

    def _check_unshared(self) -> None:
        """Raise ProcessorError, before a file changes, for another one of the checkpoint or group.

        Two of a group would process each message twice, and write one table.
        """
        files, graph, brokers = self._files(), self.graph, self._kafka["bootstrap.servers"]
        query_id = files.query_id() if files.read("metadata") else None
        text = f"group {graph.group} cannot start: another processor"
        for other_id, other in list(_processors.items()):
            if other is self or not other._is_active:  # noqa: SLF001 -- of this class
                continue
            if other_id == query_id:
                fix = "stop that one, or give each processor a checkpoint of its own"
                raise ProcessorError(f"{text} runs with checkpoint {files.location}: {fix}")
            shared = {*graph.consumed}.intersection(other.graph.consumed)
            is_here = other._kafka["bootstrap.servers"] == brokers  # noqa: SLF001
            if shared and is_here and other.graph.group == graph.group:
                fix = "stop that one, or give each a group of its own"
                raise ProcessorError(f"{text} of the group reads the same topics: {fix}")

    def _watch(self, running: StreamingQuery, query: Query) -> None:
        """Stop the query once a topic that it needs is another one than at its start.

        Of a recreated input or table, Spark would pass over as many messages as it has read of the
        former one; where such a loss is accepted, the query goes on.  For a topic that it writes,
        and that was deleted or has fewer partitions in two looks, Spark would wait for minutes.
        One that has more partitions is named in the log.
        """
        layout, plan, table = query.layout, query.plan, self.graph.table
        written = {topic: plan.partitions[topic] for topic in plan.targets}
        read, lost, grown = query.topics, set[str](), set[tuple[str, int]]()
        with closing(ClusterReader(self._kafka)) as reader, suppress(StreamingQueryException):
            while not self._has_ended(running):
                try:
                    answers, counts = reader.topic_ids(read), reader.partitions_of(written)
                except OffsetManagerError as error:  # such as where no connection can be opened
                    _log.debug("the topics of %s are not known: %s", layout.group, error)
                    continue
                ids = {topic: each for topic, each in answers.items() if isinstance(each, str)}
                before, lost = lost, self._lost(written, counts, grown)
                # The look may have waited long for Kafka, and a stopped session ends no query.
                if is_stopped(self._spark) or not running.isActive:
                    return
                recreated = layout.recreated(ids)
                text = f"topics were deleted and recreated while it ran: {listed(recreated)}"
                if recreated and self._options.get("failOnDataLoss", "").lower() != "false":
                    fix = "start the processor again, which reads them from their beginning"
                    if table in recreated:  # and has rows of this query
                        fix += ", and writes its table from the checkpoint"
                        with suppress(OSError):
                            LayoutFiles(self._files()).note_written(ids[table], written[table])
                elif lost & before:
                    text = "topics that it writes were deleted, or recreated with fewer partitions"
                    text = f"{text}: {listed(sorted(lost))}"
                    fix = "start the processor again once they exist"
                elif recreated:
                    _log.warning(
                        "processor %s goes on, as failOnDataLoss=false says: %s", layout.group, text
                    )
                    layout = LayoutFiles(self._files()).renew(layout, recreated)
                    continue
                else:
                    continue
                self._error = ProcessorError(f"group {layout.group}: {text}; {fix}")
                _log.error("%s", self._error)
                running.stop()
                return

    def _has_ended(self, running: StreamingQuery) -> bool:
        """Return False if the query still runs after ``LOOK_S``."""
        try:
            return bool(running.awaitTermination(LOOK_S))  # type: ignore[arg-type]  # PySpark's
        except _GONE:
            _log.error("processor %s has ended with Spark's JVM", self.graph.group)
            return True

    def _lost(
        self,
        written: Mapping[str, int],
        counts: Mapping[str, list[int] | OffsetManagerError],
        grown: set[tuple[str, int]],
    ) -> set[str]:
        """Return the topics with fewer partitions than are ``written``.

        Those with more are named in the log, unless they are among ``grown``.
        """
        lost = set()
        for topic, found in counts.items():
            number = len(found) if isinstance(found, list) else 0
            if number < written[topic] and (number or does_not_exist(found)):
                lost.add(f"{topic} ({number} of {written[topic]} partitions)")
            elif number > written[topic] and (topic, number) not in grown:
                grown.add((topic, number))
                advice = "start it again to write to all"
                if topic == self.graph.table:
                    advice = "copy the table (streams copy-table), as its next start is refused"
                _log.warning(
                    "processor %s writes to the first %d of %d partitions of %s, as that topic got "
                    "more while it ran: %s",
                    self.graph.group, written[topic], number, topic, advice,
                )  # fmt: skip
        return lost

    def _asked(self, ask: Callable[[], _T]) -> _T:
        """Return an answer of Java's.  Raises ProcessorError if the JVM has ended.

        A stop in a signal's handler takes over a call's connection, so it is asked again.
        """
        try:
            return ask()
        except Exception:  # noqa: BLE001 -- py4j's, or what was made of it
            try:
                return ask()
            except _GONE as error:
                raise self._session_ended() from error

    def _session_ended(self) -> ProcessorError:
        text = "its Spark session was stopped, or Spark's JVM has ended"
        return ProcessorError(f"group {self.graph.group}: {text}")

    def _failure(self, error: StreamingQueryException) -> ProcessorError:
        """Return the cause in one sentence where it is known, not Spark's pages of Java."""
        found = _OURS.findall(str(error))
        if found:
            return ProcessorError(found[-1])
        roots = ["".join(root) for root in _ROOT.findall(str(error))]
        for sign, cause in _CAUSES.items():
            if re.search(sign, str(error)):
                detail = f" ({roots[-1]})" if roots else ""
                return ProcessorError(f"group {self.graph.group}: {cause}{detail}")
        text = roots[-1] if roots else _STACK.split(str(error))[0]
        return ProcessorError(f"group {self.graph.group}: {text}")


def _has_starts(files: Checkpoint) -> bool:
    sources = files.names("sources")
    return bool(sources) and all("0" in files.names(f"sources/{number}") for number in sources)
