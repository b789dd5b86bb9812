"""The demo from the first process to the last: a Kafka, the sidecar, a Spark job.

Each step says what it does, shows what others say of it, and checks its claims.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaException

import offsetmgr
from offsetmgr.client import OffsetClient
from offsetmgr.demo.screen import Screen
from offsetmgr.devkafka import KAFKA_VERSION, DevKafka, consumer_groups, spark_kafka_jars
from offsetmgr.devkafka.cluster import free_ports, quiet_admin
from offsetmgr.devkafka.command import SampleTopic, create_topics, produce_orders, sample_order
from offsetmgr.devkafka.process import WatchedProcess, log_tail
from offsetmgr.errors import InvalidValueError, OffsetManagerError

if TYPE_CHECKING:
    from collections.abc import Iterator

_INSTALLATION: Final = str(Path(offsetmgr.__file__).parents[1])
_NAMES: Final = ("orders", "orders-etl", "orders-app")
"""A topic, the group of the Spark job, and a group with a live member."""
_MEMBER: Final = "orders-app-1"
_BATCHES: Final = 12
"""In how many batches Spark reads all orders."""

_POLL_S: Final = 0.2
_REQUEST_S: Final = 15.0
_READY_S: Final = 30.0
_JOB_S: Final = 600.0
_STOP_S: Final = 60.0
_REFUSED_S: Final = 3.0
_COMMIT_S: Final = 40.0


class DemoError(OffsetManagerError):
    """A step of the demo could not be taken."""

    code = "demo"


class PythonProcess(WatchedProcess):
    """``python -m`` a module of this very installation; killed at the end of a ``with`` block."""

    def __init__(self, log_path: Path, *arguments: str) -> None:
        self.name = arguments[0]
        self._log_path = log_path
        path = os.pathsep.join(filter(None, [_INSTALLATION, os.environ.get("PYTHONPATH")]))
        command = ["env", f"PYTHONPATH={path}", sys.executable, "-m", *arguments]
        super().__init__(command, cwd=log_path.parent, log_path=log_path)

    def error(self, text: str) -> DemoError:
        return DemoError(f"{text}; {log_tail(self._log_path)}")

    def await_end(self) -> int:
        """Wait for its end and return its exit status.  Raises DemoError where it is late."""
        if not self.wait(_STOP_S):
            raise self.error(f"{self.name} did not end within {_STOP_S:.0f} s")
        return self.status() or 0

    def close(self) -> None:
        super().close()
        # Spark's Java ends by itself when its Python is gone, but not at once.
        deadline = time.monotonic() + _REQUEST_S
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self.session, signal.SIGKILL)
                time.sleep(_POLL_S)


class Demo(NamedTuple):
    """Everything a step needs."""

    screen: Screen
    folder: Path
    brokers: str
    orders: int
    partitions: int
    topic: str
    group: str
    """Mirrors the Spark job."""
    busy_group: str
    """Has a live member."""
    url: str
    client: OffsetClient

    def committed(self, group: str) -> dict[int, int]:
        """Return what the group has committed, by partition."""
        found = self.client.committed(group)
        return {key.partition: entry.offset for key, entry in found.items()}

    def ends(self) -> dict[int, int]:
        """Return where the topic ends, by partition."""
        ranges = self.client.topics([self.topic])[self.topic]
        return {partition: each.high_watermark for partition, each in ranges.items()}


def run(*, brokers: str | None, orders: int, partitions: int, keep: Path | None) -> int:
    """Run the demo; return the exit status.

    ``brokers`` is host:port of a Kafka that runs already; None starts one.  ``keep`` is a new
    folder for logs, checkpoints, Parquet files and Kafka's data; None removes them, unless a claim
    does not hold.

    0: every claim was found to hold; 1: one does not, or a step failed.  SIGINT and SIGTERM exit
    with 130 and 143.  No process is left in any case.  To be called in the main thread.  Raises
    DemoError where something is not installed, and InvalidValueError.
    """
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoError(f"the demo needs {' and '.join(missing)}: pip install 'offsetmgr[all]'")
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise InvalidValueError("keep", str(keep), "is not empty", "name a new folder")
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    folder = keep.resolve() if keep else Path(tempfile.mkdtemp(prefix="offsetmgr-demo-"))
    screen = Screen()
    is_kept = keep is not None
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, _exit) for number in numbers}
    try:
        with contextlib.ExitStack() as cleanup:
            _play(screen, folder, brokers, orders, partitions, cleanup)
    except OffsetManagerError as error:
        screen.check("The demo runs to its end", holds=False, found=error)
    finally:
        is_kept = is_kept or not screen.all_hold
        if not is_kept:
            shutil.rmtree(folder)
        for number, handler in before.items():
            signal.signal(number, handler)
    screen.summary()
    if is_kept:
        screen.say(f"Kept: {folder}")
    return 0 if screen.all_hold else 1


def _play(
    screen: Screen,
    folder: Path,
    brokers: str | None,
    orders: int,
    partitions: int,
    cleanup: contextlib.ExitStack,
) -> None:
    screen.say("A Kafka, a Spark job, and the sidecar that commits its offsets.")
    screen.say("It takes about a minute; Ctrl-C ends it, and all that it has started.")
    spark_kafka_jars(screen.say)
    suffix = "" if brokers is None else f"-offsetmgr-demo-{uuid.uuid4().hex[:8]}"
    topic, group, busy_group = (f"{name}{suffix}" for name in _NAMES)
    if brokers is None:
        screen.step("Start a Kafka")
        with screen.busy("It takes a few seconds."):
            kafka = cleanup.enter_context(DevKafka(data_dir=folder / "kafka", log=screen.say))
        brokers = kafka.bootstrap_servers
        screen.say(f"Kafka {KAFKA_VERSION} is ready on {brokers}.")
    else:
        screen.step(f"Use the Kafka on {brokers}")
        try:
            quiet_admin(brokers).list_topics(timeout=_REQUEST_S)
        except KafkaException as error:
            text = f"no Kafka answers on {brokers} ({error.args[0].str()}): check the address"
            raise DemoError(text) from error
        screen.say(f"Of {topic}, {group} and {busy_group} nothing is left at the end.")
        cleanup.callback(_delete, screen, brokers, topic, [group, busy_group])
    sidecar, url = _start_sidecar(screen, folder, brokers, cleanup)
    client = cleanup.enter_context(OffsetClient(url, name="demo"))
    demo = Demo(screen, folder, brokers, orders, partitions, topic, group, busy_group, url, client)
    _produce(demo)
    _resume(demo, stood_at=_run_half(demo))
    _count(demo)
    _commit_to_busy_group(demo)
    client.close()
    screen.step("Stop the sidecar (SIGTERM)")
    sidecar.signal(signal.SIGTERM)
    status = sidecar.await_end()
    screen.check(
        "It ended with exit status 0: all it was given is committed (3 would say: not all)",
        holds=status == 0,
        found=f"exit status {status}",
    )
    _ask_kafka(demo)


def _delete(screen: Screen, brokers: str, topic: str, groups: list[str]) -> None:
    """Delete the topic and the groups from somebody's Kafka; say what is left."""
    admin = quiet_admin(brokers)
    deleted = admin.delete_topics([topic])
    deleted |= admin.delete_consumer_groups(groups, request_timeout=_REQUEST_S)
    for name, answer in deleted.items():
        error = answer.exception(4 * _REQUEST_S)
        code = error.args[0].name() if isinstance(error, KafkaException) else ""
        if error and code not in {"GROUP_ID_NOT_FOUND", "UNKNOWN_TOPIC_OR_PART"}:
            screen.say(f"Left behind: {name}: {error}")


