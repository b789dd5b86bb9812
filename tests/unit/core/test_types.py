"""The checks at the door: what passes is safe, what does not names field, value and fix."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.errors import InvalidValueError
from offsetmgr.types import (
    MAX_GROUP_CHARS,
    MAX_METADATA_CHARS,
    MAX_OFFSET,
    ManagerKey,
    TopicPartition,
    check_group,
    check_leader_epoch,
    check_metadata,
    check_offset,
    check_partition,
    check_topic,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Level(IntEnum):
    """An integer that is not plainly an int, as numerical libraries have them."""

    FIVE = 5


class Duck:
    """Not an integer, though it could be turned into one."""

    def __int__(self) -> int:
        return 5

    def __repr__(self) -> str:
        return "Duck()"


NOT_INTEGERS = [True, False, 1.0, float("nan"), "1", None, b"1", [1], Duck()]
NOT_INTEGERS += [np.float64(7), np.bool_(True)]  # noqa: FBT003


def refused(check: Callable[[object], object], value: object) -> InvalidValueError:
    """The error with which ``check`` refuses ``value``, which must be complete."""
    with pytest.raises(InvalidValueError) as caught:
        check(value)
    error = caught.value
    assert error.field
    assert error.value is value
    assert error.problem
    assert error.hint
    assert str(error).startswith(error.field)
    assert error.problem in str(error)
    assert str(error).endswith(error.hint)
    assert "\n" not in str(error)
    assert len(str(error)) < 400
    return error


@pytest.mark.parametrize("value", [np.int64(5), np.uint8(5), Level.FIVE])
def test_another_kind_of_integer_becomes_a_plain_int(value: object) -> None:
    """Offsets out of a data frame are taken, and do not reach librdkafka or JSON as they are."""
    found = check_offset(value)
    assert (found, type(found)) == (5, int)


@pytest.mark.parametrize(
    ("check", "highest"),
    [(check_offset, MAX_OFFSET), (check_partition, 1_000_000), (check_leader_epoch, 2**31 - 1)],
)
@pytest.mark.fault(28)
def test_numbers_have_their_ranges(check: Callable[[object], object], highest: int) -> None:
    """The ends of the range pass; other values are refused by their field."""
    assert [check(0), check(highest)] == [0, highest]
    for value in (-1, highest + 1, 10**400, 10**5000, *[v for v in NOT_INTEGERS if v is not None]):
        assert refused(check, value).field == check.__name__.removeprefix("check_")


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (check_leader_epoch, None),
        *[(check_group, name) for name in ("g", "x" * 255, "grüße", "a b", "日本", "a/b:c")],
        *[(check_topic, name) for name in ("t", "x" * 249, "a.b_c-D9", "..a", "__offsets")],
        # The broker counts UTF-16 units: an emoji is two.
        *[(check_metadata, text) for text in ("", "x" * 4096, "ä" * 4096, "😀" * 2048, "\n\t")],
    ],
)
def test_a_good_value_passes_as_it_is(check: Callable[[object], object], value: object) -> None:
    """Names that people can read and Kafka takes; an epoch may be unknown."""
    assert check(value) == value


GROUPS = ["", "x" * 256, "x" * 300, "a\nb", "a\tb", "a\0b", "\x7f", " a", "a ", 5, None]
GROUPS += ["a\u200bb", "a\u202eb", "\ud800", b"g"]
TOPICS = ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "a\0", "\u0661", 7, None]


@pytest.mark.parametrize("value", GROUPS, ids=ascii)
@pytest.mark.fault(27)
def test_a_group_name_that_breaks_something_is_refused(value: object) -> None:
    """Librdkafka aborts the process on an empty one; the others deceive whoever reads them."""
    assert refused(check_group, value).field == "group"


@pytest.mark.parametrize("value", TOPICS, ids=ascii)
def test_an_illegal_topic_name_is_refused(value: object) -> None:
    """Kafka's own rule counts, before any request is made."""
    assert refused(check_topic, value).field == "topic"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("x" * 4097, "4097 characters"),
        ("ä" * 4097, "4097 characters"),
        ("😀" * 2049, "4098 characters"),
        ("a\0b", "NUL"),
        ("\ud800", "cannot be encoded"),
        (5, "not text"),
        (None, "not text"),
        (b"x", "not text"),
    ],
)
@pytest.mark.fault(25)
def test_metadata_the_broker_would_refuse_is_refused(value: object, problem: str) -> None:
    """One partition's bad metadata must never reach the request that carries its peers."""
    error = refused(check_metadata, value)
    assert error.field == "metadata"
    assert problem in error.problem


def test_the_field_is_named_as_the_caller_calls_it() -> None:
    """A service names the place in its request; the message repeats it."""
    with pytest.raises(InvalidValueError, match=r"^offsets\[3\]\.offset -1 is negative; give") as c:
        check_offset(-1, "offsets[3].offset")
    assert "'nothing committed' is not an offset" in c.value.hint  # Kafka's own -1 is common


@given(st.text(max_size=300))
@pytest.mark.fault(27)
def test_a_group_that_passes_stays_as_it_is_and_shows_as_it_is(value: str) -> None:
    """No check repairs a name in silence, and none lets an invisible one through."""
    try:
        passed = check_group(value)
    except InvalidValueError:
        return
    assert passed == value == value.strip()
    assert value.isprintable()
    assert 0 < len(value) <= MAX_GROUP_CHARS


@given(st.text(alphabet=st.characters(), max_size=50) | st.text(min_size=2040, max_size=2060))
@pytest.mark.fault(25)
def test_metadata_that_passes_fits_the_broker(value: str) -> None:
    """Accepted metadata has at most 4,096 UTF-16 units, can be encoded, and holds no NUL."""
    try:
        check_metadata(value)
    except InvalidValueError:
        return
    assert len(value.encode("utf-16-le")) // 2 <= MAX_METADATA_CHARS
    assert "\0" not in value


def test_words_read_as_people_write_them() -> None:
    """A key is group/topic/partition, a partition topic-partition."""
    key = ManagerKey("orders-etl", "orders", 3)
    assert str(key) == "orders-etl/orders/3"
    assert str(key.topic_partition) == "orders-3"
    assert key.topic_partition == TopicPartition("orders", 3)
