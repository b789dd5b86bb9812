"""The commands of the service, and the list of all."""

from __future__ import annotations

import json
import signal
from typing import Annotated, Final

import typer
from typer import Argument, Option

from offsetmgr.cli.common import (
    DEFAULT_SERVICE,
    Exit,
    ServiceOptions,
    TokenFile,
    add_command,
    add_operators_command,
    failing_in_one_line,
    print_table,
    say,
)
from offsetmgr.cli.spark import Service, open_offsets
from offsetmgr.errors import InvalidValueError
from offsetmgr.service import version as installed_version


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
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the service handles it
    from offsetmgr.service import logs
    from offsetmgr.service.run import over_kafka, run

    settings = options.load()
    log_output = logs.set_up(settings.log_level)
    return run(settings, log_output, options.load, lambda _: over_kafka(settings))


def check(options: ServiceOptions) -> None:
    """Check the configuration and its files, and print all settings, defaults included.

    Secrets are masked.  It connects to nothing.
    """
    from offsetmgr.http.tls import Certificates
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


def reconcile(
    checkpoint: Annotated[str, Option(help="The query's checkpointLocation, a path or URL.")],
    group: Annotated[str, Option(help="The consumer group that mirrors it.")],
    service: Service = DEFAULT_SERVICE,
    token_file: TokenFile = None,
    *,
    execute: Annotated[
        bool, Option("--execute", help="Commit the offsets of the checkpoint.")
    ] = False,
    partial: Annotated[
        bool, Option("--partial", help="Commit the others where some are of a former log.")
    ] = False,
) -> int:
    """Compare a group with its job's checkpoint; with --execute, commit the checkpoint's offsets.

    Use it after a crash of the driver, or for a job that never used commit_offsets. Only finished
    batches count. If the group's job is running and commits, the command refuses to change it. It
    also refuses offsets of a former log, such as of a topic that was deleted and recreated.

    Exit status:

    - 0: the group has the checkpoint's offsets now
    - 1: the offsets could not be read or committed
    - 3: they differ, and --execute was not given; or --partial has left some
    """
    from offsetmgr.spark import reconcile as compare

    with open_offsets(service, token_file) as client:
        found = compare(client, group, checkpoint)
        for problem in found.problems:
            say(problem)
        if found.batch_id is None:
            print("The checkpoint has no finished batch yet: there is nothing to commit.")
            return 0
        rows = []
        for where, (wanted, committed) in found.partitions.items():
            note = "nothing committed" if committed is None else ""
            if committed is not None and committed != wanted:
                side = "ahead" if committed > wanted else "behind"
                note = f"group is {abs(committed - wanted)} {side}"
            note = found.refused.get(where, note)
            note = "; ".join(filter(None, [note, found.warnings.get(where)]))
            rows.append((*where, wanted, committed, note))
        print_table(("topic", "partition", "checkpoint", "group", ""), rows)
        total, differing = len(rows), len(found.differences)
        if not differing:
            say(f"Group {group} is at the end of batch {found.batch_id}.")
            if found.refused:
                say(f"{len(found.refused)} of {total} partitions are of a former log.")
                return Exit.INCOMPLETE
        elif execute:
            found.execute(client, partial=partial)
            left = len(found.differences.keys() & found.refused.keys())
            say(f"Committed {differing - left} of {total} partitions to group {group}.")
            return Exit.INCOMPLETE if left else 0
        else:
            differ = f"{differing} of {total} partitions differ"
            print(f"{differ}; --execute commits the checkpoint's offsets.")
            return Exit.INCOMPLETE
    return 0


def dev_kafka(
    brokers: Annotated[int, Option(help="1 or 3.")] = 1,
    port: Annotated[
        int, Option(min=1, max=65_533, help="Port of the first broker; the next ports follow.")
    ] = 9092,
    topic: Annotated[
        list[str] | None,
        Option(
            metavar="NAME:PARTITIONS", help="Create a topic, of 1 partition by default; repeatable."
        ),
    ] = None,
    produce: Annotated[
        int,
        Option(min=0, metavar="COUNT", help="Number of sample orders to write into each topic."),
    ] = 0,
    kafka_version: Annotated[
        str | None, Option(metavar="RELEASE", help="Another Kafka, from 3.3.1 on: 3.9.1.")
    ] = None,
) -> int:
    """Run a real Kafka on this machine, for development; needs Java 17 and the spark extra."""
    from offsetmgr.devkafka import KAFKA_VERSION, run_dev_kafka

    return run_dev_kafka(
        brokers=brokers,
        port=port,
        topics=topic or (),
        produce=produce,
        version=kafka_version or KAFKA_VERSION,
    )


