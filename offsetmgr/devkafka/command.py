"""The command ``offsetmgr dev-kafka``."""

from __future__ import annotations

import select
import signal
from typing import TYPE_CHECKING, Final

from offsetmgr.devkafka.cluster import DevKafka
from offsetmgr.devkafka.jars import KAFKA_VERSION

if TYPE_CHECKING:
    from pathlib import Path

_END_S: Final = 5.0


def run_dev_kafka(*, brokers: int = 1, port: int = 9092, data_dir: Path | None = None) -> int:
    """Run a local Kafka until SIGINT or SIGTERM; return the exit status.

    Broker 1 listens on ``port``, the others on the ports after it.  Raises InvalidValueError and
    DevKafkaError where it cannot start, or where a broker ends by itself.  To be called in the
    main thread.
    """
    # SIGINT too: a shell lets what it starts in the background ignore it.
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    kafka = DevKafka(
        brokers=brokers, data_dir=data_dir, ports=range(port, port + brokers), log=_say
    )
    try:
        with kafka:
            _say(f"Kafka {KAFKA_VERSION} is ready: {kafka.bootstrap_servers}")
            _say(f"Its data is kept in {data_dir}." if data_dir else "Its data goes when it stops.")
            _say("Ctrl-C stops it.")
            ended, _, _ = select.select([broker.process for broker in kafka.brokers], [], [])
            for process in ended:
                process.wait(_END_S)
            for broker in kafka.brokers:
                broker.check_alive()
    except KeyboardInterrupt:
        _say("Kafka has stopped.")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _say(line: str) -> None:
    # At once, for whoever reads through a pipe.
    print(line, flush=True)  # noqa: T201 -- it is the command's output
