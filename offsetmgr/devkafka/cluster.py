"""A local Kafka of one or three brokers (KRaft), and the faults its brokers can be given."""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import socket
import string
import tempfile
from concurrent.futures import wait
from pathlib import Path
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from offsetmgr.deadlines import Deadline
from offsetmgr.devkafka.jars import KAFKA_VERSION, java_command
from offsetmgr.devkafka.process import DevKafkaError, WatchedProcess, log_tail, run_tool
from offsetmgr.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from typing_extensions import Self

HOST: Final = "127.0.0.1"

# An outgoing connection could take the port of a broker that is down, or connect to itself.
_PORTS: Final = range(20_000, 32_768)

_HEAP_MB: Final = 512
_START_S: Final = 180.0
_STOP_S: Final = 20.0
_ANSWER_S: Final = 0.5

_CLUSTER_ID: Final = "offsetmgr-dev-kafka-0A"
_PROPERTIES: Final = "server.properties"
_DATA: Final = "data"

# librdkafka may abort the process if a coordinator answers after its time-out.
_NEVER_S: Final = 3_600.0
# It does not always go on with a request whose coordinator was just being elected.
_STUCK_S: Final = 10.0
# The answer of a coordinator at work.
_SERVED: Final = KafkaError.GROUP_ID_NOT_FOUND


class Broker:
    """A broker that can be killed, paused, stopped and started again, with its port and data."""

    def __init__(
        self,
        node_id: int,
        port: int,
        folder: Path,
        properties: Mapping[str, str],
        java: Sequence[str],
    ) -> None:
        """``java`` is the command line up to the main class; ``log.dirs`` is added."""
        self.node_id = node_id
        self.bootstrap_server = f"{HOST}:{port}"
        self.log_path = folder / "broker.log"
        self._folder = folder
        self._java = java
        self._process: WatchedProcess | None = None
        folder.mkdir(parents=True, exist_ok=True)
        # Relative to its working folder: no path is to be escaped.
        lines = {**properties, "log.dirs": _DATA}
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        (folder / _PROPERTIES).write_text(text)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running()

    @property
    def pid(self) -> int:
        return self._running_process().pid

    def _running_process(self) -> WatchedProcess:
        if self._process is None or not self._process.running():
            raise DevKafkaError(f"broker {self.node_id} is not running: start() it first")
        return self._process

    def launch(self) -> None:
        """Start the process and return at once, however long its start takes."""
        if self.running:
            raise DevKafkaError(f"broker {self.node_id} runs already")
        if not (self._folder / _DATA).exists():
            tool = ("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", _PROPERTIES)
            done = run_tool("the storage tool", [*self._java, *tool], _START_S, cwd=self._folder)
            self.log_path.write_text(f"{done.stdout}{done.stderr}")
            if done.returncode != 0:
                raise self._failed("could not prepare its storage")
        command = [*self._java, "kafka.Kafka", _PROPERTIES]
        self._process = WatchedProcess(command, cwd=self._folder, log_path=self.log_path)

    def start(self, timeout_s: float = _START_S) -> None:
        """Start the broker and wait until it answers.  Raises DevKafkaError."""
        self.launch()
        self.await_ready(Deadline(timeout_s, "timeout_s"))

    def await_ready(self, deadline: Deadline) -> None:
        """Wait until the broker answers clients and is in the cluster.  Raises DevKafkaError."""
        admin = quiet_admin(self.bootstrap_server)
        for _ in deadline.polls():
            self.check_alive()
            with contextlib.suppress(KafkaException):
                if self.node_id in admin.list_topics(timeout=_ANSWER_S).brokers:
                    return
        raise self._failed(f"did not answer on {self.bootstrap_server} in time")

    def check_alive(self) -> None:
        """Raise DevKafkaError if the broker has ended, with the end of its log."""
        status = self._process.status() if self._process else None
        if status is not None:
            raise self._failed(f"ended by itself (exit status {status})")

    def stop(self, timeout_s: float = _STOP_S) -> None:
        """Shut the broker down in order, paused or not; kill it after ``timeout_s``."""
        if self._process is not None:
            self._process.signal(signal.SIGTERM)
            self._process.signal(signal.SIGCONT)
            self._process.wait(timeout_s)
            self._process.close()

    def kill(self) -> None:
        """Kill the broker on the spot (SIGKILL), as a crash does."""
        self._running_process().close()

    def pause(self) -> None:
        """Freeze the broker: its connections stay, and nothing is answered from now on."""
        process = self._running_process()
        process.signal(signal.SIGSTOP)
        threads = Path(f"/proc/{process.pid}/task")  # where there is none, it is not waited for
        for _ in Deadline(_STOP_S).polls():
            with contextlib.suppress(OSError):  # of a thread that has just ended
                texts = [each.read_text() for each in threads.glob("*/stat")]
                if all(text.rpartition(") ")[2].startswith("T") for text in texts):
                    return

    def resume(self) -> None:
        self._running_process().signal(signal.SIGCONT)

    def _failed(self, what: str) -> DevKafkaError:
        return DevKafkaError(f"broker {self.node_id} {what}; {log_tail(self.log_path)}")


