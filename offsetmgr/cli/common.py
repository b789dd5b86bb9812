"""Options, tables, error lines and exit statuses that commands share."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from offsetmgr.admin.commands import Connection
from offsetmgr.admin.service import ServiceReader
from offsetmgr.client.transport import Credentials
from offsetmgr.errors import (
    Fault,
    InvalidValueError,
    KafkaRequestError,
    OffsetManagerError,
    OffsetStoreError,
    OffsetTimeoutError,
    ServiceError,
    ServiceUnavailableError,
)
from offsetmgr.text import MASK, SECRET_NAME, csv_cell, visible
from offsetmgr.types import add_once

if TYPE_CHECKING:
    from offsetmgr.admin.changes import GroupChanges
    from offsetmgr.service.settings import Settings


class Exit(IntEnum):
    """Exit statuses of commands; success is 0."""

    TROUBLE = 1
    USAGE = 2
    INCOMPLETE = 3
    INTERRUPTED = 130
    UNREAD = 141
    """The reader of the output has gone."""


ServiceUrl = Annotated[str, Option(envvar="OFFSETMGR_SERVICE", help="Address of the service.")]
TokenFile = Annotated[
    str | None,
    Option(metavar="PATH", envvar="OFFSETMGR_TOKEN_FILE", help="File with the service's token."),
]
Store = Annotated[
    str | None,
    Option(metavar="URL", help="Database with the groups: postgresql+psycopg://user@host/database"),
]
_WIDEST = 60
"""Characters of a column."""
DEFAULT_SERVICE = "http://127.0.0.1:8741"

GroupName = Annotated[str, Argument(metavar="GROUP", help="The consumer group.")]
Groups = Annotated[list[str], Argument(metavar="GROUP", help="Consumer groups.")]
SomeGroups = Annotated[
    list[str] | None, Argument(metavar="[GROUP]...", help="Consumer groups; all if none is given.")
]
Since = Annotated[
    str | None,
    Option(metavar="TIME", help="From this time on: 2026-01-31T13:05:00 (UTC), or 2h (ago)."),
]
Execute = Annotated[
    bool, Option("--execute", help="Carry the plan out; without it, only print the plan.")
]
Json = Annotated[bool, Option("--json", help="Print JSON.")]
Timeout = Annotated[float, Option(min=0.1, help="Seconds to wait for an answer.")]

ConfigFile = Annotated[
    Path | None, Option("--config", help="TOML file (default: $OFFSETMGR_CONFIG, else none).")
]


# The settings that have an option of their own, by the name of its field.
_SETTINGS = {
    "bootstrap_servers": "kafka.bootstrap.servers",
    "listen": "listen",
    "log_level": "log_level",
    "exit_after_last_client": "exit_after_last_client_s",
}


def credentials(token_file: str | None = None) -> Credentials:
    """Return the token, of the file if it is given, and the certificates of the environment."""
    return Credentials.from_environment(os.environ, token_file)


def service_reader(url: str, token_file: str | None, timeout_s: float) -> ServiceReader:
    return ServiceReader(url, timeout_s, credentials(token_file))


@dataclass(frozen=True)
class SettingsOptions:
    """The options that become settings: of Kafka and of the service."""

    config: ConfigFile = None
    bootstrap_servers: Annotated[str | None, Option(help="Kafka's host:port,host:port.")] = None
    cluster: Annotated[
        str | None, Option(metavar="NAME", help="A cluster of the configuration file.")
    ] = None
    set_: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME=VALUE", help="Any setting: commit.commit_interval_s=0.5."),
    ] = None

    def connection(self) -> Connection:
        """Return these options for commands that are printed, without secrets."""
        kafka = self._given("config", "bootstrap_servers", "cluster")
        for setting in self.set_ or ():
            name = setting.partition("=")[0]
            kafka += ["--set", f"{name}={MASK}" if SECRET_NAME.search(name) else setting]
        return Connection(tuple(kafka), tuple(self._given("service", "token_file")))

    def _given(self, *names: str) -> list[str]:
        words: list[str] = []
        for name in names:
            value = getattr(self, name, None)
            words += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
        return words

    def load(self) -> Settings:
        """Return the settings of the file, the environment and the options.

        Raises InvalidValueError.
        """
        from offsetmgr.service.settings import load

        given: dict[str, tuple[object, str]] = {}
        for each in self.set_ or ():
            name, equals, value = each.partition("=")
            if not equals:
                # It may hold a secret.
                text = "what was given has no '='; write NAME=VALUE"
                raise typer.BadParameter(text, param_hint="--set")
            add_once(given, name.strip(), (value, f"--set {name.strip()}"), "--set")
        for field, setting in _SETTINGS.items():
            chosen = getattr(self, field, None)
            if chosen is not None:
                option = f"--{field.replace('_', '-')}"
                add_once(given, setting, (chosen, option), option)
        return load(self.config, os.environ, given, self.cluster)


@dataclass(frozen=True)
class KafkaOptions(SettingsOptions):
    """The options by which a command finds Kafka."""

    timeout: Timeout = 10.0

    def for_librdkafka(self) -> dict[str, object]:
        """Return librdkafka's settings for the cluster.  Raises InvalidValueError."""
        return self.load().kafka.for_librdkafka()


@dataclass(frozen=True)
class OwnersOptions(KafkaOptions):
    """Kafka's options, and a service that may hold groups."""

    service: Annotated[
        str | None,
        Option(
            envvar="OFFSETMGR_SERVICE",
            help="Address of a running service; groups that its clients commit are not changed.",
        ),
    ] = None
    token_file: TokenFile = None

    def owner(self) -> ServiceReader | None:
        url = self.service
        return None if url is None else service_reader(url, self.token_file, self.timeout)


