"""The Kafka clients of the pool: their settings, what they report, and the requests of each.

Deadlines are kept here and never by librdkafka: a request about a group that times out *in* it
while the coordinator is away aborts the process as soon as the coordinator is back
(https://github.com/confluentinc/librdkafka/issues/4605).  So librdkafka gets more time than a
request can need, and a client that sits on one for too long is replaced before it runs out.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from actors import Future
from actors.logs import get_logger
from offsetmgr.config import SECRET_NAME
from offsetmgr.coordinator.base import CLOSED, NOT_SENT, TIMED_OUT, Failure, cause_of, one_line
from offsetmgr.errors import ERRORS, InvalidValueError, error_info
from offsetmgr.repeats import RepeatLimiter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from actors import Clock, TimerHandle, Timers

DEFAULTS: Final[Mapping[str, object]] = {
    "client.id": "offsetmgr",
    "socket.connection.setup.timeout.ms": 5_000,
    "socket.keepalive.enable": True,
    "socket.nagle.disable": True,
    # The default of 10 s would add itself to every outage.
    "reconnect.backoff.max.ms": 1_000,
    # Else librdkafka begins anew with the first addresses, and without a pause, where no broker is
    # left: 20 connections or logins a second, for as long as it lasts.  A client that sits on a
    # request is replaced, which finds brokers that have moved away as well.
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
"""Pause of a group after NOT_COORDINATOR, in which librdkafka looks up the coordinator again:
``metadata.max.age.ms``, the second between librdkafka's checks of it, and a margin."""

STUCK_S: Final = 12.0
"""librdkafka answers what it has written within ``socket.timeout.ms`` (10 s).  What it holds for
longer waits for a coordinator that cannot be reached, and is never written once it is dropped."""

WINDOW: Final = 256
"""Requests of a client under way at a time.  One broker is busy with two; but groups of a broker
that hangs would keep those of the others waiting.  With many more a broker that is merely slow
would be busy with requests whose deadline passes before it has come to them."""

LIMIT: Final = 1_024
"""Requests that librdkafka may hold, answered at their deadline or not."""

QUEUE_LIMIT: Final = 4_096
"""Requests that may wait to be handed over."""

LEAST_SEND_S: Final = 0.02
"""With less time left a request is not sent any more: behind a broker that hangs, those that wait
would else be sent at their deadline, only to be unknown."""

LIBRDKAFKA_S: Final = 120.0
"""Added to our deadline for librdkafka's own time-out, which must never fire.  It is well over
twice STUCK_S: a client is closed at most that long after its last request was handed over."""

CLOSE_S: Final = 5.0
"""Time for a client to end; its thread holds up nobody beyond their own deadline."""

THREADS: Final = 6
"""Threads of a client of one broker, and some to spare: two, and one for each known broker."""

_LARGEST: Final = 2**63
_SSL: Final = -181
_TRANSPORT: Final = -195
_CREDENTIALS: Final = frozenset({-169, _SSL})
_NETWORK: Final = frozenset({_TRANSPORT, -193})
_REPORT_CHARS: Final = 300
_HANDSHAKE_FAILED: Final = (
    re.compile(r"SSL handshake failed|SSL routines"),
    # Without those words where the broker hangs up at once: connect of rdkafka_ssl.c, io_event of
    # rdkafka_transport.c.  A broker that keeps silent ("Connection setup timed out") is not meant.
    re.compile(r"Disconnected\b.*\bin state SSL_HANDSHAKE\b", re.DOTALL),
)
"""librdkafka's own words, and OpenSSL's, such as of a certificate that is not trusted."""

_LEVELS: Final = (50, 50, 50, 40, 30, 20, 20, 10)
"""Levels of Python's logging, indexed by syslog's from emergency (0) to debug (7)."""

_DESTROYED: Final = Failure(error_info(-197))

_C = TypeVar("_C")
_R = TypeVar("_R")

log = get_logger("offsetmgr.coordinator.kafka")
librdkafka = get_logger("offsetmgr.librdkafka")


def failure_of_code(code: int, text: str = "") -> Failure:
    """Translate a code of Kafka or librdkafka; ``text`` explains one that the table lacks."""
    if code in ERRORS:
        return Failure(ERRORS[code])
    error = KafkaError(code)
    return Failure(error_info(code, error.name()), one_line(text or error.str()))


