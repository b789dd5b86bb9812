"""One place of the pool: an admin client, its settings, and what it says of its troubles."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from offsetmgr.coordinator.base import Failure
from offsetmgr.coordinator.explain import one_line
from offsetmgr.coordinator.kafka_offsets import OffsetCommitter, OffsetFetcher
from offsetmgr.coordinator.thread_room import check_thread_room
from offsetmgr.errors import InvalidValueError, error_info

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from actors import Clock

DEFAULTS: Final[Mapping[str, object]] = {
    "client.id": "offsetmgr",
    "socket.connection.setup.timeout.ms": 5_000,
    "socket.keepalive.enable": True,
    "socket.nagle.disable": True,
    # The default of 10 s would add itself to every outage.
    "reconnect.backoff.max.ms": 1_000,
    # Else librdkafka begins anew with the first addresses, and without a pause, where no broker is
    # left: 20 connections or logins a second, for as long as it lasts.  What the lane does with a
    # client that sits on a request finds brokers that have moved away as well.
    "metadata.recovery.strategy": "none",
    "log.connection.close": False,
}
"""Settings of librdkafka that the caller's may replace."""

FORCED: Final[Mapping[str, object]] = {
    # librdkafka forgets the coordinator of a group only when it was not asked for it this long;
    # an answer of NOT_COORDINATOR does not make it look again.  See MOVED_WAIT_S.
    "metadata.max.age.ms": 1_000,
    # What is written is answered, or its connection ended, within this time; what is not, by the
    # time of STUCK_S, can no longer be written.  It also bounds how late a commit can land that
    # waits for its connection.
    "socket.timeout.ms": 10_000,
}
"""Settings the pool depends on: nobody else may set them."""

MOVED_WAIT_S: Final = 2.5
"""How long a group is left alone after NOT_COORDINATOR, for its coordinator to be looked up anew:
``metadata.max.age.ms``, the second between librdkafka's checks of it, and some room."""

LOG_INTERVAL_S: Final = 10.0
"""One line of each kind of librdkafka's log in this time; the others are counted."""

RELEASE_S: Final = 5.0
"""For a client to end, in a thread that nobody waits for longer than their own deadline."""

_TIMED_OUT: Final = -185
_SSL: Final = -181
_TRANSPORT: Final = -195
_CREDENTIALS: Final = frozenset({-169, _SSL})
_NETWORK: Final = frozenset({_TRANSPORT, -193})
_TROUBLE_CHARS: Final = 300
_HANDSHAKE_FAILED: Final = (
    re.compile(r"SSL handshake failed|SSL routines"),
    # Without those words where the broker hangs up at once: connect of rdkafka_ssl.c, io_event of
    # rdkafka_transport.c.  A broker that keeps silent ("Connection setup timed out") is not meant.
    re.compile(r"Disconnected\b.*\bin state SSL_HANDSHAKE\b", re.DOTALL),
)
"""librdkafka's own words, and OpenSSL's, such as of a certificate that is not trusted."""

_LEVELS: Final = (50, 50, 50, 40, 30, 20, 20, 10)
"""Of Python's logging, by syslog's: emergency, alert, critical, error, and so on to debug."""

_C = TypeVar("_C")
_T = TypeVar("_T")

log = structlog.get_logger("offsetmgr.coordinator.kafka")


class _Trouble(NamedTuple):
    """The last thing that went wrong with a connection."""

    code: int
    text: str


class Troubles:
    """Remembers why connections fail, so that a time-out can say more than that it was one."""

    def __init__(self) -> None:
        self._last: _Trouble | None = None
        self._told: int | None = None

    def note(self, error: KafkaError) -> None:
        """Take in what librdkafka reports of a connection (its ``error_cb``)."""
        code, text = error.code(), one_line(error.str(), _TROUBLE_CHARS)
        if code == _TRANSPORT and any(sign.search(error.str()) for sign in _HANDSHAKE_FAILED):
            code = _SSL
        if code in _CREDENTIALS:
            if self._told != code:
                self._told = code
                log.error("kafka_refuses_credentials", code=error_info(code).name, reason=text)
        elif code not in _NETWORK or (self._last and self._last.code in _CREDENTIALS):
            return
        self._last = _Trouble(code, text)

    def clear(self) -> None:
        """Forget it: Kafka has answered."""
        self._last = self._told = None

    def timed_out(self) -> Failure:
        """Why a request that was sent got no answer in time, as far as is known."""
        last = self._last
        if last is None:
            return Failure(error_info(_TIMED_OUT))
        if last.code in _CREDENTIALS:
            text = f"Kafka did not accept the service's credentials: {last.text}"
            return Failure(error_info(last.code), text)
        return Failure(error_info(_TIMED_OUT), f"no answer from Kafka in time: {last.text}")


