"""The reports of a client of the pool, and the settings that it accepts."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from actors.testing import ManualClock
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.errors import InvalidValueError
from offsetmgr.kafka.clients import open_consumer
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.config import checked_config, refused_config
from offsetmgr.kafka.producer import MessageProducer
from offsetmgr.kafka.reports import ConnectionReports
from offsetmgr.repeats import INTERVAL_S
from tests.logs import capture_logs

if TYPE_CHECKING:
    from collections.abc import Callable

ALL_DOWN, AUTHENTICATION, TRANSPORT = -187, -169, -195
IN_HANDSHAKE = "in state SSL_HANDSHAKE"


class TestConnectionReports:
    def test_a_failed_connection_explains_a_time_out(self) -> None:
        """A connection that fails is what a time-out is explained with."""
        reports = ConnectionReports()
        reports.failed(TRANSPORT, "kafka1:9092: Connection refused")
        reports.failed(ALL_DOWN, "1/1 brokers are down")
        failure = reports.timed_out()
        assert failure.info.name == "_TIMED_OUT"
        assert "kafka1:9092: Connection refused" in failure.detail

    def test_refused_credentials_are_logged_once(self) -> None:
        """They are reported as such, once and on one line, until Kafka answers."""
        reports = ConnectionReports()
        with capture_logs() as logs:
            for _ in range(3):
                reports.failed(AUTHENTICATION, "SASL PLAIN\r\nfailed\x1b[0m")
                reports.failed(TRANSPORT, "Disconnected")
        failure = reports.timed_out()
        assert failure.info.name == "_AUTHENTICATION"
        assert failure.detail == (
            r"Kafka did not accept the service's credentials: SASL PLAIN\r\nfailed\x1b[0m"
        )
        assert [entry["event"] for entry in logs] == ["kafka_refuses_credentials"]
        reports.answered()
        assert reports.timed_out().info.name == "_TIMED_OUT"

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("_SSL", "SSL handshake failed: Disconnected"),
            ("_SSL", "error:0A000086:SSL routines::certificate verify failed (after 5ms)"),
            ("_SSL", f"Disconnected: SSL connection closed by peer (after 5ms {IN_HANDSHAKE})"),
            ("_SSL", f"Disconnected: during SSL connection handshake (after 0ms {IN_HANDSHAKE})"),
            ("_TIMED_OUT", f"Connection setup timed out {IN_HANDSHAKE} (after 5ms {IN_HANDSHAKE})"),
            ("_TIMED_OUT", "Disconnected: connection closed by peer (after 5ms in state UP)"),
        ],
    )
    def test_a_failed_handshake_differs_from_a_silent_broker(self, name: str, text: str) -> None:
        """Librdkafka calls both transport; a broker that goes later on has refused nothing."""
        reports = ConnectionReports()
        reports.failed(TRANSPORT, f"ssl://{'k' * 300}:1: {text}")
        assert reports.timed_out().info.name == name


def test_repeated_log_lines_are_counted() -> None:
    """Librdkafka's lines of one cause are written once in a while, and the rest counted."""
    clock = ManualClock()
    librdkafka = ConnectionReports(clock)

    def fail(broker: int, why: str = "Connection refused", more: str = "") -> None:
        name = f"10.0.0.{broker}:9092/{broker}"
        text = f"[thrd:{name}]: {name}: Connect to ipv4#10.0.0.{broker}:9092 failed: {why} "
        text += f"(after {broker}ms in state CONNECT{more})"
        librdkafka.log(logging.ERROR, "", "FAIL", "", text)

    with capture_logs() as logs:
        for broker in range(100):
            fail(broker, more=f", {broker} identical error(s) suppressed" if broker else "")
        fail(1, "Network is unreachable")
        clock.advance(INTERVAL_S)
        fail(7)
    assert [(entry["text"].count("refused"), entry["not_shown_before"]) for entry in logs] == [
        (1, 0),
        (0, 0),
        (1, 99),
    ]


DEAD = {"bootstrap.servers": "127.0.0.1:1"}
SECRET = {**DEAD, "sasl.password": "s3cret"}


@pytest.mark.parametrize(
    ("opened", "config", "problem"),
    [
        (KafkaCoordinator, {**SECRET, "foo.bar": 1}, r"foo\.bar"),
        (ClusterReader, {**SECRET, "foo.bar": 1}, r"foo\.bar"),
        (MessageProducer, {**SECRET, "foo.bar": 1}, r"foo\.bar"),
        # Only consumers refuse it: a reader has one, too.
        (ClusterReader, {**SECRET, "session.timeout.ms": 400_000}, r"max\.poll\.interval\.ms"),
        # The pool relies on them.
        (KafkaCoordinator, {**SECRET, "socket.timeout.ms": 60_000}, "remove it"),
        (KafkaCoordinator, {**SECRET, "metadata.max.age.ms": 60_000}, "remove it"),
        # confluent-kafka would end the process: of an empty group, of a name that is not text.
        (partial(open_consumer, ours={"group.id": ""}), SECRET, "group.id '' is empty; give a n"),
        *[
            (checked_config, {**SECRET, name: "1"}, r"config .* is not the name of a setting")
            for name in ("a\ud800", "a\0b", 5)
        ],
        # confluent-kafka would raise errors of its own.
        (ClusterReader, {**DEAD, "oauth_cb": "s3cret"}, "oauth_cb 'str' cannot be called"),
        (ClusterReader, {**SECRET, "default.topic.config": "acks=1"}, "default.topic.config .*set"),
        # librdkafka would read up to it.
        (checked_config, {**SECRET, "sasl.username": "me\0you"}, "sasl.username .*not a value of"),
    ],
)
def test_a_wrong_setting_is_named(
    opened: Callable[..., object], config: dict[Any, object], problem: str
) -> None:
    """At the start, before anything is connected to; no value is shown that may be a secret."""
    with pytest.raises(InvalidValueError, match=problem) as caught:
        opened(config)
    assert "s3cret" not in str(caught.value)


def test_a_refused_setting_shows_no_secret() -> None:
    """Librdkafka's text ends before a secret that it quotes, however short it was cut."""
    config = {"bootstrap.servers": "h:1", "sasl.password": "geheimnis-47110815"}
    for quoted in ("geheimnis-47110815", "geheimnis"):
        text = f'Invalid value "{quoted}" for configuration property'
        error = refused_config(config, text)
        assert "geheim" not in str(error)
        assert 'Invalid value "***' in str(error)
