"""Decisions about one partition: ``step(manager, event, now, timing) -> effects``.

A step changes its manager's record alone and returns what has to be done beside that; it uses no
clock, actor or Kafka.  ``TRANSITIONS`` has the whole life of a manager::

    FETCHING ──Read──► READY ──Unknown──► IN_DOUBT ──Read──► READY
    any phase ──StopAsked with nothing to commit, the last commit or refusal, Expired──► STOPPED

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

from offsetmgr.codes import (
    OFFSET_CHANGED,
    OFFSET_OUTSIDE_LOG,
    TOPIC_DELETED,
    TOPIC_RECREATED,
    UNKNOWN_TOPIC,
    error_info,
)
from offsetmgr.coordinator.base import Failure
from offsetmgr.coordinator.logs import recreated
from offsetmgr.errors import (
    CoordinatorError,
    OffsetCommitError,
    OffsetFetchError,
    OffsetManagerError,
    OffsetNoticeError,
    Scope,
)
from offsetmgr.manager.events import (
    AnswerFlushes,
    Committed,
    Effects,
    Event,
    Expired,
    Finish,
    FlushAsked,
    LogRead,
    PublishCommitted,
    PublishError,
    PublishInitial,
    Read,
    ReadFailed,
    Recreated,
    Refused,
    StopAsked,
    Unknown,
)
from offsetmgr.manager.offset_manager import Phase, Version
from offsetmgr.types import OffsetAndMetadata, StopResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from offsetmgr.manager.events import Timing
    from offsetmgr.manager.offset_manager import OffsetManager

IN_DOUBT_LIMIT: Final = 16
"""Limit of the commits in doubt per partition; a read follows each, so there are rarely many."""

LATEST_LANDING_S: Final = 900.0
"""Time in which a commit in doubt may still land: a host may go on sending for a connection that
was given up."""

_SHOWN_CHARS: Final = 40


def step(manager: OffsetManager, event: Event, now: float, timing: Timing) -> Effects:
    """Change the record by ``event`` and return what to do, in order."""
    effects = TRANSITIONS[manager.phase][type(event)](manager, event, now, timing)
    if manager.closed and manager.phase is not Phase.STOPPED:
        effects += _end(manager, now, timing)
    return effects


def next_version(
    manager: OffsetManager, now: float, timing: Timing
) -> tuple[Version | None, Effects]:
    """Return what to commit, or None if that needs no request, with the effects of finding out."""
    if manager.recommit:
        return manager.committed, []
    with manager.group.lock:
        version = manager.version() if manager.number > manager.settled else None
        rewinds = manager.rewind_number > 0
    if version is None:
        manager.commit_at = inf
        return None, []
    effects = _without_request(manager, version, now, timing, rewinds=rewinds)
    if effects is None:
        return version, []
    return None, [*effects, *_end(manager, now, timing)]


def _without_request(
    manager: OffsetManager, version: Version, now: float, timing: Timing, *, rewinds: bool
) -> Effects | None:
    """Return the effects of a version that is not committed now; None if it is to be."""
    if manager.former is not None or manager.named_topic_id:
        is_former = _is_of_former_log(manager, version)
        if is_former is None:
            manager.look_at = now
            return []
        if is_former:
            return _drop_former(manager, version)
        manager.former, manager.stray = None, False
    last = manager.committed
    if last is not None and last.value == version.value and not manager.in_doubt:
        manager.external = manager.external and not rewinds
        return _mark_committed(manager, version, now, timing)
    if manager.external and not rewinds:
        refusal = _external_refusal(manager, version.value.offset)
        return (
            None if refusal is None else _refused(manager, Refused(version, refusal), now, timing)
        )
    return None


def _end(manager: OffsetManager, now: float, timing: Timing) -> Effects:
    return [] if manager.dirty or not manager.closed else _stop(manager, now, timing)


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


def same(sent: OffsetAndMetadata, found: OffsetAndMetadata | None) -> bool:
    """Return True if ``found`` is what was sent; a leader epoch that one side lacks is ignored."""
    if found is None or sent[:2] != found[:2]:
        return False
    return None in {sent.leader_epoch, found.leader_epoch} or sent == found


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
    is_stray = landed[-1].number <= manager.former_number
    return (_Reading.STRAY if is_stray else _Reading.NEWER), landed[-1]


def _begin(manager: OffsetManager, event: Read, now: float, timing: Timing) -> Effects:
    """Compare what is committed with what was submitted meanwhile."""
    first = not manager.initial.done()
    _learn_topic(manager, event)
    effects = _begin_committed(manager, event, now, timing)
    if first:
        if _names_another_topic(manager):
            effects += _drop_former(manager, manager.newest)
        else:
            manager.establish(manager.acknowledged)
        effects.append(PublishInitial(manager.acknowledged))
    if not manager.dirty:
        return effects + _begin_clean(manager, now, first=first)
    at = now if manager.awaited else now + timing.commit_interval_s
    manager.commit_at, manager.recommit = min(manager.commit_at, at), False
    if first or isinstance(manager.last_error, OffsetFetchError):
        manager.last_error = None
    return effects


def _begin_committed(manager: OffsetManager, event: Read, now: float, timing: Timing) -> Effects:
    """Enter what is committed, at the start or after a failure."""
    first, last, found = not manager.initial.done(), manager.committed, event.found
    reading, version = _judge(manager, found)
    _await_landing(manager, now, timing)
    _can_be_read(manager)
    if reading is _Reading.EXTERNAL and last is not None and not first:
        return _follow(manager, event, now, timing)
    if reading is _Reading.OLDER and last is not None:
        _correct(manager, last, now)
        found = last.value
    elif reading is _Reading.STRAY:
        _replace_stray(manager, now)
    elif found is None:
        _drop_committed(manager)
    elif version is None:
        manager.committed = Version(0, found)
        manager.recommit_at = now + timing.recommit_soon_s
    elif reading is not _Reading.STANDS:
        _set_committed(manager, version, now, timing)
    manager.acknowledged = found
    return []


def _begin_clean(manager: OffsetManager, now: float, *, first: bool) -> Effects:
    """Begin with nothing to commit: nothing was submitted, the same, or a dropped regression."""
    result = manager.result_if_clean()
    effects: Effects = []
    if first and manager.settled and result.error is None and manager.acknowledged is not None:
        # The same was submitted: whoever did waits for it.
        effects += _acknowledge(manager, manager.acknowledged, now)
    manager.last_error = result.error
    if first and result.error is not None:
        effects.append(PublishError(result.error))
    return [*effects, AnswerFlushes(inf, result)]


def _can_be_read(manager: OffsetManager) -> None:
    manager.phase, manager.read_at, manager.read_failures = Phase.READY, inf, 0


def _read_in_doubt(manager: OffsetManager, event: Read, now: float, timing: Timing) -> Effects:
    """Find out whether the commit with the unknown outcome has landed."""
    version, last, found = manager.in_doubt[-1], manager.committed, event.found
    _learn_topic(manager, event)
    _can_be_read(manager)
    effects: Effects = []
    if same(version.value, found):
        if last is None or not same(last.value, version.value):
            # One copy: another request that carried it may land yet.  Where the same was committed
            # before, it proves nothing.
            left = list(manager.in_doubt)
            left.remove(version)
            _keep_in_doubt(manager, tuple(left))
        effects = _committed(manager, Committed(version), now, timing)
    elif manager.recommit:
        # It was to be committed again because it stood; now something else may.
        manager.recommit, manager.commit_at = False, inf
        effects = _verify(manager, event, now, timing)
    elif last is not None and _judge(manager, found)[0] is _Reading.EXTERNAL:
        effects = _follow(manager, event, now, timing)
    _await_landing(manager, now, timing)
    return effects


def _verify(manager: OffsetManager, event: Read, now: float, timing: Timing) -> Effects:
    """Compare what is committed with what should be."""
    is_old, last, found = manager.recommit_at <= now, manager.committed, event.found
    stopped, manager.read_at = manager.phase is Phase.STOPPED, inf
    _learn_topic(manager, event)
    reading, version = _judge(manager, found)
    if stopped and reading is _Reading.OLDER:
        _await_landing(manager, now, timing)  # the correction may fail, so it is verified as well
    else:
        _verified(manager, now, again=timing.verify_interval_s > 0 and not stopped)
    if reading is _Reading.NEWER and version is not None:
        if manager.number == version.number and not stopped:
            return _committed(manager, Committed(version), now, timing)
        _set_committed(manager, version, now, timing)
    elif reading is _Reading.STRAY:
        _replace_stray(manager, now)
    elif last is None or (reading is _Reading.EXTERNAL and stopped):
        _drop_committed(manager)
    elif reading is _Reading.EXTERNAL:
        return _follow(manager, event, now, timing)
    elif reading is _Reading.OLDER or is_old:
        # Entered as if it were new: until it is committed again nobody needs to look.
        _set_committed(manager, last, now, timing)
        if reading is _Reading.OLDER:
            _correct(manager, last, now)
        elif not stopped:
            _commit_again(manager, now)
    return []


def _follow(manager: OffsetManager, event: Read, now: float, timing: Timing) -> Effects:
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
    _drop_committed(manager)
    manager.follow(found)
    if found is not None:
        # Newer than what was committed here, not than what waits: that stays dirty.
        _set_committed(manager, Version(manager.settled, found), now, timing)
    manager.acknowledged = found
    return [_notice(manager, last, failure)]


def _external_change(change: str) -> Failure:
    why = f"somebody else changed it: {change}; lower offsets are refused but for a rewind()"
    return Failure(error_info(OFFSET_CHANGED), why)


def _notice(manager: OffsetManager, before: Version | None, failure: Failure) -> PublishError:
    offset = None if before is None else before.value.offset
    return PublishError(OffsetNoticeError(*manager.key, offset, failure.info, failure.detail))


def _commit_again(manager: OffsetManager, now: float) -> None:
    """Commit the last version again, unless something newer is to be committed anyway."""
    if manager.commit_at == inf:
        manager.recommit, manager.commit_at = True, now


def _correct(manager: OffsetManager, last: Version, now: float) -> None:
    """Commit ``last`` again, as a commit in doubt has landed behind it."""
    if manager.commit_at == inf:
        manager.recommit = True
    manager.commit_at = min(manager.commit_at, now)
    if manager.phase is Phase.STOPPED:
        return
    if manager.external:
        newest = manager.newest if manager.dirty else None
        manager.recommit = newest is None or (
            not manager.rewind_number
            and _external_refusal(manager, newest.value.offset) is not None
        )
    elif manager.resubmit(last.number):
        _drop_committed(manager)
        manager.recommit = False


def _fetch_failed(manager: OffsetManager, event: ReadFailed, now: float, timing: Timing) -> Effects:
    """Try again, for as long as it takes; reported once, until something else happens."""
    failure = event.failure
    error = OffsetFetchError(*manager.key, None, failure.info, failure.detail)
    reported = manager.last_error is not None and manager.last_error.code == error.code
    manager.last_error = error
    _back_off_read(manager, failure, now, timing)
    _not_read(manager, event, now, timing)
    return [] if reported else [PublishError(error)]


def _still_in_doubt(
    manager: OffsetManager, event: ReadFailed, now: float, timing: Timing
) -> Effects:
    """Read again; where that is refused for good, the outcome counts as refused."""
    if event.failure.info.retriable:
        _back_off_read(manager, event.failure, now, timing)
        if event.failure.info.scope is Scope.PARTITION:
            _recommit_soon(manager, now, timing)
        return []
    _can_be_read(manager)
    effects = _refused(manager, Refused(manager.in_doubt[-1], event.failure), now, timing)
    return effects + _not_read(manager, event, now, timing)


def _not_read(manager: OffsetManager, event: ReadFailed, now: float, timing: Timing) -> Effects:
    """Put off what the read was for."""
    if event.failure.info.scope is Scope.PARTITION:
        _recommit_soon(manager, now, timing)
        _await_landing(manager, now, timing)
    return []


def _stopped_not_read(
    manager: OffsetManager, event: ReadFailed, now: float, timing: Timing
) -> Effects:
    """Give up where the read is refused for good: no user is left for whom to try endlessly."""
    if not event.failure.info.retriable:
        manager.read_at = inf
        _verified(manager, now, again=False)
        return []
    if manager.read_at < inf:
        _back_off_read(manager, event.failure, now, timing)
    return _not_read(manager, event, now, timing)


def _back_off_read(manager: OffsetManager, failure: Failure, now: float, timing: Timing) -> None:
    if failure.info.scope is Scope.PARTITION:
        manager.read_failures += 1
        manager.read_at = now + timing.backoff_s(manager.read_failures)


# Commits.


def _committed(manager: OffsetManager, event: Committed, now: float, timing: Timing) -> Effects:
    """Enter that the coordinator has a version of this manager."""
    version, last = event.version, manager.committed
    manager.committed = version
    if last != version:  # else somebody else's, committed again
        manager.external = False
    manager.recommit_at = now + timing.recommit_s
    if version.number and (last is None or not last.number):
        # Burrow misses a partition whose only commit came before it knew the topic.
        _recommit_soon(manager, now, timing)
    return _mark_committed(manager, version, now, timing)


def _mark_committed(
    manager: OffsetManager, version: Version, now: float, timing: Timing
) -> Effects:
    """Enter that nothing older than ``version`` needs to be committed, and publish it."""
    clean = manager.settle(version.number)
    waits = manager.commit_at < inf and not manager.recommit
    manager.commit_at, manager.commit_failures, manager.recommit = inf, 0, False
    if not clean and (waits or manager.awaited):
        # What is newer waits for an interval of its own, unless a caller waits for it.
        manager.commit_at = now if manager.awaited else now + timing.commit_interval_s
    if version.number >= manager.error_number:
        manager.last_error, manager.error_number = None, 0
    effects = _acknowledge(manager, version.value, now)
    if manager.flushes:
        effects.append(AnswerFlushes(manager.settled, StopResult(version.value)))
    return effects


def _acknowledge(manager: OffsetManager, committed: OffsetAndMetadata, now: float) -> Effects:
    manager.acknowledged, manager.acknowledged_at = committed, now
    return [PublishCommitted(committed)]


def _refused(manager: OffsetManager, event: Refused, now: float, timing: Timing) -> Effects:
    """Back off, or suspend the partition where it is refused for good."""
    version, failure = event
    if failure.info.code == TOPIC_RECREATED:
        manager.commit_at = manager.read_at = now  # the read tells more, and reports it
        return []
    if failure.info.code == UNKNOWN_TOPIC:
        manager.absent_number = version.number
    if failure.info.retriable:
        manager.commit_at = now
        if failure.info.scope is Scope.PARTITION:
            manager.commit_failures += 1
            manager.commit_at += timing.backoff_s(manager.commit_failures)
        return _failed(manager, version, failure)
    waited, recommit = manager.commit_at < inf, manager.recommit
    manager.commit_at, manager.commit_failures, manager.recommit = inf, 0, False
    suspended = manager.suspend(version.number)
    if recommit and manager.committed is not None:
        # Not looped: its turn comes with the next verification.
        _set_committed(manager, manager.committed, now, timing)
    elif waited and not suspended:
        # What is newer may fare no better: not at once, over and over.
        manager.commit_at = now if manager.awaited else now + timing.commit_interval_s
    effects = _failed(manager, version, failure)
    if suspended:
        error = manager.last_error
        effects.append(
            AnswerFlushes(version.number, StopResult(manager.acknowledged, version.value, error))
        )
        if manager.closed:
            effects += _stop(manager, now, timing)
    return effects


def _failed(manager: OffsetManager, version: Version, failure: Failure) -> Effects:
    error = OffsetCommitError(*manager.key, version.value.offset, failure.info, failure.detail)
    if version.number >= manager.error_number:
        manager.last_error, manager.error_number = error, version.number
    return [PublishError(error)]


def _unknown(manager: OffsetManager, event: Unknown, now: float, _timing: Timing) -> Effects:
    """Read the partition before it is committed again."""
    _doubt(manager, event.version, now)
    manager.phase, manager.read_at = Phase.IN_DOUBT, now
    manager.commit_at = now
    return _failed(manager, event.version, event.failure)


def _stopped_recreated(
    manager: OffsetManager, event: Recreated, now: float, timing: Timing
) -> Effects:
    """Replace an offset of the former log that landed in the new one."""
    ours = any(same(version.value, event.found) for version in manager.in_doubt)
    manager.topic_id, manager.read_at = event.topic_id, inf
    _drop_committed(manager)
    _verified(manager, now, again=False)
    if ours:
        _replace_stray(manager, now)
        _await_landing(manager, now, timing)
    return []


def _stopped_committed(
    manager: OffsetManager, event: Committed, now: float, timing: Timing
) -> Effects:
    manager.recommit, manager.commit_at, manager.commit_failures = False, inf, 0
    _set_committed(manager, event.version, now, timing)
    return []


def _stopped_refused(manager: OffsetManager, event: Refused, now: float, timing: Timing) -> Effects:
    """Try a correction again, unless it is refused for good."""
    if not manager.recommit:
        return []
    if event.failure.info.retriable:
        _refused(manager, event, now, timing)
    else:
        manager.recommit, manager.commit_at = False, inf
        _keep_in_doubt(manager, ())
    return []


def _stopped_unknown(manager: OffsetManager, event: Unknown, now: float, timing: Timing) -> Effects:
    """Verify once more what may still land; a correction is read back at once."""
    _doubt(manager, event.version, now)
    if manager.recommit:
        manager.recommit, manager.commit_at, manager.read_at = False, inf, now
    _await_landing(manager, now, timing)
    return []


# Callers.


def _flush(manager: OffsetManager, _event: FlushAsked, now: float, _timing: Timing) -> Effects:
    """Try at once, also what was refused for good."""
    if not manager.dirty:
        return [AnswerFlushes(inf, manager.result_if_clean())]
    manager.read_failures = manager.commit_failures = 0
    if manager.read_at < inf:
        manager.read_at = now
    if manager.look_at < inf:
        manager.look_at = now
    manager.commit_at, manager.recommit = now, False
    return []


def _answer(manager: OffsetManager, _event: Event, _now: float, _timing: Timing) -> Effects:
    return [AnswerFlushes(inf, manager.result_after(None))]


def _expired(manager: OffsetManager, _event: Expired, now: float, timing: Timing) -> Effects:
    """Stop now, unless another stop gives more time."""
    if any(waiter.deadline_s > now for waiter in manager.stops):
        return []
    return _stop(manager, now, timing)


def _stop(manager: OffsetManager, now: float, timing: Timing) -> Effects:
    manager.phase = Phase.STOPPED
    manager.commit_at = manager.read_at = manager.look_at = manager.recommit_at = inf
    manager.recommit = manager.external = manager.stray = False
    _await_landing(manager, now, timing)
    return [Finish()]


def _ignore(_manager: OffsetManager, _event: Event, _now: float, _timing: Timing) -> Effects:
    return []


# Commits in doubt.


def doubt(manager: OffsetManager, version: Version, now: float, timing: Timing) -> None:
    """Enter a commit of an unknown outcome that the next read need not wait for."""
    _doubt(manager, version, now)
    _await_landing(manager, now, timing)


def _doubt(manager: OffsetManager, version: Version, now: float) -> None:
    """Enter a commit that has landed, or may land yet, or never."""
    manager.in_doubt = (*manager.in_doubt[1 - IN_DOUBT_LIMIT :], version)
    manager.doubted_since, manager.verify_at = now, inf


def _keep_in_doubt(manager: OffsetManager, versions: tuple[Version, ...]) -> None:
    manager.in_doubt = versions
    if not versions:
        manager.verify_at = inf


def _await_landing(manager: OffsetManager, now: float, timing: Timing) -> None:
    """Verify commits in doubt once what the coordinator still holds has landed."""
    if manager.in_doubt:
        stopped = manager.phase is Phase.STOPPED
        manager.doubted_since = now
        manager.verify_at = now + (timing.stopped_s if stopped else timing.landing_s)


def _verified(manager: OffsetManager, now: float, *, again: bool) -> None:
    """Enter that the partition was read; ``again`` is True if more verifications follow."""
    if now >= manager.doubted_since + LATEST_LANDING_S or (now >= manager.verify_at and not again):
        _keep_in_doubt(manager, ())
    elif now >= manager.verify_at:
        manager.verify_at = inf


# What is committed.


def _set_committed(manager: OffsetManager, version: Version, now: float, timing: Timing) -> None:
    manager.committed = version
    if manager.phase is not Phase.STOPPED:
        manager.recommit_at = now + timing.recommit_s


def _drop_committed(manager: OffsetManager) -> None:
    manager.committed, manager.recommit_at = None, inf


def _recommit_soon(manager: OffsetManager, now: float, timing: Timing) -> None:
    """Commit the offset again a minute from now, unless a newer one is committed by then."""
    if manager.committed is not None and manager.phase is not Phase.STOPPED:
        manager.recommit_at = now + timing.recommit_soon_s


def _external_refusal(manager: OffsetManager, offset: int) -> Failure | None:
    """Return why ``offset`` may not go over an external change; None where it may."""
    last = manager.committed
    if not manager.external or last is None or last.value.offset <= offset:
        return None
    why = f"somebody else committed {last.value.offset}, which is higher; rewind() to go back"
    return Failure(error_info(OFFSET_CHANGED), why)


# Logs.


def _learn_topic(manager: OffsetManager, event: Read) -> None:
    """Enter the topic's id, the first time that it is known."""
    if event.topic_id is not None and not manager.topic_id:
        if manager.topic_id is None and manager.initial.done():
            # What was submitted before there was such a topic may not be of its log.
            manager.former = -1
        manager.topic_id = event.topic_id


