"""Any sequence of messages, with crashes at any of them, comes to the tables of a plain loop."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.streams import Context, ProcessingError, Tester, codecs
from offsetmgr.streams.graph import GroupGraph, define_group, inputs, join, loop, output, persist

if TYPE_CHECKING:
    from collections.abc import Callable

KEYS = st.sampled_from(["a", "b", "c", ""])
MESSAGES = st.lists(st.tuples(st.sampled_from(["left", "right", "names"]), KEYS, st.integers(0, 5)))


def transfers(crash: Callable[[], None]) -> GroupGraph:
    """Return a group in which a message of n adds n to its key, and n-1 to the next, and so on."""

    def receive(ctx: Context, amount: int) -> None:
        total = (ctx.value() or 0) + amount + (ctx.join("names") or 0)
        if total > 30:
            ctx.delete()
        else:
            ctx.set_value(total)
        if amount > 0:
            ctx.loopback(chr(ord(ctx.key or "z") + 1), amount - 1)
        crash()
        ctx.emit("log", ctx.key, total)

    return define_group(
        "transfers",
        inputs(["left", "right"], codecs.Int64(), receive),
        loop(codecs.Int64(), receive),
        join("names", codecs.Int64()),
        persist(codecs.Int64()),
        output("log", codecs.Int64()),
    )


def expected(messages: list[tuple[str, str, int]]) -> tuple[dict[str, int], list[int]]:
    """Return the table and the log that plain Python comes to."""
    table: dict[str, int] = {}
    names: defaultdict[str, int] = defaultdict(int)
    log = []
    for topic, key, amount in messages:
        if topic == "names":
            names[key] = amount
            continue
        left, where = amount, key
        while True:
            total = table.get(where, 0) + left + names[where]
            table[where] = total
            if total > 30:
                del table[where]
            log.append(total)
            if left <= 0:
                break
            left, where = left - 1, chr(ord(where or "z") + 1)
    return table, log


@given(MESSAGES, st.sets(st.integers(0, 60)))
def test_crashes_change_nothing(messages: list[tuple[str, str, int]], crashes: set[int]) -> None:
    """A callback that fails at any call writes nothing, and its message comes again."""
    calls = 0

    def crash() -> None:
        nonlocal calls
        calls += 1
        if calls in crashes:
            raise RuntimeError("crash")

    tester = Tester()
    processor = tester.add_processor(transfers(crash))
    log = tester.queue_tracker("log")
    for topic, key, amount in messages:
        again = False
        while True:
            try:
                processor.restart() if again else tester.consume(topic, key, amount)
                break
            except ProcessingError:
                again = True
    table, outputs = expected(messages)
    assert {key: processor.get(key) for key in tester.table_keys("transfers-table")} == table
    assert [message.value for message in log] == outputs
    for topic in ("left", "right", "transfers-loop"):
        assert processor.committed(topic) == tester.queue_tracker(topic).high_watermark
