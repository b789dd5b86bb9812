"""Retry topics and the dead-letter topic of rejected messages: the way into them, and back.

A dead letter is replayed at most once.  A replay and the mark that it has happened are one
transaction.  The mark is a message without a value in the dead-letter topic itself, with the header
``offsetmgr-replayed``: the offset of the letter, which is in the same partition.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    IsolationLevel,
    KafkaException,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from offsetmgr.consumer.topics import INTERNAL, missing_partition
from offsetmgr.errors import (
    InvalidValueError,
    KafkaRequestError,
    OffsetManagerError,
    OffsetTimeoutError,
)
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.config import asking_config
from offsetmgr.kafka.errors import is_too_large, known, request_error
from offsetmgr.kafka.log_reader import read_to_end
from offsetmgr.kafka.messages import headers_of
from offsetmgr.kafka.producer import UNBOUNDED, MessageProducer, open_producer
from offsetmgr.kafka.topics import LATEST, create_topics
from offsetmgr.retry_headers import (
    CUT,
    DUE,
    ERROR,
    GROUP,
    LAST,
    MAX_TIME_MS,
    REPLAYED,
    REPLAYED_FROM,
    REPLAYS,
    STACK,
    TIMESTAMP,
    TRIES,
    Origin,
    Retried,
    failure_headers,
    number,
    origin_of,
    own_headers,
    smaller_letters,
)
from offsetmgr.types import TopicPartition, check_count, check_list, check_timeout, check_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from confluent_kafka import KafkaError, Message

    from offsetmgr.answers import Written
    from offsetmgr.retry_headers import Headers
    from offsetmgr.types import PartitionRange

_LONGEST_DELAY_S: Final = 3600.0
"""Longest delay in a retry topic where ``delays_s`` has no longer one.  A later time, which
others may have written, counts as this one: the messages behind it wait too."""

_REQUEST_S: Final = 30.0
_MOST_PARTITIONS: Final = 100_000  # that librdkafka creates at once
_MOST_TRIES: Final = 1_000_000
_HEADER_BYTES: Final = 64 * 1024  # room for the headers that tell of failures
_LIMIT: Final = "max.message.bytes"
_DEFAULT_BYTES: Final = 1_048_588

_TOGETHER: Final = 50  # letters of one transaction
_BATCH_BYTES: Final = 1_000_000  # largest batch of messages; a larger message is sent alone
_BY_KEY: Final = -1  # librdkafka's RD_KAFKA__BY_KEY: the partition is chosen by the key

COPIES: Final = {"compression.type": "zstd", "linger.ms": 5}
"""Settings of a producer of copies; the application's may replace them.  A copy is compressed, as
the original may have been: the broker's limit is for that size."""


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
        """Raise InvalidValueError for a bad value."""
        delays = check_list(self.delays_s, "delays_s", "(1.0, 10.0)")
        object.__setattr__(self, "delays_s", tuple(check_timeout(e, "delays_s") for e in delays))
        name: object = self.name
        if not isinstance(name, str):
            raise InvalidValueError("name", name, "is not text", "give the beginning of the topics")
        if check_count(self.partitions, "partitions") > _MOST_PARTITIONS:
            hint = f"give at most {_MOST_PARTITIONS}"
            raise InvalidValueError("partitions", self.partitions, "is too large", hint)

    def retry_topics(self, group: str) -> list[str]:
        """Return the topics in the order of tries.  Raises InvalidValueError."""
        numbers = range(1, len(self.delays_s) + 1)
        return [check_topic(f"{self.name or group}.retry.{n}", "RetryPolicy.name") for n in numbers]

    def dead_letter_topic(self, group: str) -> str:
        """Return the topic for what failed in every try.  Raises InvalidValueError."""
        return check_topic(f"{self.name or group}.dlq", "RetryPolicy.name")

    @property
    def longest_delay_s(self) -> float:
        """Longest time that a message can wait in a retry topic."""
        return max([_LONGEST_DELAY_S, *self.delays_s])


