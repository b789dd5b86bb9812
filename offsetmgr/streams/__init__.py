"""Stateful stream processing: a graph of callbacks, tested without a broker, run on Spark.

Importing this package needs msgspec alone, and so do the graph, its codecs and the tester.  The
names of ``_LAZY``, which ``import *`` leaves out, are imported when they are used, with what they
need: ``ViewReader`` lmdb, those that talk to Kafka the extra ``kafka``, the processor ``spark``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from offsetmgr.extras import naming_extra

with naming_extra(__name__):
    from offsetmgr.streams import codecs
    from offsetmgr.streams.codecs import Codec, RegistryCodec
    from offsetmgr.streams.emitter import Emitter, EmitterClosedError
    from offsetmgr.streams.engine import Context
    from offsetmgr.streams.errors import (
        ContextError,
        GraphError,
        ProcessingError,
        ProcessorError,
        TopicsError,
        ViewError,
    )
    from offsetmgr.streams.graph import (
        Edge,
        GroupGraph,
        define_group,
        group_table,
        input,
        inputs,
        join,
        lookup,
        loop,
        loop_topic,
        output,
        persist,
        visitor,
    )
    from offsetmgr.streams.messages import NO_TIME, Headers
    from offsetmgr.streams.tester import QueueTracker, Tester

if TYPE_CHECKING:
    from offsetmgr.streams.kafka import kafka_emitter as kafka_emitter
    from offsetmgr.streams.memory import MemoryStorage as MemoryStorage
    from offsetmgr.streams.planning import ProcessorSettings as ProcessorSettings
    from offsetmgr.streams.processor import Processor as Processor
    from offsetmgr.streams.processor import ProcessorStats as ProcessorStats
    from offsetmgr.streams.rows import ViewReader as ViewReader
    from offsetmgr.streams.storage import LmdbStorage as LmdbStorage
    from offsetmgr.streams.topics import TopicManager as TopicManager
    from offsetmgr.streams.topics import TopicSettings as TopicSettings
    from offsetmgr.streams.view import View as View
    from offsetmgr.streams.view import ViewState as ViewState
    from offsetmgr.streams.view import ViewStats as ViewStats

__all__ = [
    "NO_TIME",
    "Codec",
    "Context",
    "ContextError",
    "Edge",
    "Emitter",
    "EmitterClosedError",
    "GraphError",
    "GroupGraph",
    "Headers",
    "ProcessingError",
    "ProcessorError",
    "QueueTracker",
    "RegistryCodec",
    "Tester",
    "TopicsError",
    "ViewError",
    "codecs",
    "define_group",
    "group_table",
    "input",
    "inputs",
    "join",
    "lookup",
    "loop",
    "loop_topic",
    "output",
    "persist",
    "visitor",
]

_LAZY: Final = {
    "LmdbStorage": "storage",
    "MemoryStorage": "memory",
    "Processor": "processor",
    "ProcessorSettings": "planning",
    "ProcessorStats": "processor",
    "TopicManager": "topics",
    "TopicSettings": "topics",
    "View": "view",
    "ViewReader": "rows",
    "ViewState": "view",
    "ViewStats": "view",
    "kafka_emitter": "kafka",
}
"""The module of each."""


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with naming_extra(name):
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
