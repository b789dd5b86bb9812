"""The steps of the demo on a Kafka and a sidecar that run: each says, shows and checks."""

from __future__ import annotations

import shutil
import time
import urllib.request
from typing import TYPE_CHECKING, Final

from offsetmgr.client import OffsetClient
from offsetmgr.demo.counting import count_sales, read_lags
from offsetmgr.demo.errors import DemoError
from offsetmgr.demo.member import MEMBER, LiveMember
from offsetmgr.demo.spark_run import SparkRun, checkpoint_folder, sales_folder
from offsetmgr.devkafka import consumer_groups

if TYPE_CHECKING:
    from offsetmgr.demo.child import Child
    from offsetmgr.demo.spark_run import Finished
    from offsetmgr.demo.stage import Stage

_JOB_S: Final = 600.0
_STOP_SIDECAR_S: Final = 30.0
_REFUSED_S: Final = 3.0
_COMMIT_S: Final = 40.0
_POLL_S: Final = 0.2


def first_run(stage: Stage) -> Finished:
    """Run the Spark job and stop it about half-way."""
    screen, names = stage.screen, stage.names
    screen.step(f"Run a Spark job on group {names.group}, and stop it half-way")
    screen.say("It counts orders and revenue by country into Parquet. Spark commits nothing;")
    screen.say("commit_offsets(spark, client, group=...) does, through the sidecar.")
    with SparkRun(stage, "first") as job:
        _watch(stage, job, until=stage.orders // 3)
        job.child.terminate()
        finished = job.finished()
    committed = stage.committed(names.group)
    done = sum(committed.values())
    screen.say(
        f"Stopped (SIGTERM) after {finished.batches} batches: {done:,} orders are read, "
        f"{stage.orders - done:,} are left."
    )
    screen.check(
        f"Group {names.group} stands where Spark's last finished batch ends, on every partition",
        holds=committed == finished.end and finished.uncommitted == 0,
        found=f"the group has {committed}, Spark has {finished.end}",
    )
    screen.check(
        "The job was stopped half-way: a part of the orders is read, and a part is left",
        holds=0 < done < stage.orders,
        found=f"{done} of {stage.orders} are read",
    )
    return finished


def second_run(stage: Stage, first: Finished) -> None:
    """Run the job again without its checkpoint, from the group."""
    screen, names = stage.screen, stage.names
    screen.step("Throw its checkpoint away, and resume from the group")
    screen.say(f"startingOffsets = starting_offsets(client, {names.group!r}, [{names.topic!r}])")
    shutil.rmtree(checkpoint_folder(stage.folder, "first"))
    with SparkRun(stage, "second") as job:
        _watch(stage, job, until=stage.orders)
        finished = job.finished()
    screen.check(
        "The new run began exactly where the group stood",
        holds=finished.start == first.end,
        found=f"it began at {finished.start}, the group stood at {first.end}",
    )
    committed, ends = stage.committed(names.group), stage.ends()
    screen.check(
        f"The group has reached the end of all {stage.partitions} partitions",
        holds=committed == ends and finished.uncommitted == 0,
        found=f"the group has {committed}, the topic ends at {ends}",
    )
    _check_counts(stage)


def refused_commit(stage: Stage) -> None:
    """Commit to a group that a live consumer holds, then let the consumer leave."""
    screen, names = stage.screen, stage.names
    screen.step(f"Commit to group {names.busy_group}, which a running consumer holds")
    offset = stage.ends()[0]
    with OffsetClient(stage.service_url, name="demo-rival") as client:
        with LiveMember(stage):
            client.submit(names.busy_group, {(names.topic, 0): offset})
            left = client.flush(timeout=_REFUSED_S).uncommitted
            told = " ".join(str(each.error) for each in left.values())
            screen.say("Kafka takes commits of such a group from its members alone. The job that")
            screen.say("submitted goes on; flush() and the handle's errors() say what is wrong:")
            screen.quote(told or "(nothing)")
            screen.check(
                "The error names who holds the group",
                holds=MEMBER in told,
                found=told or "the commit was not refused",
            )
            counted = _metric_lines(stage, "offsetmgr_commit_errors_total")
            screen.say("and an operator sees it in /metrics:")
            screen.quote("\n".join(counted) or "(nothing)")
            screen.check(
                "The sidecar counts the refused commits by Kafka's code",
                holds=any("UNKNOWN_MEMBER_ID" in line for line in counted),
                found="no such line",
            )
        with screen.busy("The consumer leaves; nobody submits again."):
            left = client.flush(timeout=_COMMIT_S).uncommitted
        committed = stage.committed(names.busy_group)
        screen.check(
            "The consumer left the group, and the offset that waited is committed",
            holds=not left and committed == {0: offset},
            found=f"the group has {committed}, still waiting: {left}",
        )


def stop_sidecar(stage: Stage, sidecar: Child) -> None:
    """Stop the sidecar as systemd or Kubernetes would."""
    screen = stage.screen
    screen.step("Stop the sidecar (SIGTERM)")
    sidecar.terminate()
    status = sidecar.finish(_STOP_SIDECAR_S)
    screen.check(
        "It ended with exit status 0: all it was given is committed (3 would say: not all)",
        holds=status == 0,
        found=f"exit status {status}",
    )


def ask_kafka(stage: Stage) -> None:
    """Let Kafka's own tool have the last word."""
    screen, group = stage.screen, stage.names.group
    screen.step("Ask Kafka's own tool")
    arguments = ("--describe", "--group", group)
    with screen.busy(f"kafka-consumer-groups {' '.join(arguments)}"):
        described = consumer_groups(stage.brokers, *arguments)
    screen.quote(f"$ kafka-consumer-groups --bootstrap-server … {' '.join(arguments)}")
    screen.quote_table(described)
    lags = read_lags(described, stage.names.topic)
    screen.check(
        f"Lag is 0 on all {stage.partitions} partitions",
        holds=lags == dict.fromkeys(range(stage.partitions), "0"),
        found=f"lag by partition: {lags}",
    )


def _watch(stage: Stage, job: SparkRun, until: int) -> None:
    """Show how far the group is, until it has ``until`` orders or the job has ended."""
    deadline = time.monotonic() + _JOB_S
    text = f"Spark starts and reads; committed to {stage.names.group}"
    with stage.screen.bar(text, stage.orders) as advance:
        while time.monotonic() < deadline:
            done = sum(stage.committed(stage.names.group).values())
            advance(done)
            if done >= until or job.child.wait(_POLL_S):
                return
    message = (
        f"{done:,} of {until:,} orders were committed within {_JOB_S:.0f} s; {job.child.log_end()}"
    )
    raise DemoError(message)


def _check_counts(stage: Stage) -> None:
    screen = stage.screen
    with screen.busy("Counting what both runs have written"):
        counted = count_sales(sales_folder(stage.folder, run) for run in ("first", "second"))
    wrong = [order for order, times in counted.times.items() if times != 1]
    screen.check(
        f"{stage.orders:,} orders were produced; each of them was counted exactly once",
        holds=len(counted.times) == stage.orders and not wrong,
        found=f"{len(counted.times):,} were counted, {len(wrong):,} of them more than once",
    )
    revenue = sum(counted.sales.cents.values()) / 100
    screen.check(
        f"Orders and revenue of each country are those that were produced: € {revenue:,.2f} in all",
        holds=counted.sales == stage.sales,
        found=f"counted {counted.sales}, produced {stage.sales}",
    )
    screen.say("Why exactly once: the group stood at the end of a finished batch, and what a batch")
    screen.say("had begun to write when it was stopped is dropped. Had the job died after writing")
    screen.say("a batch and before committing it, that batch would be read once more.")


def _metric_lines(stage: Stage, name: str) -> list[str]:
    with urllib.request.urlopen(f"{stage.service_url}/metrics", timeout=_REFUSED_S) as answer:  # noqa: S310 -- http on loopback
        text: str = answer.read().decode()
    return [line for line in text.splitlines() if line.startswith(name)]
