"""Judges a chaos run by what the clients saw and what is in Kafka's log; pure.

The promises, each a rule here:

- Kafka holds only what was submitted: nothing that was refused, nothing that nobody submitted.
- The committed position never goes back without a rewind, neither to an older submit nor to a
  lower offset.  One thing is counted instead: the service keeps no state, so one that has just
  been started takes a replaced client at its word until it hears of the successor.  What it took
  before that may also stand in the successor's way.  Each life of the service excuses one such fall
  of a key, and nothing that was submitted when it had committed something of the successor, unless
  the successor was closed in that life of the service: then any other one takes over.
- Another is counted too: what the service has given up as unknown may land behind newer commits,
  which are put back.  Such a commit has kept its group silent for a whole time-out before, or died
  with the service meanwhile: a silence excuses no more falls of a key than it had room for.
- What was acknowledged (a sync submit, a close) or told (the committed offsets) was in Kafka by
  then, and is never undone by anything older.
- At the end each partition stands at the newest that its client submitted.
- Of a client that dies together with the service, at most one commit interval is lost: no two
  commits of a group leave out what its client submitted before what they hold.
- No offset is committed to a log that it was not read from; ``log_rules.py`` has the exceptions.
  Each log of a topic begins without a past: what is promised of it ends with it.
- While all is well, every door shows all groups and letters, whatever is wrong with one of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.coordinator.logs import LOOK_AGE_S
from offsetmgr.kafka.connections import STUCK_S
from tests.chaos.history import TELLING, Event, Key, Tag, tag_of
from tests.chaos.log_rules import LogVerdict, Requests, Submitted, is_race, judge_log, log_at

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from offsetmgr.kafka.commit_log import CommitRecord
    from tests.chaos.recreation import Log

_LATE_S: Final = STUCK_S + 10.0
"""librdkafka may hold an abandoned commit this long, plus ``socket.timeout.ms``."""
_CLOCK_S: Final = 0.002
"""A commit's time is cut to milliseconds."""


class Violation(NamedTuple):
    rule: str
    about: Key | str
    """A key, or a door."""
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.about}: {self.what}"


class Death(NamedTuple):
    """A client and the service were killed together while all was well."""

    client: str
    life: int
    at_s: float


class Look(NamedTuple):
    """The answer of an endpoint or command while all was well."""

    door: str
    expected: frozenset[str]
    """The groups, or letters, that it must show."""
    shown: frozenset[str]
    """Those that it shows, without an error."""
    answer: str = ""
    """The end of the answer, for a person who looks for the cause."""


class Evidence(NamedTuple):
    events: Iterable[Event]
    """Those of one client's life in their order."""
    commits: Iterable[CommitRecord]
    """Those of one partition in the order of Kafka's log."""
    standing: Mapping[Key, int]
    """The final answers of the groups' coordinators."""
    service_starts: Collection[float] = ()
    """When each life of the service began, by the wall clock."""
    client_starts: Mapping[tuple[str, int], float] = MappingProxyType({})
    """When each life of each client began."""
    deaths: Iterable[Death] = ()
    request_timeout_s: float = inf
    """After which the service gives a commit up."""
    logs: Mapping[str, Sequence[Log]] = MappingProxyType({})
    """Of the topics that are recreated, from their first."""
    looks: Iterable[Look] = ()


@dataclass
class Verdict:
    violations: list[Violation] = field(default_factory=list)
    actions: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """Events by action and outcome."""
    commits: int = 0
    acknowledged: int = 0
    """Submits that somebody was told to be committed."""
    superseded: int = 0
    """Submits of a replaced client, taken by a service that had not yet heard of its successor:
    committed behind it, or in its way until it has passed them."""
    late: int = 0
    """Commits that landed behind newer ones, after they had been given up."""
    repeated: int = 0
    """Commits of the submit that stood already: harmless, and a request for nothing."""
    worst_left_out: int = 0
    """Most commits with newer submits of the group that left a lost one out."""
    of_recreated: int = 0
    """Commits to topics that are recreated."""
    races: int = 0
    """Commits of a former log, whose topic was recreated during the commit."""
    widest_race_s: float = 0.0
    """The longest time from a new log to the commit of the former one."""
    guesses: int = 0
    """Commits of a former log that could only be guessed not to be of it."""
    replaced: int = 0
    """Commits of a former log in whose place the service has put the start of the new one."""
    deleted: int = 0
    """Commits that Kafka has deleted with their topics."""
    looks: int = 0


