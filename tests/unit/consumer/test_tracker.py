"""The acks of a partition against a set, and their encoding against kafka-pixy's."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.acked_ranges import (
    AckTracker,
    decode_acks,
    decode_ranges,
    encode_acks,
    encode_ranges,
)
from offsetmgr.types import MAX_OFFSET

BASES = st.sampled_from([0, 300, 2**40, MAX_OFFSET - 301])


def delivered(base: int, count: int, limit_chars: int = 4096) -> AckTracker[None]:
    """A tracker with ``count`` pending offsets."""
    tracker = AckTracker[None](base, limit_chars=limit_chars)
    for offset in range(base, base + count):
        assert tracker.deliver(offset, None)
    return tracker


@given(BASES, st.lists(st.integers(0, 120), max_size=200))
def test_any_order_of_acks_equals_a_set(base: int, order: list[int]) -> None:
    """Offset, ranges and what a restart delivers again agree with a set of offsets."""
    tracker = delivered(base, 121)
    acked: set[int] = set()
    for step in order:
        assert tracker.acknowledge(base + step) == (step not in acked)
        acked.add(step)
        lowest = next(each for each in range(122) if each not in acked)
        offset, metadata, _ = tracker.position
        assert offset == base + lowest
        again = AckTracker[None](offset, metadata)
        assert again.position == tracker.position
        left = {each for each in range(lowest, 121) if again.deliver(base + each, None)}
        assert left == set(range(121)) - acked
    assert len(tracker.pending) == 121 - len(acked)


@given(BASES, st.sets(st.integers(0, 300), min_size=1), st.randoms(use_true_random=False))
def test_offsets_that_do_not_exist_count_as_acknowledged(
    base: int, exist: set[int], rng: random.Random
) -> None:
    """A compacted partition's commit moves over the holes."""
    tracker = AckTracker[None](base)
    for offset in sorted(exist):
        tracker.deliver(base + offset, None)
    order = sorted(exist)
    rng.shuffle(order)
    for at, offset in enumerate(order):
        tracker.acknowledge(base + offset)
        left = order[at + 1 :]
        assert tracker.offset == base + min(left, default=max(exist) + 1)


@given(
    st.integers(40, 100),
    st.lists(st.sampled_from([1, 1, 1, 1, 2, 40, 2**35]), max_size=600),
    st.randoms(use_true_random=False),
)
def test_acknowledged_ranges_always_fit(
    limit_chars: int, steps: list[int], rng: random.Random
) -> None:
    """The metadata stays within its limit for any order of acks and any missing offsets."""
    tracker = AckTracker[None](0, limit_chars=limit_chars)
    pending: list[int] = []
    offset = 0
    for step in steps:
        if tracker.has_room:
            tracker.deliver(offset, None)
            pending.append(offset)
            offset += step  # above 1 there are offsets that do not exist
        else:
            assert pending
        assert len(tracker.position.metadata) <= limit_chars
        if pending and (rng.random() < 0.5 or not tracker.has_room):
            # One that is never acknowledged, if there are others, makes the longest metadata.
            at = rng.randrange(1, len(pending)) if len(pending) > 1 else 0
            tracker.acknowledge(pending.pop(at))
        assert len(tracker.position.metadata) <= limit_chars


@pytest.mark.parametrize("hole", [1, 2, 2**40])
def test_offsets_that_do_not_exist_always_fit(hole: int) -> None:
    """A partition that is full, with holes of all sizes at all places, and every second ack."""
    for seed in range(300):
        rng = random.Random(seed)  # noqa: S311
        limit_chars = rng.randrange(40, 130)
        tracker = AckTracker[None](0, limit_chars=limit_chars)
        pending: list[int] = []
        offset = 0
        while tracker.has_room:
            tracker.deliver(offset, None)
            pending.append(offset)
            offset += hole if rng.random() < 0.1 else 1
        for each in rng.sample(pending[1::2], len(pending) // 2):
            tracker.acknowledge(each)
            assert len(tracker.position.metadata) <= limit_chars


@given(st.integers(10, 200), st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40))))
def test_full_metadata_of_a_former_member_never_stops_the_partition(
    limit_chars: int, runs: list[tuple[int, int]]
) -> None:
    """A restart delivers one after the other at least, and the metadata stays within its limit."""
    ranges, base = [], 0
    for gap, length in runs:
        ranges.append((base + gap, base + gap + length))
        base += gap + length
    metadata = encode_acks(0, ranges)
    limit_chars = max(limit_chars, len(metadata))
    tracker = AckTracker[None](0, metadata, limit_chars=limit_chars)
    pending: list[int] = []
    for offset in range(base + 50):
        while not tracker.has_room:
            tracker.acknowledge(pending.pop())
            assert len(tracker.position.metadata) <= limit_chars
        if tracker.deliver(offset, None):
            pending.append(offset)
    for offset in reversed(pending):
        tracker.acknowledge(offset)
        assert len(tracker.position.metadata) <= limit_chars
    assert tracker.position == (base + 50, "", None)


def test_the_encoding_is_kafka_pixys() -> None:
    """Cases of its tests and numbers worked out by hand."""
    assert encode_ranges(0, [(1, 2)]) == "BB"
    assert encode_ranges(301, [(302, 305), (307, 309)]) == "BDCC"
    assert encode_ranges(0, [(32, 33)]) == "gBB"
    assert encode_ranges(0, [(MAX_OFFSET - 1, MAX_OFFSET)]) == "+" + "/" * 11 + "HB"
    assert decode_ranges(1000, "abra1234+/P")


BAD = ["A", "AA", "AB", "BA", "a@b", "abra1234+/PS", "g", "/" * 13 + "BB", "é"]
OTHER = ["BZ", "BDCC", "acks:", "acks:AAAA:BB", "acks:AAAABB", "b=1", "ä"]


@pytest.mark.parametrize("text", [*BAD, *OTHER])
def test_metadata_of_other_programs_is_not_taken_for_acks(text: str) -> None:
    """Base64 text, kafka-pixy's bare form, and our form without its checksum."""
    with pytest.raises(ValueError, match=r"another program|checksum"):
        AckTracker(1000, text)
    if text in BAD:
        with pytest.raises(ValueError, match=r"cut off|alphabet|not possible"):
            AckTracker(1000, text, bare=True)


@given(BASES, BASES)
def test_acks_belong_to_their_offset(base: int, other: int) -> None:
    """Metadata that was copied to another offset is refused; kafka-pixy's form is read if asked."""
    metadata = encode_acks(base, [(base + 2, base + 5)])
    assert decode_acks(base, metadata, bare=True) == [(base + 2, base + 5)]
    assert decode_acks(base, encode_ranges(base, [(base + 2, base + 5)]), bare=True)
    if other != base:
        with pytest.raises(ValueError, match="checksum"):
            decode_acks(other, metadata)


@given(st.text(max_size=40), BASES)
def test_any_text_is_ranges_or_refused(text: str, base: int) -> None:
    """Decoding and encoding again gives an equal list."""
    try:
        ranges = decode_ranges(base, text)
    except ValueError:
        return
    assert decode_ranges(base, encode_ranges(base, ranges)) == ranges
