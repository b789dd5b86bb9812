"""One bad message stops nobody: handlers that raise anything, large messages, hostile headers."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from offsetmgr.consumer import AckConsumer, AckSettings, RetryPolicy
from offsetmgr.consumer.retry import Letter, read_retried
from tests.commands import run
from tests.conftest import create_topic
from tests.kafka.group_member import FAILURES
from tests.kafka.messages import (
    committed,
    filled,
    handled,
    number_of,
    polled,
    read_letters,
    running,
    send,
)
from tests.kafka.raw_headers import produce_raw
from tests.waiting import WAIT_S, eventually, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.consumer import AckMessage
    from offsetmgr.devkafka import DevKafka

DEFAULT_BYTES = 1_048_588


def letters_of(kafka: DevKafka, group: str) -> list[Letter]:
    return read_letters({"bootstrap.servers": kafka.bootstrap_servers}, f"{group}.dlq", WAIT_S)


def retrying(*delays_s: float, **options: Any) -> AckSettings:
    """Settings with a retry topic for each delay, and dead letters."""
    return AckSettings(retry=RetryPolicy(delays_s, partitions=1), **options)


def configure(kafka: DevKafka, topic: str, value: int, name: str = "max.message.bytes") -> None:
    """Change a setting of a topic."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    kind, raise_it = ResourceType.TOPIC, AlterConfigOpType.SET
    entry = ConfigEntry(name, str(value), incremental_operation=raise_it)
    resource = ConfigResource(kind, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)


def is_refused(kafka: DevKafka, topic: str, value: bytes) -> bool:
    """Produce a message; a broker takes some time to apply a setting that it has accepted."""
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    producer.flush(WAIT_S)
    return errors[0] is not None


def send_numbered(kafka: DevKafka, topic: str, headers: list[dict[str, bytes]]) -> None:
    """Produce a message with its number for each of the ``headers``, named without our prefix."""
    for number, own in enumerate(headers):
        named = {f"offsetmgr-{name}": value for name, value in own.items()}
        send(kafka, topic, {"value": str(number), "headers": named})


class NoTextError(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]  # noqa: PLE0307


def forked_error() -> BaseException:
    """Return an error with the status of a copy of the process that was forked, and has ended."""
    copy = os.fork()
    if copy == 0:
        sys.exit(3)
    return ValueError(os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]))


KINDS = {**FAILURES, "fork": forked_error, "no text": NoTextError}
LAZY: dict[str, Callable[[], object]] = {"lazy": lambda: (each for each in "x"), "future": Future}


def test_a_batch_that_changed_on_the_disk_is_reported_and_not_handed_out(
    kafka: DevKafka, group: str
) -> None:
    """Its messages are not passed over."""
    create_topic(kafka, group, 1)
    for value in ("first", "second", "third"):
        send(kafka, group, {"value": value})
    (segment,) = (kafka.broker(1).log_path.parent / "data" / f"{group}-0").glob("*.log")
    with segment.open("r+b") as file:
        place = file.read().index(b"second")
        file.seek(place)
        file.write(b"S")
    with AckConsumer(kafka.bootstrap_servers, group, [group]) as consumer:
        polled(consumer).ack()

        def problem() -> Any:
            assert consumer.poll(0.1) is None
            return [error for error in consumer.errors() if error.code == "_BAD_MSG"]

        (error,) = until(problem)
        assert (error.topic, error.partition, error.offset) == (group, 0, 1)
    assert committed(kafka, group, group, 1) == {0: (1, "")}