@dataclass
class _Trail:
    """One key: what was submitted to it, and what Kafka took."""

    submitted: dict[Tag, Event] = field(default_factory=dict)
    refused: dict[Tag, Event] = field(default_factory=dict)
    rewinds: list[Tag] = field(default_factory=list)
    accepted: list[Event] = field(default_factory=list)
    """The submits that the client has taken, as of then."""
    promises: list[Event] = field(default_factory=list)
    """A moment at which somebody was told that a submit is committed."""
    commits: dict[Tag, float] = field(default_factory=dict)
    """When each submit was committed first."""
    topic_ids: dict[Tag, str] = field(default_factory=dict)
    """Of submits whose client knew the id of their topic."""
    former: set[Tag] = field(default_factory=set)
    """Submits that were refused as of a former log."""
    before: Tag | None = None
    """The last submit that was committed, deleted since or not."""
    last: tuple[Tag, CommitRecord] | None = None
    newest: tuple[Tag, CommitRecord] | None = None
    """The newest submit committed so far."""
    believed: set[float] = field(default_factory=set)
    """Starts of the service that have excused a fall."""
    landed: Counter[_Silence] = field(default_factory=Counter)
    """Falls that each silence has excused."""

    def of(self, tag: Tag, logs: Sequence[Log]) -> Submitted:
        """Return a submit for the judge of its commit."""
        before = [
            other
            for other in self.submitted.keys() - self.refused.keys()
            if other[:2] == tag[:2] and other.log == tag.log
        ]
        last = max((other for other in before if other < tag), default=None)
        is_named = last is not None and self.topic_ids.get(last) == logs[tag.log - 1].topic_id
        offset = self.submitted[last].offset if last is not None and is_named else -1
        return Submitted(self.submitted[tag], self.topic_ids.get(tag, ""), offset)

    def reached_s(self, promised: Tag) -> float:
        """When Kafka first had ``promised``, or a newer submit of that life; inf: never."""
        times = (at_s for tag, at_s in self.commits.items() if _covers(tag, promised))
        return min(times, default=inf)


def _covers(tag: Tag, promised: Tag) -> bool:
    return tag[:2] == promised[:2] and tag >= promised


def check(evidence: Evidence) -> Verdict:
    verdict = Verdict()
    trails: dict[Key, _Trail] = defaultdict(_Trail)
    closed: dict[tuple[str, int], float] = {}
    for event in evidence.events:
        verdict.actions[event.action, event.outcome] += 1
        if event.action == "close" and event.outcome == "ok":
            closed[event.tag[:2]] = event.at_s
        _follow(verdict, trails[event.key], event)
    commits = list(evidence.commits)
    silences = _silences(commits, evidence)
    heard = _heard(commits, trails, evidence)
    requests = Requests(commits, evidence.service_starts)
    for commit in commits:
        verdict.commits += 1
        key = _key_of(commit, evidence)
        excuses = _Excuses(evidence, silences[key.group], heard, requests, closed)
        _judge_commit(verdict, trails[key], key, commit, excuses)
    for key, trail in trails.items():
        _judge_key(verdict, trail, key, evidence, closed)
    for death in evidence.deaths:
        for group in {key.group for key in trails}:
            each = [t for key, t in trails.items() if key.group == group and not key.topic]
            _judge_order(verdict, each, death)
    for look in evidence.looks:
        verdict.looks += 1
        if missing := look.expected - look.shown:
            what = f"it does not show {', '.join(map(repr, sorted(missing)))}: {look.answer}"
            verdict.violations.append(Violation("blind", look.door, what))
    return verdict


def _judge_key(
    verdict: Verdict,
    trail: _Trail,
    key: Key,
    evidence: Evidence,
    closed: Mapping[tuple[str, int], float],
) -> None:
    verdict.acknowledged += len(trail.promises)
    for event in trail.promises:
        _judge_promise(verdict, trail, event)
    if key.topic:
        _judge_last_log(verdict, trail, key, evidence)
        return
    for event in trail.refused.values():
        _judge_refusal(verdict, trail, event, evidence, closed)
    newest = max(trail.accepted, key=lambda event: event.tag, default=None)
    _judge_end(verdict, trail, key, evidence.standing.get(key), newest)


