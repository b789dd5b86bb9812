"""The logs of the clients say what happened, also where a client was killed at writing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.history import (
    EventLog,
    Key,
    Tag,
    lives_of,
    newest_submits,
    of_a_former_life,
    parse_tag,
    path_of,
    read_history,
)

if TYPE_CHECKING:
    from pathlib import Path

KEY = Key("etl", 3)


def tag_of(number: int, life: int = 1) -> Tag:
    """A submit of the only client."""
    return Tag("driver", life, number)


def test_events_are_read_as_written_and_a_torn_line_is_none(tmp_path: Path) -> None:
    """A line that was not wholly written stands for something that was not yet done."""
    log = EventLog(tmp_path, "driver", 1)
    log.write("invoke", "submit", tag_of(1), KEY, 42)
    path = path_of(tmp_path, "driver", 1)
    path.write_bytes(path.read_bytes() + b'["ok","sub')
    (event,) = read_history(tmp_path)
    assert event[:5] == ("invoke", "submit", tag_of(1), KEY, 42)


def test_lives_come_in_their_order(tmp_path: Path) -> None:
    """The tenth after the ninth."""
    for life in (10, 9, 1):
        EventLog(tmp_path, "driver", life)
    assert lives_of(tmp_path, "driver") == [path_of(tmp_path, "driver", n) for n in (1, 9, 10)]


def test_a_submit_without_an_answer_in_time_is_held(tmp_path: Path) -> None:
    """One that was only begun, one that was refused and one that was only told of are not."""
    log = EventLog(tmp_path, "driver", 1)
    log.write("ok", "submit", tag_of(1), KEY, 1)
    log.write("info", "sync", tag_of(2), KEY, 2)
    log.write("fail", "lower", tag_of(3), KEY, 1)
    log.write("invoke", "submit", tag_of(4), KEY, 3)
    log.write("ok", "told", tag_of(1), KEY, 1)
    assert newest_submits(path_of(tmp_path, "driver", 1)) == {KEY: 2}


def test_a_former_life_is_known_by_what_it_submitted(tmp_path: Path) -> None:
    """Not by what it was told, nor is the life of now a former one."""
    for life, offset in ((1, 10), (2, 20)):
        log = EventLog(tmp_path, "driver", life)
        log.write("ok", "submit", tag_of(1, life), KEY, offset)
        log.write("ok", "told", tag_of(1, life), KEY, 30)
    found = [each for each in (10, 20, 30) if of_a_former_life(tmp_path, "driver", 2, KEY, each)]
    assert found == [10]


def test_a_tag_is_read_as_it_was_written() -> None:
    """What is no tag is refused."""
    assert parse_tag(str(tag_of(7, life=2))) == tag_of(7, life=2)
    with pytest.raises(ValueError, match="unpack"):
        parse_tag("")