def kafka_consumer_groups(
    context: typer.Context,
    bootstrap_server: Annotated[str, Option(help="Kafka's host:port.")] = "localhost:9092",
) -> None:
    """Run Kafka's own tool of this name, from dev-kafka's jars; it takes its usual options."""
    with failing_in_one_line():
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


def _add_own(app: typer.Typer) -> None:
    add_command(app, serve)
    add_command(_group(app, "config", "Look at the configuration."), check)
    add_command(app, dev_kafka)
    app.command(
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(kafka_consumer_groups)
    add_command(app, demo)


def _add_readers(app: typer.Typer) -> None:
    from offsetmgr.cli import lag

    for each in (lag.groups, lag.describe, lag.lag, lag.top, lag.errors):
        add_operators_command(app, each)


def _add_admin(app: typer.Typer) -> None:
    from offsetmgr.cli import admin

    add_operators_command(app, admin.doctor, timeout_s=30.0)
    add_operators_command(app, admin.history, timeout_s=120.0)
    add_operators_command(app, admin.reset, timeout_s=30.0)
    add_operators_command(app, admin.set_offsets, "set", timeout_s=30.0)
    add_operators_command(app, admin.delete_offsets, timeout_s=30.0)
    add_operators_command(app, admin.delete_group, timeout_s=30.0)


def _add_spark(app: typer.Typer) -> None:
    from offsetmgr.cli import admin, spark

    group = _group(app, "spark", "Follow checkpoints of Spark jobs, and compare groups with them.")
    add_command(group, reconcile)
    add_command(group, spark.follow)
    add_command(group, spark.starting_offsets)
    add_operators_command(group, admin.spark_status, "status")


def _add_dlq(app: typer.Typer) -> None:
    from offsetmgr.cli import dlq

    group = _group(app, "dlq", "Look at dead letters and replay them.")
    add_operators_command(group, dlq.list_letters, "list", timeout_s=30.0)
    add_operators_command(group, dlq.show, timeout_s=30.0)
    add_operators_command(group, dlq.replay, timeout_s=30.0)


def _add_store(app: typer.Typer) -> None:
    add_command(_group(app, "store", "Set up a database that keeps offsets."), init_store, "init")


def _add_views(app: typer.Typer) -> None:
    from offsetmgr.cli import streams

    view = _group(app, "view", "Keep a table's rows here and serve them.")
    add_command(view, streams.serve, timeout_s=30.0)
    group = _group(app, "streams", "Look at stream processors and views.")
    add_operators_command(group, streams.status, timeout_s=30.0)
    add_operators_command(group, streams.get)
    add_operators_command(group, streams.copy_table, timeout_s=3_600.0)


def _add_clusters(app: typer.Typer) -> None:
    from offsetmgr.cli import admin

    group = _group(app, "clusters", "Work with several clusters.")
    add_operators_command(group, admin.list_clusters, "list")
    add_operators_command(group, admin.copy_offsets)


_PARTS: Final = {
    _add_own: {"serve", "config", "dev-kafka", "kafka-consumer-groups", "demo"},
    _add_readers: {"groups", "describe", "lag", "top", "errors"},
    _add_admin: {"doctor", "history", "reset", "set", "delete-offsets", "delete-group"},
    _add_spark: {"spark"},
    _add_dlq: {"dlq"},
    _add_store: {"store"},
    _add_views: {"view", "streams"},
    _add_clusters: {"clusters"},
}
"""Functions that add commands, and the first words of these."""


def command_line(word: str = "") -> typer.Typer:
    """Return the command line; of its commands, only those that are added with ``word``, if any.

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
    for add in [add for add, words in _PARTS.items() if word in words] or _PARTS:
        add(app)
    return app


def _group(app: typer.Typer, name: str, text: str) -> typer.Typer:
    made = typer.Typer(help=text, no_args_is_help=True)
    made.callback()(lambda: None)  # without it a single command would lose its name
    app.add_typer(made, name=name)
    return made
