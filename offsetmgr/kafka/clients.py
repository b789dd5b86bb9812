"""Opens confluent-kafka's clients."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from offsetmgr.deadlines import POLL_S
from offsetmgr.errors import InvalidValueError, ManagerStoppedError, OverloadedError
from offsetmgr.kafka.config import (
    ASKS_CONTROLLER,
    client_config,
    guarded_callbacks,
    refused_config,
)
from offsetmgr.kafka.reports import ConnectionReports

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

    from offsetmgr.deadlines import Deadline

THREADS: Final = 6
"""Threads of a client of one broker, and some to spare: two, and one for each known broker."""

CLOSE_S: Final = 5.0
"""Time for a client to end; its thread holds up nobody beyond their own deadline."""

_FIRST_WAIT_S: Final = 0.5
_NO_ANSWER: Final = frozenset(
    {KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}  # noqa: SLF001
)
"""Codes of calls that may succeed later; the last one comes without a wait."""

_T = TypeVar("_T")


class _Process:
    """This process; to ask the system takes longer than to hand out a message."""

    id = os.getpid()

    @classmethod
    def renew(cls) -> None:
        cls.id = os.getpid()


os.register_at_fork(after_in_child=_Process.renew)


class Closing(ABC):
    """To be used in a ``with`` block, whose end closes it."""

    _process: int | None = None
    """The process that made it, where the child of a fork, which has no threads, is refused."""

    @abstractmethod
    def close(self) -> None:
        """End the connections; twice is harmless."""

    @property
    def is_forked(self) -> bool:
        """True in the child of a fork, where that is noted."""
        return self._process is not None and self._process != _Process.id

    def check_process(self) -> None:
        """Raise ManagerStoppedError in the child of a fork."""
        if self._process != _Process.id and self.is_forked:
            raise ManagerStoppedError(f"it was {FORKED}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


FORKED: Final = "made by another process, whose threads are not here; make one in each process"
"""Of anything that is used in the child of a fork."""


CLOSED: Final = "the connections to Kafka are closed; make new ones"
"""Of a client that was closed, maybe while it was used."""


class NoThreadsError(OverloadedError, RuntimeError):
    """The process can start no more threads."""


def check_thread_room() -> None:
    """Start as many threads as a client needs, and end them again.

    librdkafka ends the whole process with a segmentation fault where a client gets the first of
    its threads but not the second (seen with 2.16), so it is not asked before there is room.

    Raises NoThreadsError if the process cannot start so many threads.
    """
    over = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(THREADS):
            thread = threading.Thread(target=over.wait, name="kafka-room", daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        message = f"no room for the {THREADS} threads of one more Kafka client: {error}"
        raise NoThreadsError(message) from error
    finally:
        over.set()
        for thread in started:
            thread.join()


def in_short_waits(call: Callable[[float], _T], deadline: Deadline) -> _T:
    """Return the answer of ``call``, which gets the seconds to wait for Kafka, by ``deadline``.

    The waits begin short, and double: Ctrl-C is not seen before a call of librdkafka returns.
    Raises KafkaException.
    """
    wait_s = _FIRST_WAIT_S
    while True:
        try:
            return call(min(wait_s, deadline.left_s))
        except KafkaException as error:
            if deadline.over or error.args[0].code() not in _NO_ANSWER:
                raise
        time.sleep(min(POLL_S, deadline.left_s))
        wait_s *= 2


def open_admin(config: Mapping[str, object], reports: ConnectionReports) -> AdminClient:
    """Open an admin client of confluent-kafka's, with the pool's settings.

    Raises InvalidValueError if librdkafka refuses a setting.
    """
    settings = {**client_config(config), **ASKS_CONTROLLER}
    settings["error_cb"] = lambda error: reports.failed(error.code(), error.str())
    settings["logger"] = reports
    try:
        return AdminClient(settings)
    except KafkaException as error:
        raise refused_config(config, error.args[0].str()) from None


def check_values(config: Mapping[str, object]) -> None:
    """Raise InvalidValueError if librdkafka refuses a setting; it connects to nothing."""
    connecting = {"bootstrap.servers", "oauth_cb", "sasl.oauthbearer.method"}
    kept = {name: value for name, value in config.items() if name not in connecting}
    open_admin(kept, ConnectionReports())


def open_consumer(config: Mapping[str, object], ours: Mapping[str, object]) -> Consumer:
    """Open a consumer of confluent-kafka's; ``ours`` replace the settings of ``config``.

    Raises InvalidValueError if librdkafka refuses a setting, NoThreadsError if there is no room for
    its threads.
    """
    check_thread_room()
    settings: dict[str, Any] = {**config, **ours}
    settings |= guarded_callbacks(settings)
    if not settings["group.id"]:  # confluent-kafka would end the process
        hint = "give a name, or leave it out"
        raise InvalidValueError("group.id", settings["group.id"], "is empty", hint)
    try:
        return Consumer(settings)
    except KafkaException as error:
        raise refused_config(settings, error.args[0].str()) from None
