"""The demo from end to end, as its users run it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

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

ROOT = Path(__file__).parents[2]
ORDERS = 4_000
DEMO_S = 500.0
"""A guard: longer than any demo takes."""

pytestmark = pytest.mark.timeout(600)


def start(scratch: Path, *options: str) -> subprocess.Popen[str]:
    """A demo whose temporary files go to ``scratch``."""
    return subprocess.Popen(
        [sys.executable, "-m", "offsetmgr", "demo", "--orders", str(ORDERS), *options],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_every_claim_holds(tmp_path: Path) -> None:
    """On its own Kafka, the demo finds each of its claims to hold, and leaves nothing behind."""
    with start(tmp_path) as demo:
        text, _ = demo.communicate(timeout=DEMO_S)
    assert demo.returncode == 0, text
    assert "✘" not in text
    assert "7 of 7 claims hold" in text
    assert f"✔ {ORDERS:,} orders were produced; each of them was written exactly once" in text
    assert "✔ Lag is 0 on all 8 partitions" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.chaos
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_in_the_middle_nothing_is_left(tmp_path: Path, number: int, status: int) -> None:
    """Ctrl-C while Kafka, the service and Spark run ends all of them, and says so by its status."""
    with start(tmp_path) as demo:
        assert demo.stdout is not None
        said = next(line for line in demo.stdout if "Spark starts and reads" in line)
        family = psutil.Process(demo.pid).children(recursive=True)
        assert len(family) >= 6, "Kafka, service and job, each under its watchdog"
        demo.send_signal(number)
        said += demo.communicate(timeout=DEMO_S)[0]
    assert demo.returncode == status, said
    assert [each for each in family if each.is_running()] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.chaos
def test_a_claim_that_does_not_hold_fails_the_demo(tmp_path: Path) -> None:
    """On somebody's Kafka that refuses the commits, it says what does not hold, and exits with 1.

    Its topic and its group are gone in the end.
    """
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with DevKafka(properties=rules) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        permit(admin, AclOperation.ALL, AclPermissionType.ALLOW)
        permit(admin, AclOperation.READ, AclPermissionType.DENY)
        with start(tmp_path, "--brokers", kafka.bootstrap_servers) as demo:
            text, _ = demo.communicate(timeout=DEMO_S)
        assert demo.returncode == 1, text
        assert "✘ Group orders-etl-offsetmgr-demo-" in text
        assert "claims hold" in text
        topics = admin.list_topics(timeout=WAIT_S).topics
        assert [name for name in topics if name.startswith("orders")] == []
    (kept,) = tmp_path.iterdir()
    assert {path.name for path in kept.iterdir()} >= {"service.log", "job-first.log"}
    assert f"Kept: {kept}" in text


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


def test_no_kafka_is_said_in_a_line(tmp_path: Path) -> None:
    """If no Kafka answers, the demo says so and exits with 1."""
    with start(tmp_path, "--brokers", "127.0.0.1:9") as demo:
        text, _ = demo.communicate(timeout=DEMO_S)
    assert demo.returncode == 1
    assert "no Kafka answers on 127.0.0.1:9" in text
