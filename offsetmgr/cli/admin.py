"""The commands that look into groups and change them."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, NoReturn

import typer
from rich.table import Table
from rich.text import Text

from offsetmgr.admin.answers import does_not_exist, known
from offsetmgr.admin.changes import GroupChanges
from offsetmgr.admin.commit_log import read_commits
from offsetmgr.admin.doctor import Finding, Level, examine
from offsetmgr.admin.facts import gather
from offsetmgr.admin.history import Move, steps
from offsetmgr.admin.reset import (
    Mode,
    PlannedOffset,
    Target,
    in_scope,
    parse_offsets,
    parse_scope,
    to_csv,
)
from offsetmgr.admin.service import ServiceReader
from offsetmgr.admin.spark_status import QueryStatus, positions, status
from offsetmgr.admin.times import age_text, parse_duration, parse_since, time_text
from offsetmgr.cli.options import (
    EXIT_INCOMPLETE,
    EXIT_TROUBLE,
    AllTopics,
    Execute,
    GroupName,
    Groups,
    Json,
    KafkaOptions,
    OutputOptions,
    OwnersService,
    Since,
    Store,
    Topics,
)
from offsetmgr.cli.output import console, print_answer, print_json, print_table, records
from offsetmgr.errors import InvalidValueError
from offsetmgr.lag.cluster import ClusterReader
from offsetmgr.service import version
from offsetmgr.service.logs import visible
from offsetmgr.spark.checkpoint import Checkpoint
from offsetmgr.types import TopicPartition, check_group

_MILLISECOND_S = 0.001
_BRINGS_PARTITIONS = {"from-file", "from-group", "to-history"}


def history(
    group: GroupName,
    topic: Annotated[str | None, typer.Option(help="Only of this topic.")] = None,
    partition: Annotated[int | None, typer.Option(help="Only of this partition.")] = None,
    since: Since = None,
    *,
    kafka: KafkaOptions,
    output: OutputOptions,
) -> None:
    """Show every commit of a group that Kafka still has: when, from where, to where.

    It reads __consumer_offsets, as far back as compaction has left it, and needs the right READ on
    that topic. Exits with 1 if an offset went backwards or was deleted.
    """
    check_group(group)
    since_s = 0.0 if since is None else parse_since(since, "--since", time.time())
    found = steps(read_commits(kafka.for_librdkafka(), {group}, timeout_s=kafka.timeout))
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
    if not output.as_table:
        print_answer(output, {"group": group, "steps": records(heads, rows)}, heads, rows)
    elif rows:
        styles = {"backward": "bold red", "deleted": "red"}
        print_table(heads, rows, styles, whole=["time", "change"])
    if not rows:
        print(f"Kafka has no such commits of group {group}.", file=sys.stderr)
    bad = [step for step in shown if step.move in {Move.BACKWARD, Move.DELETED}]
    if bad and output.as_table:
        before = time_text(bad[-1].at_s - _MILLISECOND_S)
        print(
            f"To go back to where the group stood before the last of these: "
            f"offsetmgr reset {group} --to-history {before}"
        )
    raise typer.Exit(EXIT_TROUBLE if bad else 0)


def reset(
    groups: Groups,
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
            "--to-current", help="To the committed offset; without one, to the end of the log."
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
            metavar="FILE",
            help="To the offsets of lines topic,partition,offset or group,topic,partition,offset.",
        ),
    ] = None,
    from_group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="To the committed offsets of that group.")
    ] = None,
    to_history: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Back to the offsets of that time; see history."),
    ] = None,
    execute: Execute = False,
    live: Annotated[
        bool,
        typer.Option("--live", help="Let --service set the offsets, while the job runs."),
    ] = False,
    export: Annotated[
        bool, typer.Option("--export", help="Print the plan in the form of --from-file.")
    ] = False,
    service: OwnersService = None,
    store: Store = None,
    kafka: KafkaOptions,
    as_json: Json = False,
) -> None:
    """Set the offsets of groups that nobody else commits; without --execute, print the plan.

    The modes work as those of kafka-consumer-groups; --from-group and --to-history are new. Give
    one of them, and --topic or --all-topics. Exits with 3 if partitions were left as they are.

    With --live the job continues at its own offsets and may commit over a lower offset with its
    next batch. At its next start its checkpoint decides: to begin at the group's offsets, give it
    a new checkpoint.
    """
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
    modes = [mode for mode, value in given.items() if value not in {None, False}]
    if len(modes) != 1:
        fix = f"give one of {', '.join(f'--{mode}' for mode in given)}"
        raise InvalidValueError("modes", modes, "are not exactly one", fix)
    (mode,) = modes
    if store is not None and mode == "to-history":
        fix = "use another mode: a store keeps no earlier offsets"
        raise InvalidValueError("--to-history", to_history, "is of groups in Kafka", fix)
    if live and service is None:
        fix = "name the service that commits the group: --service URL"
        raise InvalidValueError("--live", live, "needs a service", fix)
    if not topic and not all_topics and mode in _BRINGS_PARTITIONS:
        scope = None
    else:
        scope = _scope(topic, all_topics=all_topics)
    with _changes(kafka, service, store) as change:
        plans: dict[str, list[PlannedOffset]] = {}
        for group in groups:
            if not live:
                change.check_free(check_group(group))
            plans[group] = change.plan(group, change.target(mode, str(given[mode]), group), scope)
        do = change.rewind if live else change.commit
        failures = {group: do(group, rows) for group, rows in plans.items()} if execute else {}
    if export:
        print(to_csv(plans), end="")
    else:
        _print_plans(plans, failures, executed=execute, as_json=as_json)
    _exit(plans, failures)


def set_offsets(
    group: GroupName,
    offsets: Annotated[
        list[str], typer.Argument(metavar="TOPIC:PARTITION=OFFSET...", help="Such as orders:0=42.")
    ],
    *,
    execute: Execute = False,
    service: OwnersService = None,
    store: Store = None,
    kafka: KafkaOptions,
    as_json: Json = False,
) -> None:
    """Set single offsets of a group that nobody else commits; otherwise like reset."""
    target = Target(Mode.TO_OFFSETS, offsets=parse_offsets(offsets))
    with _changes(kafka, service, store) as change:
        change.check_free(check_group(group))
        rows = change.plan(group, target, None)
        failures = change.commit(group, rows) if execute else {}
    _print_plans({group: rows}, {group: failures}, executed=execute, as_json=as_json)
    _exit({group: rows}, {group: failures})


def delete_offsets(
    group: GroupName,
    topic: Topics = None,
    *,
    all_topics: AllTopics = False,
    execute: Execute = False,
    service: OwnersService = None,
    kafka: KafkaOptions,
    as_json: Json = False,
) -> None:
    """Delete committed offsets of a group, also those of deleted topics.

    Without --execute it only shows what would be deleted.
    """
    scope = _scope(topic, all_topics=all_topics)
    with _changes(kafka, service) as change:
        change.check_free(check_group(group))
        committed = change.committed(group)
        wanted = [each for each in sorted(committed) if in_scope(each, scope)]
        failures = change.delete_offsets(group, wanted) if execute and wanted else {}
    note = "deleted" if execute else "to be deleted"
    rows = [PlannedOffset(each, committed[each].offset, None, note) for each in wanted]
    _print_plans({group: rows}, {group: failures}, executed=execute, as_json=as_json)
    raise typer.Exit(EXIT_INCOMPLETE if failures else 0)


def delete_group(
    group: GroupName,
    *,
    execute: Execute = False,
    service: OwnersService = None,
    kafka: KafkaOptions,
) -> None:
    """Delete a group that nobody else commits, with all its offsets; needs --execute."""
    with _changes(kafka, service) as change:
        change.check_free(check_group(group))
        count = len(change.committed(group))
        if execute:
            change.delete_group(group)
    done = "Deleted" if execute else "--execute deletes"
    print(f"{done} group {group} with {count} committed offsets.")


def doctor(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP...]", help="Only these; default: all.")
    ] = None,
    *,
    service: OwnersService = None,
    stuck_after: Annotated[
        str,
        typer.Option(metavar="TIME", help="A group with lag and no commit for so long is stuck."),
    ] = "10m",
    kafka: KafkaOptions,
    as_json: Json = False,
) -> None:
    """Look for trouble with groups, Kafka and the service; say why it matters and what to do.

    It changes nothing. Exits with 1 if something is wrong, with 3 if some checks were impossible.
    """
    facts = gather(
        kafka.for_librdkafka(),
        [check_group(group) for group in groups] if groups else None,
        None if service is None else ServiceReader(service, kafka.timeout),
        version=version(),
        stuck_after_s=parse_duration(stuck_after, "--stuck-after"),
        timeout_s=kafka.timeout,
    )
    findings = examine(facts)
    if as_json:
        found = [each._asdict() | {"level": each.level.value} for each in findings]
        print_json({"versions": facts.versions, "findings": found})
    else:
        _print_findings(findings)
    levels = {each.level for each in findings}
    unknown = EXIT_INCOMPLETE if Level.UNKNOWN in levels else 0
    raise typer.Exit(EXIT_TROUBLE if Level.TROUBLE in levels else unknown)


def spark_status(
    checkpoint: Annotated[str, typer.Option(help="The query's checkpointLocation.")],
    group: Annotated[str | None, typer.Option(help="Compare it with this group, too.")] = None,
    *,
    kafka: KafkaOptions,
    as_json: Json = False,
) -> None:
    """Show the progress of a query, and whether a restart would lose or repeat anything.

    The checkpoint must be on this machine. Exits with 1 if records would be lost or read again,
    or if the group is not where the checkpoint is; with 2 if there is no such checkpoint.
    """
    files = Checkpoint(checkpoint)
    partitions = positions(files)
    with ClusterReader(kafka.for_librdkafka(), timeout_s=kafka.timeout) as reader:
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
        names = {"finished_batch": found.finished, "begun_batch": found.begun}
        totals = {"begun_s": found.begun_s, "lost": found.lost, "repeated": found.repeated}
        print_json({**names, **totals, "partitions": records(heads, rows)})
    else:
        print_table(heads, rows)
        _print_restart(found)
    raise typer.Exit(EXIT_TROUBLE if any(each.note for each in found.partitions) else 0)


def _print_restart(found: QueryStatus) -> None:
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


def _scope(topics: list[str] | None, *, all_topics: bool) -> dict[str, list[int] | None] | None:
    """Return the partitions by topic, None for all.  Raises InvalidValueError."""
    if bool(topics) == all_topics:
        fix = "give --topic or --all-topics, and not both"
        raise InvalidValueError("--topic", topics, "does not say which partitions", fix)
    return parse_scope(topics) if topics else None


def _changes(kafka: KafkaOptions, service: str | None, store: str | None = None) -> GroupChanges:
    asked = None if service is None else ServiceReader(service, kafka.timeout)
    return GroupChanges(kafka.for_librdkafka(), asked, timeout_s=kafka.timeout, store=store)


def _exit(
    plans: Mapping[str, list[PlannedOffset]], failures: Mapping[str, Mapping[TopicPartition, str]]
) -> NoReturn:
    """End with the status of a plan: incomplete if a partition was left as it is."""
    left = any(row.new is None for rows in plans.values() for row in rows)
    raise typer.Exit(EXIT_INCOMPLETE if left or any(failures.values()) else 0)


def _print_plans(
    plans: Mapping[str, list[PlannedOffset]],
    failures: Mapping[str, Mapping[TopicPartition, str]],
    *,
    executed: bool,
    as_json: bool,
) -> None:
    heads = "group", "topic", "partition", "current", "new", "note"
    rows = []
    for group, planned in plans.items():
        failed = failures.get(group, {})
        for where, current, new, note in planned:
            failure = failed.get(where)
            shown = note if failure is None else f"not done: {failure}"
            rows.append((group, *where, current, None if new is None else new.offset, shown))
    if as_json:
        print_json({"executed": executed, "partitions": records(heads, rows)})
        return
    if rows:
        print_table(heads, rows)
    undone = sum(map(len, failures.values()))
    if executed:
        print(f"Done for {len(rows) - undone} of {len(rows)} partitions.")
        print("A Spark job reads on from its checkpoint: give it a new one to begin here.")
    else:
        print(f"This is a plan for {len(rows)} partitions; --execute carries it out.")
