"""Changes of a manager's record that several steps have in common."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from offsetmgr.codes import UNKNOWN_TOPIC
from offsetmgr.errors import OffsetCommitError, OffsetNoticeError
from offsetmgr.manager.events import PublishError
from offsetmgr.manager.offset_manager import Phase

if TYPE_CHECKING:
    from offsetmgr.coordinator.base import Failure
    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.manager.events import Effects, Timing
    from offsetmgr.manager.offset_manager import OffsetManager, Version
    from offsetmgr.types import OffsetAndMetadata

IN_DOUBT_LIMIT: Final = 16
"""Limit of the commits in doubt per partition; a read follows each, so there are rarely many."""

LATEST_LANDING_S: Final = 900.0
"""Time in which a commit in doubt may still land: a host may go on sending for a connection that
was given up."""


def same(sent: OffsetAndMetadata, found: OffsetAndMetadata | None) -> bool:
    """Return True if ``found`` is what was sent; a leader epoch that one side lacks is ignored."""
    if sent == found:  # nearly always
        return True
    if found is None or sent[:2] != found[:2]:
        return False
    return None in {sent.leader_epoch, found.leader_epoch}


def notice(manager: OffsetManager, before: Version | None, failure: Failure) -> PublishError:
    offset = None if before is None else before.value.offset
    return PublishError(OffsetNoticeError(*manager.key, offset, failure.info, failure.detail))


def report(manager: OffsetManager, error: OffsetManagerError) -> Effects:
    """Publish an error once, until something else happens."""
    reported = str(manager.last_error) == str(error)
    manager.last_error = error
    return [] if reported else [PublishError(error)]


def can_be_read(manager: OffsetManager) -> None:
    manager.phase, manager.read_at, manager.read_failures = Phase.READY, inf, 0


def not_committed(manager: OffsetManager, version: Version, failure: Failure) -> Effects:
    """Enter and publish why a version is not committed."""
    if failure.info.code == UNKNOWN_TOPIC:
        manager.absent_number = version.number
    error = OffsetCommitError(*manager.key, version.value.offset, failure.info, failure.detail)
    if version.number >= manager.error_number:
        manager.last_error, manager.error_number = error, version.number
    return [PublishError(error)]


def doubt(manager: OffsetManager, version: Version, now: float, timing: Timing) -> None:
    """Enter a commit of an unknown outcome that the next read need not wait for."""
    enter_doubt(manager, version, now)
    await_landing(manager, now, timing)


def enter_doubt(manager: OffsetManager, version: Version, now: float) -> None:
    """Enter a commit that has landed, or may land yet, or never."""
    manager.in_doubt = (*manager.in_doubt[1 - IN_DOUBT_LIMIT :], version)
    manager.doubted_since, manager.verify_at = now, inf


def keep_in_doubt(manager: OffsetManager, versions: tuple[Version, ...]) -> None:
    manager.in_doubt = versions
    if not versions:
        manager.verify_at = inf


def await_landing(manager: OffsetManager, now: float, timing: Timing) -> None:
    """Verify commits in doubt once what the coordinator still holds has landed."""
    if manager.in_doubt:
        stopped = manager.phase is Phase.STOPPED
        manager.doubted_since = now
        manager.verify_at = now + (timing.stopped_s if stopped else timing.landing_s)


def verified(manager: OffsetManager, now: float, *, again: bool) -> None:
    """Enter that the partition was read; ``again`` is True if more verifications follow."""
    if now >= manager.doubted_since + LATEST_LANDING_S or (now >= manager.verify_at and not again):
        keep_in_doubt(manager, ())
    elif now >= manager.verify_at:
        manager.verify_at = inf


def set_committed(manager: OffsetManager, version: Version, now: float, timing: Timing) -> None:
    manager.committed = version
    if manager.phase is not Phase.STOPPED:
        manager.recommit_at = now + timing.recommit_s


def drop_committed(manager: OffsetManager) -> None:
    manager.committed, manager.recommit_at = None, inf


def recommit_soon(manager: OffsetManager, now: float, timing: Timing) -> None:
    """Commit the offset again a minute from now, unless a newer one is committed by then."""
    if manager.committed is not None and manager.phase is not Phase.STOPPED:
        manager.recommit_at = now + timing.recommit_soon_s


def commit_again(manager: OffsetManager, now: float) -> None:
    """Commit the last version again, unless something newer is to be committed anyway."""
    if manager.commit_at == inf:
        manager.recommit, manager.commit_at = True, now


def replace_stray(manager: OffsetManager, now: float) -> None:
    """Commit the start of the new log in the place of an offset of the former one."""
    manager.stray, manager.look_at = True, now
