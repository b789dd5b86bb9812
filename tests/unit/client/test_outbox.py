"""What is held and what is sent, case by case; `test_outbox_model` has every schedule."""

from __future__ import annotations

import pytest

from offsetmgr.client import outbox as room
from offsetmgr.client.outbox import Batch, Outbox
from offsetmgr.errors import (
    ManagerExistsError,
    ManagerStoppedError,
    OffsetManagerError,
    OffsetRegressionError,
    ServiceError,
)
from offsetmgr.types import ManagerKey, OffsetAndMetadata, TopicPartition

KEYS = [ManagerKey(group, "t", number) for group in "gh" for number in range(2)]
A, B = KEYS[:2]


def value(offset: int) -> OffsetAndMetadata:
    """An offset."""
    return OffsetAndMetadata(offset)


def taken(outbox: Outbox, **refused: OffsetManagerError) -> Batch:
    """Send the next batch and have it taken, but for what is `refused` by partition (p0, p1)."""
    batch = outbox.take(0.0)
    assert batch is not None
    errors = {TopicPartition("t", int(name[1:])): error for name, error in refused.items()}
    outbox.accept(batch, errors, 0.0)
    return batch


def test_nothing_to_send_at_first() -> None:
    """An empty outbox has nothing to send."""
    assert Outbox().take(0.0) is None


def test_a_manager_without_an_offset_is_asked_for() -> None:
    """A spawned manager is registered; its first offset then needs no second registration."""
    outbox = Outbox()
    outbox.add(A)
    assert not taken(outbox).submits
    outbox.submit(A, value(1))
    assert taken(outbox).submits
    assert outbox.take(0.0) is None


def test_an_offset_replaces_the_request_for_a_manager() -> None:
    """Offsets spawn managers by themselves: one request does for both."""
    outbox = Outbox()
    outbox.add(A)
    outbox.submit(A, value(1))
    assert taken(outbox).submits
    assert outbox.take(0.0) is None


def test_groups_take_turns() -> None:
    """A group with many partitions does not hold up the others."""
    outbox = Outbox()
    for number in range(3 * room.BATCH_LIMIT):
        outbox.submit(ManagerKey("big", "t", number), value(1))
    outbox.submit(ManagerKey("small", "t", 0), value(1))
    assert [taken(outbox).group for _ in range(4)] == ["big", "small", "big", "big"]


def test_a_refusal_is_news_once() -> None:
    """The same refusal of later offsets is not told again, until one was taken between."""
    outbox = Outbox()
    news = []
    for offset in (1, 2, 50, 3):
        outbox.submit(A, value(offset), rewind=offset == 3)
        batch = outbox.take(0.0)
        assert batch is not None
        error = OffsetRegressionError("m", offset, 9)
        refused = {} if offset == 50 else {A.topic_partition: error}
        news.append(len(outbox.accept(batch, refused, 0.0)))
    assert news == [1, 0, 0, 1]


def test_a_refused_offset_is_sent_again_only_on_request() -> None:
    """A regression is final for that offset; submitting it once more asks once more."""
    outbox = Outbox()
    outbox.submit(A, value(1))
    taken(outbox, p0=OffsetRegressionError("m", 1, 9))
    assert outbox.take(1e9) is None
    outbox.submit(A, value(1))
    assert outbox.take(0.0) is not None


def test_a_parked_partition_takes_no_request_with_each_submit() -> None:
    """While another client holds it, a partition is tried at a slow pace, whatever is submitted."""
    outbox = Outbox()
    outbox.submit(A, value(1))
    taken(outbox, p0=ManagerExistsError("m", "rival"))
    outbox.submit(A, value(2))
    assert outbox.take(room.PARK_S - 1) is None
    assert outbox.parked_until() == room.PARK_S
    batch = outbox.take(room.PARK_S)
    assert batch is not None
    assert [item.value for item in batch.items] == [value(2)]


