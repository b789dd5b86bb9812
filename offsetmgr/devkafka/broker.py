"""One broker of a local Kafka: its folder, its process, and the faults it can be given."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from offsetmgr.devkafka.errors import DevKafkaError, log_tail
from offsetmgr.devkafka.process import WatchedProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

HOST: Final = "127.0.0.1"

_FORMAT_S: Final = 60.0
_ANSWER_S: Final = 0.5
_POLL_S: Final = 0.05
_PROPERTIES: Final = "server.properties"
# Relative to the broker's folder, which is its working folder: no path needs to be escaped.
_DATA: Final = "data"


class BrokerSetup(NamedTuple):
    """What a broker needs to be started, again and again, as the same broker."""

    node_id: int
    """Its id in the cluster, from 1."""
    port: int
    """Where clients connect."""
    folder: Path
    """Holds its data, its configuration and its log."""
    properties: Mapping[str, str]
    """Its whole server.properties, but for the place of the data."""
    java: Sequence[str]
    """The command line up to the main class."""


def java_command(java: str, jars: Sequence[Path], *flags: str) -> list[str]:
    """Return the command line that runs a main class of Kafka's, without the class."""
    return [
        java,
        # Small, and no slower than the default collector on the heaps used here.
        "-XX:+UseSerialGC",
        "-Djava.awt.headless=true",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
        *flags,
        "-cp",
        f"{jars[0].parent}/*",
    ]


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


class Broker:
    """A broker that can be killed, paused, stopped and started again, with its port and data."""

    def __init__(self, setup: BrokerSetup) -> None:
        """Describe the broker; nothing is started."""
        self._setup = setup
        self._process: WatchedProcess | None = None

    @property
    def node_id(self) -> int:
        """Its id in the cluster."""
        return self._setup.node_id

    @property
    def bootstrap_server(self) -> str:
        """Host and port of this broker."""
        return f"{HOST}:{self._setup.port}"

    @property
    def log_path(self) -> Path:
        """The file that holds all the broker has printed."""
        return self._setup.folder / "broker.log"

    @property
    def running(self) -> bool:
        """Whether its process is there, paused or not."""
        return self._process is not None and self._process.running()

    @property
    def process(self) -> WatchedProcess:
        """Its running process.  Raises DevKafkaError where there is none."""
        if self._process is None or not self._process.running():
            message = f"broker {self.node_id} is not running: start() it first"
            raise DevKafkaError(message)
        return self._process

    @property
    def pid(self) -> int:
        """The process id of its JVM.  Raises DevKafkaError where it is not running."""
        return self.process.pid

    def format(self, cluster_id: str) -> None:
        """Prepare the folder of a broker that has never run, with Kafka's own tool."""
        data = self._setup.folder / _DATA
        if (data / "meta.properties").exists():
            return
        self._write_properties()
        command = [
            *self._setup.java,
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={cluster_id}",
            "--config",
            _PROPERTIES,
        ]
        try:
            with self.log_path.open("ab") as log:
                done = subprocess.run(
                    command,
                    cwd=self._setup.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    timeout=_FORMAT_S,
                    check=False,
                )
        except subprocess.TimeoutExpired as error:
            message = f"broker {self.node_id} did not prepare its storage within {_FORMAT_S:.0f} s"
            raise DevKafkaError(message) from error
        if done.returncode != 0:
            message = (
                f"broker {self.node_id} could not prepare its storage; "
                f"the end of its log:\n{log_tail(self.log_path)}"
            )
            raise DevKafkaError(message)

    def launch(self) -> None:
        """Start the process and return at once; ``await_ready`` waits for it."""
        if self.running:
            message = f"broker {self.node_id} runs already, as process {self.pid}"
            raise DevKafkaError(message)
        self._release()
        self._write_properties()
        self._process = WatchedProcess(
            [*self._setup.java, "kafka.Kafka", _PROPERTIES],
            cwd=self._setup.folder,
            log_path=self.log_path,
        )

    def await_ready(self, deadline: float) -> None:
        """Wait until the broker answers clients and is a member of the cluster.

        ``deadline`` is of ``time.monotonic``.  Raises DevKafkaError, with the tail of the log,
        where the broker ends before that, or where the time runs out.
        """
        admin = quiet_admin(self.bootstrap_server)
        while time.monotonic() < deadline:
            self.check_alive()
            try:
                members = admin.list_topics(timeout=_ANSWER_S).brokers
            except KafkaException:
                continue  # it has waited, up to its own timeout
            if self.node_id in members:
                return
            time.sleep(_POLL_S)
        message = (
            f"broker {self.node_id} did not answer on {self.bootstrap_server} in time; "
            f"the end of its log:\n{log_tail(self.log_path)}"
        )
        raise DevKafkaError(message)

    def check_alive(self) -> None:
        """Raise DevKafkaError, with the tail of the log, where the broker has ended."""
        if not self.running:
            message = (
                f"broker {self.node_id} ended by itself; "
                f"the end of its log:\n{log_tail(self.log_path)}"
            )
            raise DevKafkaError(message)

    def start(self, timeout_s: float = 180.0) -> None:
        """Start the broker again, on its port and with its data, and wait until it answers.

        Raises DevKafkaError, with the tail of its log, where it does not within ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        self.launch()
        self.await_ready(deadline)

    def stop(self, timeout_s: float = 20.0) -> None:
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
        """Freeze the broker (SIGSTOP): its connections stay and nothing is answered."""
        self.process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused broker go on (SIGCONT)."""
        self.process.signal(signal.SIGCONT)

    def _release(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def _write_properties(self) -> None:
        lines = {**self._setup.properties, "log.dirs": _DATA}
        text = "".join(f"{key}={_escaped(value)}\n" for key, value in lines.items())
        self._setup.folder.mkdir(parents=True, exist_ok=True)
        (self._setup.folder / _PROPERTIES).write_text(text)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")
