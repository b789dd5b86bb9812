"""Fetches all jars ahead of their first use: ``python -m offsetmgr.devkafka.fetch``."""

from __future__ import annotations

import sys

from offsetmgr.devkafka.errors import DevKafkaError
from offsetmgr.devkafka.jars import kafka_jars, spark_kafka_jars


def main() -> int:
    """Fetch what is not in the cache yet; return the exit status."""
    try:
        for jars in (kafka_jars, spark_kafka_jars):
            jars(log=print)
    except DevKafkaError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