def test_an_old_answer_means_nothing() -> None:
    """What a service answered before it forgot us does not count as taken."""
    outbox = Outbox()
    outbox.submit(A, value(1))
    batch = outbox.take(0.0)
    assert batch is not None
    outbox.renew()
    assert outbox.accept(batch, {A.topic_partition: ManagerExistsError("m", "o")}, 0.0) == []
    assert outbox.take(0.0) is not None


def test_what_was_stopped_is_not_sent() -> None:
    """A removed partition is sent no more, and an answer that speaks of it is harmless."""
    outbox = Outbox()
    outbox.submit(A, value(1))
    outbox.submit(B, value(1))
    batch = outbox.take(0.0)
    assert batch is not None
    outbox.remove([A])
    outbox.give_back(batch)
    again = taken(outbox)
    assert [item.key for item in again.items] == [B]


def test_no_offsets_while_stopping() -> None:
    """From the begin of a stop no offset is taken, and a second stop finds nothing to do."""
    outbox = Outbox()
    outbox.add(A)
    assert outbox.stop([A, B]) == [A]
    assert outbox.stop([A]) == []
    assert isinstance(outbox.submit(A, value(1)), ManagerStoppedError)
    outbox.released(A)
    assert outbox.keys() == [A]


def test_no_manager_is_asked_for_while_stopping() -> None:
    """What waits for a request is not asked for once it is being stopped, nor anew by a restart."""
    outbox = Outbox()
    outbox.meet("1")
    outbox.add(A)
    outbox.stop([A])
    assert outbox.take(0.0) is None
    outbox.meet("2")
    assert outbox.take(0.0) is None
    outbox.unstop([A])
    assert [item.key for item in taken(outbox).items] == [A]


def test_a_manager_is_asked_for_until_there_is_an_answer() -> None:
    """While a request for it may arrive, and no longer, the service has to be asked to stop it."""
    outbox = Outbox()
    held = outbox.add(A)
    states = []
    batch = outbox.take(0.0)
    assert batch is not None
    outbox.give_back(batch)
    states.append(held.asked)
    outbox.withdraw(batch)
    states.append(held.asked)
    taken(outbox)
    states.append(held.asked)
    outbox.lost([A])
    assert outbox.take(0.0) is not None
    states.append(held.asked)
    outbox.renew()
    states.append(held.asked)
    assert states == [True, False, False, True, False]


def test_an_event_after_a_rewind_proves_nothing() -> None:
    """A late event of an equal offset from before a rewind does not make the rewind committed."""
    outbox = Outbox()
    for offset in (5, 9, 5):
        outbox.submit(A, value(offset), rewind=offset == 5)
    outbox.committed(A, value(5))
    held = outbox.get(A)
    assert held is not None
    assert held.committed_version < held.version
    outbox.committed(A, value(5), held.version)
    assert held.committed_version == held.version


def test_an_answer_that_was_overtaken_does_not_undo_the_newer_one() -> None:
    """Of two answers in the wrong order, and of an event that is late, the newest stays told."""
    outbox = Outbox()
    outbox.submit(A, value(5))
    outbox.submit(A, value(8))
    held = outbox.get(A)
    assert held is not None
    assert outbox.committed(A, value(8), held.version)
    assert not outbox.committed(A, value(5), held.version - 1)
    outbox.committed(A, value(5))
    assert held.committed == value(8)


def test_an_offset_refused_as_lower_is_tried_again_with_a_new_service() -> None:
    """What was higher may have been taken and never committed by a service that was killed."""
    outbox = Outbox()
    outbox.meet("1")
    outbox.submit(A, value(5))
    batch = outbox.take(0.0)
    assert batch is not None
    lower = OffsetRegressionError(str(A), 5, 9)
    assert outbox.accept(batch, {A.topic_partition: lower}, 0.0) == [(A, lower)]
    assert outbox.take(0.0) is None
    outbox.meet("2")
    again = outbox.take(0.0)
    assert again is not None
    assert again.items[0].value == value(5)
    assert outbox.accept(again, {A.topic_partition: lower}, 0.0) == [], "told once"


