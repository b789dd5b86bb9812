"""A small service that speaks the wire contract over real HTTP, and misbehaves on request.

Its Kafka is a dictionary that survives `restart`; everything else does not, as in the real one.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections import defaultdict, deque
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from offsetmgr.types import ManagerKey, OffsetAndMetadata
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Callable


Json = dict[str, Any]

KEY = ManagerKey("g", "orders", 3)
"""The manager of most tests."""

DENIED: Json = {"code": "GROUP_AUTHORIZATION_FAILED", "message": "denied", "kafka_code": 30}
"""Kafka's refusal for good of a commit."""


class Seen(NamedTuple):
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Json

    @property
    def incarnation(self) -> int:
        """The client's that it comes from."""
        return int(self.headers.get("offsetmgr-incarnation", "0"))


class Fault(NamedTuple):
    """An action in place of an answer."""

    act: bool = True
    """True if the request has its effect."""
    cut: bool = False
    """Close the connection in the middle of the answer."""
    status: int = 0
    """Answer with this status and `body`."""
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    hold: threading.Event | None = None
    """Answer only when this is set."""


DROP = Fault(act=False, cut=True)
"""The connection closes before the request has had any effect."""

CUT = Fault(act=True, cut=True)
"""It has its effect, and the connection closes in the middle of the answer."""


def error_body(code: str, message: str = "no", **more: object) -> bytes:
    return json.dumps({"error": {"code": code, "message": message, **more}}).encode()


