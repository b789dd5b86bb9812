"""What can go wrong with a Kafka of one's own machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from offsetmgr.errors import OffsetManagerError

if TYPE_CHECKING:
    from pathlib import Path

_TAIL_BYTES: Final = 8_192
_TAIL_LINES: Final = 25


class DevKafkaError(OffsetManagerError):
    """The local Kafka, or a tool it needs, is missing, did not start or is not running."""

    code = "dev_kafka"


def log_tail(path: Path) -> str:
    """Return the last lines of the log ``path``, to stand at the end of an error."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError as error:
        return f"(its log could not be read: {error})"
    return "\n".join(lines) if lines else "(its log is empty)"
