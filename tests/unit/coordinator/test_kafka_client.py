"""What a client of the pool says of its troubles, and which settings it takes."""

from __future__ import annotations

import logging
from threading import Semaphore
from typing import Any

import pytest
from confluent_kafka import KafkaError
from structlog.testing import capture_logs

from actors.testing import ManualClock
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.coordinator.kafka_client import LOG_INTERVAL_S, ClientSlot, LibrdkafkaLog, Troubles
from offsetmgr.errors import InvalidValueError

ALL_DOWN, AUTHENTICATION, TRANSPORT = -187, -169, -195
WAIT_S = 30.0
"""A guard against what never comes, not a measure."""


class TestTroubles:
    """The explanation of a time-out."""

    def test_nothing_known(self) -> None:
        """Where no connection failed, a time-out is a time-out."""
        failure = Troubles().timed_out()
        assert (failure.info.name, failure.detail) == ("_TIMED_OUT", "")

    def test_network(self) -> None:
        """A connection that fails is what a time-out is explained with."""
        troubles = Troubles()
        troubles.note(KafkaError(TRANSPORT, "kafka1:9092: Connection refused"))
        troubles.note(KafkaError(ALL_DOWN, "1/1 brokers are down"))
        failure = troubles.timed_out()
        assert failure.info.name == "_TIMED_OUT"
        assert "kafka1:9092: Connection refused" in failure.detail

    def test_credentials(self) -> None:
        """Refused credentials are told as such, once in the log, until Kafka answers."""
        troubles = Troubles()
        with capture_logs() as logs:
            for _ in range(3):
                troubles.note(KafkaError(AUTHENTICATION, "SASL PLAIN failed"))
                troubles.note(KafkaError(TRANSPORT, "Disconnected"))
        failure = troubles.timed_out()
        assert failure.info.name == "_AUTHENTICATION"
        assert failure.detail == (
            "Kafka did not accept the service's credentials: SASL PLAIN failed"
        )
        assert [entry["event"] for entry in logs] == ["kafka_refuses_credentials"]
        troubles.clear()
        assert troubles.timed_out().info.name == "_TIMED_OUT"

    @pytest.mark.parametrize(
        "text",
        [
            "ssl://k:1: SSL handshake failed: Disconnected",
            "ssl://k:1: error:0A000086:SSL routines::certificate verify failed (after 5ms)",
            (
                "ssl://k:1: Disconnected: SSL connection closed by peer (after 5ms in state "
                "SSL_HANDSHAKE)"
            ),
            (
                f"ssl://{'k' * 300}:1: Disconnected: during SSL connection handshake (after 0ms in "
                "state SSL_HANDSHAKE)"
            ),
        ],
    )
    def test_tls(self, text: str) -> None:
        """A failed TLS handshake is told as such, although librdkafka calls it transport."""
        troubles = Troubles()
        troubles.note(KafkaError(TRANSPORT, text))
        assert troubles.timed_out().info.name == "_SSL"

    @pytest.mark.parametrize(
        "text",
        [
            (
                "ssl://k:1: Connection setup timed out in state SSL_HANDSHAKE (after 5000ms in "
                "state SSL_HANDSHAKE)"
            ),
            "ssl://k:1: Disconnected: connection closed by peer (after 5ms in state UP)",
        ],
    )
    def test_network_below_tls(self, text: str) -> None:
        """A broker that keeps silent, or goes later on, has refused nothing."""
        troubles = Troubles()
        troubles.note(KafkaError(TRANSPORT, text))
        assert troubles.timed_out().info.name == "_TIMED_OUT"

    def test_hostile_text(self) -> None:
        """What a broker says stays on one line."""
        troubles = Troubles()
        troubles.note(KafkaError(AUTHENTICATION, "no\r\nway\x1b[0m"))
        assert troubles.timed_out().detail.isprintable()


def test_log_of_an_outage_is_a_trickle() -> None:
    """Librdkafka's lines of one kind are written once in a while, and the rest counted."""
    clock = ManualClock()
    librdkafka = LibrdkafkaLog(clock)
    template = "%s [%s] %s"
    with capture_logs() as logs:
        for _ in range(100):
            librdkafka.log(logging.ERROR, template, "FAIL", "client", "refused")
        librdkafka.log(logging.WARNING, template, "REQTMOUT", "client", "timed out")
        clock.advance(LOG_INTERVAL_S)
        librdkafka.log(logging.ERROR, template, "FAIL", "client", "refused")
    assert [(entry["kind"], entry["not_shown_before"]) for entry in logs] == [
        ("FAIL", 0),
        ("REQTMOUT", 0),
        ("FAIL", 99),
    ]


def test_librdkafka_is_listened_to_also_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong with one look at its log is logged, and the next look comes."""
    looks = Semaphore(0)

    def look(_slot: ClientSlot[Any], _poll: object) -> None:
        looks.release()
        raise LookupError("a callback failed")

    with capture_logs() as logs:
        coordinator = KafkaCoordinator({"bootstrap.servers": "127.0.0.1:1"}, clients=1)
        monkeypatch.setattr(ClientSlot, "poll", look)
        for _ in range(3):
            assert looks.acquire(timeout=WAIT_S)
        coordinator.close(WAIT_S)
    assert "kafka_poll_failed" in {entry["event"] for entry in logs}


class TestSettings:
    """What is refused before anything is started."""

    def test_no_brokers(self) -> None:
        """Without bootstrap servers there is nothing to connect to."""
        with pytest.raises(InvalidValueError, match=r"bootstrap\.servers"):
            KafkaCoordinator({})

    @pytest.mark.parametrize("clients", [0, -1, 65])
    def test_number_of_clients(self, clients: int) -> None:
        """The pool has at least one client, and not so many that threads run out."""
        with pytest.raises(InvalidValueError, match="clients"):
            KafkaCoordinator({"bootstrap.servers": "127.0.0.1:1"}, clients=clients)

    def test_what_librdkafka_refuses(self) -> None:
        """A setting librdkafka does not know is named at the start; no value is shown."""
        config = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "s3cret", "foo.bar": 1}
        with pytest.raises(InvalidValueError, match=r"foo\.bar") as caught:
            KafkaCoordinator(config)
        assert "s3cret" not in str(caught.value)

    @pytest.mark.parametrize("name", ["socket.timeout.ms", "metadata.max.age.ms"])
    def test_what_the_pool_depends_on(self, name: str) -> None:
        """A setting that the pool relies on cannot be changed behind its back."""
        with pytest.raises(InvalidValueError, match="remove it"):
            KafkaCoordinator({"bootstrap.servers": "127.0.0.1:1", name: 60_000})
