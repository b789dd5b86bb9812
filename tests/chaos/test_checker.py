"""The checker of the chaos run has teeth: each broken promise, planted by hand, is found."""

from __future__ import annotations

from typing import Any

import pytest

from offsetmgr.kafka.commit_log import CommitRecord
from offsetmgr.types import ManagerKey
from tests.chaos.checker import Death, Evidence, Verdict, check
from tests.chaos.history import TELLING, Event, Key, Tag

KEY = Key("etl", 0)
REQUEST_TIMEOUT_S = 20.0


class Story:
    """A history of one key, told event by event; a second passes with each."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.commits: list[CommitRecord] = []
        self.standing: dict[Key, int] = {}
        self.service_starts: list[float] = []
        self.client_starts: dict[tuple[str, int], float] = {}
        self.deaths: list[Death] = []
        self.now_s = 1_000.0

    def tell(self, *steps: str) -> Story:
        """Take steps such as ``submit 1 10`` (number, offset) or ``sync:info 2 20 @2`` (of life 2).

        An action has its outcome with it; ``invoke`` and ``ok`` are lines of their own.
        """
        for step in steps:
            what, number, offset, *life = step.split()
            action, _, outcome = what.partition(":")
            place = int(number), int(offset), int(life[0][1:]) if life else 1
            if action == "commit":
                self.commit(*place)
            elif action in TELLING or outcome in {"invoke", "ok"}:
                self.note(outcome or "ok", action, *place)
            else:
                self.note("invoke", action, *place)
                self.note(outcome or "ok", action, *place)
        return self

    def note(self, outcome: Any, action: Any, number: int, offset: int, life: int) -> None:
        tag = Tag("driver", life, number)
        self.client_starts.setdefault(tag[:2], self.now_s)
        self.now_s += 1
        self.events.append(Event(outcome, action, tag, KEY, offset, self.now_s))

    def commit(self, number: int, offset: int | None, life: int = 1) -> None:
        """Kafka takes a submit; it stands from then on."""
        self.now_s += 1
        metadata = "" if offset is None else str(Tag("driver", life, number))
        position = ManagerKey(KEY.group, "orders", KEY.partition)
        self.commits.append(CommitRecord(position, offset, metadata, self.now_s))
        self.standing.pop(KEY, None)
        if offset is not None:
            self.standing[KEY] = offset

    def broken(self) -> list[str]:
        return [violation.rule for violation in self.verdict().violations]

    def verdict(self) -> Verdict:
        return check(
            Evidence(
                self.events,
                self.commits,
                self.standing,
                self.service_starts,
                self.client_starts,
                self.deaths,
                REQUEST_TIMEOUT_S,
            )
        )


GOOD = [
    *("submit 1 10", "submit 2 20", "commit 2 20", "told 2 20", "lower:fail 3 19"),
    *("rewind 4 5", "commit 4 5", "sync:invoke 5 30", "commit 5 30", "sync:ok 5 30"),
    "submit 1 40 @2",
    "commit 5 30",  # as keep-alive does
    *("commit 1 40 @2", "close 1 40 @2"),
]
"""All went well, with most of what can happen."""

STORIES = {
    "conflated and refused submits, rewinds, new lives and repeated commits": (GOOD, []),
    "a commit that nobody submitted": ([*GOOD, "commit 2 41 @2"], ["unknown"]),
    "of another offset": ([*GOOD, "submit 2 50 @2", "commit 2 51 @2"], ["unknown"]),
    "a refused submit is committed": (
        ["submit 1 10", "lower:fail 2 9", "commit 2 9"],
        ["refused"],
    ),
    "an older one lands behind a newer one; only the fall is blamed": (
        [*GOOD, "commit 5 30", "commit 1 40 @2"],
        ["backwards"],
    ),
    "a newer submit of a lower offset": (
        ["submit 1 10", "commit 1 10", "lower 2 9", "commit 2 9"],
        ["lower", "backwards"],
    ),
    "the same after a rewind between the two": (
        ["submit 1 10", "commit 1 10", "rewind 2 3", "submit 3 9", "commit 3 9"],
        [],
    ),
    "a sync submit is acknowledged before Kafka has it": (["sync 1 10", "commit 1 10"], ["lost"]),
    "a sync submit that never landed; another life's does not excuse it": (
        ["sync 1 10", "submit 1 11 @2", "commit 1 11 @2"],
        ["lost"],
    ),
    "a newer submit of its life stands for it": (
        ["sync:invoke 1 10", "submit 2 11", "commit 2 11", "sync:ok 1 10"],
        [],
    ),
    "a committed offset is told that never stood": (
        ["submit 1 10", "submit 2 11", "commit 2 11", "told 1 10"],
        ["lost"],
    ),
    "an acknowledged submit is undone": (
        ["submit 1 10", "submit 2 20", "commit 1 10", "commit 2 20", "close 2 20", "commit 1 10"],
        ["backwards", "undone", "unfinished"],
    ),
    "the newest submit never lands": ([*GOOD, "submit 2 50 @2"], ["unfinished"]),
    "nor one that waited": (["sync:info 1 10"], ["unfinished"]),
    "a rising submit is refused": ([*GOOD, "submit:fail 2 50 @2"], ["rising"]),
}


@pytest.mark.parametrize(("steps", "rules"), STORIES.values(), ids=STORIES)
def test_a_broken_promise_is_found(steps: list[str], rules: list[str]) -> None:
    """Nothing else is reported."""
    assert Story().tell(*steps).broken() == rules


def good_story() -> Story:
    return Story().tell(*GOOD)


def test_repeated_commits_are_counted() -> None:
    """They are harmless."""
    assert good_story().verdict().repeated == 1


def test_a_commit_without_a_tag_is_found() -> None:
    """Somebody else's commit is not one of our submits."""
    story = good_story()
    position = ManagerKey(KEY.group, "orders", KEY.partition)
    story.commits.insert(0, CommitRecord(position, 7, "by hand", 0.0))
    assert story.broken() == ["unknown"]


