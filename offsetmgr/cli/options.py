"""Options, error lines and exit statuses that commands share."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from offsetmgr.admin.service import ServiceReader
from offsetmgr.client.credentials import Credentials
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
    from offsetmgr.admin.changes import GroupChanges
    from offsetmgr.service.settings import Settings

EXIT_TROUBLE = 1
EXIT_USAGE = 2
EXIT_INCOMPLETE = 3
EXIT_INTERRUPTED = 130

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
class SourceOptions(KafkaOptions):
    """The options by which a command finds groups: in Kafka, a database or a service."""

    service: Annotated[
        str | None, Option(help="Ask a running service: http://host:port or unix:///path/to.sock.")
    ] = None
    token_file: TokenFile = None
    store: Store = None


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


@contextlib.contextmanager
def failing_in_one_line(*, usage: int = EXIT_TROUBLE, late: int = EXIT_TROUBLE) -> Iterator[None]:
    """Turn errors made for people into a line on stderr; anything else keeps its traceback.

    ``usage`` is the exit status if a value is wrong, ``late`` if nobody answered.
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
    usage: int = EXIT_TROUBLE,
    late: int = EXIT_TROUBLE,
    epilog: str | None = None,
    timeout_s: float | None = None,
) -> None:
    """Add ``function`` to ``app`` as a command that fails in one line.

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
            function(**values)

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
    add_command, usage=EXIT_USAGE, late=EXIT_INCOMPLETE, epilog=_STATUSES
)
"""The same for the commands that read and change groups, whose exit statuses tell more."""
