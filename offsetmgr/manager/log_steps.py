"""The steps of a manager whose topic was recreated, or whose log was looked at.

See *An offset belongs to a log* in docs/internals.md.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from offsetmgr.codes import OFFSET_OUTSIDE_LOG, UNKNOWN_TOPIC, error_info
from offsetmgr.coordinator.base import Failure
from offsetmgr.coordinator.logs import recreated
from offsetmgr.errors import CoordinatorError, OffsetCommitError, OffsetNoticeError
from offsetmgr.manager.events import PUBLISH_INITIAL, AnswerFlushes
from offsetmgr.manager.offset_manager import Version
from offsetmgr.types import OffsetAndMetadata

if TYPE_CHECKING:
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.manager.events import Effects, LogRead, Read, Recreated
    from offsetmgr.manager.offset_manager import OffsetManager


def same(sent: OffsetAndMetadata, found: OffsetAndMetadata | None) -> bool:
    """Return True if ``found`` is what was sent; a leader epoch that one side lacks is ignored."""
    if sent == found:  # nearly always
        return True
    if found is None or sent[:2] != found[:2]:
        return False
    return None in {sent.leader_epoch, found.leader_epoch}


def notice(manager: OffsetManager, before: Version | None, failure: Failure) -> OffsetManagerError:
    offset = None if before is None else before.value.offset
    return OffsetNoticeError(*manager.key, offset, failure.info, failure.detail)


def report(manager: OffsetManager, error: OffsetManagerError) -> Effects:
    """Publish an error once, until something else happens."""
    reported = str(manager.last_error) == str(error)
    manager.last_error = error
    return [] if reported else [error]


def not_committed(manager: OffsetManager, version: Version, failure: Failure) -> Effects:
    """Enter and publish why a version is not committed."""
    if failure.info.code == UNKNOWN_TOPIC:
        manager.absent_number = version.number
    error = OffsetCommitError(*manager.key, version.value.offset, failure.info, failure.detail)
    if version.number >= manager.error_number:
        manager.last_error, manager.error_number = error, version.number
    return [error]


def learn_topic(manager: OffsetManager, event: Read) -> None:
    """Enter the topic's id, the first time that it is known."""
    if event.topic_id is not None and not manager.topic_id:
        if manager.topic_id is None and manager.initial.done():
            # What was submitted before there was such a topic may not be of its log.
            manager.former = -1
        manager.topic_id = event.topic_id


def recreate(manager: OffsetManager, event: Recreated, now: float) -> Effects:
    """Leave the former log: drop what was submitted for it, and begin with the new one.

    The rule: a rewind to less than the former log's committed offset is of the new log, as a job
    begins again there, unless it came before the topic was away; every other offset that waits is
    of the former one.  What is submitted next is compared with the end of the new log.
    """
    former_id, last, found = manager.topic_id, manager.committed, event.found
    newest, first = manager.version(), not manager.initial.done()
    ours = [version for version in (last, *manager.in_doubt, newest) if version is not None]
    landed = next((version for version in ours if same(version.value, found)), None)
    if landed is not None and landed not in manager.in_doubt:
        manager.doubt(landed, now)  # known again where a read finds it before it is replaced
    manager.topic_id = event.topic_id
    manager.external = manager.recommit = manager.missing = False
    manager.can_be_read()
    error = former_error(manager, former_id)
    goes_back = first or (manager.rewind_number and manager.number > manager.absent_number)
    lower = newest is not None and (last is None or newest.value.offset < last.value.offset)
    if manager.dirty and goes_back and lower and not names_another_topic(manager):
        manager.former = -1 if last is None else last.value.offset
        manager.former_commits = tuple(v for v in manager.in_doubt if v.number < manager.number)
        failure = recreated(former_id, manager.topic_id or "")
        left = None if last is None else last.value.offset
        error = OffsetNoticeError(*manager.key, left, failure.info, failure.detail)
    else:
        manager.former = max((version.value.offset for version in ours), default=-1)
        manager.former_commits = manager.in_doubt
        manager.commit_at = inf
        if manager.dirty:
            manager.drop_newest(error)
        manager.begin_log()
    manager.drop_committed()
    manager.acknowledged = None
    if landed is not None:
        manager.replace_stray(now)
    elif found is not None:
        manager.external, manager.acknowledged = True, found
        manager.set_committed(Version(manager.settled, found), now)
    effects = report(manager, error)
    if first:
        effects.append(PUBLISH_INITIAL)
    if manager.dirty:
        manager.commit_at = manager.due_at(now)
        return effects
    return [*effects, AnswerFlushes(inf, manager.result_if_clean())]


