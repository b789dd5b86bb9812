"""commit_offsets from Spark's events to a group, through the real client and service."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from math import inf, nan
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.client import OffsetClient
from offsetmgr.errors import (
    InvalidValueError,
    ManagerStoppedError,
    OffsetTimeoutError,
)
from offsetmgr.spark import commit_offsets
from offsetmgr.spark import commits as committed_by
from offsetmgr.spark import committer as committing
from offsetmgr.spark import listener as listening
from offsetmgr.spark.listener import JsonListener
from offsetmgr.types import ManagerKey
from tests.fork import in_child
from tests.service.support import local_over, running
from tests.unit.spark.broker import CLICKS, ORDERS, forbid, managers, offset_of, recreate
from tests.unit.spark.session import Query, Session, progress, query_at, query_in
from tests.waiting import WAIT_S, eventually, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.client.offsets import Offsets
    from offsetmgr.coordinator.memory import MemoryCoordinator
    from offsetmgr.spark import OffsetCommits
    from tests.service.support import Running
    from tests.unit.spark.checkpoints import WrittenCheckpoint

KEY = ManagerKey("etl", *ORDERS)
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def service() -> Iterator[Running]:
    with running() as here:
        yield here


@pytest.fixture
def client(service: Running) -> Iterator[OffsetClient]:
    with OffsetClient(service.address, name="driver") as made:
        yield made


@pytest.fixture
def session() -> Session:
    return Session()


def attach(session: Session, client: Offsets, **options: Any) -> OffsetCommits:
    given: Any = session
    return commit_offsets(given, client, **{"group": "etl"} | options)


@pytest.fixture
def commits(session: Session, client: OffsetClient) -> Iterator[OffsetCommits]:
    with attach(session, client) as made:
        yield made


def at(client: OffsetClient) -> int | None:
    committed = client.committed("etl").get(ORDERS)
    return None if committed is None else committed.offset


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("spark", {"spark": "local[2]"}),
        ("client", {"client": NOWHERE}),
        ("group", {"group": None}),
        ("group", {"group": ""}),
        ("group", {"group": "a\nb"}),
        ("group", {"groups": {"orders": "etl"}}),
        ("groups", {"group": None, "groups": {}}),
        ("groups", {"group": None, "groups": ["orders"]}),
        ("groups topic", {"group": None, "groups": {"no topic": "etl"}}),
        ("groups['orders']", {"group": None, "groups": {"orders": "a\nb"}}),
        ("query_name", {"query_name": 7}),
        ("on_error", {"on_error": "print"}),
    ],
)
def test_wrong_arguments_are_named(field: str, changes: dict[str, Any]) -> None:
    """Before anything is attached."""
    with OffsetClient(NOWHERE, name="driver") as client:
        arguments: dict[str, Any] = {"spark": Session(), "client": client, "group": "etl"}
        arguments |= changes
        with pytest.raises(InvalidValueError) as caught:
            commit_offsets(arguments.pop("spark"), arguments.pop("client"), **arguments)
    assert caught.value.field == field


@pytest.mark.parametrize("step", ["addListener", "watch_errors"])
def test_a_call_that_cannot_commit_leaves_nothing(
    session: Session, client: OffsetClient, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """As of a session or a client whose process is gone: no other call waits for its groups."""

    def gone(_: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(session if step == "addListener" else client, step, gone)
    with pytest.raises(ConnectionError):
        attach(session, client)
    committer: Any = client.committer
    assert committer._subscriptions == []


def test_queries_of_several_calls_share_their_minimum(
    session: Session, client: OffsetClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls for two queries, or two sessions, with one client: the group waits for the slower one.

    After the detach of its call the slower query counts as stopped, until it is released.
    """
    other = Session()
    with attach(session, client, query_name="fast") as fast:
        slow = attach(other, client, query_name="slow")
        other.report(10, query="s", name="slow")
        session.report(100, query="f", name="fast")
        assert fast.flush(query_at(100, "f", name="fast"), WAIT_S).ok
        assert at(client) == 10
        slow.detach(WAIT_S)
        session.report(110, query="f", name="fast", batchId=1)
        assert fast.flush(query_at(110, "f", name="fast", batchId=1), WAIT_S).ok
        assert at(client) == 10
        assert "query 'slow' has stopped: until it runs again or is released" in caplog.text
        slow.release(query_at(10, "s", active=False, name="slow"), WAIT_S)
        eventually(lambda: at(client), 110)


