"""Offset stores against a model of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from offsetmgr.errors import OffsetCommitError, OffsetsUncommittedError
from offsetmgr.stores import MemoryOffsetStore
from offsetmgr.stores.sql import SqlOffsetStore
from offsetmgr.types import MAX_OFFSET, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from offsetmgr.stores import ClaimingStore

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
    st.tuples(st.just("plain"), st.just(0), _group, _offsets),
)
Step = tuple[str, int, str, dict[TopicPartition, OffsetAndMetadata]]
STEPS = st.lists(_step, max_size=20)


def agrees(store: ClaimingStore, prefix: str, steps: Sequence[Step]) -> None:
    """Do the same to the store and to two dictionaries; ``prefix`` makes the groups new."""
    committed: dict[tuple[str, TopicPartition], OffsetAndMetadata] = {}
    owner: dict[tuple[str, TopicPartition], int] = {}
    claims = [store.claims() for _ in range(OWNERS)]
    for kind, number, short, offsets in steps:
        group = prefix + short
        if kind == "claim":
            found = claims[number].claim(group, offsets)
            assert found == {where: committed.get((group, where)) for where in offsets}
            owner |= {(group, where): number for where in offsets}
        elif kind == "plain":
            store.commit_offsets(
                group, {(w.topic, w.partition): each for w, each in offsets.items()}
            )
            committed |= {(group, where): each for where, each in offsets.items()}
        else:
            mine = {w: each for w, each in offsets.items() if owner.get((group, w)) == number}
            committed |= {(group, where): each for where, each in mine.items()}
            try:
                claims[number].commit(group, offsets)
                refused = 0
            except OffsetsUncommittedError as error:
                refused = len(error.errors)
            except OffsetCommitError:
                refused = 1
            assert refused == len(offsets) - len(mine)
    for group in (prefix + "g", prefix + "h"):
        expected = {where: each for (g, where), each in committed.items() if g == group}
        assert store.fetch_offsets(group) == expected
        assert store.fetch_offsets(group, PARTITIONS) == {
            where: expected.get(where) for where in PARTITIONS
        }
        assert (group in store.groups()) == bool(expected)


@given(STEPS)
def test_memory(steps: list[Step]) -> None:
    agrees(MemoryOffsetStore(), "", steps)


def test_sqlite(tmp_path: Path) -> None:
    with SqlOffsetStore(f"sqlite:///{tmp_path}/offsets.db") as store:

        @event.listens_for(store.engine, "connect")
        def spare_the_disk(connection: Any, _: object) -> None:
            connection.execute("PRAGMA synchronous = OFF")

        _check_database(store, 100)


def test_postgresql(database: str) -> None:
    with SqlOffsetStore(database) as store:
        _check_database(store, 30)


def _check_database(store: SqlOffsetStore, examples: int) -> None:
    store.create_tables()
    runs = iter(range(10**9))

    @settings(max_examples=examples)
    @given(STEPS)
    def check(steps: list[Step]) -> None:
        agrees(store, f"{next(runs)}-", steps)

    check()
