"""How a command fails: one line that says what happened and what to do, and status 1."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from offsetmgr.errors import OffsetManagerError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


@contextlib.contextmanager
def failing_in_one_line() -> Iterator[None]:
    """Turn errors made for people into a line on stderr; anything else keeps its traceback."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except (OffsetManagerError, OSError) as error:
        print(f"offsetmgr: {error}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