class ScriptedService:
    """Runs from the start; `down` and `up` close and open its port."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.requests: list[Seen] = []
        self.kafka: dict[ManagerKey, OffsetAndMetadata] = {}
        """The committed offsets."""
        self.managers: dict[ManagerKey, str] = {}
        """Owners."""
        self.taken: dict[ManagerKey, Json] = {}
        """Offsets accepted and not committed."""
        self.initial: dict[ManagerKey, OffsetAndMetadata | None] = {}
        self.commits = True
        """True if Kafka takes commits; `commit_error` is what it says where it does not."""
        self.commit_error: Json | None = None
        self.fetches = True
        """True if initial offsets become known."""
        self.lease_s = 30.0
        self.instance = "instance-1"
        self.versions: dict[ManagerKey, int] = {}
        """The newest seen, of stopped managers too."""
        self.stopped_all: dict[str, int] = {}
        """The version of each client's last stop of everything."""
        self._highest: dict[str, int] = {}
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._readers: list[queue.SimpleQueue[bytes | None]] = []
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self._connections: set[Any] = set()
        self._operations: dict[str, Callable[[str, Seen], Json]] = {
            "POST heartbeat": lambda _client, _seen: {"lease_s": self.lease_s, "last_event_id": 7},
            "POST managers": self._open,
            "POST offsets": self._submit,
            "POST flush": self._settle,
            "POST stop": self._stop,
            "GET initial_offsets": lambda _client, seen: self._initial_offsets(seen),
            "GET offsets": lambda _client, seen: self._offsets(seen),
            "GET topics": lambda _client, seen: _topics(seen),
        }
        self.up()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    # What a test orders

    def script(self, path: str, *faults: Fault) -> None:
        """The next requests of `path` are answered with `faults`, one each."""
        with self.lock:
            self._faults[path].extend(faults)

    def restart(self) -> None:
        """A new process: it knows what Kafka has, and nothing else."""
        with self.lock:
            self.instance = f"instance-{int(self.instance.split('-')[1]) + 1}"
            for kept in (self.managers, self.taken, self.initial, self.versions, self._highest):
                kept.clear()
            self.stopped_all.clear()

    def up(self) -> None:
        """Listen, on the same port as before."""
        service = self

        class Handler(_Handler):
            scripted = service

        self._server = _Server(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def down(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        with self.lock:
            for connection in list(self._connections):
                with suppress(OSError):
                    connection.shutdown(2)
            for reader in self._readers:
                reader.put(None)

    def emit(self, event: str, data: Json, number: int | str | None = None) -> None:
        head = "" if number is None else f"id: {number}\n"
        text = f"{head}event: {event}\ndata: {json.dumps(data)}\n\n"
        with self.lock:
            for reader in self._readers:
                reader.put(text.encode())

    # What a test waits for

    def wait_for(self, predicate: Callable[[], bool]) -> None:
        """Wait until `predicate` holds; it is looked at after each request."""
        with self.lock:
            assert self.lock.wait_for(predicate, WAIT_S), f"never came; seen: {self.paths()}"

    def paths(self) -> list[str]:
        """The paths of all requests but heartbeats."""
        return [each.path for each in self.requests if each.path != "/v1/heartbeat"]

    def of(self, path: str, method: str = "POST") -> list[Seen]:
        return [each for each in self.requests if (each.path, each.method) == (path, method)]

    def wait_for_readers(self) -> None:
        self.wait_for(lambda: bool(self._readers))

    # What it does

    def handle(self, seen: Seen) -> tuple[int, bytes]:
        """Status and body; under the lock."""
        client = seen.headers.get("offsetmgr-client", "")
        if seen.incarnation < self._highest.get(client, 0):
            return 409, error_body("client_fenced", "a newer incarnation has taken over")
        if seen.headers.get("offsetmgr-instance", self.instance) != self.instance:
            return 412, error_body("other_instance", "the request is for another process")
        if seen.incarnation > self._highest.get(client, 0):
            self.versions.clear()  # those of a newer incarnation begin anew
            self.stopped_all.clear()
        self._highest[client] = seen.incarnation
        operation = f"{seen.method} {seen.path.rsplit('/', 1)[1]}".replace("-", "_")
        body = json.dumps(self._operations[operation](client, seen)).encode()
        return 200, body

    def _open(self, client: str, seen: Seen) -> Json:
        managers = []
        for each in seen.body["partitions"]:
            key = ManagerKey(seen.body["group"], each["topic"], each["partition"])
            where = {"topic": key.topic, "partition": key.partition}
            managers.append({**where, "error": self._spawn(key, client, each["version"])})
        return {"managers": managers}

    def _spawn(self, key: ManagerKey, client: str, version: int) -> Json | None:
        stopped = max(self.stopped_all.get(client, 0), self.versions.get(key, 0))
        if key not in self.managers and version < stopped:
            return {"code": "manager_stopped", "message": "stopped by a newer request"}
        owner = self.managers.setdefault(key, client)
        if owner != client:
            return {"code": "manager_exists", "message": "held", "owner": owner}
        self.initial.setdefault(key, self.kafka.get(key))
        return None

    def _submit(self, client: str, seen: Seen) -> Json:
        group = seen.body["group"]
        refused: list[Json] = []
        for each in seen.body["offsets"]:
            key = ManagerKey(group, each["topic"], each["partition"])
            error = self._spawn(key, client, each["version"])
            if error is None and each["version"] > self.versions.get(key, 0):
                error = self._take(key, each)
            if error is not None:
                where = {"topic": key.topic, "partition": key.partition}
                refused.append({**where, "error": error})
        return {"accepted": len(seen.body["offsets"]) - len(refused), "refused": refused}

    def _take(self, key: ManagerKey, offered: Json) -> Json | None:
        newest = self.taken.get(key)
        kept = self.kafka.get(key)
        floor = newest["offset"] if newest else kept.offset if kept else -1
        if offered["offset"] < floor and not offered.get("rewind"):
            message = {"code": "offset_regression", "message": "lower"}
            return {**message, "offset": offered["offset"], "floor": floor}
        self.taken[key], self.versions[key] = offered, offered["version"]
        return None

    def _commit(self, key: ManagerKey) -> bool:
        """Commit what was taken; whether something is left."""
        if key not in self.taken or not self.commits:
            return key in self.taken
        each = self.taken.pop(key)
        value = (each["offset"], each.get("metadata", ""), each.get("leader_epoch"))
        self.kafka[key] = OffsetAndMetadata(*value)
        return False

    def _entry(self, key: ManagerKey) -> Json:
        where = {"topic": key.topic, "partition": key.partition}
        left = self.taken.get(key)
        if left is not None:
            metadata = left.get("metadata", "")
            value = {"offset": left["offset"], "metadata": metadata, "error": self.commit_error}
            return {**where, **value}
        return {**where, **self.kafka[key]._asdict()}

    def _stop(self, client: str, seen: Seen) -> Json:
        answer = self._settle(client, seen)
        if "group" not in seen.body:
            self.stopped_all[client] = seen.body["version"]
        for key in self._meant(client, seen):
            self.versions[key] = seen.body["version"]
            del self.managers[key]
            self.taken.pop(key, None)
        return answer

    def _meant(self, client: str, seen: Seen) -> list[ManagerKey]:
        group, named = seen.body.get("group"), seen.body.get("partitions")
        wanted = None if named is None else {(each["topic"], each["partition"]) for each in named}
        return [
            key
            for key, owner in self.managers.items()
            if owner == client
            and group in {None, key.group}
            and (wanted is None or key.topic_partition in wanted)
        ]

    def _settle(self, client: str, seen: Seen) -> Json:
        committed, uncommitted = [], []
        for key in self._meant(client, seen):
            if self._commit(key):
                uncommitted.append({"group": key.group, **self._entry(key)})
            elif key in self.kafka:
                committed.append({"group": key.group, **self._entry(key)})
        return {"committed": committed, "uncommitted": uncommitted}

    def _initial_offsets(self, seen: Seen) -> Json:
        query = {name: values[0] for name, values in seen.query.items()}
        key = ManagerKey(query["group"], query["topic"], int(query["partition"]))
        if key not in self.initial:
            return {"initial_offsets": []}
        where = {"topic": key.topic, "partition": key.partition}
        if not self.fetches:
            error = {"code": "COORDINATOR_LOAD_IN_PROGRESS", "message": "m", "kafka_code": 14}
            return {
                "initial_offsets": [{**where, "known": False, "committed": None, "error": error}]
            }
        value = self.initial[key]
        committed = None if value is None else {**where, **value._asdict()}
        known = {**where, "known": True, "committed": committed, "error": None}
        return {"initial_offsets": [known]}

    def _offsets(self, seen: Seen) -> Json:
        group = seen.query["group"][0]
        found = [
            {**key.topic_partition._asdict(), **value._asdict()}
            for key, value in self.kafka.items()
            if key.group == group
        ]
        return {"group": group, "offsets": found}

    def fault(self, path: str) -> Fault | None:
        """Return the script's answer to a request of `path`."""
        faults = self._faults[path]
        return faults.popleft() if faults else None

    def read_events(self) -> queue.SimpleQueue[bytes | None]:
        """A new reader; None ends its stream."""
        with self.lock:
            reader: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            self._readers.append(reader)
            self.lock.notify_all()
        return reader

    def forget_reader(self, reader: queue.SimpleQueue[bytes | None]) -> None:
        with self.lock:
            self._readers.remove(reader)
            self.lock.notify_all()


def _topics(seen: Seen) -> Json:
    """Every topic has two partitions, but for `missing`."""
    error = {"code": "UNKNOWN_TOPIC_OR_PARTITION", "message": "does not exist"}
    ends = [{"partition": n, "log_start_offset": n, "high_watermark": 10 + n} for n in range(2)]
    return {
        "topics": [
            {"topic": name, "error": error, "partitions": []}
            if name == "missing"
            else {"topic": name, "error": None, "partitions": ends}
            for name in seen.query["topic"]
        ]
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that hung up; report all else."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    scripted: ScriptedService
    instance = ""
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        with self.scripted.lock:
            self.scripted._connections.add(self.connection)

    def finish(self) -> None:
        with self.scripted.lock:
            self.scripted._connections.discard(self.connection)
        with suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Stay silent."""

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers["Content-Length"])))

    def _serve(self, body: bytes) -> None:
        scripted, parts = self.scripted, urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        data = json.loads(body) if body else {}
        seen = Seen(self.command, parts.path, parse_qs(parts.query), headers, data)
        with scripted.lock:
            self.instance = scripted.instance
            fault = scripted.fault(seen.path) or Fault()
            scripted.requests.append(seen)
            if seen.path == "/v1/events":
                answer = (200, b"")
            else:
                answer = scripted.handle(seen) if fault.act else (500, b"")
            scripted.lock.notify_all()
        if fault.hold is not None:
            fault.hold.wait(WAIT_S)
        if fault.cut:
            self._cut(answer[1] if fault.act else b"")
        elif seen.path == "/v1/events" and not fault.status:
            self._stream()
        elif fault.status:
            self._answer(fault.status, fault.body, fault.headers)
        else:
            self._answer(*answer)

    def _answer(self, status: int, body: bytes, more: tuple[tuple[str, str], ...] = ()) -> None:
        self.send_response(status)
        headers = {"Offsetmgr-Instance": self.instance, **dict(more)}
        headers["Content-Length"] = str(len(body))
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _cut(self, body: bytes) -> None:
        if body:
            self.send_response(200)
            self.send_header("Offsetmgr-Instance", self.instance)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
        self.close_connection = True

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Offsetmgr-Instance", self.instance)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        reader = self.scripted.read_events()
        try:
            self.wfile.write(b": connected\n\n")
            while (piece := reader.get()) is not None:
                self.wfile.write(piece)
        except OSError:
            pass
        finally:
            self.scripted.forget_reader(reader)
