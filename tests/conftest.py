"""Fixtures for every folder of tests: real Kafkas, started once and only when a test asks."""

from __future__ import annotations

import os
import re
import signal
import time
import uuid
from typing import TYPE_CHECKING, Protocol

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from hypothesis import settings

from offsetmgr.devkafka import DevKafka, command
from tests.postgres import PgBouncer, Postgres
from tests.secured import SecuredKafka
from tests.shared_classes import JAVA_ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

# How long an example takes says how busy the machine is; the same examples in every run.
settings.register_profile("offsetmgr", max_examples=50, deadline=None, derandomize=True)
settings.load_profile("offsetmgr")

os.environ |= {**JAVA_ENVIRONMENT, **os.environ}

# A shell that runs the tests in the background has it ignored, also in what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

_TOPIC_READY_S = 60.0


class TopicFactory(Protocol):
    """Creates topics under names that no other test uses."""

    def __call__(self, partitions: int = 1, *, on: DevKafka | None = None) -> str:
        """Create a topic, on the shared ``kafka`` by default; return its name once it is led."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Return the kind of event loop that runs tests which are coroutines."""
    return "asyncio"


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevKafka]:
    """One broker, shared by the whole run: whoever breaks a broker starts one of their own."""
    with SecuredKafka(tmp_path_factory.mktemp("secured")) as started:
        yield started


@pytest.fixture(scope="session")
def kafka3() -> Iterator[DevKafka]:
    """Three brokers, shared by the whole run; a test that takes one down brings it up again."""
    with DevKafka(brokers=3) as started:
        yield started


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One PostgreSQL, shared by the whole run; each test has a database of its own."""
    with Postgres() as started:
        yield started


@pytest.fixture(scope="session")
def pgbouncer(postgres: Postgres) -> Iterator[PgBouncer]:
    """One pooler before ``postgres``, shared by the whole run."""
    with PgBouncer(postgres) as started:
        yield started


@pytest.fixture
def database(postgres: Postgres) -> str:
    """Return the URL of a new database in PostgreSQL."""
    return postgres.create(f"test-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> str:
    """Return a name for a topic, group or client that tells the test and is never used twice."""
    test = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:80]
    return f"{test}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def group(unique_name: str) -> str:
    """Return the name of a consumer group that does not exist yet."""
    return f"group-{unique_name}"


@pytest.fixture
def new_topic(request: pytest.FixtureRequest, unique_name: str) -> TopicFactory:
    """Return what creates topics; only the call without ``on`` starts the shared ``kafka``."""
    made: list[str] = []

    def create(partitions: int = 1, *, on: DevKafka | None = None) -> str:
        cluster: DevKafka = request.getfixturevalue("kafka") if on is None else on
        name = f"topic-{len(made)}-{unique_name}"
        made.append(name)
        create_topic(cluster, name, partitions)
        return name

    return create


@pytest.fixture
def topic(new_topic: TopicFactory) -> str:
    """Return a new topic of one partition, on the shared ``kafka``."""
    return new_topic()


def create_topic(cluster: DevKafka, name: str, partitions: int) -> None:
    """Create a topic and wait until the leader of every partition has learned that it is one."""
    command.create_topic(cluster.bootstrap_servers, name, partitions)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    ends = {TopicPartition(name, number): latest for number in range(partitions)}
    deadline = time.monotonic() + _TOPIC_READY_S
    while time.monotonic() < deadline:
        answers = admin.list_offsets(ends).values()
        if all(answer.exception(_TOPIC_READY_S) is None for answer in answers):
            return
    pytest.fail(f"{name} is not led in every partition after {_TOPIC_READY_S} s")
