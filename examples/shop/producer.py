# pip install 'offsetmgr[kafka,streams]'
"""The web site of the shop: writes prices into a table's topic, then orders until it is stopped."""

from __future__ import annotations

import argparse
import itertools
import json
import time
from datetime import datetime, timezone

from confluent_kafka import Producer

from offsetmgr.streams import TopicManager, codecs, kafka_emitter

PRICES = {"bicycle": 499.0, "helmet": 59.0, "lamp": 25.0, "lock": 39.0, "pump": 30.0}
UNPAID = 200
"""One order in so many has no amount: a mistake of the web site, for the dead letters."""

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--bootstrap-servers", default="localhost:9092")
parser.add_argument("--rate", type=float, default=20.0, help="orders in a second")
parser.add_argument("--orders", type=int, help="stop after so many")
options = parser.parse_args()
servers = options.bootstrap_servers

with TopicManager(servers) as topics:
    topics.ensure_stream("orders", 4)
    topics.ensure_table("prices", 4)
with kafka_emitter(servers, "prices", codecs.Json()) as emitter:
    for product, price in PRICES.items():
        emitter.emit(product, {"price": price})
print(f"the shop is open, with {len(PRICES)} products", flush=True)

producer = Producer({"bootstrap.servers": servers})
products = list(PRICES)
for number in itertools.islice(itertools.count(1), options.orders):
    customer, product = f"customer-{number * 7 % 50}", products[number % len(products)]
    order = {
        "order_id": number,
        "placed_at": datetime.now(timezone.utc).isoformat(),
        "customer": customer,
        "product": product,
        "amount": 0 if number % UNPAID == 1 else PRICES[product],
    }
    producer.produce("orders", json.dumps(order), key=customer)
    producer.poll(0)
    if number % 100 == 0:
        print(f"{number:,} orders", flush=True)
    time.sleep(1 / options.rate)
producer.flush()
