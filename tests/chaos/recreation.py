"""Topics that are deleted and recreated under a chaos run, and the book of their logs."""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections import defaultdict
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import NewTopic

from offsetmgr.deadlines import Deadline
from offsetmgr.devkafka.cluster import quiet_admin
from offsetmgr.kafka.topics import id_of
from tests.chaos.plan import Recreation, recreations, resized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path
    from typing import Any

    from confluent_kafka import Message
    from confluent_kafka.admin import AdminClient

    from offsetmgr.devkafka import DevKafka

FIRST_RECORDS: Final = 120
FIRST_PARTITIONS: Final = 4

_BOOK: Final = "logs.book"
_REQUEST_S: Final = 60.0
"""Longer than a broker is paused: a request that was given up could be carried out once it goes on,
and delete the next topic of the name."""
_ANSWER_S: Final = 5.0
_PAUSE_S: Final = 0.05
_FILL_S: Final = 120.0
_END_S: Final = 300.0


class Log(NamedTuple):
    """The logs that a topic has from its creation to its deletion."""

    topic: str
    number: int
    """From 1: rises with each creation of the topic."""
    topic_id: str
    partitions: int
    records: int
    """In each partition."""
    asked_s: float
    """The earliest time at which Kafka can have created the topic, by the wall clock."""
    created_s: float
    """The time by which it had done so, and a broker named its id: one that is behind the
    controller names the former topic's."""
    deleted_s: float = inf
    """The earliest time at which it can have deleted it again."""


class Book:
    """The logs of all topics, in a file that one process writes and others read."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _BOOK
        self._size = 0
        self._logs: dict[str, dict[int, Log]] = defaultdict(dict)

    def write(self, log: Log) -> None:
        """Enter a log, or what has become of it."""
        with self._path.open("a") as file:
            file.write(f"{json.dumps(log)}\n")

    def read(self) -> dict[str, list[Log]]:
        """Return the logs of each topic, oldest first."""
        if self._path.exists() and self._path.stat().st_size > self._size:
            with self._path.open("rb") as file:
                file.seek(self._size)
                for line in file:
                    if line.endswith(b"\n"):
                        self._size += len(line)
                        log = Log(*json.loads(line))
                        self._logs[log.topic][log.number] = log
        return {topic: list(logs.values()) for topic, logs in self._logs.items()}

    def newest(self, topic: str) -> Log:
        return self.read()[topic][-1]


class Recreator:
    """Deletes and recreates topics, in a thread of its own, whatever the brokers go through."""

    def __init__(self, kafka: DevKafka, folder: Path, topics: Sequence[str], seed: int) -> None:
        self.incidents: list[str] = []
        self._servers = kafka.bootstrap_servers
        self._topics = topics
        self._ways = recreations(seed)
        self._book = Book(folder)
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Create the first logs."""
        for topic in self._topics:
            self._create(topic, 1, FIRST_PARTITIONS, FIRST_RECORDS, "")

    def start(self, every_s: float) -> None:
        """Recreate each topic every so many seconds from now on."""
        self._thread = threading.Thread(target=self._run, args=(every_s,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End with the topics in place."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_END_S)
            if self._thread.is_alive():
                self.incidents.append(f"a topic could not be recreated within {_END_S:.0f} s")

    def _run(self, every_s: float) -> None:
        next_at = time.monotonic() + every_s
        try:
            while not self._ending.wait(max(next_at - time.monotonic(), 0.0)):
                next_at = max(next_at + every_s, time.monotonic())
                for topic in self._topics:
                    self._recreate(topic, next(self._ways), every_s)
        except Exception:  # noqa: BLE001 -- the run goes on to its end, and then fails
            self.incidents.append(f"the topics are not recreated: {traceback.format_exc()}")

    def _recreate(self, topic: str, way: Recreation, every_s: float) -> None:
        log = self._book.newest(topic)
        self._delete(log)
        if way.away:
            time.sleep(way.away * every_s)
        records, partitions = resized(log.records, log.partitions, way)
        self._create(topic, log.number + 1, partitions, records, log.topic_id)

    def _delete(self, log: Log) -> None:
        asked_s = time.time()

        def delete(admin: AdminClient) -> Future[Any]:
            return admin.delete_topics([log.topic], request_timeout=_REQUEST_S)[log.topic]

        for code in self._tries(delete):
            if code in {KafkaError.NO_ERROR, KafkaError.UNKNOWN_TOPIC_OR_PART}:
                break
        self._book.write(log._replace(deleted_s=asked_s))

    def _create(
        self, topic: str, number: int, partitions: int, records: int, former_id: str
    ) -> None:
        def create(admin: AdminClient) -> Future[Any]:
            new = NewTopic(topic, partitions)
            return admin.create_topics([new], request_timeout=_REQUEST_S)[topic]

        first_s = asked_s = time.time()
        for code in self._tries(create):
            if code == KafkaError.NO_ERROR:
                break
            if code == KafkaError.TOPIC_ALREADY_EXISTS and self._id_of(topic, former_id):
                asked_s = first_s  # one of the tries was carried out, whatever it answered
                break
            asked_s = time.time()
        while not (topic_id := self._id_of(topic, former_id)):
            time.sleep(_PAUSE_S)
        created_s = time.time()
        self._fill(topic, partitions, records)
        log = Log(topic, number, topic_id, partitions, records, asked_s, created_s)
        self._book.write(log)

    def _tries(self, ask: Callable[[AdminClient], Future[Any]]) -> Iterator[int]:
        """Ask again and again; yield the error codes of the answers, 0 for none."""
        while True:
            # A new client: librdkafka looks for a controller when it connects, and not soon again.
            admin = quiet_admin(self._servers)
            error = ask(admin).exception(2 * _REQUEST_S)
            yield error.args[0].code() if error is not None else int(KafkaError.NO_ERROR)
            time.sleep(_PAUSE_S)

    def _id_of(self, topic: str, former_id: str) -> str:
        """Return the topic's id; empty if it is not known, or still that of the former topic."""
        admin = quiet_admin(self._servers)
        asked = admin.describe_topics(TopicCollection([topic]), request_timeout=_ANSWER_S)
        try:
            found = id_of(asked[topic].result(2 * _ANSWER_S).topic_id)
        except (KafkaException, TimeoutError):
            return ""
        return "" if found == former_id else found

    def _fill(self, topic: str, partitions: int, records: int) -> None:
        left = [partition for partition in range(partitions) for _ in range(records)]
        deadline = Deadline(_FILL_S)
        while left:
            left = self._unwritten(topic, left, deadline)
            if deadline.over:
                text = f"{len(left)} records of {topic} were not written in {_FILL_S:.0f} s"
                raise TimeoutError(text)

    def _unwritten(self, topic: str, partitions: list[int], deadline: Deadline) -> list[int]:
        """Write a record to each of ``partitions``; return those where that failed.

        The producer is a new one: a broker that is behind the controller tells it too few.
        """
        settings = {"bootstrap.servers": self._servers, "enable.idempotence": True, "log_level": 0}
        producer, left = Producer(settings), list[int]()

        def delivered(partition: int, error: KafkaError | None, _: Message) -> None:
            if error is not None:
                left.append(partition)

        for partition in partitions:
            try:
                report = partial(delivered, partition)
                producer.produce(topic, topic, partition=partition, on_delivery=report)
            except KafkaException:  # it knows already that there is no such partition
                left.append(partition)
        producer.flush(deadline.left_s)
        return left
