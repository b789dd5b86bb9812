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
import socket
import sys
import tempfile
import time
import urllib.request
import uuid
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaException

import offsetmgr
from offsetmgr.client import OffsetClient
from offsetmgr.demo.screen import Screen
from offsetmgr.devkafka import (
    KAFKA_VERSION,
    DevKafka,
    consumer_groups,
    kafka_jars,
    spark_kafka_jars,
)
from offsetmgr.devkafka.cluster import quiet_admin
from offsetmgr.devkafka.command import SampleTopic, create_topics, produce_orders, sample_order
from offsetmgr.devkafka.process import WatchedProcess, log_tail
from offsetmgr.errors import InvalidValueError, OffsetManagerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_INSTALLATION: Final = str(Path(offsetmgr.__file__).parents[1])
_MEMBER: Final = "orders-app-1"
_BATCHES: Final = 12
"""In how many batches Spark reads all orders."""

_POLL_S: Final = 0.2
_ANSWER_S: Final = 5.0
_REQUEST_S: Final = 15.0
_READY_S: Final = 30.0
_JOIN_S: Final = 30.0
_JOB_S: Final = 600.0
_STOP_JOB_S: Final = 60.0
_STOP_SIDECAR_S: Final = 30.0
_REFUSED_S: Final = 3.0
_COMMIT_S: Final = 40.0
_FAMILY_S: Final = 10.0


class DemoError(OffsetManagerError):
    """A step of the demo could not be taken."""

    code = "demo"


class PythonProcess(WatchedProcess):
    """``python -m`` a module of this very installation, in a session of its own."""

    def __init__(self, log_path: Path, *arguments: str) -> None:
        """Run ``python -m arguments``; all it prints goes to ``log_path``."""
        self.name = arguments[0]
        self._log_path = log_path
        path = os.pathsep.join(filter(None, [_INSTALLATION, os.environ.get("PYTHONPATH")]))
        command = ["env", f"PYTHONPATH={path}", sys.executable, "-m", *arguments]
        super().__init__(command, cwd=log_path.parent, log_path=log_path)

    def error(self, text: str) -> DemoError:
        """Return a DemoError with the end of the log."""
        return DemoError(f"{text}; {log_tail(self._log_path)}")

    def finish(self, timeout_s: float) -> int:
        """Ask it to end (SIGTERM), wait, and return its exit status.  Raises DemoError."""
        self.signal(signal.SIGTERM)
        return self.await_end(timeout_s)

    def await_end(self, timeout_s: float) -> int:
        """Wait for its end and return its exit status.  Raises DemoError where it is late."""
        self.wait(timeout_s)
        status = self.status()
        if status is None:
            raise self.error(f"{self.name} did not end within {timeout_s:.0f} s")
        return status

    def close(self) -> None:
        """End what still runs of the process and its children; harmless when repeated."""
        super().close()
        # Spark's Java ends by itself when its Python is gone, which takes a moment.
        deadline = time.monotonic() + _FAMILY_S
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self.session, 0)
                time.sleep(_POLL_S)
            os.killpg(self.session, signal.SIGKILL)


class Names(NamedTuple):
    """The demo's topic and groups in Kafka."""

    topic: str = "orders"
    group: str = "orders-etl"
    """Mirrors the Spark job."""
    busy_group: str = "orders-app"
    """Has a live member."""


class Demo(NamedTuple):
    """Everything a step needs."""

    screen: Screen
    folder: Path
    brokers: str
    names: Names
    orders: int
    partitions: int
    service_url: str
    client: OffsetClient

    def committed(self, group: str) -> dict[int, int]:
        """Return what the group has committed, by partition, straight from its coordinator."""
        found = self.client.committed(group)
        return {key.partition: entry.offset for key, entry in found.items()}

    def ends(self) -> dict[int, int]:
        """Return where the topic ends, by partition."""
        ranges = self.client.topics([self.names.topic])[self.names.topic]
        return {partition: each.high_watermark for partition, each in ranges.items()}


