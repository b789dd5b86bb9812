"""Followed checkpoints and their groups, over files of the tests and a coordinator in memory."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from offsetmgr.cli.app import app
from offsetmgr.client import OffsetClient
from offsetmgr.coordinator.memory import Refuse
from offsetmgr.errors import InvalidValueError, ServiceUnavailableError
from offsetmgr.spark import follow as follow_module
from offsetmgr.spark.follow import Follow, Follower, expand
from offsetmgr.types import TopicPartition
from tests.service.support import local_over, running
from tests.unit.spark.broker import CLICKS, ORDERS, forbid, offset_of, recreate
from tests.unit.spark.checkpoints import WrittenCheckpoint, orders
from tests.waiting import WAIT_S, eventually, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from offsetmgr.coordinator.memory import MemoryCoordinator


@contextmanager
def following(
    coordinator: MemoryCoordinator, *follows: Follow, wall: Callable[[], float] = time.time
) -> Iterator[Follower]:
    """A follower that goes on until the end of the block."""
    with local_over(coordinator) as client:
        named = {str(number): each for number, each in enumerate(follows)}
        follower = Follower(named, client, wall=wall)
        follower.start()
        try:
            yield follower
        finally:
            follower.close()


def follow(path: Path, group: str = "etl") -> Follow:
    return Follow(str(path), group, interval_s=0.1)


def test_an_odd_checkpoint_is_one_bad_row(
    coordinator: MemoryCoordinator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Names and files of any bytes: it is named once in the log, and the others are committed."""
    for name in ("new\nline", os.fsdecode(b"\xff"), "long" * 63):
        WrittenCheckpoint(tmp_path / name).batch(0, orders(5))
    for name, data in (("bytes", b"\xff"), ("deep", b"[" * 100_000), ("list", b"[]")):
        WrittenCheckpoint(tmp_path / name).batch(0, orders(5))
        (tmp_path / name / "metadata").write_bytes(data)
    for name, version in (("v2", b"v2"), ("v10", b"v10"), ("empty", b""), ("nul", b"\0\xff")):
        WrittenCheckpoint(tmp_path / name).batch(0, orders(5))
        (tmp_path / name / "offsets" / "0").write_bytes(version + b"\n{}\nx")
    (tmp_path / "file").write_text("")
    WrittenCheckpoint(tmp_path / "endless").batch(0, orders(5))
    (tmp_path / "endless" / "commits" / "1").symlink_to("/dev/zero")
    good = WrittenCheckpoint(tmp_path / "good").batch
    good(3, orders(30))
    (tmp_path / "good" / "offsets" / "9").mkdir()
    (tmp_path / "good" / "metadata").write_text(r'{"id":"\ud800"}')
    with following(coordinator, follow(tmp_path / "*", "etl-{name}")) as follower:
        eventually(lambda: offset_of(coordinator.broker, "etl-good"), 30)
        eventually(lambda: sum(each.problem is not None for each in follower.queries()), 12)
        until(lambda: follower.failures["0"] > 3 * 12)
        rows = follower.queries()
    assert [each.name for each in rows if each.problem is None] == ["good"]
    assert msgspec.json.encode([(each.name, each.location, each.query_id) for each in rows])
    assert all(str(each.problem).isprintable() for each in rows)
    for row in rows:
        logged = [each for each in caplog.messages if f"checkpoint {row.location} " in each]
        assert len(logged) == (row.problem is not None)


def test_unanswered_groups_delay_no_other(coordinator: MemoryCoordinator, tmp_path: Path) -> None:
    """However many: a second for each of these would be more than the test waits."""
    groups = [f"dead-{number}" for number in range(150)]
    for group in groups:
        coordinator.pause(group)
        WrittenCheckpoint(tmp_path / "dead" / group).batch(0, orders(5))
    good = WrittenCheckpoint(tmp_path / "good").batch
    good(0, orders(1))
    dead = Follow(f"{tmp_path}/dead/*", "{name}", interval_s=0.1, keep_alive_s=1)
    with following(coordinator, dead, follow(tmp_path / "good")) as follower:
        eventually(lambda: offset_of(coordinator.broker, "etl"), 1)
        eventually(lambda: [each.name for each in follower.queries() if each.is_running], ["good"])
        good(1, orders(2))
        eventually(lambda: offset_of(coordinator.broker, "etl"), 2)
        for group in groups:
            coordinator.resume(group)
        until(lambda: all(offset_of(coordinator.broker, group) == 5 for group in groups))


