"""The commands.  Each imports what it needs itself, so that ``--help`` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offsetmgr.cli.failure import failing_in_one_line
from offsetmgr.cli.spark import spark_app

app = typer.Typer(
    name="offsetmgr",
    help="Kafka offsets of Spark jobs (and of anyone else), committed to their consumer groups.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(help="Look at the configuration.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(spark_app, name="spark")

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


def _print_version(wanted: bool) -> None:  # noqa: FBT001 -- typer calls it
    if wanted:
        from offsetmgr.service.version import version  # noqa: PLC0415

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
        from offsetmgr.cli.serving import serve as run  # noqa: PLC0415

        status = run(config, _flags(listen, bootstrap_servers, log_level, set_))
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
        from offsetmgr.cli.serving import show  # noqa: PLC0415

        show(config, _flags(listen, bootstrap_servers, log_level, set_))


@app.command("dev-kafka")
def dev_kafka(
    brokers: Annotated[int, typer.Option(help="1 or 3.")] = 1,
    port: Annotated[int, typer.Option(help="Of the first broker; the others follow.")] = 9092,
    data_dir: Annotated[
        Path | None, typer.Option(help="Keep its data here; without, it goes when Kafka stops.")
    ] = None,
) -> None:
    """Run a real Kafka on this machine, for development; needs Java 17 and the spark extra."""
    with failing_in_one_line():
        from offsetmgr.devkafka import run_dev_kafka  # noqa: PLC0415

        status = run_dev_kafka(brokers=brokers, port=port, data_dir=data_dir)
    raise typer.Exit(status)


@app.command()
def demo(
    brokers: Annotated[
        str | None, typer.Option(help="host:port of a Kafka of yours; without, one is started.")
    ] = None,
    orders: Annotated[int, typer.Option(help="How many to produce and to count.")] = 100_000,
    partitions: Annotated[int, typer.Option(help="Of the topic.")] = 8,
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
        from offsetmgr.demo import DemoOptions, run  # noqa: PLC0415

        options = DemoOptions(brokers=brokers, orders=orders, partitions=partitions, keep=keep)
        status = run(options)
    raise typer.Exit(status)


def _flags(
    listen: str | None,
    bootstrap_servers: str | None,
    log_level: str | None,
    others: list[str] | None,
) -> dict[str, tuple[object, str]]:
    """Settings given as options, with the option as their source."""
    given: dict[str, tuple[object, str]] = {}
    for each in others or ():
        name, equals, value = each.partition("=")
        if not equals:
            raise typer.BadParameter(f"{each!r} has no '='; write NAME=VALUE", param_hint="--set")
        given[name.strip()] = (value, f"--set {name.strip()}")
    named = {
        "listen": (listen, "--listen"),
        "kafka.bootstrap.servers": (bootstrap_servers, "--bootstrap-servers"),
        "log_level": (log_level, "--log-level"),
    }
    return given | {name: entry for name, entry in named.items() if entry[0] is not None}
