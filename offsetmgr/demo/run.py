"""The demo from the first process to the last: a Kafka, the service, a Spark job.

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
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException

from offsetmgr.client import OffsetClient
from offsetmgr.demo.screen import Screen
from offsetmgr.devkafka import KAFKA_VERSION, DevKafka, consumer_groups, spark_kafka_jars
from offsetmgr.devkafka.cluster import free_ports, quiet_admin
from offsetmgr.devkafka.command import create_topic, produce_orders
from offsetmgr.devkafka.process import WatchedProcess, log_tail
from offsetmgr.errors import InvalidValueError, OffsetManagerError

if TYPE_CHECKING:
    from collections.abc import Callable

_BATCHES: Final = 12
"""The number of batches in which Spark reads all orders."""

_POLL_S: Final = 0.2
_ANSWER_S: Final = 5.0
_REQUEST_S: Final = 15.0
_READY_S: Final = 30.0
_JOB_S: Final = 600.0
_STOP_S: Final = 60.0


class DemoError(OffsetManagerError):
    """A step of the demo failed."""

    code = "demo"


def run(*, brokers: str | None, orders: int, partitions: int, keep: Path | None) -> int:
    """Run the demo; return 0 if every claim holds, else 1.

    ``brokers`` is host:port of a running Kafka; None starts one.  ``keep`` is a new folder for
    logs, checkpoints, Parquet files and Kafka's data; None removes them if every claim holds.

    SIGINT and SIGTERM exit with 130 and 143.  No process is left in any case.  To be called in the
    main thread.  Raises DemoError if something is not installed, and InvalidValueError.
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
            Demo(screen, folder, orders, partitions, cleanup).play(brokers)
    except OffsetManagerError as error:
        screen.check("The demo runs to its end", holds=False, found=error)
    finally:
        is_kept = is_kept or bool(screen.failed)
        if not is_kept:
            shutil.rmtree(folder)
        for number, handler in before.items():
            signal.signal(number, handler)
    screen.summary()
    if is_kept:
        screen.say(f"Kept: {folder}")
    return 1 if screen.failed else 0


