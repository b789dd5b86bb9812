"""Errors of Kafka, librdkafka and confluent-kafka as those of the product."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, KafkaException

from offsetmgr.kafka.errors import (
    cause_of,
    does_not_exist,
    failure_of,
    is_too_large,
    request_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("error", "text", "code", "detail"),
    [
        # The hint of the table says more than librdkafka.
        (16, "Broker: Not coordinator", 16, ""),
        # A code of a newer Kafka is explained by librdkafka, on one line.
        (-100, "new\nerror", -100, r"new\nerror"),
        # A fault of a library is an answer like any other.
        (ValueError("odd\x1b[2J"), "", -1, r"ValueError: odd\x1b[2J"),
    ],
)
def test_every_error_is_an_answer(
    error: int | ValueError, text: str, code: int, detail: str
) -> None:
    failure = failure_of(error, text)
    assert (failure.info.code, failure.detail) == (code, detail)


def test_an_exception_loses_its_traceback() -> None:
    """Its frames would keep an admin client alive until a garbage collection."""
    answer: Future[None] = Future()
    answer.set_exception(KafkaException(KafkaError(29, "denied")))
    with pytest.raises(KafkaException) as caught:
        answer.result()
    assert failure_of(caught.value).info.name == "TOPIC_AUTHORIZATION_FAILED"
    assert caught.value.__traceback__ is None


def test_a_missing_right_is_named_with_the_command_that_grants_it() -> None:
    """The user of a request need not know Kafka's operations."""
    error = request_error("read of orders", KafkaError(29), right="READ", topic="orders")
    assert error.hint == (
        "this user lacks READ on topic orders; grant it: kafka-acls --add "
        "--allow-principal User:NAME --operation Read --topic orders"
    )


def test_the_words_of_librdkafka_are_kept_if_they_say_more() -> None:
    """Such as the address that refused a connection."""
    plain = request_error("poll", KafkaException(KafkaError(-195)))
    assert plain.hint == plain.info.hint
    words = "127.0.0.1:1/1: Connection refused"
    assert request_error("poll", KafkaError(-195, words)).hint == words


@pytest.mark.parametrize(
    ("is_kind", "codes"), [(does_not_exist, (3, -188, -190)), (is_too_large, (4, 10, 18))]
)
def test_an_absent_partition_and_an_oversized_message_are_recognised(
    is_kind: Callable[[object], bool], codes: tuple[int, ...]
) -> None:
    """Kafka and librdkafka have several codes for each; the batch may be what is too large."""
    assert all(is_kind(request_error("write to t", failure_of(code))) for code in codes)
    assert not is_kind(request_error("write to t", KafkaError(29)))
    assert not is_kind(7)


def test_the_cause_of_a_report_is_the_same_for_all_brokers() -> None:
    """A repeated report is logged once, whatever broker and time it names."""
    texts = [
        f"[thrd:{name}]: {name}: Connect to ipv4#10.0.0.1:9092 failed: refused (after {n}ms)"
        for n, name in enumerate(["k1:9092/1", "k2:9092/2", "k1:9092/bootstrap"])
    ]
    assert len({cause_of(text) for text in texts}) == 1
    texts = [
        f"no row in <Session at 0x7f{end}e>, request {end * 8:.8}-0c1d-4e5f: see '{end}'"
        for end in ("a", "b0")
    ]
    assert len({cause_of(text) for text in texts}) == 1
