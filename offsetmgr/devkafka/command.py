"""The command ``offsetmgr dev-kafka``: a local Kafka with topics and sample orders in them."""

from __future__ import annotations

import json
import re
import select
import signal
import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import NewTopic

from offsetmgr.devkafka.cluster import DevKafka, quiet_admin
from offsetmgr.devkafka.jars import KAFKA_VERSION
from offsetmgr.devkafka.process import DevKafkaError, log_tail
from offsetmgr.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_MOST_PARTITIONS: Final = 10_000
_WAIT_S: Final = 60.0
_REQUEST_S: Final = 10.0
_PAUSE_S: Final = 0.1
# It exists already where the answer to an earlier request was lost.
_CREATED: Final = frozenset({KafkaError.NO_ERROR, KafkaError.TOPIC_ALREADY_EXISTS})
# A broker that missed its heartbeats on a busy machine is left out by the controller for a while,
# and then names no controller to its clients.
_PASSING: Final = frozenset(
    {
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.NOT_CONTROLLER,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._TIMED_OUT,  # noqa: SLF001 -- the public name of a code of librdkafka's own
    }
)
_REPORT_EVERY: Final = 1_000

_FIRST: Final = datetime(2026, 1, 1, tzinfo=timezone.utc)
_PAUSE: Final = timedelta(seconds=20)
_COUNTRIES: Final = ("DE", "FR", "IT", "NL", "PL")
_PRODUCTS: Final = ("bicycle", "helmet", "lamp", "lock", "pump", "saddle", "tyre")
_END_S: Final = 60.0


def run_dev_kafka(
    *,
    brokers: int = 1,
    port: int = 9092,
    data_dir: Path | None = None,
    topics: Sequence[str] = (),
    produce: int = 0,
) -> int:
    """Run a local Kafka until SIGINT or SIGTERM; return the exit status.

    Broker 1 listens on ``port``, the others on the ports after it.  ``topics`` are created, each
    ``NAME`` or ``NAME:PARTITIONS``, and each new one gets ``produce`` sample orders.  Raises
    InvalidValueError and DevKafkaError where it cannot start, or where a broker ends by itself.
    To be called in the main thread.
    """
    wanted = [parse_topic(text) for text in topics]
    if produce < 0 or (produce and not wanted):
        problem = "is negative" if produce < 0 else "names no topic to fill"
        fix = "give the number of orders, and --topic NAME:PARTITIONS"
        raise InvalidValueError("produce", produce, problem, fix)
    ports = range(port, port + brokers)
    kafka = DevKafka(brokers=brokers, data_dir=data_dir, ports=ports, log=_say)
    # SIGINT too: a shell lets what it starts in the background ignore it.
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        with kafka:
            try:
                filled = _fill(kafka.bootstrap_servers, wanted, produce)
            except KafkaException as error:
                tail = log_tail(kafka.broker(1).log_path)
                raise DevKafkaError(f"Kafka does not answer: {error}; broker 1: {tail}") from error
            _say(f"Kafka {KAFKA_VERSION} is ready: {kafka.bootstrap_servers}{filled}")
            kept = f"Its data is kept in {data_dir}." if data_dir else "Its data goes with it."
            _say(f"Ctrl-C stops it. {kept}")
            ended, _, _ = select.select([broker.process for broker in kafka.brokers], [], [])
            for process in ended:
                process.wait(_END_S)
            for broker in kafka.brokers:
                broker.check_alive()
    except KeyboardInterrupt:
        _say("Kafka has stopped.")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _fill(bootstrap_servers: str, topics: Sequence[SampleTopic], orders: int) -> str:
    """Create the topics, fill the new ones, and return what to say of all of them."""
    new = create_topics(bootstrap_servers, topics) if topics else []
    described = []
    for topic in topics:
        text = f"{topic.name} ({topic.partitions} partition{'s'[: topic.partitions > 1]}"
        if topic not in new:
            text += ", kept as it was"
        elif orders:
            produce_orders(bootstrap_servers, topic, orders)
            text += f", {orders:,} orders"
        described.append(f"{text})")
    return f", with {' and '.join(described)}" if described else ""


def _say(line: str) -> None:
    # At once, for whoever reads through a pipe.
    print(line, flush=True)  # noqa: T201 -- it is the command's output


class SampleTopic(NamedTuple):
    """A topic to be created."""

    name: str
    partitions: int


