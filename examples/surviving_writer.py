# pip install 'offsetmgr[kafka]'
"""Write orders to a primary cluster, and to its backup while the primary is down.

Start two: ``offsetmgr dev-kafka --topic orders:4``, and the same with ``--port 9192``.  Stop the
first while this writes.
"""

from __future__ import annotations

import argparse
import json
import logging
import time

from offsetmgr.clusters import MultiClusterWriter, ProducerRecord, WriteErrors, WriterSettings

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--bootstrap-servers", default="localhost:9092", help="of the primary")
parser.add_argument("--backup", default="localhost:9192", help="bootstrap servers of the backup")
parser.add_argument("--topic", default="orders")
parser.add_argument("--orders", type=int, default=500)
given = parser.parse_args()
logging.basicConfig(level=logging.INFO, format="%(message)s")  # a line for each change of cluster

clusters = {"west": given.bootstrap_servers, "east": given.backup}
settings = WriterSettings(fail_over_s=3, fail_back_s=30)
with MultiClusterWriter(clusters, given.topic, settings=settings) as writer:
    for start in range(0, given.orders, 10):
        orders = [
            ProducerRecord(json.dumps({"order_id": number, "amount": 5}), key=str(number % 100))
            for number in range(start, start + 10)
        ]
        while orders:
            try:
                writer.write_messages(orders)
                orders = []
            except WriteErrors as failed:  # both clusters are down
                print(failed)
                orders = [
                    order
                    for order, error in zip(orders, failed.errors, strict=True)
                    if error is not None
                ]
                time.sleep(1)
        print(f"written up to order {start + 9}", flush=True)
    for name, figures in writer.stats().items():
        print(f"{name}: {figures.written} written, {figures.failed} failed")
