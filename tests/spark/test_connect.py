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
JOB_S = 900.0
"""A guard: on a slow machine a job takes minutes."""


@pytest.mark.parametrize(
    "sink",
    [
        "noop",
        # Spark gives the worker that runs the function ten seconds to import pandas and to
        # connect, which no setting changes: that needs a machine without other work.
        pytest.param("foreachBatch", marks=pytest.mark.compat),
    ],
)
def test_a_job_on_spark_connect(
    sidecar: ServeProcess, topic: Topic, group: str, tmp_path: Path, sink: str
) -> None:
    """Its groups are where it has read, as its checkpoint says, and nothing is unreadable.

    A foreachBatch function, which runs on the server, is handed the ranges of each batch.
    """
    topic.produce(60)
    options = {
        "service": sidecar.address,
        "brokers": topic.kafka.bootstrap_servers,
        "topic": topic.name,
        "group": group,
        "jars": ",".join(map(str, spark_kafka_jars())),
        "folder": tmp_path,
        "sink": sink,
    }
    ours = {"PYTHONPATH": os.pathsep.join(sys.path), "PYSPARK_PYTHON": sys.executable}
    job = subprocess.run(
        [sys.executable, str(JOB), *(f"--{name}={value}" for name, value in options.items())],
        cwd=tmp_path,  # where Spark leaves a folder of its own
        env=os.environ | ours,
        capture_output=True,
        start_new_session=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert job.returncode == 0, job.stderr
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen == {"left": 0, "unreadable": 0, "same": True, "batch": 60}
    assert topic.described(group) == {0: 20, 1: 20, 2: 20}
    assert topic.described(f"{group}-batch") == {0: 20, 1: 20, 2: 20}
    batches = [json.loads(each.read_text()) for each in sorted(tmp_path.glob("batch-*.json"))]
    ranges = [{number: [first, first + 10] for number in "012"} for first in (0, 10)]
    expected = [{"records": 30, "ranges": each} for each in ranges]
    assert batches == (expected if sink == "foreachBatch" else [])