def _start_sidecar(
    screen: Screen, folder: Path, brokers: str, cleanup: contextlib.ExitStack
) -> tuple[PythonProcess, str]:
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    command = ["serve", "--listen", listen, "--bootstrap-servers", brokers]
    screen.step("Start the sidecar")
    screen.quote(f"$ offsetmgr {' '.join(command)}")
    sidecar = PythonProcess(folder / "sidecar.log", "offsetmgr", *command)
    cleanup.enter_context(contextlib.closing(sidecar))
    url = f"http://{listen}"
    deadline = time.monotonic() + _READY_S
    with screen.busy("It is ready when Kafka answers it."):
        while not _is_ready(url):
            if not sidecar.running():
                raise sidecar.error("the sidecar ended by itself")
            if time.monotonic() >= deadline:
                text = f"the sidecar was not ready within {_READY_S:.0f} s"
                raise sidecar.error(f"{text}: check that Kafka answers on {brokers}")
            time.sleep(_POLL_S)
    screen.say(f"Process {sidecar.pid} serves {url}.")
    return sidecar, url


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=_READY_S):  # noqa: S310 -- loopback
            return True
    except OSError:
        return False


def _produce(demo: Demo) -> None:
    screen, topic = demo.screen, SampleTopic(demo.topic, demo.partitions)
    screen.step(f"Produce {demo.orders:,} orders over {demo.partitions} partitions")
    create_topics(demo.brokers, [topic])
    with screen.bar(f"to topic {topic.name}", demo.orders) as advance:
        produce_orders(demo.brokers, topic, demo.orders, advance)
    ends = demo.ends()
    screen.check(
        f"Topic {topic.name} holds {demo.orders:,} orders on {len(ends)} partitions",
        holds=sum(ends.values()) == demo.orders and len(ends) == demo.partitions,
        found=f"{sum(ends.values())} on {len(ends)}",
    )


