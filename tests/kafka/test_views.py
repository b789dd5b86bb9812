"""Views on a real Kafka: what they hold, how they go on, what other processes see."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from offsetmgr.errors import OffsetTimeoutError
from offsetmgr.local import LocalOffsets
from offsetmgr.streams import TopicsError, ViewError, codecs
from offsetmgr.streams.kafka import kafka_emitter
from offsetmgr.streams.lookups import rows_of
from offsetmgr.streams.memory import MemoryStorage
from offsetmgr.streams.messages import partition_of, update_rows
from offsetmgr.streams.storage import LmdbReader
from offsetmgr.streams.view import View, ViewState
from tests.commands import run, run_alone
from tests.conftest import create_topic
from tests.interrupted import interrupted
from tests.logs import capture_logs
from tests.service.support import ServeProcess
from tests.waiting import WAIT_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from offsetmgr.devkafka import DevKafka
    from offsetmgr.streams.messages import Message
    from offsetmgr.streams.partition_table import PendingRows
    from tests.conftest import TopicFactory

ROOT = Path(__file__).parents[2]
PARTITIONS = 3


def emit(kafka: DevKafka, topic: str, rows: Mapping[str, int | None]) -> None:
    with kafka_emitter(kafka.bootstrap_servers, topic, codecs.Int64()) as emitter:
        for key, value in rows.items():
            emitter.emit(key, value)


def view_of(kafka: DevKafka, topic: str, path: Path | None, **options: Any) -> View:
    return View(kafka.bootstrap_servers, topic, codecs.Int64(), path, **options)


@pytest.fixture
def table(kafka: DevKafka, new_topic: TopicFactory) -> str:
    """Return a topic with one row."""
    topic = new_topic(1)
    emit(kafka, topic, {"a": 1})
    return topic


class TestRows:
    def test_a_view_has_the_rows_of_its_topic(
        self, kafka: DevKafka, new_topic: TopicFactory, tmp_path: Path
    ) -> None:
        """Rows of all partitions are in the order of their keys, and follow what is written."""
        topic = new_topic(PARTITIONS)
        rows: dict[str, int | None] = {f"key-{number:03}": number for number in range(100)}
        emit(kafka, topic, rows)
        emit(kafka, topic, {"key-005": None, "": 7})
        view = view_of(kafka, topic, tmp_path)
        states: list[ViewState] = []
        stop_observing = view.observe(states.append)
        with pytest.raises(ViewError, match=r"is idle, and has no rows to read yet: call start"):
            view.get("key-001")
        with view:
            view.wait_until_running(WAIT_S)
            assert states == sorted(states)
            assert view.recovered
            assert (view.topic, view.state) == (topic, states[-1]) == (topic, ViewState.RUNNING)
            names = [thread.name for thread in threading.enumerate()]
            assert len([name for name in names if name.startswith(f"table-{topic}")]) <= 3
            assert (view.get("key-004"), view.get("key-005"), view.get("")) == (4, None, 7)
            assert (view.has("key-004"), view.has("key-005")) == (True, False)
            expected = [("", 7)] + [(key, n) for key, n in rows.items() if n != 5]
            assert list(view) == expected
            assert [key for key, _ in view.items("key-00")] == [
                f"key-00{number}" for number in range(10) if number != 5
            ]
            found = view.items("key-003", "key-007")
            assert next(found) == ("key-003", 3)
            found.seek("key-006")
            assert list(found) == [("key-006", 6)]
            found.seek("key-001")
            assert next(found) == ("key-003", 3)
            view.evict("key-007")
            assert not view.has("key-007")
            emit(kafka, topic, {"key-007": 70})
            eventually(lambda: view.get("key-007"), 70)
            stats = view.stats()
            assert (stats.state, stats.stalled, stats.recovery) == (ViewState.RUNNING, False, 1.0)
            assert sum(part.rows for part in stats.partitions) == 103
            eventually(lambda: view.stats().lag, 0)
            stop_observing()
        assert states[-1] is ViewState.RUNNING
        with pytest.raises(ViewError, match="is idle"):
            view.get("key-001")

        emit(kafka, topic, {"key-000": -1})
        with view:
            view.wait_until_running(WAIT_S)
            assert view.get("key-000") == -1
            assert sum(part.rows for part in view.stats().partitions) == 1
        # A lookup does not trust the rows of a view that runs no more.
        emit(kafka, topic, {"key-000": -2})
        servers = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
        assert rows_of(servers, topic, str(tmp_path)).get(b"key-000") == b"-2"
        with pytest.raises(TopicsError, match=f"has the rows of {topic}, not of other"):
            rows_of(servers, "other", str(tmp_path))

    def test_a_view_goes_on_after_a_stop_that_is_refused(
        self, kafka: DevKafka, table: str, tmp_path: Path
    ) -> None:
        """An observer tries it in each state; that of the start raised AttributeError.

        While it blocks, it delays no time-out.
        """
        view, go_on = view_of(kafka, table, tmp_path), threading.Event()
        refused: list[ViewState] = []

        def stop(state: ViewState) -> None:
            with pytest.raises(ViewError, match="cannot be stopped by its own observer"):
                view.stop()
            refused.append(state)
            if state is ViewState.CATCH_UP:
                assert go_on.wait(WAIT_S)

        stop_observing = view.observe(stop)
        other = view_of(kafka, table, None, storage=MemoryStorage())
        view.observe(lambda state: other.stop() if state is ViewState.RUNNING else None)
        with view, other:
            with pytest.raises(OffsetTimeoutError, match="was not running within"):
                view.wait_until_running(0.1)
            go_on.set()
            view.wait_until_running(WAIT_S)
            eventually(lambda: refused[-1], ViewState.RUNNING)
            assert refused[0] is ViewState.INITIALIZING
            assert view.get("a") == 1
            eventually(lambda: other.state, ViewState.IDLE)  # it is not the view's own
            stop_observing()

    def test_a_missing_topic_is_an_error(
        self, kafka: DevKafka, unique_name: str, tmp_path: Path
    ) -> None:
        view = view_of(kafka, unique_name, tmp_path)
        with pytest.raises(TopicsError, match=f"topic {unique_name} does not exist: create it"):
            view.start()
        create_topic(kafka, unique_name, 1)
        with view:
            view.wait_until_running(WAIT_S)

    def test_a_view_is_started_again_after_ctrl_c_in_its_start(
        self, kafka: DevKafka, table: str, tmp_path: Path
    ) -> None:
        """Such as in an observer.  Its store stayed open, and was refused to all later starts."""
        view = view_of(kafka, table, tmp_path)

        def interrupt(_state: ViewState) -> None:
            raise KeyboardInterrupt

        stop_observing = view.observe(interrupt)
        with pytest.raises(KeyboardInterrupt):
            view.start()
        assert view.state is ViewState.IDLE
        stop_observing()
        with view:
            view.wait_until_running(WAIT_S)

    def test_a_view_is_stopped_in_a_signal_handler_anywhere_in_a_wait(
        self, kafka: DevKafka, table: str, tmp_path: Path
    ) -> None:
        """Its thread waited for a lock of the call below, and the stop for its thread."""
        at, reached = 0, True
        while reached:
            at += 1
            view = view_of(kafka, table, tmp_path).start()

            def wait(view: View = view) -> None:
                with suppress(OffsetTimeoutError):
                    view.wait_until_running(0.1)

            reached = interrupted(wait, at, partial(view.stop, WAIT_S), within="streams/view")
            view.stop()
        assert at > 5

    def test_a_view_that_was_too_slow_to_stop_is_stopped_again(
        self, kafka: DevKafka, table: str, tmp_path: Path
    ) -> None:
        """Its store is closed then, and free for another view."""
        begun, go_on = threading.Event(), threading.Event()

        def wait(*_arguments: object) -> None:
            begun.set()
            assert go_on.wait(WAIT_S)

        view = view_of(kafka, table, tmp_path, update=wait).start()
        assert begun.wait(WAIT_S)
        with pytest.raises(OffsetTimeoutError, match="still writes its store"):
            view.stop(0.1)
        go_on.set()
        view.stop()
        with view_of(kafka, table, tmp_path) as again:
            again.wait_until_running(WAIT_S)

    @pytest.mark.parametrize("method", ["open", "apply", "flush", "get", "close", "update"])
    def test_an_error_of_the_storage_is_raised(
        self, kafka: DevKafka, table: str, method: str
    ) -> None:
        """Reads, starts or stops raise it; the view has ended then.

        Errors of an update callback, SystemExit included; those of an observer end nothing.
        """

        def fail(*_arguments: object) -> None:
            raise (SystemExit if method == "update" else OSError)(f"cannot {method}")

        storage = MemoryStorage()
        update = fail if method == "update" else None
        setattr(storage, method, fail)
        view = view_of(kafka, table, None, storage=storage, update=update)
        view.observe(fail)
        message = f"cannot {method}"
        if method == "open":
            with pytest.raises(OSError, match=message):
                view.start()
        elif method in {"apply", "flush", "update"}:
            with view, pytest.raises(ViewError, match=rf"has failed: \w+: {message}"):
                view.wait_until_running(WAIT_S)
        else:
            view.start().wait_until_running(WAIT_S)
            with pytest.raises(OSError, match=message):
                view.has("a") if method == "get" else view.stop()
            view.stop()
        assert view.state is ViewState.IDLE
        view.stop()

    def test_a_failed_view_is_logged_once_and_may_be_started_again(
        self, kafka: DevKafka, table: str, tmp_path: Path
    ) -> None:
        """Without a stop between; that did nothing, and the log did not tell of the failure."""
        failures = [OSError("disk")]

        def update(rows: PendingRows, message: Message) -> None:
            if failures:
                raise failures.pop()
            rows.put(message.key, message.value or b"")

        view = view_of(kafka, table, tmp_path, update=update)
        with capture_logs() as lines:
            view.start()
            with pytest.raises(ViewError, match="has failed: OSError: disk"):
                view.wait_until_running(WAIT_S)
            with view:
                view.wait_until_running(WAIT_S)
                assert view.get("a") == 1
        errors = [line["event"] for line in lines if line["log_level"] == "error"]
        assert errors == [f"table {table} is no longer read: OSError: disk"]

    def test_rows_can_be_read_while_the_brokers_are_away(
        self, breakable_kafka: DevKafka, unique_name: str, tmp_path: Path
    ) -> None:
        """Stale ones; and the view follows the topic again once they are back."""
        create_topic(breakable_kafka, unique_name, 1)
        emit(breakable_kafka, unique_name, {"a": 1})
        with view_of(breakable_kafka, unique_name, tmp_path, timeout_s=20.0) as view:
            view.wait_until_running(WAIT_S)
            (broker,) = breakable_kafka.brokers
            broker.kill()
            try:
                eventually(lambda: view.state, ViewState.CONNECTING)
                assert view.get("a") == 1
                assert view.stats().partitions[0].error
            finally:
                broker.start()
            emit(breakable_kafka, unique_name, {"a": 2})
            eventually(lambda: view.get("a"), 2)
            view.wait_until_running(WAIT_S)


class TestKills:
    @pytest.mark.parametrize(
        "kills", [1, pytest.param(30, marks=[pytest.mark.chaos, pytest.mark.timeout(900)])]
    )
    def test_a_killed_view_has_each_row_as_of_its_stored_offset(
        self, kafka: DevKafka, new_topic: TopicFactory, tmp_path: Path, kills: int
    ) -> None:
        """No row older than the offset, none newer, none lost, at whichever moment it is killed."""
        chance = random.Random(kills)  # noqa: S311 -- the same moments in each run
        topic = new_topic(PARTITIONS)
        logs: list[list[tuple[bytes, int | None]]] = [[] for _ in range(PARTITIONS)]
        numbers = iter(range(10_000_000))

        def write(count: int) -> None:
            with kafka_emitter(kafka.bootstrap_servers, topic, codecs.Int64()) as emitter:
                for number in (next(numbers) for _ in range(count)):
                    key = f"key-{chance.randrange(2_000)}"
                    value = None if number % 10 == 0 else number
                    emitter.emit(key, value)
                    logs[partition_of(key.encode(), PARTITIONS)].append((key.encode(), value))

        def expected(offsets: list[int | None]) -> dict[bytes, bytes]:
            rows: dict[bytes, bytes] = {}
            for log, offset in zip(logs, offsets, strict=True):
                for key, value in log[: 0 if offset is None else offset + 1]:
                    update_rows(rows, key, None if value is None else b"%d" % value)
            return rows

        write(3_000)
        for _ in range(kills):
            with view_process(kafka, topic, tmp_path) as process:
                await_line(process, "connecting")
                writer = threading.Thread(target=write, args=(1_000,))
                writer.start()
                threading.Event().wait(chance.uniform(0.0, 0.4))
                process.kill()
                process.wait(WAIT_S)
                writer.join()
            with closing(LmdbReader(tmp_path)) as store:
                stored = [store.offset(number) for number in range(PARTITIONS)]
                assert dict(store.items(b"", None)) == expected(stored)
        with view_of(kafka, topic, tmp_path) as view:
            view.wait_until_running(WAIT_S)
            ends: list[int | None] = [len(log) - 1 for log in logs]
            assert {key.encode(): b"%d" % value for key, value in view} == expected(ends)


@contextmanager
def view_process(kafka: DevKafka, topic: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    script = str(Path(__file__).with_name("view_process.py"))
    command = [sys.executable, script, kafka.bootstrap_servers, topic, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def await_line(process: subprocess.Popen[str], wanted: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == wanted:
            return
    pytest.fail(f"the process ended before it was {wanted}")


def test_a_view_is_served_over_http(
    kafka: DevKafka, new_topic: TopicFactory, tmp_path: Path
) -> None:
    """The command serves keys, ranges and its status; the monitor prints the same."""
    topic = new_topic(PARTITIONS)
    emit(kafka, topic, {f"a/{number}": number for number in range(5)})
    options = ["--table", topic, "--path", str(tmp_path), "--codec", "int64"]
    options += ["--listen", "127.0.0.1:0", "--bootstrap-servers", kafka.bootstrap_servers]
    process = ServeProcess(["-m", "offsetmgr", "view", "serve", *options])
    with process, httpx.Client(base_url=(url := process.address), timeout=WAIT_S) as http:
        eventually(lambda: http.get("/v1/status").json()["state"], "running")
        assert http.get("/v1/keys/a%2F3").json() == {"key": "a/3", "value": 3}
        assert http.get("/v1/status", headers={"Host": "evil.example"}).status_code == 421

        got = run_alone("streams", "get", "a/3", "--view", url)
        assert got.json() == {"key": "a/3", "value": 3}
        (view,) = run_alone("streams", "status", "--view", url, "--json").json()["views"]
        assert (view["topic"], view["state"], view["lag"]) == (topic, "running", 0)
        assert [part["state"] for part in view["partitions"]] == ["running"] * PARTITIONS
        table = run_alone("streams", "status", "--view", url).out.splitlines()
        assert len(table) == 1 + PARTITIONS
        assert "running" in table[1]


def test_processors_are_seen_through_their_group_and_table(
    kafka: DevKafka, new_topic: TopicFactory, group: str
) -> None:
    """Lag by partition of what it reads, and what its table's topic holds."""
    topic, table = new_topic(1), f"{group}-table"
    create_topic(kafka, table, 1)
    emit(kafka, topic, {"a": 1, "b": 2, "c": 3})
    emit(kafka, table, {"a": 1})
    with LocalOffsets(kafka.bootstrap_servers) as offsets:
        offsets.submit(group, {(topic, 0): 2}, sync=True, timeout=WAIT_S)
    (processor,) = run(kafka, "streams", "status", group, "--json").json()["processors"]
    (partition,) = processor["partitions"]
    assert (partition["topic"], partition["committed"], partition["lag"]) == (topic, 2, 1)
    assert processor["table"] == {"topic": table, "messages": {"0": 1}}
    shown = run(kafka, "streams", "status", group).out
    rows = [line.split() for line in shown.splitlines()[1:]]
    assert [row[:4] for row in rows] == [
        ["processor", group, topic, "0"],
        ["processor", group, table, "0"],
    ]
    missing = run(kafka, "streams", "status", f"no-{group}")
    assert missing.status == 1
    assert "the group does not exist" in missing.out