def _recreate(manager: OffsetManager, event: Recreated, now: float, timing: Timing) -> Effects:
    """Leave the former log: drop what was submitted for it, and begin with the new one.

    The rule: a rewind to less than the former log's committed offset is of the new log, as a job
    begins again there, unless it came before the topic was away; every other offset that waits is
    of the former one.  What is submitted next is compared with the end of the new log.
    """
    former_id, last, found = manager.topic_id, manager.committed, event.found
    newest, first = manager.newest, not manager.initial.done()
    ours = [version for version in (last, *manager.in_doubt, newest) if version is not None]
    manager.topic_id = event.topic_id
    manager.external = manager.recommit = manager.missing = False
    _can_be_read(manager)
    error = _former_error(manager, former_id)
    goes_back = first or (manager.rewind_number and manager.number > manager.absent_number)
    lower = newest is not None and (last is None or newest.value.offset < last.value.offset)
    if manager.dirty and goes_back and lower and not _names_another_topic(manager):
        manager.former = -1 if last is None else last.value.offset
        manager.former_number = manager.number - 1
    else:
        manager.former = max((version.value.offset for version in ours), default=-1)
        manager.former_number = manager.number
        manager.commit_at = inf
        if manager.dirty:
            manager.drop_newest(error)
        manager.begin_log()
    _drop_committed(manager)
    manager.acknowledged = None
    if found is not None and any(same(version.value, found) for version in ours):
        _replace_stray(manager, now)
    elif found is not None:
        manager.external, manager.acknowledged = True, found
        _set_committed(manager, Version(manager.settled, found), now, timing)
    effects = _report(manager, error)
    if first:
        effects.append(PublishInitial(manager.acknowledged))
    if manager.dirty:
        manager.commit_at = now if manager.awaited else now + timing.commit_interval_s
        return effects
    return [*effects, AnswerFlushes(inf, manager.result_if_clean())]


