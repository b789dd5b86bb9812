"""The gate counts work, not those who do not take what it came to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from offsetmgr.service.gate import Gate

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Works for as long as ``scope`` says, then answers."""
    scope["begun"].set()
    await scope["work"].wait()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def nothing() -> Message:
    """What is received."""
    return {"type": "http.disconnect"}


def request(*, done: bool) -> dict[str, Any]:
    """One whose work is done, or will be when its event is set."""
    work = asyncio.Event()
    if done:
        work.set()
    begun = asyncio.Event()
    return {"type": "http", "path": "/v1/managers", "headers": [], "begun": begun, "work": work}


def gate() -> Gate:
    """A gate with one place."""
    return Gate(
        app, hosts=None, instance="i", requests_in_flight=1, connections=9, draining=lambda: False
    )


async def status(gate: Gate, scope: Scope) -> int:
    """What is answered to a client that reads."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await gate(scope, nothing, send)
    return int(sent[0]["status"])


def test_an_answer_that_is_not_taken_takes_no_place() -> None:
    """A client that does not read costs others nothing."""

    async def main() -> None:
        one, written = gate(), asyncio.Event()

        async def stuck(_: Message) -> None:
            written.set()
            await asyncio.Event().wait()

        held = asyncio.create_task(one(request(done=True), nothing, stuck))
        await written.wait()
        assert await status(one, request(done=True)) == 200
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        assert one._in_flight == 0

    asyncio.run(main())


def test_work_takes_a_place_until_it_is_done() -> None:
    """Be it answered or given up."""

    async def main() -> None:
        one, working = gate(), request(done=False)
        first = asyncio.create_task(status(one, working))
        await working["begun"].wait()
        assert await status(one, request(done=True)) == 429
        working["work"].set()
        assert await first == 200
        endless = request(done=False)
        given_up = asyncio.create_task(status(one, endless))
        await endless["begun"].wait()
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        assert await status(one, request(done=True)) == 200

    asyncio.run(main())
