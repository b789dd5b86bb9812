"""Errors of Kafka, librdkafka and confluent-kafka as those of the product."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from offsetmgr.kafka.errors import (
    cause_of,
    does_not_exist,
    failure_of,
    is_too_large,
    request_error,
)


def test_a_known_code_has_the_hint_of_the_table() -> None:
    """The words of librdkafka are not repeated."""
    assert failure_of(16, "Broker: Not coordinator").info.name == "NOT_COORDINATOR"
    assert failure_of(16, "Broker: Not coordinator").detail == ""


def test_an_unknown_code_keeps_its_words() -> None:
    """A code of a newer Kafka is explained by librdkafka, on one line."""
    failure = failure_of(-100, "new\nerror")
    assert (failure.info.code, failure.detail) == (-100, r"new\nerror")


def test_an_exception_loses_its_traceback() -> None:
    """Its frames would keep an admin client alive until a garbage collection."""
    answer: Future[None] = Future()
    answer.set_exception(KafkaException(KafkaError(29, "denied")))
    with pytest.raises(KafkaException) as caught:
        answer.result()
    assert failure_of(caught.value).info.name == "TOPIC_AUTHORIZATION_FAILED"
    assert caught.value.__traceback__ is None


def test_any_other_exception_is_named() -> None:
    """A fault of a library is an answer like any other."""
    failure = failure_of(ValueError("odd\x1b[2J"))
    assert (failure.info.code, failure.detail) == (-1, r"ValueError: odd\x1b[2J")


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


@pytest.mark.parametrize("code", [3, -188, -190])
def test_an_absent_partition_is_recognised(code: int) -> None:
    """Kafka has one code for it, librdkafka two more."""
    assert does_not_exist(request_error("log of t-0", failure_of(code)))
    assert not does_not_exist(request_error("log of t-0", failure_of(29)))
    assert not does_not_exist(7)


@pytest.mark.parametrize("code", [4, 10, 18])
def test_an_oversized_message_is_recognised(code: int) -> None:
    """Its batch may be what is too large."""
    assert is_too_large(request_error("write to t", KafkaError(code)))
    assert not is_too_large(request_error("write to t", KafkaError(29)))


def test_the_cause_of_a_report_is_the_same_for_all_brokers() -> None:
    """A repeated report is logged once, whatever broker and time it names."""
    texts = [
        f"[thrd:{name}]: {name}: Connect to ipv4#10.0.0.1:9092 failed: refused (after {n}ms)"
        for n, name in enumerate(["k1:9092/1", "k2:9092/2", "k1:9092/bootstrap"])
    ]
    assert len({cause_of(text) for text in texts}) == 1
