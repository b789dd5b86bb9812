"""The commands ``offsetmgr spark …``."""

from __future__ import annotations

from typing import Annotated

import typer

from offsetmgr.cli.failure import failing_in_one_line

EXIT_DIFFERS = 3

spark_app = typer.Typer(help="Look after the groups of Spark jobs.", no_args_is_help=True)


@spark_app.callback()
def main() -> None:
    """Look after the groups of Spark jobs."""


@spark_app.command()
def reconcile(
    checkpoint: Annotated[str, typer.Option(help="The query's checkpointLocation.")],
    group: Annotated[str, typer.Option(help="The consumer group that mirrors it.")],
    service: Annotated[
        str, typer.Option(envvar="OFFSETMGR_SERVICE", help="Where the service listens.")
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
        from offsetmgr.cli.reconciling import run  # noqa: PLC0415

        same = run(checkpoint, group, service, execute=execute)
    raise typer.Exit(0 if same else EXIT_DIFFERS)
