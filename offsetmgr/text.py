"""Text of others, and text with secrets, in messages, logs, terminals and printed commands.

Standard library only.

Names of groups, clients and hosts, and the answers of brokers, come from others: they may hold
line breaks, terminal sequences or characters that turn the direction of writing.
"""

from __future__ import annotations

import re
import shlex
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_SHOWN_CHARS: Final = 80
_LISTED: Final = 10
_FORMULA: Final = tuple("=+-@＝＋－＠")  # noqa: RUF001 -- some spreadsheets take wide ones too
"""First characters of a formula; a tab or a line break is escaped."""

SECRET_NAME: Final = re.compile(
    r"pass(word|wd|phrase)|secret|key|token|jaas|credential|oauthbearer\.(config|extensions)",
    re.IGNORECASE,
)
"""Names of settings whose values are never shown."""

MASK: Final = "***"
"""Shown in the place of a secret."""

_PLACE: Final = re.compile(r"(\[[0-9a-fA-F:.]*\]|[^:/\[\]]*)(:\d+(,[^:/]*:\d+)*)?(/.*)?")
"""Hosts with ports, and a path."""


def visible(text: str, most_chars: int | None = None) -> str:
    """Return ``text`` on one line: control, format, bidi and unprintable characters are escaped.

    It is cut behind ``most_chars`` characters; None cuts nothing.
    """
    kept = text if most_chars is None else text[:most_chars]
    if not kept.isprintable():
        kept = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in kept)
    return kept if most_chars is None or len(text) <= most_chars else f"{kept}…"


def csv_cell(value: object) -> object:
    """Return a value for CSV: text is escaped, and never a formula for a spreadsheet.

    A single quotation mark before the first character makes it text.
    """
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def shown(value: object) -> str:
    """Return a value for a message or a log: as Python writes it, escaped, and cut when long."""
    try:
        # Never build megabytes of repr for a message of one line.
        text = repr(value[:_SHOWN_CHARS] if isinstance(value, (str, bytes)) else value)
    except Exception:  # noqa: BLE001 -- such as an integer of more digits than Python will print
        text = f"<{type(value).__name__}>"
    if isinstance(value, (str, bytes)) and len(value) > _SHOWN_CHARS:
        return f"{text}… ({len(value)} characters)"
    return visible(text, _SHOWN_CHARS)


def error_text(error: BaseException, most_chars: int = 2_000) -> str:
    """Return type and message of an exception, whatever its ``__str__`` does; it can be encoded."""
    try:
        text = str(error)
    except BaseException as failed:  # noqa: BLE001 -- the exception may be of anybody's making
        text = f"its text cannot be had ({type(failed).__name__})"
    name = type(error).__name__
    return encodable(f"{name}: {text[:most_chars]}" if text else name)


def encodable(text: str) -> str:
    """Return ``text`` with lone surrogates, which UTF-8 has no bytes for, as escapes."""
    return text.encode(errors="backslashreplace").decode()


def listed(values: Collection[object]) -> str:
    """Return the first ten values as text, with the number of the others."""
    first = ", ".join(map(str, islice(values, _LISTED)))
    more = len(values) - _LISTED
    return first if more <= 0 else f"{first} and {more} more"


def shell_command(words: Iterable[str]) -> str:
    """Return a command to be printed, pasted into a POSIX shell and run with just these words."""
    return " ".join(map(shell_word, words))


def shell_word(text: str) -> str:
    """Return ``text`` as one word of a shell command; unprintable characters are escaped in it."""
    if text.isprintable():
        return shlex.quote(text)
    escaped = "".join(_shell_character(character) for character in text)
    return f"$'{escaped}'"


def _shell_character(character: str) -> str:
    if character in {"'", "\\"}:
        return f"\\{character}"
    if character.isprintable():
        return character
    # Octal, as a hexadecimal escape has no end; bytes, as a shell may not use UTF-8.
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogatepass"))


def masked_url(text: str) -> str:
    """Return a URL without the password of its login, and without its options.

    If it is not clear where the password ends, the scheme alone is shown.
    """
    scheme, colon, rest = text.partition("://") if "://" in text else ("", "", text)
    base, *options = re.split(r"[?;#]", rest, maxsplit=1)
    login, at, place = base.rpartition("@")
    unclear = options and "@" in options[0]
    if unclear or (scheme and _PLACE.fullmatch(place) is None):
        return f"{scheme}{colon}{MASK}"
    shown = MASK if ":" in login else login
    return f"{scheme}{colon}{shown}{at}{place}" + (f"?{MASK}" if options else "")
