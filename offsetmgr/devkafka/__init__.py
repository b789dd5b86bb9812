"""A real Kafka on this machine for demos, tests and development: no Docker, no installation.

It needs Java 17 or newer, and the extras ``server`` and ``spark``: pyspark brings the tool that
fetches Kafka's jars, once per machine.
"""

from __future__ import annotations

from offsetmgr.extras import naming_extra

with naming_extra(__name__):
    from offsetmgr.devkafka.cluster import Broker, DevKafka
    from offsetmgr.devkafka.command import run_dev_kafka
    from offsetmgr.devkafka.jars import KAFKA_VERSION, consumer_groups, kafka_jars, spark_kafka_jars
    from offsetmgr.devkafka.process import DevKafkaError

__all__ = [
    "KAFKA_VERSION",
    "Broker",
    "DevKafka",
    "DevKafkaError",
    "consumer_groups",
    "kafka_jars",
    "run_dev_kafka",
    "spark_kafka_jars",
]