def test_a_query_of_a_stopped_session_runs_again_in_the_next(
    session: Session, client: OffsetClient
) -> None:
    """Spark reports no end of its queries then, which must not hold the group back forever."""
    attach(session, client)
    session.report(10, query="before", name="copy")
    eventually(lambda: at(client), 10)
    session.is_stopped = True
    with pytest.raises(InvalidValueError, match="is stopped"):
        attach(session, client)
    again = Session()
    attach(again, client)
    again.report(15, query="after", name="copy")
    eventually(lambda: at(client), 15)


def test_a_query_that_two_calls_commit_outlives_the_detach_of_one(
    service: Running, session: Session, client: OffsetClient
) -> None:
    """A cell that was run twice: one of its two listeners goes, the other commits on."""
    again = Session()
    first, second = attach(session, client), attach(again, client)
    for here in (session, again):
        here.report(5)
    eventually(lambda: at(client), 5)
    first.detach(WAIT_S)
    assert managers(service) == 1
    again.report(9, batchId=1)
    eventually(lambda: at(client), 9)
    second.detach(WAIT_S)
    assert managers(service) == 0


def test_a_topic_of_another_call_is_not_called_uncommitted(
    session: Session, client: OffsetClient, caplog: pytest.LogCaptureFixture
) -> None:
    """As in parts of a driver that see all queries; nor are tables, which need no group."""
    topics = ["orders", "clicks", "bills", "tables"]
    sources = [progress(9, topic=topic)["sources"][0] for topic in topics]
    with (
        attach(session, client, group=None, groups={"orders": "etl"}) as first,
        attach(session, client, group=None, groups={"clicks": "etl"}, query_name="clicks"),
    ):
        first._listener.groups = first._listener.groups._replace(ignored=["tables"])
        session.report(9, sources=sources, name="clicks")
        session.report(9, query="p", sources=sources, name="orders")
        eventually(lambda: len(client.committed("etl")), 2)
    missed = [each.split(" is not committed")[0] for each in caplog.messages if "name it" in each]
    assert sorted(missed) == [
        "topic bills of query 'clicks'",
        "topic bills of query 'orders'",
        "topic clicks of query 'orders'",
        "topic tables of query 'clicks'",
    ]


