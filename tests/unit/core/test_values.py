"""The small modules of values: pauses, deadlines, repeated log lines, text of others."""

from __future__ import annotations

import subprocess
import threading
from random import Random

import pytest

from actors.testing import ManualClock
from offsetmgr.backoff import Backoff, pause_s
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import InvalidValueError
from offsetmgr.repeats import INTERVAL_S, REMEMBERED, RepeatLimiter
from offsetmgr.text import listed, shell_command, shown, visible


def test_pauses_double_up_to_the_longest() -> None:
    """A success begins again with the first."""
    backoff = Backoff(0.5, 3.0)
    assert [backoff.failed() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.succeeded()
    assert backoff.failed() == 0.5


def test_jitter_spreads_pauses_over_the_upper_half() -> None:
    """Callers that failed together do not all try again together."""
    rng = Random(1)  # noqa: S311 -- jitter is not a secret
    pauses = {pause_s(3, 1.0, 30.0, rng) for _ in range(100)}
    assert len(pauses) == 100
    assert 2.0 <= min(pauses) < 2.2
    assert 3.8 < max(pauses) <= 4.0


@pytest.mark.parametrize("failures", [100, 10_000, 10**9])
def test_an_endless_outage_keeps_the_longest_pause(failures: int) -> None:
    """The number of failures overflows nothing."""
    assert pause_s(failures, 0.001, 30.0) == 30.0


def test_a_deadline_counts_down_on_the_given_clock() -> None:
    """It never says that a negative time is left."""
    clock = ManualClock()
    deadline = Deadline(5, now=clock.now)
    clock.advance(3)
    assert (deadline.left_s, deadline.over) == (2, False)
    clock.advance(10)
    assert (deadline.left_s, deadline.over) == (0, True)
    assert deadline.within_s() > 0


def test_no_deadline_is_as_long_as_threads_can_wait() -> None:
    """None is a limit only where the caller allows it."""
    assert Deadline(None, forever=True).left_s == threading.TIMEOUT_MAX
    with pytest.raises(InvalidValueError, match="timeout_s None"):
        Deadline(None, "timeout_s")


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "5", 1e300])
def test_an_impossible_timeout_is_refused(timeout: float) -> None:
    """The error names the field."""
    with pytest.raises(InvalidValueError, match="timeout"):
        Deadline(timeout)


def test_a_poll_asks_once_more_when_the_deadline_is_over() -> None:
    """An answer that came during the last pause is not missed; no time asks once."""
    assert list(Deadline(0).polls()) == [None]
    assert len(list(Deadline(0.02).polls(pause_s=10))) == 2


def test_a_cause_is_logged_once_per_interval_with_the_number_of_its_repeats() -> None:
    """Repeats within the interval are suppressed and counted; the count then begins anew."""
    repeats = RepeatLimiter()
    suppressed = [repeats.suppressed("a", at_s) for at_s in (0.0, 1.0, INTERVAL_S - 1, INTERVAL_S)]
    assert suppressed == [0, None, None, 2]
    assert repeats.suppressed("a", 2 * INTERVAL_S) == 0
    assert repeats.suppressed("b", 2 * INTERVAL_S) == 0


def test_the_number_of_remembered_causes_is_bounded() -> None:
    """Beyond the limit, the cause logged longest ago is forgotten."""
    repeats = RepeatLimiter()
    for number in range(REMEMBERED + 1):
        assert repeats.suppressed(number, 0.0) == 0
    assert repeats.suppressed(1, 1.0) is None
    assert repeats.suppressed(0, 1.0) == 0


HOSTILE = [
    "evil\r\n\x1b[2J",
    "\u202egpj.exe",
    "zero\u200bwidth",
    "line\u2028break",
    "\x9b31m",
    "lone \ud800 surrogate",
    "no\u00a0break",
    "\0",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_unprintable_characters_are_escaped(text: str) -> None:
    """Terminal sequences, turned writing and line breaks of others change no line but their own."""
    assert visible(text).isprintable()
    assert shown(text).isprintable()
    assert shown([text]).isprintable()


class Impostor:
    def __repr__(self) -> str:
        return "\u202e\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            visible("заказы-größe 注文 ✓"),
            "заказы-größe 注文 ✓",
        ),
        (visible("x" * 1_000, 100), "x" * 100 + "…"),
        # A message fits a line; a repr of megabytes is never built for it.
        (shown("x" * 1_000_000), "'" + "x" * 80 + "'… (1000000 characters)"),
        (shown(b"y" * 100), "b'" + "y" * 80 + "'… (100 characters)"),
        (shown(list(range(1_000)))[-5:], "1, 2…"),
        (shown(10**10_000), "<int>"),
        (shown(Impostor()), r"\u202e\n"),
        (listed(range(12)), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"),
    ],
)
def test_a_text_fits_its_line(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize(
    "word",
    [
        "plain",
        "two words",
        "it's",
        "$(reboot)",
        "`reboot`",
        "a;b",
        "",
        "\\",
        "größe",
        *HOSTILE[:-1],
    ],
)
def test_a_printed_command_runs_with_just_its_words(word: str) -> None:
    """It can be pasted, and shows no terminal sequence while it is only printed."""
    command = shell_command(["printf", "%s.", word, "end"])
    assert command.isprintable()
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    assert done.stdout == word.encode("utf-8", "surrogatepass") + b".end."
