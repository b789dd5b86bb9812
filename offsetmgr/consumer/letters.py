"""Dead letters: reading them, and the way back to where their messages came from.

A letter is replayed at most once.  A replay and the mark that it has happened are one transaction.
The mark is a message without a value in the dead-letter topic itself, with the header
``offsetmgr-replayed``: the offset of the letter, which is in the same partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_NOT_AVAILABLE, KafkaException

from offsetmgr.consumer.retry import COPIES
from offsetmgr.consumer.topics import INTERNAL, missing_partition
from offsetmgr.errors import KafkaRequestError, OffsetManagerError
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.errors import known, request_error
from offsetmgr.kafka.log_reader import read_to_end
from offsetmgr.kafka.messages import headers_of
from offsetmgr.kafka.producer import UNBOUNDED, open_producer
from offsetmgr.retry_headers import (
    CUT,
    ERROR,
    LAST,
    MAX_TIME_MS,
    REPLAYED,
    REPLAYED_FROM,
    REPLAYS,
    STACK,
    TIMESTAMP,
    TRIES,
    Origin,
    number,
    origin_of,
    own_headers,
)
from offsetmgr.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from confluent_kafka import KafkaError, Message

_TOGETHER: Final = 50  # letters of one transaction
_BATCH_BYTES: Final = 1_000_000  # largest batch of messages; a larger message is sent alone
_BY_KEY: Final = -1  # librdkafka's RD_KAFKA__BY_KEY: the partition is chosen by the key


class Letter(NamedTuple):
    """A message of a dead-letter topic."""

    place: Origin
    """Partition and offset in the dead-letter topic."""
    origin: Origin
    """Partition and offset where it was first read; its own place if its headers name no other."""
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    """Those of the message itself, without those that tell of its failures."""
    timestamp_ms: int
    """Timestamp of the message where it was first read; -1 if it is not known."""
    tries: int
    error: str
    stack: str
    failed_at_s: float
    """Seconds since 1970."""
    replays: int
    """Replays before it came here."""
    replayed: bool
    cut_bytes: int | None
    """Size of the value if it was too large for the dead-letter topic and is left out."""
    problem: str
    """The reason why it cannot be replayed, to its origin at least; empty if none is known."""


def read_letters(kafka: Mapping[str, object], topic: str, timeout_s: float) -> list[Letter]:
    """Return the letters of ``topic``, oldest first.

    A consumer that is killed may have written a letter twice: such copies are one letter, replayed
    if one of them is.

    Raises KafkaRequestError; OffsetTimeoutError where it was not read to its end in time.
    """
    with ClusterReader(kafka, timeout_s=timeout_s) as reader:
        numbers = known(reader.partitions_of([topic])[topic])
    starts = {TopicPartition(topic, each): OFFSET_BEGINNING for each in numbers}
    marks: set[tuple[int, int]] = set()
    letters = []
    for message in read_to_end(kafka, starts, timeout_s):
        headers = headers_of(message)
        if message.value() is None and [name for name, _ in headers] == [REPLAYED]:
            marks.add((message.partition() or 0, number(dict(headers), REPLAYED, -1)))
        else:
            letters.append(_letter(message, headers))
    once: dict[object, Letter] = {}
    for letter in sorted(letters, key=lambda each: (each.failed_at_s, each.place)):
        replayed = (letter.place.partition, letter.place.offset) in marks
        # The same origin with other content is of a former log of a recreated topic.
        content = letter.key, letter.value, letter.timestamp_ms
        same = letter.origin, letter.replays, content
        before = once.get(same, letter)
        once[same] = before._replace(replayed=before.replayed or replayed)
    return list(once.values())


def _letter(message: Message, headers: list[tuple[str, bytes | None]]) -> Letter:
    told = dict(headers)
    place = Origin(message.topic() or "", message.partition() or 0, message.offset() or 0)
    origin, problem = place, ""
    try:
        origin = origin_of(told, place)
    except OffsetManagerError as error:
        problem = str(error)
    if not problem and origin.topic == place.topic:
        problem = "its headers do not name the topic that it came from"
    if origin.topic.startswith(INTERNAL):
        problem = f"its origin {origin.topic} is one of Kafka's own topics"
    kind, written_ms = message.timestamp()
    written_ms = min(max(written_ms, 0), MAX_TIME_MS) if kind != TIMESTAMP_NOT_AVAILABLE else 0
    return Letter(
        place,
        origin,
        message.key(),
        message.value(),
        own_headers(headers),
        number(told, TIMESTAMP, -1, MAX_TIME_MS),
        number(told, TRIES),
        (told.get(ERROR) or b"").decode(errors="replace"),
        (told.get(STACK) or b"").decode(errors="replace"),
        number(told, LAST, written_ms, MAX_TIME_MS) / 1000,
        number(told, REPLAYS),
        replayed=False,
        cut_bytes=number(told, CUT) if CUT in told else None,
        problem=problem,
    )


class Replayer:
    """Replays letters of one dead-letter topic; a second one ends the first."""

    def __init__(self, kafka: Mapping[str, object], topic: str, timeout_s: float) -> None:
        """Raises KafkaRequestError."""
        self._kafka = kafka
        self._topic = topic
        self._timeout_s = timeout_s
        ours = {"transactional.id": f"offsetmgr-dlq-{topic}", **UNBOUNDED}
        self._producer = open_producer({**COPIES, **kafka}, ours, max_message_bytes=_BATCH_BYTES)
        try:
            self._producer.init_transactions(timeout_s)
        except KafkaException as error:
            raise request_error(f"replay letters of {topic}", error) from error

    def replay(
        self, letters: Iterable[Letter], *, to: str | None = None
    ) -> tuple[list[Letter], list[Letter]]:
        """Send ``letters`` to their own partitions, or to the topic ``to`` by their keys.

        Returns those that were sent, and those that have a problem.  A letter that was replayed
        before, also since it was read, is in neither.  Raises KafkaRequestError where no more can
        be sent; the letters of finished transactions are replayed then, and marked so.
        """
        # Read after the producer has fenced all others: nobody can replay any more.
        now = read_letters(self._kafka, self._topic, self._timeout_s)
        waiting = {each.place: each for each in now if not each.replayed}
        # Another letter in the same place is of a recreated topic, and was not chosen.
        wanted = [each for each in letters if waiting.get(each.place) == each]
        good, refused = divide_letters(self._kafka, wanted, to, self._timeout_s)
        sent: list[Letter] = []
        for start in range(0, len(good), _TOGETHER):
            together = good[start : start + _TOGETHER]
            if self._send(together, to) is None:
                sent += together
                continue
            # One that Kafka refuses takes the others of its transaction with it.
            for each in together:
                error = self._send([each], to)
                if error is None:
                    sent.append(each)
                else:
                    refused.append(each._replace(problem=str(error)))
        return sent, refused

    def _send(self, letters: Sequence[Letter], to: str | None) -> KafkaRequestError | None:
        """Replay letters in one transaction; return why none of them was.

        Raises KafkaRequestError where this producer can do no more.
        """
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        what = f"replay letters of {self._topic}"
        producer = self._producer
        try:
            producer.begin_transaction()
            for each in letters:
                place = "/".join(map(str, each.place))
                ours = {REPLAYS: str(each.replays + 1), REPLAYED_FROM: place}
                headers = [*each.headers, *((k, v.encode()) for k, v in ours.items())]
                partition = each.origin.partition if to is None else _BY_KEY
                producer.produce(
                    to or each.origin.topic,
                    each.value,
                    each.key,
                    partition,
                    headers=headers,  # type: ignore[arg-type]  # a value may be None
                    timestamp=max(each.timestamp_ms, 0),
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
            if error.args[0].fatal():
                raise request_error(what, cause) from error
            try:
                producer.abort_transaction(self._timeout_s)
            except KafkaException as failed:
                raise request_error(what, failed.args[0]) from error
            return request_error(what, cause)
        return None


def divide_letters(
    kafka: Mapping[str, object], letters: Iterable[Letter], to: str | None, timeout_s: float
) -> tuple[list[Letter], list[Letter]]:
    """Return the letters that can be replayed, and the others with their problems.

    Raises KafkaRequestError, also where the topic ``to`` does not exist.
    """
    letters = list(letters)
    origins = {each.origin.topic for each in letters if not each.problem}
    with ClusterReader(kafka, timeout_s=timeout_s) as reader:
        topics = reader.partitions_of(origins if to is None else [to])
    if to is not None:
        known(topics[to])
    good, refused = [], []
    for letter in letters:
        problem = letter.problem if to is None else ""
        if to is None and not problem:
            topic, partition, _ = letter.origin
            problem = str(missing_partition(topics, TopicPartition(topic, partition)) or "")
        if letter.cut_bytes is not None:
            problem = f"its value of {letter.cut_bytes} bytes is left out: it was too large"
        if problem:
            refused.append(letter._replace(problem=problem))
        else:
            good.append(letter)
    return good, refused
