"""Decisions about one partition: ``step(manager, event, now) -> effects``.

A step changes its manager's record alone and returns what else has to be done; it uses no
clock, actor or Kafka.  ``TRANSITIONS`` has the whole life of a manager::

    FETCHING ──Read──► READY ──Unknown──► IN_DOUBT ──Read──► READY
    any phase, closed ──nothing left to commit, a refusal for good, Expired──► STOPPED

Rules:

- The outcome of a commit is committed, refused or unknown; after an unknown outcome the partition
  is read before it is written again.
- A refused partition backs off alone, in reads as in commits.  A permanent refusal suspends it
  until the next submit or flush: it stays dirty.
- Every read is compared with the commits in doubt.  One that landed behind a newer commit is
  corrected; an external change is reported and followed.
- Unchanged offsets are read and committed again before the broker's retention expires them.
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final

from offsetmgr.codes import OFFSET_CHANGED, TOPIC_DELETED, TOPIC_RECREATED, error_info
from offsetmgr.coordinator.base import Failure
from offsetmgr.errors import OffsetFetchError, Scope
from offsetmgr.manager.events import (
    PUBLISH_COMMITTED,
    PUBLISH_END,
    PUBLISH_INITIAL,
    AnswerFlushes,
    Committed,
    Effects,
    Event,
    Expired,
    FlushAsked,
    LogRead,
    Read,
    ReadFailed,
    Recreated,
    Refused,
    Unknown,
)
from offsetmgr.manager.log_steps import (
    check_log,
    drop_former,
    learn_topic,
    log_read,
    names_another_topic,
    not_committed,
    notice,
    recreate,
    same,
    stopped_recreated,
)
from offsetmgr.manager.offset_manager import Phase, Version
from offsetmgr.types import OffsetAndMetadata, StopResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from offsetmgr.manager.offset_manager import OffsetManager

_SHOWN_CHARS: Final = 40


def step(manager: OffsetManager, event: Event, now: float) -> Effects:
    """Change the record by ``event`` and return what to do; the group's lock must be held."""
    effects = TRANSITIONS[manager.phase][type(event)](manager, event, now)
    if manager.closed and manager.phase is not Phase.STOPPED:
        effects += _end(manager, now)
    return effects


def next_version(manager: OffsetManager, now: float) -> Version | Effects:
    """Return what to commit; where that needs no request, the effects of finding out.

    The group's lock must be held.
    """
    last = manager.committed
    if manager.recommit and last is not None:
        return last
    version = manager.version()
    if version is None or version.number <= manager.settled:
        manager.commit_at = inf
        return []
    rewinds = manager.rewind_number > 0
    if manager.former is not None or manager.named_topic_id:
        effects = check_log(manager, version, now)
        if effects is not None:
            return effects + _end(manager, now)
    if last is not None and last.value == version.value and not manager.in_doubt:
        manager.external = manager.external and not rewinds
        return _mark_committed(manager, version, now) + _end(manager, now)
    if manager.external and not rewinds:
        refusal = _external_refusal(manager, version.value.offset)
        if refusal is not None:
            return _refused(manager, Refused(version, refusal), now)
    return version


def _end(manager: OffsetManager, now: float) -> Effects:
    return [] if manager.dirty or not manager.closed else _stop(manager, now)


# Reads.


class _Reading(Enum):
    """The result of comparing a committed offset with the record."""

    STANDS = "stands"
    """It is what was committed last."""
    OLDER = "older"
    """A commit in doubt has landed behind a newer one."""
    NEWER = "newer"
    """A commit in doubt has landed after all, and nothing newer is committed."""
    STRAY = "stray"
    """A commit of the former log has landed in the new one, where nothing newer is committed."""
    EXTERNAL = "external"
    """Somebody else committed it, or it expired."""


def _judge(
    manager: OffsetManager, found: OffsetAndMetadata | None
) -> tuple[_Reading, Version | None]:
    """Compare an offset that was read; return the version if it is one of the record."""
    last = manager.committed
    if last is not None and same(last.value, found):
        return _Reading.STANDS, last
    landed = [version for version in manager.in_doubt if same(version.value, found)]
    if not landed:
        return _Reading.EXTERNAL, None
    # A commit that was given up before an external change is older than that.
    if last is not None and (manager.external or landed[-1].number < last.number):
        return _Reading.OLDER, landed[-1]
    is_stray = landed[-1] in manager.former_commits
    return (_Reading.STRAY if is_stray else _Reading.NEWER), landed[-1]


