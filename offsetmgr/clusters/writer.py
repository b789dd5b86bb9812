"""Writes messages to one of several clusters, and to another one where that fails."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from confluent_kafka import KafkaError

from offsetmgr.clusters.link import TIMEOUTS, Link, check_clusters, close_all
from offsetmgr.codes import NO_SUCH_PARTITION, TIMED_OUT
from offsetmgr.config import is_number
from offsetmgr.consumer.settings import drain
from offsetmgr.deadlines import Latch
from offsetmgr.errors import (
    InvalidValueError,
    KafkaRequestError,
    ManagerStoppedError,
    OffsetManagerError,
)
from offsetmgr.kafka.clients import Closing
from offsetmgr.kafka.producer import OF_A_BATCH, POLL_S, UNBOUNDED, MessageProducer
from offsetmgr.logs import SafeLogger
from offsetmgr.types import (
    check_choice,
    check_instance,
    check_list,
    check_offset,
    check_partition,
    check_topic,
)
from offsetmgr.workers import Question, Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from offsetmgr.answers import Written
    from offsetmgr.clusters.link import Clusters

Mode = Literal["primary-backup", "round-robin"]

_LEAST_FAIL_OVER_S: Final = 3.0
_LONGEST_S: Final = 86_400.0

_SCAN_S: Final = 1.0  # librdkafka looks for messages that have timed out once a second
_OVERDUE_S: Final = 5.0  # time after which a report that librdkafka owes is no longer waited for
_OF_THE_MESSAGE: Final = OF_A_BATCH | frozenset(
    {
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        *NO_SUCH_PARTITION,
        -186,  # librdkafka's _INVALID_ARG
    }
)
"""Errors that say nothing against the cluster; no other one is tried."""

log = SafeLogger("offsetmgr.clusters")


@dataclass(frozen=True)
class WriterSettings:
    """Settings of a MultiClusterWriter.  All times are seconds."""

    mode: Mode = "primary-backup"
    """``primary-backup`` writes to the first cluster that answers, ``round-robin`` to each in
    turn."""

    fail_over_s: float = 10.0
    """A cluster that has not acknowledged a message for so long is left; at least 3."""

    fail_back_s: float = 60.0
    """A cluster that failed has to answer for so long without a failure before it is preferred
    again."""

    def __post_init__(self) -> None:
        """Raise InvalidValueError naming the first setting that makes no sense."""
        check_choice(self.mode, "mode", get_args(Mode))
        for name, least in (("fail_over_s", _LEAST_FAIL_OVER_S), ("fail_back_s", 0)):
            value = getattr(self, name)
            if not is_number(value, (int, float)) or not least <= value <= _LONGEST_S:
                fix = f"give seconds from {least:g} to {_LONGEST_S:g}"
                raise InvalidValueError(name, value, "is not possible", fix)


class ProducerRecord(NamedTuple):
    """A message to be written."""

    value: bytes | str | None
    key: bytes | str | None = None
    topic: str = ""
    """The writer's own where empty."""
    partition: int | None = None
    """By the key where None."""
    headers: Sequence[tuple[str, bytes | str | None]] = ()
    timestamp_ms: int = 0
    """Milliseconds since 1970; the time of the write where 0."""

    @property
    def size(self) -> int:
        """Bytes of key and value, in UTF-8."""
        return _size(self.key) + _size(self.value)

    def checked(self, topic: str | None) -> ProducerRecord:
        """Return the record as it can be written; ``topic`` is that of records without one.

        Raises InvalidValueError.
        """
        _check_text(self.value, "value")
        _check_text(self.key, "key")
        topic = self.topic or topic
        if topic is None:
            hint = "name it in the record, or topic= of the writer"
            raise InvalidValueError("topic", self.topic, "is missing", hint)
        return self._replace(
            topic=check_topic(topic),
            partition=None if self.partition is None else check_partition(self.partition),
            headers=_checked_headers(self.headers),
            timestamp_ms=check_offset(self.timestamp_ms, "timestamp_ms"),
        )


