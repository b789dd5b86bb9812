"""Views and Spark: the examples."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsetmgr.devkafka.cluster import free_ports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from offsetmgr.devkafka import DevKafka

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run_example(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> RunExample:
    """Return what runs an example in this process, with the Spark that is there already."""
    return RunExample(monkeypatch)


class RunExample:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, name: str, *arguments: str) -> None:
        self._monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


def test_examples_of_an_emitter_and_of_a_lookup(
    run_example: RunExample, kafka: DevKafka, unique_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Spark job finds what the emitter has written."""
    options = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic", unique_name]
    run_example("emitter_promises", *options)
    said = capsys.readouterr().out
    assert said.count("written to partition") == 3
    assert "the pump is at offset" in said
    run_example("view_lookup", *options)
    said = capsys.readouterr().out
    assert "order 1: bicycle for 499.0" in said
    assert "order 3: rocket for None" in said
    assert "3 prices, the highest is that of the bicycle" in said


def test_example_of_a_view_beside_a_processor(
    run_example: RunExample, kafka: DevKafka, unique_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Counts of a processor are read over HTTP while it runs."""
    (port,) = free_ports(1)
    options = ["--bootstrap-servers", kafka.bootstrap_servers, "--group", unique_name]
    run_example("view_beside_processor", *options, "--port", str(port))
    assert "bob has clicked 2 times" in capfd.readouterr().out