def test_an_event_that_equals_the_newest_confirms_it() -> None:
    """Where nothing went back, an event of the newest offset is its acknowledgement."""
    outbox = Outbox()
    outbox.submit(A, value(5))
    outbox.committed(A, value(4))
    held = outbox.get(A)
    assert held is not None
    assert held.committed_version == 0
    outbox.committed(A, value(5))
    assert held.committed_version == held.version


def test_a_rewind_above_the_known_is_told_to_a_successor() -> None:
    """A rewind that was never confirmed is one for the successor, until it is passed again."""
    outbox = Outbox()
    outbox.meet("1")
    outbox.submit(A, value(100))
    taken(outbox)
    outbox.submit(A, value(40), rewind=True)
    taken(outbox)
    outbox.submit(A, value(99))
    outbox.meet("2")
    assert [item.rewind for item in taken(outbox).items] == [True]
    outbox.submit(A, value(100))
    outbox.meet("3")
    assert [item.rewind for item in taken(outbox).items] == [False]


def test_a_bad_index_out_of_range_speaks_of_all() -> None:
    """An index that no entry has cannot make the same request go round for ever."""
    outbox = Outbox()
    outbox.submit(A, value(1))
    batch = outbox.take(0.0)
    assert batch is not None
    assert len(outbox.reject(batch, ServiceError(400, "bad"), 7)) == 1
    assert outbox.take(1e9) is None


def test_keys_by_group_and_partition() -> None:
    """A scope is all, a group, or some of its partitions; what is not held is left out."""
    outbox = Outbox()
    for key in KEYS:
        outbox.add(key)
    assert outbox.keys() == KEYS
    assert outbox.keys("g") == [A, B]
    assert outbox.keys("g", [B.topic_partition, TopicPartition("t", 9)]) == [B]
    assert A in outbox


def test_a_parked_partition_waits_with_what_came_meanwhile() -> None:
    """An offset submitted while the refusal was on its way waits for the slow pace as well."""
    outbox = Outbox()
    outbox.submit(A, value(1))
    batch = outbox.take(0.0)
    assert batch is not None
    outbox.submit(A, value(2))
    outbox.accept(batch, {A.topic_partition: ManagerExistsError("m", "rival")}, 0.0)
    assert outbox.take(0.0) is None


def test_an_old_refusal_does_not_speak_of_what_came_meanwhile() -> None:
    """An offset submitted while a lower one was refused is sent."""
    outbox = Outbox()
    outbox.submit(A, value(1))
    batch = outbox.take(0.0)
    assert batch is not None
    outbox.submit(A, value(20))
    outbox.accept(batch, {A.topic_partition: OffsetRegressionError("m", 1, 9)}, 0.0)
    assert [item.value for item in taken(outbox).items] == [value(20)]


def test_a_parked_partition_that_somebody_waited_for() -> None:
    """A waiting submit is tried though its partition is parked, and ends that when it succeeds."""
    outbox = Outbox()
    outbox.submit(A, value(1))
    taken(outbox, p0=ManagerExistsError("m", "rival"))
    outbox.accept(outbox.take_these([A]), {}, 0.0)
    assert outbox.parked_until() is None
    outbox.submit(A, value(2))
    assert outbox.take(0.0) is not None


def test_parked_partitions_are_tried_with_a_successor_at_once() -> None:
    """A restarted service may have no rival any more: nothing stays parked."""
    outbox = Outbox()
    outbox.submit(A, value(1))
    taken(outbox, p0=ManagerExistsError("m", "rival"))
    outbox.renew()
    assert outbox.parked_until() is None
    assert outbox.take(0.0) is not None


def test_a_parked_partition_can_be_removed() -> None:
    """A stop of what another client holds leaves nothing behind."""
    outbox = Outbox()
    outbox.submit(A, value(1))
    taken(outbox, p0=ManagerExistsError("m", "rival"))
    outbox.remove([A])
    assert outbox.take(1e9) is None