class LibrdkafkaLog:
    """Where librdkafka writes its log: a line of each kind at a time, never to stderr."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._written_s: dict[str, float] = {}
        self._dropped: dict[str, int] = {}

    def log(self, level: int, template: str, kind: str, client: str, text: str) -> None:
        """Take one line; ``kind`` is one of librdkafka's few facilities, such as FAIL."""
        del template, client
        now_s = self._clock.now()
        with self._lock:
            if now_s - self._written_s.get(kind, -LOG_INTERVAL_S) < LOG_INTERVAL_S:
                self._dropped[kind] = self._dropped.get(kind, 0) + 1
                return
            self._written_s[kind] = now_s
            more = self._dropped.pop(kind, 0)
        text = one_line(text, _TROUBLE_CHARS)
        log.log(level, "librdkafka", kind=kind, text=text, not_shown_before=more)


class TroublesOfCommits:
    """A ``librdkafka.Listener`` that passes on what the clients that commit have to say."""

    def __init__(self, troubles: Troubles, librdkafka_log: LibrdkafkaLog) -> None:
        self._troubles = troubles
        self._log = librdkafka_log

    def failed(self, code: int, text: str) -> None:
        """A connection failed."""
        self._troubles.note(KafkaError(code, text))

    def logged(self, level: int, kind: str, text: str) -> None:
        """Take a line of librdkafka's log."""
        self._log.log(_LEVELS[min(max(level, 0), len(_LEVELS) - 1)], "", kind, "", text)


def client_config(config: Mapping[str, object]) -> dict[str, Any]:
    """Complete the caller's settings of librdkafka with the pool's."""
    return {**DEFAULTS, **config, **FORCED}


def checked(config: Mapping[str, object], slot: ClientSlot[AdminClient]) -> None:
    """Make the client of ``slot`` now, so that a wrong setting is found at the start.

    Raises InvalidValueError; it names settings of ``config``, never what may be a secret.
    """
    for name in FORCED:
        if name in config:
            fix = f"remove it: the service depends on {FORCED[name]}"
            raise InvalidValueError(name, config[name], "cannot be set", fix)
    try:
        slot.give_back(slot.acquire())
    except KafkaException as error:
        problem = f"was refused by librdkafka: {one_line(error.args[0].str(), _TROUBLE_CHARS)}"
        fix = "correct the setting it names; see librdkafka's CONFIGURATION.md"
        raise InvalidValueError("kafka", sorted(config), problem, fix) from error


class PooledClient(Generic[_C]):
    """A client, and how many hold it: requests under way, and calls being made."""

    def __init__(self, client: _C) -> None:
        self._client: _C | None = client
        self.holders = 0

    @property
    def client(self) -> _C:
        """The client, for who holds it.  Raises RuntimeError where it has ended."""
        if self._client is None:
            raise RuntimeError("the client was given up")
        return self._client

    def take(self) -> _C | None:
        """Take the client out where nobody holds it, to end it: the only reference to it.

        None where somebody does, or where it was taken before.
        """
        if self.holders:
            return None
        client, self._client = self._client, None
        return client