def _size(text: bytes | str | None) -> int:
    if text is None:
        return 0
    return len(text if isinstance(text, bytes) or text.isascii() else text.encode())


def _check_text(text: object, field: str) -> None:
    if isinstance(text, str):
        try:
            _size(text)
        except UnicodeEncodeError:
            hint = "replace lone surrogates, or give bytes: Kafka stores UTF-8"
            raise InvalidValueError(field, text, "cannot be encoded", hint) from None
    elif text is not None and not isinstance(text, bytes):
        hint = "give bytes, text or None"
        raise InvalidValueError(field, type(text).__name__, "cannot be written", hint)


def _checked_headers(headers: object) -> Sequence[tuple[str, bytes | str | None]]:
    example = '[("name", b"value")]'
    checked: list[tuple[str, bytes | str | None]] = []
    for number, header in enumerate(check_list(headers, "headers", example)):
        field, hint = f"headers[{number}]", f"give a list such as {example}"
        if not isinstance(header, (tuple, list)) or len(header) != 2:  # noqa: PLR2004 -- a pair
            raise InvalidValueError(field, header, "is not a name with a value", hint)
        name, value = header
        if not isinstance(name, str) or "\0" in name:
            raise InvalidValueError(field, name, "is not a name", hint)
        _check_text(name, field)
        _check_text(value, field)
        checked.append((name, value))
    return checked


class WriteErrors(OffsetManagerError):  # noqa: N818 -- it has one error for each message
    """Some messages of a write are not acknowledged by any cluster."""

    code = "write_errors"

    def __init__(self, errors: Sequence[OffsetManagerError | None]) -> None:
        """``errors`` has one entry for each message, None where it was acknowledged."""
        first = next((str(each) for each in errors if each is not None), "")
        self.errors = list(errors)
        super().__init__(f"{self.count} of {len(errors)} messages not written; the first: {first}")

    @property
    def count(self) -> int:
        """Number of messages that were not acknowledged."""
        return sum(each is not None for each in self.errors)


class WriterStats(NamedTuple):
    """Figures of one cluster since the writer was made."""

    up: bool
    """False while the cluster does not answer."""
    current: bool
    """True where the next write begins, in the mode ``primary-backup``."""
    written: int
    """Acknowledged messages."""
    failed: int
    """Messages that were not acknowledged here; another cluster may have them."""
    bytes: int = 0
    """Keys and values of the acknowledged messages."""
    errors: int = 0
    """Failures of the cluster, as in ``errors()``."""
    timeouts: int = 0
    """Messages that were not acknowledged in time."""
    retries: int = 0
    """Messages that were tried here after another cluster had failed."""