def test_a_replaced_client_is_believed_by_a_new_service_until_its_successor_speaks() -> None:
    """It is counted; without a service start before, or after the successor, it is an offence."""
    for starts, after, rules, counted in (
        (True, False, [], 1),
        (False, False, ["backwards"], 0),
        (True, True, ["backwards"], 1),
    ):
        story = good_story()
        if starts:
            story.service_starts.append(story.now_s + 0.5)
        story.tell("commit 5 30", "commit 1 40 @2")
        if after:
            story.tell("commit 5 30", "commit 1 40 @2")
        assert (story.broken(), story.verdict().superseded) == (rules, counted)


def test_a_commit_that_was_given_up_may_land_behind_a_newer_one() -> None:
    """After a silence as long as a time-out, with what was submitted before it, and soon."""
    for silence_s, submitted, until_s, rules in (
        (REQUEST_TIMEOUT_S, 2, 1.0, []),
        (REQUEST_TIMEOUT_S - 10, 2, 1.0, ["backwards"]),
        (REQUEST_TIMEOUT_S, 3, 1.0, ["backwards"]),
        (REQUEST_TIMEOUT_S, 2, 60.0, ["backwards"]),
    ):
        story = Story()
        story.tell("submit 1 10", "commit 1 10", "submit 2 20")
        story.now_s += silence_s
        story.tell("submit 3 30", "submit 4 40", "commit 4 40")
        story.now_s += until_s
        story.tell(f"commit {submitted} {10 * submitted}", "commit 4 40")
        assert (story.broken(), story.verdict().late) == (rules, not rules)


