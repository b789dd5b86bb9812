"""What the JVM is given to call."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from pyspark import SparkContext
from pyspark.sql.streaming import StreamingQueryListener

from offsetmgr.spark.listener import CommitListener, Ears

if TYPE_CHECKING:
    import pytest

    from offsetmgr.spark.commits import OffsetCommits


class Commits:
    """Keeps what it is told; what is ``None`` breaks it."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def take(self, progress: object) -> None:
        """A batch is finished."""
        if progress is None:
            raise RuntimeError("it broke")
        self.told.append(progress)


class Event:
    """An event as py4j shows it, and its progress too."""

    def __init__(self, text: str) -> None:
        self.text = text

    def progress(self) -> Event:
        """Its progress."""
        return self

    def json(self) -> str:
        """The progress as JSON."""
        return self.text


def listener() -> tuple[CommitListener, list[object]]:
    """A listener, and what it has told."""
    commits = Commits()
    return CommitListener(cast("OffsetCommits", commits)), commits.told


def test_a_progress_comes_as_json() -> None:
    """The report is what its JSON says."""
    made, told = listener()
    Ears(made).onQueryProgress(Event('{"batchId": 7}'))
    assert told == [{"batchId": 7}]


def test_nothing_is_raised_into_spark(caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be read or handed over is told in the log, with its cause."""
    caplog.set_level(logging.ERROR, "offsetmgr")
    made, told = listener()
    for event in (Event("no JSON"), Event("null"), None):
        Ears(made).onQueryProgress(event)
    assert told == []
    assert [str(each.exc_info[1])[:14] for each in caplog.records if each.exc_info] == [
        "Expecting valu",
        "it broke",
        "'NoneType' obj",
    ]


def test_another_pyspark_takes_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PySpark has no such wrapper any more, its own listener is what the JVM calls."""
    monkeypatch.setattr(SparkContext, "_jvm", object())
    monkeypatch.setattr(StreamingQueryListener, "_jlistener", "PySpark's own")
    assert listener()[0]._jlistener == "PySpark's own"