def failure_of_exception(error: BaseException) -> Failure:
    """Translate what confluent-kafka raised, and drop its traceback.

    That and the future that keeps the error would make a circle that holds an admin client until a
    garbage collection, maybe in a thread of librdkafka's, which aborts where a client ends there.
    """
    error.__traceback__ = None
    if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError):
        return failure_of_code(error.args[0].code(), error.args[0].str())
    return Failure(error_info(-1), one_line(f"{type(error).__name__}: {error}"))


class ConnectionReports:
    """Logs the connection errors of clients, with repeats limited.

    The last error is remembered, so that a time-out can name its cause.
    It is also the ``logger`` of confluent-kafka's clients.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._repeats = RepeatLimiter()
        self._trouble: tuple[int, str] | None = None

    def failed(self, code: int, text: str) -> None:
        """Take in the failure of a connection."""
        if code == _TRANSPORT and any(sign.search(text) for sign in _HANDSHAKE_FAILED):
            code = _SSL
        text = one_line(text, _REPORT_CHARS)
        before = None if self._trouble is None else self._trouble[0]
        if code in _CREDENTIALS:
            if before != code:
                log.error("kafka_refuses_credentials", code=error_info(code).name, reason=text)
        elif code not in _NETWORK or before in _CREDENTIALS:
            return
        self._trouble = code, text

    def answered(self) -> None:
        """Kafka has answered: the trouble is over."""
        self._trouble = None

    def timed_out(self) -> Failure:
        """Return why a request that was sent got no answer in time, as far as is known."""
        trouble = self._trouble
        if trouble is None:
            return Failure(error_info(TIMED_OUT))
        code, text = trouble
        if code in _CREDENTIALS:
            text = f"Kafka did not accept the service's credentials: {text}"
            return Failure(error_info(code), text)
        return Failure(error_info(TIMED_OUT), f"no answer from Kafka in time: {text}")

    def logged(self, level: int, kind: str, text: str) -> None:
        """Take in a line of librdkafka's log; ``level`` as in syslog."""
        self.log(_LEVELS[min(max(level, 0), len(_LEVELS) - 1)], "", kind, "", text)

    def log(self, level: int, template: str, kind: str, client: str, text: str) -> None:
        """Log one line; ``kind`` is one of librdkafka's few facilities, such as FAIL."""
        del template, client
        suppressed = self._repeats.suppressed((kind, cause_of(text)), self._clock.now())
        if suppressed is not None:
            text = one_line(text, _REPORT_CHARS)
            librdkafka.log(level, "librdkafka", kind=kind, text=text, not_shown_before=suppressed)


@dataclass(eq=False)
class QueuedRequest(Generic[_R]):
    """One request to Kafka."""

    group: str
    deadline_s: float
    send: Callable[[Any, QueuedRequest[_R]], None]
    """Hands it to a client."""
    failed: Callable[[Failure], _R]
    """Returns its answer if all of it failed."""
    future: Future[_R] = field(default_factory=Future)
    client: Any = None
    sent_s: float = 0.0
    timer: TimerHandle | None = None


_Requests = dict[QueuedRequest[Any], None]
"""In order; any may leave early."""