def _begin(manager: OffsetManager, event: Read, now: float) -> Effects:
    """Compare what is committed with what was submitted meanwhile."""
    first = not manager.initial.done()
    learn_topic(manager, event)
    effects = _begin_committed(manager, event, now)
    if first:
        if names_another_topic(manager):
            effects += drop_former(manager, manager.version())
        else:
            manager.establish(manager.acknowledged)
        effects.append(PUBLISH_INITIAL)
    if not manager.dirty:
        return effects + _begin_clean(manager, now, first=first)
    manager.commit_at, manager.recommit = min(manager.commit_at, manager.due_at(now)), False
    if first or isinstance(manager.last_error, OffsetFetchError):
        manager.last_error = None
    return effects


def _begin_committed(manager: OffsetManager, event: Read, now: float) -> Effects:
    """Enter what is committed, at the start or after a failure."""
    first, last, found = not manager.initial.done(), manager.committed, event.found
    reading, version = _judge(manager, found)
    manager.await_landing(now)
    manager.can_be_read()
    if reading is _Reading.EXTERNAL and last is not None and not first:
        return _follow(manager, event, now)
    if reading is _Reading.OLDER and last is not None:
        _correct(manager, last, now)
        found = last.value
    elif reading is _Reading.STRAY:
        manager.replace_stray(now)
        found = None  # as it is of the former log
    elif found is None:
        manager.drop_committed()
    elif version is None:
        manager.committed = Version(0, found)
        manager.recommit_at = now + manager.group.timing.recommit_soon_s
    elif reading is not _Reading.STANDS:
        _landed(manager, version, now)
    manager.acknowledged = found
    return []


def _landed(manager: OffsetManager, version: Version, now: float) -> None:
    """Enter that a commit in doubt stands after all, maybe one of the manager before."""
    manager.set_committed(version, now)
    if not manager.number:
        manager.acknowledged = version.value
        manager.establish(version.value)


def _begin_clean(manager: OffsetManager, now: float, *, first: bool) -> Effects:
    """Begin with nothing to commit: nothing was submitted, the same, or a dropped regression."""
    result = manager.result_if_clean()
    effects: Effects = []
    if first and manager.settled and result.error is None and manager.acknowledged is not None:
        # The same was submitted: whoever did waits for it.
        manager.acknowledged_at = now
        effects.append(PUBLISH_COMMITTED)
    manager.last_error = result.error
    if first and result.error is not None:
        effects.append(result.error)
    return [*effects, AnswerFlushes(inf, result)]


def _read_in_doubt(manager: OffsetManager, event: Read, now: float) -> Effects:
    """Find out whether the commit with the unknown outcome has landed."""
    version, last, found = manager.in_doubt[-1], manager.committed, event.found
    learn_topic(manager, event)
    manager.can_be_read()
    effects: Effects = []
    if same(version.value, found):
        if last is None or not same(last.value, version.value):
            # One copy: another request that carried it may land yet.  Where the same was committed
            # before, it proves nothing.
            left = list(manager.in_doubt)
            left.remove(version)
            manager.keep_in_doubt(tuple(left))
        effects = _committed(manager, Committed(version), now)
    elif manager.recommit:
        # It was to be committed again because it stood; now something else may.
        manager.recommit, manager.commit_at = False, inf
        effects = _verify(manager, event, now)
    elif last is not None and _judge(manager, found)[0] is _Reading.EXTERNAL:
        effects = _follow(manager, event, now)
    manager.await_landing(now)
    return effects


