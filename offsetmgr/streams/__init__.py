"""Stateful stream processing: a graph of callbacks, tested without a broker, run on Spark.

This package needs only msgspec, so that executors need no more.
"""

from offsetmgr.streams import codecs
from offsetmgr.streams.codecs import Codec
from offsetmgr.streams.context import Context
from offsetmgr.streams.emitter import Emitter, EmitterClosedError
from offsetmgr.streams.errors import (
    ContextError,
    GraphError,
    ProcessingError,
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
    "QueueTracker",
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
