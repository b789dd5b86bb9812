"""The commands of the service, and the list of all."""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer import Argument, Option

from offsetmgr.cli.common import ServiceOptions, failing_in_one_line, print_table
from offsetmgr.errors import InvalidValueError
from offsetmgr.service import version as installed_version

_STATUSES: Final = (
    "Exit status: 0 success; 1 something is wrong, or Kafka refused; 2 an option is wrong; "
    "3 the result is incomplete."
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 -- typer calls it
    if wanted:
        print(f"offsetmgr {installed_version()}")
        raise typer.Exit


def main(
    *, version: Annotated[bool, Option("--version", callback=_print_version, is_eager=True)] = False
) -> None:
    """Commit Kafka offsets of Spark jobs to consumer groups; show and reset any group."""


def serve(options: ServiceOptions) -> int:
    """Run the service until SIGTERM or Ctrl-C.

    Options override OFFSETMGR_* in the environment, which override the TOML file. A setting in a
    section has two underscores: OFFSETMGR_COMMIT__COMMIT_INTERVAL_S.

    Signals: SIGTERM or SIGINT commits all submitted offsets, then stops; a second one exits at
    once. SIGHUP reads the log level and the identities again. SIGUSR1 writes the stacks of all
    threads to stderr.

    Exit status:

    - 0: everything was committed
    - 1: did not start
    - 3: stopped with offsets that Kafka did not acknowledge; the log names the first hundred
    - 130, 143: a second SIGINT, a second SIGTERM
    """
    from offsetmgr.service import logs
    from offsetmgr.service.run import over_kafka, run

    settings = options.load()
    log_output = logs.set_up(settings.log_level)
    return run(settings, log_output, options.load, lambda _: over_kafka(settings))


def check(options: ServiceOptions) -> None:
    """Check the configuration and its files, and print all settings, defaults included.

    Secrets are masked.  It connects to nothing.
    """
    from offsetmgr.http.files import Certificates
    from offsetmgr.kafka.clients import check_values
    from offsetmgr.service.access import Access
    from offsetmgr.service.settings import by_name

    settings = options.load()
    check_values(settings.kafka.for_librdkafka())
    Access(settings)
    if settings.tls.certificate:
        Certificates(settings.tls)
    rows = [
        (name, value if isinstance(value, str) else json.dumps(value))
        for name, value in by_name(settings).items()
    ]
    print_table(("setting", "value"), rows)


def init_store(
    url: Annotated[
        str, Argument(metavar="URL", help="postgresql+psycopg://user@host/database, for example.")
    ],
    *,
    print_: Annotated[
        bool, Option("--print", help="Print the SQL, for a migration; change nothing.")
    ] = False,
) -> None:
    """Create the missing tables of an offset store in a database."""
    from offsetmgr.stores import open_store
    from offsetmgr.stores.sql import SqlOffsetStore

    with open_store(url) as store:
        if not isinstance(store, SqlOffsetStore):
            hint = "give the URL of a database, such as postgresql+psycopg://user@host/database"
            raise InvalidValueError("URL", url, "needs no tables", hint)
        if print_:
            print(store.table_text(), end="")
        else:
            store.create_tables()
            print(f"{store.url} has the tables of an offset store.")


def kafka_consumer_groups(
    context: typer.Context,
    bootstrap_server: Annotated[str, Option(help="Kafka's host:port.")] = "localhost:9092",
) -> None:
    """Run Kafka's own tool of this name, from dev-kafka's jars; it takes its usual options."""
    from offsetmgr.devkafka import consumer_groups

    print(consumer_groups(bootstrap_server, *context.args), end="")


def demo(
    orders: Annotated[
        int, Option(min=1_000, max=5_000_000, help="Number of orders to produce and count.")
    ] = 100_000,
) -> int:
    """Show the product on this machine: a Kafka, a Spark job, the service; each claim is checked.

    Needs Java 17 and the spark extra. If a claim does not hold, its logs and data are kept.

    Exit status:

    - 0: every claim holds
    - 1: one does not, or a step failed; it says which
    - 130, 143: Ctrl-C, SIGTERM
    """
    from offsetmgr.demo import run

    return run(orders)


class _Command(NamedTuple):
    """A command, and the function that is it."""

    words: str
    module: str
    """It is imported with the first word of the command."""
    function: str
    timeout_s: float | None = None
    """In place of the default of ``--timeout``."""
    detailed: bool = True
    """True for commands that read and change groups, whose exit statuses tell more."""
    passes_on: bool = False
    """True if options that it does not have are another program's."""


_COMMANDS: Final = (
    _Command("serve", "cli.commands", "serve", detailed=False),
    _Command("config check", "cli.commands", "check", detailed=False),
    _Command("dev-kafka", "devkafka.command", "run_dev_kafka", detailed=False),
    _Command("demo", "cli.commands", "demo", detailed=False),
    _Command("groups", "cli.lag", "groups"),
    _Command("describe", "cli.lag", "describe"),
    _Command("lag", "cli.lag", "lag"),
    _Command("top", "cli.lag", "top"),
    _Command("errors", "cli.lag", "errors"),
    _Command("doctor", "cli.admin", "doctor", 30.0),
    _Command("history", "cli.admin", "history", 120.0),
    _Command("reset", "cli.admin", "reset", 30.0),
    _Command("set", "cli.admin", "set_offsets", 30.0),
    _Command("delete-offsets", "cli.admin", "delete_offsets", 30.0),
    _Command("delete-group", "cli.admin", "delete_group", 30.0),
    _Command("spark reconcile", "cli.spark", "reconcile", detailed=False),
    _Command("spark follow", "cli.spark", "follow", detailed=False),
    _Command("spark starting-offsets", "cli.spark", "starting_offsets", detailed=False),
    _Command("spark status", "cli.admin", "spark_status"),
    _Command("dlq list", "cli.dlq", "list_letters", 30.0),
    _Command("dlq show", "cli.dlq", "show", 30.0),
    _Command("dlq replay", "cli.dlq", "replay", 30.0),
    _Command("store init", "cli.commands", "init_store", detailed=False),
    _Command("view serve", "cli.streams", "serve", 30.0, detailed=False),
    _Command("streams status", "cli.streams", "status", 30.0),
    _Command("streams get", "cli.streams", "get"),
    _Command("streams copy-table", "cli.streams", "copy_table", 3_600.0),
    _Command("clusters list", "cli.admin", "list_clusters"),
    _Command("clusters copy-offsets", "cli.admin", "copy_offsets"),
    _Command(
        "kafka-consumer-groups",
        "cli.commands",
        "kafka_consumer_groups",
        detailed=False,
        passes_on=True,
    ),
)
_GROUPS: Final = {
    "config": "Look at the configuration.",
    "spark": "Follow checkpoints of Spark jobs, and compare groups with them.",
    "dlq": "Look at dead letters and replay them.",
    "store": "Set up a database that keeps offsets.",
    "view": "Keep a table's rows here and serve them.",
    "streams": "Look at stream processors and views.",
    "clusters": "Work with several clusters.",
}


def command_line(word: str = "") -> typer.Typer:
    """Return the command line; of its commands, only those that begin with ``word``, if any do.

    A command starts in half of the time without the imports of all others.
    """
    app = typer.Typer(
        name="offsetmgr",
        callback=main,
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    groups: dict[str, typer.Typer] = {"": app}
    words = {command.words.split()[0] for command in _COMMANDS}
    for command in _COMMANDS:
        first, _, name = command.words.rpartition(" ")
        if word in words and word != (first or name):
            continue
        if first not in groups:
            groups[first] = typer.Typer(help=_GROUPS[first], no_args_is_help=True)
            groups[first].callback()(lambda: None)  # a single command would lose its name
            app.add_typer(groups[first], name=first)
        _add(groups[first], name, command)
    return app


def _add(app: typer.Typer, name: str, command: _Command) -> None:
    """Add a command, whose function returns the exit status; it fails in one line.

    A parameter of a dataclass such as ``KafkaOptions`` stands for all the options in that class.
    """
    function = getattr(import_module(f"offsetmgr.{command.module}"), command.function)
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for each, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if is_dataclass(parameter.annotation):
            groups[each] = parameter.annotation
            options += inspect.signature(groups[each], eval_str=True).parameters.values()
        else:
            options.append(parameter)
    for index, option in enumerate(options):
        is_timeout = option.name == "timeout" and command.timeout_s
        default = command.timeout_s if is_timeout else option.default
        options[index] = option.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=default)

    def run(**values: Any) -> None:
        changes = bool(values.get("execute"))
        for each, group in groups.items():
            values[each] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        with failing_in_one_line(detailed=command.detailed, changes=changes):
            status = function(**values)
            sys.stdout.flush()
            sys.exit(status)

    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    passed_on = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(
        name,
        help=inspect.getdoc(function),
        epilog=_STATUSES if command.detailed else None,
        add_help_option=not command.passes_on,
        context_settings=passed_on if command.passes_on else None,
    )(run)
