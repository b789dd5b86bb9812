"""The command ``offsetmgr dev-kafka``: a local Kafka with topics and sample orders in them."""

from __future__ import annotations

import json
import re
import signal
import time
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Annotated, Any, Final

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import NewTopic
from typer import Option

from offsetmgr.deadlines import Deadline
from offsetmgr.devkafka.cluster import DevKafka, quiet_admin
from offsetmgr.devkafka.jars import KAFKA_VERSION
from offsetmgr.devkafka.process import DevKafkaError
from offsetmgr.errors import InvalidValueError
from offsetmgr.types import add_once, check_topic

_NUMBER: Final = re.compile("[0-9]{1,5}")
_MOST_PARTITIONS: Final = 10_000
_WAIT_S: Final = 180.0
_REQUEST_S: Final = 10.0
_LOOK_S: Final = 0.5

_say: Final = partial(print, flush=True)  # at once, for whoever reads through a pipe
_FIRST: Final = datetime(2026, 1, 1, tzinfo=timezone.utc)
_BETWEEN: Final = timedelta(seconds=20)
_COUNTRIES: Final = ("DE", "FR", "IT", "NL", "PL")
_PRODUCTS: Final = ("bicycle", "helmet", "lamp", "lock", "pump", "saddle", "tyre")


def run_dev_kafka(
    brokers: Annotated[int, Option(help="1 or 3.")] = 1,
    port: Annotated[
        int, Option(min=1, max=65_533, help="Port of the first broker; the next ports follow.")
    ] = 9092,
    topic: Annotated[
        list[str] | None,
        Option(metavar="NAME[:PARTITIONS]", help="Create a topic, of 1 partition; repeatable."),
    ] = None,
    produce: Annotated[
        int, Option(min=0, metavar="COUNT", help="Sample orders to write into each topic.")
    ] = 0,
    kafka_version: Annotated[
        str, Option(metavar="RELEASE", help="The Kafka to run, from 3.3.1 on.")
    ] = KAFKA_VERSION,
) -> int:
    """Run a real Kafka on this machine, for development; needs Java 17 and the spark extra."""
    wanted: dict[str, int] = {}
    for name, partitions in map(_parse_topic, topic or ()):
        add_once(wanted, name, partitions, "topic")
    if produce and not wanted:
        fix = "give --topic NAME:PARTITIONS, too"
        raise InvalidValueError("produce", produce, "names no topic to fill", fix)
    ports = range(port, port + brokers)
    kafka = DevKafka(brokers=brokers, ports=ports, log=_say, version=kafka_version)
    # SIGINT too: a shell lets what it starts in the background ignore it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        with kafka:
            for name, partitions in wanted.items():
                create_topic(kafka.bootstrap_servers, name, partitions)
                produce_orders(kafka.bootstrap_servers, name, partitions, produce)
            _say(f"Kafka {kafka_version} is ready: {kafka.bootstrap_servers}")
            for name, partitions in wanted.items():
                _say(f"Topic {name}: {partitions} partitions, {produce:,} orders")
            _say("Ctrl-C stops it. Its data goes with it.")
            while True:
                for broker in kafka.brokers:
                    broker.check_alive()
                time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        _say("Kafka has stopped.")
    return 0


def _parse_topic(text: str) -> tuple[str, int]:
    """Return name and partitions from ``NAME`` or ``NAME:PARTITIONS``; one partition by default."""
    name, colon, count = text.partition(":")
    check_topic(name)
    if not colon:
        return name, 1
    if not (_NUMBER.fullmatch(count) and 1 <= int(count) <= _MOST_PARTITIONS):
        problem = "has no valid number of partitions"
        fix = f"give 1 to {_MOST_PARTITIONS:,}, as in {name}:8"
        raise InvalidValueError("topic", text, problem, fix)
    return name, int(count)


def create_topic(bootstrap_servers: str, name: str, partitions: int) -> None:
    """Create a topic, if it does not exist.  Raises DevKafkaError if Kafka refuses too long.

    A broker that missed its heartbeats on a busy machine is left out by the controller for a
    while, and then names no controller to its clients.
    """
    for _ in Deadline(_WAIT_S).polls():
        # A new client: librdkafka looks for a controller when it connects, and not soon again.
        admin = quiet_admin(bootstrap_servers)
        asked = admin.create_topics([NewTopic(name, partitions)], request_timeout=_REQUEST_S)
        error = asked[name].exception(2 * _REQUEST_S)
        # It exists also if the answer to an earlier request was lost.
        if error is None or error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return
    raise DevKafkaError(f"topic {name} could not be created on {bootstrap_servers}: {error}")


def sample_order(number: int) -> dict[str, Any]:
    """Return sample order ``number``, always the same one."""
    return {
        "order_id": number,
        "placed_at": (_FIRST + number * _BETWEEN).isoformat(),
        "customer": f"customer-{number * 13 % 500}",
        "country": _COUNTRIES[number * 7 % len(_COUNTRIES)],
        "product": _PRODUCTS[number * 11 % len(_PRODUCTS)],
        "amount": 5.0 + number * 37 % 200,
    }


def produce_orders(bootstrap_servers: str, topic: str, partitions: int, count: int) -> None:
    """Write orders 0 to ``count`` - 1 to ``topic`` as JSON, over its partitions in turn.

    Raises DevKafkaError if Kafka does not accept all of them.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,  # a retry must not make two orders of one
            "linger.ms": 20,
            "log_level": 0,
            "queue.buffering.max.messages": 0,  # no limit
            "queue.buffering.max.kbytes": 2**31 - 1,
        }
    )
    taken = 0

    def delivered(error: KafkaError | None, _: object) -> None:
        nonlocal taken
        taken += error is None

    for number in range(count):
        value, partition = json.dumps(sample_order(number)), number % partitions
        producer.produce(topic, value, str(number), partition, on_delivery=delivered)
        producer.poll(0)
    producer.flush(_WAIT_S)
    if taken < count:
        raise DevKafkaError(f"Kafka took {taken:,} of {count:,} orders within {_WAIT_S:.0f} s")
