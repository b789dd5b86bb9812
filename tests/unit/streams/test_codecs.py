"""Codecs: what comes out is what went in; anything else is refused with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.streams import codecs

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
FINITE = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | FINITE | TEXT,
    lambda each: st.lists(each) | st.dictionaries(TEXT, each),
    max_leaves=10,
)


@dataclass
class Click:
    """A row."""

    url: str
    count: int = 0


CODECS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (codecs.Bytes(), st.binary()),
    (codecs.String(), TEXT),
    (codecs.Int64(), st.integers(-(2**63), 2**63 - 1)),
    (codecs.Json(), PLAIN),
    (codecs.MsgPack(), PLAIN),
    (codecs.Json(Click), st.builds(Click, TEXT)),
    (codecs.MsgPack(Click), st.builds(Click, TEXT)),
]


@given(st.data())
def test_values_survive(data: st.DataObject) -> None:
    """Decoding returns what was encoded."""
    codec, values = data.draw(st.sampled_from(CODECS))
    value = data.draw(values)
    encoded = codec.encode(value)
    assert isinstance(encoded, bytes)
    assert codec.decode(encoded) == value


def test_numbers_are_the_text_of_the_seed() -> None:
    """Other programs read the same bytes."""
    assert codecs.Int64().encode(-12) == b"-12"


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (codecs.Bytes(), "text"),
        (codecs.String(), b"bytes"),
        (codecs.Int64(), True),
        (codecs.Int64(), "1"),
        (codecs.Int64(), 2**63),
        (codecs.Json(), object()),
    ],
)
def test_other_types_are_refused(codec: Any, value: object) -> None:
    """Nothing is converted in silence."""
    with pytest.raises((TypeError, ValueError)):
        codec.encode(value)


@pytest.mark.parametrize("codec", [codecs.Int64(), codecs.Json(), codecs.Json(Click)])
def test_broken_data_is_refused(codec: Any) -> None:
    """Invalid values raise."""
    with pytest.raises(ValueError, match=r"."):
        codec.decode(b"\xffx")
