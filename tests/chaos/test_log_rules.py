"""The checker finds offsets that were committed to a log that they were not read from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from offsetmgr.kafka.commit_log import CommitRecord
from offsetmgr.types import ManagerKey
from tests.chaos.checker import Evidence, Look, Verdict, check
from tests.chaos.history import Event, Key, Tag
from tests.chaos.recreation import Log

TOPIC = "again"
KEY = Key("etl", 0, TOPIC)
REQUEST_TIMEOUT_S = 2.0
CREATED_S = 100.0
LOGS = [
    Log(TOPIC, 1, "one", 2, 500, 0.0, 0.5, 99.0),
    Log(TOPIC, 2, "two", 2, 900, CREATED_S - 0.1, CREATED_S),
]


@dataclass
class Story:
    """Submits and commits of one key, whose topic is recreated at ``CREATED_S``."""

    events: list[Event] = field(default_factory=list)
    commits: list[CommitRecord] = field(default_factory=list)
    service_starts: list[float] = field(default_factory=list)

    def submit(
        self,
        number: int,
        offset: int,
        at_s: float,
        *,
        topic_id: str = "one",
        log: int = 1,
        action: Any = "submit",
        outcome: Any = "ok",
    ) -> Story:
        tag = Tag("driver", 1, number, log)
        self.events.append(Event("invoke", action, tag, KEY, offset, at_s))
        self.events.append(Event(outcome, action, tag, KEY, offset, at_s, topic_id))
        return self

    def commit(self, number: int, at_s: float, *, log: int = 1) -> Story:
        tag = Tag("driver", 1, number, log)
        (offset, *_) = [event.offset for event in self.events if event.tag == tag]
        return self.record(offset, str(tag), at_s)

    def record(self, offset: int | None, metadata: str, at_s: float, partition: int = 0) -> Story:
        key = ManagerKey(KEY.group, TOPIC, partition)
        self.commits.append(CommitRecord(key, offset, metadata, at_s))
        return self

    def busy(self, until_s: float, since_s: float = 50.0) -> Story:
        """Have the group commit another partition every second, and then."""
        times = [since_s + number for number in range(math.ceil(until_s - since_s))]
        for at_s in (*times, until_s):
            self.record(0, "other:1:1:1", at_s, partition=1)
        return self

    def verdict(self) -> Verdict:
        last = [commit.offset for commit in self.commits if commit.key.partition == 0][-1]
        return check(
            Evidence(
                self.events,
                self.commits,
                {} if last is None else {KEY: last},
                self.service_starts,
                request_timeout_s=REQUEST_TIMEOUT_S,
                logs={TOPIC: LOGS},
            )
        )

    def broken(self) -> list[str]:
        """Return the rules that are broken, but for those of the other partition."""
        return [each.rule for each in self.verdict().violations if each.about == KEY]


def former(at_s: float, before_s: float, **options: Any) -> Story:
    """Return a story with a commit of the former log; the group's last one was at ``before_s``."""
    story = Story().submit(1, 100, 50.0).commit(1, 50.2).busy(before_s)
    story.submit(2, options.pop("offset", 120), options.pop("submitted_s", 99.5), **options)
    return story.commit(2, at_s)


def test_offsets_of_their_own_logs_are_in_order() -> None:
    """A new log begins anywhere; its deletion, and all that goes with it, do not count as lost."""
    story = Story().submit(1, 100, 50.0).commit(1, 50.2).record(None, "", 99.5)
    story.submit(2, 10, 101.0, topic_id="two", log=2).commit(2, 101.3, log=2)
    verdict = story.verdict()
    assert verdict.violations == []
    assert (verdict.of_recreated, verdict.deleted) == (3, 1)


def test_a_planted_commit_of_a_former_log_is_found() -> None:
    """Its number may lie in the new log or beyond its end."""
    for offset in (120, 5_000):
        story = former(CREATED_S + 1, CREATED_S + 0.8, offset=offset)
        assert story.broken() == ["former log"]


@pytest.mark.parametrize(
    ("before_s", "at_s", "races"),
    [
        (CREATED_S - 0.1, CREATED_S + 0.1, 1),
        (CREATED_S + 0.04, CREATED_S + 0.4, 1),  # its look may be older than the log
        (CREATED_S + 0.06, CREATED_S + 0.4, 0),
        (CREATED_S - 0.1, CREATED_S + 1.8, 1),  # it took long
    ],
)
def test_a_race_is_judged_by_the_commit_before(before_s: float, at_s: float, races: int) -> None:
    """A group has one request under way: a commit was begun after the one before."""
    story = former(at_s, before_s)
    assert story.broken() == ["former log"] * (1 - races)
    assert story.verdict().races == races
    assert story.verdict().widest_race_s == (pytest.approx(at_s - CREATED_S) if races else 0)


def test_a_request_of_a_dead_service_may_land_before_that_of_its_successor() -> None:
    """Both requests may be old where a frozen broker carries out two at once."""
    for starts, rules in (([CREATED_S], []), ([], ["former log"])):
        story = former(CREATED_S + 1.503, CREATED_S - 0.1)
        story.record(0, "other:1:1:1", CREATED_S + 1.5, partition=1)
        story.service_starts = starts
        assert story.broken() == rules