def _verify(manager: OffsetManager, event: Read, now: float) -> Effects:
    """Compare what is committed with what should be."""
    is_old, last, found = manager.recommit_at <= now, manager.committed, event.found
    stopped = manager.phase is Phase.STOPPED
    manager.was_read()
    learn_topic(manager, event)
    reading, version = _judge(manager, found)
    if reading is _Reading.OLDER:
        manager.await_landing(now)  # the correction may fail, so it is verified as well
    else:
        manager.verified(now, again=manager.group.timing.verify_interval_s > 0 and not stopped)
    if reading is _Reading.NEWER and version is not None:
        if manager.number == version.number and not stopped:
            return _committed(manager, Committed(version), now)
        _landed(manager, version, now)
    elif reading is _Reading.STRAY:
        manager.replace_stray(now)
    elif last is None or (reading is _Reading.EXTERNAL and stopped):
        _leave(manager, None if last is None else found)
    elif reading is _Reading.EXTERNAL:
        return _follow(manager, event, now)
    elif reading is _Reading.OLDER or is_old:
        # Entered as if it were new: until it is committed again nobody needs to look.
        manager.set_committed(last, now)
        if reading is _Reading.OLDER:
            _correct(manager, last, now)
        elif not stopped:
            manager.commit_again(now)
    return []


def _leave(manager: OffsetManager, theirs: OffsetAndMetadata | None) -> None:
    """Leave what somebody else has committed; put it back if a commit in doubt lands over it."""
    manager.drop_committed()
    if theirs is not None:
        manager.committed, manager.external = Version(manager.settled + 1, theirs), True


def _follow(manager: OffsetManager, event: Read, now: float) -> Effects:
    """Report that somebody else committed over the last version, and follow that."""
    last, found = manager.committed, event.found
    if found is None and event.topic_exists and manager.topic_id and not manager.missing:
        # The topic may have been deleted since its id was read: the next read tells.
        manager.missing, manager.read_at = True, now
        return []
    manager.missing = False
    if not event.topic_exists:
        failure = Failure(error_info(TOPIC_DELETED))
    elif found is None:
        failure = _external_change("nothing is committed any more")
    else:
        metadata = found.metadata[:_SHOWN_CHARS]
        with_metadata = f" with metadata {metadata!r}" if metadata else ""
        failure = _external_change(f"it is {found.offset}{with_metadata} now")
    manager.external = True
    if manager.recommit:
        manager.recommit, manager.commit_at = False, inf
    manager.drop_committed()
    manager.follow(found)
    if found is not None:
        # Newer than what was committed here, not than what waits: that stays dirty.
        manager.set_committed(Version(manager.settled, found), now)
    manager.acknowledged = found
    return [notice(manager, last, failure)]


def _external_change(change: str) -> Failure:
    why = f"somebody else changed it: {change}; lower offsets are refused but for a rewind()"
    return Failure(error_info(OFFSET_CHANGED), why)


def _correct(manager: OffsetManager, last: Version, now: float) -> None:
    """Commit ``last`` again, as a commit in doubt has landed behind it."""
    if manager.commit_at == inf:
        manager.recommit = True
    manager.commit_at = min(manager.commit_at, now)
    if manager.phase is Phase.STOPPED:
        return
    if manager.external:
        newest = manager.version() if manager.dirty else None
        manager.recommit = newest is None or (
            not manager.rewind_number
            and _external_refusal(manager, newest.value.offset) is not None
        )
    elif manager.version() == last and last.number <= manager.settled:
        # Dirty again, as it is not committed any more; not so for the start of a recreated log.
        manager.settled, manager.queued = last.number - 1, True
        manager.drop_committed()
        manager.recommit = False


def _fetch_failed(manager: OffsetManager, event: ReadFailed, now: float) -> Effects:
    """Try again, for as long as it takes; reported once, until something else happens."""
    failure = event.failure
    error = OffsetFetchError(*manager.key, None, failure.info, failure.detail)
    reported = manager.last_error is not None and manager.last_error.code == error.code
    manager.last_error = error
    _back_off_read(manager, failure, now)
    _not_read(manager, event, now)
    return [] if reported else [error]


def _read_failed(manager: OffsetManager, event: ReadFailed, now: float) -> Effects:
    """Put off a verification; a read that must precede the next commit is tried again."""
    failed = _not_read if manager.read_at == inf else _fetch_failed
    return failed(manager, event, now)


def _still_in_doubt(manager: OffsetManager, event: ReadFailed, now: float) -> Effects:
    """Read again; where that is refused for good, the outcome counts as refused."""
    if event.failure.info.retriable:
        _back_off_read(manager, event.failure, now)
        if event.failure.info.scope is Scope.PARTITION:
            manager.recommit_soon(now)
        return []
    manager.can_be_read()
    effects = _refused(manager, Refused(manager.in_doubt[-1], event.failure), now)
    return effects + _not_read(manager, event, now)


