"""Options, error lines and exit statuses that commands share."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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

if TYPE_CHECKING:
    from offsetmgr.service.settings import Settings

EXIT_TROUBLE = 1
EXIT_USAGE = 2
EXIT_INCOMPLETE = 3
EXIT_INTERRUPTED = 130

_STATUSES = (
    "Exit status: 0 success; 1 something is wrong, or Kafka refused; 2 an option is wrong; "
    "3 the result is incomplete."
)

Service = Annotated[
    str | None,
    typer.Option(help="Ask a running service: http://host:port or unix:///path/to.sock."),
]
ServiceUrl = Annotated[
    str, typer.Option("--service", envvar="OFFSETMGR_SERVICE", help="Address of the service.")
]
OwnersService = Annotated[
    str | None,
    typer.Option(
        "--service",
        envvar="OFFSETMGR_SERVICE",
        help="A running service: a group that its clients hold is left alone.",
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Of groups that are kept in a database: postgresql+psycopg://user@host/database.",
    ),
]
DEFAULT_SERVICE = "http://127.0.0.1:8741"

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
Groups = Annotated[list[str], typer.Argument(metavar="GROUP...", help="Consumer groups.")]
SomeGroups = Annotated[
    list[str] | None,
    typer.Argument(metavar="[GROUP]...", help="Consumer groups; all if none is given."),
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC[:P,P...]", help="A topic or some of its partitions."),
]
AllTopics = Annotated[
    bool, typer.Option("--all-topics", help="All partitions with committed offsets.")
]
Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="From this time on: 2026-01-31T13:05:00 (UTC), or 2h (ago)."),
]
Execute = Annotated[
    bool, typer.Option("--execute", help="Carry the plan out; without it, only print the plan.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for Kafka.")]

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file (default: $OFFSETMGR_CONFIG, else none)."),
]
Bootstrap = Annotated[str | None, typer.Option(help="Kafka's host:port,host:port.")]
Cluster = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="A [clusters.NAME] of the configuration file."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Any other setting, e.g. commit.commit_interval_s=0.5."
    ),
]


@dataclass(frozen=True)
class KafkaOptions:
    """The options by which a command finds Kafka."""

    config: ConfigFile = None
    bootstrap_servers: Bootstrap = None
    cluster: Cluster = None
    set_: Set = None
    timeout: Timeout = 10.0

    def for_librdkafka(self) -> dict[str, object]:
        """Return librdkafka's settings for the cluster.  Raises InvalidValueError.

        The one place where these options become settings of Kafka.
        """
        named = {"kafka.bootstrap.servers": (self.bootstrap_servers, "--bootstrap-servers")}
        return _load(self.config, self.set_, named, self.cluster).kafka.for_librdkafka()


@dataclass(frozen=True)
class ServiceOptions:
    """The options of the service itself."""

    config: ConfigFile = None
    listen: Annotated[
        str | None, typer.Option(help="127.0.0.1:8741 (the default) or unix:///path/to.sock.")
    ] = None
    bootstrap_servers: Bootstrap = None
    cluster: Cluster = None
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None
    set_: Set = None

    def load(self) -> Settings:
        """Return the settings of the service.  Raises InvalidValueError."""
        named = {
            "listen": (self.listen, "--listen"),
            "kafka.bootstrap.servers": (self.bootstrap_servers, "--bootstrap-servers"),
            "log_level": (self.log_level, "--log-level"),
        }
        return _load(self.config, self.set_, named, self.cluster)


@dataclass(frozen=True)
class OutputOptions:
    """The form in which a command prints its answer: a table by default."""

    as_json: Json = False
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False

    @property
    def as_table(self) -> bool:
        return not (self.as_json or self.as_csv)


_GROUPS_OF_OPTIONS = (KafkaOptions, ServiceOptions, OutputOptions)


def _load(
    config: Path | None,
    others: list[str] | None,
    named: Mapping[str, tuple[object, str]],
    cluster: str | None,
) -> Settings:
    """Return the settings of the file, the environment, ``--set`` and ``named`` options."""
    from offsetmgr.service.settings import load

    given: dict[str, tuple[object, str]] = {}
    for each in others or ():
        name, equals, value = each.partition("=")
        if not equals:
            # It may hold a secret.
            text = "what was given has no '='; write NAME=VALUE"
            raise typer.BadParameter(text, param_hint="--set")
        given[name.strip()] = (value, f"--set {name.strip()}")
    given |= {name: entry for name, entry in named.items() if entry[0] is not None}
    return load(config, os.environ, given, cluster)


@contextlib.contextmanager
def failing_in_one_line(*, usage: int = EXIT_TROUBLE, late: int = EXIT_TROUBLE) -> Iterator[None]:
    """Turn errors made for people into a line on stderr; anything else keeps its traceback.

    ``usage`` is the exit status if a value is wrong, ``late`` if something took too long.
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
    """Return True if nobody answered, False if somebody refused."""
    if isinstance(error, (KafkaRequestError, OffsetStoreError)):
        return error.info.fault in {Fault.BROKER, Fault.NETWORK}
    if isinstance(error, ServiceError):
        return error.status == HTTPStatus.GATEWAY_TIMEOUT
    return isinstance(error, (OffsetTimeoutError, ServiceUnavailableError))


def add_command(
    app: typer.Typer,
    function: Callable[..., None],
    name: str | None = None,
    *,
    failing: Callable[[], contextlib.AbstractContextManager[None]] = failing_in_one_line,
    epilog: str | None = None,
    timeout_s: float | None = None,
) -> None:
    """Add ``function`` to ``app`` as a command; its errors are told by ``failing``.

    A parameter of a class such as ``KafkaOptions`` stands for all the options in that class.
    ``timeout_s`` replaces the default of ``--timeout``.
    """
    parameters = inspect.signature(function, eval_str=True).parameters
    kinds = {
        each: parameter.annotation
        for each, parameter in parameters.items()
        if parameter.annotation in _GROUPS_OF_OPTIONS
    }

    def command(**values: Any) -> None:
        for each, kind in kinds.items():
            values[each] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        with failing():
            function(**values)

    options: list[inspect.Parameter] = []
    for each, parameter in parameters.items():
        if each in kinds:
            options += inspect.signature(kinds[each], eval_str=True).parameters.values()
        else:
            options.append(parameter)
    for index, option in enumerate(options):
        default = timeout_s if option.name == "timeout" and timeout_s else option.default
        options[index] = option.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=default)
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    # \b is typer's mark of a paragraph whose lines are kept.
    text = "\n\n".join(
        each if each.startswith("\b") else " ".join(each.split()) for each in paragraphs
    )
    app.command(name or function.__name__.replace("_", "-"), help=text, epilog=epilog)(command)


add_operators_command = partial(
    add_command,
    failing=partial(failing_in_one_line, usage=EXIT_USAGE, late=EXIT_INCOMPLETE),
    epilog=_STATUSES,
)
"""The same for the commands that read and change groups, whose exit statuses tell more."""