def _exit(number: int, _frame: object) -> None:
    """End the demo as a shell expects; what unwinds then is not disturbed by further signals."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("\nStopping everything that was started.", file=sys.stderr)  # noqa: T201
    raise SystemExit(128 + number)


class Demo:
    """The steps, in their order; each prints to ``screen``."""

    brokers: str
    url: str
    client: OffsetClient

    def __init__(
        self,
        screen: Screen,
        folder: Path,
        orders: int,
        partitions: int,
        cleanup: contextlib.ExitStack,
    ) -> None:
        self.screen = screen
        self.folder = folder
        self.orders = orders
        self.partitions = partitions
        self.topic, self.group = "orders", "orders-etl"
        self._cleanup = cleanup

    def play(self, brokers: str | None) -> None:
        self.screen.say("A Kafka, a Spark job, and the service that commits its offsets.")
        self.screen.say("It takes about a minute; Ctrl-C ends it, and all that it has started.")
        spark_kafka_jars(self.screen.say)
        if brokers is None:
            self._start_kafka()
        else:
            self._use_kafka(brokers)
        service = self._start_service()
        self._produce()
        self._resume(stood_at=self._run_half())
        self._count()
        self.client.close()
        self.screen.step("Stop the service (SIGTERM)")
        service.signal(signal.SIGTERM)
        status = _status_of(service)
        self.screen.check(
            "It ended with exit status 0: all it was given is committed (3 would say: not all)",
            holds=status == 0,
            found=f"exit status {status}",
        )
        self._ask_kafka()

    def committed(self) -> dict[int, int]:
        """Return the committed offsets of the group, by partition."""
        found = self.client.committed(self.group)
        return {key.partition: entry.offset for key, entry in found.items()}

    def ends(self) -> dict[int, int]:
        """Return the end of the topic, by partition."""
        ranges = self.client.topics([self.topic])[self.topic]
        return {partition: each.high_watermark for partition, each in ranges.items()}

    def _start_kafka(self) -> None:
        self.screen.step("Start a Kafka")
        with self.screen.busy("It takes a few seconds."):
            kafka = DevKafka(data_dir=self.folder / "kafka", log=self.screen.say)
            self._cleanup.enter_context(kafka)
        self.brokers = kafka.bootstrap_servers
        self.screen.say(f"Kafka {KAFKA_VERSION} is ready on {self.brokers}.")

    def _use_kafka(self, brokers: str) -> None:
        self.screen.step(f"Use the Kafka on {brokers}")
        self.brokers = brokers
        try:
            quiet_admin(brokers).list_topics(timeout=_ANSWER_S)
        except KafkaException as error:
            text = f"no Kafka answers on {brokers} ({error.args[0].str()}): check the address"
            raise DemoError(text) from error
        own = f"offsetmgr-demo-{uuid.uuid4().hex[:8]}"
        self.topic, self.group = f"orders-{own}", f"orders-etl-{own}"
        self.screen.say(f"It deletes topic {self.topic} and group {self.group} at the end.")
        self._cleanup.callback(self._delete)

    def _delete(self) -> None:
        """Delete the topic and the group from a Kafka that is not ours; say what is left."""
        admin = quiet_admin(self.brokers)
        deleted = admin.delete_topics([self.topic])
        deleted |= admin.delete_consumer_groups([self.group], request_timeout=_REQUEST_S)
        for name, answer in deleted.items():
            error = answer.exception(4 * _REQUEST_S)
            code = error.args[0].name() if isinstance(error, KafkaException) else ""
            if error and code not in {"GROUP_ID_NOT_FOUND", "UNKNOWN_TOPIC_OR_PART"}:
                self.screen.say(f"Left behind: {name}: {error}")

    def _process(self, log: str, *arguments: str) -> WatchedProcess:
        # It imports what this process imports; Spark leaves files in the folder where it runs.
        path = f"PYTHONPATH={os.pathsep.join(sys.path)}"
        command = ["env", path, sys.executable, "-m", *arguments]
        return WatchedProcess(command, cwd=self.folder, log_path=self.folder / log)

    def _start_service(self) -> WatchedProcess:
        listen = f"127.0.0.1:{free_ports(1)[0]}"
        command = ["serve", "--listen", listen, "--bootstrap-servers", self.brokers]
        self.screen.step("Start the service")
        self.screen.quote(f"$ offsetmgr {' '.join(command)}")
        service = self._process("service.log", "offsetmgr", *command)
        self._cleanup.enter_context(contextlib.closing(service))
        self.url = f"http://{listen}"
        with self.screen.busy("It is ready when Kafka answers it."):
            _wait(self._is_ready, _READY_S, service)
        self.screen.say(f"Process {service.pid} serves {self.url}.")
        self.client = self._cleanup.enter_context(OffsetClient(self.url, name="demo"))
        return service

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=_READY_S):  # noqa: S310 -- loopback
                return True
        except OSError:
            return False

    def _produce(self) -> None:
        self.screen.step(f"Produce {self.orders:,} orders over {self.partitions} partitions")
        create_topic(self.brokers, self.topic, self.partitions)
        with self.screen.busy(f"to topic {self.topic}"):
            produce_orders(self.brokers, self.topic, self.partitions, self.orders)

    def _run_half(self) -> dict[int, int]:
        """Run the Spark job, stop it about half-way, and return the group's offsets."""
        self.screen.step(f"Run a Spark job on group {self.group}, and stop it half-way")
        self.screen.say(
            "It writes the orders to Parquet. Spark commits nothing; "
            "commit_offsets(spark, client, group=...) does, through the service."
        )
        result = self._run_job("first", until=self.orders // 6)
        committed = self.committed()
        done = sum(committed.values())
        left = self.orders - done
        self.screen.say(f"Stopped (SIGTERM): {done:,} orders are read, {left:,} are left.")
        self.screen.check(
            f"Group {self.group} is at the end of Spark's last finished batch",
            holds=committed == result["end"] and result["uncommitted"] == 0,
            found=f"the group has {committed}, Spark has {result['end']}",
        )
        self.screen.check(
            "The job was stopped half-way: some orders are read, and some are left",
            holds=0 < done < self.orders,
            found=f"{done} of {self.orders} are read",
        )
        return committed

    def _resume(self, stood_at: dict[int, int]) -> None:
        """Run the job again without its checkpoint, from the group."""
        self.screen.step("Delete its checkpoint, and resume from the group")
        start = f"starting_offsets(client, {self.group!r}, [{self.topic!r}])"
        self.screen.say(f"startingOffsets = {start}")
        shutil.rmtree(self.folder / "first-checkpoint")
        result = self._run_job("second", until=self.orders)
        self.screen.check(
            "The new run began exactly at the group's offsets",
            holds=result["start"] == stood_at,
            found=f"it began at {result['start']}, the group was at {stood_at}",
        )
        committed, ends = self.committed(), self.ends()
        self.screen.check(
            f"The group has reached the end of all {self.partitions} partitions",
            holds=committed == ends and result["uncommitted"] == 0,
            found=f"the group has {committed}, the topic ends at {ends}",
        )

    def _run_job(self, name: str, until: int) -> dict[str, Any]:
        """Run the Spark job until its group has ``until`` orders; return what it reports.

        ``start`` and ``end`` are offsets by partition: where it was told to start, and the next to
        read after its last finished batch.  ``uncommitted`` counts those without acknowledgement.
        """
        report = self.folder / f"{name}-result.json"
        settings = {
            "brokers": self.brokers,
            "service": self.url,
            "topic": self.topic,
            "group": self.group,
            "jars": ",".join(map(str, spark_kafka_jars())),
            "batch_orders": max(1, self.orders // _BATCHES),
            "out": str(self.folder / "orders" / name),
            "checkpoint": str(self.folder / f"{name}-checkpoint"),
            "scratch": str(self.folder / "spark"),
            "result": str(report),
        }
        job = self._process(f"job-{name}.log", "offsetmgr.demo.job", json.dumps(settings))
        with contextlib.closing(job):
            with self.screen.busy(f"Spark starts and reads; committed to {self.group}") as status:

                def is_done() -> bool:
                    done = sum(self.committed().values())
                    status.update(f"{done:,} of {self.orders:,} committed to {self.group}")
                    return done >= until or not job.running()

                _wait(is_done, _JOB_S, job)
            if until < self.orders:
                job.signal(signal.SIGTERM)
            exit_status = _status_of(job)
            if exit_status != 0:
                raise _failed(job, f"the Spark job failed with exit status {exit_status}")
        found: dict[str, Any] = json.loads(report.read_text())
        for at in ("start", "end"):
            found[at] = {int(p): offset for p, offset in found[at].get(self.topic, {}).items()}
        return found

    def _count(self) -> None:
        """Compare what both runs have written with what was produced."""
        from pyarrow import parquet  # noqa: PLC0415 -- run() says what to install if it is missing

        times: Counter[int] = Counter()
        with self.screen.busy("Counting what both runs have written"):
            for path in (self.folder / "orders").glob("*/batch=*/*.parquet"):
                times.update(parquet.read_table(path)["order_id"].to_pylist())
        repeated = sum(1 for count in times.values() if count != 1)
        self.screen.check(
            f"{self.orders:,} orders were produced; each of them was written exactly once",
            holds=set(times) == set(range(self.orders)) and not repeated,
            found=f"{len(times):,} were written, {repeated:,} of them more than once",
        )
        self.screen.say(
            "Why exactly once: the group was at the end of a finished batch, and the job deletes "
            "what an unfinished batch has written. Had the job died after writing a batch and "
            "before committing it, that batch would be read once more."
        )

    def _ask_kafka(self) -> None:
        """Let Kafka's own tool have the last word."""
        self.screen.step("Ask Kafka's own tool")
        arguments = ("--describe", "--group", self.group)
        with self.screen.busy(f"kafka-consumer-groups {' '.join(arguments)}"):
            described = consumer_groups(self.brokers, *arguments)
        # GROUP to LAG; the columns behind them tell of members, and there are none.
        table = [line.split()[:6] for line in described.strip().splitlines()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row in table:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            self.screen.quote("  ".join(cells).rstrip())
        lags = {int(row[2]): row[5] for row in table[1:]}
        self.screen.check(
            f"Lag is 0 on all {self.partitions} partitions",
            holds=lags == dict.fromkeys(range(self.partitions), "0"),
            found=f"lag by partition: {lags}",
        )


def _wait(is_done: Callable[[], bool], limit_s: float, process: WatchedProcess) -> None:
    """Wait until ``is_done``.  Raises DemoError if it takes too long, or if the process ends."""
    deadline = time.monotonic() + limit_s
    while not is_done():
        late = time.monotonic() >= deadline
        if late or not process.running():
            how = f"was not done within {limit_s:.0f} s" if late else "ended by itself"
            raise _failed(process, f"process {process.pid} {how}")
        time.sleep(_POLL_S)


def _status_of(process: WatchedProcess) -> int:
    """Wait for the end of a process and return its exit status.  Raises DemoError if it is late."""
    if not process.wait(_STOP_S):
        raise _failed(process, f"process {process.pid} did not end within {_STOP_S:.0f} s")
    return process.status() or 0


def _failed(process: WatchedProcess, text: str) -> DemoError:
    return DemoError(f"{text}; {log_tail(process.log_path)}")