class ConnectionQueue(Generic[_C]):
    """A client and its requests: takes them from any thread, and answers each by its deadline.

    What was handed to librdkafka can no longer be told to be unsent, so no more is handed over than
    what keeps the groups of one slow broker from those of the others.

    The client is made at its first use, and anew if it sits on a request.  The old one ends when
    all its requests are over or given up, and in a thread of its own: librdkafka aborts the process
    where a client ends in one of librdkafka's threads.
    """

    def __init__(
        self,
        make: Callable[[], _C],
        end: Callable[[_C], None],
        timers: Timers,
        clock: Clock,
        timed_out: Callable[[], Failure],
        limit: int = LIMIT,
    ) -> None:
        """``end`` does what is needed before the last reference to a client is dropped.

        ``timed_out`` says why a request was not answered; ``limit`` as ``LIMIT``.
        """
        self._make = make
        self._end = end
        self._timers = timers
        self._clock = clock
        self._timed_out = timed_out
        self._limit = limit
        self.current: _C | None = None
        """The client, if there is one."""
        self._making = threading.Lock()
        self._retired: list[_C] = []
        self._ended = False
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._waiting: _Requests = {}
        self._paused: dict[str, _Requests] = {}
        """By group: those that wait for its coordinator to be looked up anew."""
        self._sent: _Requests = {}
        self._late: _Requests = {}
        """Answered at their deadline; librdkafka still has them."""
        self._closed = False

    def client(self) -> _C:
        """Return the client, made now if there is none.

        Raises what making one raises, and RuntimeError where the pool is closed or the machine has
        no room for another client's threads.
        """
        with self._making:
            if self._ended:
                raise RuntimeError("the pool is closed")
            if self.current is None:
                check_thread_room()
                self.current = self._make()
            return self.current

    def submit(self, request: QueuedRequest[_R]) -> Future[_R]:
        """Send ``request`` when its turn comes."""
        refusal = None
        with self._lock:
            queue = self._paused.get(request.group, self._waiting)
            if self._closed:
                refusal = Failure(CLOSED)
            elif len(queue) >= QUEUE_LIMIT:
                refusal = Failure(NOT_SENT, "too many requests are waiting for Kafka")
            else:
                queue[request] = None
                left_s = max(request.deadline_s - self._clock.now(), 0.0)
                request.timer = self._timers.call_after(left_s, partial(self._expire, request))
        if refusal is not None:
            request.future.set(request.failed(refusal))
        self._pump()
        return request.future

    def finish(self, request: QueuedRequest[_R], answer: _R) -> None:
        """Answer ``request``, which was sent, unless its deadline did."""
        with self._lock:
            self._forget(request)
        if request.timer is not None:
            request.timer.cancel()
        request.future.set(answer)
        self._pump()

    def pause(self, group: str) -> None:
        """Hold requests of ``group`` until librdkafka looks for its coordinator again."""
        with self._lock:
            self._paused.setdefault(group, {})
        self._timers.call_after(MOVED_WAIT_S, partial(self._resume, group))

    def close(self) -> None:
        """Take no more; what was taken goes on."""
        with self._lock:
            self._closed = True

    def drain(self, timeout_s: float) -> None:
        """Wait until all is answered, then answer what is left: as refused if it was not sent."""
        with self._idle:
            self._idle.wait_for(lambda: not (self._sent or any(self._unsent())), timeout_s)
            # Taken out at once: what is told that it was not sent must not be sent any more.
            unsent = [request for queue in self._unsent() for request in queue]
            for queue in self._unsent():
                queue.clear()
            sent = [*self._sent, *self._late]
        for request in unsent:
            request.future.set(request.failed(Failure(CLOSED)))
        for request in sent:
            self.finish(request, request.failed(_DESTROYED))

    def end_clients(self) -> None:
        """End all clients and with them their connections and threads; may take some time."""
        with self._making:
            self._ended = True
            clients = [*self._retired, *([] if self.current is None else [self.current])]
            self._retired, self.current = [], None
        for client in clients:
            self._end(client)

    def _unsent(self) -> Iterator[_Requests]:
        yield self._waiting
        yield from self._paused.values()

    def _pump(self) -> None:
        while (request := self._next()) is not None:
            self._send(request)

    def _next(self) -> QueuedRequest[Any] | None:
        """Return the request whose turn it is, which counts as sent from now on."""
        with self._lock:
            if len(self._sent) >= min(WINDOW, self._limit - len(self._late)):
                return None
            now_s = self._clock.now()
            for request in self._waiting:
                if request.deadline_s - now_s >= LEAST_SEND_S:
                    del self._waiting[request]
                    self._sent[request] = None
                    request.sent_s = now_s
                    return request
            return None

    def _send(self, request: QueuedRequest[Any]) -> None:
        try:
            client = self.client()
            with self._lock:
                if request not in self._sent:
                    self._late.pop(request, None)  # answered while its client was made
                    return
                request.client = client
            request.send(client, request)
        except Exception as error:  # noqa: BLE001 -- whatever it was, it was not sent
            why = f"the Kafka client did not take the request: {one_line(str(error), 300)}"
            with self._lock:
                self._forget(request)
            request.future.set(request.failed(Failure(NOT_SENT, why)))

    def _forget(self, request: QueuedRequest[Any]) -> None:
        """Take a sent request out of its place; with the lock held."""
        self._sent.pop(request, None)
        self._late.pop(request, None)
        self._idle.notify_all()

    def _expire(self, request: QueuedRequest[Any]) -> None:
        with self._lock:
            sent = request in self._sent
            unsent = next((queue for queue in self._unsent() if request in queue), None)
            if sent:
                self._forget(request)
                self._late[request] = None
            elif unsent is not None:
                del unsent[request]
                self._idle.notify_all()
        if sent:
            request.future.set(request.failed(self._timed_out()))
            left_s = max(request.sent_s + STUCK_S - self._clock.now(), 0.0)
            self._timers.call_after(left_s, partial(self._give_up, request))
            self._pump()
        elif unsent is not None:
            request.future.set(request.failed(Failure(NOT_SENT)))

    def _give_up(self, request: QueuedRequest[Any]) -> None:
        """Drop what librdkafka has held for too long, and by and by its client."""
        with self._lock:
            held = request in self._late
            self._forget(request)
        client: _C | None = request.client
        if held and client is not None:
            with self._making:
                if client is self.current:
                    self.current = None
                    self._retired.append(client)
                    ending = threading.Thread(
                        target=self._end_retired, name="kafka-retired", daemon=True
                    )
                    self._timers.call_after(STUCK_S, ending.start)
        self._pump()

    def _end_retired(self) -> None:
        """End the client that was retired first, in a thread that has its last reference."""
        with self._making:
            client = self._retired.pop(0) if self._retired else None
        if client is not None:
            self._end(client)

    def _resume(self, group: str) -> None:
        with self._lock:
            self._waiting.update(self._paused.pop(group, {}))
        self._pump()