def parse_topic(text: str) -> SampleTopic:
    """Return the topic that ``NAME`` or ``NAME:PARTITIONS`` names; one partition by default.

    Raises InvalidValueError.
    """
    name, colon, count = text.partition(":")
    if not _NAME.fullmatch(name) or name in {".", ".."}:
        problem, fix = "is not NAME or NAME:PARTITIONS", "use letters, digits and ._- in NAME"
        raise InvalidValueError("topic", text, problem, fix)
    if not colon:
        return SampleTopic(name, 1)
    if not re.fullmatch(r"[0-9]{1,5}", count) or not 1 <= int(count) <= _MOST_PARTITIONS:
        problem = "has no valid number of partitions"
        fix = f"give 1 to {_MOST_PARTITIONS:,}, as in {name}:8"
        raise InvalidValueError("topic", text, problem, fix)
    return SampleTopic(name, int(count))


def create_topics(bootstrap_servers: str, topics: Sequence[SampleTopic]) -> list[SampleTopic]:
    """Create those of ``topics`` that do not exist yet and return them.

    Raises DevKafkaError where a topic exists with another number of partitions, and where Kafka
    does not create one.
    """
    admin = quiet_admin(bootstrap_servers)
    existing = admin.list_topics(timeout=_WAIT_S).topics
    for topic in topics:
        held = existing.get(topic.name)
        if held is not None and len(held.partitions) != topic.partitions:
            raise DevKafkaError(
                f"topic {topic.name} exists with {len(held.partitions)} partitions, not "
                f"{topic.partitions}: give that number, another topic, or an empty data folder"
            )
    new = [topic for topic in topics if topic.name not in existing]
    deadline = time.monotonic() + _WAIT_S
    left = new
    while left:
        wanted = [NewTopic(topic.name, num_partitions=topic.partitions) for topic in left]
        # A new client: librdkafka looks for a controller when it connects, and not soon again.
        admin = quiet_admin(bootstrap_servers)
        asked = admin.create_topics(wanted, request_timeout=_REQUEST_S)
        errors = {name: answer.exception(2 * _REQUEST_S) for name, answer in asked.items()}
        left = [topic for topic in left if _code(errors[topic.name]) not in _CREATED]
        for topic in left:
            error = errors[topic.name]
            if time.monotonic() >= deadline or _code(error) not in _PASSING:
                text = f"topic {topic.name} could not be created on {bootstrap_servers}: {error}"
                raise DevKafkaError(text) from error
        if left:
            time.sleep(_PAUSE_S)
    return new


def _code(error: BaseException | None) -> int | None:
    """Return Kafka's code of an answer, 0 for success; None for any other error."""
    if isinstance(error, KafkaException):
        code: int = error.args[0].code()
        return code
    return None if error else KafkaError.NO_ERROR


def sample_order(number: int) -> dict[str, Any]:
    """Return sample order ``number``, always the same one."""
    return {
        "order_id": number,
        "placed_at": (_FIRST + number * _PAUSE).isoformat(),
        "customer": f"customer-{number * 13 % 500}",
        "country": _COUNTRIES[number * 7 % len(_COUNTRIES)],
        "product": _PRODUCTS[number * 11 % len(_PRODUCTS)],
        "amount": 5.0 + number * 37 % 200,
    }


def produce_orders(
    bootstrap_servers: str,
    topic: SampleTopic,
    count: int,
    report: Callable[[int], None] = lambda _done: None,
) -> None:
    """Write orders 0 to ``count`` - 1 to ``topic`` as JSON, over its partitions in turn.

    ``report`` is called with how many have been handed to Kafka.  Raises DevKafkaError where
    Kafka does not take all of them.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,  # a retry must not make two orders of one
            "linger.ms": 20,
            "queue.buffering.max.messages": count + 1,
            "log_level": 0,
        }
    )
    failures: list[str] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failures.append(error.str())

    for number in range(count):
        if number % _REPORT_EVERY == 0:
            producer.poll(0)
            report(number)
        producer.produce(
            topic.name,
            json.dumps(sample_order(number)),
            key=str(number),
            partition=number % topic.partitions,
            on_delivery=delivered,
        )
    left = producer.flush(_WAIT_S)
    if left or failures:
        why = failures[0] if failures else f"no answer within {_WAIT_S:.0f} s"
        raise DevKafkaError(
            f"Kafka did not take {left + len(failures):,} of {count:,} orders: {why}"
        )
    report(count)
