"""Estimate the age of a partition's first unread record from earlier ends of its log."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

POINTS: Final = 60
"""Kept of each log, as by kafka-lag-exporter; beyond it every second one goes, never the oldest."""


class _Point(NamedTuple):
    """The log ended at ``offset`` from ``first_s`` to ``last_s``, as far as is known."""

    offset: int
    first_s: float
    last_s: float


class LogTimeline:
    """Known ends of one log, each with its time."""

    def __init__(self, most_points: int = POINTS) -> None:
        self._most_points = most_points
        self._points: list[_Point] = []

    def add(self, end: int, at_s: float) -> None:
        """Take in that the log ended at ``end``; a log that shrank was made anew."""
        last = self._points[-1] if self._points else None
        if last is not None and at_s < last.last_s:
            return
        if last is not None and end == last.offset:
            self._points[-1] = last._replace(last_s=at_s)
            return
        if last is not None and end < last.offset:
            self._points.clear()
        self._points.append(_Point(end, at_s, at_s))
        if len(self._points) > self._most_points:
            del self._points[1:-1:2]

    def seconds_behind(self, committed: int, now_s: float) -> float | None:
        """Return the age of the record at ``committed``: 0 or more, 0 where all is read.

        It is interpolated between two known ends, and beyond the oldest one by the rate of all.
        None where too little is known.
        """
        points = self._points
        if not points:
            return None
        newest, oldest = points[-1], points[0]
        if committed >= newest.offset:
            return 0.0
        if committed < oldest.offset:
            earlier, later = oldest, newest
        else:
            index = bisect_right(points, committed, key=lambda point: point.offset)
            earlier, later = points[index - 1], points[index]
        if earlier is later:
            return None
        seconds_per_record = (later.first_s - earlier.last_s) / (later.offset - earlier.offset)
        written_s = earlier.last_s + (committed - earlier.offset) * seconds_per_record
        return max(now_s - written_s, 0.0)
