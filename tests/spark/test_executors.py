"""Tasks of real Spark executors submit by a client that came to them in their closure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.types import TopicPartition
from tests.spark.support import WAIT_S, offsets_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.spark.support import Job


def test_a_task_submits_by_itself(job: Job) -> None:
    """Each partition's task connects anew, under a name of its own, and gives back what it held.

    Python workers are used again, so that the second round meets what the first has left.
    """
    spark, client, topic, group, _ = job
    name, driver = topic.name, client.name

    def submit(numbers: Iterable[int]) -> Iterable[str]:
        with client:
            for number in numbers:
                offset = {(name, number % 3): 10 + number}
                client.submit(group, offset, sync=True, timeout=WAIT_S)
            return [client.name]

    for first in (0, 3):
        tasks = spark.sparkContext.parallelize(range(first, first + 3), 3)
        names = tasks.mapPartitions(submit).collect()
        assert len({*names, driver}) == 4
        assert all(each.startswith(f"{driver}.") for each in names)
        assert offsets_of(client.committed(group)) == {
            TopicPartition(name, number): 10 + first + number for number in range(3)
        }
    # What happened in the tasks has not closed the driver's own client.
    client.submit(group, {(name, 0): 99}, sync=True, timeout=WAIT_S)