def test_each_life_of_the_service_excuses_one_fall_to_a_replaced_client() -> None:
    """A second one is an offence, as is each after it; one that only rises is not counted."""
    for numbers, starts, rules, counted in (
        ((2, 3), 1, [], 2),
        ((3, 2), 1, ["backwards"], 1),
        ((3, 2), 2, [], 2),
        ((3, 2, 3, 2, 3, 2), 1, ["backwards"] * 3, 3),
    ):
        story = Story()
        for number in (1, 2, 3):
            story.tell(f"submit {number} {10 * number}")
        story.tell("submit 1 40 @2", "commit 1 40 @2")
        for at, number in enumerate(numbers):
            if at < starts:
                story.service_starts.append(story.now_s + 0.5)
            story.tell(f"commit {number} {10 * number}")
        story.tell("commit 1 40 @2")
        assert (story.broken(), story.verdict().superseded) == (rules, counted)


def test_a_replaced_client_takes_over_from_a_closed_one_in_a_service_that_started_since() -> None:
    """It goes on as long as it likes, but not in the life of the service that replaced it."""
    for close, started, rules, counted in (
        ("close 2 50 @2", True, [], 2),
        ("close:info 2 50 @2", True, ["backwards"] * 2, 0),
        ("close 2 50 @2", False, ["backwards"] * 2, 0),
    ):
        story = Story()
        story.tell("submit 1 10", "commit 1 10", "submit 1 40 @2", "commit 1 40 @2")
        if started:
            story.service_starts.append(story.now_s + 0.5)
        story.tell("submit 2 50 @2", "commit 2 50 @2", close)
        for number in (2, 3):
            story.tell(f"submit {number} {60 + number}", f"commit {number} {60 + number}")
        story.tell("commit 2 50 @2")
        assert (story.broken(), story.verdict().superseded) == (rules, counted)


def test_submits_of_a_replaced_client_behind_its_successor_do_not_excuse_it() -> None:
    """The service knows the client by then, for any partition, unless the one before sent it."""
    for known, rules, counted in ((True, ["backwards"] * 2, 0), (False, [], 2)):
        story = Story()
        story.tell("submit 1 10 @2", "commit 1 10 @2")
        other = Story()
        other.now_s = story.now_s
        if not known:
            other.tell("submit 2 20 @2")
        start_s = other.now_s + 0.5
        if known:
            other.now_s += 1
            other.tell("submit 2 20 @2")
        other.now_s += 1
        other.tell("commit 2 20 @2")
        story.now_s = other.now_s
        for number in (1, 2):
            story.tell(f"submit {number} 5", f"commit {number} 5")
        story.tell("commit 1 10 @2")
        story.service_starts.append(start_s)
        elsewhere = Key(KEY.group, 1)
        story.events += [event._replace(key=elsewhere) for event in other.events]
        (commit,) = other.commits
        there = commit.key._replace(partition=elsewhere.partition)
        story.commits.append(commit._replace(key=there))
        story.standing[elsewhere] = 20
        assert (story.broken(), story.verdict().superseded) == (rules, counted)


def test_a_silence_excuses_no_more_falls_than_it_had_room_for_lost_requests() -> None:
    """One for each whole time-out, and one for each service that died in it."""
    for timeouts, deaths, falls, rules in (
        (1, 0, 1, []),
        (1, 0, 2, ["backwards"]),
        (1, 0, 4, ["backwards"] * 3),
        (1, 1, 2, []),
        (2, 0, 2, []),
        (2, 0, 3, ["backwards"]),
    ):
        story = Story()
        story.tell("submit 1 10", "commit 1 10", "submit 2 20")
        story.service_starts += [story.now_s + 0.5] * deaths
        story.now_s += timeouts * REQUEST_TIMEOUT_S
        story.tell("submit 3 30", "commit 3 30")
        for _ in range(falls):
            story.tell("commit 2 20", "commit 3 30")
        assert (story.broken(), story.verdict().late) == (rules, falls - len(rules))


def test_a_replaced_client_that_is_ahead_may_stand_in_the_way_behind_a_start_alone() -> None:
    """If the service was not started since the successor began, it would have been fenced."""
    for starts, rules in ((True, []), (False, ["rising"])):
        story = good_story()
        if starts:
            story.service_starts.append(story.now_s + 0.5)
        story.tell("submit 6 60", "submit:fail 2 50 @2")
        assert (story.broken(), story.verdict().superseded) == (rules, int(starts))


