"""Connections to several clusters: their settings, and which of them answer."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.codes import TIMED_OUT, Fault
from offsetmgr.consumer.settings import UNREAD
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import InvalidValueError, KafkaRequestError, OffsetManagerError
from offsetmgr.kafka.clients import open_consumer
from offsetmgr.kafka.config import OWN_GROUP, checked_config
from offsetmgr.kafka.errors import cause_of, request_error
from offsetmgr.logs import SafeLogger
from offsetmgr.repeats import RepeatLimiter
from offsetmgr.text import error_text
from offsetmgr.workers import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Clusters: TypeAlias = "Mapping[str, str | Mapping[str, object]]"
"""Bootstrap servers, or librdkafka's settings, by the name of the cluster."""

ALWAYS: Final = float("-inf")
"""A cluster answers since then if there was no failure yet."""

PROBE_S: Final = 2.0
"""Time that a cluster has to answer when it is asked whether it is back."""

_PAUSE_S: Final = 1.0  # pause between two such questions
_QUIET: Final[Mapping[str, object]] = {"log_level": 0, "reconnect.backoff.max.ms": 2_000}
"""librdkafka would log each attempt to connect; the link reports a failure once."""

TIMEOUTS: Final = frozenset({7, -185, -192})
"""Kafka's REQUEST_TIMED_OUT, librdkafka's _TIMED_OUT and _MSG_TIMED_OUT."""

_UNREACHABLE: Final = frozenset({-169, -181, -187})
"""librdkafka's _AUTHENTICATION, _SSL and _ALL_BROKERS_DOWN."""

log = SafeLogger("offsetmgr.clusters")


def check_clusters(clusters: object) -> dict[str, dict[str, object]]:
    """Return librdkafka's settings by cluster.  Raises InvalidValueError."""
    fix = 'give settings by name, such as {"west": "west:9092", "east": "east:9092"}'
    if not isinstance(clusters, Mapping) or not clusters:
        kind = type(clusters).__name__
        raise InvalidValueError("clusters", kind, "is not a mapping with a cluster", fix)
    checked = {}
    for name, kafka in clusters.items():
        if not isinstance(name, str) or not name or not name.isprintable():
            raise InvalidValueError("clusters", name, "is not a name of a cluster", fix)
        checked[name] = checked_config(kafka)
        _refuse(checked[name], ["error_cb"])
    return checked


def _refuse(kafka: Mapping[str, object], ours: Iterable[str]) -> None:
    for name in sorted(kafka.keys() & set(ours)):
        raise InvalidValueError(name, kafka[name], "is set by offsetmgr itself", "leave it out")


