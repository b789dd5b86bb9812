"""What can end the demo early."""

from __future__ import annotations

from offsetmgr.errors import OffsetManagerError


class DemoError(OffsetManagerError):
    """A step of the demo could not be taken."""

    code = "demo"


class Interrupted(BaseException):
    """SIGINT or SIGTERM: everything is unwound, and the demo ends as a shell expects."""

    def __init__(self, signal_number: int) -> None:
        """``signal_number`` is what came in."""
        super().__init__(signal_number)
        self.signal_number = signal_number
