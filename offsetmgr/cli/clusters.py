"""The commands for several clusters of one configuration file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated

from typer import Argument, Option

from offsetmgr.cli.common import ConfigFile, Execute, Exit, OutputOptions, Timeout, records
from offsetmgr.clusters.migration import OffsetMigration, starting_offsets
from offsetmgr.errors import InvalidValueError
from offsetmgr.service.settings import load_clusters, named_cluster
from offsetmgr.types import check_group

_HEADS = (
    "topic", "partition", "offset", "mirror", "current", "new", "again", "by", "note",
)  # fmt: skip


def list_clusters(config: ConfigFile = None, *, output: OutputOptions) -> None:
    """List the clusters of the configuration file with their settings, secrets masked."""
    heads = "cluster", "setting", "value"
    rows = [
        (name, setting, value)
        for name, kafka in sorted(load_clusters(config, os.environ).items())
        for setting, value in sorted(kafka.masked().items())
    ]
    output.print(records(heads, rows), heads, rows)


def copy_offsets(
    group: Annotated[str | None, Argument(metavar="[GROUP]", help="The group.")] = None,
    *,
    source: Annotated[str, Option("--from", metavar="NAME", help="The group's cluster.")],
    target: Annotated[str, Option("--to", metavar="NAME", help="The cluster that mirrors.")],
    checkpoint: Annotated[
        str | None, Option(metavar="DIR", help="Of a Spark query, in place of a group's offsets.")
    ] = None,
    config: ConfigFile = None,
    timeout: Timeout = 60.0,
    execute: Execute = False,
    output: OutputOptions,
) -> int:
    """Copy a group's offsets to a cluster that mirrors its topics; by default only plan it.

    The mirror of the topic orders is named SOURCE.orders in the target, as MirrorMaker 2 names it,
    else orders. Offsets are translated by MirrorMaker's offset syncs and by the times of the
    records: the nearer one counts. No record is skipped; `again` is how many are read twice, at
    most.

    With --checkpoint the last line is the startingOffsets with which the query goes on in the
    target, under a new checkpoint. Nothing is committed then.
    """
    clusters = load_clusters(config, os.environ)
    pair = [
        (name, named_cluster(clusters, name, option).for_librdkafka())
        for name, option in ((source, "--from"), (target, "--to"))
    ]
    if (group is None) == (checkpoint is None) or (checkpoint is not None and execute):
        fix = "give a group, or --checkpoint without --execute"
        raise InvalidValueError("group", group, "does not go with the other options", fix)
    failures = {}
    with OffsetMigration(*pair, timeout_s=timeout) as migration:
        if group is not None:
            plan = migration.plan_group(check_group(group))
            failures = migration.execute(group, plan) if execute else {}
        else:
            plan = migration.plan_checkpoint(str(checkpoint))
    rows = [
        (*row.partition, row.offset, row.target.topic, row.current, *row.new[:3],
         f"not done: {failures[row.target]}" if row.target in failures else row.new.note)
        for row in plan
    ]  # fmt: skip
    left = [row for row in plan if row.new.offset is None or row.target in failures]
    answer = {"from": source, "to": target, "group": group, "executed": execute}
    if checkpoint is not None:
        answer["startingOffsets"] = None if left else starting_offsets(plan)
    output.print(answer, _HEADS, rows, "partitions")
    if output.as_table:
        _print_summary(answer, len(plan), len(left), sum(row.new.again or 0 for row in plan))
    return Exit.INCOMPLETE if left else 0


def _print_summary(answer: Mapping[str, object], count: int, left: int, again: int) -> None:
    if not count:
        print("There are no offsets to copy.")
    elif answer["group"] is None:
        print(
            answer["startingOffsets"] or "Some partitions are left: there are no startingOffsets."
        )
    else:
        done = "Committed" if answer["executed"] else "This is a plan; --execute commits"
        print(f"{done} {count - left} of {count} partitions; at most {again} records again.")
