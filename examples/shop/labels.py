# pip install 'offsetmgr[kafka]'
"""The shipping labels: a consumer that acknowledges each order by itself, in any order.

An order without an amount is tried again after one and five seconds; then it is a dead letter.
"""

from __future__ import annotations

import argparse
import json
import logging

from offsetmgr.consumer import AckConsumer, AckMessage, AckSettings, RetryPolicy

GROUP = "shop-labels"

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--bootstrap-servers", default="localhost:9092")
options = parser.parse_args()
logging.basicConfig(level=logging.INFO, format="%(message)s")


def label(message: AckMessage) -> None:
    """Print the label of an order: the return is the ack, an error means another try."""
    order = json.loads(message.value() or b"null")
    if not order["amount"]:
        raise ValueError(f"order {order['order_id']} is not paid")
    print(f"{order['customer']}: {order['product']} (order {order['order_id']})", flush=True)


settings = AckSettings(retry=RetryPolicy(delays_s=(1, 5)))
with AckConsumer(options.bootstrap_servers, GROUP, ["orders"], settings=settings) as consumer:
    try:
        consumer.run(label, workers=8, ordered_by="key")
    except KeyboardInterrupt:
        print("stopping")
