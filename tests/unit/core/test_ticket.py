"""One flush or stop of many managers, counted down to one answer."""

from __future__ import annotations

from offsetmgr.manager.desk import Desk
from offsetmgr.manager.observer import NO_OBSERVER
from offsetmgr.manager.ticket import Ticket
from offsetmgr.manager.tray import Tray
from offsetmgr.types import StopResult
from tests.unit.core.core import at, tp

DONE = StopResult(at(1))


def desks(*partitions: int) -> list[Desk]:
    """Desks without actors."""
    return [Desk(Tray("g"), tp(p), "test", 8, NO_OBSERVER) for p in partitions]


def test_without_anybody_to_wait_for_it_is_answered() -> None:
    """To stop nothing is done at once."""
    assert Ticket([], 1.0).future.get(timeout=0) == {}


def test_it_is_answered_when_all_have_answered() -> None:
    """And not before."""
    first, second = desks(0, 1)
    ticket = Ticket([first, second], 1.0)
    ticket.done([(first, DONE)])
    assert not ticket.future.done()
    ticket.done([(second, DONE)])
    assert ticket.future.get(timeout=0) == {first.key: DONE, second.key: DONE}


def test_the_first_answer_of_a_manager_counts() -> None:
    """What was said once is not taken back."""
    first, second = desks(0, 1)
    ticket = Ticket([first, second], 1.0)
    ticket.done([(first, DONE)])
    ticket.done([(first, StopResult(at(2)))])
    ticket.done([(second, DONE)])
    assert ticket.future.get(timeout=0)[first.key] == DONE


def test_at_the_deadline_it_says_what_is_left() -> None:
    """Of those who have not answered, straight from their slots."""
    first, second = desks(0, 1)
    second.slot.offer(at(7))
    ticket = Ticket([first, second], 1.0)
    ticket.done([(first, DONE)])
    assert ticket.expire() == [second]
    assert ticket.future.get(timeout=0) == {first.key: DONE, second.key: StopResult(None, at(7))}


def test_what_comes_after_the_deadline_changes_nothing() -> None:
    """The answer has been given; expiring again finds nobody."""
    (only,) = desks(0)
    ticket = Ticket([only], 1.0)
    ticket.expire()
    ticket.done([(only, StopResult(at(9)))])
    assert ticket.expire() == []
    assert ticket.future.get(timeout=0) == {only.key: StopResult(None)}


def test_a_manager_that_has_ended_answers_with_how_it_ended() -> None:
    """Also at the deadline."""
    (only,) = desks(0)
    only.result = StopResult(at(4), at(5))
    ticket = Ticket([only], 1.0)
    ticket.expire()
    assert ticket.future.get(timeout=0) == {only.key: StopResult(at(4), at(5))}


def test_answers_of_all_count_as_those_of_each() -> None:
    """Alone, beside others that are waited for, and after one that has answered already."""
    both = desks(0, 1)
    answers = [DONE, StopResult(at(2))]
    whole = Ticket(both, 1.0)
    keys = [desk.key for desk in both]
    whole.done_all(both, dict(zip(keys, answers, strict=True)))
    assert whole.future.get(timeout=0) == dict(zip(keys, answers, strict=True))
    (third,) = desks(2)
    some = Ticket([*both, third], 1.0)
    some.done([(both[0], StopResult(at(9)))])
    some.done_all(both, dict(zip(keys, answers, strict=True)))
    assert not some.future.done()
    some.done([(third, DONE)])
    found = [StopResult(at(9)), answers[1], DONE]
    assert some.future.get(timeout=0) == dict(zip([*keys, third.key], found, strict=True))


def test_answers_of_all_after_the_deadline_change_nothing() -> None:
    """As answers of one."""
    both = desks(0, 1)
    ticket = Ticket(both, 1.0)
    ticket.expire()
    ticket.done_all(both, {desk.key: DONE for desk in both})
    assert set(ticket.future.get(timeout=0).values()) == {StopResult(None)}