def _former_error(manager: OffsetManager, former_id: str | None) -> CoordinatorError:
    """Return the error of the newest offset, of a former log; a notice if nothing waits."""
    newest, failure = manager.newest, recreated(former_id, manager.topic_id or "")
    offset = None if newest is None else newest.value.offset
    kind = OffsetCommitError if manager.dirty else OffsetNoticeError
    return kind(*manager.key, offset, failure.info, failure.detail)


def _report(manager: OffsetManager, error: OffsetManagerError) -> Effects:
    """Publish an error once, until something else happens."""
    reported = str(manager.last_error) == str(error)
    manager.last_error = error
    return [] if reported else [PublishError(error)]


def _names_another_topic(manager: OffsetManager) -> bool:
    """Return True if the newest version was submitted with the id of another topic."""
    named, known = manager.named_topic_id, manager.topic_id
    return bool(manager.dirty and named and known and named != known)


def _is_of_former_log(manager: OffsetManager, version: Version) -> bool | None:
    """Return True if ``version`` was not read from the log as it is; None before a look at that.

    An offset that repeats the last one of the former log, or lies beyond the end of the new one, is
    of the former log.
    """
    if _names_another_topic(manager):
        return True
    if manager.former is None or version.value.offset == manager.former:
        return manager.former is not None
    if manager.looked_number < version.number:
        return None
    return version.value.offset > manager.log_end


