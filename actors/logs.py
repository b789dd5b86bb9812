"""Loggers of the libraries: events with keys, for structlog where the process has configured it.

Elsewhere they are lines for the standard library's ``logging``, silent until that is set up.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_SILENT: Final = logging.NullHandler()


def _as_line(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> Any:
    exc_info = event.pop("exc_info", None)
    line = " ".join([str(event.pop("event", "")), *(f"{k}={v}" for k, v in event.items())])
    return ("%s", line), {"exc_info": exc_info}


class _Logger:
    """Chooses with each line, as logging may be set up after the import."""

    def __init__(self, name: str) -> None:
        self._configured = structlog.get_logger(name)
        self._plain = structlog.wrap_logger(
            logging.getLogger(name),
            processors=[structlog.stdlib.filter_by_level, _as_line],
            wrapper_class=structlog.stdlib.BoundLogger,
        )

    def __getattr__(self, method: str) -> Any:
        return getattr(self._configured if structlog.is_configured() else self._plain, method)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    logging.getLogger(name).addHandler(_SILENT)
    return cast("structlog.stdlib.BoundLogger", _Logger(name))