class MultiClusterWriter(Closing):
    """Writes to one of several clusters; for any number of threads.

    ``clusters`` has bootstrap servers, or librdkafka's settings, by name; the first is the primary.
    Producers are idempotent and wait for all in-sync replicas.

    Raises InvalidValueError for a bad name or setting.
    """

    def __init__(
        self,
        clusters: Clusters,
        topic: str | None = None,
        *,
        settings: WriterSettings | None = None,
    ) -> None:
        """``topic`` is that of records that name none."""
        self._settings = WriterSettings() if settings is None else settings
        check_instance(self._settings, WriterSettings, "settings")
        self._topic = None if topic is None else check_topic(topic)
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._order = list(checked := check_clusters(clusters))
        self._first = self._order[0]  # that of the last write
        self._closed = False
        self._writing: list[int] = []  # threads
        self._changed = threading.Condition(self._lock)
        links = [
            Link(name, kafka, self._topic, settle_s=self._settings.fail_back_s)
            for name, kafka in checked.items()
        ]
        self._targets = {link.name: _Target(link, self._settings.fail_over_s) for link in links}

    def write_messages(self, records: Iterable[ProducerRecord]) -> None:
        """Write ``records`` and wait until a cluster has acknowledged each of them.

        Each cluster is tried at most once, so that this takes up to ``fail_over_s`` for each.

        Raises WriteErrors where some are not acknowledged: those may have been written all the
        same.  Raises InvalidValueError, with nothing written, and ManagerStoppedError.
        """
        batch = self._checked(records)
        with self._lock:
            if self._closed:
                raise ManagerStoppedError("the writer is closed")
            self._writing.append(threading.get_ident())
        try:
            errors = self._write(batch)
        finally:
            with self._lock:
                self._writing.remove(threading.get_ident())
                self._changed.notify_all()
        if any(errors):
            raise WriteErrors(errors)

    def _write(self, batch: Sequence[ProducerRecord]) -> list[OffsetManagerError | None]:
        """Return the error of each record, None where it was acknowledged."""
        errors: list[OffsetManagerError | None] = [None] * len(batch)
        left = list(enumerate(batch))
        for tried, name in enumerate(self._begin()):
            failures = self._targets[name].write(left, again=tried > 0)
            for index, _ in left:
                errors[index] = failures.get(index)
            left = [each for each in left if each[0] in failures and _is_outage(failures[each[0]])]
            if not left:
                break
        return errors

    def _begin(self) -> list[str]:
        """Return the clusters in the order in which a write tries them."""
        with self._lock:
            if self._settings.mode == "round-robin":
                self._order.append(self._order.pop(0))
                return self._ranked()
            ranked, before = self._ranked(), self._first
            self._first = ranked[0]
        if ranked[0] != before:
            log.warning("writes go to cluster %s, no longer to %s", ranked[0], before)
        return ranked

    def _ranked(self) -> list[str]:
        since_s = {name: self._targets[name].link.answering_since_s for name in self._order}
        return ranking(since_s, time.monotonic(), self._settings.fail_back_s)

    def errors(self) -> list[OffsetManagerError]:
        """Return the failures of clusters since the last call; at most the newest 100 of each."""
        return [error for each in self._targets.values() for error in drain(each.link.errors)]

    def stats(self) -> dict[str, WriterStats]:
        """Return figures of each cluster since the writer was made."""
        current = self._ranked()[0] if self._settings.mode == "primary-backup" else None
        return {
            name: each.stats._replace(
                up=each.link.up, current=name == current, errors=each.link.failures
            )
            for name, each in self._targets.items()
        }

    def close(self) -> None:
        """Wait for writes under way, which take up to ``fail_over_s`` for each cluster, and end.

        Twice is harmless; in the child of a fork it does nothing.  In a signal's handler during a
        write this returns at once, and a thread does it.
        """
        if self.is_forked:
            return
        self._closed = True
        if threading.get_ident() in self._writing:
            Question(self._end)
        else:
            self._end()

    def _end(self) -> None:
        wait_s = self._settings.fail_over_s + _OVERDUE_S
        with self._lock:
            self._changed.wait_for(lambda: not self._writing, wait_s * len(self._targets))
        close_all({name: target.end for name, target in self._targets.items()}, wait_s)

    def _checked(self, records: Iterable[ProducerRecord]) -> list[ProducerRecord]:
        batch = []
        for number, record in enumerate(check_list(records, "records", "[record]")):
            if not isinstance(record, ProducerRecord):
                hint = 'give ProducerRecord(b"value", key=b"key")'
                raise InvalidValueError(f"records[{number}]", record, "is not a record", hint)
            try:
                batch.append(record.checked(self._topic))
            except InvalidValueError as error:
                field = f"records[{number}].{error.field}"
                raise InvalidValueError(field, error.value, error.problem, error.hint) from None
        return batch


