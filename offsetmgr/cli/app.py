"""The commands.  Each imports what it needs itself, so that ``--help`` is quick."""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offsetmgr.cli import admin, dlq, lag
from offsetmgr.cli.options import (
    Bootstrap,
    ConfigFile,
    Listen,
    LogLevel,
    Set,
    failing_in_one_line,
    flags,
)

if TYPE_CHECKING:
    from offsetmgr.spark import OffsetPair
    from offsetmgr.types import Offsets

EXIT_DIFFERS = 3

app = typer.Typer(
    name="offsetmgr",
    help="Kafka offsets of Spark jobs (and of anyone else), committed to their consumer groups.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
spark_app = typer.Typer(help="Look after the groups of Spark jobs.", no_args_is_help=True)
config_app = typer.Typer(help="Look at the configuration.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(spark_app, name="spark")


def _print_version(wanted: bool) -> None:  # noqa: FBT001 -- typer calls it
    if wanted:
        from offsetmgr.service import version

        print(f"offsetmgr {version()}")
        raise typer.Exit


@app.callback()
def main(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Kafka offsets of Spark jobs (and of anyone else), committed to their consumer groups."""


@app.command()
def serve(
    config: ConfigFile = None,
    listen: Listen = None,
    bootstrap_servers: Bootstrap = None,
    log_level: LogLevel = None,
    set_: Set = None,
) -> None:
    """Run the service until SIGTERM or Ctrl-C.

    Settings come from the TOML file, then from OFFSETMGR_* in the environment (sections with
    two underscores: OFFSETMGR_COMMIT__COMMIT_INTERVAL_S), then from these options.

    \b
    Signals: SIGTERM or SIGINT commits what is held, then stops; a second one exits at once.
    SIGHUP reads the log level again; SIGUSR1 writes the stacks of all threads to stderr.

    \b
    Exit status:
      0    everything was committed
      1    did not start
      3    stopped with offsets that Kafka did not acknowledge; the log names the first hundred
      130  a second SIGINT
      143  a second SIGTERM
    """  # noqa: D301 -- \b is typer's mark for lines to keep
    with failing_in_one_line():
        from offsetmgr.service import logs
        from offsetmgr.service.run import over_kafka, run
        from offsetmgr.service.settings import load

        given = flags(listen, bootstrap_servers, log_level, set_)
        settings = load(config, os.environ, given)
        log_output = logs.set_up(settings.log_level)
        reload = partial(load, config, os.environ, given)
        status = run(settings, log_output, reload, over_kafka(settings))
    raise typer.Exit(status)


@config_app.command()
def check(
    config: ConfigFile = None,
    listen: Listen = None,
    bootstrap_servers: Bootstrap = None,
    log_level: LogLevel = None,
    set_: Set = None,
) -> None:
    """Check the configuration and print it, secrets masked; connects to nothing."""
    with failing_in_one_line():
        from rich.console import Console
        from rich.table import Table

        from offsetmgr.service.logs import visible
        from offsetmgr.service.settings import load

        settings = load(config, os.environ, flags(listen, bootstrap_servers, log_level, set_))
        names = "listen", "log_level", "cluster_name", "lease_s", "stop_timeout_s", "fence"
        shown = {name: getattr(settings, name) for name in (*names, "fence_session_timeout_s")}
        for section in ("commit", "limits", "watch"):
            values = asdict(getattr(settings, section))
            shown |= {f"{section}.{name}": value for name, value in values.items()}
        masked = settings.kafka.masked()
        shown |= {f"kafka.{name}": value for name, value in sorted(masked.items())}
        table = Table("setting", "value", box=None, header_style="bold")
        for name, value in shown.items():
            table.add_row(name, visible(str(value)))
        Console(soft_wrap=True).print(table, markup=False, highlight=False)


@spark_app.callback()
def spark() -> None:
    """Look after the groups of Spark jobs."""


@spark_app.command()
def reconcile(
    checkpoint: Annotated[str, typer.Option(help="The query's checkpointLocation.")],
    group: Annotated[str, typer.Option(help="The consumer group that mirrors it.")],
    service: Annotated[
        str,
        typer.Option(
            envvar="OFFSETMGR_SERVICE",
            help="Where the service listens; kafka://host:port for a job without one.",
        ),
    ] = "http://127.0.0.1:8741",
    *,
    execute: Annotated[
        bool, typer.Option("--execute", help="Commit what the checkpoint says.")
    ] = False,
) -> None:
    """Show where a group is not where its job's checkpoint is; with --execute, put it there.

    After a crash of the driver, or for a job that never had the listener. Of the checkpoint only
    batches count that Spark has finished. A group whose job runs and commits is left alone.

    \b
    Exit status:
      0    the group is where the checkpoint is, now
      1    it could not be learned or committed
      3    they differ, and --execute was not given
    """  # noqa: D301 -- \b is typer's mark for lines to keep
    with failing_in_one_line():
        same = _reconcile(checkpoint, group, service, execute=execute)
    raise typer.Exit(0 if same else EXIT_DIFFERS)


def _reconcile(checkpoint: str, group: str, service: str, *, execute: bool) -> bool:
    """Return True if the group is where the checkpoint is, in the end."""
    from rich.console import Console
    from rich.table import Table

    from offsetmgr.client import OffsetClient
    from offsetmgr.local import LocalOffsets
    from offsetmgr.spark import reconcile as compare

    console = Console(soft_wrap=True, highlight=False, markup=False)
    servers = service.removeprefix("kafka://")
    made: Offsets = OffsetClient(service) if servers == service else LocalOffsets(servers)
    with made as client:
        found = compare(client, group, checkpoint)
        if found.batch_id is None:
            console.print("The checkpoint has no finished batch yet: there is nothing to commit.")
            return True
        heads = "topic", "partition", "checkpoint", "group", ""
        table = Table(*heads, box=None, header_style="bold")
        for (topic, partition), each in found.partitions.items():
            table.add_row(topic, str(partition), str(each.checkpoint), *_group_cells(each))
        console.print(table)
        total, differing = len(found.partitions), len(found.differences)
        if not differing:
            console.print(f"Group {group} is at the end of batch {found.batch_id}.")
        elif execute:
            found.execute(client)
            console.print(f"Committed {differing} of {total} partitions to group {group}.")
        else:
            console.print(
                f"{differing} of {total} partitions differ; --execute commits the checkpoint's "
                "offsets."
            )
        return execute or not differing


def _group_cells(pair: OffsetPair) -> tuple[str, str]:
    """Return what the group has committed, and how that differs, in words."""
    committed = pair.committed
    if committed is None:
        return "-", "nothing committed"
    ahead = committed - pair.checkpoint
    if not ahead:
        return str(committed), ""
    return str(committed), f"group is {abs(ahead)} {'ahead' if ahead > 0 else 'behind'}"


@app.command("dev-kafka")
def dev_kafka(
    brokers: Annotated[int, typer.Option(help="1 or 3.")] = 1,
    port: Annotated[int, typer.Option(help="Of the first broker; the others follow.")] = 9092,
    data_dir: Annotated[
        Path | None, typer.Option(help="Keep its data here; without, it goes when Kafka stops.")
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:PARTITIONS", help="Create a topic, of 1 partition by default; repeatable."
        ),
    ] = None,
    produce: Annotated[
        int, typer.Option(metavar="COUNT", help="Write so many sample orders into each new topic.")
    ] = 0,
) -> None:
    """Run a real Kafka on this machine, for development; needs Java 17 and the spark extra."""
    with failing_in_one_line():
        from offsetmgr.devkafka import run_dev_kafka

        status = run_dev_kafka(
            brokers=brokers, port=port, data_dir=data_dir, topics=topic or (), produce=produce
        )
    raise typer.Exit(status)


@app.command(
    "kafka-consumer-groups",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def kafka_consumer_groups(
    context: typer.Context,
    bootstrap_server: Annotated[str, typer.Option(help="Kafka's host:port.")] = "localhost:9092",
) -> None:
    """Run Kafka's own tool of this name, from dev-kafka's jars; it takes its usual options."""
    with failing_in_one_line():
        from offsetmgr.devkafka import consumer_groups

        print(consumer_groups(bootstrap_server, *context.args), end="")


@app.command()
def demo(
    brokers: Annotated[
        str | None, typer.Option(help="host:port of a Kafka of yours; without, one is started.")
    ] = None,
    orders: Annotated[
        int, typer.Option(min=1_000, max=5_000_000, help="How many to produce and to count.")
    ] = 100_000,
    partitions: Annotated[int, typer.Option(min=1, max=100, help="Of the topic.")] = 8,
    keep: Annotated[
        Path | None, typer.Option(help="Keep logs and data in this new folder; without, they go.")
    ] = None,
) -> None:
    """Show it all on this machine: a Kafka, a Spark job, the sidecar; every claim is checked.

    In a Kafka of yours, its topic and groups have names of their own and are deleted at the end.
    Needs Java 17 and the spark extra.

    \b
    Exit status:
      0    every claim was found to hold
      1    one was not, or a step failed; it says which
      130  Ctrl-C
      143  SIGTERM
    """  # noqa: D301 -- \b is typer's mark for lines to keep
    with failing_in_one_line():
        from offsetmgr.demo import run

        status = run(brokers=brokers, orders=orders, partitions=partitions, keep=keep)
    raise typer.Exit(status)


lag.add_to(app)
admin.add_to(app, spark_app)
dlq.add_to(app)
