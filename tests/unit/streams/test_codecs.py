"""Codecs: what comes out is what went in; anything else is refused with the reason."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from confluent_kafka.serialization import (
    IntegerDeserializer,
    IntegerSerializer,
    SerializationContext,
)
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.streams import RegistryCodec, codecs
from offsetmgr.streams.memory import MemoryStorage
from offsetmgr.streams.rows import TableRows

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
FINITE = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | FINITE | TEXT,
    lambda each: st.lists(each) | st.dictionaries(TEXT, each),
    max_leaves=10,
)


@dataclass
class Click:
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
    assert codecs.Int64().encode(-12) == b"-12"  # as other programs write it


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


@dataclass(frozen=True)
class Address:
    city: str
    country: str = "CH"


@dataclass
class Person:
    name: str
    age: int = 7
    homes: dict[str, list[Address]] = field(default_factory=dict)


@pytest.mark.parametrize("make_codec", [codecs.Json, codecs.MsgPack])
def test_defaults_of_a_dataclass_are_written_again(make_codec: Any) -> None:
    """Also nested ones, by every writer: codecs, Arrow, HTTP."""
    codec = make_codec(Person)
    data = make_codec().encode({"name": "Ann", "homes": {"main": [{"city": "Bern"}]}})
    person = codec.decode(data)
    expected = {
        "name": "Ann", "age": 7, "homes": {"main": [{"city": "Bern", "country": "CH"}]},
    }  # fmt: skip
    assert make_codec().decode(codec.encode(person)) == expected
    converted = msgspec.convert({"name": "Bob"}, Person)
    assert "age" not in msgspec.to_builtins(converted)
    (written,) = make_codec().decode(make_codec().encode([converted]))
    assert written == {"name": "Bob", "age": 7, "homes": {}}
    rows = TableRows(MemoryStorage({b"k": data}), codec)
    assert rows.to_arrow().to_pylist() == [{"key": "k", "value": expected}]
    assert rows.get("k") == person


def test_bytes_are_bytes_in_arrow() -> None:
    """The kind: values that differ from those of ``get``; these were text in base64."""
    rows = TableRows(MemoryStorage({b"k": b"\xff\x00"}), codecs.Bytes())
    assert rows.to_arrow().to_pylist() == [{"key": "k", "value": rows.get("k")}]
    nested = TableRows(MemoryStorage({b"k": codecs.MsgPack().encode([b"\xff"])}), codecs.MsgPack())
    assert nested.to_arrow().to_pylist() == [{"key": "k", "value": nested.get("k")}]


def make() -> tuple[Any, Any]:
    """Return what a registry's serializers look like."""
    write, read = IntegerSerializer(), IntegerDeserializer()

    def named(value: int, context: SerializationContext) -> bytes:
        return f"{context.topic} {context.field} ".encode() + (write(value, context) or b"")

    def unnamed(data: bytes, context: SerializationContext) -> Any:
        return read(data.removeprefix(f"{context.topic} {context.field} ".encode()), context)

    return named, unnamed


def test_serializers_of_a_registry() -> None:
    """confluent-kafka's own get the topic; each process makes its own."""
    codec = RegistryCodec("numbers", make)
    encoded = codec.encode(7)
    assert encoded.startswith(b"numbers value ")
    again = pickle.loads(pickle.dumps(codec))  # noqa: S301 -- our own
    assert again.decode(encoded) == 7