def _drop_former(manager: OffsetManager, version: Version | None) -> Effects:
    """Refuse an offset of the former log for good."""
    error = _former_error(manager, manager.named_topic_id or "another one")
    manager.drop_newest(error)
    if manager.former is None and version is not None:
        manager.former = version.value.offset
    manager.begin_log()
    manager.commit_at = inf
    return [*_report(manager, error), AnswerFlushes(inf, manager.result_if_clean())]


def _replace_stray(manager: OffsetManager, now: float) -> None:
    """Commit the start of the new log in the place of an offset of the former one."""
    manager.stray, manager.look_at = True, now


def _log_read(manager: OffsetManager, event: LogRead, now: float, timing: Timing) -> Effects:
    """Use a look at the log; report a committed offset outside of it once."""
    ends = event.log.partitions.get(manager.key.partition)
    failure = event.log.failure if ends is None else ends.failure
    if failure is not None:
        if manager.look_at < inf:
            manager.read_failures += 1
            manager.look_at = now + timing.backoff_s(manager.read_failures)
        return []
    start, end = (0, -1) if ends is None else ends[:2]
    manager.look_at, manager.log_end, manager.looked_number = inf, end, event.number
    if manager.stray:
        manager.stray = False
        _set_committed(manager, Version(manager.settled, OffsetAndMetadata(start)), now, timing)
        _commit_again(manager, now)
    last = manager.committed
    if last is None or start <= last.value.offset <= end or ends is None:
        return []
    if manager.outside_log == last.value.offset:
        return []
    manager.outside_log = last.value.offset
    why = "was the log cut, or the offset made up?"
    text = f"it lies outside the log, which holds {start} to {end}; {why}"
    return [_notice(manager, last, Failure(error_info(OFFSET_OUTSIDE_LOG), text))]


_LIVE: Final[Mapping[type[Event], Callable[..., Effects]]] = {
    Recreated: _recreate,
    Committed: _committed,
    Refused: _refused,
    Unknown: _unknown,
    FlushAsked: _flush,
    StopAsked: _flush,
    Expired: _expired,
    LogRead: _log_read,
}

TRANSITIONS: Final[Mapping[Phase, Mapping[type[Event], Callable[..., Effects]]]] = {
    Phase.FETCHING: {Read: _begin, ReadFailed: _fetch_failed, **_LIVE},
    Phase.READY: {Read: _verify, ReadFailed: _not_read, **_LIVE},
    Phase.IN_DOUBT: {Read: _read_in_doubt, ReadFailed: _still_in_doubt, **_LIVE},
    Phase.STOPPED: {
        Read: _verify,
        Recreated: _stopped_recreated,
        ReadFailed: _stopped_not_read,
        Committed: _stopped_committed,
        Refused: _stopped_refused,
        Unknown: _stopped_unknown,
        FlushAsked: _answer,
        StopAsked: _answer,
        Expired: _ignore,
        LogRead: _log_read,
    },
}