def ranking(
    answering_since_s: Mapping[str, float | None], now_s: float, fail_back_s: float
) -> list[str]:
    """Return all clusters, the one to write to first.

    ``answering_since_s`` is the time from which a cluster has answered without a failure, None
    where it does not answer.  Those that have answered for ``fail_back_s`` come first, in its
    order; then others that answer, the longest first, so that writes stay where they are.
    """

    def rank(name: str) -> tuple[int, float]:
        since_s = answering_since_s[name]
        if since_s is None:
            return 2, 0
        return (0, 0) if now_s - since_s >= fail_back_s else (1, since_s)

    return sorted(answering_since_s, key=rank)


class _Target:
    """The producer of one cluster, and the thread that probes it after a failure."""

    def __init__(self, link: Link, fail_over_s: float) -> None:
        """Raises InvalidValueError."""
        self.link = link
        self._lock = threading.RLock()
        self.stats = WriterStats(up=True, current=False, written=0, failed=0)
        self._wait_s = fail_over_s
        timeout_ms = round((fail_over_s - _SCAN_S) * 1_000)
        ours = {
            "enable.idempotence": True,
            "message.timeout.ms": timeout_ms,
            # Else a topic that does not exist would look like a cluster that does not answer.
            "topic.metadata.propagation.max.ms": timeout_ms // 4,
            **UNBOUNDED,  # a writer waits, so that its own list is the limit
        }
        name = f"write-{link.name}"
        self._producer = MessageProducer(link.settings(ours), on_error=self._heard, name=name)
        self._ended = Latch()
        self._worker = Worker(f"probe-{link.name}", self._probe)
        self._worker.ensure()

    def write(
        self, wanted: Sequence[tuple[int, ProducerRecord]], *, again: bool
    ) -> dict[int, KafkaRequestError]:
        """Write records, and return the errors of those that were not acknowledged.

        ``again`` is True if another cluster has failed to write them.
        """
        failures = self._produce_all(wanted)
        outage = next((error for error in failures.values() if _is_outage(error)), None)
        if outage is not None:
            self.link.failed(outage)
        elif len(failures) < len(wanted):
            self.link.answered()
        late_count = sum(error.info.code in TIMEOUTS for error in failures.values())
        written = sum(record.size for number, record in wanted if number not in failures)
        with self._lock:
            self.stats = self.stats._replace(
                written=self.stats.written + len(wanted) - len(failures),
                failed=self.stats.failed + len(failures),
                bytes=self.stats.bytes + written,
                timeouts=self.stats.timeouts + late_count,
                retries=self.stats.retries + (len(wanted) if again else 0),
            )
        return failures

    def end(self) -> None:
        self._ended.set()
        self._producer.close(self._wait_s)
        self._worker.join(self._wait_s)
        self.link.close()

    def _produce_all(
        self, wanted: Iterable[tuple[int, ProducerRecord]]
    ) -> dict[int, KafkaRequestError]:
        """Produce records and wait for their reports; return the errors."""
        reports: dict[int, Future[Written | KafkaRequestError]] = {}
        for number, record in wanted:
            report = reports[number] = Future()
            self._producer.send(
                record.topic,
                record.value,
                record.key,
                report.set_result,
                partition=record.partition,
                headers=record.headers,
                timestamp_ms=record.timestamp_ms,
            )
        heard, _ = wait(reports.values(), self._wait_s + _OVERDUE_S)
        late = self.link.failure(KafkaError(TIMED_OUT))
        failures = {}
        for number, report in reports.items():
            answer = report.result() if report in heard else late
            if isinstance(answer, KafkaRequestError):
                failures[number] = self.link.failure(answer)
        return failures

    def _heard(self, error: KafkaError) -> None:
        """Take in an error that is not of one message; a lost broker may be back in time."""
        if error.fatal():
            self.link.failed(self.link.failure(error))

    def _probe(self) -> None:
        """Look in intervals whether a cluster that failed is back."""
        while not self._ended.wait(POLL_S):
            self.link.probe_if_due(led=True)


def _is_outage(error: KafkaRequestError) -> bool:
    """Return True unless the fault is the message's, so that another cluster may take it."""
    return error.info.code not in _OF_THE_MESSAGE
