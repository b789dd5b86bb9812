"""The commands that look into groups and change them."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from offsetmgr.cli.options import (
    EXIT_TROUBLE,
    Bootstrap,
    ConfigFile,
    Csv,
    Json,
    Set,
    for_scripts,
    load_settings,
)

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for Kafka.")]

_MILLISECOND_S = 0.001


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(history)


def history(
    group: GroupName,
    topic: Annotated[str | None, typer.Option(help="Of this topic alone.")] = None,
    partition: Annotated[int | None, typer.Option(help="Of this partition alone.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="From then on: 2026-01-31T13:05:00 (UTC), or 2h ago."),
    ] = None,
    config: ConfigFile = None,
    bootstrap_servers: Bootstrap = None,
    set_: Set = None,
    timeout: Timeout = 120.0,
    *,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Show every commit of a group that Kafka still has: when, from where, to where.

    It reads __consumer_offsets, as far back as compaction has left it, and needs the right READ on
    that topic. Steps backwards and deleted offsets are marked.

    \b
    Exit status:
      0    nothing went backwards, nothing was deleted
      1    something did, or was; or Kafka refused
      2    an option is wrong
      3    the topic was not read to its end in time
    """  # noqa: D301 -- \b is typer's mark for lines to keep
    with for_scripts():
        from offsetmgr.admin.commit_log import read_commits
        from offsetmgr.admin.history import Move, steps
        from offsetmgr.admin.times import parse_since, time_text
        from offsetmgr.cli.output import print_csv, print_json, print_table
        from offsetmgr.types import check_group

        check_group(group)
        since_s = 0.0 if since is None else parse_since(since, "--since", time.time())
        kafka = load_settings(config, bootstrap_servers, set_).kafka.for_librdkafka()
        found = steps(read_commits(kafka, {group}, timeout_s=timeout))
        shown = [
            step
            for step in found
            if step.at_s >= since_s
            and topic in {None, step.partition.topic}
            and partition in {None, step.partition.partition}
        ]
        heads = "time", "topic", "partition", "from", "to", "metadata", "change"
        rows = [
            (time_text(at_s), *where, before, after, metadata, move.value)
            for at_s, where, before, after, metadata, move in shown
        ]
        if as_json:
            print_json(
                {"group": group, "steps": [dict(zip(heads, row, strict=True)) for row in rows]}
            )
        elif as_csv:
            print_csv(heads, rows)
        elif rows:
            print_table(heads, rows, {"backward": "bold red", "deleted": "red"})
        if not rows:
            print(f"Kafka has no such commits of group {group}.", file=sys.stderr)
        bad = [step for step in shown if step.move in {Move.BACKWARD, Move.DELETED}]
        if bad and not as_json and not as_csv:
            before = time_text(bad[-1].at_s - _MILLISECOND_S)
            print(
                f"To go back to where the group stood before the last of these: "
                f"offsetmgr reset {group} --all-topics --to-history {before}"
            )
    raise typer.Exit(EXIT_TROUBLE if bad else 0)