class JobResult(NamedTuple):
    """What a run of the Spark job reports."""

    start: Mapping[int, int]
    """Where it was told to start, by partition; below 0: from the earliest."""
    end: Mapping[int, int]
    """The next offset to read after its last finished batch."""
    batches: int
    uncommitted: int
    """Offsets that were not acknowledged when it ended."""


class Interrupted(BaseException):
    """SIGINT or SIGTERM: everything is unwound, and the demo ends as a shell expects."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


def run(*, brokers: str | None, orders: int, partitions: int, keep: Path | None) -> int:
    """Run the demo; return the exit status.

    ``brokers`` is host:port of a Kafka that runs already; None starts one.  ``keep`` is a new
    folder for logs, checkpoints, Parquet files and Kafka's data; None removes them.

    0: every claim was found to hold; 1: one does not, or a step failed; 130 or 143: SIGINT or
    SIGTERM.  No process is left in any case.  To be called in the main thread.  Raises DemoError
    where something is not installed, and InvalidValueError.
    """
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        raise DemoError(f"the demo needs {names}: pip install 'offsetmgr[all]'")
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise InvalidValueError("keep", str(keep), "is not empty", "name a new folder")
    screen = Screen()
    try:
        with _interruptible(), contextlib.ExitStack() as cleanup:
            if keep is None:
                temporary = tempfile.TemporaryDirectory(prefix="offsetmgr-demo-")
                folder = Path(cleanup.enter_context(temporary))
            else:
                keep.mkdir(parents=True, exist_ok=True)
                folder = keep.resolve()
            try:
                _play(screen, folder, brokers, orders, partitions, cleanup)
            except OffsetManagerError as error:
                screen.check("The demo runs to its end", holds=False, found=error)
            if not screen.all_hold and keep is None:
                keep = _save_logs(folder)
    except Interrupted as interrupted:
        screen.say("Stopped; everything that was started is gone.")
        return 128 + interrupted.signal_number
    screen.summary()
    if keep is not None:
        screen.say(f"Kept: {keep.resolve()}")
    return 0 if screen.all_hold else 1


def _play(
    screen: Screen,
    folder: Path,
    brokers: str | None,
    orders: int,
    partitions: int,
    cleanup: contextlib.ExitStack,
) -> None:
    screen.title("offsetmgr demo: a Kafka, a Spark job, and the sidecar that commits its offsets")
    screen.say("It takes about a minute; Ctrl-C ends it, and all that it has started.")
    spark_kafka_jars(screen.say)
    names = Names()
    if brokers is None:
        brokers = _start_kafka(screen, folder, cleanup)
    else:
        suffix = f"offsetmgr-demo-{uuid.uuid4().hex[:8]}"
        names = Names(*(f"{name}-{suffix}" for name in names))
        _use_kafka(screen, brokers, names)
        cleanup.callback(_delete, screen, brokers, names)
    sidecar, url = _start_sidecar(screen, folder, brokers, cleanup)
    client = cleanup.enter_context(OffsetClient(url, name="demo"))
    demo = Demo(screen, folder, brokers, names, orders, partitions, url, client)
    _produce(demo)
    first = _run_half(demo)
    _resume(demo, first)
    _commit_to_busy_group(demo)
    demo.client.close()
    _stop_sidecar(demo, sidecar)
    _ask_kafka(demo)


def _start_kafka(screen: Screen, folder: Path, cleanup: contextlib.ExitStack) -> str:
    screen.step("Start a Kafka")
    kafka_jars(screen.say)
    with screen.busy("It takes a few seconds."):
        kafka = cleanup.enter_context(DevKafka(data_dir=folder / "kafka"))
    screen.say(f"Kafka {KAFKA_VERSION} is ready on {kafka.bootstrap_servers}.")
    return kafka.bootstrap_servers


def _use_kafka(screen: Screen, brokers: str, names: Names) -> None:
    screen.step(f"Use the Kafka on {brokers}")
    try:
        quiet_admin(brokers).list_topics(timeout=_ANSWER_S)
    except KafkaException as error:
        reason = error.args[0].str()
        raise DemoError(f"no Kafka answers on {brokers} ({reason}): check the address") from error
    screen.say(
        f"Topic {names.topic} and groups {names.group} and {names.busy_group}",
        "are new, and deleted at the end.",
    )


def _delete(screen: Screen, brokers: str, names: Names) -> None:
    """Delete the topic and the groups from somebody's Kafka; say what is left."""
    admin = quiet_admin(brokers)
    groups = [names.group, names.busy_group]
    deleted = admin.delete_topics([names.topic])
    deleted |= admin.delete_consumer_groups(groups, request_timeout=_REQUEST_S)
    for name, answer in deleted.items():
        try:
            answer.result(_REQUEST_S)
        except KafkaException as error:
            if error.args[0].name() not in {"GROUP_ID_NOT_FOUND", "UNKNOWN_TOPIC_OR_PART"}:
                screen.say(f"Left behind: {name}: {error.args[0].str()}")
        except TimeoutError:
            screen.say(f"Left behind: {name}: no answer in time")


