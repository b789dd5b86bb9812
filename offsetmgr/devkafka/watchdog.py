"""Runs one command and sees to it that the command never outlives its owner.

Started as a script of its own by ``process.py``; the standard library alone.  The command's
process id goes to standard output.  The end of standard input means that the owner is gone,
however it died, and the command is killed.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading

# A child that the owner forked may hold the pipe open: so its end is not the only sign looked for.
_OWNER_CHECK_S = 1.0


def main(command: list[str]) -> int:
    """Run ``command`` to its end, or to the owner's; return its exit status as a shell would."""
    owner = os.getppid()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    # Not before the start of the command, which would inherit it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.write(f"{child.pid}\n")
    sys.stdout.flush()

    def kill_with_owner() -> None:
        while os.getppid() == owner and not select.select([0], [], [], _OWNER_CHECK_S)[0]:
            pass
        child.kill()

    threading.Thread(target=kill_with_owner, daemon=True).start()
    status = child.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
