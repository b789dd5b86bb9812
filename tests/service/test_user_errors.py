"""A first script against something that is not there: one line says what, and what to do."""

from __future__ import annotations

import re
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from offsetmgr import OffsetClient
from tests.service.scripts import LONG_S, fail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.service.support import Running

COMMITTED = "client.committed('g', timeout=1)"
INITIAL = "client.spawn('g', 't', 0).initial_offset(timeout=1)"
SYNC = "client.submit('g', {('t', 1): 5}, sync=True, timeout=1)"
CLAIM = "client.claim('g', [('t', 2)], timeout=1)"
ALL = (COMMITTED, INITIAL, SYNC, CLAIM)

FRAMES = 4
"""Of this package in a traceback: more say nothing to whoever called it."""


@pytest.fixture
def mute() -> Iterator[str]:
    """A port that hangs up on whoever does not speak its protocol, as Kafka's does."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4)

        threading.Thread(target=hang_up, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def test_nobody_listens() -> None:
    """The first cause is told, not that the time ran out in the end."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        for failed in fail(url, *ALL):
            assert f"the service at {url} cannot be reached: connection refused" in failed.last
            assert failed.frames <= FRAMES


def test_a_host_that_is_not() -> None:
    """A misspelt host is called so."""
    for failed in fail("http://no-such-host.invalid:8741", COMMITTED, INITIAL):
        assert re.search(
            "cannot be reached: .*(not known|resolution).*is the url right", failed.last
        )


def test_another_protocol(mute: str) -> None:
    """A port that hangs up may be Kafka's own, and that is asked."""
    for failed in fail(mute, *ALL):
        assert "closed the connection without an answer" in failed.last
        assert "is this not its port? Kafka's does not speak HTTP" in failed.last


def test_a_kafka_that_hangs(service: Running) -> None:
    """The service lives and says so: it is Kafka that does not answer."""
    service.coordinator.pause()
    lines = (COMMITTED, INITIAL, SYNC)
    longer = [line.replace("timeout=1", f"timeout={LONG_S}") for line in lines]
    for failed in fail(service.address, *longer):
        assert failed.frames <= FRAMES
        assert re.search("Kafka (did not answer|has not answered)", failed.last)
        assert service.address not in failed.last


def test_another_client_has_it(service: Running) -> None:
    """It is named, and when its lease frees the partition if it is gone."""
    with OffsetClient(service.address, "nightly") as other:
        other.claim("g", [("t", number) for number in range(3)])
        for number, failed in enumerate(fail(service.address, INITIAL, SYNC, CLAIM)):
            assert f"g/t/{number} is held by client 'nightly'; close that client" in failed.last
            assert re.search(r"its lease frees the partition in \d\d s", failed.last)


def test_the_script_has_it_itself(service: Running) -> None:
    """The handle that was given before can be used: no other client is to be looked for."""
    (failed,) = fail(service.address, "for _ in range(2): client.spawn('g', 't', 0)")
    assert "g/t/0 is held by this client, 'script'; " in failed.last


def test_a_name_of_the_host_that_the_service_does_not_know(service: Running) -> None:
    """It says which names it has, and does not fill the log."""
    for failed in fail(service.address.replace("127.0.0.1", "0.0.0.0"), *ALL):  # noqa: S104
        assert "one of 127.0.0.1, [::1], localhost as the host" in failed.last
        assert len(failed.log) <= 1


def test_offsets_that_are_left_at_the_close_name_kafkas_reason(
    service: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """The last line of the log says whose fault it is."""
    service.coordinator.pause()
    client = OffsetClient(service.address, "etl")
    client.submit("g", {("t", 0): 5})
    client.close(timeout=1)
    assert "is closed; not committed: g/t/0 at 5; reason: " in caplog.messages[-1]
    assert "Kafka has not answered" in caplog.messages[-1]
