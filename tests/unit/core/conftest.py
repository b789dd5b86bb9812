"""Fixtures of the core's tests."""

from __future__ import annotations

import pytest

from tests.unit.core.core import Core


@pytest.fixture
def core() -> Core:
    """A factory with the default settings, and a Kafka that answers after 10 ms."""
    return Core()
