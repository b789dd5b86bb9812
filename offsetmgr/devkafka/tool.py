"""Kafka's own kafka-consumer-groups, for whoever wants a second opinion on a group."""

from __future__ import annotations

import subprocess
from typing import Final

from offsetmgr.devkafka.broker import java_command
from offsetmgr.devkafka.errors import DevKafkaError
from offsetmgr.devkafka.jars import kafka_jars
from offsetmgr.devkafka.java import find_java

_TOOL: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_TIMEOUT_S: Final = 60.0


def consumer_groups(bootstrap_servers: str, *args: str) -> str:
    """Run ``kafka-consumer-groups`` with ``args`` and return what it prints.

    ``consumer_groups("127.0.0.1:9092", "--describe", "--group", "orders-etl")``.  Raises
    DevKafkaError, with its output, where the tool fails or takes longer than a minute.
    """
    command = [
        # For a second or two of work the full compiler never pays off.
        *java_command(find_java(), kafka_jars(), "-XX:TieredStopAtLevel=1"),
        _TOOL,
        "--bootstrap-server",
        bootstrap_servers,
        *args,
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        message = (
            f"kafka-consumer-groups took longer than {_TIMEOUT_S:.0f} s: check that Kafka "
            f"answers on {bootstrap_servers}"
        )
        raise DevKafkaError(message) from error
    # It reports some failures on standard output, with the exit status 0.
    if done.returncode != 0 or done.stdout.lstrip().startswith("Error:"):
        message = f"kafka-consumer-groups {' '.join(args)} failed:\n{done.stdout}{done.stderr}"
        raise DevKafkaError(message)
    return done.stdout
