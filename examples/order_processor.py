"""Process orders in a pool of workers, with retries and a dead-letter topic."""

import json
import logging
import sys

from offsetmgr.consumer import AckConsumer, AckMessage, AckSettings, RetryPolicy

brokers = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
logging.basicConfig(level=logging.INFO, format="%(message)s")


def process(message: AckMessage) -> None:
    """Raise where an order cannot be processed."""
    order = json.loads(message.value() or b"null")
    if order["amount"] <= 0:
        raise ValueError(f"amount {order['amount']} is not possible")
    print(f"order {order['order_id']} in try {message.tries}")


# After 1, 5 and 30 seconds again; then to the dead-letter topic order-processor.dlq.
settings = AckSettings(retry=RetryPolicy(delays_s=(1, 5, 30)))
with AckConsumer(brokers, "order-processor", ["orders"], settings=settings) as consumer:
    try:
        consumer.run(process, workers=16, ordered_by="key")  # until Ctrl-C
    except KeyboardInterrupt:
        print("stopping")