def test_any_exception_of_a_handler_fails_its_message_alone(
    kafka: DevKafka, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One worker meets every kind, and a header whose name is not UTF-8, and handles the rest.

    So it is with a result that somebody would have to await, wait for or iterate over.
    """
    create_topic(kafka, group, 1)
    kinds = (*KINDS, *LAZY)
    send(kafka, group, *kinds, *["good"] * len(kinds))
    names = [(b"\xff\xfe", b"1"), (b"good", b"2"), (b"\xc3(", b"")]
    produce_raw(kafka.bootstrap_servers, group, b"header", names)
    calls: Counter[bytes | None] = Counter()
    seen: list[object] = []

    def handle(message: AckMessage) -> object:
        calls[message.value()] += 1
        kind = (message.value() or b"").decode()
        if kind in LAZY:
            return LAZY[kind]()
        if kind in KINDS:
            raise KINDS[kind]()  # noqa: RSE102
        if kind == "header":
            seen.append(message.headers())
            raise ValueError(message.headers())
        return None

    count = len(kinds)
    handled(kafka, group, handle, lambda: calls.total() == 2 * count + 1, retrying(), workers=1)
    failed = [b"header", *(kind.encode() for kind in kinds)]
    assert calls == {b"good": count, **dict.fromkeys(failed, 1)}
    assert all(message.isprintable() and len(message) < 1_000 for message in caplog.messages)
    assert seen[-1] == [("\ufffd", b"1"), ("good", b"2"), ("\ufffd", b"")]
    found = {each.value: each for each in letters_of(kafka, group)}
    assert set(found) == set(failed)
    unwaited = "TypeError: the handler returned a {}, which nobody waits for"
    assert found[b"lazy"].error == unwaited.format("generator")
    assert found[b"future"].error == unwaited.format("Future")
    assert found[b"exit"].error == "SystemExit: 3"
    assert found[b"fork"].error == "ValueError: 1"
    assert found[b"unprintable"].error.startswith("UnprintableError: its text cannot be had")
    assert found[b"surrogates"].error == "ValueError: \\udcff\\ud800"
    assert len(found[b"long"].error) < 3_000
    assert found[b"header"].headers == seen[-1]
    (end,) = committed(kafka, group, group, 1).values()
    assert end == (2 * count + 1, "")


@pytest.mark.parametrize("kind", ["raised", "raised later", "compressed", "headers"])
def test_a_message_that_its_topic_takes_is_retried_and_dead_lettered(
    kafka: DevKafka, group: str, kind: str
) -> None:
    """Above the broker's default limit, compressible beyond it, and with own headers."""
    limit = 3_000_000 if kind == "raised" else DEFAULT_BYTES
    create_topic(kafka, group, 1)
    configure(kafka, group, limit)
    value = random.Random(1).randbytes(limit - 200)  # noqa: S311
    headers: list[tuple[str, bytes]] = []
    if kind == "raised later":
        # As after an earlier start: the retry topics have a smaller limit than their source.
        for topic in (f"{group}.retry.1", f"{group}.dlq"):
            create_topic(kafka, topic, 1)
            configure(kafka, topic, 100_000)
    elif kind == "compressed":
        value = b"x" * 5_000_000
    elif kind == "headers":
        value, headers = value[:500_000], [("large", value[500_000:])]
    ours: dict[str, Any] = {"message.max.bytes": 10_000_000}
    ours |= {"compression.type": "gzip"} if kind == "compressed" else {}
    send(kafka, group, {"value": value, "key": b"key", "headers": headers}, **ours)
    tries: list[tuple[str, int, int]] = []

    def handle(message: AckMessage) -> None:
        tries.append((message.topic(), message.tries, len(message.value() or b"")))
        raise ValueError("x" * 3_000)

    consumer = handled(kafka, group, handle, lambda: len(tries) == 2, retrying(0.1))
    assert consumer.errors() == []
    assert tries == [(group, 1, len(value)), (f"{group}.retry.1", 2, len(value))]
    (letter,) = letters_of(kafka, group)
    assert (letter.value, letter.key, letter.cut_bytes) == (value, b"key", None)


@pytest.mark.parametrize("limit", [8_000, 1_000])
def test_a_letter_that_does_not_fit_is_kept_without_its_value(
    kafka: DevKafka, group: str, limit: int
) -> None:
    """Key, origin and error stay; the message is not delivered endlessly, nor replayed in part."""
    create_topic(kafka, group, 1)
    consumer = AckConsumer(kafka.bootstrap_servers, group, [group], settings=retrying())
    configure(kafka, f"{group}.dlq", limit)
    data = random.Random(1).randbytes(20_000)  # noqa: S311
    large = {"value": data, "key": data[:50], "headers": {"own": data[:2_000]}}
    send(kafka, group, large, {"value": b"small", "key": b"key"})
    calls: list[bytes | None] = []

    def handle(message: AckMessage) -> None:
        calls.append(message.value())
        raise ValueError("bad")

    with running(consumer, handle):
        until(lambda: len(calls) == 2 and consumer.pending == 0)
    cut, whole = sorted(letters_of(kafka, group), key=lambda each: each.origin)
    assert (cut.value, cut.cut_bytes, cut.key) == (None, 20_000, data[:50])
    assert (cut.error, cut.origin) == ("ValueError: bad", (group, 0, 0))
    assert [name for name, _ in cut.headers] == (["own"] if limit == 8_000 else [])
    assert (whole.value, whole.cut_bytes) == (b"small", None)
    replayed = run(kafka, "dlq", "replay", f"{group}.dlq", "--execute", "--json")
    assert replayed.status == 1
    place = f"{cut.place.partition}:{cut.place.offset}"
    assert [each["letter"] for each in replayed.json()["refused"]] == [place]
    assert len(replayed.json()["letters"]) == 1
    assert f"letter {place} is not replayed: its value of 20000 bytes" in replayed.err


def test_a_retry_topic_that_refuses_all_messages_is_reported_once(
    kafka: DevKafka, group: str
) -> None:
    """The messages come again, without a report for each."""
    create_topic(kafka, group, 1)
    send(kafka, group, *[os.urandom(2_000)] * 20)
    settings = retrying(1.0, nack_delay_s=0, dwell_s=0)
    with AckConsumer(kafka.bootstrap_servers, group, [group], settings=settings) as consumer:
        configure(kafka, f"{group}.retry.1", 1_000)
        until(lambda: is_refused(kafka, f"{group}.retry.1", os.urandom(2_000)))
        tries: Counter[int] = Counter()
        while tries[2] < 20:
            message = polled(consumer)
            if message.topic() != group:  # it was taken before the broker knew the setting
                message.ack()
                continue
            tries[message.tries] += 1
            if message.tries == 1:
                message.nack()
        (error,) = consumer.errors()
    assert "MSG_SIZE_TOO_LARGE" in str(error)


@pytest.mark.parametrize("kind", ["retry topic", "time-out", "redelivery"])
def test_two_deliveries_of_a_key_are_never_handled_at_once(
    kafka: DevKafka, group: str, kind: str
) -> None:
    """After a retry or a time-out the key's next message waits for the handler that is running."""
    filled(kafka, group, 20, partitions=1, keys=2)
    running_now: Counter[bytes | None] = Counter()
    order: list[tuple[int, int]] = []
    lock = threading.Lock()
    timeout_s = 0.2 if kind == "time-out" else 300.0
    settings = AckSettings(nack_delay_s=0.05, ack_timeout_s=timeout_s)
    if kind != "redelivery":
        settings = replace(settings, retry=RetryPolicy((0.05, 0.05), partitions=1))

    def handle(message: AckMessage) -> None:
        number = number_of(message)
        with lock:
            running_now[message.key()] += 1
            assert running_now[message.key()] == 1
            order.append((number, message.tries))
        try:
            if number % 5 == 0 and message.tries == 1:
                if kind == "time-out":
                    time.sleep(0.5)  # work that takes too long
                raise ValueError("busy")
            time.sleep(0.02)
        finally:
            with lock:
                running_now[message.key()] -= 1

    expected = {(n, 1) for n in range(20)} | {(n, 2) for n in range(0, 20, 5)}
    options: dict[str, Any] = {"workers": 8, "ordered_by": "key"}
    handled(kafka, group, handle, lambda: expected <= set(order), settings, **options)
    if kind == "redelivery":
        for key in range(2):
            numbers = [each for each in order if each[0] % 2 == key]
            assert numbers == sorted(numbers), "the order of a key is kept"


def test_messages_in_the_retry_topics_of_a_longer_policy_are_handled(
    kafka: DevKafka, group: str
) -> None:
    filled(kafka, group, 5, partitions=1)
    tries: dict[int, list[str]] = {1: [], 2: [], 3: []}

    def fail(message: AckMessage) -> None:
        tries[message.tries].append(message.topic())
        raise ValueError("outage")

    # The last delay is for the consumer to end in: what it handles a fourth time is not left.
    handled(kafka, group, fail, lambda: len(tries[3]) == 5, retrying(0.0, 0.0, 5.0))
    again: list[AckMessage] = []
    handled(kafka, group, again.append, lambda: len(again) == 5, retrying())
    assert {(each.topic(), each.tries) for each in again} == {(f"{group}.retry.3", 4)}


def test_groups_with_the_same_retry_topics_handle_their_own_messages(
    kafka: DevKafka, group: str
) -> None:
    """A message would double with each try.  A group also commits behind those of the other."""
    filled(kafka, group, 1, partitions=1)
    retries, tries = f"{group}-shared.retry.1", Counter[tuple[str, int]]()
    policy = RetryPolicy((0.0, 5.0), name=f"{group}-shared", partitions=1)
    names = [f"{group}-{each}" for each in "ab"]

    def fail(message: AckMessage) -> None:
        tries[message.topic(), message.tries] += 1
        raise ValueError("bad")

    with ExitStack() as both:
        for name in names:
            settings = AckSettings(retry=policy, commit_interval_s=0.1)
            consumer = AckConsumer(kafka.bootstrap_servers, name, [group], settings=settings)
            both.enter_context(running(consumer, fail))
        for name in names:
            eventually(partial(committed, kafka, name, retries, 1), {0: (2, "")})
        assert tries == {(group, 1): 2, (retries, 2): 2}
        texts = {str(each) for each in consumer.errors()}
        assert any(f"messages of group {names[0]} in {group}-shared" in each for each in texts)


def test_messages_that_wait_for_their_retry_delay_no_others(kafka: DevKafka, group: str) -> None:
    """Though they are as large as all pending ones may be.  ``latest`` skips none of them."""
    retries = f"{group}.retry.1"
    create_topic(kafka, group, 1)
    create_topic(kafka, retries, 4)
    due = {"offsetmgr-due-ms": str(int(time.time() + 3_000) * 1000).encode()}
    for partition in range(4):
        large = {"value": "x" * 100_000, "headers": due, "partition": partition}
        send(kafka, retries, *[large] * 10)
    settings = retrying(1.0, max_pending_bytes=2**20, missing="latest", dwell_s=0)
    with AckConsumer(kafka.bootstrap_servers, group, [group], settings=settings) as consumer:
        until(lambda: consumer.poll(0.1) is None and consumer.stats().messages > 10)
        send(kafka, group, "good", "better")
        for _ in range(2):
            message = consumer.poll(WAIT_S)
            assert message is not None
            assert message.topic() == group
            message.ack()


def test_a_retried_and_replayed_message_keeps_its_timestamp(kafka: DevKafka, group: str) -> None:
    """Also one that is older than the retention of the retry topic."""
    create_topic(kafka, group, 1)
    configure(kafka, group, -1, "retention.ms")
    written_ms = 1_500_000_000_000
    send(kafka, group, {"value": b"old", "timestamp": written_ms})
    seen: list[tuple[int, int]] = []

    def fail(message: AckMessage) -> None:
        seen.append(message.timestamp())
        raise ValueError("bad")

    handled(kafka, group, fail, lambda: len(seen) == 3, retrying(0.0, 0.0))
    assert run(kafka, "dlq", "replay", f"{group}.dlq", "--execute").status == 0
    handled(kafka, group, fail, lambda: len(seen) == 6, retrying(0.0, 0.0))
    assert {milliseconds for _, milliseconds in seen} == {written_ms}


def test_headers_of_others_in_a_retry_topic_are_ignored(kafka: DevKafka, group: str) -> None:
    """Absurd numbers, origins and due times: each message is handled, and none is lost."""
    create_topic(kafka, group, 1)
    create_topic(kafka, f"{group}.retry.1", 1)
    hostile: list[dict[str, bytes]] = [
        {"tries": b"9" * 400},
        {"tries": b"-5", "origin-partition": b"nan"},
        {"tries": "\u0663".encode(), "due-ms": b"1e9"},
        {"origin-topic": b"a\0b", "origin-partition": b"0", "origin-offset": b"0"},
        {"origin-topic": b"\xff", "timestamp-ms": b"9" * 19},
        {"origin-topic": b"x", "origin-partition": b"9" * 30, "origin-offset": b"-1"},
        {"due-ms": b"0", "first-failed-ms": b"9" * 400, "replays": b"x"},
    ]
    send_numbered(kafka, f"{group}.retry.1", hostile)
    calls: Counter[int] = Counter()

    def fail(message: AckMessage) -> None:
        calls[number_of(message)] += 1
        assert message.tries >= 2
        raise ValueError(message.origin, message.timestamp())

    handled(kafka, group, fail, lambda: len(calls) == len(hostile), retrying(0.0))
    assert set(calls.values()) == {1}
    letters = letters_of(kafka, group)
    assert {each.value for each in letters} == {b"%d" % n for n in range(len(hostile))}
    assert {each.origin.topic for each in letters} == {f"{group}.retry.1"}


def test_a_due_time_of_others_is_bounded() -> None:
    """A due time in the year 318857 delays the partition by an hour, not forever."""
    due = {"offsetmgr-due-ms": b"9999999999999999"}
    message = Message(topic="a.retry.1", partition=0, offset=0, headers=[*due.items()])
    policy = RetryPolicy()
    assert read_retried(message, 1, 1000.0, policy.longest_delay_s).due_s == 1000.0 + 3600


@pytest.mark.parametrize(
    ("kind", "number"),
    [("AckConsumer", signal.SIGTERM), ("MultiClusterAckConsumer", signal.SIGINT)],
)
def test_a_hanging_handler_does_not_keep_a_signal_from_ending_the_process(
    kafka: DevKafka, group: str, kind: str, number: signal.Signals
) -> None:
    """The first signal ends ``run``; what is undone is named, and stays uncommitted."""
    filled(kafka, group, 8, partitions=1)
    servers = kafka.bootstrap_servers
    clusters = servers if kind == "AckConsumer" else {"west": servers}
    code = f"""
        import logging, threading, time
        from offsetmgr.clusters import MultiClusterAckConsumer
        from offsetmgr.consumer import AckConsumer, AckSettings
        logging.basicConfig(level="INFO")
        def handle(message):
            if message.offset() == 3:
                threading.Event().wait()
            if message.offset() == 7:
                print("handled", flush=True)
        settings = AckSettings(dwell_s=0.5)
        group = {group!r}
        with {kind}({clusters!r}, group, [group], settings=settings) as consumer:
            consumer.run(handle, workers=2)
    """
    process = subprocess.Popen(
        # A shell's background job ignores SIGINT, and so would its children.
        ["env", "--default-signal=INT", sys.executable, "-u", "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "handled\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 143 or number == signal.SIGINT
    assert f"not done within 0.5 s and not committed: AckMessage({group}-0@3, tries=1)" in err
    ((offset, metadata),) = committed(kafka, group, group, 1).values()
    assert (offset, (metadata or "")[:5]) == (3, "acks:")


def test_pending_messages_are_bounded_in_bytes(kafka: DevKafka, group: str) -> None:
    """About ten messages of 100 kB fit 1 MiB; a message above the limit comes alone."""
    create_topic(kafka, group, 1)
    send(kafka, group, *[b"x" * 100_000] * 60)
    for limit, most in ((2**20, 11), (50_000, 1)):
        settings = AckSettings(max_pending_bytes=limit, dwell_s=0)
        name = f"{group}-{limit}"
        with AckConsumer(kafka.bootstrap_servers, name, [group], settings=settings) as consumer:
            held: list[AckMessage] = []
            count = 0
            while count < 60:
                message = consumer.poll(timeout=WAIT_S if len(held) < most - 1 or not held else 0.2)
                if message is not None:
                    held.append(message)
                    count += 1
                    assert len(held) <= most
                else:
                    for each in held:
                        each.ack()
                    held.clear()


@pytest.mark.parametrize("retries", [False, True])
def test_a_nack_in_a_handler_counts(kafka: DevKafka, group: str, *, retries: bool) -> None:
    """The handler returns after it; an ``error`` of any type does not lose the message."""
    filled(kafka, group, 2, partitions=1)
    seen: list[tuple[bytes | None, int]] = []

    def handle(message: AckMessage) -> None:
        seen.append((message.value(), message.tries))
        if message.tries == 1:
            message.nack(0.1, error=5 if message.value() == b"0" else None)  # type: ignore[arg-type]

    settings = retrying(0.1, 0.1) if retries else AckSettings(nack_delay_s=0.1)
    handled(kafka, group, handle, lambda: len(seen) == 4, settings)
    assert sorted(seen) == [(value, tries) for value in (b"0", b"1") for tries in (1, 2)]
    assert committed(kafka, group, group, 1) == {0: (2, "")}


def test_a_message_is_not_delivered_endlessly(kafka: DevKafka, group: str) -> None:
    """Without retry topics it is given up after ``max_tries``, told once, and stays uncommitted.

    From then on it takes no room of others.
    """
    filled(kafka, group, 3, partitions=1)
    tries: Counter[int] = Counter()

    def handle(message: AckMessage) -> None:
        tries[message.offset()] += 1
        if message.offset() == 1:
            raise ValueError("bad")

    settings = AckSettings(nack_delay_s=0.01, max_tries=5, max_pending=1)
    consumer = AckConsumer(kafka.bootstrap_servers, group, [group], settings=settings)
    with running(consumer, handle, ordered_by="partition"):
        until(lambda: tries[2] == 1)  # it does not wait for what is given up
        (error,) = consumer.errors()
        assert "AckMessage" in str(error)
        assert consumer.pending == 1
    assert tries == {0: 1, 1: 5, 2: 1}
    ((offset, _),) = committed(kafka, group, group, 1).values()
    assert offset == 1


def test_hostile_letters_are_refused_by_name_and_the_others_replayed(
    kafka: DevKafka, group: str
) -> None:
    """None is hidden from the list, ends a command, or is sent to where it did not come from."""
    topic = f"{group}.dlq"
    create_topic(kafka, group, 2)
    create_topic(kafka, topic, 1)
    good = {"origin-topic": group.encode(), "origin-partition": b"1", "origin-offset": b"5"}
    hostile: list[dict[str, bytes]] = [
        {},
        {**good, "origin-partition": b"9" * 400},
        {**good, "origin-partition": b"7"},
        {**good, "origin-topic": b"gone"},
        {**good, "origin-topic": b"__consumer_offsets", "origin-partition": b"0"},
        {**good, "origin-topic": b"a\0b"},
        {**good, "origin-topic": topic.encode(), "origin-partition": b"0"},
        {**good, "replayed": b"0", "origin-offset": b"-1"},
    ]
    fine: list[dict[str, bytes]] = [
        good,
        {**good, "last-failed-ms": b"9999999999999999", "tries": b"x", "replays": b"9" * 400},
        {**good, "timestamp-ms": b"-1", "error": b"\xff\xfe", "stack": b"\x1b[2J"},
    ]
    send_numbered(kafka, topic, [*hostile, *fine])
    count = len(hostile) + len(fine)
    listed = run(kafka, "dlq", "list", topic, "--json").json()["letters"]
    assert len(listed) == count
    assert run(kafka, "dlq", "list", topic).status == 0
    assert run(kafka, "dlq", "show", topic, "0:1").status == 0
    planned = run(kafka, "dlq", "replay", topic, "--json")
    done = run(kafka, "dlq", "replay", topic, "--json", "--execute")
    for answer in (planned, done):
        assert answer.status == 1
        refused = {each["letter"] for each in answer.json()["refused"]}
        assert refused == {f"0:{number}" for number in range(len(hostile))}
        assert len(answer.err.splitlines()) == len(hostile)
    assert len(done.json()["letters"]) == len(fine)
    assert len(run(kafka, "dlq", "list", topic, "--json").json()["letters"]) == len(hostile)
    with AckConsumer(kafka.bootstrap_servers, group, [group]) as consumer:
        found = [consumer.poll(timeout=WAIT_S) for _ in fine]
    assert {each.partition() for each in found if each} == {1}
