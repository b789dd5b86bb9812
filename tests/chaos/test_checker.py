"""The checker of the chaos run has teeth: each broken promise, planted by hand, is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.lag.commit_log import CommitRecord
from offsetmgr.types import ManagerKey
from tests.chaos.checker import Death, Evidence, Verdict, check
from tests.chaos.history import Event, Key, Tag

if TYPE_CHECKING:
    from tests.chaos.history import Action, Outcome

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

    def note(self, outcome: Outcome, action: Action, number: int, offset: int, life: int) -> None:
        tag = Tag("driver", life, number)
        self.client_starts.setdefault(tag[:2], self.now_s)
        self.now_s += 1
        self.events.append(Event(outcome, action, tag, KEY, offset, self.now_s))

    def submit(
        self,
        number: int,
        offset: int,
        action: Action = "submit",
        outcome: Outcome = "ok",
        life: int = 1,
    ) -> None:
        self.note("invoke", action, number, offset, life)
        self.note(outcome, action, number, offset, life)

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


def good_story() -> Story:
    """A history in which all went well, with most of what can happen."""
    story = Story()
    story.submit(1, 10)
    story.submit(2, 20)
    story.commit(2, 20)
    story.note("ok", "told", 2, 20, life=1)
    story.submit(3, 19, "lower", "fail")
    story.submit(4, 5, "rewind")
    story.commit(4, 5)
    story.note("invoke", "sync", 5, 30, life=1)
    story.commit(5, 30)
    story.note("ok", "sync", 5, 30, life=1)
    story.submit(1, 40, life=2)
    story.commit(5, 30)  # as keep-alive does
    story.commit(1, 40, life=2)
    story.note("ok", "close", 1, 40, life=2)
    return story


def test_a_good_history_passes() -> None:
    """Conflated submits, rewinds, refused ones, new lives and repeated commits are no offence."""
    assert good_story().broken() == []
    assert good_story().verdict().repeated == 1


def test_a_commit_that_nobody_submitted_is_found() -> None:
    """Neither another tag nor another offset than was submitted may be committed."""
    story = good_story()
    story.commit(2, 41, life=2)
    assert story.broken() == ["unknown"]
    story = good_story()
    story.submit(2, 50, life=2)
    story.commit(2, 51, life=2)
    assert story.broken() == ["unknown"]


def test_a_commit_without_a_tag_is_found() -> None:
    """Somebody else's commit is no submit of ours."""
    story = good_story()
    position = ManagerKey(KEY.group, "orders", KEY.partition)
    story.commits.insert(0, CommitRecord(position, 7, "by hand", 0.0))
    assert story.broken() == ["unknown"]


def test_a_refused_submit_that_is_committed_is_found() -> None:
    """An offset that the client refused as a regression must not reach Kafka."""
    story = Story()
    story.submit(1, 10)
    story.submit(2, 9, "lower", "fail")
    story.commit(2, 9)
    assert "refused" in story.broken()


def test_an_older_submit_that_lands_behind_a_newer_one_is_found_once() -> None:
    """Also where it is of an earlier life, and only the fall itself is blamed."""
    story = good_story()
    story.commit(5, 30)
    story.commit(1, 40, life=2)
    assert story.broken() == ["backwards"]


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
        story.commit(5, 30)
        story.commit(1, 40, life=2)
        if after:
            story.commit(5, 30)
            story.commit(1, 40, life=2)
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
        story.submit(1, 10)
        story.commit(1, 10)
        story.submit(2, 20)
        story.now_s += silence_s
        story.submit(3, 30)
        story.submit(4, 40)
        story.commit(4, 40)
        story.now_s += until_s
        story.commit(submitted, 10 * submitted)
        story.commit(4, 40)
        assert (story.broken(), story.verdict().late) == (rules, not rules)


def test_each_life_of_the_service_excuses_one_fall_to_a_replaced_client() -> None:
    """A second one is an offence, and so is each that follows; what only rises is no second one."""
    for numbers, starts, rules, counted in (
        ((2, 3), 1, [], 2),
        ((3, 2), 1, ["backwards"], 1),
        ((3, 2), 2, [], 2),
        ((3, 2, 3, 2, 3, 2), 1, ["backwards"] * 3, 3),
    ):
        story = Story()
        for number in (1, 2, 3):
            story.submit(number, 10 * number)
        story.submit(1, 40, life=2)
        story.commit(1, 40, life=2)
        for at, number in enumerate(numbers):
            if at < starts:
                story.service_starts.append(story.now_s + 0.5)
            story.commit(number, 10 * number)
        story.commit(1, 40, life=2)
        assert (story.broken(), story.verdict().superseded) == (rules, counted)


def test_what_a_replaced_client_submits_behind_a_commit_of_its_successor_is_no_excuse() -> None:
    """Of any partition: the service knows the client by then, unless the one before had sent it."""
    for known, rules, counted in ((True, ["backwards"] * 2, 0), (False, [], 2)):
        story = Story()
        story.submit(1, 10, life=2)
        story.commit(1, 10, life=2)
        other = Story()
        other.now_s = story.now_s
        if not known:
            other.submit(2, 20, life=2)
        start_s = other.now_s + 0.5
        if known:
            other.now_s += 1
            other.submit(2, 20, life=2)
        other.now_s += 1
        other.commit(2, 20, life=2)
        story.now_s = other.now_s
        for number in (1, 2):
            story.submit(number, 5)
            story.commit(number, 5)
        story.commit(1, 10, life=2)
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
        story.submit(1, 10)
        story.commit(1, 10)
        story.submit(2, 20)
        story.service_starts += [story.now_s + 0.5] * deaths
        story.now_s += timeouts * REQUEST_TIMEOUT_S
        story.submit(3, 30)
        story.commit(3, 30)
        for _ in range(falls):
            story.commit(2, 20)
            story.commit(3, 30)
        assert (story.broken(), story.verdict().late) == (rules, falls - len(rules))


