"""The commands for Spark jobs that do not use this package themselves."""

from __future__ import annotations

import signal
from contextlib import closing, suppress
from enum import Enum
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from offsetmgr.cli import common
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import InvalidValueError

if TYPE_CHECKING:
    from offsetmgr.client.offsets import Offsets
    from offsetmgr.spark.follow import FollowedQuery

Service = Annotated[
    str, Option(envvar="OFFSETMGR_SERVICE", help="Address of the service, or kafka://host:port.")
]


class Missing(str, Enum):
    """The starts of a partition without a committed offset."""

    earliest = "earliest"
    latest = "latest"
    error = "error"


_FLUSH_S = 10.0


def open_offsets(service: str, token_file: str | None, name: str | None = None) -> Offsets:
    """Return a client of the service, or of Kafka itself for ``kafka://host:port``."""
    from offsetmgr.client import OffsetClient
    from offsetmgr.local import LocalOffsets

    servers = service.removeprefix("kafka://")
    if servers != service:
        return LocalOffsets(servers, name)
    return OffsetClient(service, name, **common.credentials(token_file).files)


def reconcile(
    checkpoint: Annotated[str, Option(help="The query's checkpointLocation, a path or URL.")],
    group: Annotated[str, Option(help="The consumer group that mirrors it.")],
    service: Service = common.DEFAULT_SERVICE,
    token_file: common.TokenFile = None,
    *,
    execute: common.Execute = False,
    partial: Annotated[
        bool, Option("--partial", help="Commit the others where some are refused.")
    ] = False,
) -> int:
    """Compare a group with its job's checkpoint; with --execute, commit the checkpoint's offsets.

    Use it after a crash of the driver, or for a job that never used commit_offsets. Only finished
    batches count. If the group's job is running and commits, the command refuses to change it. It
    also refuses offsets of a former log, such as of a topic that was deleted and recreated, and
    those whose log cannot be read.

    Exit status:

    - 0: the group has the checkpoint's offsets now
    - 1: the offsets could not be read or committed
    - 3: they differ, and --execute was not given; or --partial has left some
    """
    from offsetmgr.spark import reconcile as compare

    with open_offsets(service, token_file) as client:
        found = compare(client, group, checkpoint)
        left, total = len(found.refused), len(found.partitions)
        for problem in found.problems:
            common.say(problem)
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
        common.print_table(("topic", "partition", "checkpoint", "group", ""), rows)
        differing = len(found.differences)
        if not differing:
            common.say(f"Group {group} is at the end of batch {found.batch_id}.")
            if left:
                common.say(f"{left} of {total} partitions are of a former log, or cannot be read.")
        elif execute:
            found.execute(client, partial=partial)
            left = len(found.differences.keys() & found.refused.keys())
            common.say(f"Committed {differing - left} of {total} partitions to group {group}.")
        else:
            left = differing
            differ = f"{differing} of {total} partitions differ"
            print(f"{differ}; --execute commits the checkpoint's offsets.")
        return common.Exit.INCOMPLETE if left else 0


def follow(
    checkpoint: Annotated[
        str,
        Option(metavar="URL", help="A checkpointLocation: path or URL, with * for many."),
    ],
    group: Annotated[str, Option(help="The group; {name} stands for what the * matched.")],
    service: Service = common.DEFAULT_SERVICE,
    token_file: common.TokenFile = None,
    interval: Annotated[float, Option(metavar="SECONDS", help="Between two looks.")] = 10.0,
    timeout: Annotated[float, Option(min=0.1, help="With --once: seconds for all of it.")] = 60.0,
    *,
    once: Annotated[bool, Option("--once", help="Commit what is finished now, and exit.")] = False,
) -> int:
    """Commit the offsets of Spark jobs that do not commit, by reading their checkpoints.

    Any streaming query of Spark 3 or 4 can be followed, whatever its language; the job itself is
    not changed. Finished batches alone are committed, one printed line each. It runs until SIGTERM
    or Ctrl-C; the service does the same with [follow.NAME] in its configuration.

    Exit status:

    - 0: stopped; with --once, all was committed
    - 1: with --once, a checkpoint could not be read, or its offsets were not committed
    - 3: with --once, not all checkpoints were read in time
    """
    from offsetmgr.spark.follow import Follow, Follower

    wanted = Follow(checkpoint, group, interval_s=interval)
    batches: SimpleQueue[FollowedQuery] = SimpleQueue()
    with open_offsets(service, token_file, "offsetmgr spark follow") as client:
        follower = Follower({"command": wanted}, client, on_batch=batches.put)
        if once:
            deadline = Deadline(timeout)
            is_read = follower.once(timeout)
            are_committed = []
            while not batches.empty():
                left_s = min(_FLUSH_S, deadline.left_s)
                are_committed.append(_print_committed(client, batches.get(), left_s))
            are_well = [each.problem is None for each in follower.queries()]
            if not is_read:
                common.say(f"not all checkpoints were read within {timeout} s", error=True)
            follower.close()
            client.close(timeout=deadline.left_s)
            status = 0 if all([*are_committed, *are_well]) else common.Exit.TROUBLE
            return status if is_read else common.Exit.INCOMPLETE
        follower.start()
        # SIGINT too: a shell lets what it starts in the background ignore it.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        with suppress(KeyboardInterrupt), closing(follower):
            while True:
                _print_committed(client, batches.get(), _FLUSH_S)
    return 0


def _print_committed(client: Offsets, batch: FollowedQuery, timeout_s: float) -> bool:
    """Wait until a batch is committed, and print so; return False if it is not yet."""
    are_committed = True
    for group, offsets in batch.offsets.items():
        flushed = client.flush(timeout=timeout_s, group=group, partitions=offsets)
        left = offsets.keys() - {key.topic_partition for key in flushed.committed}
        records = "" if batch.records is None else f", {batch.records} records"
        text = f"{group}  {batch.name}  batch {batch.batch_id}"
        if left:
            error = next((each.error for each in flushed.uncommitted.values()), None)
            why = error or "the log says why"
            common.say(f"{text}  {len(left)} partitions are not committed: {why}", error=True)
        else:
            common.say(f"{text}  {len(offsets)} partitions{records}")
        are_committed &= not left
    return are_committed


def starting_offsets(
    group: Annotated[str, Option(help="The consumer group to resume from.")],
    topic: Annotated[list[str] | None, Option(metavar="NAME", help="Repeatable.")] = None,
    pattern: Annotated[
        str | None,
        Option(metavar="REGEX", help="Instead: the source's subscribePattern."),
    ] = None,
    missing: Annotated[
        Missing, Option(help="Where partitions without an offset start.")
    ] = Missing.earliest,
    checkpoint: Annotated[
        str | None, Option(metavar="URL", help="Print earliest if this checkpoint has offsets.")
    ] = None,
    service: Service = common.DEFAULT_SERVICE,
    token_file: common.TokenFile = None,
    timeout: common.Timeout = 10.0,
) -> None:
    """Print a group's offsets as the JSON that the option startingOffsets of Spark takes.

    A job in Scala, Java or SQL resumes from its group with it, if it has no checkpoint yet:

    `.option("startingOffsets", "$(offsetmgr spark starting-offsets --group g --topic orders)")`
    """
    from offsetmgr.spark import starting_offsets as find

    if topic is None and pattern is None:
        raise InvalidValueError("--topic", None, "is missing", "give it, or --pattern")
    with open_offsets(service, token_file) as client:
        rest: dict[str, Any] = {"checkpoint": checkpoint, "timeout": timeout}
        print(find(client, group, topic, missing.value, pattern=pattern, **rest))
