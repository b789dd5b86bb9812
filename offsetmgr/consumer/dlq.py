"""Dead letters: read them, and send them back to where they came from, each at most once.

A replay and the mark that it has happened are one transaction.  The mark is a message in the
dead-letter topic itself, with the header ``offsetmgr-replayed``: the offset of the letter, which is
in the same partition.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.consumer.deliveries import Origin
from offsetmgr.consumer.keepers import request_error
from offsetmgr.consumer.retry import (
    ERROR,
    LAST,
    REPLAYS,
    STACK,
    TRIES,
    number,
    origin_of,
    own_headers,
)
from offsetmgr.errors import OffsetTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from confluent_kafka import Message
    from typing_extensions import Self

REPLAYED: Final = "offsetmgr-replayed"
"""Header of a mark: the offset of the letter that was replayed."""

REPLAYED_FROM: Final = "offsetmgr-replayed-from"
"""Header of a replayed message: topic, partition and offset of its letter."""

_TOGETHER: Final = 500
"""Letters of one transaction."""

_READ: Final = 500


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
    config: dict[str, Any] = {
        **kafka,
        # It joins no group and commits nothing, but librdkafka wants a name.
        "group.id": "offsetmgr-dlq",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    consumer = Consumer(config)
    try:
        messages = _read(consumer, topic, time.monotonic() + timeout_s)
    except KafkaException as error:
        raise request_error(f"read {topic}", error.args[0]) from error
    finally:
        consumer.close()
    marks: set[tuple[int, int]] = set()
    found = []
    for message in messages:
        headers = _headers(message)
        if REPLAYED in dict(headers):
            marks.add((message.partition() or 0, number(dict(headers), REPLAYED)))
        else:
            found.append(_letter(message, headers))
    letters = [
        each._replace(replayed=(each.place.partition, each.place.offset) in marks) for each in found
    ]
    return sorted(letters, key=lambda each: (each.failed_at_s, each.place))


def _read(consumer: Consumer, topic: str, deadline: float) -> list[Message]:
    described = consumer.list_topics(topic, timeout=max(0.1, deadline - time.monotonic()))
    answer = described.topics[topic]
    if answer.error is not None:
        raise KafkaException(answer.error)
    unread = set(answer.partitions)
    consumer.assign([KafkaPartition(topic, each, OFFSET_BEGINNING) for each in unread])
    found: list[Message] = []
    while unread:
        if time.monotonic() > deadline:
            raise OffsetTimeoutError(f"{topic} was not read to its end in time: give more time")
        for message in consumer.consume(_READ, 0.2):
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 -- its public name
                unread.discard(message.partition() or 0)
            elif not error.retriable():
                raise KafkaException(error)
    return found


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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.flush(0)