def _start_sidecar(
    screen: Screen, folder: Path, brokers: str, cleanup: contextlib.ExitStack
) -> tuple[PythonProcess, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{probe.getsockname()[1]}"
    command = ["serve", "--listen", listen, "--bootstrap-servers", brokers]
    screen.step("Start the sidecar")
    screen.quote(f"$ offsetmgr {' '.join(command)}")
    sidecar = PythonProcess(folder / "sidecar.log", "offsetmgr", *command)
    cleanup.callback(sidecar.close)
    url = f"http://{listen}"
    deadline = time.monotonic() + _READY_S
    with screen.busy("It is ready when Kafka answers it."):
        while not _is_ready(url):
            if not sidecar.running():
                raise sidecar.error("the sidecar ended by itself")
            if time.monotonic() >= deadline:
                raise sidecar.error(
                    f"the sidecar was not ready within {_READY_S:.0f} s: check that Kafka answers "
                    f"on {brokers}"
                )
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
    screen = demo.screen
    topic = SampleTopic(demo.names.topic, demo.partitions)
    screen.step(f"Produce {demo.orders:,} orders over {demo.partitions} partitions")
    try:
        create_topics(demo.brokers, [topic])
    except (KafkaException, TimeoutError) as error:
        raise DemoError(
            f"topic {topic.name} could not be created on {demo.brokers}: {error}; check that "
            "Kafka answers there and lets this user create topics"
        ) from error
    with screen.bar(f"to topic {topic.name}", demo.orders) as advance:
        produce_orders(demo.brokers, topic, demo.orders, advance)
    ends = demo.ends()
    screen.check(
        f"Topic {topic.name} holds {demo.orders:,} orders on {len(ends)} partitions",
        holds=sum(ends.values()) == demo.orders and len(ends) == demo.partitions,
        found=f"{sum(ends.values())} on {len(ends)}",
    )


def _run_half(demo: Demo) -> JobResult:
    """Run the Spark job and stop it about half-way."""
    screen, group = demo.screen, demo.names.group
    screen.step(f"Run a Spark job on group {group}, and stop it half-way")
    screen.say(
        "It counts orders and revenue by country into Parquet. Spark commits nothing;",
        "commit_offsets(spark, client, group=...) does, through the sidecar.",
    )
    with contextlib.closing(_start_job(demo, "first")) as job:
        _watch(demo, job, until=demo.orders // 3)
        result = _job_result(demo, "first", job, job.finish(_STOP_JOB_S))
    committed = demo.committed(group)
    done = sum(committed.values())
    screen.say(
        f"Stopped (SIGTERM) after {result.batches} batches: {done:,} orders are read, "
        f"{demo.orders - done:,} are left."
    )
    screen.check(
        f"Group {group} stands where Spark's last finished batch ends, on every partition",
        holds=committed == result.end and result.uncommitted == 0,
        found=f"the group has {committed}, Spark has {result.end}",
    )
    screen.check(
        "The job was stopped half-way: a part of the orders is read, and a part is left",
        holds=0 < done < demo.orders,
        found=f"{done} of {demo.orders} are read",
    )
    return result


def _resume(demo: Demo, first: JobResult) -> None:
    """Run the job again without its checkpoint, from the group."""
    screen, names = demo.screen, demo.names
    screen.step("Throw its checkpoint away, and resume from the group")
    screen.say(f"startingOffsets = starting_offsets(client, {names.group!r}, [{names.topic!r}])")
    shutil.rmtree(demo.folder / "first-checkpoint")
    with contextlib.closing(_start_job(demo, "second")) as job:
        _watch(demo, job, until=demo.orders)
        result = _job_result(demo, "second", job, job.await_end(_STOP_JOB_S))
    screen.check(
        "The new run began exactly where the group stood",
        holds=result.start == first.end,
        found=f"it began at {result.start}, the group stood at {first.end}",
    )
    committed, ends = demo.committed(names.group), demo.ends()
    screen.check(
        f"The group has reached the end of all {demo.partitions} partitions",
        holds=committed == ends and result.uncommitted == 0,
        found=f"the group has {committed}, the topic ends at {ends}",
    )
    _check_counts(demo)


def _start_job(demo: Demo, name: str) -> PythonProcess:
    settings = {
        "brokers": demo.brokers,
        "service": demo.service_url,
        "topic": demo.names.topic,
        "group": demo.names.group,
        "jars": ",".join(map(str, spark_kafka_jars())),
        "batch_orders": max(1, demo.orders // _BATCHES),
        "out": str(demo.folder / "sales" / name),
        "checkpoint": str(demo.folder / f"{name}-checkpoint"),
        "scratch": str(demo.folder / "spark"),
        "result": str(demo.folder / f"{name}-result.json"),
    }
    log_path = demo.folder / f"job-{name}.log"
    return PythonProcess(log_path, "offsetmgr.demo.job", json.dumps(settings))


def _watch(demo: Demo, job: PythonProcess, until: int) -> None:
    """Show how far the group is, until it has ``until`` orders or the job has ended."""
    deadline = time.monotonic() + _JOB_S
    group, done = demo.names.group, 0
    with demo.screen.bar(f"Spark starts and reads; committed to {group}", demo.orders) as advance:
        while time.monotonic() < deadline:
            done = sum(demo.committed(group).values())
            advance(done)
            if done >= until or job.wait(_POLL_S):
                return
    raise job.error(f"{done:,} of {until:,} orders were committed within {_JOB_S:.0f} s")


def _job_result(demo: Demo, name: str, job: PythonProcess, status: int) -> JobResult:
    if status != 0:
        raise job.error(f"the Spark job failed with exit status {status}")
    report = json.loads((demo.folder / f"{name}-result.json").read_text())
    start, end = (
        {
            int(partition): offset
            for partition, offset in report[at].get(demo.names.topic, {}).items()
        }
        for at in ("start", "end")
    )
    return JobResult(start, end, report["batches"], report["uncommitted"])


def _check_counts(demo: Demo) -> None:
    """Compare what both runs have written with what was produced."""
    screen = demo.screen
    with screen.busy("Counting what both runs have written"):
        rows = _parquet_rows(demo.folder / "sales")
        times = Counter(order for row in rows for order in row["order_ids"])
        counted = _sales((row["country"], row["orders"], row["revenue"]) for row in rows)
        orders = map(sample_order, range(demo.orders))
        produced = _sales((order["country"], 1, Decimal(order["amount"])) for order in orders)
    repeated = sum(1 for count in times.values() if count != 1)
    screen.check(
        f"{demo.orders:,} orders were produced; each of them was counted exactly once",
        holds=len(times) == demo.orders and not repeated,
        found=f"{len(times):,} were counted, {repeated:,} of them more than once",
    )
    revenue = sum(amount for _, amount in counted.values())
    screen.check(
        f"Orders and revenue of each country are those that were produced: € {revenue:,.2f} in all",
        holds=counted == produced,
        found=f"counted {counted}, produced {produced}",
    )
    screen.say(
        "Why exactly once: the group stood at the end of a finished batch, and what a batch",
        "had begun to write when it was stopped is dropped. Had the job died after writing",
        "a batch and before committing it, that batch would be read once more.",
    )


def _parquet_rows(folder: Path) -> list[dict[str, Any]]:
    from pyarrow import parquet  # noqa: PLC0415 -- run() says what to install where it is missing

    files = sorted(folder.glob("*/batch=*/*.parquet"))
    return [row for path in files for row in parquet.read_table(path).to_pylist()]


def _sales(rows: Iterable[tuple[str, int, Decimal]]) -> dict[str, tuple[int, Decimal]]:
    """Add up orders and revenue by country."""
    sales: dict[str, tuple[int, Decimal]] = {}
    for country, orders, revenue in rows:
        before = sales.get(country, (0, Decimal(0)))
        sales[country] = before[0] + orders, before[1] + revenue
    return sales


def _commit_to_busy_group(demo: Demo) -> None:
    """Commit to a group that a live consumer holds, then let the consumer leave."""
    screen, group, topic = demo.screen, demo.names.busy_group, demo.names.topic
    screen.step(f"Commit to group {group}, which a running consumer holds")
    offset = demo.ends()[0]
    with OffsetClient(demo.service_url, name="demo-rival") as client:
        with _live_member(demo):
            client.submit(group, {(topic, 0): offset})
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
            counted = _metric_lines(demo, "offsetmgr_commit_errors_total")
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
            "group.id": demo.names.busy_group,
            "client.id": _MEMBER,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    with contextlib.closing(consumer):
        consumer.subscribe([demo.names.topic])
        deadline = time.monotonic() + _JOIN_S
        while not consumer.assignment():
            if time.monotonic() >= deadline:
                raise DemoError(f"the consumer did not join its group within {_JOIN_S:.0f} s")
            consumer.poll(_POLL_S)
        yield


def _metric_lines(demo: Demo, name: str) -> list[str]:
    with urllib.request.urlopen(f"{demo.service_url}/metrics", timeout=_REFUSED_S) as answer:  # noqa: S310 -- http on loopback
        text: str = answer.read().decode()
    return [line for line in text.splitlines() if line.startswith(name)]


def _stop_sidecar(demo: Demo, sidecar: PythonProcess) -> None:
    """Stop the sidecar as systemd or Kubernetes would."""
    demo.screen.step("Stop the sidecar (SIGTERM)")
    status = sidecar.finish(_STOP_SIDECAR_S)
    demo.screen.check(
        "It ended with exit status 0: all it was given is committed (3 would say: not all)",
        holds=status == 0,
        found=f"exit status {status}",
    )


def _ask_kafka(demo: Demo) -> None:
    """Let Kafka's own tool have the last word."""
    screen = demo.screen
    screen.step("Ask Kafka's own tool")
    arguments = ("--describe", "--group", demo.names.group)
    with screen.busy(f"kafka-consumer-groups {' '.join(arguments)}"):
        described = consumer_groups(demo.brokers, *arguments)
    screen.quote(f"$ kafka-consumer-groups --bootstrap-server … {' '.join(arguments)}")
    screen.quote_table(described)
    lags = _lags(described, demo.names.topic)
    screen.check(
        f"Lag is 0 on all {demo.partitions} partitions",
        holds=lags == dict.fromkeys(range(demo.partitions), "0"),
        found=f"lag by partition: {lags}",
    )


def _lags(described: str, topic: str) -> dict[int, str]:
    """Return the LAG column of ``kafka-consumer-groups --describe``, by partition."""
    rows = [line.split() for line in described.splitlines()]
    header = next((row for row in rows if "LAG" in row and "PARTITION" in row), [])
    cells = [dict(zip(header, row, strict=False)) for row in rows]
    return {int(row["PARTITION"]): row["LAG"] for row in cells if row.get("TOPIC") == topic}


def _save_logs(folder: Path) -> Path | None:
    """Copy the logs out of a folder that is going to be removed."""
    logs = [*folder.glob("*.log"), *folder.glob("kafka/**/broker.log")]
    if not logs:
        return None
    saved = Path(tempfile.mkdtemp(prefix="offsetmgr-demo-logs-"))
    for log in logs:
        shutil.copy(log, saved)
    return saved


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into Interrupted; what unwinds then is not disturbed."""
    numbers = (signal.SIGINT, signal.SIGTERM)

    def interrupt(number: int, _frame: Any) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        sys.stderr.write("\nStopping...\n")
        raise Interrupted(number)

    before = {each: signal.signal(each, interrupt) for each in numbers}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