def read_retried(message: Message, stage: int, now_s: float, longest_s: float) -> Retried:
    """Read the headers of a message of the retry topic ``stage``, counted from 1.

    ``now_s`` is in seconds since 1970; a message is due at most ``longest_s`` later.
    """
    headers = dict(headers_of(message))
    origin = Origin(message.topic() or "", message.partition() or 0, message.offset() or 0)
    with suppress(OffsetManagerError):
        origin = origin_of(headers, origin)
    return Retried(
        origin,
        number(headers, TIMESTAMP, -1, MAX_TIME_MS),
        max(stage, number(headers, TRIES, 0, _MOST_TRIES)),
        min(number(headers, DUE) / 1000, now_s + longest_s),
        (headers.get(GROUP) or b"").decode(errors="replace"),
    )


class Rejected(Protocol):
    """A message that was rejected."""

    @property
    def tries(self) -> int: ...
    @property
    def origin(self) -> Origin: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Headers | None: ...
    def timestamp(self) -> tuple[int, int]: ...


class RetryProducer:
    """Produces rejected messages to the topic of their next try."""

    def __init__(
        self,
        kafka: Mapping[str, Any],
        group: str,
        policy: RetryPolicy,
        sources: Callable[[Iterable[str]], Collection[str]],
    ) -> None:
        """Create the topics that do not exist; what fits ``sources`` fits them too.

        ``sources`` returns those of existing topics that are read.  Raises InvalidValueError,
        KafkaRequestError.
        """
        self.longest_s: Final = policy.longest_delay_s
        self.group: Final = group
        self._policy = policy
        self._stages = policy.retry_topics(group)
        self._dead_letter_topic = policy.dead_letter_topic(group)
        wanted = [*self._stages, self._dead_letter_topic]
        existing, limit = _prepare_topics(kafka, wanted, policy.partitions, sources)
        pattern = re.compile(rf"{re.escape(policy.name or group)}\.retry\.([1-9][0-9]{{0,3}})")
        numbered = (pattern.fullmatch(each) for each in {*existing, *self._stages})
        self.topics: Final = {each.group(): int(each.group(1)) for each in numbered if each}
        """The retry topics and their numbers, those of a former policy with more delays too."""
        config = {**COPIES, **asking_config(kafka)}
        self.producer: Final = MessageProducer(config, max_message_bytes=limit, name="retries")

    def send(
        self,
        message: Rejected,
        delay_s: float | None,
        error: BaseException | str | None,
        done: Callable[[Written | KafkaRequestError], None],
    ) -> None:
        """Produce ``message``; ``done`` is called once Kafka has it, or with the error."""
        stage = message.tries - 1
        now_ms = int(time.time() * 1000)
        due_ms: int | None = None
        if stage < len(self._stages):
            wait_s = self._policy.delays_s[stage] if delay_s is None else delay_s
            due_ms = now_ms + int(min(wait_s, self.longest_s) * 1000)
        kind, timestamp_ms = message.timestamp()
        headers = failure_headers(
            message.headers() or (),
            message.origin,
            error,
            tries=message.tries,
            now_ms=now_ms,
            due_ms=due_ms,
            timestamp_ms=timestamp_ms if kind and timestamp_ms >= 0 else None,
            group=self.group,
        )
        key, value = message.key(), message.value()
        if due_ms is not None:
            self.producer.send(self._stages[stage], value, key, done, headers=headers)
            return
        smaller = smaller_letters(key, value, headers)

        def delivered(answer: Written | KafkaRequestError) -> None:
            if is_too_large(answer) and smaller:
                key, value, headers = smaller.pop(0)
                self.producer.send(letters, value, key, delivered, headers=headers)
            else:
                done(answer)

        letters = self._dead_letter_topic
        self.producer.send(letters, value, key, delivered, headers=headers)


