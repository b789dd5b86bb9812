# pip install 'offsetmgr[sql]'
"""Orders into a table of PostgreSQL by a consumer, each exactly once.

Rows and offsets are committed in one transaction, so a killed consumer leaves neither rows without
offsets nor offsets without rows.  Runs until it is stopped (Ctrl-C or SIGTERM), or for
``--records`` messages.

Needs a database: ``createdb orders``, or another one by ``--database``.
"""

from __future__ import annotations

import argparse
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import Column, MetaData, Table, Text, func, insert, select

from offsetmgr.consumer import GroupConsumer
from offsetmgr.stores.sql import SqlOffsetStore

if TYPE_CHECKING:
    from confluent_kafka import Message
    from sqlalchemy import Connection

    from offsetmgr.stores.sql import OffsetTransaction

TABLES = MetaData()
MESSAGES = Table("messages", TABLES, Column("value", Text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--group", default="orders-table")
    parser.add_argument("--database", default="postgresql+psycopg:///orders")
    parser.add_argument("--records", type=int, help="stop after so many")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    store = SqlOffsetStore(given.database)
    store.create_tables()
    TABLES.create_all(store.engine)

    def write(batch: list[Message], connection: Connection, offsets: OffsetTransaction) -> None:
        new = offsets.new_messages(given.group, batch)
        if new:
            rows = [{"value": (message.value() or b"").decode()} for message in new]
            connection.execute(insert(MESSAGES), rows)

    read = 0
    servers, topics = given.bootstrap_servers, [given.topic]
    with GroupConsumer(servers, given.group, topics, store=store) as consumer:
        for batch in consumer.batches(max_records=500, max_wait_s=1.0):
            # Called again, in a new transaction, while the database fails.
            store.run(partial(write, batch))
            read += len(batch)
            print(f"{read:,} messages read", flush=True)
            if given.records is not None and read >= given.records:
                break
    with store.engine.connect() as connection:
        rows = connection.scalar(select(func.count()).select_from(MESSAGES))
    print(f"{rows:,} messages in the table")
    store.close()


if __name__ == "__main__":
    main()
