"""The commands that look into groups and change them."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from offsetmgr.cli.options import (
    EXIT_INCOMPLETE,
    EXIT_TROUBLE,
    Bootstrap,
    ConfigFile,
    Csv,
    Json,
    Set,
    for_scripts,
    load_settings,
)
from offsetmgr.types import check_group

if TYPE_CHECKING:
    from offsetmgr.admin.changes import GroupChanges
    from offsetmgr.admin.doctor import Finding
    from offsetmgr.admin.reset import Row
    from offsetmgr.admin.spark_status import QueryStatus
    from offsetmgr.service.settings import Settings
    from offsetmgr.types import TopicPartition

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for Kafka.")]

Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC[:P,P...]", help="A topic or some of its partitions."),
]
AllTopics = Annotated[
    bool, typer.Option("--all-topics", help="All partitions with committed offsets.")
]
Execute = Annotated[bool, typer.Option("--execute", help="Do it.")]
ServiceUrl = Annotated[
    str | None,
    typer.Option(
        envvar="OFFSETMGR_SERVICE",
        help="A running service: a group that its clients hold is left alone.",
    ),
]

_MILLISECOND_S = 0.001
_BRINGS_PARTITIONS = {"from-file", "from-group", "to-history"}


def add_to(app: typer.Typer, spark_app: typer.Typer) -> None:
    """Add the commands to the command line."""
    spark_app.command("status")(spark_status)
    app.command()(doctor)
    app.command()(history)
    app.command()(reset)
    app.command("set")(set_offsets)
    app.command()(delete_offsets)
    app.command()(delete_group)


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
            styles = {"backward": "bold red", "deleted": "red"}
            print_table(heads, rows, styles, whole=["time", "change"])
        if not rows:
            print(f"Kafka has no such commits of group {group}.", file=sys.stderr)
        bad = [step for step in shown if step.move in {Move.BACKWARD, Move.DELETED}]
        if bad and not as_json and not as_csv:
            before = time_text(bad[-1].at_s - _MILLISECOND_S)
            print(
                f"To go back to where the group stood before the last of these: "
                f"offsetmgr reset {group} --to-history {before}"
            )
    raise typer.Exit(EXIT_TROUBLE if bad else 0)


def reset(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...", help="Consumer groups.")],
    topic: Topics = None,
    *,
    all_topics: AllTopics = False,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the start of each log.")
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end of each log.")] = False,
    to_current: Annotated[
        bool,
        typer.Option(
            "--to-current", help="To what is committed; where nothing is, to the end of the log."
        ),
    ] = False,
    to_offset: Annotated[str | None, typer.Option(metavar="N", help="To this offset.")] = None,
    shift_by: Annotated[
        str | None, typer.Option(metavar="N", help="Forward by N; backward by -N.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="To the first record of 2026-01-31T13:05:00 (UTC) on."),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="To the first record of PT2H30M (2h30m) ago.")
    ] = None,
    from_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="To the offsets of lines [group,]topic,partition,offset."
        ),
    ] = None,
    from_group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="To where that group is.")
    ] = None,
    to_history: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Back to where the group stood then; see history."),
    ] = None,
    execute: Execute = False,
    live: Annotated[
        bool,
        typer.Option("--live", help="Of a group whose job runs: --service sets the offsets."),
    ] = False,
    export: Annotated[
        bool, typer.Option("--export", help="Print the plan in the form of --from-file.")
    ] = False,
    service: ServiceUrl = None,
    config: ConfigFile = None,
    bootstrap_servers: Bootstrap = None,
    set_: Set = None,
    timeout: Timeout = 30.0,
    as_json: Json = False,
) -> None:
    """Set the offsets of groups that nobody holds; without --execute it only shows the plan.

    The modes and their edges are those of kafka-consumer-groups; new are --from-group and
    --to-history. Give one of them, and --topic or --all-topics.

    With --live the job goes on from where it is, and commits over a lower offset with its next
    batch. Its checkpoint decides at its next start: give it a new one to begin at the group.

    \b
    Exit status:
      0    the plan is complete; with --execute, it was carried out
      1    the group is held by others, or Kafka refused
      2    an option is wrong
      3    some partitions were left as they are; the notes say why
    """  # noqa: D301 -- \b is typer's mark for lines to keep
    given: dict[str, str | bool | None] = {
        "to-earliest": to_earliest,
        "to-latest": to_latest,
        "to-current": to_current,
        "to-offset": to_offset,
        "shift-by": shift_by,
        "to-datetime": to_datetime,
        "by-duration": by_duration,
        "from-file": from_file,
        "from-group": from_group,
        "to-history": to_history,
    }
    with for_scripts():
        from offsetmgr.admin.reset import parse_scope, to_csv
        from offsetmgr.errors import InvalidValueError

        modes = [mode for mode, value in given.items() if value not in {None, False}]
        if len(modes) != 1:
            fix = f"give one of {', '.join(f'--{mode}' for mode in given)}"
            raise InvalidValueError("modes", modes, "are not exactly one", fix)
        (mode,) = modes
        if live and service is None:
            fix = "name the service that commits the group: --service URL"
            raise InvalidValueError("--live", live, "needs a service", fix)
        if bool(topic) + all_topics != 1 and (topic or mode not in _BRINGS_PARTITIONS):
            fix = "give --topic or --all-topics, and not both"
            raise InvalidValueError("--topic", topic, "does not say what to reset", fix)
        scope = parse_scope(topic) if topic else None
        settings = load_settings(config, bootstrap_servers, set_)
        with _changes(settings, service, timeout) as change:
            plans: dict[str, list[Row]] = {}
            for group in groups:
                if not live:
                    change.check_free(check_group(group))
                plans[group] = change.plan(
                    group, change.target(mode, str(given[mode]), group), scope
                )
            do = change.rewind if live else change.commit
            failures = {group: do(group, rows) for group, rows in plans.items()} if execute else {}
        if export:
            print(to_csv(plans), end="")
        else:
            _print_plans(plans, failures, executed=execute, as_json=as_json)
    left = any(row.new is None for rows in plans.values() for row in rows)
    raise typer.Exit(EXIT_INCOMPLETE if left or any(failures.values()) else 0)


def set_offsets(
    group: GroupName,
    offsets: Annotated[
        list[str], typer.Argument(metavar="TOPIC:PARTITION=OFFSET...", help="Such as orders:0=42.")
    ],
    *,
    execute: Execute = False,
    service: ServiceUrl = None,
    config: ConfigFile = None,
    bootstrap_servers: Bootstrap = None,
    set_: Set = None,
    timeout: Timeout = 30.0,
    as_json: Json = False,
) -> None:
    """Set single offsets of a group that nobody holds; as reset, with its exit statuses."""
    with for_scripts():
        from offsetmgr.admin.reset import Mode, Target, parse_offsets

        target = Target(Mode.TO_OFFSETS, offsets=parse_offsets(offsets))
        settings = load_settings(config, bootstrap_servers, set_)
        with _changes(settings, service, timeout) as change:
            change.check_free(check_group(group))
            rows = change.plan(group, target, None)
            failures = change.commit(group, rows) if execute else {}
        _print_plans({group: rows}, {group: failures}, executed=execute, as_json=as_json)
    left = any(row.new is None for row in rows)
    raise typer.Exit(EXIT_INCOMPLETE if left or failures else 0)


def delete_offsets(
    group: GroupName,
    topic: Topics = None,
    *,
    all_topics: AllTopics = False,
    execute: Execute = False,
    service: ServiceUrl = None,
    config: ConfigFile = None,
    bootstrap_servers: Bootstrap = None,
    set_: Set = None,
    timeout: Timeout = 30.0,
    as_json: Json = False,
) -> None:
    """Delete committed offsets of a group, also those of topics that are gone.

    Without --execute it only shows what would be deleted; the exit statuses are those of reset.
    """
    with for_scripts():
        from offsetmgr.admin.reset import Row, in_scope, parse_scope
        from offsetmgr.errors import InvalidValueError

        if bool(topic) == all_topics:
            fix = "give --topic or --all-topics, and not both"
            raise InvalidValueError("--topic", topic, "does not say what to delete", fix)
        scope = parse_scope(topic) if topic else None
        settings = load_settings(config, bootstrap_servers, set_)
        with _changes(settings, service, timeout) as change:
            change.check_free(check_group(group))
            committed = change.committed(group)
            rows = [
                Row(where, each.offset, None, "to be deleted")
                for where, each in sorted(committed.items())
                if in_scope(where, scope)
            ]
            wanted = [row.partition for row in rows]
            failures = change.delete_offsets(group, wanted) if execute and wanted else {}
        if execute:
            rows = [row._replace(note="deleted") for row in rows]
        _print_plans({group: rows}, {group: failures}, executed=execute, as_json=as_json)
    raise typer.Exit(EXIT_INCOMPLETE if failures else 0)


def delete_group(
    group: GroupName,
    *,
    execute: Execute = False,
    service: ServiceUrl = None,
    config: ConfigFile = None,
    bootstrap_servers: Bootstrap = None,
    set_: Set = None,
    timeout: Timeout = 30.0,
) -> None:
    """Delete a group that nobody holds, with all that it has committed; needs --execute."""
    with for_scripts():
        settings = load_settings(config, bootstrap_servers, set_)
        with _changes(settings, service, timeout) as change:
            change.check_free(check_group(group))
            count = len(change.committed(group))
            if execute:
                change.delete_group(group)
        done = "Deleted" if execute else "--execute deletes"
        print(f"{done} group {group} with {count} committed offsets.")


def doctor(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP...]", help="These alone; without, all.")
    ] = None,
    *,
    service: ServiceUrl = None,
    stuck_after: Annotated[
        str,
        typer.Option(metavar="TIME", help="A group with lag and no commit for so long is stuck."),
    ] = "10m",
    config: ConfigFile = None,
    bootstrap_servers: Bootstrap = None,
    set_: Set = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Look for what is wrong with groups, Kafka and the service; say why it matters and what to do.

    It changes nothing.

    \b
    Exit status:
      0    nothing is wrong
      1    something is
      2    an option is wrong
      3    nothing is wrong as far as could be checked
    """  # noqa: D301 -- \b is typer's mark for lines to keep
    with for_scripts():
        from offsetmgr.admin.doctor import Level, examine
        from offsetmgr.admin.facts import gather
        from offsetmgr.admin.service import ServiceReader
        from offsetmgr.admin.times import parse_duration
        from offsetmgr.cli.output import print_json
        from offsetmgr.service import version

        settings = load_settings(config, bootstrap_servers, set_)
        facts = gather(
            settings.kafka.for_librdkafka(),
            [check_group(group) for group in groups] if groups else None,
            None if service is None else ServiceReader(service, timeout),
            version=version(),
            stuck_after_s=parse_duration(stuck_after, "--stuck-after"),
            timeout_s=timeout,
        )
        findings = examine(facts)
        if as_json:
            records = [each._asdict() | {"level": each.level.value} for each in findings]
            print_json({"versions": facts.versions, "findings": records})
        else:
            _print_findings(findings)
    levels = {each.level for each in findings}
    unknown = EXIT_INCOMPLETE if Level.UNKNOWN in levels else 0
    raise typer.Exit(EXIT_TROUBLE if Level.TROUBLE in levels else unknown)