def test_rewinds_below_an_unknown_offset() -> None:
    """While it is not known what was committed before, no offset ends a rewind for a successor."""
    outbox = Outbox()
    outbox.meet("1")
    outbox.submit(A, value(50), rewind=True)
    outbox.submit(A, value(10), rewind=True)
    taken(outbox)
    outbox.submit(A, value(60))
    outbox.meet("2")
    assert [item.rewind for item in taken(outbox).items] == [True]


def test_a_refusal_tells_how_far_a_rewind_goes_back() -> None:
    """After a refused offset it is known what is committed: above that a rewind is over."""
    outbox = Outbox()
    outbox.meet("1")
    outbox.submit(A, value(10))
    taken(outbox, p0=OffsetRegressionError("m", 10, 100))
    outbox.submit(A, value(5), rewind=True)
    taken(outbox)
    outbox.submit(A, value(50))
    outbox.meet("2")
    assert [item.rewind for item in taken(outbox).items] == [True]


def test_a_rewind_is_one_though_an_older_offset_was_taken_meanwhile() -> None:
    """The answer to what was sent before a rewind does not make the rewind a plain offset."""
    outbox = Outbox()
    outbox.submit(A, value(10))
    batch = outbox.take(0.0)
    assert batch is not None
    outbox.submit(A, value(5), rewind=True)
    outbox.accept(batch, {}, 0.0)
    assert [(item.value, item.rewind) for item in taken(outbox).items] == [(value(5), True)]


@pytest.mark.parametrize("refused", [True, False], ids=["refused", "taken"])
def test_what_came_meanwhile_is_not_settled(refused: bool) -> None:  # noqa: FBT001
    """An answer settles what it answers, not what was submitted while it was on its way."""
    outbox = Outbox()
    outbox.submit(A, value(1))
    batch = outbox.take(0.0)
    assert batch is not None
    outbox.submit(A, value(20))
    error = OffsetRegressionError("m", 1, 9)
    outbox.accept(batch, {A.topic_partition: error} if refused else {}, 0.0)
    held = outbox.get(A)
    assert held is not None
    assert held.settled_version == batch.items[0].version < held.version


@pytest.mark.parametrize("again", ["spawned", "submitted"])
def test_an_answer_about_an_earlier_manager_says_nothing_of_the_next(again: str) -> None:
    """It was stopped, and is there anew, before the answer came: neither taken nor refused."""
    outbox = Outbox()
    outbox.submit(A, value(1))
    taken_once, refused_once = outbox.take(0.0), outbox.take_these([A])
    assert taken_once is not None
    outbox.remove([A])
    if again == "spawned":
        outbox.add(A)
    else:
        outbox.submit(A, value(1))
    outbox.accept(taken_once, {}, 0.0)
    stopped = ManagerStoppedError("it was stopped by a newer request")
    assert outbox.accept(refused_once, {A.topic_partition: stopped}, 0.0) == []
    assert outbox.reject(refused_once, stopped, None) == []
    held = outbox.get(A)
    assert held is not None
    assert not held.registered
    assert held.error is None
    batch = outbox.take(0.0)
    assert batch is not None
    assert batch.submits == (again == "submitted")


def test_an_answer_that_ends_a_pause_leaves_the_newer_offset_to_be_sent() -> None:
    """A manager that somebody else seemed to hold is had after all: what came since is sent."""
    outbox = Outbox()
    outbox.submit(A, value(1))
    first = outbox.take(0.0)
    assert first is not None
    rival = ManagerExistsError(str(A), "other")
    outbox.accept(outbox.take_these([A]), {A.topic_partition: rival}, 0.0)
    outbox.submit(A, value(2))
    outbox.accept(first, {}, 0.0)
    assert outbox.parked_until() is None
    assert [item.value for item in taken(outbox).items] == [value(2)]