def test_a_commit_that_was_given_up_before_may_land_in_the_new_log() -> None:
    """It has kept its group silent for a whole time-out, and was submitted before."""
    for silence_s, submitted_s, rules in (
        (REQUEST_TIMEOUT_S, 90.0, []),
        (REQUEST_TIMEOUT_S - 0.1, 90.0, ["former log"]),
        (REQUEST_TIMEOUT_S, 95.0, ["former log"]),
    ):
        story = Story().submit(1, 100, 50.0).commit(1, 50.2).busy(94.0)
        story.busy(CREATED_S + 2, 94.0 + silence_s)
        story.submit(2, 120, submitted_s).commit(2, CREATED_S + 2.2)
        assert story.broken() == rules


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ({"topic_id": ""}, []),
        ({"topic_id": "two", "submitted_s": 101.0}, []),
        ({"topic_id": "two", "submitted_s": 101.0, "offset": 100}, ["former log"]),
        ({"topic_id": "two", "submitted_s": 101.0, "offset": 99}, []),
        ({"topic_id": "one"}, ["former log"]),
        ({"topic_id": "two", "offset": 30, "action": "rewind"}, []),
        ({"topic_id": "one", "offset": 30, "action": "rewind"}, ["former log"]),
    ],
)
def test_a_guess_is_excused_without_the_id_of_the_former_topic(
    options: dict[str, Any], rules: list[str]
) -> None:
    """The exception is an offset that the client has submitted before."""
    story = former(CREATED_S + 3, CREATED_S + 2.8, **options)
    assert story.broken() == rules
    assert story.verdict().guesses == (not rules)


def test_a_client_that_never_heard_of_its_log_may_repeat_an_offset() -> None:
    """The service was away all the time: it has never had what the client repeats."""
    story = Story().submit(1, 100, 50.0, topic_id="").busy(CREATED_S + 2)
    story.submit(2, 100, CREATED_S + 2, topic_id="two").commit(2, CREATED_S + 2.5)
    assert story.broken() == []
    assert story.verdict().guesses == 1


def test_the_start_of_a_log_is_committed_in_the_place_of_a_former_offset_alone() -> None:
    """Not where nothing of a former log was committed, nor over an offset of the new one."""
    story = former(CREATED_S + 0.1, CREATED_S - 0.1).record(0, "", CREATED_S + 0.5)
    assert (story.broken(), story.verdict().replaced) == ([], 1)
    story.record(0, "", CREATED_S + 60)  # again, so that it does not expire
    assert (story.broken(), story.verdict().replaced) == ([], 1)
    story.submit(3, 10, 161.0, topic_id="two", log=2).commit(3, 161.2, log=2)
    assert story.broken() == []
    assert "unknown" in story.record(0, "", CREATED_S + 62).broken()
    assert Story().record(0, "", CREATED_S + 1).broken() == ["unknown"]


def test_promises_hold_within_a_log() -> None:
    """A fall, an offset that was never there, and a newest one that is missing are found."""
    story = Story().submit(1, 100, 50.0).commit(1, 50.2).busy(CREATED_S + 8)
    for number, offset in ((2, 10), (3, 20)):
        story.submit(number, offset, 101.0 + number, topic_id="two", log=2)
    assert story.commit(2, 105.0, log=2).broken() == ["unfinished"]
    assert story.commit(3, 106.0, log=2).broken() == []
    assert story.commit(2, 107.0, log=2).broken() == ["backwards", "unfinished"]
    lost = Tag("driver", 1, 4, 2)
    story.events.append(Event("ok", "told", lost, KEY, 30, 108.0))
    assert "lost" in story.broken()


def test_an_offset_that_repeats_the_former_one_may_be_refused_at_the_end() -> None:
    """Nothing tells it from the last one of the former log; any other must be committed."""
    for offset, rules in ((100, []), (101, ["unfinished"])):
        story = Story().submit(1, 100, 50.0).commit(1, 50.2)
        story.submit(2, 90, 101.0, topic_id="two", log=2).commit(2, 101.2, log=2)
        story.submit(3, offset, 102.0, topic_id="two", log=2)
        story.events.append(Event("former", "close", Tag("driver", 1, 3, 2), KEY, offset, 103.0))
        assert story.broken() == rules


def test_a_door_that_does_not_show_all_is_found() -> None:
    """It is named, with what is missing and the answer."""
    look = Look("/v1/watched", frozenset({"etl", "odd\n"}), frozenset({"etl"}), "an answer")
    (violation,) = check(Evidence([], [], {}, looks=[look])).violations
    assert (violation.rule, violation.about) == ("blind", "/v1/watched")
    assert "'odd\\n'" in violation.what
    whole = look._replace(shown=look.expected)
    assert check(Evidence([], [], {}, looks=[whole])).violations == []


def test_the_start_of_a_log_replaces_an_offset_of_it_that_was_committed_in_a_race() -> None:
    """Its service had not noticed the new log yet, and takes the offset for one of the former."""
    for before_s, rules in ((CREATED_S - 0.1, []), (CREATED_S + 1.0, ["unknown"])):
        story = Story().submit(1, 100, 50.0).commit(1, 50.2).record(None, "", 99.5).busy(before_s)
        story.submit(2, 20, 101.0, topic_id="", log=2).commit(2, 101.5, log=2)
        story.record(0, "", 101.7)
        story.submit(3, 30, 102.0, topic_id="two", log=2).commit(3, 102.5, log=2)
        assert story.broken() == rules