class Link:
    """The connection to one cluster as its clients find it; for any thread.

    A failure is logged and kept in ``errors`` once, until the cluster answers again.
    """

    def __init__(
        self, name: str, kafka: Mapping[str, object], topic: str | None, *, settle_s: float = 0.0
    ) -> None:
        """After a failure ``topic`` is asked for until the cluster has answered for ``settle_s``.

        Raises InvalidValueError where librdkafka refuses a setting.
        """
        self.name: Final = name
        self.answering_since_s: float | None = ALWAYS
        """None while it does not answer."""
        self.errors: deque[OffsetManagerError] = deque(maxlen=UNREAD)
        self.failures = 0
        """Failures since the link was made; those until the cluster answers again are one."""
        self.timeouts = 0
        """Those of them in which the cluster did not answer in time."""
        self.retries = 0
        """Questions whether the cluster is back."""
        self._kafka = {**_QUIET, **kafka}
        self._topic = topic
        self._settle_s = settle_s
        self._lock = threading.RLock()
        self._turn = threading.RLock()  # of questions
        self._repeats = RepeatLimiter()
        self._reported: set[str] = set()  # codes, since the cluster answered
        self._probe_at_s = 0.0
        # Not an AdminClient: a request of it that outlives its last reference ends the process.
        ours = {"group.id": OWN_GROUP, "enable.auto.commit": False}
        self._asker = open_consumer(self._kafka, ours)

    @property
    def up(self) -> bool:
        return self.answering_since_s is not None

    def settings(self, ours: Mapping[str, object]) -> dict[str, Any]:
        """Return the settings of a client that reports its errors here.

        Raises InvalidValueError where one of ``ours`` was given.
        """
        _refuse(self._kafka, ours)
        return {**self._kafka, **ours, "error_cb": self.heard}

    # Questions; each waits up to ``timeout_s`` and raises KafkaRequestError

    def partitions(self, timeout_s: float, *, led: bool = False) -> list[int]:
        """Return the partitions of the topic, none without one; with ``led`` all have leaders."""
        with self._asking(timeout_s) as left_s:
            if self._topic is None:
                self._asker.list_topics(timeout=left_s)
                return []
            found = self._asker.list_topics(self._topic, timeout=left_s).topics[self._topic]
        if found.error is not None:
            raise self.failure(found.error)
        if led and any(each.leader < 0 for each in found.partitions.values()):
            raise self.failure(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return sorted(found.partitions)

    def log_end(self, partition: int, timeout_s: float) -> int:
        where = KafkaPartition(self._topic or "", partition)
        with self._asking(timeout_s) as left_s:
            return int(self._asker.get_watermark_offsets(where, timeout=left_s)[1])

    def offsets_at(self, at_ms: int, numbers: Iterable[int], timeout_s: float) -> dict[int, int]:
        """Return the first offsets of a time or later; -1 where no record is so young."""
        asked = [KafkaPartition(self._topic or "", number, at_ms) for number in numbers]
        with self._asking(timeout_s) as left_s:
            answers = self._asker.offsets_for_times(asked, timeout=left_s)
        for each in answers:
            if each.error is not None:
                raise self.failure(each.error)
        return {each.partition: each.offset for each in answers}

    @contextmanager
    def _asking(self, timeout_s: float) -> Iterator[float]:
        """Yield the seconds left; librdkafka would first wait for the calls of other threads."""
        deadline = Deadline(timeout_s)
        if not self._turn.acquire(timeout=deadline.left_s):
            raise self.failure(KafkaError(TIMED_OUT))
        try:
            yield deadline.left_s
        except KafkaException as error:
            raise self.failure(error.args[0]) from None
        finally:
            self._turn.release()

    def close(self) -> None:
        self._asker.close()

    # What was found

    def heard(self, error: KafkaError) -> None:
        """Take in an error that a client reports next to its answers."""
        if error.code() in _UNREACHABLE or error.fatal():
            self.failed(self.failure(error))

    def failure(self, error: KafkaError | KafkaRequestError) -> KafkaRequestError:
        """Return an error of librdkafka's, or of a request, as one of this cluster."""
        what = f"cluster {self.name}"
        if isinstance(error, KafkaRequestError):
            return KafkaRequestError(what, error.info, error.detail)
        return request_error(what, error)

    def failed(self, error: OffsetManagerError) -> None:
        """Take in that the cluster did not do what was asked.

        Where it comes back, but somebody has to act first, that is reported as well.
        """
        info, code = getattr(error, "info", None), getattr(error, "code", "")
        lasts = info is not None and info.fault in {Fault.CALLER, Fault.OPERATOR}
        with self._lock:
            was_up, self.answering_since_s = self.up, None
            if was_up:
                self._reported.clear()
                self._probe_at_s = time.monotonic() + _PAUSE_S
                self.failures += 1
                self.timeouts += info is not None and info.code in TIMEOUTS
            elif not lasts or code in self._reported:
                return
            self._reported.add(code)
        # A cluster that answers, and refuses the same each time, is back at once.
        if info is not None and not info.retriable and not self.is_new(error):
            return
        self.errors.append(error)
        text = "cluster %s has failed, and is tried again; the others go on: %s"
        log.warning(text, self.name, error)

    def is_new(self, error: OffsetManagerError) -> bool:
        """Return True unless the same was asked within 30 s."""
        return self._repeats.suppressed(cause_of(str(error)), time.monotonic()) is not None

    def refused(self, error: OffsetManagerError) -> None:
        """Take in that no client of the cluster can be made or go on, now or later."""
        self.answering_since_s = None
        self.errors.append(error)
        log.error("cluster %s is given up; the others go on: %s", self.name, error)

    def answered(self) -> None:
        with self._lock:
            if self.up:
                return
            self.answering_since_s = time.monotonic()
        log.info("cluster %s answers again", self.name)

    def probe_if_due(self, *, led: bool = False) -> None:
        """Ask a cluster that failed whether it is back, where the pause is over.

        With ``led`` all partitions of the topic have to have leaders.  Waits up to ``PROBE_S``.
        """
        since_s, now_s = self.answering_since_s, time.monotonic()
        if now_s < self._probe_at_s or (since_s is not None and now_s - since_s >= self._settle_s):
            return
        self.retries += 1
        try:
            self.partitions(PROBE_S, led=led)
        except OffsetManagerError as error:
            self.failed(error)
        else:
            self.answered()
        self._probe_at_s = time.monotonic() + _PAUSE_S


def close_all(ends: Mapping[str, Callable[[], None]], timeout_s: float) -> None:
    """Call what ends each cluster's connections, all at once; return by ``timeout_s``.

    librdkafka may wait for a dead cluster for minutes: it is left to itself, with a line in the
    log.
    """
    deadline = Deadline(timeout_s)
    questions = {name: Question(end) for name, end in ends.items()}
    for name, question in questions.items():
        if not question.wait(deadline.left_s):
            log.warning("cluster %s was left without a farewell: it does not answer", name)
            continue
        error = question.answer.exception()
        if question.error is not None:  # the process can have no more threads
            ends[name]()
        elif error is not None:
            log.error("cluster %s could not be left: %s", name, error_text(error, 100))
