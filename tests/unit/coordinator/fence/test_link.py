"""A connection to a broker that is silent, leaves, or is none; over real sockets."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, TypeAlias
from unittest.mock import Mock

import pytest

from offsetmgr.coordinator.fence import wire
from offsetmgr.coordinator.fence.finder import Finder
from offsetmgr.coordinator.fence.link import ANSWER_BYTES, Link, LinkError, Links, open_link
from offsetmgr.coordinator.fence.security import Security

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

WAIT_S = 30.0
"""A guard against what never comes, not a measure."""

NO_SECURITY = Security(None, None)
QUESTION = wire.find_coordinator("g")
HEAD = struct.Struct(">ihhi")

Peer: TypeAlias = "Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]"


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take everything and never answer, as the far end of a half-open connection does."""
    await reader.read()
    writer.close()


async def leaving(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close as soon as there is a request."""
    await reader.read(1)
    writer.close()


async def babbling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Announce an answer that nobody would want to read."""
    await reader.read(1)
    writer.write(struct.pack(">i", ANSWER_BYTES + 1))
    await reader.read()
    writer.close()


async def hurried(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the second request before the first, with its own number."""
    numbers = []
    for _ in range(2):
        size, _, _, number = HEAD.unpack(await reader.readexactly(HEAD.size))
        await reader.readexactly(size - HEAD.size + 4)
        numbers.append(number)
    for number in reversed(numbers):
        writer.write(struct.pack(">iii", 8, number, number))
    await reader.read()
    writer.close()


async def naming(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say who coordinates the group."""
    size, _, _, number = HEAD.unpack(await reader.readexactly(HEAD.size))
    await reader.readexactly(size - HEAD.size + 4)
    head = struct.pack(">iihhi", number, 0, 0, -1, 7)
    answer = head + wire.string("kafka7") + struct.pack(">i", 9_092)
    writer.write(wire.blob(answer))
    await reader.read()
    writer.close()


def with_broker(peer: Peer, use: Callable[[wire.Broker], Awaitable[None]]) -> None:
    """Run ``use`` against a server on loopback."""

    async def run() -> None:
        server = await asyncio.start_server(peer, "127.0.0.1", 0)
        async with server:
            await use(wire.Broker(*server.sockets[0].getsockname()[:2]))

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


async def linked(broker: wire.Broker) -> Link:
    """A connection without security."""
    return await open_link(broker, NO_SECURITY, "test")


@pytest.mark.fault(14)
def test_a_half_open_connection_is_found_by_its_silence() -> None:
    """All that is open on it fails, and nothing more goes over it."""

    async def use(broker: wire.Broker) -> None:
        link = await linked(broker)
        patient, hasty = link.send(QUESTION), link.send(QUESTION, limit_s=0.01)
        for answer in (hasty, patient):
            with pytest.raises(LinkError, match="no answer for"):
                await answer
        assert not link.usable
        with pytest.raises(LinkError, match="no answer for"):
            link.send(QUESTION)

    with_broker(silent, use)


@pytest.mark.parametrize(
    ("peer", "why"),
    [(leaving, "closed the connection"), (babbling, "an answer of .* bytes")],
    ids=["leaves", "babbles"],
)
def test_what_is_open_fails_with_the_connection(peer: Peer, why: str) -> None:
    """Nobody waits for what cannot come."""

    async def use(broker: wire.Broker) -> None:
        link = await linked(broker)
        with pytest.raises(LinkError, match=why):
            await link.send(QUESTION)
        assert not link.usable

    with_broker(peer, use)


def test_a_connection_that_ends_without_words_has_ended() -> None:
    """Not every error of the operating system's has a text."""

    async def run() -> None:
        reader = asyncio.StreamReader()
        link = Link(reader, Mock(spec=asyncio.StreamWriter), "test")
        answer = link.send(QUESTION)
        reader.set_exception(ConnectionResetError())
        with pytest.raises(LinkError, match="ConnectionResetError"):
            await answer
        assert not link.usable

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


def test_answers_match_their_requests() -> None:
    """By number, not by order."""

    async def use(broker: wire.Broker) -> None:
        link = await linked(broker)
        answers = [link.send(QUESTION), link.send(QUESTION)]
        numbers = [int.from_bytes(await answer, "big") for answer in answers]
        assert numbers == [1, 2]
        link.close()

    with_broker(hurried, use)


def test_a_connection_that_has_ended_is_made_anew() -> None:
    """The same number gives the same connection until then."""

    async def use(broker: wire.Broker) -> None:
        links = Links(NO_SECURITY, "test")
        first = await links.get(broker, 0)
        assert await links.get(broker, 0) is first
        assert await links.get(broker, 1) is not first
        first.close()
        assert await links.get(broker, 0) is not first
        links.close()

    with_broker(silent, use)


def test_a_coordinator_is_looked_for_at_every_broker() -> None:
    """One that is down says nothing of the others; of none that answers the reason is told."""

    async def use(broker: wire.Broker) -> None:
        links = Links(NO_SECURITY, "test")
        nobody = wire.Broker("127.0.0.1", 1)
        with pytest.raises(LinkError, match=f"closed|{broker.port}"):
            await Finder(links, [nobody, broker]).find("g")
        with pytest.raises(LinkError, match=r"127\.0\.0\.1:1"):
            await Finder(links, [broker, nobody]).find("g")
        links.close()

    with_broker(leaving, use)


@pytest.mark.parametrize(
    ("host", "port"),
    [("kafka..example", 9_092), (f"{'k' * 64}.example", 9_092), ("a\0b", 1), ("127.0.0.1", 99_999)],
    ids=["empty label", "long label", "NUL", "port"],
)
def test_a_broker_that_cannot_be_is_one_that_is_down(host: str, port: int) -> None:
    """A typing error in one address, or a broker's nonsense, does not stop the fence."""

    async def use(broker: wire.Broker) -> None:
        links, impossible = Links(NO_SECURITY, "test"), wire.Broker(host, port)
        found = await Finder(links, [impossible, broker]).find("g")
        assert found == ("kafka7", 9_092)
        with pytest.raises(LinkError):
            await links.new(impossible, "test")
        links.close()

    with_broker(naming, use)
