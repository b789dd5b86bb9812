"""Fixtures for the tests against a real Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetmgr.devkafka import DevKafka

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def breakable_kafka() -> Iterator[DevKafka]:
    """One broker for the tests of one file, which may kill and pause it."""
    with DevKafka() as started:
        yield started