def spark_status(
    checkpoint: Annotated[str, typer.Option(help="The query's checkpointLocation.")],
    group: Annotated[str | None, typer.Option(help="Compare it with this group, too.")] = None,
    *,
    config: ConfigFile = None,
    bootstrap_servers: Bootstrap = None,
    set_: Set = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Show how far a query has come, and whether a restart would lose or repeat anything.

    Of a checkpoint on this machine. A restart reads on behind the last finished batch.

    \b
    Exit status:
      0    a restart goes on without a gap, and the group (if named) is where the checkpoint is
      1    something would be lost or read again, or the group is elsewhere
      2    an option is wrong, or there is no such checkpoint
    """  # noqa: D301 -- \b is typer's mark for lines to keep
    with for_scripts():
        from offsetmgr.admin.answers import does_not_exist, known
        from offsetmgr.admin.spark_status import positions, status
        from offsetmgr.cli.output import print_json, print_table
        from offsetmgr.lag.cluster import ClusterReader
        from offsetmgr.spark.checkpoint import Checkpoint

        files = Checkpoint(checkpoint)
        partitions = positions(files)
        settings = load_settings(config, bootstrap_servers, set_)
        with ClusterReader(settings.kafka.for_librdkafka(), timeout_s=timeout) as reader:
            answers = reader.log_ranges(partitions)
            logs = {where: known(a) for where, a in answers.items() if not does_not_exist(a)}
            committed = known(reader.committed([group])[group]) if group else {}
        found = status(files, committed, logs)
        heads = "topic", "partition", "checkpoint", "begun to", "group", "log end", "lag", "note"
        rows = [
            (
                *each.partition,
                each.finished,
                each.begun,
                each.committed,
                None if each.log is None else each.log.high_watermark,
                each.lag,
                each.note,
            )
            for each in found.partitions
        ]
        if as_json:
            records = [dict(zip(heads, row, strict=True)) for row in rows]
            names = {"finished_batch": found.finished, "begun_batch": found.begun}
            totals = {"begun_s": found.begun_s, "lost": found.lost, "repeated": found.repeated}
            print_json({**names, **totals, "partitions": records})
        else:
            print_table(heads, rows)
            _print_restart(found)
    raise typer.Exit(EXIT_TROUBLE if any(each.note for each in found.partitions) else 0)


def _print_restart(found: QueryStatus) -> None:
    from offsetmgr.admin.times import age_text

    if found.begun is None:
        print("The query has begun no batch yet: it will start at its startingOffsets.")
        return
    begun_s = time.time() if found.begun_s is None else found.begun_s
    age = f"begun {age_text(time.time() - begun_s)} ago"
    if found.finished == found.begun:
        print(f"Batch {found.begun}, {age}, is finished.")
    else:
        print(f"Batch {found.begun}, {age}, is not finished; the one before it is.")
    print(f"A restart reads {found.repeated} offsets again, and finds {found.lost} lost.")


def _print_findings(findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    from offsetmgr.admin.doctor import Level
    from offsetmgr.cli.output import console
    from offsetmgr.service.logs import visible

    out = console()
    for level, check, what, why, mend, group in findings:
        if level is Level.OK:
            if not group:
                out.print(Text(f"ok: {check}: {visible(what)}", style="green"))
            continue
        where = f"{check}, group {visible(group)}" if group else check
        out.print(
            Text(f"{level.value}: {where}", style="red" if level is Level.TROUBLE else "yellow")
        )
        lines = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
        lines.add_column(no_wrap=True)
        lines.add_column(overflow="fold")
        lines.add_row("  what", visible(what))
        lines.add_row("  why", visible(why))
        out.print(lines)
        print(f"  mend  {visible(mend)}")  # in one line, to be copied
    counts = Counter(each.level for each in findings)
    print(
        f"{counts[Level.OK]} checks found nothing wrong, {counts[Level.TROUBLE]} found trouble, "
        f"{counts[Level.UNKNOWN]} could not be made."
    )


def _changes(settings: Settings, service: str | None, timeout_s: float) -> GroupChanges:
    from offsetmgr.admin.changes import GroupChanges
    from offsetmgr.admin.service import ServiceReader

    kafka = settings.kafka.for_librdkafka()
    asked = None if service is None else ServiceReader(service, timeout_s)
    return GroupChanges(kafka, asked, timeout_s=timeout_s)


def _print_plans(
    plans: Mapping[str, list[Row]],
    failures: Mapping[str, Mapping[TopicPartition, str]],
    *,
    executed: bool,
    as_json: bool,
) -> None:
    from offsetmgr.cli.output import print_json, print_table

    heads = "group", "topic", "partition", "current", "new", "note"
    rows = []
    for group, planned in plans.items():
        failed = failures.get(group, {})
        for where, current, new, note in planned:
            failure = failed.get(where)
            shown = note if failure is None else f"not done: {failure}"
            rows.append((group, *where, current, None if new is None else new.offset, shown))
    if as_json:
        records = [dict(zip(heads, row, strict=True)) for row in rows]
        print_json({"executed": executed, "partitions": records})
        return
    if rows:
        print_table(heads, rows)
    undone = sum(map(len, failures.values()))
    if executed:
        print(f"Done for {len(rows) - undone} of {len(rows)} partitions.")
        print("A Spark job reads on from its checkpoint: give it a new one to begin here.")
    else:
        print(f"This is a plan for {len(rows)} partitions; --execute carries it out.")
