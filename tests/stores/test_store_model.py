"""Offset stores against a model of them."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from offsetmgr.errors import OffsetManagerError
from offsetmgr.stores import MemoryOffsetStore
from offsetmgr.stores.base import causes_of, passes_later
from offsetmgr.stores.sql import SqlOffsetStore
from offsetmgr.types import MAX_OFFSET, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from offsetmgr.stores import OffsetStore

PARTITIONS = [TopicPartition(topic, number) for topic in ("a", "b") for number in range(2)]
OWNERS = 3

_offsets = st.dictionaries(
    st.sampled_from(PARTITIONS),
    st.builds(
        OffsetAndMetadata,
        st.integers(0, MAX_OFFSET),
        st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=5),
        st.none() | st.integers(0, 2**31 - 1),
    ),
    min_size=1,
)
_group = st.sampled_from(["g", "h"])
_step = st.one_of(
    st.tuples(st.just("claim"), st.integers(0, OWNERS - 1), _group, _offsets),
    st.tuples(st.just("commit"), st.integers(0, OWNERS - 1), _group, _offsets),
)
Step = tuple[str, int, str, dict[TopicPartition, OffsetAndMetadata]]
STEPS = st.lists(_step, max_size=20)


def agrees(stores: Sequence[OffsetStore], prefix: str, steps: Sequence[Step]) -> None:
    """Do the same to stores of one database and to dictionaries; ``prefix`` makes groups new."""
    committed: dict[tuple[str, TopicPartition], OffsetAndMetadata] = {}
    claims: dict[tuple[str, TopicPartition], list[int]] = defaultdict(list)
    for kind, number, short, offsets in steps:
        group, store = prefix + short, stores[number % len(stores)]
        if kind == "claim":
            if isinstance(store, SqlOffsetStore):
                found = store.claim(group, offsets)
                assert found == {where: committed.get((group, where)) for where in offsets}
                for where in offsets:
                    claims[group, where].append(number)
            continue
        refused = {
            where
            for where in offsets
            if number in claims[group, where] and claims[group, where][-1] != number
        }
        committed |= {(group, w): each for w, each in offsets.items() if w not in refused}
        errors: Iterable[OffsetManagerError] = ()
        try:
            store.commit_offsets(group, {(w.topic, w.partition): e for w, e in offsets.items()})
        except OffsetManagerError as error:
            errors = causes_of(error)
        named = {TopicPartition(str(each.topic), each.partition or 0) for each in errors}
        assert named == refused
        for each in errors:
            assert (each.code, passes_later(each)) == ("GENERATION_FENCED", False)
            assert re.search(rf"{group}/.* at offset .*: another process has claimed", str(each))
    for group in (prefix + "g", prefix + "h"):
        expected = {where: each for (g, where), each in committed.items() if g == group}
        for store in stores:
            assert store.fetch_offsets(group) == expected
            assert store.fetch_offsets(group, PARTITIONS) == {
                where: expected.get(where) for where in PARTITIONS
            }
            assert (group in store.groups()) == bool(expected)


@settings(max_examples=15)
@given(STEPS)
def test_memory(steps: list[Step]) -> None:
    agrees([MemoryOffsetStore()], "", steps)


def test_sqlite(tmp_path: Path) -> None:
    check_database(f"sqlite:///{tmp_path}/offsets.db", 40)


def test_postgresql(database: str) -> None:
    check_database(database, 15)


def check_database(url: str, examples: int) -> None:
    """Let three stores claim and commit in one database."""
    runs = iter(range(10**9))
    with SqlOffsetStore(url) as first, SqlOffsetStore(url) as second, SqlOffsetStore(url) as third:
        stores = [first, second, third]
        if "sqlite" in url:
            for store in stores:
                event.listen(store.engine, "connect", spare_the_disk)
        first.create_tables()

        @settings(max_examples=examples)
        @given(STEPS)
        def check(steps: list[Step]) -> None:
            agrees(stores, f"{next(runs)}-", steps)

        check()


def spare_the_disk(connection: Any, _: object) -> None:
    connection.execute("PRAGMA synchronous = OFF")