@pytest.mark.parametrize("set_back_s", [0, 3_600], ids=["same clock", "clock set back"])
def test_a_new_checkpoint_takes_the_group_back(
    coordinator: MemoryCoordinator, tmp_path: Path, set_back_s: int
) -> None:
    """The kind: lower offsets of another query id are meant, and are not late ones of the former.

    Until its first batch is finished, the row shows none of the former query.
    """
    at_s = 2_000_000_000.0
    root = tmp_path / "checkpoint"
    WrittenCheckpoint(root).batch(9, orders(900))
    with following(coordinator, follow(root), wall=lambda: at_s) as follower:
        eventually(lambda: offset_of(coordinator.broker, "etl"), 900)
        at_s -= set_back_s
        shutil.rmtree(root)
        again = WrittenCheckpoint(root)
        again.write("metadata", '{"id":"another"}')
        eventually(lambda: follower.queries()[0].query_id, "another")
        row = follower.queries()[0]
        assert (row.batch_id, row.offsets) == (None, {})
        again.batch(0, orders(7))
        eventually(lambda: offset_of(coordinator.broker, "etl"), 7)


def test_a_new_query_of_a_recreated_topic_is_committed(
    coordinator: MemoryCoordinator, tmp_path: Path
) -> None:
    """Its first offset was refused, as it is higher than the one that was committed before."""
    root = tmp_path / "checkpoint"
    WrittenCheckpoint(root).batch(3, orders(9))
    with following(coordinator, follow(root)):
        eventually(lambda: offset_of(coordinator.broker, "etl"), 9)
        shutil.rmtree(root)
        recreate(coordinator.broker, "orders", 1_000)
        again = WrittenCheckpoint(root)
        again.write("metadata", '{"id":"another"}')
        again.batch(0, orders(24))
        eventually(lambda: offset_of(coordinator.broker, "etl"), 24)


def test_an_uncommitted_offset_of_a_quiet_query_stays_a_problem(
    coordinator: MemoryCoordinator, tmp_path: Path
) -> None:
    """Its manager is stopped, so that nobody else would say so; the next batch ends it."""
    written = WrittenCheckpoint(tmp_path / "c")
    written.batch(0, orders(9))
    wanted = Follow(str(tmp_path / "c"), "etl", interval_s=0.1, keep_alive_s=1)
    with following(coordinator, wanted) as follower:
        eventually(lambda: offset_of(coordinator.broker, "etl"), 9)
        recreate(coordinator.broker, "orders", 1_000)
        written.batch(1, orders(24))
        until(lambda: follower.queries()[0].problem)
        eventually(lambda: follower.queries()[0].is_running, expected=False)
        until(lambda: not follower.committer._unread)
        (row,) = follower.queries()
        until(lambda: follower.queries()[0].looked_at_s != row.looked_at_s)
        assert "TOPIC_RECREATED" in str(follower.queries()[0].problem)
        written.batch(2, orders(30))
        eventually(lambda: offset_of(coordinator.broker, "etl"), 30)
        eventually(lambda: follower.queries()[0].problem, None)


