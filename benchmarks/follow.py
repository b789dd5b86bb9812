"""A thousand followed checkpoints: the processor time, and the requests to their file system.

The groups are kept in memory: what a commit costs is measured by ``managers`` and ``service``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from socket import socket
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import psutil

from actors import ActorSystem
from benchmarks.harness import at_most, cpu_s, show
from offsetmgr.coordinator.memory import MemoryCoordinator
from offsetmgr.devkafka.cluster import free_ports
from offsetmgr.spark.files import open_files
from offsetmgr.spark.follow import Follow, Follower
from offsetmgr.types import TopicPartition
from tests.service.support import local_over
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHECKPOINTS: Final = 1_000
SECONDS: Final = 30.0
CORE: Final = 0.05
"""Of a core, for a thousand checkpoints on a disk that are looked at every 10 s."""

_HEAD: Final = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'


def run(_brokers: str, _rounds: int) -> list[str]:
    with TemporaryDirectory() as folder:
        idle, busy = _measured(folder, batches=(False, True))
    with _s3_server() as url:
        (on_s3,) = _measured(url, batches=(False,))
    figures = {"a disk, idle": idle, "a disk, a batch each 10 s": busy, "S3, idle": on_s3}
    rows = [
        (where, f"{core:.1%}", f"{reads:,.0f}", f"{lists:,.0f}")
        for where, (core, reads, lists) in figures.items()
    ]
    heads = "where", "of a core", "reads an hour", "lists an hour"
    show(f"{CHECKPOINTS:,} checkpoints, interval_s = 10", heads, rows)
    return at_most("processor time of idle checkpoints", idle[0], CORE, "of a core")


def _measured(root: str, batches: tuple[bool, ...]) -> list[tuple[float, float, float]]:
    """Return the share of a core, and reads and lists an hour: idle, or with batches if True."""
    files = open_files(root, None)
    for number in range(CHECKPOINTS):
        _write(files.write, number, 0)
    own = psutil.Process()
    found = []
    with ActorSystem(name="bench") as system:
        coordinator = MemoryCoordinator(call_after=system.timers.call_after)
        coordinator.broker.create_topic("bench")
        coordinator.broker.set_log(TopicPartition("bench", 0), 0, 1_000_000)
        with local_over(coordinator, commit_interval_s=1.0) as client:
            follower = Follower({"all": Follow(f"{root}/*", "bench-{name}")}, client)
            follower.start()
            until(lambda: sum(each.batch_id == 0 for each in follower.queries()) == CHECKPOINTS)
            time.sleep(2 * 10)  # the lists of the first looks
            for is_busy in batches:
                before, began = dict(follower.requests), cpu_s(own)
                writer = _writer(root) if is_busy else None
                time.sleep(SECONDS)
                core = (cpu_s(own) - began) / SECONDS
                asked = {kind: follower.requests[kind] - before[kind] for kind in ("read", "list")}
                hours = SECONDS / 3_600
                found.append((core, asked["read"] / hours, asked["list"] / hours))
                if writer is not None:
                    writer.kill()
                    writer.wait()
            follower.close()
    return found


def _write(write: Callable[[str, str], None], number: int, batch: int) -> None:
    name = f"{number:04}"
    write(f"{name}/metadata", json.dumps({"id": f"query-{number}"}))
    write(f"{name}/offsets/{batch}", f'{_HEAD}\n{{"bench":{{"0":{batch + 1}}}}}')
    write(f"{name}/commits/{batch}", "v1\n{}")


def _writer(root: str) -> subprocess.Popen[bytes]:
    """Finish a batch of each checkpoint every 10 s, in a process of its own."""
    code = f"from benchmarks.follow import finish; finish({root!r})"
    return subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[1])


def finish(root: str) -> None:
    files = open_files(root, None)
    for batch in range(1, 1_000):
        for number in range(CHECKPOINTS):
            _write(files.write, number, batch)
            time.sleep(8 / CHECKPOINTS)


@contextmanager
def _s3_server() -> Iterator[str]:
    """Yield a bucket of a server in a process of its own."""
    (port,) = free_ports(1)
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "reader",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        import fsspec  # noqa: PLC0415 -- it reads the environment

        until(lambda: _is_open(port))
        fsspec.filesystem("s3").mkdir("lake")
        yield "s3://lake/checkpoints"
    finally:
        server.kill()
        server.wait()


def _is_open(port: int) -> bool:
    with socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
