"""A member of a group as a process of its own: stores each message as a row, exactly once.

``database_member.py BROKERS GROUP TOPIC DATABASE``; it goes on until it is killed.
"""

from __future__ import annotations

import sys

from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, insert

from offsetmgr.consumer import ConsumerSettings, GroupConsumer
from offsetmgr.stores.sql import SqlOffsetStore

TABLES = MetaData()
RESULTS = Table(
    "results",
    TABLES,
    # Without a key: a message that is stored twice is there twice.
    Column("partition_id", Integer),
    Column("message_offset", BigInteger),
    Column("number", BigInteger),
)
BATCH = 50


def main(brokers: str, group: str, topic: str, database: str) -> None:
    kafka = {"bootstrap.servers": brokers, "session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
    settings = ConsumerSettings(commit_interval_s=0.1, away_s=0.1)
    with SqlOffsetStore(database) as store:
        consumer = GroupConsumer(kafka, group, [topic], settings=settings, store=store)
        with consumer:
            for batch in consumer.batches(BATCH, 0.05):
                with store.engine.begin() as connection, store.transaction(connection) as offsets:
                    new = offsets.new_messages(group, batch)
                    rows = [
                        {
                            "partition_id": each.partition(),
                            "message_offset": each.offset(),
                            "number": int(each.value() or b""),
                        }
                        for each in new
                    ]
                    if rows:
                        connection.execute(insert(RESULTS), rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
