"""Errors of stream processors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.errors import OffsetManagerError
from offsetmgr.text import visible

if TYPE_CHECKING:
    from offsetmgr.streams.messages import Message


class GraphError(OffsetManagerError, ValueError):
    """The edges of a group do not go together."""

    code = "stream_graph"


class ContextError(OffsetManagerError):
    """A callback used its context in a way that the group's graph does not allow."""

    code = "stream_context"


class UnreadableTableError(ContextError):
    """A table that callbacks read cannot be read now; every message would fail."""


class TopicsError(OffsetManagerError):
    """The topics of a group are missing, or not as its processor needs them."""

    code = "stream_topics"


class ProcessingError(OffsetManagerError):
    """A message could not be processed.  The cause is what the callback or codec raised.

    The processor stops.  The message is not committed, and nothing that its callback wrote is kept.
    """

    code = "stream_processing"

    def __init__(self, group: str, message: Message, problem: str) -> None:
        # On one line and without surrogates: Spark's workers send it as UTF-8.
        problem = visible(problem)
        key = message.key.decode("utf-8", "backslashreplace")
        place = f"{message.topic}/{message.partition} at offset {message.offset}, key {key!r}"
        super().__init__(
            f"group {group}: {problem} ({place}). The processor has stopped and the message is not "
            "committed: correct the callback or the codec, and start the processor again"
        )
        self.group = group
        self.message = message
        self.problem = problem

    def __reduce__(self) -> tuple[type, tuple[str, Message, str]]:
        return type(self), (self.group, self.message, self.problem)


class ProcessorError(OffsetManagerError):
    """A processor on Spark has failed, or was not started."""

    code = "stream_processor"


class ViewError(OffsetManagerError):
    """A view is not started or has failed, or its store cannot be used."""

    code = "stream_view"