def test_a_query_that_starts_behind_takes_its_group_back(
    session: Session,
    commits: OffsetCommits,
    client: OffsetClient,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is counted and logged."""
    monkeypatch.setattr(committing, "LOOK_UP_S", WAIT_S)
    client.submit("etl", {ORDERS: 500}, sync=True)
    session.report(9)
    eventually(lambda: at(client), 9)
    assert commits.counts.rewinds == 1
    assert "etl/orders/0 from 500 to 9" in caplog.text


@pytest.mark.parametrize("first", [None, "mine"])
def test_one_query_of_a_session_alone(
    session: Session, client: OffsetClient, first: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """With query_name the others are not committed; it is missed only while no query has it."""
    by_name: Any = "mine"
    with attach(session, client, query_name="mine") as commits:
        session.start(Query("q", lambda: None, first))
        for name in (None, "other", None, "mime"):
            session.report(50, query="p", name=name)
        for query, problem in ((query_at(50, "p"), "query"), (by_name, "give what start")):
            with pytest.raises(InvalidValueError, match=problem):
                commits.flush(query)
        session.report(9, name="mine")
        eventually(lambda: at(client), 9)
    assert commits.counts.submitted == 1
    missed = [each for each in caplog.messages if "query_name" in each]
    assert len(missed) == (first is None)


@pytest.mark.parametrize("is_ended", [False, True], ids=["runs", "ended"])
def test_a_slow_last_answer_is_waited_for(
    service: Running,
    session: Session,
    commits: OffsetCommits,
    client: OffsetClient,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_ended: bool,
) -> None:
    """A run that has not reported is asked at its end; what it says is committed and released."""
    monkeypatch.setattr(committing, "LOOK_UP_S", 0.0)
    asked, go_on = threading.Event(), threading.Event()

    def answer() -> object:
        asked.set()
        go_on.wait(WAIT_S)
        return progress(9)

    session.start(Query("q", answer))
    with ThreadPoolExecutor() as threads:
        if is_ended:
            session.end()
        else:
            detached = threads.submit(commits.detach, WAIT_S)
        assert asked.wait(WAIT_S)
        commits._committer.do(lambda: True).result(WAIT_S)
        go_on.set()
        if is_ended:
            eventually(lambda: at(client), 9)
            detached = threads.submit(commits.detach, WAIT_S)
        detached.result()
    assert at(client) == 9
    assert managers(service) == 0


def test_in_the_child_of_a_fork_nothing_is_done(
    session: Session, commits: OffsetCommits, client: OffsetClient
) -> None:
    """Its session is the parent's, whose queries are still committed."""
    session.report(5)
    eventually(lambda: at(client), 5)
    done: list[object] = []
    session.removeListener = done.append
    commits._committer.do = done.append  # type: ignore[method-assign, assignment]

    def use() -> None:
        commits.detach(WAIT_S)
        for call in (partial(commits.flush, query_at(9)), partial(commits.release, "q")):
            with pytest.raises(ManagerStoppedError, match="another process"):
                call()
        assert not done

    in_child(use)
    del commits._committer.do
    session.report(9, batchId=1)
    eventually(lambda: at(client), 9)


def test_a_silent_run_is_asked(
    service: Running,
    session: Session,
    client: OffsetClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A listener bus that is full drops reports, and that a query has ended.

    One that cannot be asked, or hangs, delays no other, and no flush or release for long.
    """
    answers: list[object] = [None]
    asked: list[str] = []
    hanging = threading.Event()

    def gone() -> object:
        asked.append("p")
        raise ConnectionError

    monkeypatch.setattr(committing, "TICK_S", 0.01)
    monkeypatch.setattr(committing, "LOOK_AROUND_S", 0.01)
    monkeypatch.setattr(committing, "UNANSWERED_S", 0.1)
    monkeypatch.setattr(committed_by, "LOOK_S", 0.1)
    hung: Any = Query("h", hanging.wait)
    with attach(session, client) as commits:
        session.start(hung)
        session.start(Query("p", gone))
        quiet = Query("q", lambda: answers[-1])
        session.start(quiet)
        until(lambda: asked)
        for batch, offset in enumerate((9, 12)):
            answers.append(progress(offset, batchId=batch))
            eventually(lambda: at(client), offset)
        answers.append(progress(15, batchId=2))
        quiet.isActive = False
        until(lambda: asked.count("p") > 2 and "query h is not committed" in caplog.text)
        session.report(3, query="h", topic="clicks")
        session.end("h")
        eventually(lambda: at(client), 15)
        eventually(lambda: (len(client.committed("etl")), managers(service)), (2, 0))
        with pytest.raises(OffsetTimeoutError, match="Spark did not answer"):
            commits.flush(hung, 0.1)
        with pytest.raises(OffsetTimeoutError, match="Spark does not answer: ConnectionError"):
            commits.flush(session.queries["p"], 0.1)  # type: ignore[arg-type]
        hung.isActive, hung.exception = False, hanging.wait
        with pytest.raises(OffsetTimeoutError, match="Spark did not answer"):
            commits.release(hung, 0.1)
        hanging.set()
    assert caplog.text.count("query h is not committed: its checkpoint") == 1


@pytest.mark.parametrize("stopped", [False, True], ids=["held", "stopped"])
def test_a_flush_refuses_offsets_of_a_topic_with_another_id(
    service: Running, session: Session, client: OffsetClient, *, stopped: bool
) -> None:
    """The new log is longer than the offset, so that the topic's id alone shows it."""
    broker = service.coordinator.broker
    broker.create_topic("orders")
    broker.set_log(ORDERS, 0, 100)
    with attach(session, client) as commits:
        session.report(90)
        eventually(lambda: client.topic_ids_of([KEY]).keys(), {KEY})
        if stopped:
            session.end()
            eventually(lambda: managers(service), 0)
        recreate(broker, "orders", 150)
        left = commits.flush(query_at(90, active=False), WAIT_S).uncommitted[KEY]
        assert (left.offset.offset, left.error.code) == (90, "TOPIC_RECREATED")
        assert "start the query with a new checkpoint" in str(left.error)
        assert at(client) is None
        session.report(20, query="new")  # with a new checkpoint
        assert commits.flush(query_at(20, "new", active=False), WAIT_S).ok
        assert at(client) == 20


def test_a_topic_without_a_right_hides_no_recreated_one_from_a_flush(
    session: Session, coordinator: MemoryCoordinator
) -> None:
    """The new log of the other topic is longer than what was read of the former one."""
    broker = coordinator.broker
    both = [progress(90, topic=topic)["sources"][0] for topic in ("orders", "clicks")]
    with local_over(coordinator) as local, attach(session, local) as commits:
        session.report(90, sources=both)
        eventually(lambda: len(broker.committed("etl")), 2)
        session.end()
        eventually(local._factory.managers, [])
        recreate(broker, "orders", 150)
        forbid(broker, "clicks")
        uncommitted = commits.flush(query_at(90, sources=both, active=False), WAIT_S).uncommitted
        assert uncommitted[KEY].error.code == "TOPIC_RECREATED"
        assert offset_of(broker, "etl") is None


def test_a_flush_reports_offsets_of_stopped_managers(
    service: Running,
    session: Session,
    commits: OffsetCommits,
    client: OffsetClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka is asked for what no manager has any more; what it lacks is not committed."""
    service.coordinator.broker.create_topic("orders")
    service.coordinator.broker.set_log(ORDERS, 0, 100)
    session.report(9)
    session.end()
    eventually(lambda: (at(client), managers(service)), (9, 0))
    assert len(commits.flush(query_at(9, active=False), WAIT_S).committed) == 1
    committer = commits._committer
    assert not committer.do(lambda: False).result(WAIT_S)  # the query is ended before that
    eventually(lambda: (len(committer._unread), managers(service)), (0, 0))
    # If managers are stopped between the submit and the flush of the client:
    submitted: Future[bool] = Future()
    submitted.set_result(True)
    monkeypatch.setattr(commits._listener, "put", lambda _snapshot: submitted)
    for offset in (9, 12):
        committed, uncommitted = commits.flush(query_at(offset), WAIT_S)
        assert len(committed) == (offset == 9)
        assert len(uncommitted) == (offset == 12)


@pytest.mark.parametrize("other", ["etl", "clicks-etl"])
def test_a_deleted_topic_of_a_running_query_keeps_no_manager(
    service: Running,
    session: Session,
    client: OffsetClient,
    caplog: pytest.LogCaptureFixture,
    other: str,
) -> None:
    """As of a pattern, with an offset that Kafka refuses from then on; it is reported once."""
    broker = service.coordinator.broker
    for partition in (ORDERS, CLICKS):
        broker.create_topic(partition.topic)
        broker.set_log(partition, 0, 100)

    def source(**offsets: int) -> list[dict[str, object]]:
        ends = {topic: {"0": offset} for topic, offset in offsets.items()}
        return [{"description": "KafkaV2[SubscribePattern[.*]]", "endOffset": ends}]

    with attach(session, client, group=None, groups={"orders": "etl", "clicks": other}):
        session.report(5, sources=source(orders=5, clicks=5))
        eventually(lambda: offset_of(broker, other, CLICKS), 5)
        broker.delete_topic("clicks")
        session.report(6, sources=source(orders=6, clicks=6), batchId=1)
        eventually(lambda: at(client), 6)
        session.report(7, sources=source(orders=7), batchId=2)
        eventually(lambda: managers(service), 1)
        assert at(client) == 7
    lost = [text for text in caplog.messages if "not all that was read is committed" in text]
    assert [f"group {other}: clicks-0 at 6" in text for text in lost] == [True]


def test_groups_without_an_answer_delay_no_other(
    service: Running, session: Session, client: OffsetClient
) -> None:
    """One flush commits the other group, and its manager is released when the query has ended."""
    dead = ["dead", "gone"]
    for group in dead:
        service.coordinator.pause(group)
    groups = {"orders": "dead", "bills": "gone", "clicks": "etl"}
    sources = [progress(9, topic=topic)["sources"][0] for topic in groups]
    with attach(session, client, group=None, groups=groups) as commits:
        session.report(9, sources=sources)
        committed, uncommitted = commits.flush(query_at(9, sources=sources), 6.0)
        assert [key.group for key in committed] == ["etl"]
        assert [key.group for key in uncommitted] == dead
        session.end()
        eventually(lambda: managers(service), 2)
        for group in dead:
            service.coordinator.resume(group)


def test_a_closed_client_is_logged_once_and_named_by_each_flush(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    """As where it is closed inside the block, of queries that run or have ended; all is counted."""
    client = OffsetClient(NOWHERE, name="driver")
    with attach(session, client) as commits:
        client.close(timeout=0.1)
        for batch in (1, 2):
            session.report(batch, batchId=batch)
            eventually(lambda: commits.counts.not_taken, batch)
        for active in (True, False):
            left = commits.flush(query_at(50, batchId=3, active=active)).uncommitted[KEY]
            assert left.offset.offset == 50
            assert isinstance(left.error, ManagerStoppedError)
    assert len([each for each in caplog.messages if each.startswith("not committed")]) == 1


def test_wrong_arguments_of_a_detach_or_release_change_nothing(
    session: Session, commits: OffsetCommits, client: OffsetClient
) -> None:
    """Times that are not possible, queries of another type, and a name that no query had."""
    times: list[Any] = [None, "5", -1, nan, inf]
    for timeout in times:
        for wait in (commits.detach, partial(commits.release, "q")):
            with pytest.raises(InvalidValueError, match=r"^timeout "):
                wait(timeout=timeout)
    queries: list[Any] = [5, None, "unknown"]
    for query in queries:
        with pytest.raises(InvalidValueError) as caught:
            commits.release(query)
        assert (caught.value.field, caught.value.value) == ("query", query)
    session.report(50)
    eventually(lambda: at(client), 50)


class Away:
    """A query that has ended at 9 in a driver whose service was stopped at 5."""

    def __init__(self) -> None:
        self.session = Session()
        with running() as first:
            self.client = OffsetClient(first.address, name="driver")
            self.commits = attach(self.session, self.client)
            self.session.start(Query("q", lambda: None))
            self.session.report(5)
            eventually(lambda: at(self.client), 5)
        self.session.report(9, batchId=1)
        self.session.end()
        unread = self.commits._committer._unread
        eventually(lambda: any(unread.copy().values()), expected=True)

    @property
    def listen(self) -> str:
        return self.client.url.removeprefix("http://")


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Iterator[Away]:
    monkeypatch.setattr(committing, "FLUSH_S", 0.05)
    monkeypatch.setattr(committing, "RETRY_S", 0.01)
    monkeypatch.setattr(committing, "LOOK_UP_S", 0.05)
    made = Away()
    yield made
    made.client.close(timeout=0.1)
    made.commits.detach()


def test_other_queries_go_on_while_one_waits_for_its_release(away: Away) -> None:
    """The same query started anew too: its managers stay, and it commits what it reads."""
    away.session.report(12, run="r2", batchId=2)
    away.session.report(3, query="p", topic="payments")
    eventually(lambda: away.commits.counts.submitted, 4)
    with running(listen=away.listen) as second:
        assert away.client.flush(timeout=WAIT_S).uncommitted == {}
        found = {str(where): entry.offset for where, entry in away.client.committed("etl").items()}
        assert found == {"orders-0": 12, "payments-0": 3}
        assert managers(second) == 2
        away.commits.detach(WAIT_S)
        assert managers(second) == 0


@pytest.mark.parametrize("wait_s", [0.0, 1.0], ids=["at once", "in time"])
def test_uncommitted_offsets_are_logged_with_the_remedy(
    away: Away, wait_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with a command that can be pasted; the client sends it nevertheless."""
    away.commits.detach(wait_s)
    eventually(lambda: "reconcile" in caplog.text, expected=True)
    (logged,) = [each for each in caplog.messages if "reconcile" in each]
    assert "orders-0 at 9" in logged
    command = "offsetmgr spark reconcile --checkpoint CHECKPOINT --group etl "
    assert f"{command}--service {away.client.url} " in logged
    with running(listen=away.listen) as second:
        eventually(lambda: (at(away.client), managers(second)), (9, 0))
    assert caplog.text.count("reconcile") == 1


def test_late_uncommitted_offsets_are_logged(
    session: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that is asked at the end, and answers when nobody waits any more."""
    monkeypatch.setattr(committing, "FLUSH_S", 0.05)
    go_on = threading.Event()
    with OffsetClient(NOWHERE, name="driver") as client:
        commits = attach(session, client)
        session.start(Query("q", lambda: progress(9) if go_on.wait(WAIT_S) else None))
        commits.detach(0.0)
        assert "reconcile" not in caplog.text
        go_on.set()
        eventually(lambda: "orders-0 at 9" in caplog.text, expected=True)
        client.close(timeout=0.1)
    assert caplog.text.count("reconcile") == 1


def test_nothing_is_raised_into_spark(
    session: Session, commits: OffsetCommits, caplog: pytest.LogCaptureFixture
) -> None:
    """The JVM is asked for JSON; what cannot be read is logged, with its cause."""
    listener = JsonListener(session.listeners[0])
    for text in ("no JSON", "null"):
        event = SimpleNamespace(progress=lambda text=text: SimpleNamespace(json=lambda: text))
        listener.onQueryProgress(event)
    listener.onQueryProgress(None)
    assert commits.counts.unreadable == 1
    assert [str(each.exc_info[1])[:14] for each in caplog.records if each.exc_info] == [
        "Expecting valu",
        "'NoneType' obj",
    ]


@pytest.mark.usefixtures("commits")
def test_an_odd_report_hides_no_query_from_the_service(
    service: Running, session: Session, commits: OffsetCommits, caplog: pytest.LogCaptureFixture
) -> None:
    """Each cause is logged once; a field of a wrong type refused the reports of all, in silence.

    A flush of a failed query does not hide its failure.
    """
    for batch in (1, 2):
        session.report(9, query="odd", batchId=True)
        session.report(9, query="x" * 256, batchId=batch)
        session.report(9, batchId=batch, numInputRows=1.5, name="\ud800")
    session.report(9, query="p", run="r2", topic="clicks", numInputRows=5)
    failed = query_at(7, "f", active=False, run="r3", topic="clicks")
    failed.runId, failed.exception = "r3", lambda: RuntimeError("boom")
    commits.flush(failed, WAIT_S)

    def shown() -> dict[str, Any]:
        with service.http() as http:
            found = http.get("/v1/queries").json()["queries"]
        return {each["id"]: (each["name"], each["input_rows"], each["error"]) for each in found}

    expected = {"q": ("\\ud800", None, None), "p": (None, 5, None), "f": (None, None, "boom")}
    eventually(shown, expected)
    for cause in ("progress batchId", "progress id", "numInputRows: 1.5 is not a number"):
        assert caplog.text.count(cause) == 1


@pytest.fixture
def raising_log() -> Iterator[None]:
    """Every log call of the process raises."""

    class Raises(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise SystemExit(record.name)

    root, handler = logging.getLogger(), Raises()
    root.addHandler(handler)
    yield
    root.removeHandler(handler)


@pytest.mark.usefixtures("raising_log")
def test_a_raising_log_handler_keeps_no_offset_from_its_group(
    session: Session, client: OffsetClient
) -> None:
    """A report is logged after its submit, and logging ends no thread."""

    def on_error(_: object) -> None:
        raise SystemExit

    client.submit("etl", {ORDERS: 500}, sync=True)
    with attach(session, client, on_error=on_error) as commits:
        session.report(9)
        session.report(3, query="other", topic="payments")
        session.listeners[0].onQueryProgress(None)
        commits._failed(None, ManagerStoppedError("an error for on_error"))
        session.report(5, batchId=1)
        session.report(12, batchId=2)
        eventually(lambda: at(client), 12)
        assert isinstance(commits.errors().get(WAIT_S), ManagerStoppedError)


def test_a_flush_without_a_report_reads_the_checkpoint(
    commits: OffsetCommits, checkpoint: WrittenCheckpoint
) -> None:
    """Spark keeps no report with ``numRecentProgressUpdates`` of 1: nothing was flushed, and ok.

    A query that has failed before its checkpoint was there has nothing to flush.  While it runs,
    nobody else reads its files.
    """
    query = query_in(checkpoint, "MicroBatchExecution")
    commits._listener.take_up(query)
    (watched,) = commits._listener.runs.values()
    assert commits.flush(query, WAIT_S) == ({}, {})
    checkpoint.batch(5, {"orders": {"0": 9}})
    assert watched.ask() is None
    assert [each.offset for each in commits.flush(query, WAIT_S).committed.values()] == [9]
    checkpoint.files.remove("metadata")
    assert commits.flush(query, WAIT_S) == ({}, {})


def test_a_query_without_a_readable_report_is_committed_from_its_checkpoint(
    session: Session, commits: OffsetCommits, client: OffsetClient, checkpoint: WrittenCheckpoint
) -> None:
    """A flush and its end read it; where nobody can, the flush is an error."""
    odd = query_at(9, batchId=True)
    with pytest.raises(InvalidValueError, match="has an unreadable report"):
        commits.flush(odd, WAIT_S)
    odd = query_in(checkpoint, "MicroBatchExecution", odd.lastProgress)
    checkpoint.batch(5, {"orders": {"0": 9}})
    assert [each.offset for each in commits.flush(odd, WAIT_S).committed.values()] == [9]
    session.start(odd)
    checkpoint.batch(6, {"orders": {"0": 12}})
    odd.isActive = False
    session.end()
    eventually(lambda: at(client), 12)


def test_a_continuous_query_with_an_unreadable_checkpoint_is_named(
    session: Session,
    client: OffsetClient,
    checkpoint: WrittenCheckpoint,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It reports nothing, so nothing else would say so; it is committed once it can be read."""
    monkeypatch.setattr(committing, "TICK_S", 0.05)
    query = query_in(checkpoint, "ContinuousExecution")
    checkpoint.batch(4, '{"orders":{"0":-1}}')
    with attach(session, client):
        session.start(query)
        eventually(
            lambda: "q, which reports nothing, is not committed: " in caplog.text, expected=True
        )
        checkpoint.batch(5, {"orders": {"0": 9}})
        eventually(lambda: at(client), 9)
    assert caplog.text.count("is not committed") == 1


def test_a_query_of_spark_connect_without_reports_is_named(
    session: Session,
    client: OffsetClient,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark Connect does not say that a trigger is continuous, and such a query reports nothing."""
    monkeypatch.setattr(committing, "TICK_S", 0.02)
    monkeypatch.setattr(committing, "LOOK_AROUND_S", 0.05)
    with attach(session, client):
        session.start(query_at(9, "idle"))
        eventually(lambda: at(client), 9)
        monkeypatch.setattr(listening, "SILENT_S", 0.0)
        session.start(Query("silent", lambda: None))
        eventually(lambda: "query silent has reported nothing" in caplog.text, expected=True)
    assert "query idle" not in caplog.text
    assert caplog.text.count("if its trigger is continuous") == 1


@pytest.mark.parametrize("failure", ["not added", "removed", "without a thread", "gone"])
def test_queries_are_asked_where_spark_connect_sends_no_events(
    service: Running,
    session: Session,
    client: OffsetClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failure: str,
) -> None:
    """PySpark only warns if it cannot listen, or listens no longer after a broken connection.

    A query that has ended meanwhile holds no manager.  A server that is gone delays no other.
    """
    queries, answered = session.active, threading.Event()
    monkeypatch.setattr(committing, "TICK_S", 0.02)
    monkeypatch.setattr(committing, "LOOK_AROUND_S", 0.05)
    if failure == "not added":
        monkeypatch.setattr(session, "addListener", lambda _listener: None)
    with attach(session, client) as commits:
        ended = query_at(5, "ended", topic="clicks")
        session.start(ended)
        eventually(lambda: managers(service), len(session.listeners))
        ended.isActive = False
        if failure == "removed":
            session.listeners.clear()
        elif failure == "without a thread":
            session._sqlb._execution_thread = None
        elif failure == "gone":
            active = property(lambda _: answered.wait() and queries)
            monkeypatch.setattr(Session, "active", active, raising=False)
            session.listeners.clear()
            until(lambda: commits._listener._looking)
            commits._committer.do(lambda: True).result(WAIT_S)
            answered.set()
        reports = [progress(9, "next", batchId=1), progress(7, "next")]
        queries.append(Query("next", lambda: reports[-1]))
        eventually(lambda: at(client), 7)
        reports.pop()
        eventually(lambda: at(client), 9)
        eventually(lambda: managers(service), 1)
    assert caplog.text.count("Spark Connect sends no events") == 1


def test_queries_are_committed_once_a_thread_can_be_started(
    session: Session, client: OffsetClient
) -> None:
    """A process without room for threads: nothing is raised, and a flush gives the reason."""
    query = query_at(9)
    client.submit("etl", {ORDERS: 5}, sync=True)
    threading.stack_size(2**46)  # no thread can have so much
    try:
        commits = attach(session, client)
        session.report(9)
        left = commits.flush(query, 0.2).uncommitted
    finally:
        threading.stack_size(0)
    assert "cannot start a thread" in str(left[KEY].error)
    with commits:
        assert commits.flush(query, WAIT_S).ok
        assert at(client) == 9
