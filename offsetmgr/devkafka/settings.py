"""Decides how the brokers of a local Kafka are set up: ports, folders, properties."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import random
import re
import socket
import uuid
from typing import TYPE_CHECKING, Final

from offsetmgr.devkafka.broker import HOST, Broker, BrokerSetup, java_command
from offsetmgr.devkafka.errors import DevKafkaError
from offsetmgr.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from offsetmgr.devkafka.security import Secured

# Below the ports that the system gives to outgoing connections: one of those could take the port
# of a broker that is down, and a client that knocks on such a port can even connect to itself.
_PORTS: Final = range(20_000, 32_768)
_PORT_TRIES: Final = 1_000

SIZES: Final = (1, 3)


def check_brokers(brokers: int) -> int:
    """Return ``brokers``.  Raises InvalidValueError for any but 1 and 3."""
    if brokers not in SIZES:
        raise InvalidValueError(
            "brokers", brokers, "is not a size of a local Kafka", "give 1 broker or 3"
        )
    return brokers


def check_ports(ports: Sequence[int], brokers: int) -> tuple[int, ...]:
    """Return ``ports``: one for each broker, free.  Raises InvalidValueError."""
    if len(ports) != brokers or len(set(ports)) != brokers:
        raise InvalidValueError(
            "ports", list(ports), f"are not {brokers} different ports", "give one for each broker"
        )
    for port in ports:
        if not 0 < port < 1 << 16:
            raise InvalidValueError("ports", port, "is no port", "give 1 to 65535")
        if not _is_free(port):
            raise InvalidValueError(
                "ports",
                port,
                f"is in use on {HOST}",
                "stop what listens there, or give another port",
            )
    return tuple(ports)


def free_ports(count: int) -> tuple[int, ...]:
    """Return ``count`` ports that nothing listens on.  Raises DevKafkaError without any."""
    candidates = random.SystemRandom().sample(_PORTS, _PORT_TRIES)
    found = tuple(port for port, _ in zip(filter(_is_free, candidates), range(count), strict=False))
    if len(found) < count:
        message = f"found no {count} free ports from {_PORTS.start} to {_PORTS.stop - 1} on {HOST}"
        raise DevKafkaError(message)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Kafka does: the leftovers of closed connections do not count as use.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def check_data_dir(data_dir: Path, brokers: int) -> Path:
    """Return ``data_dir``, made where it is missing.

    Raises InvalidValueError where it is no folder to write in, or holds another number of
    brokers.
    """
    folder = data_dir.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable-{uuid.uuid4().hex}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InvalidValueError(
            "data_dir",
            str(data_dir),
            f"cannot hold Kafka's data ({error.strerror})",
            "give a folder that can be written",
        ) from error
    held = len(list(folder.glob("broker-*/data/meta.properties")))
    if held not in (0, brokers):
        raise InvalidValueError(
            "data_dir",
            str(data_dir),
            f"holds the data of {held} broker(s), not of {brokers}",
            f"start {held}, or give another folder",
        )
    return folder


@contextlib.contextmanager
def lock_data_dir(folder: Path) -> Iterator[None]:
    """Keep ``folder`` for one Kafka; raise InvalidValueError where another one has it.

    Kafka's own lock comes too late: a second broker writes to the metadata log before it.
    """
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InvalidValueError(
                "data_dir",
                str(folder),
                "is in use by another Kafka",
                "stop that one, or give another folder",
            ) from error
        yield


def cluster_id(folder: Path) -> str:
    """Return the id of the cluster whose data ``folder`` holds, or a new one."""
    for meta in folder.glob("broker-*/data/meta.properties"):
        found = re.search(r"^cluster\.id=(.*)$", meta.read_text(), re.MULTILINE)
        if found:
            return found.group(1)
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def make_brokers(
    folder: Path,
    ports: Sequence[int],
    java: str,
    jars: Sequence[Path],
    properties: Mapping[str, str],
    heap_mb: int,
    secured: Secured | None,
) -> list[Broker]:
    """Describe one broker for each of ``ports``, each also a controller of the cluster.

    ``secured`` is the listener for users with a password, where there is one.
    """
    controllers = free_ports(len(ports))
    command = java_command(java, jars, f"-Xmx{heap_mb}m")
    return [
        Broker(
            BrokerSetup(
                node_id=node_id,
                port=port,
                folder=folder / f"broker-{node_id}",
                properties={**_properties(node_id, port, controllers, secured), **properties},
                java=command,
            )
        )
        for node_id, port in enumerate(ports, start=1)
    ]


def _properties(
    node_id: int, port: int, controllers: Sequence[int], secured: Secured | None
) -> dict[str, str]:
    plain = _plain_properties(node_id, port, controllers)
    added = {} if secured is None else secured.properties(node_id)
    for name in ("listeners", "advertised.listeners"):
        if name in added:
            added[name] = f"{plain[name]},{added[name]}"
    return {**plain, **added}


def _plain_properties(node_id: int, port: int, controllers: Sequence[int]) -> dict[str, str]:
    replicas = str(len(controllers))
    in_sync = str(min(2, len(controllers)))
    listener = f"PLAINTEXT://{HOST}:{port}"
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(
            f"{voter}@{HOST}:{voter_port}" for voter, voter_port in enumerate(controllers, start=1)
        ),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{listener},CONTROLLER://{HOST}:{controllers[node_id - 1]}",
        "advertised.listeners": listener,
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.num.partitions": "8",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": "8",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "8",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        # A group of one's own machine has no other members to wait for.
        "group.initial.rebalance.delay.ms": "0",
        # A killed broker may only come back when its old session has run out: 9 s by default.
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "2000",
        # 128 MB by default, taken at once.
        "log.cleaner.dedupe.buffer.size": "8388608",
    }
