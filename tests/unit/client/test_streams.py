"""The mailboxes of a handle."""

from __future__ import annotations

import threading

import pytest

from offsetmgr.client.handle import ERROR_LIMIT, Mailboxes
from offsetmgr.errors import ManagerStoppedError, OffsetTimeoutError
from offsetmgr.types import ManagerKey, OffsetAndMetadata, StopResult

KEY = ManagerKey("g", "orders", 3)


def test_latest_wins() -> None:
    """Only the newest unread committed offset waits, and the same is not told twice."""
    mail = Mailboxes(KEY)
    for offset in (1, 2, 2):
        mail.committed.put(OffsetAndMetadata(offset))
    assert mail.committed.get(0) == OffsetAndMetadata(2)
    mail.committed.put(OffsetAndMetadata(2))
    with pytest.raises(TimeoutError, match="g/orders/3"):
        mail.committed.get(0)


def test_drop_oldest() -> None:
    """Errors that nobody reads make room for newer ones, and are counted."""
    mail = Mailboxes(KEY)
    errors = [OffsetTimeoutError(str(number)) for number in range(ERROR_LIMIT + 2)]
    for error in errors:
        mail.errors.put(error)
    assert mail.errors.dropped == 2
    mail.stop(StopResult(None))
    assert list(mail.errors) == errors[2:]


def test_closed() -> None:
    """After the stop what is unread can be read; then nothing, and nothing more is taken."""
    mail = Mailboxes(KEY)
    mail.committed.put(OffsetAndMetadata(1))
    mail.stop(StopResult(None))
    mail.committed.put(OffsetAndMetadata(2))
    assert list(mail.committed) == [OffsetAndMetadata(1)]
    with pytest.raises(ManagerStoppedError):
        mail.committed.get()


def test_a_waiting_reader_is_woken() -> None:
    """A reader that waits without a timeout gets the value, and the end."""
    mail = Mailboxes(KEY)
    found: list[OffsetAndMetadata] = []
    seen = threading.Event()

    def read() -> None:
        for offset in mail.committed:
            found.append(offset)
            seen.set()

    reader = threading.Thread(target=read)
    reader.start()
    mail.committed.put(OffsetAndMetadata(1))
    assert seen.wait(20)
    mail.stop(StopResult(None))
    reader.join(20)
    assert found == [OffsetAndMetadata(1)]
    assert not reader.is_alive()
