"""The command line: the commands of the service, and the list of all."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offsetmgr.cli import admin, clusters, dlq, lag, store, streams
from offsetmgr.cli.options import (
    DEFAULT_SERVICE,
    EXIT_INCOMPLETE,
    ServiceOptions,
    add_command,
    add_operators_command,
    failing_in_one_line,
)
from offsetmgr.cli.output import print_table
from offsetmgr.service import version as installed_version

if TYPE_CHECKING:
    from offsetmgr.client.offsets import Offsets
    from offsetmgr.spark import OffsetPair


def _print_version(wanted: bool) -> None:  # noqa: FBT001 -- typer calls it
    if wanted:
        print(f"offsetmgr {installed_version()}")
        raise typer.Exit


def main(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Kafka offsets of Spark jobs (and of anyone else), committed to their consumer groups."""


def serve(options: ServiceOptions) -> None:
    """Run the service until SIGTERM or Ctrl-C.

    Settings come from the TOML file, then from OFFSETMGR_* in the environment (sections with
    two underscores: OFFSETMGR_COMMIT__COMMIT_INTERVAL_S), then from these options.

    Signals: SIGTERM or SIGINT commits all submitted offsets, then stops; a second one exits at
    once. SIGHUP reads the log level again; SIGUSR1 writes the stacks of all threads to stderr.

    \b
    Exit status:
      0    everything was committed
      1    did not start
      3    stopped with offsets that Kafka did not acknowledge; the log names the first hundred
      130  a second SIGINT
      143  a second SIGTERM
    """  # noqa: D301 -- \b is typer's mark for lines to keep
    from offsetmgr.service import logs
    from offsetmgr.service.run import over_kafka, run

    settings = options.load()
    log_output = logs.set_up(settings.log_level)
    raise typer.Exit(run(settings, log_output, options.load, over_kafka(settings)))


def check(options: ServiceOptions) -> None:
    """Check the configuration and print it, secrets masked; connects to nothing."""
    settings = options.load()
    names = "listen", "log_level", "cluster_name", "lease_s", "stop_timeout_s", "fence"
    shown = {name: getattr(settings, name) for name in (*names, "fence_session_timeout_s")}
    for section in ("commit", "limits", "watch"):
        values = asdict(getattr(settings, section))
        shown |= {f"{section}.{name}": value for name, value in values.items()}
    shown["coordinator"] = settings.masked_coordinator
    masked = settings.kafka.masked()
    shown |= {f"kafka.{name}": value for name, value in sorted(masked.items())}
    print_table(("setting", "value"), [(name, str(value)) for name, value in shown.items()])


def reconcile(
    checkpoint: Annotated[str, typer.Option(help="The query's checkpointLocation.")],
    group: Annotated[str, typer.Option(help="The consumer group that mirrors it.")],
    service: Annotated[
        str,
        typer.Option(
            envvar="OFFSETMGR_SERVICE",
            help="Address of the service; kafka://host:port for a job without one.",
        ),
    ] = DEFAULT_SERVICE,
    *,
    execute: Annotated[
        bool, typer.Option("--execute", help="Commit the offsets of the checkpoint.")
    ] = False,
) -> None:
    """Compare a group with its job's checkpoint; with --execute, commit the checkpoint's offsets.

    Use it after a crash of the driver, or for a job that never had the listener. Only batches that
    Spark has finished count. A group whose job runs and commits is left alone.

    \b
    Exit status:
      0    the group is where the checkpoint is, now
      1    it could not be read or committed
      3    they differ, and --execute was not given
    """  # noqa: D301 -- \b is typer's mark for lines to keep
    from offsetmgr.client import OffsetClient
    from offsetmgr.local import LocalOffsets
    from offsetmgr.spark import reconcile as compare

    servers = service.removeprefix("kafka://")
    made: Offsets = OffsetClient(service) if servers == service else LocalOffsets(servers)
    with made as client:
        found = compare(client, group, checkpoint)
        if found.batch_id is None:
            print("The checkpoint has no finished batch yet: there is nothing to commit.")
            return
        heads = "topic", "partition", "checkpoint", "group", ""
        pairs = found.partitions.items()
        print_table(
            heads, [(*where, pair.checkpoint, *_group_cells(pair)) for where, pair in pairs]
        )
        total, differing = len(pairs), len(found.differences)
        if not differing:
            print(f"Group {group} is at the end of batch {found.batch_id}.")
        elif execute:
            found.execute(client)
            print(f"Committed {differing} of {total} partitions to group {group}.")
        else:
            differ = f"{differing} of {total} partitions differ"
            print(f"{differ}; --execute commits the checkpoint's offsets.")
            raise typer.Exit(EXIT_INCOMPLETE)


