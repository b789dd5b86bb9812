"""Fixtures for the tests against a real Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetmgr.devkafka import DevKafka
from tests.conftest import create_topic
from tests.service.support import serve_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.service.support import ServeProcess

WIDE = 150
"""Partitions of the wide topic, which take Kafka long to make."""


@pytest.fixture(scope="session")
def breakable_kafka() -> Iterator[DevKafka]:
    """One broker for the tests that kill and pause it; each leaves it at work."""
    with DevKafka() as started:
        yield started


@pytest.fixture(scope="session")
def wide_topic(kafka: DevKafka) -> str:
    """A topic of many partitions for all tests; each has a group of its own."""
    create_topic(kafka, "wide", WIDE)
    return "wide"


@pytest.fixture(scope="session")
def second_kafka() -> Iterator[DevKafka]:
    """A second cluster, which tests may kill too; each leaves it at work."""
    with DevKafka() as started:
        yield started


def service_of(
    kafka: DevKafka, *options: str, listen: str = "127.0.0.1:0", **settings: str
) -> ServeProcess:
    """Return a service next to ``kafka``, with quick commits and patience for a busy broker.

    ``settings`` are variables of its environment.
    """
    settings = {
        "COMMIT__COMMIT_INTERVAL_S": "0.1",
        "COMMIT__REQUEST_TIMEOUT_S": "30",
        **settings,
    }
    env = {f"OFFSETMGR_{name}": value for name, value in settings.items()}
    words = "--listen", listen, "--bootstrap-servers", kafka.bootstrap_servers
    return serve_process(*words, *options, env=env)
