"""The service as a process that the machine or Kafka leaves without what it needs."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr import OffsetClient
from offsetmgr.errors import OffsetManagerError
from tests.faults.support import TOPIC, WAIT_S, committing
from tests.kafka.mock_cluster import OFFSET_COMMIT, MockCluster
from tests.service.support import ServeProcess, memory_process, serve_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

_MB = 1 << 20
_STACK = 64 * _MB
_ROOM = _STACK + 32 * _MB
"""Of address space: for one more thread."""
_LOADING, _DENIED = 14, 30


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    """One mock broker with a topic."""
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC)
        yield cluster


def beside(mock: MockCluster, **settings: str) -> ServeProcess:
    """A service on the mock, with quick commits."""
    quick = {"commit.commit_interval_s": "0.05", "commit.request_timeout_s": "2", **settings}
    options = [part for name, value in quick.items() for part in ("--set", f"{name}={value}")]
    address = ("--listen", "127.0.0.1:0", "--bootstrap-servers", mock.bootstrap_servers)
    return serve_process(*address, *options)


def commit(http: httpx.Client, group: str, offset: int, timeout_s: float = WAIT_S) -> Any:
    """Submit and wait; what the service answers."""
    entry = {"topic": TOPIC, "partition": 0, "offset": offset}
    body = {"group": group, "offsets": [entry], "wait": True, "timeout_s": timeout_s}
    return http.post("/v1/offsets", json=body).raise_for_status().json()


@contextlib.contextmanager
def soft_limit(kind: int, value: int) -> Iterator[None]:
    """A limit that the processes started meanwhile inherit."""
    before, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (before, hard))


def limit(service: ServeProcess, kind: int, value: int) -> tuple[int, int]:
    """Limit the running service; what limited it before."""
    _, hard = resource.prlimit(service.process.pid, kind)
    return resource.prlimit(service.process.pid, kind, (value, hard))


@pytest.mark.fault(6)
def test_a_sync_submit_is_acknowledged_by_the_coordinator_alone(
    mock: MockCluster, group: str
) -> None:
    """Refused for now it waits, refused for good it raises; what returns is in Kafka."""
    with (
        beside(mock) as service,
        OffsetClient(service.address, name=group) as client,
        committing(mock.bootstrap_servers) as kafka,
    ):
        mock.push_errors(OFFSET_COMMIT, *[_LOADING] * 3)
        client.submit(group, {(TOPIC, 0): 1}, sync=True, timeout=WAIT_S)
        assert kafka.in_kafka(group) == 1
        assert mock.count(OFFSET_COMMIT) == 4
        mock.push_errors(OFFSET_COMMIT, _DENIED)
        with pytest.raises(OffsetManagerError, match="GROUP_AUTHORIZATION_FAILED"):
            client.submit(group, {(TOPIC, 0): 2}, sync=True, timeout=WAIT_S)
        assert kafka.in_kafka(group) == 1
        client.submit(group, {(TOPIC, 0): 3}, sync=True, timeout=WAIT_S)
        assert kafka.in_kafka(group) == 3


@pytest.mark.fault(31)
def test_sigterm_with_the_broker_down_exits_3_and_names_what_is_left(
    mock: MockCluster, group: str
) -> None:
    """The deadline holds although Kafka is away; what was committed before is not named."""
    with beside(mock, stop_timeout_s="4") as service, service.http(group) as http:
        other = f"{group}-other"
        assert commit(http, other, 1)["uncommitted"] == []
        assert commit(http, group, 1)["uncommitted"] == []
        mock.set_down(1)
        assert len(commit(http, group, 2, timeout_s=0.1)["uncommitted"]) == 1
        assert service.stop([signal.SIGTERM]) == 3
        (left,) = (each for each in service.records if each["event"] == "uncommitted")
        assert (left["group"], left["topic"], left["offset"]) == (group, TOPIC, 2)
        assert left["error"]


@pytest.mark.fault(35)
def test_without_file_descriptors_old_connections_go_on_and_new_ones_wait() -> None:
    """Nobody is answered by half; with room again everybody is."""
    with memory_process("commit.commit_interval_s=0.05") as service, service.http("old") as old:
        assert commit(old, "g", 1)["uncommitted"] == []
        held = [int(name) for name in os.listdir(f"/proc/{service.process.pid}/fd")]  # noqa: PTH208
        before, _ = limit(service, resource.RLIMIT_NOFILE, max(held) + 1)
        host, port = service.address.removeprefix("http://").split(":")
        with contextlib.ExitStack() as stack:
            news = [
                stack.enter_context(socket.create_connection((host, int(port)), WAIT_S))
                for _ in range(max(held) + 10)
            ]
            for new in news:
                with contextlib.suppress(ConnectionError):
                    new.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for offset in range(2, 7):
                assert commit(old, "g", offset)["uncommitted"] == []
            assert "" in {answer_so_far(new) for new in news}
        limit(service, resource.RLIMIT_NOFILE, before)
        with service.http("new") as late:
            assert commit(late, "h", 1)["uncommitted"] == []
        assert service.stop() == 0


def answer_so_far(connection: socket.socket) -> str:
    """What has come over it by now; nothing also where it was closed."""
    connection.setblocking(False)  # noqa: FBT003 -- the library's signature
    try:
        return connection.recv(12).decode()
    except (BlockingIOError, ConnectionError):
        return ""


@pytest.mark.fault(35)
def test_without_threads_old_groups_go_on_and_new_ones_are_told(mock: MockCluster) -> None:
    """A group that needs a client of its own waits for it and says why; SIGTERM still commits."""
    # The names decide which client of the pool they get: these two do not share one.
    old, new = "old", "other"
    # Root has no limit of threads, so each is given a stack; there is address space for one, which
    # is worse than for none: librdkafka crashes where it gets a part of its threads.
    with soft_limit(resource.RLIMIT_STACK, _STACK), beside(mock) as service:
        with service.http("etl") as http:
            assert commit(http, old, 1)["uncommitted"] == []
            before, _ = limit(service, resource.RLIMIT_AS, address_space(service) + _ROOM)
            for offset in range(2, 7):
                assert commit(http, old, offset)["uncommitted"] == []
            while (error := left_over(commit(http, new, 1, timeout_s=0.2))) is None:
                continue  # it has not come to that yet
            assert error["code"] == "NOT_SENT"
            assert error["retriable"]
            limit(service, resource.RLIMIT_AS, before)
            assert commit(http, new, 1)["uncommitted"] == []
            limit(service, resource.RLIMIT_AS, address_space(service) + _ROOM)
        assert service.stop() == 0


def left_over(answer: Any) -> Any:
    """Why the one offset is not committed; None where nothing is known yet."""
    (left,) = answer["uncommitted"]
    return left["error"]


def address_space(service: ServeProcess) -> int:
    """Bytes of it that the service has taken."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmSize:"))
    return int(line.split()[1]) * 1024
