"""Fetches all jars ahead of their first use: ``python -m offsetmgr.devkafka``."""

from __future__ import annotations

import sys

from offsetmgr.devkafka.jars import kafka_jars, spark_kafka_jars
from offsetmgr.devkafka.process import DevKafkaError

if __name__ == "__main__":
    try:
        for fetch in (kafka_jars, spark_kafka_jars):
            fetch(log=print)
    except DevKafkaError as error:
        sys.exit(str(error))
