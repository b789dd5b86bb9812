"""The product's logger."""

from __future__ import annotations

import logging
import signal
from functools import partial
from typing import TYPE_CHECKING

import pytest

from offsetmgr.logs import SafeLogger
from tests.together import together

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "offsetmgr.test"


def fail(*_: object) -> bool:
    raise SystemExit(3)


def test_the_keys_of_an_event_follow_its_name(caplog: pytest.LogCaptureFixture) -> None:
    """Without a service, which has them as fields."""
    caplog.set_level(logging.INFO, NAME)
    log = SafeLogger(NAME)
    log.debug("hidden", reason="the level")
    log.info("librdkafka", kind="FAIL", text="100% of it")
    log.warning("%d of %s", 3, "t")
    assert [(r.levelname, r.name, r.getMessage()) for r in caplog.records] == [
        ("INFO", NAME, "librdkafka kind=FAIL text=100% of it"),
        ("WARNING", NAME, "3 of t"),
    ]
    assert {record.funcName for record in caplog.records} == {
        "test_the_keys_of_an_event_follow_its_name"
    }


def test_exceptions_have_their_traceback(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("trouble")  # noqa: TRY301 -- to be logged
    except ValueError:
        SafeLogger(NAME).exception("failed", group="g")
    assert "ERROR" in caplog.text
    assert "failed group=g" in caplog.text
    assert caplog.text.endswith("ValueError: trouble\n")


@pytest.mark.parametrize(
    "attach",
    [
        pytest.param(lambda logger, patch: patch.setattr(logger, "filters", [fail]), id="filter"),
        pytest.param(
            lambda logger, patch: patch.setattr(logger, "handlers", [_Raising()]), id="handler"
        ),
    ],
)
def test_a_raising_handler_or_filter_is_ignored(
    attach: Callable[[logging.Logger, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every log call returns, also of a value that cannot be shown."""
    attach(logging.getLogger(NAME), monkeypatch)
    log = SafeLogger(NAME)
    log.error("failed", exc_info=ValueError())
    log.error("failed", value=_Unshowable())
    log.guard("a callback failed", fail)


def test_only_the_main_thread_is_ended_by_a_keyboard_interrupt() -> None:
    """There it is Ctrl-C; elsewhere a callback has raised it, and must not end our thread."""
    log = SafeLogger(NAME)
    with pytest.raises(KeyboardInterrupt):
        log.guard("a callback failed", signal.default_int_handler, signal.SIGINT, None)
    interrupt = partial(signal.default_int_handler, signal.SIGINT, None)
    together(1, lambda _: log.guard("a callback failed", interrupt))


class _Raising(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        fail(record)


class _Unshowable:
    def __repr__(self) -> str:
        raise ValueError