def test_an_offset_that_falls_without_a_rewind_is_found() -> None:
    """A newer submit of a lower offset is no excuse; a rewind between the two is."""
    story = Story()
    story.submit(1, 10)
    story.commit(1, 10)
    story.submit(2, 9, "lower")
    story.commit(2, 9)
    assert story.broken() == ["lower", "backwards"]
    story = Story()
    story.submit(1, 10)
    story.commit(1, 10)
    story.submit(2, 3, "rewind")
    story.submit(3, 9)
    story.commit(3, 9)
    assert story.broken() == []


def test_a_sync_submit_acknowledged_before_kafka_had_it_is_found() -> None:
    """The commit has to stand in the log by the time of the answer."""
    story = Story()
    story.submit(1, 10, "sync")
    story.commit(1, 10)
    assert story.broken() == ["lost"]


def test_a_sync_submit_that_never_landed_is_found() -> None:
    """A newer submit of its life stands for it; one of another life does not."""
    story = Story()
    story.submit(1, 10, "sync")
    story.submit(1, 11, life=2)
    story.commit(1, 11, life=2)
    assert story.broken() == ["lost"]
    story = Story()
    story.note("invoke", "sync", 1, 10, life=1)
    story.submit(2, 11)
    story.commit(2, 11)
    story.note("ok", "sync", 1, 10, life=1)
    assert story.broken() == []


def test_a_committed_offset_that_was_told_and_never_stood_is_found() -> None:
    """The mailbox names one submit, and a newer one is no excuse."""
    story = Story()
    story.submit(1, 10)
    story.submit(2, 11)
    story.commit(2, 11)
    story.note("ok", "told", 1, 10, life=1)
    assert story.broken() == ["lost"]


def test_an_acknowledged_submit_that_is_undone_is_found() -> None:
    """At the end, each acknowledged offset or a newer one is committed."""
    story = Story()
    story.submit(1, 10)
    story.submit(2, 20)
    story.commit(1, 10)
    story.commit(2, 20)
    story.note("ok", "close", 2, 20, life=1)
    story.commit(1, 10)
    assert story.broken() == ["backwards", "undone", "unfinished"]


def test_a_newest_submit_that_never_lands_is_found() -> None:
    """At the end everything that a client took is committed, sync or not, with commits or none."""
    story = good_story()
    story.submit(2, 50, life=2)
    assert story.broken() == ["unfinished"]
    story = Story()
    story.submit(1, 10, "sync", "info")
    assert story.broken() == ["unfinished"]


def test_a_rising_submit_that_is_refused_is_found() -> None:
    """Only what is lower may be called so."""
    story = good_story()
    story.submit(2, 50, outcome="fail", life=2)
    assert story.broken() == ["rising"]


def test_a_replaced_client_that_is_ahead_may_stand_in_the_way_behind_a_start_alone() -> None:
    """If the service was not started since the successor began, it would have been fenced."""
    for starts, rules in ((True, []), (False, ["rising"])):
        story = good_story()
        if starts:
            story.service_starts.append(story.now_s + 0.5)
        story.submit(6, 60, life=1)
        story.submit(2, 50, outcome="fail", life=2)
        assert (story.broken(), story.verdict().superseded) == (rules, int(starts))


def test_a_replaced_client_may_be_heard_before_its_successor() -> None:
    """As by a service that was frozen: then it is in the way, and behind the successor it is not.

    What it submitted before the successor began is no excuse: the successor knew that.
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
                story.submit(1, 60, life=1)
            else:
                story.submit(1, 61, life=2)
                story.commit(1, 61, life=2)
        story.submit(2, 55, "sync", "fail", life=2)
        assert (story.broken(), story.verdict().superseded) == (rules, not rules)


def test_a_replaced_client_is_refused_what_its_successor_has_passed() -> None:
    """By a service that was started since, and does not know that it was replaced."""
    for starts, rules in ((True, []), (False, ["rising"])):
        story = good_story()
        story.submit(6, 60, life=2)
        story.commit(6, 60, life=2)
        if starts:
            story.service_starts.append(story.now_s + 0.5)
            story.now_s += 1
        story.submit(7, 50, "sync", "fail", life=1)
        assert (story.broken(), story.verdict().superseded) == (rules, int(starts))


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
    told: list[tuple[Action, int, int, list[str]]] = [
        ("submit", 1, 1, []),
        ("submit", 2, 2, ["left out"]),
        ("sync", 2, 0, []),
    ]
    other = Key(KEY.group, 1)
    for action, commits, left_out, rules in told:
        story = Story()
        story.submit(1, 10)
        story.events = [event._replace(key=other) for event in story.events]
        for number in range(2, 2 + commits):
            story.note("invoke", action, number, 10 * number, life=1)
            story.commit(number, 10 * number)
            story.note("ok", action, number, 10 * number, life=1)
        story.deaths.append(Death("driver", 1, story.now_s + 1))
        story.submit(1, 40, life=2)
        story.commit(1, 40, life=2)
        story.events += [event._replace(key=other) for event in story.events[-2:]]
        last = story.commits[-1]
        story.commits.append(last._replace(key=last.key._replace(partition=1)))
        story.standing[other] = 40
        verdict = story.verdict()
        assert [violation.rule for violation in verdict.violations] == rules
        assert verdict.worst_left_out == left_out