def _follow(verdict: Verdict, trail: _Trail, event: Event) -> None:
    if event.topic_id:
        trail.topic_ids[event.tag] = event.topic_id
    if event.outcome == "former":
        trail.former.add(event.tag)
    elif event.action in TELLING:
        if event.outcome == "ok":
            trail.promises.append(event)
    elif event.outcome == "invoke":
        trail.submitted[event.tag] = event
        if event.action == "rewind":
            trail.rewinds.append(event.tag)
    elif event.outcome == "fail":
        trail.refused[event.tag] = event
    else:
        # A sync submit that ran out of time is held all the same.
        trail.accepted.append(event)
        if event.action == "sync" and event.outcome == "ok":
            trail.promises.append(event)
        # Without an answer, such as of a client that was fenced, nothing may have been taken.
        if event.action == "lower" and event.outcome == "ok":
            what = f"{event} was taken, though it is lower and no rewind"
            verdict.violations.append(Violation("lower", event.key, what))


class _Silence(NamedTuple):
    """A time without commits of a group, of a whole time-out at least."""

    begin_s: float
    end_s: float
    lost: int
    """Requests that it had room for: one at a time is under way, until it is given up or dies."""


class _Excuses(NamedTuple):
    """The circumstances that may let an older commit of a group land after a newer one."""

    evidence: Evidence
    silences: Sequence[_Silence]
    """In their order."""
    heard: Mapping[str, Sequence[tuple[Event, float]]]
    """By client, what was committed of all groups, and when: the service had heard it by then."""
    requests: Requests
    closed: Mapping[tuple[str, int], float]
    """Lives of clients that ended with a close, and when."""

    def is_closed(self, life: Tag, since_s: float, until_s: float) -> bool:
        """True if that life was closed meanwhile."""
        return since_s < self.closed.get(life[:2], inf) < until_s

    def heard_s(self, life: Tag, since_s: float, until_s: float) -> float:
        """When a service that began at ``since_s`` had surely heard a successor of that life.

        A successor that was closed by ``until_s`` does not count; inf if there was none.
        """
        later = (
            at_s
            for submit, at_s in self.heard.get(life.client, ())
            # What was submitted before may have been taken by the service before.
            if submit.tag.life > life.life
            and submit.at_s > since_s
            and not self.is_closed(submit.tag, since_s, until_s)
        )
        return min(later, default=inf)


def _key_of(commit: CommitRecord, evidence: Evidence) -> Key:
    group, topic, partition = commit.key
    return Key(group, partition, topic if topic in evidence.logs else "")


def _silences(
    commits: Iterable[CommitRecord], evidence: Evidence
) -> Mapping[str, Sequence[_Silence]]:
    """The times without commits, by group; only one request is under way in each."""
    times: dict[str, list[float]] = defaultdict(list)
    for commit in commits:
        if commit.offset is not None:  # else Kafka has deleted it by itself
            times[commit.key.group].append(commit.at_s)
    found: dict[str, list[_Silence]] = defaultdict(list)
    for group, each in times.items():
        for begin_s, end_s in pairwise(sorted(each)):
            given_up = (end_s - begin_s) // evidence.request_timeout_s
            if given_up:
                deaths = sum(begin_s < start_s < end_s for start_s in evidence.service_starts)
                found[group].append(_Silence(begin_s, end_s, int(given_up) + deaths))
    return found


def _heard(
    commits: Iterable[CommitRecord], trails: Mapping[Key, _Trail], evidence: Evidence
) -> Mapping[str, Sequence[tuple[Event, float]]]:
    heard: dict[str, list[tuple[Event, float]]] = defaultdict(list)
    for commit in commits:
        tag, submitted = tag_of(commit.metadata), trails[_key_of(commit, evidence)].submitted
        if tag is not None and tag in submitted:
            heard[tag.client].append((submitted[tag], commit.at_s))
    return heard


