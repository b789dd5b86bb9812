"""Who coordinates a group: asked once, and again when that turns out to be wrong."""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Final

from offsetmgr.coordinator.fence import wire
from offsetmgr.coordinator.fence.link import LinkError
from offsetmgr.errors import InvalidValueError, error_info

if TYPE_CHECKING:
    from offsetmgr.coordinator.fence.link import Links
    from offsetmgr.coordinator.fence.wire import Broker
    from offsetmgr.errors import ErrorInfo

_ASKING: Final = -1
"""Number of the connections that questions go over."""

_OTHERS: Final = 16
"""Brokers remembered beside those of the configuration, which may be gone by now."""

_DEFAULT_PORT: Final = 9092
_PORTS: Final = range(1, 65_536)
_PORT_DIGITS: Final = 5


def brokers_of(bootstrap_servers: str) -> list[Broker]:
    """The addresses in ``host:port,host:port``.  Raises InvalidValueError."""
    parts = [part for part in map(str.strip, bootstrap_servers.split(",")) if part]
    if not parts:
        raise _no_address(bootstrap_servers)
    return [_broker_of(part) for part in parts]


def _broker_of(part: str) -> Broker:
    address = part.rpartition("://")[2]
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(_DEFAULT_PORT)
    numbered = port.isdecimal() and len(port) <= _PORT_DIGITS
    if not host or not numbered or int(port) not in _PORTS:
        raise _no_address(part)
    return wire.Broker(host.strip("[]"), int(port))


def _no_address(value: str) -> InvalidValueError:
    fix = f"give it as host:port,host:port, with ports from 1 to {_PORTS[-1]}"
    return InvalidValueError("bootstrap.servers", value, "is no address", fix)


class RefusedError(LinkError):
    """Brokers answer, but do not say who coordinates the group."""

    def __init__(self, info: ErrorInfo) -> None:
        """``info`` is why."""
        super().__init__(f"{info.hint} ({info.name})")
        self.info = info


class Finder:
    """Remembers the coordinators of groups; for the event loop."""

    def __init__(self, links: Links, bootstrap: list[Broker]) -> None:
        self._links = links
        self._bootstrap = bootstrap
        self._found: dict[str, Broker] = {}
        self._others: deque[Broker] = deque(maxlen=_OTHERS)
        """Coordinators of any group, newest first; they outlive what is forgotten of groups."""

    async def find(self, group: str) -> Broker:
        """The coordinator of ``group``; any broker is asked.  Raises LinkError."""
        known = self._found.get(group)
        if known is not None:
            return known
        trouble = LinkError("no broker was asked")
        # Those of the configuration may be gone by now, others not.
        for broker in dict.fromkeys(chain(self._bootstrap, self._others)):
            try:
                link = await self._links.get(broker, _ASKING)
                answer = wire.read_found(await link.send(wire.find_coordinator(group)))
            except (LinkError, wire.MalformedError) as error:
                trouble = LinkError(str(error))
                continue
            if not answer.error:
                self._remember(group, answer.broker)
                return answer.broker
            trouble = RefusedError(error_info(answer.error))
        raise trouble

    def forget(self, group: str) -> None:
        """Ask again next time."""
        self._found.pop(group, None)

    def _remember(self, group: str, broker: Broker) -> None:
        self._found[group] = broker
        if broker not in self._others:
            self._others.appendleft(broker)
