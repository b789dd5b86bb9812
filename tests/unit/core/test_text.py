"""Text of others in messages and printed commands."""

from __future__ import annotations

import subprocess

import pytest

from offsetmgr.text import listed, shell_command, shown, visible

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