def _group_cells(pair: OffsetPair) -> tuple[int | None, str]:
    """Return what the group has committed, and the difference in words."""
    if pair.committed is None:
        return None, "nothing committed"
    ahead = pair.committed - pair.checkpoint
    text = f"group is {abs(ahead)} {'ahead' if ahead > 0 else 'behind'}" if ahead else ""
    return pair.committed, text


def dev_kafka(
    brokers: Annotated[int, typer.Option(help="1 or 3.")] = 1,
    port: Annotated[int, typer.Option(help="Of the first broker; the others follow.")] = 9092,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Keep its data here, for one Kafka at a time; by default it is deleted."),
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
    from offsetmgr.devkafka import run_dev_kafka

    status = run_dev_kafka(
        brokers=brokers, port=port, data_dir=data_dir, topics=topic or (), produce=produce
    )
    raise typer.Exit(status)


def kafka_consumer_groups(
    context: typer.Context,
    bootstrap_server: Annotated[str, typer.Option(help="Kafka's host:port.")] = "localhost:9092",
) -> None:
    """Run Kafka's own tool of this name, from dev-kafka's jars; it takes its usual options."""
    with failing_in_one_line():
        from offsetmgr.devkafka import consumer_groups

        print(consumer_groups(bootstrap_server, *context.args), end="")


def demo(
    brokers: Annotated[
        str | None, typer.Option(help="host:port of your Kafka; by default one is started.")
    ] = None,
    orders: Annotated[
        int, typer.Option(min=1_000, max=5_000_000, help="Number of orders to produce and count.")
    ] = 100_000,
    partitions: Annotated[int, typer.Option(min=1, max=100, help="Of the topic.")] = 8,
    keep: Annotated[
        Path | None,
        typer.Option(help="Keep logs and data in this new folder; by default they are deleted."),
    ] = None,
) -> None:
    """Show the product on this machine: a Kafka, a Spark job, the service; each claim is checked.

    In a Kafka of yours, it deletes its topic and its group at the end.
    Needs Java 17 and the spark extra.

    \b
    Exit status:
      0    every claim holds
      1    one does not, or a step failed; it says which
      130  Ctrl-C
      143  SIGTERM
    """  # noqa: D301 -- \b is typer's mark for lines to keep
    from offsetmgr.demo import run

    raise typer.Exit(run(brokers=brokers, orders=orders, partitions=partitions, keep=keep))


app = typer.Typer(
    name="offsetmgr",
    callback=main,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(help="Look at the configuration.", no_args_is_help=True)
spark_app = typer.Typer(help="Look after the groups of Spark jobs.", no_args_is_help=True)
dlq_app = typer.Typer(help="Look at dead letters and replay them.", no_args_is_help=True)
store_app = typer.Typer(help="Set up a database that keeps offsets.", no_args_is_help=True)
view_app = typer.Typer(help="Keep a table's rows here and serve them.", no_args_is_help=True)
streams_app = typer.Typer(help="Look at stream processors and views.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(spark_app, name="spark")
app.add_typer(dlq_app, name="dlq")
app.add_typer(store_app, name="store")
app.add_typer(view_app, name="view")
app.add_typer(streams_app, name="streams")
clusters_app = typer.Typer(help="Work with several clusters.", no_args_is_help=True)
app.add_typer(clusters_app, name="clusters")

add_command(app, serve)
add_command(config_app, check)
config_app.callback()(lambda: None)  # it has only one command, which keeps its name
add_command(app, dev_kafka)
app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)(kafka_consumer_groups)
add_command(app, demo)
add_operators_command(app, lag.groups)
add_operators_command(app, lag.describe)
add_operators_command(app, lag.lag)
add_operators_command(app, lag.top)
add_operators_command(app, lag.errors)
add_operators_command(app, admin.doctor)
add_operators_command(app, admin.history, timeout_s=120.0)
add_operators_command(app, admin.reset, timeout_s=30.0)
add_operators_command(app, admin.set_offsets, "set", timeout_s=30.0)
add_operators_command(app, admin.delete_offsets, timeout_s=30.0)
add_operators_command(app, admin.delete_group, timeout_s=30.0)
add_command(store_app, store.init)
store_app.callback()(lambda: None)  # it has only one command, which keeps its name
add_command(spark_app, reconcile)
add_operators_command(spark_app, admin.spark_status, "status")
add_operators_command(dlq_app, dlq.list_letters, "list", timeout_s=30.0)
add_operators_command(dlq_app, dlq.show, timeout_s=30.0)
add_operators_command(dlq_app, dlq.replay, timeout_s=30.0)
add_command(view_app, streams.serve, timeout_s=30.0)
view_app.callback()(lambda: None)  # it has only one command, which keeps its name
add_operators_command(streams_app, streams.status, timeout_s=30.0)
add_operators_command(streams_app, streams.get)
add_operators_command(clusters_app, clusters.list_clusters, "list")
add_operators_command(clusters_app, clusters.copy_offsets)
