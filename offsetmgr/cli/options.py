"""Options and exit statuses that commands share."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offsetmgr.errors import (
    Fault,
    InvalidValueError,
    KafkaRequestError,
    OffsetManagerError,
    OffsetTimeoutError,
    ServiceError,
    ServiceUnavailableError,
)

if TYPE_CHECKING:
    from offsetmgr.service.settings import Settings

EXIT_TROUBLE = 1
EXIT_USAGE = 2
EXIT_INCOMPLETE = 3
EXIT_INTERRUPTED = 130

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file (default: $OFFSETMGR_CONFIG, else none)."),
]
Listen = Annotated[
    str | None, typer.Option(help="127.0.0.1:8741 (the default) or unix:///path/to.sock.")
]
Bootstrap = Annotated[str | None, typer.Option(help="Kafka's host:port,host:port.")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Any other setting, e.g. commit.commit_interval_s=0.5."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]


@contextlib.contextmanager
def failing_in_one_line(*, usage: int = EXIT_TROUBLE, late: int = EXIT_TROUBLE) -> Iterator[None]:
    """Turn errors made for people into a line on stderr; anything else keeps its traceback.

    ``usage`` is the exit status where a value is wrong, ``late`` where something took too long.
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except (OffsetManagerError, OSError) as error:
        print(f"offsetmgr: {error}", file=sys.stderr)
        if isinstance(error, InvalidValueError):
            sys.exit(usage)
        sys.exit(late if _unanswered(error) else EXIT_TROUBLE)


def _unanswered(error: Exception) -> bool:
    """True if nobody answered; else somebody refused."""
    if isinstance(error, KafkaRequestError):
        return error.info.fault in {Fault.BROKER, Fault.NETWORK}
    if isinstance(error, ServiceError):
        return error.status == HTTPStatus.GATEWAY_TIMEOUT
    return isinstance(error, (OffsetTimeoutError, ServiceUnavailableError))


for_scripts = partial(failing_in_one_line, usage=EXIT_USAGE, late=EXIT_INCOMPLETE)
"""The same with the exit statuses of the operator's commands."""


def flags(
    listen: str | None,
    bootstrap_servers: str | None,
    log_level: str | None,
    others: list[str] | None,
) -> dict[str, tuple[object, str]]:
    """Return settings given as options, with the option as their source."""
    given: dict[str, tuple[object, str]] = {}
    for each in others or ():
        name, equals, value = each.partition("=")
        if not equals:
            # It may hold a secret.
            text = "what was given has no '='; write NAME=VALUE"
            raise typer.BadParameter(text, param_hint="--set")
        given[name.strip()] = (value, f"--set {name.strip()}")
    named = {
        "listen": (listen, "--listen"),
        "kafka.bootstrap.servers": (bootstrap_servers, "--bootstrap-servers"),
        "log_level": (log_level, "--log-level"),
    }
    return given | {name: entry for name, entry in named.items() if entry[0] is not None}


def load_settings(
    config: Path | None, bootstrap_servers: str | None, others: list[str] | None
) -> Settings:
    """Return the settings of a command that talks to Kafka itself.  Raises InvalidValueError."""
    from offsetmgr.service.settings import load

    return load(config, os.environ, flags(None, bootstrap_servers, None, others))
