"""The log of the runtime, by the standard library's ``logging``: silent until that is set up."""

from __future__ import annotations

import logging

_logger = logging.getLogger("actors")
_logger.addHandler(logging.NullHandler())


def report(text: str, *args: object, error: BaseException | None = None) -> None:
    """Log an error; what a handler raises is ignored, as it must not end a thread of the runtime.

    Only KeyboardInterrupt passes, which is Ctrl-C.
    """
    try:
        _logger.error(text, *args, exc_info=error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001, S110 -- nowhere is left to report it
        pass
