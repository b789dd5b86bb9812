"""The demo from end to end, as its users run it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from offsetmgr.devkafka import DevKafka
from tests.spark.support import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
ORDERS = 4_000
DEMO_S = 500.0
"""A guard: longer than any demo takes."""

pytestmark = pytest.mark.timeout(600)


class Demo:
    """The demo as a process, and all that it starts."""

    def __init__(self, scratch: Path, *options: str) -> None:
        self.scratch = scratch
        """Where its temporary files go."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "offsetmgr", "demo", "--orders", str(ORDERS), *options],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(scratch)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.text = ""

    def read_until(self, line: str) -> None:
        """Read what it prints up to a line that holds ``line``."""
        assert self.process.stdout is not None
        for each in self.process.stdout:
            self.text += each
            if line in each:
                return
        pytest.fail(f"it never said {line!r}:\n{self.text}")

    def family(self) -> list[psutil.Process]:
        """Everything that it has started and that runs now."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def finish(self) -> int:
        """Its exit status, with all it has printed read."""
        self.text += self.process.communicate(timeout=DEMO_S)[0]
        return self.process.returncode


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Any]:
    """Starts demos; none is left in the end."""
    started: list[Demo] = []

    def start(*options: str) -> Demo:
        started.append(Demo(tmp_path, *options))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait(WAIT_S)


def running(family: list[psutil.Process]) -> list[psutil.Process]:
    """Those that run still; psutil knows a number that was given to another process."""
    return [each for each in family if each.is_running()]


def test_every_claim_holds(demo: Any) -> None:
    """On its own Kafka, the demo finds each of its claims to hold, and leaves nothing behind."""
    shown = demo()
    assert shown.finish() == 0, shown.text
    assert "✘" not in shown.text
    assert "12 of 12 claims hold" in shown.text
    assert f"✔ {ORDERS:,} orders were produced; each of them was counted exactly once" in shown.text
    assert "✔ Lag is 0 on all 8 partitions" in shown.text
    assert "UNKNOWN_MEMBER_ID" in shown.text
    assert list(shown.scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.chaos)],
)
def test_stopped_in_the_middle_nothing_is_left(demo: Any, number: int, status: int) -> None:
    """Ctrl-C while Kafka, the sidecar and Spark run ends all of them, and says so by its status."""
    stopped = demo()
    stopped.read_until("Spark starts and reads")
    family = stopped.family()
    assert len(family) >= 6, "Kafka, sidecar and job, each under its watchdog"
    stopped.process.send_signal(number)
    assert stopped.finish() == status, stopped.text
    assert running(family) == []
    assert list(stopped.scratch.iterdir()) == []


@pytest.mark.chaos
def test_a_claim_that_does_not_hold_fails_the_demo(demo: Any) -> None:
    """On somebody's Kafka that refuses the commits, it says what does not hold, and exits with 1.

    Its topic and groups are gone in the end.
    """
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with DevKafka(properties=rules) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        permit(admin, AclOperation.ALL, AclPermissionType.ALLOW)
        permit(admin, AclOperation.READ, AclPermissionType.DENY)
        failed = demo("--brokers", kafka.bootstrap_servers)
        assert failed.finish() == 1, failed.text
        assert "✘ Group orders-etl-offsetmgr-demo-" in failed.text
        assert "claims hold" in failed.text
        topics = admin.list_topics(timeout=WAIT_S).topics
        assert [name for name in topics if name.startswith("orders")] == []
    logs = [path for folder in failed.scratch.iterdir() for path in folder.iterdir()]
    assert {path.name for path in logs} >= {"sidecar.log", "job-first.log"}
    assert f"Kept: {logs[0].parent}" in failed.text


def permit(admin: AdminClient, operation: AclOperation, permission: AclPermissionType) -> None:
    """Allow or deny everybody something on the groups of the demo's job."""
    binding = AclBinding(
        ResourceType.GROUP,
        "orders-etl",
        ResourcePatternType.PREFIXED,
        "User:*",
        "*",
        operation,
        permission,
    )
    for created in admin.create_acls([binding]).values():
        created.result(WAIT_S)


def test_no_kafka_is_said_in_a_line(demo: Any) -> None:
    """Where no Kafka answers, the demo says so and exits with 1."""
    failed = demo("--brokers", "127.0.0.1:9")
    assert failed.finish() == 1
    assert "no Kafka answers on 127.0.0.1:9" in failed.text
