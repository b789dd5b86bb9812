"""Judges commits of offsets that were read from a former log of their topic; pure.

A commit of a former log is a broken promise, but in the two cases that docs/internals.md names:

- The race: the topic was recreated after the service has looked at its id.  The look is at most
  ``LOOK_AGE_S`` older than the call that makes the commit, and a group makes one at a time: so that
  call came after the group's commit before it.  An offset of the new log that is committed in a
  race looks like one of the former: the start of the log takes its place.
- The guess: the client named no id of its topic, or that of the new one, as its reader had not
  noticed yet.  An offset that repeats the client's last one is not excused by the id of the new
  topic where that one had the id of the former.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from offsetmgr.coordinator.logs import LOOK_AGE_S

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from offsetmgr.kafka.commit_log import CommitRecord
    from tests.chaos.history import Event
    from tests.chaos.recreation import Log


class LogVerdict(Enum):
    RACE = "recreated during the commit"
    GUESS = "guessed wrong"
    FORMER = "committed to a log that it was not read from"


class Requests:
    """The commit requests of groups, as Kafka's log of commits shows them."""

    def __init__(self, commits: Iterable[CommitRecord], service_starts: Collection[float]) -> None:
        times: dict[str, set[float]] = defaultdict(set)
        for commit in commits:
            if commit.offset is not None:
                times[commit.key.group].add(commit.at_s)
        self._times = {group: sorted(found) for group, found in times.items()}
        self._starts = sorted(service_starts)

    def earliest_s(self, commit: CommitRecord) -> float:
        """Return the earliest time at which the service may have begun with a commit.

        It was begun after the group's commit before it was answered.  But each service that has
        died may have left a commit that landed in between.
        """
        times = [-inf, -inf, *self._times[commit.key.group]]
        place, left = bisect_left(times, commit.at_s) - 1, 0
        while place - left > 0 and self._deaths(times[place - left - 1], commit.at_s) > left:
            left += 1
        return times[place - left]

    def _deaths(self, since_s: float, until_s: float) -> int:
        return bisect_left(self._starts, until_s) - bisect_left(self._starts, since_s)


class Submitted(NamedTuple):
    """A submit, as the judge of its commit needs it."""

    event: Event
    topic_id: str
    """The id that the client named; empty for none."""
    last: int
    """The offset that the client submitted right before; -1 for none, or if it did not name the id
    of its log."""


def log_at(logs: Sequence[Log], at_s: float) -> Log:
    """Return the newest log that a topic can have had then."""
    return max((log for log in logs if log.asked_s <= at_s), default=logs[0])


def is_race(log: Log, earliest_s: float) -> bool:
    """Return True if a commit may have been begun before its service could know ``log``."""
    return log.created_s >= earliest_s - LOOK_AGE_S


def judge_log(submit: Submitted, logs: Sequence[Log], earliest_s: float) -> LogVerdict:
    """Judge a commit of a former log that was begun at ``earliest_s`` or later.

    ``logs`` are all of its topic.
    """
    number = submit.event.tag.log
    own, following = logs[number - 1], logs[number]
    if is_race(following, earliest_s):
        return LogVerdict.RACE
    if submit.topic_id == own.topic_id:
        return LogVerdict.FORMER
    repeats = submit.event.action != "rewind" and submit.event.offset == submit.last
    return LogVerdict.FORMER if submit.topic_id and repeats else LogVerdict.GUESS
