"""A local Kafka of one or three brokers, as a context manager."""

from __future__ import annotations

import contextlib
import string
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException

from offsetmgr.devkafka.broker import quiet_admin
from offsetmgr.devkafka.errors import DevKafkaError, log_tail
from offsetmgr.devkafka.jars import kafka_jars, silent
from offsetmgr.devkafka.java import find_java
from offsetmgr.devkafka.security import check_users, secure
from offsetmgr.devkafka.settings import (
    check_brokers,
    check_data_dir,
    check_ports,
    cluster_id,
    free_ports,
    lock_data_dir,
    make_brokers,
)
from offsetmgr.devkafka.tool import consumer_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from typing_extensions import Self

    from offsetmgr.devkafka.broker import Broker
    from offsetmgr.devkafka.security import Secured

_ANSWER_S: Final = 2.0
# librdkafka may abort the process where a coordinator answers after librdkafka has stopped waiting
# for it, as on a busy machine.  So it never stops, and the deadline is kept here.
_NEVER_S: Final = 3_600.0
# Nor does it always go on by itself with a request whose coordinator was just being elected.
_STUCK_S: Final = 10.0
_POLL_S: Final = 0.05
# Names of one letter: the hashes of neighbours differ by one, so that together they fall on every
# partition of the offsets topic, and so on every coordinator.
_PROBE_GROUPS: Final = tuple(string.ascii_lowercase)
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
        users: Mapping[str, str] | None = None,
        heap_mb: int = 512,
        log: Callable[[str], None] = silent,
    ) -> None:
        """Describe a Kafka; ``start`` or ``with`` starts it.

        ``brokers`` is 1 or 3; each of three is also a controller.  ``data_dir`` is kept when the
        Kafka stops, and one that holds data goes on from there; without it the data lives in a
        temporary folder and goes with the Kafka.  ``ports`` are the brokers', free ones by
        default.  ``properties`` are added to every broker's server.properties, ``heap_mb`` is the
        memory of each, and ``log`` is told of what takes long.  ``users`` (passwords by name) get
        a listener of their own, see ``login``: it speaks SASL over TLS, and what they may do there
        is up to Kafka's ACLs, which allow nothing at first.  Raises InvalidValueError.
        """
        self._size = check_brokers(brokers)
        self._data_dir = data_dir
        self._wanted_ports = None if ports is None else tuple(ports)
        self._properties = dict(properties or {})
        self._users = check_users(users or {})
        self._secured: Secured | None = None
        self._heap_mb = heap_mb
        self._log = log
        self._brokers: list[Broker] = []
        self._cleanup = contextlib.ExitStack()

    def start(self, timeout_s: float = 180.0) -> None:
        """Start all brokers and wait until clients and groups are served.

        The first start on a machine also fetches Kafka, which takes about a minute and does not
        count for ``timeout_s``.  Raises InvalidValueError for ports or a folder that cannot be
        used, and DevKafkaError, with the tail of a broker's log, where Kafka does not come up;
        nothing is left running then.
        """
        if self._brokers:
            message = f"this Kafka runs already, on {self.bootstrap_servers}"
            raise DevKafkaError(message)
        java, jars = find_java(), kafka_jars(self._log)
        deadline = time.monotonic() + timeout_s
        with contextlib.ExitStack() as unwind:
            folder = self._folder(unwind)
            ports = (
                free_ports(self._size)
                if self._wanted_ports is None
                else check_ports(self._wanted_ports, self._size)
            )
            if self._users:
                self._secured = secure(folder, self._users, free_ports(self._size), java)
            brokers = make_brokers(
                folder, ports, java, jars, self._properties, self._heap_mb, self._secured
            )
            _format(brokers, cluster_id(folder))
            for broker in brokers:
                broker.launch()
                unwind.callback(broker.stop, 0.0)
            for broker in brokers:
                broker.await_ready(deadline)
            _await_groups(brokers, deadline)
            self._brokers = brokers
            self._cleanup = unwind.pop_all()

    def _folder(self, unwind: contextlib.ExitStack) -> Path:
        if self._data_dir is not None:
            folder = check_data_dir(self._data_dir, self._size)
            unwind.enter_context(lock_data_dir(folder))
            return folder
        return Path(unwind.enter_context(tempfile.TemporaryDirectory(prefix="offsetmgr-kafka-")))

    def stop(self, timeout_s: float = 20.0) -> None:
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

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """What clients connect to.  Raises DevKafkaError where the Kafka is not started."""
        return ",".join(broker.bootstrap_server for broker in self.brokers)

    @property
    def brokers(self) -> tuple[Broker, ...]:
        """All brokers, also those that are down.  Raises DevKafkaError as above."""
        if not self._brokers:
            message = "this Kafka is not started: call start() first"
            raise DevKafkaError(message)
        return tuple(self._brokers)

    def broker(self, node_id: int) -> Broker:
        """Return the broker ``node_id``, from 1.  Raises DevKafkaError where there is none."""
        for broker in self.brokers:
            if broker.node_id == node_id:
                return broker
        message = f"there is no broker {node_id}: give 1 to {self._size}"
        raise DevKafkaError(message)

    def login(self, user: str) -> dict[str, str]:
        """Return librdkafka's settings for one of the ``users``: addresses, TLS, password.

        Raises DevKafkaError for an unknown user, or where the Kafka was never started.
        """
        if self._secured is None:
            message = "this Kafka has no listener for users: give users, then start it"
            raise DevKafkaError(message)
        return self._secured.login(user)

    def consumer_groups(self, *args: str) -> str:
        """Run Kafka's own kafka-consumer-groups on this Kafka and return what it prints.

        Raises DevKafkaError, with its output, where it fails.
        """
        return consumer_groups(self.bootstrap_servers, *args)


def _format(brokers: Sequence[Broker], cluster: str) -> None:
    with ThreadPoolExecutor(len(brokers)) as pool:
        for done in [pool.submit(broker.format, cluster) for broker in brokers]:
            done.result()


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
    admin, made_at = quiet_admin(servers), time.monotonic()
    unserved = set(_PROBE_GROUPS)
    asked: dict[str, Future[object]] = {}
    while time.monotonic() < deadline:
        for broker in brokers:
            broker.check_alive()
        if time.monotonic() - made_at > _STUCK_S:
            # What it holds ends with it.
            asked.clear()
            admin, made_at = quiet_admin(servers), time.monotonic()
        unasked = sorted(unserved - asked.keys())
        if unasked:
            asked |= admin.describe_consumer_groups(unasked, request_timeout=_NEVER_S)
        answered, _ = wait(asked.values(), _ANSWER_S)
        for group in [group for group, answer in asked.items() if answer in answered]:
            if _is_served(asked.pop(group)):
                unserved.discard(group)
        if not unserved:
            return
        time.sleep(_POLL_S)
    message = (
        f"Kafka came up, but its group coordinators did not; the end of the log of broker 1:\n"
        f"{log_tail(brokers[0].log_path)}"
    )
    raise DevKafkaError(message)


def _is_served(answer: Future[object]) -> bool:
    error = answer.exception()
    return not (isinstance(error, KafkaException) and error.args[0].code() in _UNSERVED)
