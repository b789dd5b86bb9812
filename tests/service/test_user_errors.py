"""A first script against something that is not there: one line says what, and what to do."""

from __future__ import annotations

import re
import socket
import threading
import traceback
from typing import TYPE_CHECKING

import pytest

from offsetmgr import OffsetClient
from offsetmgr.deadlines import Deadline
from offsetmgr.errors import ManagerExistsError, OffsetManagerError
from tests.service.support import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.service.support import Running

LONG_S = 5

FRAMES = 4
"""Of this package in a traceback: more say nothing to whoever called it."""


def committed(client: OffsetClient, timeout: float) -> None:
    client.committed("g", timeout=timeout)


def initial(client: OffsetClient, timeout: float) -> None:
    client.spawn("g", "t", 0).initial_offset(timeout=timeout)


def sync(client: OffsetClient, timeout: float) -> None:
    client.submit("g", {("t", 1): 5}, sync=True, timeout=timeout)


def claim(client: OffsetClient, timeout: float) -> None:
    client.claim("g", [("t", 2)], timeout=timeout)


ALL = (committed, initial, sync, claim)


def errors(
    url: str,
    *calls: Callable[[OffsetClient, float], None],
    timeout: float = 2,
    frames: int = FRAMES,
) -> list[str]:
    """Make each call, which has to fail; return what stands below its traceback, which is short."""
    client, found = OffsetClient(url, "script"), []
    for call in calls:
        with pytest.raises(OffsetManagerError) as caught:
            call(client, timeout)
        lines = traceback.format_exception(caught.value)
        ours = [line for line in lines if f'File "{ROOT}/offsetmgr/' in line]
        assert len(ours) <= frames, "".join(lines)
        found.append(str(caught.value))
    client.close(timeout=0)
    return found


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
        for error in errors(url, *ALL):
            assert f"the service at {url} cannot be reached: connection refused" in error


def test_a_host_that_is_not() -> None:
    """A misspelt host is called so."""
    for error in errors("http://no-such-host.invalid:8741", committed, initial):
        assert re.search("cannot be reached: .*(not known|resolution).*is the url right", error)


def test_another_protocol(mute: str) -> None:
    """A port that hangs up may be Kafka's own, and that is asked."""
    for error in errors(mute, *ALL):
        assert "closed the connection without an answer" in error
        assert "is this not its port? Kafka's does not speak HTTP" in error


def test_a_kafka_that_hangs(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service lives and says so: it is Kafka that does not answer."""
    # A slow machine has the rest of the time for the answer.
    monkeypatch.setattr(Deadline, "for_service_s", lambda deadline: deadline.within_s() / 10)
    service.coordinator.pause()
    calls = committed, initial, sync
    # The last of many questions may be under way at the end.
    for error in errors(service.address, *calls, timeout=LONG_S, frames=2 * FRAMES):
        assert re.search("Kafka (did not answer|has not answered)", error)
        assert service.address not in error
    service.coordinator.resume()


def test_another_client_has_it(service: Running) -> None:
    """It is named, and when its lease frees the partition if it is gone."""
    with OffsetClient(service.address, "größe 100%") as other:
        other.claim("g", [("t", number) for number in range(3)])
        found = errors(service.address, initial, sync, claim)
        for number, error in enumerate(found):
            assert f"g/t/{number} is held by client 'größe 100%'; close that client" in error
            assert re.search(r"its lease frees the partition in \d\d s", error)


def test_the_script_has_it_itself(service: Running) -> None:
    """The handle that was given before can be used: no other client is to be looked for."""
    with OffsetClient(service.address, "script") as client:
        client.spawn("g", "t", 0)
        with pytest.raises(ManagerExistsError, match="g/t/0 is held by this client, 'script'; "):
            client.spawn("g", "t", 0)


def test_a_name_of_the_host_that_the_service_does_not_know(
    service: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """It says which names it has, and does not fill the log."""
    for error in errors(service.address.replace("127.0.0.1", "0.0.0.0"), *ALL):  # noqa: S104
        assert "one of 127.0.0.1, [::1], localhost as the host" in error
    assert len([each for each in caplog.messages if "refuses requests" in each]) == 1
