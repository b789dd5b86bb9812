"""Arguments of a wrong type or value are refused by name: consumers, clusters, stores, streams."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import partial
from itertools import product
from math import inf, nan
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.clusters import MultiClusterAckConsumer
from offsetmgr.consumer import AckConsumer, OffsetStash
from offsetmgr.errors import InvalidValueError
from offsetmgr.stores import MemoryOffsetStore
from offsetmgr.streams import (
    LmdbStorage,
    MemoryStorage,
    ProcessorSettings,
    Tester,
    TopicManager,
    TopicSettings,
    View,
    ViewReader,
    codecs,
)
from offsetmgr.streams.engine import Engine
from offsetmgr.streams.graph import define_group, input, inputs, output, persist, visitor
from offsetmgr.streams.rows import TableRows
from offsetmgr.streams.spark_options import spark_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsetmgr.streams.tester import TesterProcessor

DEAD = "127.0.0.1:9"
FIVE: Any = 5
LIST: Any = ["orders"]
NONE: Any = None
TEXT = codecs.String()
GRAPH = define_group("g", input("t", TEXT, print))

# Without types, as they are called with wrong ones
engine: Any = partial(Engine, GRAPH)
settings: Any = ProcessorSettings
topic_settings: Any = TopicSettings
lmdb: Any = LmdbStorage


def acks() -> AckConsumer:
    return AckConsumer(DEAD, "etl", ["orders"])


def cluster_acks() -> MultiClusterAckConsumer:
    return MultiClusterAckConsumer({"west": DEAD}, "etl", ["orders"])


def topics() -> TopicManager:
    return TopicManager(DEAD)


def using(make: Callable[[], Any], method: str, *values: object, **options: object) -> None:
    """Call a method of what ``make`` returns, and close it: its client would log for minutes."""
    with make() as made:
        getattr(made, method)(*values, **options)


def processor() -> TesterProcessor:
    return Tester().add_processor(GRAPH)


def consume_at_five() -> None:
    tester = Tester()
    tester.add_processor(GRAPH)
    tester.consume("t", "k", "v", timestamp=FIVE)


asks = "partitions", "logs", "max_bytes"
view = View(DEAD, "t", TEXT, storage=MemoryStorage())
waits: list[Any] = [view.stop, view.wait_until_running]
takers: list[Any] = [
    partial(input, "a", callback=print),
    partial(output, "a"),
    persist,
    partial(TableRows, MemoryStorage()),
    partial(Tester().add_emitter, "a"),
    partial(Tester().add_view, "a"),
]

WRONG: list[tuple[str, Callable[[], object]]] = [
    *(
        row
        for make in (acks, cluster_acks)
        for row in (
            ("message 5 is not a message", partial(using, make, "commit_up_to", FIVE)),
            (r"workers \d+ is too large", partial(using, make, "run", print, workers=2**63)),
        )
    ),
    ("stash 5 is not a stash", lambda: OffsetStash().mark_offsets(FIVE)),
    ("stash 5 is not a stash", lambda: OffsetStash().reset_offsets(FIVE)),
    ("topic", lambda: MemoryOffsetStore().fetch_offset("etl", LIST, 0)),
    ("topic", lambda: MemoryOffsetStore().commit_offset("etl", LIST, 0, 1)),
    ("offset of", lambda: MemoryOffsetStore().commit_offset("etl", "orders", 0, -1)),
    ("group", lambda: MemoryOffsetStore().fetch_offset("", "orders", 0)),
    ("partition", lambda: MemoryOffsetStore().fetch_offsets("etl", [("orders", -1)])),
    ("storage 5 is not a store", lambda: View(DEAD, "t", TEXT, storage=FIVE)),
    ("path None is missing or one too many", lambda: View(DEAD, "t", TEXT)),
    ("path '' is not a folder", lambda: LmdbStorage("")),
    ("path 5 is not a folder", lambda: LmdbStorage(FIVE)),
    ("path '' is not a folder", lambda: ViewReader("", TEXT)),
    ("fsync 5 is neither", lambda: LmdbStorage("view", fsync=FIVE)),
    *(("map_bytes", partial(lmdb, "view", map_bytes=n)) for n in (0, -1, True, 1.5)),
    *(
        ("timeout ", partial(wait, timeout))
        for wait, timeout in product(waits, (None, "5", -1, nan, inf))
    ),
    # Topics, before Kafka is asked; librdkafka ends the process for a lone surrogate.
    ("settings 5 has the wrong type", lambda: TopicManager(DEAD, FIVE)),
    ("table 5 is not a mapping", lambda: TopicSettings(table=FIVE)),
    ("mismatch 'stop' is unknown; give one of ignore", partial(topic_settings, mismatch="stop")),
    ("replication 0 is not possible", lambda: TopicSettings(replication=0)),
    ("topic .* is not", partial(using, topics, "ensure_table", LIST, 1)),
    *(
        ("partition", partial(using, topics, "ensure_topic", "t", number, {}))
        for number in (-1, 0, True, 2.0)
    ),
    *(
        (r".* is not a list; give one such as \[\"orders\"\]", partial(using, topics, ask, names))
        for ask, names in product(asks, ("orders", None, 5))
    ),
    (r"topic 'a.ud800' is not a legal", partial(using, topics, "logs", ["a\ud800"])),
    (r"config 'a.ud800' is not", partial(using, topics, "ensure_topic", "t", 1, {"a\ud800": "1"})),
    ("at 5 is not a point in time", partial(using, topics, "offsets_at", ["t"], FIVE)),
    # Graphs and the tester
    ("input 'a' is consumed twice", lambda: define_group("g", inputs(["a", "a"], TEXT, print))),
    ("topics 'clicks' is not a list", lambda: inputs("clicks", TEXT, print)),
    ("topic '' is not a legal", lambda: input("", TEXT, print)),
    ("callback of input 'a' None cannot be called", lambda: input("a", TEXT, NONE)),
    ("group '' is empty", lambda: define_group("")),
    ("edge 5 is not an edge", lambda: define_group("g", FIVE)),
    ("group's table topic 'a b-table'", lambda: define_group("a b", persist(TEXT))),
    ("visitor 'v' is defined twice", lambda: define_group("g", [visitor("v", print)] * 2)),
    (r"visitor '\\ud800' is not a name", lambda: visitor("\ud800", print)),
    ("loop_suffix '-x' is that", lambda: define_group("g", loop_suffix="-x", table_suffix="-x")),
    ("loop_suffix None is not text", lambda: define_group("g", loop_suffix=NONE)),
    (r"graph \['orders'\] is not the graph of a group", lambda: Tester().add_processor(LIST)),
    ("nil_handling 'skip'", partial(engine, nil_handling="skip")),
    *(
        ("header .* is not text", partial(engine, default_headers={name: b""}))
        for name in ("\udcff", 5, None)
    ),
    ("topic 'typo' is unknown; give one of t", lambda: processor().committed("typo")),
    ("timestamp 5 is not a point in time", consume_at_five),
    *(
        ("codec .*is not a codec; give an object", partial(take, codec=codec))
        for take, codec in product(takers, (codecs.String, None, 5))
    ),
    # A processor
    ("trigger_interval_s ", partial(settings, trigger_interval_s=nan)),
    ("defer_timeout_s ", partial(settings, defer_timeout_s=-1)),
    ("defer_timeout_s ", partial(settings, defer_timeout_s=None)),
    # Kafka takes this one for the end of the log.
    ("missing ", partial(settings, missing=datetime.fromtimestamp(-0.001, timezone.utc))),
    ("missing ", partial(settings, missing=datetime(2026, 1, 1))),  # noqa: DTZ001 -- no time zone
    ("buckets ", partial(settings, buckets=True)),
    ("lookup_views ", partial(settings, lookup_views=3)),
    ("kafka_options ", partial(settings, kafka_options=[("kafka.linger.ms", "5")])),
    ("record_ids ", partial(settings, record_ids="no")),
    # Spark prefers some to the options of the processor; others would limit the tables.
    *(
        (f"kafka_options '{name}' is set by the processor", partial(spark_options, {}, {name: "1"}))
        for name in ("Topic", "startingTimestamp", "maxOffsetsPerTrigger")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "call"), WRONG, ids=map(str, range(len(WRONG))))
def test_an_argument_of_a_wrong_type_or_value_is_refused_by_name(
    text: str, call: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raised AttributeError or TypeError, never returned, or stored in the current folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidValueError, match=f"^{text}"):
        call()
    assert not list(tmp_path.iterdir())