def _run_half(demo: Demo) -> dict[int, int]:
    """Run the Spark job, stop it about half-way, and return where it stands."""
    screen, group = demo.screen, demo.group
    screen.step(f"Run a Spark job on group {group}, and stop it half-way")
    screen.say(
        "It adds up revenue by country, into Parquet. Spark commits nothing;",
        "commit_offsets(spark, client, group=...) does, through the sidecar.",
    )
    result = _run_job(demo, "first", until=demo.orders // 3)
    committed = demo.committed(group)
    done = sum(committed.values())
    screen.say(f"Stopped (SIGTERM): {done:,} orders are read, {demo.orders - done:,} are left.")
    screen.check(
        f"Group {group} stands where Spark's last finished batch ends, on every partition",
        holds=committed == result["end"] and result["uncommitted"] == 0,
        found=f"the group has {committed}, Spark has {result['end']}",
    )
    screen.check(
        "The job was stopped half-way: a part of the orders is read, and a part is left",
        holds=0 < done < demo.orders,
        found=f"{done} of {demo.orders} are read",
    )
    return committed


def _resume(demo: Demo, stood_at: dict[int, int]) -> None:
    """Run the job again without its checkpoint, from the group."""
    screen = demo.screen
    screen.step("Throw its checkpoint away, and resume from the group")
    screen.say(f"startingOffsets = starting_offsets(client, {demo.group!r}, [{demo.topic!r}])")
    shutil.rmtree(demo.folder / "first-checkpoint")
    result = _run_job(demo, "second", until=demo.orders)
    screen.check(
        "The new run began exactly where the group stood",
        holds=result["start"] == stood_at,
        found=f"it began at {result['start']}, the group stood at {stood_at}",
    )
    committed, ends = demo.committed(demo.group), demo.ends()
    screen.check(
        f"The group has reached the end of all {demo.partitions} partitions",
        holds=committed == ends and result["uncommitted"] == 0,
        found=f"the group has {committed}, the topic ends at {ends}",
    )


def _run_job(demo: Demo, name: str, until: int) -> dict[str, Any]:
    """Run the Spark job until its group has ``until`` orders; return what it reports.

    ``start`` and ``end`` are offsets by partition: where it was told to start, and the next to read
    after its last finished batch.  ``uncommitted`` counts those that were not acknowledged.
    """
    report = demo.folder / f"{name}-result.json"
    settings = {
        "brokers": demo.brokers,
        "service": demo.url,
        "topic": demo.topic,
        "group": demo.group,
        "jars": ",".join(map(str, spark_kafka_jars())),
        "batch_orders": max(1, demo.orders // _BATCHES),
        "out": str(demo.folder / "sales" / name),
        "checkpoint": str(demo.folder / f"{name}-checkpoint"),
        "scratch": str(demo.folder / "spark"),
        "result": str(report),
    }
    arguments = "offsetmgr.demo.job", json.dumps(settings)
    text = f"Spark starts and reads; committed to {demo.group}"
    with contextlib.closing(PythonProcess(demo.folder / f"job-{name}.log", *arguments)) as job:
        with demo.screen.bar(text, demo.orders) as advance:
            deadline = time.monotonic() + _JOB_S
            while (done := sum(demo.committed(demo.group).values())) < until:
                advance(done)
                if job.wait(_POLL_S):
                    break
                if time.monotonic() >= deadline:
                    raise job.error(
                        f"{done:,} of {until:,} orders were committed in {_JOB_S:.0f} s"
                    )
        if until < demo.orders:
            job.signal(signal.SIGTERM)
        status = job.await_end()
        if status != 0:
            raise job.error(f"the Spark job failed with exit status {status}")
    found: dict[str, Any] = json.loads(report.read_text())
    for at in ("start", "end"):
        found[at] = {int(p): offset for p, offset in found[at].get(demo.topic, {}).items()}
    return found


def _count(demo: Demo) -> None:
    """Compare what both runs have written with what was produced."""
    from pyarrow import parquet  # noqa: PLC0415 -- run() says what to install where it is missing

    screen = demo.screen
    times: Counter[int] = Counter()
    revenue: Counter[str] = Counter()
    with screen.busy("Counting what both runs have written"):
        for path in (demo.folder / "sales").glob("*/batch=*/*.parquet"):
            for row in parquet.read_table(path).to_pylist():
                times.update(row["order_ids"])
                revenue[row["country"]] += row["revenue"]
        produced: Counter[str] = Counter()
        for order in map(sample_order, range(demo.orders)):
            produced[order["country"]] += order["amount"]
    repeated = sum(1 for count in times.values() if count != 1)
    screen.check(
        f"{demo.orders:,} orders were produced; each of them was counted exactly once",
        holds=len(times) == demo.orders and not repeated,
        found=f"{len(times):,} were counted, {repeated:,} of them more than once",
    )
    screen.check(
        f"The revenue of each country is what was produced: € {revenue.total():,.2f} in all",
        holds=revenue == produced,
        found=f"counted {dict(revenue)}, produced {dict(produced)}",
    )
    screen.say(
        "Why exactly once: the group stood at the end of a finished batch, and what a batch",
        "had begun to write when it was stopped is dropped. Had the job died after writing",
        "a batch and before committing it, that batch would be read once more.",
    )


def _commit_to_busy_group(demo: Demo) -> None:
    """Commit to a group that a live consumer holds, then let the consumer leave."""
    screen, group = demo.screen, demo.busy_group
    screen.step(f"Commit to group {group}, which a running consumer holds")
    offset = demo.ends()[0]
    with OffsetClient(demo.url, name="demo-rival") as client:
        with _live_member(demo):
            client.submit(group, {(demo.topic, 0): offset})
            left = client.flush(timeout=_REFUSED_S).uncommitted
            refusal = " ".join(str(each.error) for each in left.values())
            screen.say(
                "Kafka takes commits of such a group from its members alone. The job that",
                "submitted goes on; flush() and the handle's errors() say what is wrong:",
            )
            screen.quote(refusal or "(nothing)")
            screen.check(
                "The error names who holds the group",
                holds=_MEMBER in refusal,
                found=refusal or "the commit was not refused",
            )
            metrics = f"{demo.url}/metrics"
            with urllib.request.urlopen(metrics, timeout=_REQUEST_S) as answer:  # noqa: S310 -- loopback
                lines = answer.read().decode().splitlines()
            counted = [line for line in lines if line.startswith("offsetmgr_commit_errors_total")]
            screen.say("and an operator sees it in /metrics:")
            screen.quote("\n".join(counted) or "(nothing)")
            screen.check(
                "The sidecar counts the refused commits by Kafka's code",
                holds=any("UNKNOWN_MEMBER_ID" in line for line in counted),
                found="no such line",
            )
        with screen.busy("The consumer leaves; nobody submits again."):
            left = client.flush(timeout=_COMMIT_S).uncommitted
        committed = demo.committed(group)
        screen.check(
            "The consumer left the group, and the offset that waited is committed",
            holds=not left and committed == {0: offset},
            found=f"the group has {committed}, still waiting: {left}",
        )


@contextlib.contextmanager
def _live_member(demo: Demo) -> Iterator[None]:
    """Keep an ordinary consumer in the busy group."""
    consumer = Consumer(
        {
            "bootstrap.servers": demo.brokers,
            "group.id": demo.busy_group,
            "client.id": _MEMBER,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    with contextlib.closing(consumer):
        consumer.subscribe([demo.topic])
        deadline = time.monotonic() + _READY_S
        while not consumer.assignment():
            if time.monotonic() >= deadline:
                raise DemoError(f"the consumer did not join its group within {_READY_S:.0f} s")
            consumer.poll(_POLL_S)
        yield


def _ask_kafka(demo: Demo) -> None:
    """Let Kafka's own tool have the last word."""
    screen = demo.screen
    screen.step("Ask Kafka's own tool")
    arguments = ("--describe", "--group", demo.group)
    with screen.busy(f"kafka-consumer-groups {' '.join(arguments)}"):
        described = consumer_groups(demo.brokers, *arguments)
    screen.quote(f"$ kafka-consumer-groups --bootstrap-server … {' '.join(arguments)}")
    screen.quote(described, is_table=True)
    rows = [line.split() for line in described.splitlines() if line.startswith(demo.group)]
    lags = {int(row[2]): row[5] for row in rows}
    screen.check(
        f"Lag is 0 on all {demo.partitions} partitions",
        holds=lags == dict.fromkeys(range(demo.partitions), "0"),
        found=f"lag by partition: {lags}",
    )


def _exit(number: int, _frame: object) -> None:
    """End the demo as a shell expects; what unwinds then is not disturbed by further signals."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("\nStopping everything that was started.", file=sys.stderr)  # noqa: T201
    raise SystemExit(128 + number)
