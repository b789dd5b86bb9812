# pip install 'offsetmgr[kafka]'
"""Process orders in a pool of workers, with retries and a dead-letter topic, until Ctrl-C.

It first writes some orders to a topic of its own, one of which cannot be processed: after three
retries it is a dead letter, which ``offsetmgr dlq show order-processor.dlq`` prints.
"""

from __future__ import annotations

import argparse
import json
import logging

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from offsetmgr.consumer import AckConsumer, AckMessage, AckSettings, RetryPolicy

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--bootstrap-servers", default="localhost:9092")
parser.add_argument("--topic", default="orders-to-process")
parser.add_argument("--group", default="order-processor")
parser.add_argument("--orders", type=int, default=20, help="how many to write")
parser.add_argument("--delays", type=float, nargs="*", default=[1, 5, 30], metavar="SECONDS")
given = parser.parse_args()
servers, topics = given.bootstrap_servers, [given.topic]
IMPOSSIBLE = 3
logging.basicConfig(level=logging.INFO, format="%(message)s")

admin = AdminClient({"bootstrap.servers": servers})
created = admin.create_topics([NewTopic(given.topic, 4)])
created[given.topic].exception()  # the second run finds it there
producer = Producer({"bootstrap.servers": servers})
for number in range(given.orders):
    order = {"order_id": number, "amount": 0 if number == IMPOSSIBLE else 5}
    producer.produce(given.topic, json.dumps(order), key=f"customer-{number % 5}")
producer.flush()


def process(message: AckMessage) -> None:
    """Raise an error for an order that cannot be processed."""
    order = json.loads(message.value() or b"null")
    if order["amount"] <= 0:
        raise ValueError(f"amount {order['amount']} is not possible")
    # Messages are handled in several threads: one write for the whole line.
    print(f"order {order['order_id']} in try {message.tries}\n", end="")


# Again after each of the delays, then to the dead-letter topic order-processor.dlq.
settings = AckSettings(retry=RetryPolicy(delays_s=tuple(given.delays)))
with AckConsumer(servers, given.group, topics, settings=settings) as consumer:
    try:
        consumer.run(process, workers=16, ordered_by="key")
    except KeyboardInterrupt:
        print("stopping")
