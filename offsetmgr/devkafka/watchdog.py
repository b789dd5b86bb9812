"""Runs one command and sees to it that the command never outlives its owner.

Started as a script of its own by ``process.py``; the standard library alone.  The command's
process id goes to standard output.  Every byte that then comes in on standard input is the number
of a signal to pass on, answered by a byte when that is done; the end of the input means that the
owner is gone, however it died, and the command is killed.  Being the command's parent, the
watchdog is the one that can signal it without ever hitting another process that got its number.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

# A child that the owner forked may hold the pipe open: so its end is not the only sign looked for.
_OWNER_CHECK_S = 1.0


def main(command: list[str]) -> int:
    """Run ``command`` to its end, or to the owner's; return its exit status as a shell would."""
    owner = os.getppid()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wake_write)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    # Not before the start of the command, which would inherit it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.write(f"{child.pid}\n")
    sys.stdout.flush()
    while child.poll() is None:
        readable, _, _ = select.select([0, wake_read], [], [], _OWNER_CHECK_S)
        if wake_read in readable:
            os.read(wake_read, 64)
        orders = os.read(0, 64) if 0 in readable else None
        if orders == b"" or os.getppid() != owner:
            child.kill()
            child.wait()
            break
        for order in orders or b"":
            child.send_signal(order)
            # Sending finds out where it has ended meanwhile: there is nobody to wait for then.
            if order == signal.SIGSTOP and child.returncode is None:
                # The threads of a busy process stop one by one; the last one makes it paused.
                os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            os.write(1, b".")
    status = child.returncode
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