def stopped_recreated(manager: OffsetManager, event: Recreated, now: float) -> Effects:
    """Replace an offset of the former log that landed in the new one."""
    ours = any(same(version.value, event.found) for version in manager.in_doubt)
    manager.topic_id, manager.read_at = event.topic_id, inf
    manager.former_commits = manager.in_doubt
    manager.drop_committed()
    if ours:
        manager.replace_stray(now)
        manager.await_landing(now)
    else:
        manager.verified(now, again=False)
    return []


def former_error(manager: OffsetManager, former_id: str | None) -> CoordinatorError:
    """Return the error of the newest offset, of a former log; a notice if nothing waits."""
    newest, failure = manager.version(), recreated(former_id, manager.topic_id or "")
    offset = None if newest is None else newest.value.offset
    kind = OffsetCommitError if manager.dirty else OffsetNoticeError
    return kind(*manager.key, offset, failure.info, failure.detail)


def names_another_topic(manager: OffsetManager) -> bool:
    """Return True if the newest version was submitted with the id of another topic."""
    named, known = manager.named_topic_id, manager.topic_id
    return bool(manager.dirty and named and known and named != known)


def is_of_former_log(manager: OffsetManager, version: Version) -> bool | None:
    """Return True if ``version`` was not read from the log as it is; None before a look at that.

    An offset that repeats the last one of the former log, or lies beyond the end of the new one, is
    of the former log.
    """
    if names_another_topic(manager):
        return True
    if manager.former is None or version.value.offset == manager.former:
        return manager.former is not None
    if manager.looked_number < version.number:
        return None
    return version.value.offset > manager.log_end


def check_log(manager: OffsetManager, version: Version, now: float) -> Effects | None:
    """Return the effects of a version that may not be of the log as it is; None where it is."""
    is_former = is_of_former_log(manager, version)
    if is_former is None:
        manager.look_at = now
        return []
    if is_former:
        return drop_former(manager, version)
    manager.former, manager.stray = None, False
    return None


def drop_former(manager: OffsetManager, version: Version | None) -> Effects:
    """Refuse an offset of the former log for good."""
    error = former_error(manager, manager.named_topic_id or "another one")
    manager.drop_newest(error)
    if manager.former is None and version is not None:
        manager.former = version.value.offset
    manager.begin_log()
    manager.commit_at = inf
    return [*report(manager, error), AnswerFlushes(inf, manager.result_if_clean())]


def log_read(manager: OffsetManager, event: LogRead, now: float) -> Effects:
    """Use a look at the log; report a committed offset outside of it once."""
    ends = event.log.partitions.get(manager.key.partition)
    failure = event.log.failure if ends is None else ends.failure
    if failure is not None:
        if manager.look_at == inf:
            return []
        manager.read_failures += 1
        manager.look_at = now + manager.group.timing.backoff_s(manager.read_failures)
        newest = manager.version()
        if newest is None or not manager.dirty or manager.commit_at == inf:
            return []
        return not_committed(manager, newest, failure)  # which waits for the look
    start, end = (0, -1) if ends is None else ends[:2]
    manager.look_at, manager.log_end, manager.looked_number = inf, end, event.numbers[manager]
    if manager.stray:
        manager.stray = False
        manager.set_committed(Version(manager.settled, OffsetAndMetadata(start)), now)
        manager.commit_again(now)
    last = manager.committed
    if last is None or start <= last.value.offset <= end or ends is None:
        return []
    if manager.outside_log == last.value.offset:
        return []
    manager.outside_log = last.value.offset
    why = "was the log cut, or the offset made up?"
    text = f"it lies outside the log, which holds {start} to {end}; {why}"
    return [notice(manager, last, Failure(error_info(OFFSET_OUTSIDE_LOG), text))]