def test_a_checkpoint_of_two_follows_is_a_problem_of_both(
    coordinator: MemoryCoordinator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is committed to both groups; the log has it, too."""
    WrittenCheckpoint(tmp_path / "a").batch(0, orders(5))
    follows = follow(tmp_path / "*", "all"), follow(tmp_path / "a", "one")
    with following(coordinator, *follows) as follower:
        eventually(lambda: [offset_of(coordinator.broker, each) for each in ("all", "one")], [5, 5])
        problem = "is followed more than once: by several patterns"
        eventually(lambda: [each.problem for each in follower.queries()], [problem] * 2)
        eventually(lambda: sum(problem in each for each in caplog.messages), 2)


def test_copies_of_a_checkpoint_are_queries_of_their_own(
    coordinator: MemoryCoordinator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They have one id: the group of all goes no further than the one that is behind."""
    first = WrittenCheckpoint(tmp_path / "a")
    first.batch(5, orders(50))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with following(coordinator, follow(tmp_path / "*")) as follower:
        until(lambda: all(each.is_running for each in follower.queries()) and follower.queries())
        eventually(lambda: offset_of(coordinator.broker, "etl"), 50)
        first.batch(6, orders(60))
        eventually(lambda: [each.batch_id for each in follower.queries()], [6, 5])
        WrittenCheckpoint(tmp_path / "b").batch(6, orders(70))
        eventually(lambda: [each.batch_id for each in follower.queries()], [6, 6])
        follower.committer.do(lambda: True).result(WAIT_S)
        flushed = follower.client.flush(timeout=WAIT_S, group="etl").committed
        assert [each.offset for each in flushed.values()] == [60]
        ids = {each.query_id for each in follower.queries()}
    assert ids == {first.files.query_id()}
    assert "give each query a group of its own" in caplog.text


def test_a_client_reports_each_followed_query_once(tmp_path: Path) -> None:
    """Also one whose offset is beyond its log, which each look tries again."""
    for name, offset in (("a", 5), ("b", 50)):
        WrittenCheckpoint(tmp_path / name).batch(0, orders(offset))
    with running() as service, OffsetClient(service.address, "follower") as client:
        service.coordinator.broker.create_topic("orders")
        service.coordinator.broker.set_log(ORDERS, 0, 10)
        follower = Follower({"f": follow(tmp_path / "*", "etl-{name}")}, client)
        follower.start()
        until(lambda: [each for each in follower._followed() if each.state.run > 3])
        follower.close()

        def names() -> list[str]:
            with service.http() as http:
                found = http.get("/v1/queries").json()["queries"]
            return sorted(each["name"] for each in found)

        eventually(names, [str(tmp_path / "a"), str(tmp_path / "b")])
        assert len(follower.committer._reports) == 2


def test_groups_are_chosen_by_topic(coordinator: MemoryCoordinator, tmp_path: Path) -> None:
    """Topics without a group are not committed."""
    WrittenCheckpoint(tmp_path / "c").batch(0, orders(5), {"clicks": {"0": 6}})
    wanted = Follow(str(tmp_path / "c"), groups={"clicks": "clicks-{name}"}, interval_s=0.1)
    with following(coordinator, wanted):
        until(lambda: coordinator.broker.committed("clicks-c"))
        assert set(coordinator.broker.committed("clicks-c")) == {CLICKS}


def test_a_place_without_an_answer_delays_no_other(
    coordinator: MemoryCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind: checkpoints of the same Follow whose reads do not return, as of dead mounts.

    When these are as many as there may be looks, the others wait, and their rows say so.
    """
    monkeypatch.setattr(follow_module, "MOST_LOOKS", 3)
    monkeypatch.setattr(follow_module, "UNANSWERED_S", 0.5)

    def die(name: str) -> Path:
        path = tmp_path / name / "metadata"
        path.parent.mkdir()
        os.mkfifo(path)
        return path

    dead = [die("a"), die("b")]
    good = WrittenCheckpoint(tmp_path / "good")
    good.batch(0, orders(5))
    with following(coordinator, follow(tmp_path / "*")) as follower:

        def problem(name: str) -> str:
            return next(str(each.problem) for each in follower.queries() if each.name == name)

        until(lambda: len(follower.queries()) > len(dead))
        until(lambda: all("no answer" in problem(name) for name in "ab"))
        good.batch(1, orders(6))
        eventually(lambda: offset_of(coordinator.broker, "etl"), 6)
        dead.append(die("c"))
        until(lambda: "others of its Follow do not answer" in problem("good"))
        for path in dead:  # let the readers go
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        eventually(lambda: problem("good"), "None")


def test_a_search_without_an_answer_is_a_row(
    coordinator: MemoryCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a dead mount whose folders cannot be listed: no checkpoint of it is known yet."""
    listed = threading.Event()
    monkeypatch.setattr(follow_module, "UNANSWERED_S", 0.0)
    monkeypatch.setattr(follow_module, "expand", lambda *_: listed.wait() and ())
    with following(coordinator, follow(tmp_path / "*")) as follower:
        eventually(lambda: [str(each.problem)[:9] for each in follower.queries()], ["no answer"])
        listed.set()


def test_a_query_in_the_place_of_a_removed_one_is_committed(
    coordinator: MemoryCoordinator, tmp_path: Path
) -> None:
    """Also a lower batch, in a group that another checkpoint keeps known to the committer.

    Of the removed one nothing is left: it is not looked at again, and its group goes on without it.
    """
    WrittenCheckpoint(tmp_path / "stays").batch(0, orders(900))
    WrittenCheckpoint(tmp_path / "removed").batch(9, orders(90))
    wanted = Follow(str(tmp_path / "*"), "etl", interval_s=0.1, keep_alive_s=1)
    with following(coordinator, wanted) as follower:
        eventually(lambda: offset_of(coordinator.broker, "etl"), 90)
        removed = next(each for each in follower._followed() if each._name == "removed")
        shutil.rmtree(tmp_path / "removed")
        until(lambda: removed.is_gone)
        search = follower.searches[0]
        until(lambda: removed not in [task for _, _, task in search._due.copy()])
        until(lambda: removed.begun_s is None)
        assert len(follower.committer._subscriptions) == 1
        WrittenCheckpoint(tmp_path / "removed").batch(0, orders(7))
        eventually(lambda: offset_of(coordinator.broker, "etl"), 7)


def test_a_follow_without_a_thread_is_a_row(
    coordinator: MemoryCoordinator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is logged once, and follows as soon as the process may have one more."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    WrittenCheckpoint(tmp_path / "c").batch(0, orders(5))
    with local_over(coordinator) as client:
        follower = Follower({"f": follow(tmp_path / "*")}, client)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            follower.start()
            rows = [*follower.queries(), *follower.queries()]
        assert [each.follow for each in rows] == ["f", "f"]
        assert "cannot start a thread" in str(rows[0].problem)
        assert caplog.text.count("cannot start a thread") == 1
        until(lambda: [each for each in follower.queries() if each.name])
        eventually(lambda: offset_of(coordinator.broker, "etl"), 5)
        assert follower.queries()[0].name == "c", "the Follow itself is well"
        follower.close()


def test_offsets_of_another_log_block_no_other(
    coordinator: MemoryCoordinator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kind: a partition that was recreated before the first look, or that no right reads.

    What was committed is not handed over again meanwhile, so that a reset of an idle query's group
    stays.  The row names them, and the log once, also while the new log grows; a topic is committed
    once its log can be read.
    """
    broker = coordinator.broker
    broker.set_log(TopicPartition("orders", 1), 0, 10)
    forbid(broker, "clicks")
    WrittenCheckpoint(tmp_path / "c").batch(4, orders(30, 20), {"clicks": {"0": 5}})
    with following(coordinator, follow(tmp_path / "c")) as follower:
        eventually(lambda: offset_of(broker, "etl"), 30)
        problem = str(until(lambda: follower.queries()[0].problem))
        assert set(broker.committed("etl")) == {ORDERS}
        broker.set_log(TopicPartition("orders", 1), 0, 11)
        until(lambda: "of the log, 11" in str(follower.queries()[0].problem))
        state = follower.committer._groups["etl"]
        assert [run.run_id for run in state.running()] == ["1"], "nothing is handed over again"
        assert caplog.text.count("is beyond the end of the log") == 1
        broker.set_log(CLICKS, 0, 1_000)
        eventually(lambda: set(broker.committed("etl")), {ORDERS, CLICKS})
        broker.set_log(TopicPartition("orders", 1), 0, 20)
        eventually(lambda: follower.queries()[0].problem, None)
    assert "orders-1: offset 20 is beyond the end of the log" in problem
    assert "recreated" in problem
    assert "clicks-0: its log cannot be read" in problem


def test_refused_commits_are_a_problem_and_tried_again(
    coordinator: MemoryCoordinator, tmp_path: Path
) -> None:
    """As for a missing right: an idle query is committed once it is granted, and the row says so.

    Nobody submits again what Kafka refuses for good, and the query finishes no further batch.  Its
    group goes no further than a removed one that is behind.
    """
    WrittenCheckpoint(tmp_path / "behind").batch(0, orders(5))
    WrittenCheckpoint(tmp_path / "ahead").batch(0, orders(9))
    coordinator.inject("commit", *[Refuse(30)] * 10_000, group="etl")
    with following(coordinator, follow(tmp_path / "*")) as follower:

        def problems() -> dict[str, str]:
            return {each.name: str(each.problem) for each in follower.queries()}

        until(lambda: str(problems()).count("READ on the group") == 2)
        shutil.rmtree(tmp_path / "behind")
        until(lambda: "no file named metadata" in problems()["behind"])
        coordinator._incidents["commit"].clear()
        eventually(lambda: offset_of(coordinator.broker, "etl"), 5)
        eventually(lambda: problems()["ahead"], "None")


def test_a_start_is_checked_again_after_its_logs_could_not_be_read(
    coordinator: MemoryCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here of a query that was quiet while its topic was recreated, and a service that is away."""

    def is_away(*_: object, **__: object) -> None:
        raise ServiceUnavailableError("the service is away")

    broker, written = coordinator.broker, WrittenCheckpoint(tmp_path / "c")
    written.batch(0, orders(5))
    wanted = Follow(str(tmp_path / "c"), "etl", interval_s=0.1, keep_alive_s=1)
    with following(coordinator, wanted) as follower:
        eventually(lambda: offset_of(broker, "etl"), 5)
        eventually(lambda: any(each.is_running for each in follower.queries()), expected=False)
        broker.set_log(ORDERS, 0, 3)
        monkeypatch.setattr(follower.client, "logs", is_away)
        written.batch(1, orders(6))
        until(lambda: follower.queries()[0].problem)
        monkeypatch.undo()
        until(lambda: "beyond the end of the log, 3" in str(follower.queries()[0].problem))
        assert offset_of(broker, "etl") == 5


def test_a_quiet_query_gives_its_managers_back(
    coordinator: MemoryCoordinator, tmp_path: Path
) -> None:
    """Its offsets are not renewed any more; the next batch is committed all the same.

    A group that Kafka does not answer for keeps its manager, and delays no other.
    """
    coordinator.pause("dead")
    WrittenCheckpoint(tmp_path / "dead").batch(0, orders(5))
    written = WrittenCheckpoint(tmp_path / "etl")
    written.batch(0, orders(5))
    wanted = Follow(str(tmp_path / "*"), "{name}", interval_s=0.1, keep_alive_s=1)
    with following(coordinator, wanted) as follower:
        eventually(lambda: offset_of(coordinator.broker, "etl"), 5)
        managers = follower.client._factory.managers  # type: ignore[attr-defined]
        eventually(lambda: [each.key.group for each in managers()], ["dead"])
        eventually(lambda: any(each.is_running for each in follower.queries()), expected=False)
        written.batch(1, orders(6))
        eventually(lambda: offset_of(coordinator.broker, "etl"), 6)
        coordinator.resume("dead")


def test_a_deleted_topic_of_a_followed_query_keeps_no_manager(
    coordinator: MemoryCoordinator, tmp_path: Path
) -> None:
    """As of a pattern: the next batch names it no longer, and its offset is refused forever."""
    written = WrittenCheckpoint(tmp_path / "c")
    written.batch(0, orders(5), {"clicks": {"0": 5}})
    with following(coordinator, follow(tmp_path / "c")) as follower:
        eventually(lambda: set(coordinator.broker.committed("etl")), {ORDERS, CLICKS})
        coordinator.broker.delete_topic("clicks")
        written.batch(1, orders(6), {"clicks": {"0": 6}})
        eventually(lambda: offset_of(coordinator.broker, "etl"), 6)
        written.batch(2, orders(7))
        managers = follower.client._factory.managers  # type: ignore[attr-defined]
        eventually(lambda: [each.key.topic for each in managers()], ["orders"])
        assert offset_of(coordinator.broker, "etl") == 7
        eventually(lambda: follower.queries()[0].problem, None)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"checkpoint": ""}, "checkpoint"),
        ({"checkpoint": "/a/**"}, "checkpoint"),
        ({"group": ""}, "group"),
        ({"groups": {"orders": "x"}}, "group"),
        ({"group": "x" * 300}, "group"),
        ({"interval_s": 0}, "interval_s"),
        ({"keep_alive_s": float("nan")}, "keep_alive_s"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], field: str) -> None:
    values: dict[str, object] = {"checkpoint": "/a/*", "group": "etl-{name}", **settings}
    with pytest.raises(InvalidValueError) as caught:
        Follow(**values)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_stars_in_several_levels_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the first name, below the working directory or the root of this machine.

    A folder may be called ``*``, as after a job whose checkpointLocation was such a pattern.
    """
    names = ("*/a/ckpt", "eu/orders/ckpt", "us/clicks/ckpt", "us/.hidden/ckpt", "us/_logs/ckpt")
    for name in names:
        (tmp_path / name).mkdir(parents=True)
    expected = list(zip(names[:3], ("*-a", "eu-orders", "us-clicks"), strict=True))
    found = expand(f"{tmp_path}/*/*/ckpt", Counter(), {})
    assert [(each.removeprefix(f"{tmp_path}/"), name) for each, name in found] == expected
    assert list(expand("/a/orders/", Counter(), {})) == [("/a/orders", "orders")]
    monkeypatch.chdir(tmp_path)
    assert list(expand("*/*/ckpt", Counter(), {})) == expected
    root = tmp_path.parts[1]
    for start in ("/", "file:///"):
        found = expand(f"{start}{root[:-1]}*{root[-1]}", Counter(), {})
        assert (f"{start}{root}", "") in found


def test_a_folder_that_cannot_be_listed_hides_no_other(
    coordinator: MemoryCoordinator, tmp_path: Path
) -> None:
    """Here a circular link, which no user can list; the Follow's own row names it."""
    (tmp_path / "circle").symlink_to("circle")
    WrittenCheckpoint(tmp_path / "eu" / "ckpt").batch(0, orders(5))
    wanted = Follow(f"{tmp_path}/*/c*", "{name}", interval_s=0.1, keep_alive_s=1)
    with following(coordinator, wanted) as follower:
        eventually(lambda: offset_of(coordinator.broker, "eu-kpt"), 5)
        until(lambda: {"", "eu-kpt"} <= {each.name for each in follower.queries()})
        problems = {each.name: str(each.problem) for each in follower.queries()}
    assert f"{tmp_path}/circle" in problems[""]
    assert problems["eu-kpt"] == "None"


def test_a_single_look_ends_in_time(tmp_path: Path) -> None:
    """Also where Kafka does not answer for many groups: 10 s for each would be too much here."""
    groups = [f"dead-{number}" for number in range(30)]
    with running() as service:
        service.coordinator.broker.create_topic("orders")
        service.coordinator.broker.set_log(ORDERS, 0, 10)
        for group in groups:
            service.coordinator.pause(group)
            WrittenCheckpoint(tmp_path / group).batch(0, orders(5))
        options = ["--checkpoint", f"{tmp_path}/*", "--group", "{name}", "--timeout", "1"]
        options += ["--service", service.address]
        done = CliRunner().invoke(app, ["spark", "follow", "--once", *options])
        for group in groups:
            service.coordinator.resume(group)
    assert done.exit_code in {1, 3}, done.output


def test_a_missing_option_is_named_as_the_command_has_it() -> None:
    """Not in the words of the Python function behind it."""
    words = ["spark", "starting-offsets", "--group", "etl", "--service", "http://127.0.0.1:9"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert all(option in done.output for option in ("--topic", "--pattern")), done.output
