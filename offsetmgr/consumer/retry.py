"""Retry topics and the dead-letter topic: their names, their headers, and the way into them."""

from __future__ import annotations

import threading
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from offsetmgr.config import is_number
from offsetmgr.consumer.deliveries import Origin
from offsetmgr.consumer.keepers import request_error
from offsetmgr.errors import InvalidValueError
from offsetmgr.types import check_count, check_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from offsetmgr.consumer.deliveries import AckMessage

    Headers = Sequence[tuple[str, bytes | None]]

PREFIX: Final = "offsetmgr-"
"""Begins the names of all headers that are set here."""

TOPIC: Final = "offsetmgr-origin-topic"
PARTITION: Final = "offsetmgr-origin-partition"
OFFSET: Final = "offsetmgr-origin-offset"
TRIES: Final = "offsetmgr-tries"
ERROR: Final = "offsetmgr-error"
STACK: Final = "offsetmgr-stack"
FIRST: Final = "offsetmgr-first-failed-ms"
LAST: Final = "offsetmgr-last-failed-ms"
DUE: Final = "offsetmgr-due-ms"
REPLAYS: Final = "offsetmgr-replays"
"""Header with the number of replays from the dead-letter topic; later copies keep it."""

MAX_STACK_CHARS: Final = 8_000
"""Of a longer stack the end is kept."""

REQUEST_S: Final = 30.0
_SLICE_S: Final = 0.1


@dataclass(frozen=True)
class RetryPolicy:
    """The retry and dead-letter topics of rejected messages.

    A message that is rejected at try n goes to the topic ``NAME.retry.n`` and is delivered again
    after ``delays_s[n - 1]``.  After the last retry it goes to ``NAME.dlq``.  Missing topics are
    created.
    """

    delays_s: Sequence[float] = (1.0, 10.0, 60.0)

    name: str = ""
    """Begins the names of the topics; the group's name where empty."""

    partitions: int = 4
    """Partitions of the topics that are created."""

    def __post_init__(self) -> None:
        """Raise InvalidValueError for what makes no sense."""
        for each in self.delays_s:
            if not is_number(each, (int, float)) or each < 0:
                fix = "give seconds, such as (1, 10, 60)"
                raise InvalidValueError("delays_s", each, "is not a number of seconds", fix)
        check_count(self.partitions, "partitions")

    def retry_topics(self, group: str) -> list[str]:
        """Return the topics in the order of tries.  Raises InvalidValueError."""
        numbers = range(1, len(self.delays_s) + 1)
        return [check_topic(f"{self.name or group}.retry.{n}", "RetryPolicy.name") for n in numbers]

    def dead_letter_topic(self, group: str) -> str:
        """Return the topic for what failed in every try.  Raises InvalidValueError."""
        return check_topic(f"{self.name or group}.dlq", "RetryPolicy.name")


def number(headers: Mapping[str, bytes | None], name: str, missing: int = 0) -> int:
    """Return a header as a number; ``missing`` where it is none."""
    try:
        return int((headers.get(name) or b"").decode())
    except ValueError:
        return missing


def origin_of(headers: Mapping[str, bytes | None], here: Origin) -> Origin:
    """Return the origin that headers tell, ``here`` where they tell none."""
    topic = headers.get(TOPIC)
    if topic is None:
        return here
    text = topic.decode(errors="replace")
    return Origin(text, number(headers, PARTITION), number(headers, OFFSET))


class Failed(Protocol):
    """A message that could not be processed."""

    @property
    def headers(self) -> Headers: ...
    @property
    def origin(self) -> Origin: ...
    @property
    def tries(self) -> int: ...


def failure_headers(
    message: Failed, error: BaseException | str | None, *, now_ms: int, due_ms: int | None
) -> list[tuple[str, bytes | None]]:
    """Return the headers of a rejected message: its own, and why and how often it failed."""
    before = dict(message.headers)
    stack = ""
    if isinstance(error, BaseException):
        stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        error = f"{type(error).__name__}: {error}"
    ours = {
        TOPIC: message.origin.topic,
        PARTITION: message.origin.partition,
        OFFSET: message.origin.offset,
        TRIES: message.tries,
        ERROR: error or "rejected without a reason",
        STACK: stack[-MAX_STACK_CHARS:],
        FIRST: number(before, FIRST, now_ms),
        LAST: now_ms,
    }
    if due_ms is not None:
        ours[DUE] = due_ms
    if REPLAYS in before:
        ours[REPLAYS] = number(before, REPLAYS)
    theirs = own_headers(message.headers)
    return theirs + [(name, str(value).encode()) for name, value in ours.items()]


def own_headers(headers: Headers) -> list[tuple[str, bytes | None]]:
    """Return the headers that the message was first produced with."""
    return [(name, value) for name, value in headers if not name.startswith(PREFIX)]


class RetryProducer:
    """Produces rejected messages to the topic of their next try."""

    def __init__(self, kafka: Mapping[str, Any], group: str, policy: RetryPolicy) -> None:
        """Create the topics that do not exist.  Raises InvalidValueError, KafkaRequestError."""
        self.topics: Final = policy.retry_topics(group)
        self._policy = policy
        self._dead_letter_topic = policy.dead_letter_topic(group)
        _create(kafka, [*self.topics, self._dead_letter_topic], policy.partitions)
        self._producer = Producer({**kafka, "enable.idempotence": True, "linger.ms": 5})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll, name=f"retry-{group}", daemon=True)
        self._thread.start()

    def send(
        self,
        message: AckMessage,
        delay_s: float | None,
        error: BaseException | str | None,
        done: Callable[[KafkaError | None], None],
    ) -> None:
        """Produce ``message``; ``done`` is called once Kafka has it, or with the error."""
        stage = self.topics.index(message.topic) + 1 if message.topic in self.topics else 0
        now_ms = int(time.time() * 1000)
        due_ms: int | None = None
        topic = self._dead_letter_topic
        if stage < len(self.topics):
            topic = self.topics[stage]
            wait_s = self._policy.delays_s[stage] if delay_s is None else delay_s
            due_ms = now_ms + int(wait_s * 1000)
        headers = failure_headers(message, error, now_ms=now_ms, due_ms=due_ms)
        try:
            self._producer.produce(
                topic,
                message.value,
                message.key,
                headers=headers,  # type: ignore[arg-type]  # a value may be None
                on_delivery=lambda failure, _: done(failure),
            )
        except BufferError:
            done(KafkaError(KafkaError._QUEUE_FULL))  # noqa: SLF001 -- its public name
        except KafkaException as refused:
            done(refused.args[0])

    def close(self, timeout_s: float) -> None:
        """Wait for what is under way and end."""
        self._producer.flush(timeout_s)
        self._ended.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._ended.is_set():
            self._producer.poll(_SLICE_S)


def _create(kafka: Mapping[str, Any], topics: Iterable[str], partitions: int) -> None:
    new = [NewTopic(each, partitions) for each in topics]
    admin = AdminClient(dict(kafka))
    answers = admin.create_topics(new, request_timeout=REQUEST_S)
    for topic, answer in answers.items():
        try:
            answer.result()
        except KafkaException as refused:
            error = refused.args[0]
            # It would keep the client until a garbage collection: see failure_of_exception.
            refused.__traceback__ = None
            if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise request_error(f"create topic {topic}", error) from None