def _not_read(manager: OffsetManager, event: ReadFailed, now: float) -> Effects:
    """Put off what the read was for."""
    if event.failure.info.scope is Scope.PARTITION:
        manager.recommit_soon(now)
        manager.await_landing(now)
    return []


def _stopped_not_read(manager: OffsetManager, event: ReadFailed, now: float) -> Effects:
    """Give up where the read is refused for good: no user is left for whom to try endlessly."""
    if not event.failure.info.retriable:
        manager.read_at = inf
        effects = _give_up(manager, event.failure) if manager.in_doubt else []
        manager.verified(now, again=False)
        return effects
    if manager.read_at < inf:
        _back_off_read(manager, event.failure, now)
    return _not_read(manager, event, now)


def _give_up(manager: OffsetManager, failure: Failure) -> Effects:
    """Report that nobody puts the last offset back, if an older commit has landed over it."""
    why = f"an older commit may have landed over it: {failure.reason}"
    return [notice(manager, manager.committed, Failure(failure.info, why))]


def _back_off_read(manager: OffsetManager, failure: Failure, now: float) -> None:
    if failure.info.scope is Scope.PARTITION:
        manager.read_failures += 1
        manager.read_at = now + manager.group.timing.backoff_s(manager.read_failures)


# Commits.


def _committed(manager: OffsetManager, event: Committed, now: float) -> Effects:
    """Enter that the coordinator has a version of this manager."""
    version, last = event.version, manager.committed
    manager.committed = version
    if last != version:  # else somebody else's, committed again
        manager.external = False
    manager.recommit_at = now + manager.group.timing.recommit_s
    if version.number and (last is None or not last.number):
        # Burrow misses a partition whose only commit came before it knew the topic.
        manager.recommit_soon(now)
    return _mark_committed(manager, version, now)


def _mark_committed(manager: OffsetManager, version: Version, now: float) -> Effects:
    """Enter that nothing older than ``version`` needs to be committed, and publish it."""
    clean = manager.settle(version.number)
    waits = manager.commit_at < inf and not manager.recommit
    manager.commit_at, manager.commit_failures, manager.recommit = inf, 0, False
    if not clean and (waits or manager.awaited):
        # What is newer waits for an interval of its own, unless a caller waits for it.
        manager.commit_at = manager.due_at(now)
    if version.number >= manager.error_number:
        manager.last_error, manager.error_number = None, 0
    manager.acknowledged, manager.acknowledged_at = version.value, now
    return [PUBLISH_COMMITTED]


def _refused(manager: OffsetManager, event: Refused, now: float) -> Effects:
    """Back off, or suspend the partition where it is refused for good."""
    version, failure = event
    if failure.info.code == TOPIC_RECREATED:
        manager.commit_at = manager.read_at = now  # the read tells more, and reports it
        return []
    if failure.info.retriable:
        manager.commit_at = now
        if failure.info.scope is Scope.PARTITION:
            manager.commit_failures += 1
            manager.commit_at += manager.group.timing.backoff_s(manager.commit_failures)
        return not_committed(manager, version, failure)
    waited, recommit = manager.commit_at < inf, manager.recommit
    manager.commit_at, manager.commit_failures, manager.recommit = inf, 0, False
    suspended = manager.number <= version.number
    manager.queued = manager.queued and not suspended
    if recommit and manager.committed is not None:
        # Not looped: its turn comes with the next verification.
        manager.set_committed(manager.committed, now)
    elif waited and not suspended:
        # What is newer may fare no better: not at once, over and over.
        manager.commit_at = manager.due_at(now)
    effects = not_committed(manager, version, failure)
    if suspended:
        error = manager.last_error
        effects.append(
            AnswerFlushes(version.number, StopResult(manager.acknowledged, version.value, error))
        )
        if manager.closed:
            effects += _stop(manager, now)
    return effects


def _unknown(manager: OffsetManager, event: Unknown, now: float) -> Effects:
    """Read the partition before it is committed again."""
    manager.enter_doubt(event.version, now)
    manager.phase, manager.read_at = Phase.IN_DOUBT, now
    manager.commit_at = now
    return not_committed(manager, event.version, event.failure)


