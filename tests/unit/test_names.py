"""The guide for people who come from other libraries: each name of ours that it gives exists."""

from __future__ import annotations

import builtins
import inspect
import re
from concurrent import futures
from keyword import iskeyword
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from offsetmgr import clusters, consumer, stores, streams
from offsetmgr.stores import broker
from offsetmgr.streams import (
    codecs,
    kafka,
    memory,
    partition_table,
    planning,
    processor,
    rows,
    tester,
    topics,
    view,
)
from offsetmgr.streams.rows import RowIterator

GUIDE = Path(__file__).parents[2] / "docs" / "from-other-libraries.md"
NAME = re.compile(r"^[A-Za-z_][\w.]*(?=\(|=?$)")
DOORS: list[Any] = [
    *(streams, codecs, kafka, partition_table, memory, processor, rows, topics, view),
    *(builtins, futures, futures.Future, streams.Codec),
    *(streams.Context, streams.Edge, streams.Emitter, streams.define_group("group")),
    *(streams.QueueTracker, streams.Tester, tester.TesterProcessor),
    *(processor.Processor, planning.ProcessorSettings, processor.ProcessorStats),
    *(memory.Storage, topics.TopicManager, topics.TopicSettings),
    *(view.View, view.ViewState, view.ViewStats, RowIterator),
    *(stores, broker, stores.OffsetStore, consumer, consumer.GroupConsumer),
    *(consumer.PartitionedConsumer, consumer.AckConsumer, consumer.AckMessage),
    *(consumer.AckSettings, clusters, clusters.ClusterMessage, clusters.WriteErrors),
    *(clusters.MultiClusterReader, clusters.MultiClusterWriter, clusters.MultiClusterAckConsumer),
    *(partition_table.PartitionStats, partition_table.TableState),
]
CALLS: list[Any] = [
    *(streams.Context.emit, streams.Tester.consume, streams.Tester.add_emitter),
    *(streams.define_group, kafka.kafka_emitter, view.View, streams.Emitter.emit_sync),
    *(consumer.GroupConsumer, consumer.AckConsumer.run, consumer.AckMessage.nack),
]


def ours() -> set[str]:
    """Return the names in the columns "here", without arguments; texts in quotes are left out."""
    names = set()
    for line in GUIDE.read_text().splitlines():
        cells = line.split(" | ")
        if len(cells) > 2:  # the second column of three, the last of four
            for cell in re.findall("`([^`]+)`", cells[-2 if len(cells) == 3 else -1]):
                names |= set(NAME.findall(cell))
    return names


def exists(name: str) -> bool:
    """Return True for a path from the package, an attribute of a door, or a parameter."""
    if name.startswith(("offsetmgr.", "concurrent.")):
        return bool(resolve_name(name))
    owner, _, last = name.replace("ctx.", "Context.").rpartition(".")
    if owner:
        return any(_has(getattr(door, owner, None), last) for door in DOORS)
    return (
        iskeyword(name)
        or any(_has(door, name) for door in DOORS)
        or any(name in inspect.signature(call).parameters for call in CALLS)
    )


def _has(door: Any, name: str) -> bool:
    return hasattr(door, name) or name in getattr(door, "__annotations__", ())


def test_the_names_of_the_guide_exist() -> None:
    """A reader who types one finds it."""
    names = ours()
    assert len(names) > 150
    assert {name for name in names if not exists(name)} == set()
