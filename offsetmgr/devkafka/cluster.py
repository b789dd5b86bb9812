"""A local Kafka of one or three brokers (KRaft), and the faults its brokers can be given."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import random
import re
import signal
import socket
import string
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from offsetmgr.devkafka.jars import consumer_groups, find_java, java_command, kafka_jars, silent
from offsetmgr.devkafka.process import DevKafkaError, WatchedProcess, log_tail, run_tool
from offsetmgr.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from typing_extensions import Self

HOST: Final = "127.0.0.1"

# Below the ports that the system gives to outgoing connections: one of those could take the port
# of a broker that is down, and a client that knocks on such a port can even connect to itself.
_PORTS: Final = range(20_000, 32_768)

_SS_S: Final = 5.0

_HEAP_MB: Final = 512
_START_S: Final = 180.0
_STOP_S: Final = 20.0
_FORMAT_S: Final = 180.0
_ANSWER_S: Final = 0.5
_POLL_S: Final = 0.05

_PROPERTIES: Final = "server.properties"
# Relative to the broker's folder, which is its working folder: no path needs to be escaped.
_DATA: Final = "data"
_META: Final = f"broker-*/{_DATA}/meta.properties"

# Groups whose names are one letter fall on every partition of the offsets topic, and so on every
# coordinator: the hashes of neighbours differ by one.
_PROBE_GROUPS: Final = tuple(string.ascii_lowercase)
# librdkafka may abort the process where a coordinator answers after librdkafka has stopped waiting
# for it, as on a busy machine.  So it never stops, and the deadline is kept here.
_NEVER_S: Final = 3_600.0
# Nor does it always go on by itself with a request whose coordinator was just being elected.
_STUCK_S: Final = 10.0
# Any other answer comes from a coordinator at work, also that there is no such group.
_UNSERVED: Final = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError._TIMED_OUT,  # noqa: SLF001 -- the public name of a code of librdkafka's own
        KafkaError._TRANSPORT,  # noqa: SLF001 -- the same
    }
)


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
        self._properties = properties
        self._java = java
        self._process: WatchedProcess | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running()

    @property
    def process(self) -> WatchedProcess:
        """Its running process.  Raises DevKafkaError where there is none."""
        if self._process is None or not self._process.running():
            raise DevKafkaError(f"broker {self.node_id} is not running: start() it first")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def format(self, cluster_id: str) -> None:
        if (self._folder / _DATA / "meta.properties").exists():
            return
        self._write_properties()
        tool = ("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", _PROPERTIES)
        name, advice = "Kafka's storage tool", "is the machine very busy?"
        command = [*self._java, *tool]
        done = run_tool(name, command, timeout_s=_FORMAT_S, advice=advice, cwd=self._folder)
        self.log_path.write_text(f"{done.stdout}{done.stderr}")
        if done.returncode != 0:
            raise self._failed("could not prepare its storage")

    def launch(self) -> None:
        """Start the process and return at once; ``await_ready`` waits for it."""
        if self.running:
            raise DevKafkaError(f"broker {self.node_id} runs already, as process {self.pid}")
        self._release()
        self._write_properties()
        command = [*self._java, "kafka.Kafka", _PROPERTIES]
        self._process = WatchedProcess(command, cwd=self._folder, log_path=self.log_path)

    def await_ready(self, deadline: float) -> None:
        """Wait until the broker answers clients and is a member of the cluster.

        ``deadline`` is of ``time.monotonic``.  Raises DevKafkaError.
        """
        admin = quiet_admin(self.bootstrap_server)
        while time.monotonic() < deadline:
            self.check_alive()
            with contextlib.suppress(KafkaException):  # it has waited, up to its own timeout
                if self.node_id in admin.list_topics(timeout=_ANSWER_S).brokers:
                    return
                time.sleep(_POLL_S)
        raise self._failed(f"did not answer on {self.bootstrap_server} in time")

    def check_alive(self) -> None:
        """Raise DevKafkaError where the broker has ended: how, and the end of its log."""
        if not self.running:
            how = f" ({self._process.end()})" if self._process is not None else ""
            raise self._failed(f"ended by itself{how}")

    def start(self, timeout_s: float = _START_S) -> None:
        """Start the broker again and wait until it answers.  Raises DevKafkaError."""
        self.launch()
        self.await_ready(time.monotonic() + timeout_s)

    def stop(self, timeout_s: float = _STOP_S) -> None:
        """Shut the broker down in order, paused or not; kill it after ``timeout_s``."""
        if self._process is not None:
            self._process.signal(signal.SIGTERM)
            self._process.signal(signal.SIGCONT)
            self._process.wait(timeout_s)
            self._release()

    def kill(self) -> None:
        """Kill the broker on the spot (SIGKILL), as a crash does."""
        self.process.signal(signal.SIGKILL)
        self._release()

    def pause(self) -> None:
        """Freeze the broker: its connections stay and nothing is answered."""
        self.process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.signal(signal.SIGCONT)

    def _failed(self, what: str) -> DevKafkaError:
        return DevKafkaError(f"broker {self.node_id} {what}; {log_tail(self.log_path)}")

    def _release(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def _write_properties(self) -> None:
        lines = {**self._properties, "log.dirs": _DATA}
        text = "".join(f"{name}={_escaped(value)}\n" for name, value in lines.items())
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / _PROPERTIES).write_text(text)


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
        log: Callable[[str], None] = silent,
    ) -> None:
        """Describe a Kafka; ``start`` or ``with`` starts it.

        ``brokers`` is 1 or 3; each of three is also a controller.  ``data_dir`` is kept when the
        Kafka stops, and one that holds data goes on from there; without it the data lives in a
        temporary folder and goes with the Kafka.  ``ports`` are the brokers', free ones by
        default.  ``properties`` are added to every broker's server.properties, and ``log`` is told
        of what takes long.  Raises InvalidValueError.
        """
        if brokers not in {1, 3}:
            problem = "is not a size of a local Kafka"
            raise InvalidValueError("brokers", brokers, problem, "give 1 broker or 3")
        self._size = brokers
        self._data_dir = data_dir
        self._ports = ports
        self._properties = dict(properties or {})
        self._log = log
        self._brokers: list[Broker] = []
        self._cleanup = contextlib.ExitStack()

    def start(self, timeout_s: float = _START_S) -> None:
        """Start all brokers and wait until clients and groups are served.

        The first start on a machine also fetches Kafka, which takes about a minute and does not
        count for ``timeout_s``.  Raises InvalidValueError for ports or a folder that cannot be
        used, and DevKafkaError, with the tail of a broker's log, where Kafka does not come up;
        nothing is left running then.
        """
        if self._brokers:
            raise DevKafkaError(f"this Kafka runs already, on {self.bootstrap_servers}")
        java, jars = find_java(), kafka_jars(self._log)
        deadline = time.monotonic() + timeout_s
        with contextlib.ExitStack() as unwind:
            if self._data_dir is None:
                temporary = tempfile.TemporaryDirectory(prefix="offsetmgr-kafka-")
                folder = Path(unwind.enter_context(temporary))
            else:
                folder = _check_data_dir(self._data_dir, self._size)
                unwind.enter_context(_locked(folder))
            brokers = self._describe(folder, java, jars)
            cluster_id = _cluster_id(folder)
            with ThreadPoolExecutor(len(brokers)) as pool:
                list(pool.map(Broker.format, brokers, [cluster_id] * len(brokers)))
            for broker in brokers:
                broker.launch()
                unwind.callback(broker.stop, 0.0)
            for broker in brokers:
                broker.await_ready(deadline)
            _await_groups(brokers, deadline)
            self._brokers = brokers
            self._cleanup = unwind.pop_all()

    def _describe(self, folder: Path, java: str, jars: Sequence[Path]) -> list[Broker]:
        size = self._size
        ports = free_ports(size) if self._ports is None else _check_ports(self._ports, size)
        controllers = free_ports(size, but=ports)
        command = java_command(java, jars, f"-Xmx{_HEAP_MB}m")
        return [
            Broker(
                node_id,
                port,
                folder / f"broker-{node_id}",
                _properties(node_id, port, controllers) | self._properties,
                command,
            )
            for node_id, port in enumerate(ports, start=1)
        ]

    def stop(self, timeout_s: float = _STOP_S) -> None:
        """Shut all brokers down, kill those left after ``timeout_s``, and clean up.

        Those whose data goes with them are killed at once: nobody needs it in order.  Harmless
        where nothing runs.
        """
        brokers, self._brokers = self._brokers, []
        with self._cleanup:
            if self._data_dir is not None:
                _stop_in_order(brokers, time.monotonic() + timeout_s)

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

    def consumer_groups(self, *args: str) -> str:
        return consumer_groups(self.bootstrap_servers, *args)


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
    """Return ``count`` ports that nothing listens on, and none of ``but``.

    Raises DevKafkaError where there are too few.
    """
    candidates = random.SystemRandom().sample(_PORTS, len(_PORTS))
    free = (port for port in candidates if port not in but and _is_free(port))
    found = tuple(itertools.islice(free, count))
    if len(found) < count:
        raise DevKafkaError(
            f"found no {count} free ports from {_PORTS.start} to {_PORTS.stop - 1} on {HOST}"
        )
    return found


def _check_ports(ports: Sequence[int], brokers: int) -> tuple[int, ...]:
    """Return ``ports``: one for each broker, free.  Raises InvalidValueError."""
    if len(ports) != brokers or len(set(ports)) != brokers:
        problem = f"are not {brokers} different ports"
        raise InvalidValueError("ports", list(ports), problem, "give one for each broker")
    for port in ports:
        if not 0 < port < 1 << 16:
            raise InvalidValueError("port", port, "is not a port", "give 1 to 65535")
        if not _is_free(port):
            owner = _holder(port)
            problem = f"is in use by {owner}" if owner else "is in use"
            found = "" if owner else f" (ss -ltnp 'sport = :{port}' names the process)"
            fix = f"stop it{found}, or choose another with --port"
            raise InvalidValueError("port", port, problem, fix)
    return tuple(ports)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Kafka does: the leftovers of closed connections do not count as use.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _holder(port: int) -> str:
    """Return who listens on ``port``, as ``process 1234 (java)``; empty where ss does not tell."""
    command = ["ss", "-Hltnp", f"sport = :{port}"]
    with contextlib.suppress(DevKafkaError):
        table = run_tool("ss", command, timeout_s=_SS_S, advice="").stdout
        found = re.search(r'\("(.+?)",pid=(\d+)', table)
        if found:
            return f"process {found.group(2)} ({found.group(1)})"
    return ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _check_data_dir(data_dir: Path, brokers: int) -> Path:
    """Return ``data_dir``, made where it is missing.  Raises InvalidValueError."""
    folder = data_dir.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        problem = f"cannot hold Kafka's data ({error.strerror})"
        fix = "give a folder that can be written"
        raise InvalidValueError("data_dir", str(data_dir), problem, fix) from error
    held = len(list(folder.glob(_META)))
    if held not in (0, brokers):
        problem = f"holds the data of {held} broker(s), not of {brokers}"
        fix = f"start {held}, or give another folder"
        raise InvalidValueError("data_dir", str(data_dir), problem, fix)
    return folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep ``folder`` for one Kafka; raise InvalidValueError where another one has it.

    Kafka's own lock comes too late: a second broker writes to the metadata log before it.
    """
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            fix = "stop that one, or give another folder"
            problem = "is in use by another Kafka"
            raise InvalidValueError("data_dir", str(folder), problem, fix) from error
        yield


