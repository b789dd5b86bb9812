"""An example on a cluster of several executors; `make chaos` runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from tests.spark.jobs import run_job
from tests.spark.support import offsets_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.client import OffsetClient
    from tests.service.support import ServeProcess
    from tests.spark.support import Topic

EXAMPLES = Path(__file__).parents[2] / "examples"
ORDERS = 400

SETTINGS = {
    # No task begins before both executors are there.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
}


def workers(events: Path) -> Iterator[str]:
    """The executor of each task that has ended well, as Spark's own log of events tells."""
    for path in events.rglob("events_*"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd" and not event["Task Info"]["Failed"]:
                yield event["Task Info"]["Executor ID"]


def spark_home(folder: Path) -> Path:
    """A Spark of the test's own, whose workers write beside it and not into the real one."""
    folder.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        (folder / each.name).symlink_to(each)
    return folder


@pytest.mark.chaos
def test_the_streaming_example_on_two_executors(
    sidecar: ServeProcess, client: OffsetClient, topic: Topic, tmp_path: Path
) -> None:
    """Both of them work, each order is written, and the group is at the end of the topic."""
    events = tmp_path / "events"
    events.mkdir()
    settings = {**SETTINGS, "spark.eventLog.dir": events.as_uri()}
    submit = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    options = {
        "master": "local-cluster[2,1,1024]",
        "brokers": topic.kafka.bootstrap_servers,
        "service": sidecar.address,
        "topic": topic.name,
        "orders": ORDERS,
        "folder": tmp_path / "results",
    }
    env = {
        "PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell",
        "SPARK_HOME": str(spark_home(tmp_path / "spark")),
    }
    job = run_job(EXAMPLES / "streaming_etl.py", options, env)
    assert job.returncode == 0, job.stderr
    assert f"{ORDERS} orders in " in job.stdout
    assert "group orders-etl is 0 orders behind" in job.stdout
    committed = offsets_of(client.committed("orders-etl"))
    assert sum(end for where, end in committed.items() if where.topic == topic.name) == ORDERS
    assert set(workers(events)) == {"0", "1"}