def _prepare_topics(
    kafka: Mapping[str, Any],
    wanted: Sequence[str],
    partitions: int,
    sources_of: Callable[[Iterable[str]], Collection[str]],
) -> tuple[Collection[str], int]:
    """Create the ``wanted`` topics that do not exist, for messages as large as their sources take.

    Limits are raised as far as this user may see and change them.  Returns all topics that existed
    before, and the smallest limit of the wanted ones in bytes.  Raises KafkaRequestError.
    """
    with ClusterReader(asking_config(kafka), timeout_s=_REQUEST_S) as reader:
        existing = reader.topic_names()
        sources = sources_of(existing)
        limits = _limits(reader, [each for each in {*sources, *wanted} if each in existing])
        needed = max((limits[each] for each in sources if each in limits), default=0)
        needed += _HEADER_BYTES if needed else 0
        # In a compacted topic letters without a key are refused, and others of a key are lost.
        config = {"cleanup.policy": "delete", **({_LIMIT: str(needed)} if needed else {})}
        new = [NewTopic(each, partitions, config=config) for each in wanted if each not in existing]
        if new:
            create_topics(reader.admin, new, _REQUEST_S)
        too_low = [each for each in wanted if limits.get(each, needed) < needed]
        _raise_limits(reader, too_low, needed)
        limits = _limits(reader, wanted)
    return existing, min([*limits.values(), needed or _DEFAULT_BYTES])


def _limits(reader: ClusterReader, topics: Collection[str]) -> dict[str, int]:
    """Return the largest message of each topic, as far as this user may see it."""
    found = reader.topic_settings(topics) if topics else {}
    return {each: int(held[_LIMIT]) for each, held in found.items() if isinstance(held, dict)}


def _raise_limits(reader: ClusterReader, topics: Iterable[str], limit: int) -> None:
    """Set the largest message of topics, as far as this user may."""
    kind, change = ResourceType.TOPIC, AlterConfigOpType.SET
    entry = ConfigEntry(_LIMIT, str(limit), incremental_operation=change)
    asked = [ConfigResource(kind, each, incremental_configs=[entry]) for each in topics]
    for answer in (reader.admin.incremental_alter_configs(asked) if asked else {}).values():
        with suppress(KafkaRequestError):
            reader.result(answer, "limits of topics")


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


def readable_letters(
    kafka: Mapping[str, object], topic: str, timeout_s: float
) -> tuple[list[Letter], dict[TopicPartition, OffsetManagerError]]:
    """Return the letters of ``topic``, oldest first, and why its other partitions are not read.

    A consumer that is killed may have written a letter twice: such copies are one letter, replayed
    if one of them is.

    A partition with an open transaction, behind which there may be others, is not read to its end.

    Raises KafkaRequestError; OffsetTimeoutError where it was not read to its end in time.
    """
    with ClusterReader(kafka, timeout_s=timeout_s) as reader:
        numbers = known(reader.partitions_of([topic])[topic])
        logs = reader.log_ranges([TopicPartition(topic, each) for each in numbers])
        unread = {each: log for each, log in logs.items() if isinstance(log, OffsetManagerError)}
        starts = dict.fromkeys(logs.keys() - unread.keys(), OFFSET_BEGINNING)
        unread |= _in_transactions(reader, {each: known(logs[each]) for each in starts})
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
    return list(once.values()), unread


def _in_transactions(
    reader: ClusterReader, logs: Mapping[TopicPartition, PartitionRange]
) -> dict[TopicPartition, OffsetManagerError]:
    """Return an error for each log whose end cannot be read until a transaction ends."""
    found: dict[TopicPartition, OffsetManagerError] = {}
    asked = {KafkaPartition(*each): LATEST for each in logs}
    committed = IsolationLevel.READ_COMMITTED
    answers = reader.admin.list_offsets(asked, isolation_level=committed) if asked else {}
    for where, log in logs.items():
        readable = reader.result(answers[KafkaPartition(*where)], f"log of {where}").offset
        if readable < log.high_watermark:
            text = f"what is in {where} from offset {readable} on waits for an open transaction"
            found[where] = OffsetTimeoutError(f"{text}; try again once that has ended")
    return found


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
        now, unread = readable_letters(self._kafka, self._topic, self._timeout_s)
        for failure in unread.values():
            raise failure
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