class ClientSlot(Generic[_C]):
    """A place for a client, made at its first use and replaced when it is given up.

    All methods may be called from any thread.  A client that nobody holds any more ends in a
    thread of its own: librdkafka aborts the process where one ends in a thread of its.
    """

    def __init__(self, make: Callable[[], _C], end: Callable[[_C], None]) -> None:
        """``end`` does what is needed before the last reference to a client is dropped."""
        self._make = make
        self._end = end
        self._lock = threading.Lock()
        self._unheld = threading.Condition(self._lock)
        self._current: PooledClient[_C] | None = None
        self._closed = False
        self._unended: list[PooledClient[_C]] = []

    def acquire(self, times: int = 1) -> PooledClient[_C]:
        """Hold the client so many times, made now where there is none.

        Raises what making one raises, and RuntimeError where the pool is closed or the machine has
        no room for another client's threads.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed")
            if self._current is None:
                check_thread_room()
                self._current = PooledClient(self._make())
            self._current.holders += times
            return self._current

    def call(self, use: Callable[[_C], _T]) -> _T:
        """What ``use`` makes of the client, which it must not keep; raises as ``acquire`` does."""
        pooled = self.acquire()
        try:
            return use(pooled.client)
        finally:
            self.give_back(pooled)

    def hold(self, pooled: PooledClient[_C]) -> None:
        """Hold ``pooled`` once more.  Raises RuntimeError where it has ended."""
        with self._lock:
            _ = pooled.client
            pooled.holders += 1

    def give_back(self, pooled: PooledClient[_C]) -> None:
        """Hold ``pooled`` once less; the last one of a retired client lets it end."""
        with self._lock:
            pooled.holders -= 1
            self._unheld.notify_all()
            over = pooled.holders == 0 and pooled is not self._current
        if over:
            self._end_elsewhere(pooled)

    def retire(self, pooled: PooledClient[_C]) -> None:
        """Use the client for no further request; it ends with its last one."""
        with self._lock:
            if self._current is pooled:
                self._current = None

    def poll(self, poll: Callable[[_C], object]) -> None:
        """Call ``poll`` with the client, if there is one at present."""
        with self._lock:
            pooled = self._current
            if pooled is None:
                return
            pooled.holders += 1
        try:
            poll(pooled.client)
        finally:
            self.give_back(pooled)

    def close(self, timeout_s: float) -> None:
        """End the client and with it its connections and threads; may take some time.

        It waits at most ``timeout_s`` for the calls being made on it.
        """
        with self._lock:
            self._closed = True
            pooled, self._current = self._current, None
            if pooled is not None:
                self._unended.append(pooled)
                self._unheld.wait_for(lambda: pooled.holders == 0, timeout_s)
            ending, self._unended = self._unended, []
        for each in ending:
            self._end_unheld(each)

    def _end_elsewhere(self, pooled: PooledClient[_C]) -> None:
        ending = threading.Thread(
            target=self._end_unheld, args=(pooled,), name="kafka-retired", daemon=True
        )
        try:
            ending.start()
        except RuntimeError:  # no thread is to be had: it waits for the pool's end
            with self._lock:
                self._unended.append(pooled)

    def _end_unheld(self, pooled: PooledClient[_C]) -> None:
        """End the client, unless somebody holds it (again): then whoever lets go of it last."""
        with self._lock:
            client = pooled.take()
        if client is not None:
            self._end(client)


def admin_slot(
    config: Mapping[str, object], troubles: Troubles, librdkafka_log: LibrdkafkaLog
) -> ClientSlot[AdminClient]:
    """A place for an admin client that reports to ``troubles`` and ``librdkafka_log``."""
    complete = {**client_config(config), "error_cb": troubles.note, "logger": librdkafka_log}
    return ClientSlot(lambda: AdminClient(complete), _drop)


def committer_slot(
    config: Mapping[str, object], troubles: Troubles, librdkafka_log: LibrdkafkaLog
) -> ClientSlot[OffsetCommitter]:
    """A place for a client that commits and reports to ``troubles`` and ``librdkafka_log``."""
    complete = client_config(config)
    listener = TroublesOfCommits(troubles, librdkafka_log)
    # What is still open is late, as with the fetcher.
    return ClientSlot(
        lambda: OffsetCommitter(complete, listener), lambda client: client.close(RELEASE_S)
    )


def fetcher_slot(config: Mapping[str, object]) -> ClientSlot[OffsetFetcher]:
    """A place for a fetcher of committed offsets."""
    complete = client_config(config)
    # What is still open is late, and was answered at its deadline: nobody waits for the end.
    return ClientSlot(lambda: OffsetFetcher(complete), lambda fetcher: fetcher.close(RELEASE_S))


def _drop(_: AdminClient) -> None:
    """An admin client has no close: it ends with the last reference to it."""
