"""The groups that a regular expression chooses; standard library only.

An expression such as ``(a+)+`` may take years for some name, and ``re`` lets no other thread of its
process run meanwhile.  So names are matched in a process of their own, which runs this file.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_NAME_S: Final = 0.1
"""Processor time for one name."""


def chosen_names(
    pattern: str, names: Iterable[str], known: Mapping[str, bool | None]
) -> dict[str, bool | None]:
    """Return for each of ``names`` whether ``pattern`` matches all of it; None after too long.

    Names in ``known``, of an earlier call, are not matched again.  Raises OSError if no process can
    be started.
    """
    found = {name: known.get(name) for name in names}
    new = [name for name in found if name not in known]
    if new:
        done = subprocess.run(
            [sys.executable, "-I", "-S", __file__],
            input=json.dumps([pattern, new]),
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,  # Ctrl-C is for the service
        )
        if done.returncode:
            raise OSError(f"the names of groups were not matched: {done.stderr[-300:]}")
        found |= zip(new, json.loads(done.stdout), strict=True)
    return found


def _main() -> None:
    pattern, names = json.load(sys.stdin)
    chosen = re.compile(pattern, re.DOTALL)

    def end(*_: object) -> None:
        raise TimeoutError

    def matches(name: str) -> bool | None:
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, _NAME_S)
            return chosen.fullmatch(name) is not None
        except TimeoutError:
            return None
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    signal.signal(signal.SIGVTALRM, end)
    json.dump(list(map(matches, names)), sys.stdout)


if __name__ == "__main__":
    _main()
