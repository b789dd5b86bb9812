"""Options, tables, error lines and exit statuses that commands share."""

from __future__ import annotations

import contextlib
import csv
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from typer import Argument, Option

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
from offsetmgr.service.logs import visible

if TYPE_CHECKING:
    from offsetmgr.admin.changes import GroupChanges
    from offsetmgr.service.settings import Settings


class Exit(IntEnum):
    """Exit statuses of commands; success is 0."""

    TROUBLE = 1
    USAGE = 2
    INCOMPLETE = 3
    INTERRUPTED = 130


_STATUSES = (
    "Exit status: 0 success; 1 something is wrong, or Kafka refused; 2 an option is wrong; "
    "3 the result is incomplete."
)

ServiceUrl = Annotated[
    str, Option("--service", envvar="OFFSETMGR_SERVICE", help="Address of the service.")
]
TokenFile = Annotated[
    str | None,
    Option(
        "--token-file",
        metavar="PATH",
        envvar="OFFSETMGR_TOKEN_FILE",
        help="The token that the service asks for.",
    ),
]
Store = Annotated[
    str | None,
    Option(
        "--store",
        metavar="URL",
        help="Of groups that are kept in a database: postgresql+psycopg://user@host/database.",
    ),
]
DEFAULT_SERVICE = "http://127.0.0.1:8741"

GroupName = Annotated[str, Argument(metavar="GROUP", help="The consumer group.")]
Groups = Annotated[list[str], Argument(metavar="GROUP...", help="Consumer groups.")]
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
Timeout = Annotated[float, Option(min=0.1, help="Seconds to wait for Kafka.")]

ConfigFile = Annotated[
    Path | None, Option("--config", help="TOML file (default: $OFFSETMGR_CONFIG, else none).")
]


def service_reader(url: str, token_file: str | None, timeout_s: float) -> ServiceReader:
    """Return what asks a service, with the token and the certificates of the environment."""
    credentials = Credentials.from_environment(os.environ, token_file)
    return ServiceReader(url, timeout_s, credentials)


@dataclass(frozen=True)
class SettingsOptions:
    """The options that become settings: of Kafka and of the service."""

    config: ConfigFile = None
    bootstrap_servers: Annotated[str | None, Option(help="Kafka's host:port,host:port.")] = None
    cluster: Annotated[
        str | None, Option(metavar="NAME", help="A clusters.NAME of the configuration file.")
    ] = None
    set_: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other setting, e.g. commit.commit_interval_s=0.5.",
        ),
    ] = None

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
            given[name.strip()] = (value, f"--set {name.strip()}")
        given |= {name: entry for name, entry in self.named().items() if entry[0] is not None}
        return load(self.config, os.environ, given, self.cluster)

    def named(self) -> dict[str, tuple[object, str]]:
        """Return the settings that have an option of their own, with its value and name."""
        return {"kafka.bootstrap.servers": (self.bootstrap_servers, "--bootstrap-servers")}


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
            help="A running service: a group that its clients hold is left alone.",
        ),
    ] = None
    token_file: TokenFile = None

    def owner(self) -> ServiceReader | None:
        if self.service is None:
            return None
        return service_reader(self.service, self.token_file, self.timeout)


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
        Option(metavar="SECONDS", help="Stop so many seconds after the last client has gone."),
    ] = None

    def named(self) -> dict[str, tuple[object, str]]:
        return super().named() | {
            "listen": (self.listen, "--listen"),
            "log_level": (self.log_level, "--log-level"),
            "exit_after_last_client_s": (self.exit_after_last_client, "--exit-after-last-client"),
        }


@dataclass(frozen=True)
class OutputOptions:
    """The form in which a command prints its answer: a table by default."""

    as_json: Json = False
    as_csv: Annotated[bool, Option("--csv", help="Print CSV.")] = False

    @property
    def as_table(self) -> bool:
        return not (self.as_json or self.as_csv)

    def print(
        self, answer: Any, heads: Sequence[str], rows: Sequence[Sequence[object]], name: str = ""
    ) -> None:
        """Print ``rows`` as CSV or as a table, or ``answer`` as JSON, where ``name`` holds them."""
        if self.as_json:
            print_json({**answer, name: records(heads, rows)} if name else answer)
        elif self.as_csv:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(heads)
            writer.writerows(rows)
        else:
            print_table(heads, rows)