def _judge_commit(
    verdict: Verdict, trail: _Trail, key: Key, commit: CommitRecord, excuses: _Excuses
) -> None:
    logs = excuses.evidence.logs.get(key.topic, ())
    verdict.of_recreated += bool(logs)
    tag = None if commit.offset is None else tag_of(commit.metadata)
    if tag is None:
        _judge_untagged(verdict, trail, key, commit, excuses)
        return
    submit = trail.submitted.get(tag)
    if submit is None or submit.offset != commit.offset:
        what = f"{commit} was committed; submitted was {submit}"
        verdict.violations.append(Violation("unknown", key, what))
    elif tag in trail.refused and not _was_sent_again(submit, commit, excuses):
        what = f"{commit} was committed, though its submit {submit} was refused"
        verdict.violations.append(Violation("refused", key, what))
    if not (submit and logs and _is_former(verdict, trail, key, (submit, commit), excuses)):
        _judge_direction(verdict, trail, key, (tag, commit), excuses)
    verdict.repeated += trail.last is not None and trail.last[0] == tag
    trail.commits.setdefault(tag, commit.at_s)
    trail.last, trail.before = (tag, commit), tag


def _was_sent_again(submit: Event, commit: CommitRecord, excuses: _Excuses) -> bool:
    """Return True if a restarted service was asked again for what a former one had refused.

    Only a sync submit waits for the service's own refusal; the client refuses others unsent.
    """
    starts = excuses.evidence.service_starts
    return submit.action == "sync" and any(submit.at_s < each < commit.at_s for each in starts)


def _judge_untagged(
    verdict: Verdict, trail: _Trail, key: Key, commit: CommitRecord, excuses: _Excuses
) -> None:
    """Judge a commit of nothing that was submitted, or a deletion."""
    logs = excuses.evidence.logs.get(key.topic, ())
    if commit.offset is None and logs:
        verdict.deleted += 1
        trail.last = None
        return
    start = _start_of_log(trail, commit, logs, excuses.requests)
    if start is not None:
        verdict.replaced += trail.before != start[0]
        trail.last = trail.newest = start
        trail.before = start[0]
    elif commit.offset is None:
        what = f"{commit}: it expired, or somebody deleted it"
        verdict.violations.append(Violation("forgotten", key, what))
    else:
        what = f"{commit} was committed, which no client submitted"
        verdict.violations.append(Violation("unknown", key, what))


def _judge_direction(
    verdict: Verdict,
    trail: _Trail,
    key: Key,
    committed: tuple[Tag, CommitRecord],
    excuses: _Excuses,
) -> None:
    """Judge whether the committed offset goes back in its log."""
    tag, commit = committed
    if trail.newest is not None and trail.newest[0].log < tag.log:
        trail.newest = None
    what = _backwards(trail, tag, commit)
    if what and _is_revenant(trail, tag, commit, excuses):
        verdict.superseded += 1
    elif what and _is_late(trail, tag, commit, excuses):
        verdict.late += 1
    elif what:
        verdict.violations.append(Violation("backwards", key, what))
    if trail.newest is None or tag >= trail.newest[0]:
        # What follows a fall is not held against it again.
        trail.newest = committed


def _start_of_log(
    trail: _Trail, commit: CommitRecord, logs: Sequence[Log], requests: Requests
) -> tuple[Tag, CommitRecord] | None:
    """Return the commit if it is the start of a log, in the place of a former log's offset."""
    if not logs or commit.offset != 0 or commit.metadata or trail.before is None:
        return None
    log = log_at(logs, commit.at_s)
    start = Tag("", 0, 0, log.number)
    looks_former = (
        trail.before.log < log.number
        or trail.before == start
        or (trail.last is not None and is_race(log, requests.earliest_s(trail.last[1])))
    )
    return (start, commit) if looks_former else None


