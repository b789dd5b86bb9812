"""The commands that look into groups and change them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from typer import Argument, Option

from offsetmgr.admin.changes import GroupChanges
from offsetmgr.admin.commands import topic_options
from offsetmgr.admin.doctor import Finding, Level, examine, gather
from offsetmgr.admin.history import HISTORY_FIELDS, history_report, read_causes
from offsetmgr.admin.migration import OffsetMigration
from offsetmgr.admin.reset import (
    NOT_KNOWN,
    PLAN_FIELDS,
    PlannedOffset,
    in_scope,
    outcome,
    parse_offsets,
    parse_scope,
    plan_rows,
    to_csv,
)
from offsetmgr.admin.spark_status import positions, status
from offsetmgr.admin.times import parse_duration, parse_since, seconds_text
from offsetmgr.cli import common
from offsetmgr.errors import InvalidValueError, OffsetManagerError
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.kafka.errors import does_not_exist, known
from offsetmgr.service.settings import named_cluster, read_clusters
from offsetmgr.spark.checkpoint import Checkpoint
from offsetmgr.spark.starting import spark_json
from offsetmgr.text import listed
from offsetmgr.types import TopicPartition, check_existing_group, check_group

_COPY_FIELDS = ["topic", "partition", "offset", "mirror", "current", "new", "again", "by", "note"]
_NOT_GIVEN = (None, False)
_COLOURS = {Level.OK: "green", Level.TROUBLE: "red", Level.UNKNOWN: "yellow"}


def history(
    group: common.GroupName,
    topic: Annotated[str | None, Option(help="Only of this topic.")] = None,
    partition: Annotated[int | None, Option(min=0, help="Only of this partition.")] = None,
    since: common.Since = None,
    *,
    kafka: common.KafkaOptions,
    output: common.OutputOptions,
) -> int:
    """Show every commit of a group that Kafka still has: when, from where, to where.

    It reads __consumer_offsets, as far back as compaction has left it, and needs the right READ on
    that topic. Exits with 1 if an offset went backwards or was deleted.
    """
    check_existing_group(group)
    since_s = 0.0 if since is None else parse_since(since, "--since", time.time())
    with GroupChanges(kafka.for_librdkafka(), timeout_s=kafka.timeout) as change:
        shown = list(change.history(group, since_s, topic, partition))
        causes = read_causes(change.reader, shown)
    answer = history_report(group, shown, causes)
    rows = [list(step.values()) for step in answer["steps"]]
    is_whole = topic is None and partition is None
    ends: list[str] = []
    before = answer["undo_to"]
    if before:
        scope = [] if is_whole else topic_options(step.partition for step in shown)
        undo = kafka.connection().command("reset", group, *scope, "--to-history", before)
        ends.append(f"To go back to where the group stood before the last of these: {undo}")
    output.print(answer, HISTORY_FIELDS, rows, ends=ends)
    if not rows and is_whole and since is None:
        check_group(group)  # of a mistyped name, this says what is wrong with it
    return common.Exit.TROUBLE if before else 0


@dataclass(frozen=True)
class ScopeOptions:
    """The options that choose partitions."""

    topic: Annotated[
        list[str] | None,
        Option(metavar="TOPIC[:P,P...]", help="A topic or some of its partitions."),
    ] = None
    all_topics: Annotated[
        bool, Option("--all-topics", help="All partitions with committed offsets.")
    ] = False

    def partitions(self) -> dict[str, list[int] | None] | None:
        """Return the partitions by topic, None for all.  Raises InvalidValueError."""
        if bool(self.topic) == self.all_topics:
            fix = "give --topic or --all-topics, and not both"
            raise InvalidValueError("--topic", self.topic, "does not say which partitions", fix)
        return parse_scope(self.topic) if self.topic else None


@dataclass(frozen=True)
class ResetMode:
    """The options of which a reset needs one."""

    to_earliest: Annotated[bool, Option("--to-earliest", help="To the start of each log.")] = False
    to_latest: Annotated[bool, Option("--to-latest", help="To the end of each log.")] = False
    to_current: Annotated[
        bool, Option("--to-current", help="To the committed offset, or else the end of the log.")
    ] = False
    to_offset: Annotated[str | None, Option(metavar="N", help="To this offset.")] = None
    shift_by: Annotated[str | None, Option(metavar="N", help="Forward by N; backward by -N.")] = (
        None
    )
    to_datetime: Annotated[
        str | None,
        Option(metavar="TIME", help="To the first record at or after 2026-01-31T13:05:00 (UTC)."),
    ] = None
    by_duration: Annotated[
        str | None, Option(metavar="TIME", help="First record of the last PT2H30M (or 2h30m).")
    ] = None
    from_file: Annotated[
        str | None,
        Option(metavar="FILE", help="To offsets of a file: [group,]topic,partition,offset."),
    ] = None
    from_group: Annotated[
        str | None, Option(metavar="GROUP", help="To the committed offsets of that group.")
    ] = None
    to_history: Annotated[
        str | None, Option(metavar="TIME", help="Back to the offsets of that time; see history.")
    ] = None

    def chosen(self) -> tuple[str, str]:
        """Return the option that is given, and its value.  Raises InvalidValueError."""
        options = {name.replace("_", "-"): value for name, value in vars(self).items()}
        given = [(name, str(value)) for name, value in options.items() if value not in _NOT_GIVEN]
        if len(given) != 1:
            fix = f"give one of {', '.join(f'--{name}' for name in options)}"
            modes = [name for name, _ in given]
            raise InvalidValueError("modes", modes, "are not exactly one", fix)
        return given[0]


def reset(
    groups: common.Groups,
    *,
    scope: ScopeOptions,
    mode: ResetMode,
    live: Annotated[
        bool, Option("--live", help="Let --service set the offsets while the job runs.")
    ] = False,
    export: Annotated[
        bool, Option("--export", help="Print the plan in the form of --from-file.")
    ] = False,
    store: common.Store = None,
    options: common.PlanOptions,
    output: common.OutputOptions,
) -> int:
    """Set the offsets of groups that nobody else commits; without --execute, print the plan.

    The modes work as in kafka-consumer-groups; --from-group and --to-history are additions. Give
    one mode and --topic or --all-topics; --from-file, --from-group and --to-history need neither.
    Exits with 3 if some partitions were not changed.

    With --live the job continues at its own position, and its next batch overwrites a lower offset.
    At its next start the job reads its checkpoint. To begin at the group's offsets, give it a new
    checkpoint.
    """
    name, value = mode.chosen()
    service = options.owner() if live else None
    if live and service is None:
        fix = "name the service that commits the group: --service URL"
        raise InvalidValueError("--live", live, "needs a service", fix)
    brings_partitions = name in {"from-file", "from-group", "to-history"}
    wanted = None if brings_partitions and scope == ScopeOptions() else scope.partitions()
    with options.changes(store) as change:

        def make(group: str) -> list[PlannedOffset]:
            if service is None:
                change.check_free(group)
            return change.plan(group, name, value, wanted)

        do = partial(change.carry_out, live=service)
        names = list(dict.fromkeys(groups))
        return _change(names, make, do, execute=options.execute, output=output, export=export)


def set_offsets(
    group: common.GroupName,
    offsets: Annotated[
        list[str], Argument(metavar="TOPIC:PARTITION=OFFSET...", help="Such as orders:0=42.")
    ],
    *,
    store: common.Store = None,
    options: common.PlanOptions,
    output: common.OutputOptions,
) -> int:
    """Set single offsets of a group that nobody else commits; otherwise like reset."""
    parse_offsets(offsets)  # before Kafka is asked
    with options.changes(store) as change:

        def make(group: str) -> list[PlannedOffset]:
            change.check_free(group)
            return change.plan(group, "set", " ".join(offsets), None)

        return _change([group], make, change.carry_out, execute=options.execute, output=output)


def delete_offsets(
    group: common.GroupName,
    *,
    scope: ScopeOptions,
    options: common.PlanOptions,
    output: common.OutputOptions,
) -> int:
    """Delete committed offsets of a group, including those of deleted topics.

    Without --execute it only shows what would be deleted.
    """
    chosen = scope.partitions()
    note = "deleted" if options.execute else "to be deleted"
    with options.changes() as change:

        def make(group: str) -> list[PlannedOffset]:
            change.check_free(group, "DELETE")
            committed = change.committed(group)
            named: set[tuple[str, int | None]] = set()
            for topic, numbers in (chosen or {}).items():
                named |= {(topic, number) for number in numbers or (None,)}
            bare = named - {*committed, *((where.topic, None) for where in committed)}
            if bare or not committed:
                fix = "check the names of group and topics; offsetmgr describe shows what it has"
                places = listed(sorted(t if n is None else f"{t}-{n}" for t, n in bare))
                problem = f"has no committed offsets{f' of {places}' if places else ''}"
                raise InvalidValueError("group", group, problem, fix)
            return [
                PlannedOffset(where, value.offset, None, note, deleted=True)
                for where, value in sorted(committed.items())
                if in_scope(where, chosen)
            ]

        return _change([group], make, change.carry_out, execute=options.execute, output=output)


def _change(
    groups: list[str],
    make: Callable[[str], list[PlannedOffset]],
    do: Callable[[str, list[PlannedOffset]], dict[TopicPartition, str]],
    *,
    execute: bool,
    output: common.OutputOptions,
    export: bool = False,
) -> int:
    """Plan a change of each group by ``make``, and carry it out by ``do`` if ``execute``.

    Prints the plans and what was not done, and returns the exit status.  A group that is refused is
    one error, unless all are.
    """
    plans, failures, refused, interrupted = _made(groups, make, do if execute else None)
    rows = plan_rows(plans, failures)
    count = sum(row.is_changed for planned in plans.values() for row in planned)
    if export:
        print(to_csv(plans), end="")
    else:
        errors = [{"group": group, "message": str(error)} for group, error in refused.items()]
        output.print({"executed": execute, "errors": errors}, PLAN_FIELDS, rows, "partitions")
    for name, error in refused.items():
        common.say(f"group {name} is left as it is: {error}", error=True)
    if export:
        for group, topic, partition, _, new, *_, note in rows:
            if new is None or str(note).startswith("not "):
                common.say(f"group {group}, {topic}-{partition}: {note}", error=True)
    elif output.as_table and execute:
        undone = sum(map(len, failures.values()))
        print(f"Done for {count - undone} of {len(rows)} partitions.")
        print("A Spark job reads on from its checkpoint: give it a new one to begin here.")
    elif output.as_table:
        print(f"This is a plan for {count} of {len(rows)} partitions; --execute carries it out.")
    if interrupted:
        return common.Exit.INTERRUPTED
    is_incomplete = refused or count < len(rows) or any(failures.values())
    return common.Exit.INCOMPLETE if is_incomplete else 0


def _made(
    groups: list[str],
    make: Callable[[str], list[PlannedOffset]],
    do: Callable[[str, list[PlannedOffset]], dict[TopicPartition, str]] | None,
) -> tuple[
    dict[str, list[PlannedOffset]],
    dict[str, dict[TopicPartition, str]],
    dict[str, OffsetManagerError],
    bool,
]:
    """Return the plans, why partitions were not changed, the groups left as they are, and Ctrl-C.

    Raises the first error if no group has a plan.
    """
    plans: dict[str, list[PlannedOffset]] = {}
    failures: dict[str, dict[TopicPartition, str]] = {}
    refused: dict[str, OffsetManagerError] = {}
    interrupted = False
    try:
        for group in groups:
            try:
                plans[group] = make(group)
                if do is not None:
                    unknown = f"{NOT_KNOWN}interrupted; look again"
                    changed = (row.partition for row in plans[group] if row.is_changed)
                    failures[group] = dict.fromkeys(changed, unknown)
                    failures[group] = do(group, plans[group])
            except OffsetManagerError as error:
                refused[group] = error
                plans.pop(group, None)
                failures.pop(group, None)
    except KeyboardInterrupt:
        if not failures:
            raise
        interrupted = True
        left = [group for group in groups if group not in {*failures, *refused}]
        refused |= dict.fromkeys(left, OffsetManagerError("interrupted before it"))
    if refused and not plans:
        raise next(iter(refused.values()))
    return plans, failures, refused, interrupted


def delete_group(group: common.GroupName, *, options: common.PlanOptions) -> None:
    """Delete a group that nobody else commits, with all its offsets; needs --execute."""
    with options.changes() as change:
        found = change.check_free(group, "DELETE")
        count = len(change.committed(group))
        if found.state == "Dead" and not count:
            fix = "check its name; offsetmgr groups lists all"
            raise InvalidValueError("group", group, "does not exist", fix)
        if options.execute:
            change.delete_group(group)
    done = "Deleted" if options.execute else "--execute deletes"
    common.say(f"{done} group {group} with {count} committed offsets.")


def doctor(
    groups: common.SomeGroups = None,
    *,
    stuck_after: Annotated[
        str, Option(metavar="TIME", help="A group with lag and no commit for this time is stuck.")
    ] = "10m",
    options: common.OwnersOptions,
    output: common.OutputOptions,
) -> int:
    """Find problems of groups, Kafka and the service, with the cause and the fix of each.

    It changes nothing. Exits with 1 if something is wrong, with 3 if some checks were impossible.
    """
    facts = gather(
        options.for_librdkafka(),
        groups or None,
        options.owner(),
        stuck_after_s=parse_duration(stuck_after, "--stuck-after"),
        timeout_s=options.timeout,
        connection=options.connection(),
    )
    findings = examine(facts)
    if output.as_table:
        _print_findings(findings)
    else:
        rows = [(each.level.value, *each[1:]) for each in findings]
        output.print({"versions": facts.versions}, Finding._fields, rows, "findings")
    levels = {each.level for each in findings}
    if Level.TROUBLE in levels:
        return common.Exit.TROUBLE
    return common.Exit.INCOMPLETE if Level.UNKNOWN in levels else 0


def spark_status(
    checkpoint: Annotated[str, Option(help="The query's checkpointLocation, a path or URL.")],
    group: Annotated[str | None, Option(help="Also compare it with this group.")] = None,
    *,
    kafka: common.KafkaOptions,
    output: common.OutputOptions,
) -> int:
    """Show the progress of a query, and whether a restart would lose or repeat anything.

    A URL such as s3://bucket/path needs the extra follow. Exits with 1 if records would be lost or
    read again, or if the group is not where the checkpoint is; with 2 if there is no such
    checkpoint.
    """
    files = Checkpoint(checkpoint)
    ends = positions(files)
    with ClusterReader(kafka.for_librdkafka(), timeout_s=kafka.timeout) as reader:
        answers = reader.log_ranges(ends)
        logs = {where: a for where, a in answers.items() if not does_not_exist(a)}
        failures = [each for each in logs.values() if isinstance(each, OffsetManagerError)]
        if failures and len(failures) == len(logs):
            raise failures[0]
        committed = None if group is None else known(reader.committed([group])[group])
    found = status(ends, committed, logs)
    finished, begun, problems = files.last_finished(), files.last_begun(), files.problems()
    answer: dict[str, Any] = {
        "finished_batch": None if finished is None else finished.batch_id,
        "begun_batch": None if begun is None else begun.batch_id,
        "begun_s": None if begun is None else begun.at_s,
        "lost": sum(each.lost for each in found),
        "repeated": sum(each.repeated for each in found),
        "problems": problems,
    }
    heads = "topic", "partition", "checkpoint", "begun to", "group", "log end", "lag", "note"
    rows = []
    for each in found:
        offsets = each.finished, each.begun, each.committed, each.log and each.log.high_watermark
        rows.append((*each.partition, *offsets, each.lag, each.note))
    lines: list[str] = []
    if begun is not None:
        age = "" if begun.at_s is None else f", begun {seconds_text(time.time() - begun.at_s)} ago,"
        is_finished = answer["finished_batch"] == begun.batch_id
        lines = [
            f"Batch {begun.batch_id}{age} is {'' if is_finished else 'not '}finished.",
            f"A restart reads {answer['repeated']} offsets again, and finds {answer['lost']} lost.",
        ]
    output.print(answer, heads, rows, "partitions", ends=lines, problems=problems)
    return common.Exit.TROUBLE if problems or any(each.note for each in found) else 0


def list_clusters(config: common.ConfigFile = None, *, output: common.OutputOptions) -> int:
    """List the clusters of the configuration file with their settings, secrets masked.

    Exits with 1 if one of them has a wrong setting.
    """
    heads = "cluster", "setting", "value"
    clusters = read_clusters(config, os.environ)
    wrong = {name: e for name, e in clusters.items() if isinstance(e, OffsetManagerError)}
    rows = [
        (name, setting, value)
        for name in sorted(clusters.keys() - wrong.keys())
        for setting, value in sorted(known(clusters[name]).masked().items())
    ]
    rows += [(name, "error", str(error)) for name, error in sorted(wrong.items())]
    output.print(common.records(heads, rows), heads, rows)
    return common.Exit.TROUBLE if wrong else 0


def copy_offsets(
    group: Annotated[str | None, Argument(metavar="[GROUP]", help="The group.")] = None,
    *,
    source: Annotated[str, Option("--from", metavar="NAME", help="The group's cluster.")],
    target: Annotated[str, Option("--to", metavar="NAME", help="The cluster with the mirror.")],
    checkpoint: Annotated[
        str | None, Option(metavar="DIR", help="A Spark query's checkpoint, in place of a group.")
    ] = None,
    config: common.ConfigFile = None,
    timeout: common.Timeout = 60.0,
    execute: common.Execute = False,
    output: common.OutputOptions,
) -> int:
    """Copy a group's offsets to a cluster that mirrors its topics; by default print the plan.

    The mirror of the topic orders is named SOURCE.orders in the target, as MirrorMaker 2 names it,
    else orders. Offsets are translated by MirrorMaker's offset syncs and by the timestamps of the
    records; the higher offset is used. No record is skipped; `again` is the largest number of
    records that are read twice.

    With --checkpoint it commits nothing. The last line is the startingOffsets for the query in the
    target, with a new checkpoint.
    """
    clusters = read_clusters(config, os.environ)
    pair = [
        (name, known(named_cluster(clusters, name, option)).for_librdkafka())
        for name, option in ((source, "--from"), (target, "--to"))
    ]
    if (group is None) == (checkpoint is None) or (checkpoint is not None and execute):
        fix = "give a group, or --checkpoint without --execute"
        raise InvalidValueError("group", group, "does not go with the other options", fix)
    failures = {}
    with OffsetMigration(*pair, timeout_s=timeout) as migration:
        if group is not None:
            plan = migration.plan_group(group)
            failures = migration.execute(group, plan) if execute else {}
        else:
            plan = migration.plan_checkpoint(str(checkpoint))
    rows = [
        (*row.partition, row.offset, row.target.topic, row.current, *row.new[:3],
         outcome(failures[row.target]) if row.target in failures else row.new.note)
        for row in plan
    ]  # fmt: skip
    left = [row for row in plan if row.new.offset is None or row.target in failures]
    answer = {"from": source, "to": target, "group": group, "executed": execute}
    done = "Committed" if execute else "This is a plan; --execute commits"
    again = sum(row.new.again or 0 for row in plan)
    count = f"{len(plan) - len(left)} of {len(plan)} partitions"
    end = f"{done} {count}; at most {again} records again."
    if checkpoint is not None:
        starts = {row.target: row.new.offset or 0 for row in plan}
        answer["startingOffsets"] = None if left else spark_json(starts)
        end = str(answer["startingOffsets"] or "Some partitions are left: no startingOffsets.")
    output.print(answer, _COPY_FIELDS, rows, "partitions", ends=[end])
    return common.Exit.INCOMPLETE if left else 0


def _print_findings(findings: list[Finding]) -> None:
    bad = {each.group for each in findings if each.level is not Level.OK}
    for level, check, what, why, mend, group in findings:
        if level is not Level.OK:
            common.say(
                f"{level.value}: {check}{f', group {group}' if group else ''}", fg=_COLOURS[level]
            )
            for name, text in (("what", what), ("why", why), ("mend", mend)):
                common.say(f"  {name:4}  {text}")
        elif not group:
            common.say(f"ok: {check}: {what}", fg=_COLOURS[level])
    good = dict.fromkeys(each.group for each in findings if each.group not in bad | {""})
    if good:
        common.say(f"ok: groups: {listed(good)}", fg=_COLOURS[Level.OK])
    counts = Counter(each.level for each in findings)
    print(
        f"{counts[Level.OK]} checks found nothing wrong, {counts[Level.TROUBLE]} found trouble, "
        f"{counts[Level.UNKNOWN]} could not be made."
    )
