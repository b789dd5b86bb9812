"""Counts what the demo's Spark job wrote, and reads what Kafka's own tool says."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from offsetmgr.demo.orders import Sales

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Counted(NamedTuple):
    """What the Parquet files hold."""

    sales: Sales
    times: Counter[str]
    """How many times each order was counted, by its id."""


def count_sales(folders: Iterable[Path]) -> Counted:
    """Read everything the job wrote into ``folders``."""
    from pyarrow import parquet  # noqa: PLC0415 -- the demo says itself what to install

    sales, times = Sales(), Counter[str]()
    for path in sorted(path for folder in folders for path in folder.glob("batch=*/*.parquet")):
        for row in parquet.read_table(path).to_pylist():
            sales.add(row["country"], row["orders"], int(row["revenue"] * 100))
            times.update(row["order_ids"])
    return Counted(sales, times)


def read_lags(described: str, topic: str) -> dict[int, str]:
    """The LAG column of ``kafka-consumer-groups --describe``: partition → what it says."""
    rows = [line.split() for line in described.splitlines()]
    header = next((row for row in rows if "LAG" in row and "PARTITION" in row), [])
    if not header:
        return {}
    partition, lag, name = (header.index(word) for word in ("PARTITION", "LAG", "TOPIC"))
    return {
        int(row[partition]): row[lag]
        for row in rows
        if len(row) > max(partition, lag) and row[name] == topic
    }