class DevKafka:
    """A real Kafka on 127.0.0.1, gone when it is stopped or when its owner ends, however.

    ::

        with DevKafka() as kafka:
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        data_dir: Path | None = None,
        ports: Sequence[int] | None = None,
        properties: Mapping[str, str] | None = None,
        log: Callable[[str], None] | None = None,
        version: str = KAFKA_VERSION,
    ) -> None:
        """Describe a Kafka of 1 broker or 3; ``start`` or ``with`` starts it.

        Logs and data are kept in ``data_dir``, a new folder, by default in a temporary one.
        ``ports`` are the brokers', free ones by default.  ``properties`` are added to every
        broker's server.properties, and ``log`` is called before what takes long.  ``version`` is a
        release of Kafka, 3.3.1 or newer.  Raises InvalidValueError.
        """
        if brokers not in {1, 3}:
            problem = "is not a size of a local Kafka"
            raise InvalidValueError("brokers", brokers, problem, "give 1 broker or 3")
        self._size = brokers
        self._data_dir = data_dir
        self._ports = ports
        self._properties = properties or {}
        self._log = log
        self._version = version
        self._brokers: list[Broker] = []
        self._cleanup = contextlib.ExitStack()

    def start(self, timeout_s: float = _START_S) -> None:
        """Start all brokers and wait until clients and groups are served.

        ``timeout_s`` does not count the fetch of Kafka, at the first start on a machine.  Raises
        InvalidValueError for ports that are in use, and DevKafkaError, with the tail of a broker's
        log, if Kafka does not start; nothing is left running then.
        """
        if self._brokers:
            raise DevKafkaError(f"this Kafka runs already, on {self.bootstrap_servers}")
        command = java_command(f"-Xmx{_HEAP_MB}m", log=self._log, version=self._version)
        deadline = Deadline(timeout_s, "timeout_s")
        ports = tuple(self._ports or free_ports(self._size))
        for port in ports:
            if not _is_free(port):
                fix = "stop the program that listens there, or choose another with --port"
                raise InvalidValueError("port", port, "is in use", fix)
        controllers = free_ports(self._size, but=ports)
        with contextlib.ExitStack() as unwind:
            folder = self._data_dir
            if folder is None:
                temporary = tempfile.TemporaryDirectory(prefix="offsetmgr-kafka-")
                folder = Path(unwind.enter_context(temporary))
            brokers = []
            for node_id, port in enumerate(ports, start=1):
                properties = {**_properties(node_id, port, controllers), **self._properties}
                place = folder.absolute() / f"broker-{node_id}"
                brokers.append(Broker(node_id, port, place, properties, command))
                unwind.callback(brokers[-1].stop, 0.0)  # killed: its data is not used again
                brokers[-1].launch()
            for broker in brokers:
                broker.await_ready(deadline)
            _await_groups(brokers, deadline)
            self._brokers = brokers
            self._cleanup = unwind.pop_all()

    def stop(self) -> None:
        """Kill all brokers and clean up; harmless if nothing runs."""
        self._brokers = []
        self._cleanup.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses for clients.  Raises DevKafkaError if the Kafka is not started."""
        return ",".join(broker.bootstrap_server for broker in self.brokers)

    @property
    def brokers(self) -> tuple[Broker, ...]:
        """All brokers, also those that are down.  Raises DevKafkaError as above."""
        if not self._brokers:
            raise DevKafkaError("this Kafka is not started: call start() first")
        return tuple(self._brokers)

    def broker(self, node_id: int) -> Broker:
        return self.brokers[node_id - 1]


def quiet_admin(bootstrap_servers: str) -> AdminClient:
    """Return a client for waiting on brokers: it looks often, and is silent while they are away."""
    return AdminClient(
        {
            "bootstrap.servers": bootstrap_servers,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )


def free_ports(count: int, but: Collection[int] = ()) -> tuple[int, ...]:
    """Return ``count`` ports that nothing listens on, and none of ``but``."""
    candidates = random.SystemRandom().sample(_PORTS, len(_PORTS))
    free = (port for port in candidates if port not in but and _is_free(port))
    return tuple(itertools.islice(free, count))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Kafka does: the leftovers of closed connections do not count as use.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _properties(node_id: int, port: int, controllers: Sequence[int]) -> dict[str, str]:
    replicas = str(len(controllers))
    in_sync = str(min(2, len(controllers)))
    address = f"PLAINTEXT://{HOST}:{port}"
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(
            f"{voter}@{HOST}:{voter_port}" for voter, voter_port in enumerate(controllers, start=1)
        ),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{address},CONTROLLER://{HOST}:{controllers[node_id - 1]}",
        "advertised.listeners": address,
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
        "broker.session.timeout.ms": "3000",
        # A quarter of the processor time of a Kafka that nobody uses.
        "metadata.max.idle.interval.ms": "0",
        # A broker gives up its start after this, 60 s by default, which a busy machine may need.
        "initial.broker.registration.timeout.ms": f"{_START_S * 1_000:.0f}",
        # 128 MB by default, taken at once.
        "log.cleaner.dedupe.buffer.size": "8388608",
    }


def _await_groups(brokers: Sequence[Broker], deadline: Deadline) -> None:
    """Wait until every group has a coordinator.

    The first question about a group makes Kafka create its offsets topic.  Groups whose names are
    one letter fall on every partition of that topic: the hashes of neighbours differ by one.
    """
    servers = ",".join(broker.bootstrap_server for broker in brokers)
    groups = list(string.ascii_lowercase)
    for _ in deadline.polls():
        for broker in brokers:
            broker.check_alive()
        admin = quiet_admin(servers)
        asked = admin.describe_consumer_groups(groups, request_timeout=_NEVER_S)
        answered, missing = wait(asked.values(), deadline.within_s(_STUCK_S))
        errors = [error for error in (each.exception() for each in answered) if error]
        if not missing and all(error.args[0].code() == _SERVED for error in errors):
            return
    tail = log_tail(brokers[0].log_path)
    raise DevKafkaError(f"Kafka has started, but its groups have no coordinator; broker 1: {tail}")