def test_a_replaced_client_may_be_heard_before_its_successor() -> None:
    """As by a service that was frozen: then it is in the way, and behind the successor it is not.

    Its submits from before the successor began do not excuse it: the successor knew them.
    """
    for order, rules in (
        (("begun", "zombie", "heard"), []),
        (("begun", "heard", "zombie"), ["rising"]),
        (("zombie", "begun", "heard"), ["rising"]),
    ):
        story = Story()
        story.service_starts.append(story.now_s)
        for step in order:
            if step == "begun":
                story.client_starts["driver", 2] = story.now_s
                story.now_s += 1
            elif step == "zombie":
                story.tell("submit 1 60")
            else:
                story.tell("submit 1 61 @2", "commit 1 61 @2")
        story.tell("sync:fail 2 55 @2")
        assert (story.broken(), story.verdict().superseded) == (rules, not rules)


def test_offsets_below_those_of_its_successor_are_refused_to_a_replaced_client() -> None:
    """The service was started since, and does not know that the client was replaced.

    Nor does one that was started before, where the successor was closed.
    """
    sent = ("submit 6 60 @2", "commit 6 60 @2")
    for steps, rules in (
        ([*sent, "start"], []),
        ([*sent], ["rising"]),
        (["start", *sent, "close 6 60 @2"], []),
        (["start", *sent], ["rising"]),
        ([*sent, "close 6 60 @2"], ["rising"]),
    ):
        story = good_story()
        for step in (*steps, "sync:fail 7 50"):
            if step == "start":
                story.service_starts.append(story.now_s + 0.5)
                story.now_s += 1
            else:
                story.tell(step)
        assert (story.broken(), story.verdict().superseded) == (rules, int(not rules))


def test_an_offset_that_kafka_forgot_is_found() -> None:
    """A tombstone in the log, and an answer that is not what the log ends with."""
    story = good_story()
    story.standing[KEY] = 30
    assert story.broken() == ["forgotten"]
    story = good_story()
    story.commit(0, None)
    assert story.broken() == ["forgotten", "forgotten"]


def test_a_lost_submit_that_later_commits_left_out_is_found() -> None:
    """However young it is; one commit may pass it, and a sync submit goes by the side."""
    told: list[tuple[str, int, int, list[str]]] = [
        ("submit", 1, 1, []),
        ("submit", 2, 2, ["left out"]),
        ("sync", 2, 0, []),
    ]
    other = Key(KEY.group, 1)
    for action, commits, left_out, rules in told:
        story = Story()
        story.tell("submit 1 10")
        story.events = [event._replace(key=other) for event in story.events]
        for number in range(2, 2 + commits):
            what = f"{number} {10 * number}"
            story.tell(f"{action}:invoke {what}", f"commit {what}", f"{action}:ok {what}")
        story.deaths.append(Death("driver", 1, story.now_s + 1))
        story.tell("submit 1 40 @2", "commit 1 40 @2")
        story.events += [event._replace(key=other) for event in story.events[-2:]]
        last = story.commits[-1]
        story.commits.append(last._replace(key=last.key._replace(partition=1)))
        story.standing[other] = 40
        verdict = story.verdict()
        assert [violation.rule for violation in verdict.violations] == rules
        assert verdict.worst_left_out == left_out


@pytest.mark.parametrize(("action", "is_offence"), [("sync", False), ("lower", True)])
def test_a_restarted_service_may_take_a_refused_sync_submit(
    action: str, *, is_offence: bool
) -> None:
    """The client sends its newest offset again; what it refused itself was never sent."""
    story = Story().tell("submit 1 10", f"{action}:fail 2 9")
    story.service_starts.append(story.now_s + 0.5)
    assert ("refused" in story.tell("commit 2 9").broken()) is is_offence