@contextlib.contextmanager
def failing_in_one_line(*, usage: int = Exit.TROUBLE, late: int = Exit.TROUBLE) -> Iterator[None]:
    """Turn errors made for people into a line on stderr; anything else keeps its traceback.

    ``usage`` is the exit status if a value is wrong, ``late`` if nobody answered.
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    except (OffsetManagerError, OSError) as error:
        print(f"offsetmgr: {error}", file=sys.stderr)
        if isinstance(error, InvalidValueError):
            sys.exit(usage)
        sys.exit(late if _unanswered(error) else Exit.TROUBLE)


def _unanswered(error: Exception) -> bool:
    """Return True if nobody answered, False if somebody refused."""
    if isinstance(error, (KafkaRequestError, OffsetStoreError)):
        return error.info.fault in {Fault.BROKER, Fault.NETWORK}
    if isinstance(error, ServiceError):
        return error.status == HTTPStatus.GATEWAY_TIMEOUT
    return isinstance(error, (OffsetTimeoutError, ServiceUnavailableError))


def add_command(
    app: typer.Typer,
    function: Callable[..., int | None],
    name: str | None = None,
    *,
    usage: int = Exit.TROUBLE,
    late: int = Exit.TROUBLE,
    epilog: str | None = None,
    timeout_s: float | None = None,
) -> None:
    """Add ``function``, which returns its exit status, to ``app``; it fails in one line.

    A parameter of a dataclass such as ``KafkaOptions`` stands for all the options in that class.
    ``timeout_s`` replaces the default of ``--timeout``.
    """
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for each, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if is_dataclass(parameter.annotation):
            groups[each] = parameter.annotation
            options += inspect.signature(groups[each], eval_str=True).parameters.values()
        else:
            options.append(parameter)
    for index, option in enumerate(options):
        default = timeout_s if option.name == "timeout" and timeout_s else option.default
        options[index] = option.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=default)

    def command(**values: Any) -> None:
        for each, group in groups.items():
            values[each] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        with failing_in_one_line(usage=usage, late=late):
            sys.exit(function(**values))

    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    # \b is typer's mark of a paragraph whose lines are kept.
    paragraphs = [
        each if each.startswith("\b") else " ".join(each.split())
        for each in (inspect.getdoc(function) or "").split("\n\n")
    ]
    app.command(
        name or function.__name__.replace("_", "-"), help="\n\n".join(paragraphs), epilog=epilog
    )(command)


add_operators_command = partial(
    add_command, usage=Exit.USAGE, late=Exit.INCOMPLETE, epilog=_STATUSES
)
"""The same for the commands that read and change groups, whose exit statuses tell more."""


_GAP = "  "

_ENDLESS = 10_000
"""Columns of an output that is no terminal: nothing is cut there."""


def console() -> Console:
    """Return what prints for people: coloured and cut to its width on a terminal alone."""
    width = None if sys.stdout.isatty() else _ENDLESS
    return Console(width=width, highlight=False, markup=False, emoji=False)


def print_json(answer: object) -> None:
    print(json.dumps(answer, indent=2, default=str))


def records(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[dict[str, object]]:
    """Return the rows as JSON objects, by their heads."""
    return [dict(zip(heads, row, strict=True)) for row in rows]


def print_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    styles: Mapping[str, str] | None = None,
    whole: Sequence[str] = (),
) -> None:
    """Print a table; numbers stand on the right, None is a dash, a column without text is left out.

    ``styles`` colours the rows whose last cell is one of its keys.  On a narrow terminal cells are
    folded, except in the columns ``whole``.
    """
    columns = range(len(heads))
    kept = [index for index in columns if not rows or any(row[index] != "" for row in rows)]
    heads = [heads[index].replace("_", " ") for index in kept]
    rows = [[row[index] for index in kept] for row in rows]
    shown = [["-" if cell is None else visible(str(cell)) for cell in row] for row in rows]
    right = [any(isinstance(row[index], int) for row in rows) for index in range(len(heads))]
    widths = [max(map(cell_len, column)) for column in zip(heads, *shown, strict=True)]
    out = console()
    if sum(widths) + len(_GAP) * len(widths) > out.width:
        # Its longest cells take several lines.
        table = Table(box=None, header_style="bold", pad_edge=False)
        for head, to_right in zip(heads, right, strict=True):
            side: Literal["left", "right"] = "right" if to_right else "left"
            table.add_column(head, justify=side, overflow="fold", no_wrap=head in whole)
        for row in shown:
            table.add_row(*row, style=(styles or {}).get(row[-1]))
        out.print(table)
        return
    # Many times as quick as rich's own tables, which matters from some thousands of rows on.
    for row in (heads, *shown):
        cells = [
            " " * (width - cell_len(cell)) + cell if to_right else set_cell_size(cell, width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        line, style = _GAP.join(cells).rstrip(), (styles or {}).get(row[-1])
        if row is heads or style:
            out.print(line, style=style or "bold")
        else:
            print(line)
