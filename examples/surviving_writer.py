"""Write orders to a primary cluster, and to its backup while the primary is down.

python surviving_writer.py localhost:9092 localhost:9192 orders
"""

import json
import logging
import sys
import time

from offsetmgr.clusters import MultiClusterWriter, ProducerRecord, WriteErrors, WriterSettings

west, east, topic = sys.argv[1:] or ("localhost:9092", "localhost:9192", "orders")
ORDERS = 500
logging.basicConfig(level=logging.INFO, format="%(message)s")  # a line for each change of cluster

settings = WriterSettings(fail_over_s=3, fail_back_s=30)
with MultiClusterWriter({"west": west, "east": east}, topic, settings=settings) as writer:
    for start in range(0, ORDERS, 10):
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
