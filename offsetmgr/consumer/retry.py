"""Retry topics and dead letters: the way into them, and back to where the messages came from.

A letter is replayed at most once.  A replay and the mark that it has happened are one transaction.
The mark is a message in the dead-letter topic itself, with the header ``offsetmgr-replayed``: the
offset of the letter, which is in the same partition.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.errors import known, request_error
from offsetmgr.kafka.log_reader import read_to_end
from offsetmgr.retry_headers import (
    ERROR,
    LAST,
    REPLAYED,
    REPLAYED_FROM,
    REPLAYS,
    STACK,
    TRIES,
    Origin,
    failure_headers,
    number,
    origin_of,
    own_headers,
)
from offsetmgr.types import (
    TopicPartition,
    check_count,
    check_timeout,
    check_topic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from confluent_kafka import Message

    from offsetmgr.consumer.deliveries import AckMessage

REQUEST_S: Final = 30.0
_SLICE_S: Final = 0.1
_TOGETHER: Final = 500
"""Letters of one transaction."""


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
            check_timeout(each, "delays_s")
        check_count(self.partitions, "partitions")

    def retry_topics(self, group: str) -> list[str]:
        """Return the topics in the order of tries.  Raises InvalidValueError."""
        numbers = range(1, len(self.delays_s) + 1)
        return [check_topic(f"{self.name or group}.retry.{n}", "RetryPolicy.name") for n in numbers]

    def dead_letter_topic(self, group: str) -> str:
        """Return the topic for what failed in every try.  Raises InvalidValueError."""
        return check_topic(f"{self.name or group}.dlq", "RetryPolicy.name")


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
        headers = failure_headers(
            message.headers,
            message.origin,
            error,
            tries=message.tries,
            now_ms=now_ms,
            due_ms=due_ms,
        )
        try:
            self._producer.produce(
                topic,
                message.value,
                message.key,
                headers=headers,  # type: ignore[arg-type]  # a value may be None
                on_delivery=lambda failure, _: done(failure),
            )
        except BufferError:
            done(KafkaError(KafkaError._QUEUE_FULL))
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


class Letter(NamedTuple):
    """A message of a dead-letter topic."""

    place: Origin
    """Partition and offset in the dead-letter topic."""
    origin: Origin
    """Partition and offset where it was first read."""
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    """Those of the message itself, without those that tell of its failures."""
    tries: int
    error: str
    stack: str
    failed_at_s: float
    """Seconds since 1970."""
    replays: int
    """Replays before it came here."""
    replayed: bool


def read_letters(kafka: Mapping[str, object], topic: str, timeout_s: float) -> list[Letter]:
    """Return the letters of ``topic``, oldest first.

    Raises KafkaRequestError; OffsetTimeoutError where it was not read to its end in time.
    """
    with ClusterReader(kafka, timeout_s=timeout_s) as reader:
        numbers = known(reader.partitions_of([topic])[topic])
    starts = {TopicPartition(topic, each): OFFSET_BEGINNING for each in numbers}
    marks: set[tuple[int, int]] = set()
    found = []
    for message in read_to_end(kafka, starts, timeout_s):
        headers = _headers(message)
        if REPLAYED in dict(headers):
            marks.add((message.partition() or 0, number(dict(headers), REPLAYED)))
        else:
            found.append(_letter(message, headers))
    letters = [
        each._replace(replayed=(each.place.partition, each.place.offset) in marks) for each in found
    ]
    return sorted(letters, key=lambda each: (each.failed_at_s, each.place))


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    return cast("list[tuple[str, bytes | None]]", message.headers() or [])


def _letter(message: Message, headers: list[tuple[str, bytes | None]]) -> Letter:
    told = dict(headers)
    place = Origin(message.topic() or "", message.partition() or 0, message.offset() or 0)
    return Letter(
        place,
        origin_of(told, place),
        message.key(),
        message.value(),
        own_headers(headers),
        number(told, TRIES),
        (told.get(ERROR) or b"").decode(errors="replace"),
        (told.get(STACK) or b"").decode(errors="replace"),
        number(told, LAST, message.timestamp()[1]) / 1000,
        number(told, REPLAYS),
        replayed=False,
    )


class Replayer:
    """Replays letters of one dead-letter topic; a second one ends the first."""

    def __init__(self, kafka: Mapping[str, object], topic: str, timeout_s: float) -> None:
        """Raises KafkaRequestError."""
        self._kafka = kafka
        self._topic = topic
        self._timeout_s = timeout_s
        config: dict[str, Any] = {**kafka, "transactional.id": f"offsetmgr-dlq-{topic}"}
        self._producer = Producer(config)
        try:
            self._producer.init_transactions(timeout_s)
        except KafkaException as error:
            raise request_error(f"replay letters of {topic}", error.args[0]) from error

    def replay(self, letters: Iterable[Letter], *, to: str | None = None) -> list[Letter]:
        """Send ``letters`` to their origin, or to the topic ``to``; return those that were sent.

        A letter that was replayed before, also since it was read, is left out.  Raises
        KafkaRequestError; then letters of finished transactions are replayed, and marked so.
        """
        # Read after the producer has fenced all others: nobody can replay any more.
        now = read_letters(self._kafka, self._topic, self._timeout_s)
        waiting = {each.place for each in now if not each.replayed}
        wanted = [each for each in letters if each.place in waiting]
        for start in range(0, len(wanted), _TOGETHER):
            self._send(wanted[start : start + _TOGETHER], to)
        return wanted

    def _send(self, letters: Sequence[Letter], to: str | None) -> None:
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        producer = self._producer
        try:
            producer.begin_transaction()
            for each in letters:
                place = "/".join(map(str, each.place))
                ours = {REPLAYS: str(each.replays + 1), REPLAYED_FROM: place}
                headers = [*each.headers, *((k, v.encode()) for k, v in ours.items())]
                producer.produce(
                    to or each.origin.topic,
                    each.value,
                    each.key,
                    headers=headers,  # type: ignore[arg-type]  # a value may be None
                    on_delivery=delivered,
                )
                producer.produce(
                    self._topic,
                    None,
                    each.key,
                    partition=each.place.partition,
                    headers={REPLAYED: str(each.place.offset)},
                    on_delivery=delivered,
                )
            producer.commit_transaction(self._timeout_s)
        except KafkaException as error:
            cause = failures[0] if failures else error.args[0]
            if not error.args[0].fatal():
                producer.abort_transaction(self._timeout_s)
            raise request_error(f"replay letters of {self._topic}", cause) from error