def check_thread_room() -> None:
    """Start as many threads as a client needs, and end them again.

    librdkafka ends the whole process with a segmentation fault where a client gets the first of
    its threads but not the second (seen with 2.16), so it is not asked before there is room.

    Raises RuntimeError where there is none.
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
        raise RuntimeError(message) from error
    finally:
        over.set()
        for thread in started:
            thread.join()


def client_config(config: Mapping[str, object]) -> dict[str, Any]:
    """Complete the caller's settings of librdkafka with the pool's."""
    return {**DEFAULTS, **config, **FORCED}


def open_admin(config: Mapping[str, object], reports: ConnectionReports) -> AdminClient:
    """Open an admin client of confluent-kafka's."""
    complete = client_config(config)
    complete["error_cb"] = lambda error: reports.failed(error.code(), error.str())
    complete["logger"] = reports
    return AdminClient(complete)


def checked_config(config: object) -> dict[str, object]:
    """Return librdkafka's settings, of which a text is the bootstrap servers.

    Raises InvalidValueError, which names a setting, never a value that may be a secret.
    """
    settings = {"bootstrap.servers": config} if isinstance(config, str) else config
    if not isinstance(settings, Mapping):
        fix = 'give "host:port,host:port", or a mapping of librdkafka\'s settings'
        raise InvalidValueError("config", type(config).__name__, "is neither", fix)
    for name, value in settings.items():
        if not isinstance(name, str):
            raise InvalidValueError("config", name, "is no setting's name", "give a string")
        number = isinstance(value, (int, float)) and -_LARGEST <= value <= _LARGEST
        # No lone surrogates.
        text = isinstance(value, str) and value.encode(errors="replace").decode() == value
        if not (number or text or callable(value)):
            kind = f"<{type(value).__name__}>"
            raise InvalidValueError(name, kind, "is no setting", "give a string or a number")
        if name in FORCED:
            fix = f"remove it: the service depends on {FORCED[name]}"
            raise InvalidValueError(name, value, "cannot be set", fix)
    if not settings.get("bootstrap.servers"):
        fix = "give it, as host:port,host:port"
        raise InvalidValueError("bootstrap.servers", None, "is missing", fix)
    return dict(settings)


def refused_config(config: Mapping[str, object], error: KafkaException) -> InvalidValueError:
    """Return what to raise, without a cause, where librdkafka takes a setting for wrong.

    librdkafka may quote a secret: its text is cut before it.
    """
    text = one_line(error.args[0].str(), _REPORT_CHARS)
    for name, value in config.items():
        if value and SECRET_NAME.search(name):
            # librdkafka may have cut its text in the middle of the secret.
            before, found, _ = text.partition(str(value)[:8])
            text = f"{before}***" if found else text
    problem = f"was refused by librdkafka: {text}"
    fix = "correct the setting it names; see librdkafka's CONFIGURATION.md"
    return InvalidValueError("kafka", sorted(config), problem, fix)