@dataclass(frozen=True)
class SourceOptions(OwnersOptions):
    """The options by which a command finds groups: in Kafka, a database or a service."""

    service: Annotated[
        str | None, Option(help="Ask a running service: http://host:port or unix:///path/to.sock.")
    ] = None
    store: Store = None


@dataclass(frozen=True)
class PlanOptions(OwnersOptions):
    """The options of a command that plans a change of groups, and carries it out."""

    execute: Execute = False

    def changes(self, store: str | None = None) -> GroupChanges:
        """Return what plans and makes changes, in Kafka or in a store."""
        from offsetmgr.admin.changes import GroupChanges

        settings, timeout_s = self.for_librdkafka(), self.timeout
        return GroupChanges(settings, self.owner(), timeout_s=timeout_s, store=store)


@dataclass(frozen=True)
class ServiceOptions(SettingsOptions):
    """The options of the service itself."""

    listen: Annotated[
        str | None, Option(help="127.0.0.1:8741 (the default) or unix:///path/to.sock.")
    ] = None
    log_level: Annotated[str | None, Option(help="debug, info, warning or error.")] = None
    exit_after_last_client: Annotated[
        float | None,
        Option(metavar="SECONDS", help="Stop this long after the last client has gone."),
    ] = None


@dataclass(frozen=True)
class OutputOptions:
    """The form in which a command prints its answer: a table by default."""

    as_json: Json = False
    as_csv: Annotated[bool, Option("--csv", help="Print CSV.")] = False

    @property
    def as_table(self) -> bool:
        return not (self.as_json or self.as_csv)

    def print(
        self,
        answer: Any,
        heads: Sequence[str],
        rows: Sequence[Sequence[object]],
        name: str = "",
        *,
        ends: Iterable[str] = (),
        problems: Iterable[str] = (),
    ) -> None:
        """Print ``rows`` as CSV or as a table, or ``answer`` as JSON, where ``name`` holds them.

        ``ends`` are lines behind a table, ``problems`` lines on stderr, which JSON has by itself.
        """
        if self.as_json:
            print_json({**answer, name: records(heads, rows)} if name else answer)
        elif self.as_csv:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(heads)
            writer.writerows(map(csv_cell, row) for row in rows)
        elif rows:
            print_table(heads, rows)
        else:
            print("There are none.")
        for line in ends if self.as_table else ():
            say(line)
        for line in () if self.as_json else problems:
            say(line, error=True)


@contextlib.contextmanager
def failing_in_one_line(*, detailed: bool = False, changes: bool = False) -> Iterator[None]:
    """Turn errors made for people into a line on stderr; anything else keeps its traceback.

    ``detailed`` exit statuses tell a wrong value and a lack of answers from other trouble.
    ``changes`` is True for a command that changes something, which Ctrl-C may leave half done.
    """
    try:
        yield
    except KeyboardInterrupt:
        if changes:
            text = "interrupted; whether the change was made is not known: look again"
            say(f"offsetmgr: {text}", error=True)
        sys.exit(Exit.INTERRUPTED)
    except (OffsetManagerError, OSError) as error:
        is_unread = isinstance(error, BrokenPipeError)  # such as head has read enough
        if not is_unread:
            text = f"offsetmgr: {error}"
            is_log = getattr(error, "code", "") == "dev_kafka"  # it has lines
            for line in text.expandtabs().splitlines() if is_log else [text]:
                say(line, error=True)
        try:
            sys.stdout.flush()
        except OSError:  # nobody reads it, or the disk is full: nor is it written at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(Exit.UNREAD if is_unread else _status(error) if detailed else Exit.TROUBLE)


def _status(error: Exception) -> Exit:
    unanswered = isinstance(error, (OffsetTimeoutError, ServiceUnavailableError))
    if isinstance(error, InvalidValueError):
        return Exit.USAGE
    if isinstance(error, (KafkaRequestError, OffsetStoreError)):
        unanswered = error.info.fault in {Fault.BROKER, Fault.NETWORK}
    elif isinstance(error, ServiceError):
        unanswered = error.status == HTTPStatus.GATEWAY_TIMEOUT
    return Exit.INCOMPLETE if unanswered else Exit.TROUBLE


def say(text: str, *, error: bool = False, **style: Any) -> None:
    """Print a line, to standard error if ``error``; names and messages of others are escaped."""
    typer.secho(visible(text), err=error, **style)


def print_json(answer: object) -> None:
    print(json.dumps(answer, indent=2, default=str))


def records(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[dict[str, object]]:
    """Return the rows as JSON objects, by their heads."""
    return [dict(zip(heads, row, strict=True)) for row in rows]


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table."""
    for line in table_lines([head.replace("_", " ") for head in heads], rows):
        print(line)


def table_lines(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a table; numbers stand on the right, None is a dash.

    A column without text is left out.  A cell that is wider than others can be moves its own row
    alone.  Letters of Chinese, for example, take two places of a terminal.
    """
    from rich.cells import cell_len

    kept = [at for at in range(len(heads)) if not rows or any(row[at] != "" for row in rows)]
    cells = [["-" if row[at] is None else visible(str(row[at])) for at in kept] for row in rows]
    table = [[heads[at] for at in kept], *cells]
    widths = [min(max(map(cell_len, column)), _WIDEST) for column in zip(*table, strict=True)]
    numbers = [any(isinstance(row[at], (int, float)) for row in rows) for at in kept]
    lines = []
    for line in table:
        padded = []
        for cell, width, is_number in zip(line, widths, numbers, strict=True):
            space = " " * (width - cell_len(cell))
            padded.append(f"{space}{cell}" if is_number else f"{cell}{space}")
        lines.append("  ".join(padded).rstrip())
    return lines
