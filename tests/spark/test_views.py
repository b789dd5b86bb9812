"""Views and Spark: lookups of a processor, DataFrames, and the examples."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from offsetmgr.devkafka.cluster import free_ports
from offsetmgr.errors import InvalidValueError
from offsetmgr.streams import Context, codecs, define_group, input, lookup, output
from offsetmgr.streams.kafka import kafka_emitter
from offsetmgr.streams.planning import ProcessorSettings
from offsetmgr.streams.processor import Processor
from offsetmgr.streams.view import View
from tests.conftest import create_topic
from tests.spark.support import WAIT_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from offsetmgr.devkafka import DevKafka

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_lookups_read_the_view_beside_them(
    spark: SparkSession, kafka: DevKafka, unique_name: str, tmp_path: Path, checkpoint: str
) -> None:
    """A row that is evicted from the view alone is not found."""
    words, prices, found = (f"{unique_name}-{part}" for part in ("words", "prices", "found"))
    for topic in (words, prices, found):
        create_topic(kafka, topic, 1)
    servers = kafka.bootstrap_servers

    def look_up(context: Context, _word: str) -> None:
        context.emit(found, context.key, str(context.lookup(prices, context.key)))

    graph = define_group(
        unique_name,
        input(words, codecs.String(), look_up),
        lookup(prices, codecs.Int64()),
        output(found, codecs.String()),
    )

    views = {prices: str(tmp_path / "view")}
    settings = ProcessorSettings(missing="earliest", lookup_views=views)
    processor = Processor(spark, graph, servers, checkpoint=checkpoint, settings=settings)
    with kafka_emitter(servers, prices, codecs.Int64()) as emitter:
        emitter.emit("kept", 1)
        emitter.emit("evicted", 2)
    with kafka_emitter(servers, words, codecs.String()) as emitter:
        emitter.emit("kept", "")
        emitter.emit("evicted", "")
    with View(servers, prices, codecs.Int64(), tmp_path / "view") as view:
        view.wait_until_running(WAIT_S)
        view.evict("evicted")
        processor.run(available_now=True)
        assert written(servers, found, 2) == {"kept": "1", "evicted": "None"}
        arrow = view.to_arrow()
        assert arrow.to_pydict() == {"key": ["kept"], "value": [1]}
        if spark.version >= "4":
            assert [tuple(row) for row in spark.createDataFrame(arrow).collect()] == [("kept", 1)]
        frame = spark.createDataFrame(arrow.to_pandas())
        assert [tuple(row) for row in frame.collect()] == [("kept", 1)]
    wrong = ProcessorSettings(lookup_views={words: "/"})
    with pytest.raises(
        InvalidValueError, match=r"lookup_views .* is not a lookup table; add lookup"
    ):
        Processor(spark, graph, servers, checkpoint=checkpoint, settings=wrong)


def written(servers: str, topic: str, count: int) -> dict[str, str]:
    """Return the last value of each key among the first ``count`` messages."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "read"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        messages = consumer.consume(count, WAIT_S)
        assert len(messages) == count
        return {
            (message.key() or b"").decode(): (message.value() or b"").decode()
            for message in messages
        }
    finally:
        consumer.close()


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
