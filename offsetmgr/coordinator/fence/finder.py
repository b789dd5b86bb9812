"""Who coordinates a group: asked once, and again when that turns out to be wrong."""

from __future__ import annotations

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

_DEFAULT_PORT: Final = 9092


def brokers_of(bootstrap_servers: str) -> list[Broker]:
    """The addresses in ``host:port,host:port``.  Raises InvalidValueError."""
    found = []
    for part in bootstrap_servers.split(","):
        address = part.strip().rpartition("://")[2]
        host, colon, port = address.rpartition(":")
        if not colon or address.endswith("]"):
            host, port = address, str(_DEFAULT_PORT)
        if not host or not port.isdecimal():
            fix = "give it as host:port,host:port"
            raise InvalidValueError("bootstrap.servers", part, "is no address", fix)
        found.append(wire.Broker(host.strip("[]"), int(port)))
    return found


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

    async def find(self, group: str) -> Broker:
        """The coordinator of ``group``; any broker is asked.  Raises LinkError."""
        known = self._found.get(group)
        if known is not None:
            return known
        trouble = LinkError("no broker was asked")
        # Those of the configuration may be gone by now, others not.
        for broker in dict.fromkeys(chain(self._bootstrap, self._found.values())):
            try:
                link = await self._links.get(broker, _ASKING)
                answer = wire.read_found(await link.send(wire.find_coordinator(group)))
            except (LinkError, wire.MalformedError) as error:
                trouble = LinkError(str(error))
                continue
            if not answer.error:
                self._found[group] = answer.broker
                return answer.broker
            trouble = RefusedError(error_info(answer.error))
        raise trouble

    def forget(self, group: str) -> None:
        """Ask again next time."""
        self._found.pop(group, None)
