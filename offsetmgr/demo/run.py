"""The demo from the first process to the last: a Kafka, the service, a Spark job.

Each step says what it does, shows what others say of it, and checks its claims.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import typer
from pyarrow import parquet

from offsetmgr.client import OffsetClient
from offsetmgr.deadlines import Deadline
from offsetmgr.devkafka import KAFKA_VERSION, DevKafka, consumer_groups, spark_kafka_jars
from offsetmgr.devkafka.cluster import free_ports
from offsetmgr.devkafka.command import create_topic, produce_orders
from offsetmgr.devkafka.process import DevKafkaError, WatchedProcess, log_tail
from offsetmgr.errors import OffsetManagerError
from offsetmgr.spark import reconcile
from offsetmgr.spark.checkpoint import Checkpoint

_TOPIC: Final = "orders"
_GROUP: Final = "orders-etl"
_PARTITIONS: Final = 8
_BATCHES: Final = 12
"""The number of batches in which Spark reads all orders."""

_READY_S: Final = 180.0
_JOB_S: Final = 600.0
_STOP_S: Final = 180.0

_LEARNED: Final = (
    "Spark keeps its offsets to itself. With the service and one line in the driver, every lag "
    "tool sees the job's group, and a job that lost its checkpoint resumes from it.\n"
    "Next: README.md has the twelve lines a job of yours needs."
)


def run(orders: int) -> int:
    """Run the demo in the main thread; return 0 if every claim holds, else 1.

    It ends at the first claim that does not hold; then its logs and data are kept.  No process is
    left in any case.  SIGTERM exits with 143.
    """
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    folder = Path(tempfile.mkdtemp(prefix="offsetmgr-demo-"))
    is_kept = False
    try:
        with contextlib.ExitStack() as cleanup:
            Demo(folder, orders).play(cleanup)
    except OffsetManagerError as error:
        is_kept = True
        typer.secho(f"✘ {error}\nKept: {folder}", bold=True, fg="red")
    finally:
        if not is_kept:
            shutil.rmtree(folder)
    return int(is_kept)


class Demo:
    """The steps, in their order, and what they print."""

    brokers: str
    url: str
    client: OffsetClient

    def __init__(self, folder: Path, orders: int) -> None:
        self.folder = folder
        self.orders = orders
        self._steps = self._claims = 0

    def play(self, cleanup: contextlib.ExitStack) -> None:
        self.say("It takes about a minute; Ctrl-C ends it, and all that it has started.")
        spark_kafka_jars(self.say)
        self.step("Start a Kafka")
        kafka = DevKafka(data_dir=self.folder / "kafka", log=self.say)
        self.brokers = cleanup.enter_context(kafka).bootstrap_servers
        self.say(f"Kafka {KAFKA_VERSION} is ready on {self.brokers}.")

        self.step(f"Produce {self.orders:,} orders over {_PARTITIONS} partitions")
        create_topic(self.brokers, _TOPIC, _PARTITIONS)
        produce_orders(self.brokers, _TOPIC, _PARTITIONS, self.orders)

        self.step("Start the service")
        listen = f"127.0.0.1:{free_ports(1)[0]}"
        command = ["serve", "--listen", listen, "--bootstrap-servers", self.brokers]
        self.say(f"$ offsetmgr {' '.join(command)}", dim=True)
        service = self._process("service.log", "offsetmgr", *command)
        cleanup.callback(service.close)
        _await_service(service, listen)
        self.url = f"http://{listen}"
        self.client = cleanup.enter_context(OffsetClient(self.url, name="demo"))
        ranges = self.client.topics([_TOPIC], timeout=_READY_S)[_TOPIC]
        ends = {partition: each.high_watermark for partition, each in ranges.items()}

        self.step(f"Run a Spark job on group {_GROUP}, and stop it half-way")
        self.say(
            "It writes the orders to Parquet. Spark commits nothing; "
            "commit_offsets(spark, client, group=...) does, through the service."
        )
        self._run_job("first", until=self.orders // 6)
        stood_at = self._committed()
        done = sum(stood_at.values())
        checkpoint = self.folder / "first-checkpoint"
        compared = reconcile(self.client, _GROUP, str(checkpoint))
        self.check(
            f"Group {_GROUP} is at the end of Spark's last finished batch",
            holds=bool(compared.partitions) and not compared.differences,
            found=f"they differ: {compared.differences}",
        )
        self.check(
            f"The job was stopped half-way: {done:,} of {self.orders:,} orders are read",
            holds=0 < done < self.orders,
            found="these are not some of them",
        )

        self.step("Delete its checkpoint, and resume from the group")
        shutil.rmtree(checkpoint)
        self.say(f"startingOffsets = starting_offsets(client, {_GROUP!r}, [{_TOPIC!r}])")
        self._run_job("second", until=self.orders)
        first_batch = Checkpoint(str(self.folder / "second-checkpoint")).ranges(0)
        began_at = {where.partition: each.start for where, each in first_batch.items()}
        self.check(
            "The new run began exactly at the group's offsets",
            holds=began_at == stood_at,
            found=f"it began at {began_at}, the group was at {stood_at}",
        )
        self.check(
            f"The group has reached the end of all {_PARTITIONS} partitions",
            holds=self._committed() == ends,
            found=f"the group has {self._committed()}, the topic ends at {ends}",
        )
        self._count()

        self.client.close()
        self.step("Stop the service (SIGTERM)")
        service.signal(signal.SIGTERM)
        status = _status_of(service)
        self.check(
            "It ended with exit status 0: all it was given is committed (3 would say: not all)",
            holds=status == 0,
            found=f"exit status {status}",
        )
        self._ask_kafka()
        self.step(f"All {self._claims} claims hold")
        self.say(_LEARNED)

    def _ask_kafka(self) -> None:
        self.step("Ask Kafka's own tool")
        described = consumer_groups(self.brokers, "--describe", "--group", _GROUP).strip()
        # GROUP to LAG; the columns behind them tell of members, and there are none.
        table = [line.split()[:6] for line in described.splitlines()]
        for row in table:
            self.say("".join(cell.ljust(16) for cell in row), dim=True)
        lags = {int(row[2]): row[5] for row in table[1:]}
        self.check(
            f"Lag is 0 on all {_PARTITIONS} partitions",
            holds=lags == dict.fromkeys(range(_PARTITIONS), "0"),
            found=f"lag by partition: {lags}",
        )

    def _committed(self) -> dict[int, int]:
        found = self.client.committed(_GROUP)
        return {key.partition: entry.offset for key, entry in found.items()}

    def _process(self, log: str, *arguments: str) -> WatchedProcess:
        # Spark leaves files in the folder where it runs.
        path = f"PYTHONPATH={os.pathsep.join(sys.path)}"
        command = ["env", path, sys.executable, "-m", *arguments]
        return WatchedProcess(command, cwd=self.folder, log_path=self.folder / log)

    def _run_job(self, name: str, until: int) -> None:
        """Run the Spark job until its group has ``until`` orders.  Raises DevKafkaError."""
        settings = {
            "brokers": self.brokers,
            "service": self.url,
            "topic": _TOPIC,
            "group": _GROUP,
            "batch_orders": max(1, self.orders // _BATCHES),
            "out": str(self.folder / "orders" / name),
            "checkpoint": str(self.folder / f"{name}-checkpoint"),
            "jars": ",".join(map(str, spark_kafka_jars())),
        }
        job = self._process(f"job-{name}.log", "offsetmgr.demo.job", json.dumps(settings))
        with contextlib.closing(job):
            self.say("Spark starts and reads.")
            deadline = Deadline(_JOB_S)
            for _ in deadline.polls():
                if not job.running() or sum(self._committed().values()) >= until:
                    break
            if deadline.over:
                raise _failed(job, f"was not done within {_JOB_S:.0f} s")
            if until < self.orders:
                job.signal(signal.SIGTERM)
            status = _status_of(job)
            if status != 0:
                raise _failed(job, f"failed with exit status {status}")

    def _count(self) -> None:
        written: list[int] = []
        for path in (self.folder / "orders").glob("*/batch=*/*.parquet"):
            written += parquet.read_table(path)["order_id"].to_pylist()
        self.check(
            f"{self.orders:,} orders were produced; each of them was written exactly once",
            holds=sorted(written) == list(range(self.orders)),
            found=f"{len(set(written)):,} were written, in {len(written):,} rows",
        )
        self.say(
            "Why exactly once: the group was at the end of a finished batch, and the job deletes "
            "what an unfinished batch has written. Had the job died after writing a batch and "
            "before committing it, that batch would be read once more."
        )

    def step(self, text: str) -> None:
        self._steps += 1
        self.say(f"\n{self._steps}. {text}", bold=True, fg="cyan")

    def say(self, text: str, **style: Any) -> None:
        typer.secho(text, **style)

    def check(self, claim: str, *, holds: bool, found: object) -> None:
        """Print a claim.  Raises DevKafkaError if it does not hold: ``found`` is true instead."""
        if not holds:
            raise DevKafkaError(f"{claim}: {found}")
        self._claims += 1
        self.say(f"✔ {claim}", fg="green")


def _await_service(process: WatchedProcess, address: str) -> None:
    """Wait until the service listens.  Raises DevKafkaError."""
    host, _, port = address.partition(":")
    for _ in Deadline(_READY_S).polls():
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1.0):
            return
        if not process.running():
            break
    raise _failed(process, f"does not listen on {address} after {_READY_S:.0f} s")


def _status_of(process: WatchedProcess) -> int:
    """Wait for the end of a process and return its exit status.  Raises DevKafkaError."""
    if not process.wait(_STOP_S):
        raise _failed(process, f"did not end within {_STOP_S:.0f} s")
    return process.status() or 0


def _failed(process: WatchedProcess, what: str) -> DevKafkaError:
    return DevKafkaError(f"process {process.pid} {what}; {log_tail(process.log_path)}")
