"""Settings of librdkafka: ours, the caller's, and the check of both."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.errors import InvalidValueError
from offsetmgr.kafka.oauth import TokenFunction
from offsetmgr.logs import SafeLogger
from offsetmgr.repeats import RepeatLimiter
from offsetmgr.text import SECRET_NAME, visible
from offsetmgr.types import check_callable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


OWN_GROUP: Final = "offsetmgr-reads-only"
"""Group of a consumer that only asks; never joined, so no broker ever lists it."""

INSTANCE: Final = "offsetmgr"
"""``group.instance.id`` of every service: a group has one member of that name, the newest."""

DEFAULTS: Final[Mapping[str, object]] = {
    "client.id": "offsetmgr",
    "socket.connection.setup.timeout.ms": 5_000,
    "socket.keepalive.enable": True,
    "socket.nagle.disable": True,
    # The default of 10 s would add itself to every outage.
    "reconnect.backoff.max.ms": 1_000,
    # By default, while no broker answers, librdkafka tries the first addresses again without a
    # pause: 20 connections or logins a second.  An unresponsive client is replaced here, which
    # finds brokers at new addresses as well.
    "metadata.recovery.strategy": "none",
    "log.connection.close": False,
}
"""Defaults, which the caller's settings replace."""

FORCED: Final[Mapping[str, object]] = {
    # librdkafka forgets the coordinator of a group only if nobody asks for it for this long; an
    # answer of NOT_COORDINATOR does not make it look again.  See MOVED_WAIT_S.
    "metadata.max.age.ms": 1_000,
    # A written request is answered, or its connection ended, within this time; a request that is
    # still unwritten after STUCK_S never will be.  It also bounds how late a commit can land
    # that waits for its connection.
    "socket.timeout.ms": 10_000,
}
"""Settings that the pool depends on: the caller may not set them."""

ASKS_CONTROLLER: Final[Mapping[str, object]] = {"enable.sparse.connections": False}
"""Of a client that asks the controller: while no connection to it succeeds, librdkafka would try
one without a pause, thousands of times a second.  Such a client is connected to all brokers."""

_OF_TOPICS: Final = "default.topic.config"
"""confluent-kafka's old name for a mapping of settings."""

_LARGEST: Final = 2**63
log = SafeLogger("offsetmgr.kafka")
_TEXT_CHARS: Final = 300


def client_config(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the caller's settings with the pool's."""
    return {**DEFAULTS, **config, **FORCED}


def asking_config(config: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a client that asks, next to the application's of ``config``.

    It has none of its callbacks, but for the one that gets tokens.
    """
    return {
        name: value
        for name, value in config.items()
        if name not in FORCED and (name == "oauth_cb" or not callable(value))
    }


def check_names(settings: Iterable[object], field: str) -> None:
    """Refuse names that no setting has: with a lone surrogate librdkafka ends the process."""
    for name in settings:
        if not isinstance(name, str) or not name.isprintable():
            raise InvalidValueError(field, name, "is not the name of a setting", "give a string")


def checked_config(config: object) -> dict[str, object]:
    """Return librdkafka's settings; ``config`` may be the bootstrap servers alone.

    Raises InvalidValueError, which names a setting, never a value that may be a secret.
    """
    settings = {"bootstrap.servers": config} if isinstance(config, str) else config
    if not isinstance(settings, Mapping):
        hint = 'give "host:port,host:port", or a mapping of librdkafka\'s settings'
        raise InvalidValueError("config", type(config).__name__, "is neither", hint)
    check_names(settings, "config")
    for name, value in settings.items():
        number = isinstance(value, (int, float)) and -_LARGEST <= value <= _LARGEST
        # No lone surrogates; librdkafka would read up to a NUL.
        text = isinstance(value, str) and value.encode(errors="replace").decode() == value
        text = text and "\0" not in str(value)
        if not (number or text or callable(value)):
            kind = f"<{type(value).__name__}>"
            raise InvalidValueError(
                name, kind, "is not a value of a setting", "give a string or a number"
            )
        if name in FORCED:
            hint = f"remove it: the service depends on {FORCED[name]}"
            raise InvalidValueError(name, value, "cannot be set", hint)
    if not settings.get("bootstrap.servers"):
        hint = "give it, as host:port,host:port"
        raise InvalidValueError("bootstrap.servers", None, "is missing", hint)
    if _OF_TOPICS in settings:
        raise InvalidValueError(_OF_TOPICS, None, "cannot be set", "give its settings themselves")
    checked = dict(settings)
    if "oauth_cb" in checked:
        get_token = checked["oauth_cb"]
        # Not shown where it is a text, which may be a token.
        check_callable(get_token if callable(get_token) else type(get_token).__name__, "oauth_cb")
        if not isinstance(get_token, TokenFunction):
            checked["oauth_cb"] = TokenFunction(get_token)
    return checked | guarded_callbacks(checked)


def refused_config(config: Mapping[str, object], text: str) -> InvalidValueError:
    """Return the error to raise, without a cause, if librdkafka refuses a setting.

    Its ``text`` may quote a secret, and is cut before it.
    """
    text = visible(text, _TEXT_CHARS)
    tokens = config.get("oauth_cb")
    if isinstance(tokens, TokenFunction) and tokens.failure:
        hint = "correct the function, or what it asks for tokens"
        return InvalidValueError("oauth_cb", "***", f"gave no token: {tokens.failure}", hint)
    for name, value in config.items():
        if value and SECRET_NAME.search(name):
            # librdkafka may have cut its text in the middle of the secret.
            before, found, _ = text.partition(str(value)[:8])
            text = f"{before}***" if found else text
    problem = f"was refused by librdkafka: {text}"
    hint = "correct the setting it names; see librdkafka's CONFIGURATION.md"
    return InvalidValueError("kafka", sorted(config), problem, hint)


def guarded_callbacks(kafka: Mapping[str, Any]) -> dict[str, Callable[..., object]]:
    """Return the application's callbacks so that they do not raise: messages would be lost.

    In the main thread they raise SystemExit and KeyboardInterrupt, which may be a signal's: always
    as objects.  Of a bare status, as before Python 3.12, confluent-kafka makes a SystemError.
    Raises InvalidValueError.
    """
    return {
        name: _guarded_callback(name, value)
        for name, value in kafka.items()
        if name != "oauth_cb" and (name.endswith("_cb") or name == "on_commit")
    }


def _guarded_callback(name: str, callback: Callable[..., object]) -> Callable[..., object]:
    check_callable(callback, name)
    repeats = RepeatLimiter()

    def call(*arguments: object) -> object:
        try:
            return callback(*arguments)
        except BaseException as error:
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and not isinstance(error, Exception):
                raise
            suppressed = repeats.suppressed(type(error).__name__, time.monotonic())
            if suppressed is not None:
                log.exception("%s of the application has raised (%d more)", name, suppressed)
            return None

    return call