def _stopped_committed(manager: OffsetManager, event: Committed, now: float) -> Effects:
    manager.recommit, manager.commit_at, manager.commit_failures = False, inf, 0
    manager.set_committed(event.version, now)
    return []


def _stopped_refused(manager: OffsetManager, event: Refused, now: float) -> Effects:
    """Try a correction again, unless it is refused for good."""
    if not manager.recommit:
        return []
    if event.failure.info.retriable:
        _refused(manager, event, now)
        return []
    manager.recommit, manager.commit_at = False, inf
    manager.keep_in_doubt(())
    return _give_up(manager, event.failure)


def _stopped_unknown(manager: OffsetManager, event: Unknown, now: float) -> Effects:
    """Verify once more what may still land; a correction is read back at once."""
    manager.enter_doubt(event.version, now)
    if manager.recommit:
        manager.recommit, manager.commit_at, manager.read_at = False, inf, now
    manager.await_landing(now)
    return []


# Callers.


def _flush(manager: OffsetManager, event: FlushAsked, now: float) -> Effects:
    """Try at once, also what was refused for good."""
    if event.waiter is not None:
        flush = manager.number, event.waiter
        if manager.flushes:
            # Expired ones must not pile up while the coordinator is away.
            waiting = [each for each in manager.flushes if each[1].deadline_s > now]
            manager.flushes = (*waiting, flush)
        else:
            manager.flushes = (flush,)
    if manager.number <= manager.settled:
        return [AnswerFlushes(inf, manager.result_if_clean())]
    manager.read_failures = manager.commit_failures = 0
    if manager.read_at < inf:
        manager.read_at = now
    if manager.look_at < inf:
        manager.look_at = now
    manager.commit_at, manager.recommit = now, False
    return []


def _answer(manager: OffsetManager, event: FlushAsked, _now: float) -> Effects:
    if event.waiter is not None:
        manager.flushes = ((manager.number, event.waiter),)
    return [AnswerFlushes(inf, manager.result_after(None))]


def _expired(manager: OffsetManager, _event: Expired, now: float) -> Effects:
    """Stop now, unless another stop gives more time."""
    if any(waiter.deadline_s > now for waiter in manager.stops):
        return []
    return _stop(manager, now)


def _stop(manager: OffsetManager, now: float) -> Effects:
    if manager.committed is None and manager.acknowledged is not None:
        # To be committed again, as an older one has landed behind it: a verification does that.
        manager.committed = Version(manager.settled + 1, manager.acknowledged)
    manager.phase = Phase.STOPPED
    manager.commit_at = manager.read_at = manager.look_at = manager.recommit_at = inf
    manager.recommit = manager.external = manager.stray = False
    manager.await_landing(now)
    return [PUBLISH_END]


def _ignore(_manager: OffsetManager, _event: Event, _now: float) -> Effects:
    return []


# What is committed.


def _external_refusal(manager: OffsetManager, offset: int) -> Failure | None:
    """Return why ``offset`` may not go over an external change; None where it may."""
    last = manager.committed
    if not manager.external or last is None or last.value.offset <= offset:
        return None
    why = f"somebody else committed {last.value.offset}, which is higher; rewind() to go back"
    return Failure(error_info(OFFSET_CHANGED), why)


_LIVE: Final[Mapping[type[Event], Callable[..., Effects]]] = {
    Recreated: recreate,
    Committed: _committed,
    Refused: _refused,
    Unknown: _unknown,
    FlushAsked: _flush,
    Expired: _expired,
    LogRead: log_read,
}

TRANSITIONS: Final[Mapping[Phase, Mapping[type[Event], Callable[..., Effects]]]] = {
    Phase.FETCHING: {Read: _begin, ReadFailed: _fetch_failed, **_LIVE},
    Phase.READY: {Read: _verify, ReadFailed: _read_failed, **_LIVE},
    Phase.IN_DOUBT: {Read: _read_in_doubt, ReadFailed: _still_in_doubt, **_LIVE},
    Phase.STOPPED: {
        Read: _verify,
        Recreated: stopped_recreated,
        ReadFailed: _stopped_not_read,
        Committed: _stopped_committed,
        Refused: _stopped_refused,
        Unknown: _stopped_unknown,
        FlushAsked: _answer,
        Expired: _ignore,
        LogRead: log_read,
    },
}