def _is_former(
    verdict: Verdict,
    trail: _Trail,
    key: Key,
    committed: tuple[Event, CommitRecord],
    excuses: _Excuses,
) -> bool:
    """Judge a commit to a topic that is recreated; return True if it is of a former log."""
    submit, commit = committed
    logs = excuses.evidence.logs[key.topic]
    if submit.tag.log >= log_at(logs, commit.at_s).number:
        return False
    following = logs[submit.tag.log]
    earliest_s = excuses.requests.earliest_s(commit)
    found = judge_log(trail.of(submit.tag, logs), logs, earliest_s)
    if found is LogVerdict.RACE or _was_given_up(submit, commit, following, excuses):
        verdict.races += 1
        verdict.widest_race_s = max(verdict.widest_race_s, commit.at_s - following.created_s)
    elif found is LogVerdict.GUESS:
        verdict.guesses += 1
    else:
        what = f"{commit} was committed; {submit} was read from the log before {following}"
        verdict.violations.append(Violation("former log", key, what))
    return True


def _was_given_up(submit: Event, commit: CommitRecord, following: Log, excuses: _Excuses) -> bool:
    """Return True if a commit may have been given up before the topic was recreated."""
    return any(
        submit.at_s <= silence.end_s - excuses.evidence.request_timeout_s
        and silence.begin_s - LOOK_AGE_S <= following.created_s
        and silence.end_s <= commit.at_s <= silence.end_s + _LATE_S
        for silence in excuses.silences
    )


def _backwards(trail: _Trail, tag: Tag, commit: CommitRecord) -> str:
    """Describe how a commit goes back behind an earlier one; empty if it does not."""
    if trail.newest is None:
        return ""
    newest, before = trail.newest
    if tag < newest:
        return f"{commit} came behind the newer {before}"
    if _fell(before, commit) and not any(newest < each <= tag for each in trail.rewinds):
        return f"it fell from {before} to {commit} without a rewind"
    return ""


def _is_revenant(trail: _Trail, tag: Tag, commit: CommitRecord, excuses: _Excuses) -> bool:
    """True if a replaced client speaks to a service that does not know, or that may let it.

    It started since its successor's commit, or has closed the successor.
    """
    submit = trail.submitted.get(tag)
    if submit is None or trail.newest is None or tag.life >= trail.newest[0].life:
        return False
    goes_on = trail.last is not None and tag >= trail.last[0]
    newest, before = trail.newest
    for start_s in excuses.evidence.service_starts:
        if (
            start_s < commit.at_s
            and (before.at_s < start_s or excuses.is_closed(newest, start_s, commit.at_s))
            and submit.at_s <= excuses.heard_s(tag, start_s, commit.at_s) + _CLOCK_S
            and (goes_on or start_s not in trail.believed)
        ):
            trail.believed.add(start_s)
            return True
    return False


def _is_late(trail: _Trail, tag: Tag, commit: CommitRecord, excuses: _Excuses) -> bool:
    """True if a commit was given up before the newer one was sent, and may have landed since."""
    submit = trail.submitted.get(tag)
    if submit is None or trail.newest is None or tag >= trail.newest[0]:
        return False
    for silence in excuses.silences:
        may_be = (
            submit.at_s <= silence.end_s - excuses.evidence.request_timeout_s
            and silence.end_s <= trail.newest[1].at_s
            and commit.at_s <= silence.end_s + _LATE_S
        )
        if may_be and trail.landed[silence] < silence.lost:
            trail.landed[silence] += 1
            return True
    return False


def _fell(before: CommitRecord, after: CommitRecord) -> bool:
    return before.offset is not None and after.offset is not None and after.offset < before.offset


def _judge_refusal(
    verdict: Verdict,
    trail: _Trail,
    event: Event,
    evidence: Evidence,
    closed: Mapping[tuple[str, int], float],
) -> None:
    """Only what is lower may be refused; what another life of its client sent may be higher.

    A successor knows all that was submitted before it began.  A replaced client knows nothing of
    its successor, and a service that started since then, or in whose life the successor was closed,
    does not know that it was replaced.
    """
    if event.action == "lower":
        return
    life, starts = event.tag.life, evidence.service_starts
    began_s = evidence.client_starts[event.tag[:2]]
    higher = [
        (tag, each)
        for tag, each in trail.submitted.items()
        if each.offset > event.offset and each.at_s < event.at_s
    ]
    if any(
        began_s < each.at_s and _is_believed(trail, each, event.at_s, starts)
        if tag.life < life
        else tag.life > life
        and any(
            each.at_s < start_s < event.at_s
            or began_s < start_s < closed.get(tag[:2], inf) < event.at_s
            for start_s in starts
        )
        for tag, each in higher
    ):
        verdict.superseded += 1
        return
    what = f"{event} was refused, and all its client submitted before is lower"
    verdict.violations.append(Violation("rising", event.key, what))


