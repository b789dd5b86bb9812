"""What the keeper of seats, and who finds coordinators for it, remember, and what not."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from offsetmgr.coordinator.fence import wire
from offsetmgr.coordinator.fence.finder import Finder
from offsetmgr.coordinator.fence.keeper import FENCED_LOGGED, Identity, Keeper
from offsetmgr.coordinator.fence.link import LinkError, Links
from offsetmgr.coordinator.fence.seat import Seat, Standing

if TYPE_CHECKING:
    from collections.abc import Awaitable

WAIT_S = 30.0
"""A guard against what never comes, not a measure."""

FIND, JOIN = 10, 11
NO_ERROR = struct.pack(">ih", 0, 0)
FIRST = wire.Broker("first", 9_092)


class Kafka:
    """Brokers that grant all; each group is coordinated by the broker of its own name."""

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()
        """Requests by their key."""
        self.tried: list[str] = []
        """Hosts, in the order in which connections to them were asked for."""
        self.down: set[str] = set()

    def links(self) -> Links:
        """Connections to them."""
        return cast("Links", self)

    async def get(self, broker: wire.Broker, _number: int) -> Kafka:
        """A connection."""
        return await self.new(broker, "")

    async def new(self, broker: wire.Broker, _client_id: str) -> Kafka:
        """A connection."""
        self.tried.append(broker.host)
        if broker.host in self.down:
            raise LinkError(f"{broker.host} is down")
        return self

    def close(self) -> None:
        """End it."""

    def send(self, request: wire.Request, _limit_s: float = 0.0) -> asyncio.Future[bytes]:
        """Answer at once."""
        self.asked[request.api_key] += 1
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        answer.set_result(self._answer(request))
        return answer

    def _answer(self, request: wire.Request) -> bytes:
        group = wire.Reader(request.body).string()
        if request.api_key == FIND:
            named = wire.string("") + struct.pack(">i", 1) + wire.string(group)
            return NO_ERROR + named + struct.pack(">i", 9_092)
        if request.api_key == JOIN:
            who = wire.string("protocol") + wire.string("member") * 2
            member = wire.string("member") + wire.string(None) + wire.blob(b"")
            return NO_ERROR + struct.pack(">i", 1) + who + wire.array([member])
        return NO_ERROR + wire.array(())


@pytest.fixture
def kafka() -> Kafka:
    """Brokers."""
    return Kafka()


def keeper_on(kafka: Kafka) -> Keeper:
    """A keeper of seats that nobody else wants."""

    async def nobody(_group: str) -> str:
        return ""

    identity = Identity("service", "name", "client", 45.0, lambda: 0.0)
    return Keeper(kafka.links(), [FIRST], identity, nobody)


def run(what: Awaitable[Any]) -> None:
    """Do it, in an event loop of its own."""
    asyncio.run(asyncio.wait_for(what, WAIT_S))


def test_nothing_is_kept_of_a_group_that_was_given_up(kafka: Kafka) -> None:
    """Nor who coordinated it: a service may see a new group with every run of a job."""

    async def use() -> None:
        keeper = keeper_on(kafka)
        for times in (1, 2):
            assert await keeper.claim("g", asyncio.get_running_loop().time() + WAIT_S) is None
            assert kafka.asked[FIND] == times
            await keeper.release("g")
        assert keeper.count(Standing.SEATED) == 0

    run(use())


def test_brokers_are_remembered_beyond_their_groups(kafka: Kafka) -> None:
    """Those of the configuration may be gone when the next group comes, and the newest go first."""

    async def use() -> None:
        finder = Finder(kafka.links(), [FIRST])
        for group in ("a", "b", "a"):
            await finder.find(group)
            finder.forget(group)
        kafka.down |= {FIRST.host, "b"}
        kafka.tried.clear()
        assert (await finder.find("c")).host == "c"
        assert kafka.tried == [FIRST.host, "b", "a"]

    run(use())


def test_only_some_brokers_are_remembered(kafka: Kafka) -> None:
    """A new group is not asked for at all the addresses that brokers ever had."""

    async def use() -> None:
        finder = Finder(kafka.links(), [FIRST])
        groups = [f"group-{number}" for number in range(100)]
        for group in groups:
            await finder.find(group)
        kafka.down |= {FIRST.host, *groups}
        kafka.tried.clear()
        with pytest.raises(LinkError, match="is down"):
            await finder.find("new")
        assert kafka.tried == [FIRST.host, *reversed(groups[-16:])]

    run(use())


def test_many_losses_are_a_few_lines_and_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer service takes tens of thousands of groups at once: none is looked for in all."""

    def searched(_keeper: Keeper, _standing: Standing) -> int:
        raise AssertionError("all seats were walked through")

    async def use() -> None:
        keeper = keeper_on(Kafka())
        monkeypatch.setattr(Keeper, "count", searched)
        for number in range(FENCED_LOGGED + 50):
            seat = Seat(f"group-{number}")
            for _ in range(2):
                keeper._fence(seat, "taken")

    with capture_logs() as logs:
        run(use())
    events = Counter(entry["event"] for entry in logs)
    assert events == {"group_fenced": FENCED_LOGGED, "groups_fenced_more": 1}