def _cluster_id(folder: Path) -> str:
    """Return the id of the cluster whose data ``folder`` holds, or a new one."""
    for meta in folder.glob(_META):
        found = re.search(r"^cluster\.id=(.*)$", meta.read_text(), re.MULTILINE)
        if found:
            return found.group(1)
    # Kafka's tool would take an id that begins with "-" for an option; this one begins with "A".
    return base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")


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
        # A broker gives up its start after this, 60 s by default, which a busy machine may need.
        "initial.broker.registration.timeout.ms": f"{_START_S * 1_000:.0f}",
        # 128 MB by default, taken at once.
        "log.cleaner.dedupe.buffer.size": "8388608",
    }


def _stop_in_order(brokers: Sequence[Broker], deadline: float) -> None:
    running = [broker for broker in brokers if broker.running]
    for broker in running:
        broker.resume()
    while running:
        # A broker takes its leave from a majority of the controllers.  Where they are too
        # few by now it would wait for them for minutes.
        has_quorum = len(running) > len(brokers) // 2
        running.pop(0).stop(deadline - time.monotonic() if has_quorum else 0.0)


def _await_groups(brokers: Sequence[Broker], deadline: float) -> None:
    """Wait until every group has a coordinator.

    The first question about a group makes Kafka create its offsets topic; for a moment after
    that the answers are NOT_COORDINATOR and COORDINATOR_LOAD_IN_PROGRESS, which nobody who has
    just started a Kafka should have to handle.
    """
    servers = ",".join(broker.bootstrap_server for broker in brokers)
    problem = "time is up"
    while time.monotonic() < deadline:
        for broker in brokers:
            broker.check_alive()
        admin = quiet_admin(servers)
        asked = admin.describe_consumer_groups(list(_PROBE_GROUPS), request_timeout=_NEVER_S)
        answered, missing = wait(asked.values(), min(_STUCK_S, deadline - time.monotonic()))
        errors = [answer.exception() for answer in answered]
        found = [error.args[0] for error in errors if isinstance(error, KafkaException)]
        unserved = sorted({each.name() for each in found if each.code() in _UNSERVED})
        if not missing and not unserved:
            return
        problem = f"{len(missing)} groups without an answer, {', '.join(unserved) or 'no error'}"
        time.sleep(_POLL_S)
    raise DevKafkaError(
        f"Kafka came up, but its group coordinators did not ({problem}); broker 1: "
        f"{log_tail(brokers[0].log_path)}"
    )