def _is_believed(
    trail: _Trail, submit: Event, until_s: float, service_starts: Collection[float]
) -> bool:
    """True if the service may have taken a submit by then, not knowing its client's successor.

    It knows the successor at the latest when it has committed something of it.
    """
    newer = sorted(at_s for tag, at_s in trail.commits.items() if tag.life > submit.tag.life)
    for start_s, end_s in pairwise([*sorted(service_starts), inf]):
        heard_s = next((at_s for at_s in newer if start_s <= at_s < end_s), end_s)
        if start_s < until_s and submit.at_s < heard_s:
            return True
    return False


def _judge_promise(verdict: Verdict, trail: _Trail, event: Event) -> None:
    """Offsets reported as committed must be in the log, at the latest since the report."""
    tag = event.tag
    # A sync submit is also kept by a newer one that took its place; the others name what stands.
    since_s = trail.commits.get(tag, inf) if event.action in TELLING else trail.reached_s(tag)
    if since_s > event.at_s + _CLOCK_S:
        what = f"{event} says that {tag} is committed; Kafka had it at {since_s}"
        verdict.violations.append(Violation("lost", event.key, what))
    elif trail.last is not None and trail.last[0] < tag and trail.last[0].log == tag.log:
        what = f"{event} says that {tag} is committed; at the end {trail.last[1]} stands"
        verdict.violations.append(Violation("undone", event.key, what))


def _judge_end(
    verdict: Verdict, trail: _Trail, key: Key, standing: int | None, newest: Event | None
) -> None:
    last = trail.last
    logged = None if last is None else last[1].offset
    if standing != logged:
        what = f"the coordinator answers {standing}, and the log ends with {logged}"
        verdict.violations.append(Violation("forgotten", key, what))
    if newest is not None and (last is None or last[0] < newest.tag):
        what = f"{newest} was submitted last; at the end {logged} stands"
        verdict.violations.append(Violation("unfinished", key, what))


def _judge_last_log(verdict: Verdict, trail: _Trail, key: Key, evidence: Evidence) -> None:
    """At the end the newest submit of the last log must be committed.

    It may have been refused if it repeats the last offset of a former log.
    """
    log = evidence.logs[key.topic][-1]
    accepted = [event for event in trail.accepted if event.tag.log == log.number]
    if not accepted or key.partition >= log.partitions:
        return
    newest = max(accepted, key=lambda event: event.tag)
    if newest.tag in trail.former and any(
        event.offset == newest.offset and event.tag.log < log.number
        for event in trail.submitted.values()
    ):
        return
    _judge_end(verdict, trail, key, evidence.standing.get(key), newest)


def _lost(trail: _Trail, death: Death) -> list[Event]:
    """Submits after the last commit of a life that ended with the service."""
    life = (death.client, death.life)
    reached = max((tag for tag in trail.commits if tag[:2] == life), default=None)
    return [
        event
        for event in trail.accepted
        if event.tag[:2] == life
        and event.at_s < death.at_s
        and (reached is None or event.tag > reached)
    ]


def _judge_order(verdict: Verdict, trails: Collection[_Trail], death: Death) -> None:
    """Judge how many commits of a group came after submits that were lost.

    A client sends what was submitted in its order, and a commit takes all that the group has.  One
    may be collected while the service takes a request in.  Sync submits go by the side.
    """
    rounds = {
        (at_s, tag)
        for trail in trails
        for tag, at_s in trail.commits.items()
        if tag[:2] == (death.client, death.life)
        and tag in trail.submitted
        and trail.submitted[tag].action != "sync"
    }
    lost = [event for trail in trails for event in _lost(trail, death) if event.action != "sync"]
    for event in lost:
        left_out = len({at_s for at_s, tag in rounds if tag > event.tag})
        verdict.worst_left_out = max(verdict.worst_left_out, left_out)
        if left_out > 1:
            what = f"{event} was lost in {death}, and left out of {left_out} commits of newer ones"
            verdict.violations.append(Violation("left out", event.key, what))
