"""The same calls with a session of Spark Connect, against the real service and a real Kafka."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from offsetmgr.devkafka import spark_kafka_jars
from tests.spark.jobs import run_job

if TYPE_CHECKING:
    from tests.service.support import ServeProcess
    from tests.spark.support import Topic

JOB = Path(__file__).with_name("connect_job.py")
WORKER = "pyspark.sql.connect.streaming.worker.foreach_batch_worker"


def test_a_job_on_spark_connect(
    sidecar: ServeProcess, topic: Topic, group: str, tmp_path: Path
) -> None:
    """Its groups are where it has read, as its checkpoint says, and nothing is unreadable.

    Its foreachBatch function, which runs on the server, is handed the ranges of each batch.
    """
    # Spark gives its worker ten seconds to connect: too few where it compiles pandas first.
    with_bytecode = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run([sys.executable, "-c", f"import {WORKER}"], env=with_bytecode, check=True)
    topic.produce(60)
    options = {
        "service": sidecar.address,
        "brokers": topic.kafka.bootstrap_servers,
        "topic": topic.name,
        "group": group,
        "jars": ",".join(map(str, spark_kafka_jars())),
        "folder": tmp_path,
    }
    job = run_job(JOB, options)
    assert job.returncode == 0, job.stderr
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen == {"left": 0, "unreadable": 0, "same": True, "batch": 60}
    batches = [json.loads((tmp_path / f"batch-{number}.json").read_text()) for number in range(2)]
    assert [batch["records"] for batch in batches] == [30, 30]
    for partition in "012":
        ranges = [batch["ranges"][partition] for batch in batches]
        assert ranges == [[0, 10], [10, 20]]
    assert topic.described(group) == {0: 20, 1: 20, 2: 20}
    assert topic.described(f"{group}-batch") == {0: 20, 1: 20, 2: 20}
