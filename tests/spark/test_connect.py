"""The same calls with a session of Spark Connect, against the real service and a real Kafka."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsetmgr.devkafka import spark_kafka_jars

if TYPE_CHECKING:
    from tests.service.support import ServeProcess
    from tests.spark.support import Topic

JOB = Path(__file__).with_name("connect_job.py")
JOB_S = 200.0
"""A guard: longer than any job takes."""


@pytest.mark.timeout(240)
def test_a_job_on_spark_connect(
    sidecar: ServeProcess, topic: Topic, group: str, tmp_path: Path
) -> None:
    """Its groups are where it has read, as its checkpoint says, and nothing is unreadable."""
    topic.produce(90)
    options = {
        "--service": sidecar.address,
        "--brokers": topic.kafka.bootstrap_servers,
        "--topic": topic.name,
        "--group": group,
        "--jars": ",".join(map(str, spark_kafka_jars())),
        "--folder": str(tmp_path),
    }
    job = subprocess.run(
        [sys.executable, str(JOB), *(text for option in options.items() for text in option)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert job.returncode == 0, job.stderr
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen == {"left": 0, "unreadable": 0, "same": True, "batch": 90}
    assert topic.described(group) == {0: 30, 1: 30, 2: 30}
    assert topic.described(f"{group}-batch") == {0: 30, 1: 30, 2: 30}
