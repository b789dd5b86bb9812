"""The overview, history and resets of groups of a real Kafka, over HTTP as the page asks."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from offsetmgr import OffsetClient
from offsetmgr.admin.changes import GroupChanges
from offsetmgr.admin.reset import PlannedOffset
from offsetmgr.errors import OffsetConflictError
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.commands import run, run_alone
from tests.conftest import create_topic
from tests.kafka.conftest import service_of
from tests.kafka.test_cluster_reader import commit, produce
from tests.service.support import serve_process
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx

    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory
    from tests.service.support import ServeProcess


@pytest.fixture(scope="module")
def serving(kafka: DevKafka) -> Iterator[ServeProcess]:
    """A service that watches no groups, but those that somebody looks at."""
    with service_of(kafka, WATCH__INTERVAL_S="1", STREAMS="http://127.0.0.1:1") as process:
        yield process


class Desk(NamedTuple):
    """The page of a service, with a topic and a group of one test."""

    kafka: DevKafka
    serving: ServeProcess
    page: httpx.Client
    topic: str
    """Of two partitions; the first one has 20 records."""
    group: str

    def commits(self, *offsets: int, group: str = "") -> None:
        """Commit offsets of partition 0 and, if there are two, 1; past the service."""
        wanted = {TopicPartition(self.topic, number): at for number, at in enumerate(offsets)}
        commit(self.kafka, group or self.group, wanted)

    def ask(self, path: str, status: int = 200, **body: Any) -> Any:
        """Return the answer, which has this status."""
        target = f"/v1/{path}"
        answer = self.page.post(target, json=body) if body else self.page.get(target)
        assert answer.status_code == status, answer.text
        return answer.json()

    def row_of(self, group: str) -> dict[str, Any]:
        found = self.ask("overview")["groups"]
        return next((each for each in found if each["name"] == group), {})


@pytest.fixture
def desk(
    kafka: DevKafka, serving: ServeProcess, new_topic: TopicFactory, group: str
) -> Iterator[Desk]:
    topic = new_topic(2)
    produce(kafka, topic, 0, 20)
    with serving.http("page") as page:
        yield Desk(kafka, serving, page, topic, group)


def test_groups_of_clients_are_watched_while_somebody_looks(desk: Desk) -> None:
    """Lag, members and its last rounds of the one; of another group at least name and state."""
    group, other = desk.group, f"{desk.group}-other"
    desk.commits(15, group=other)
    with OffsetClient(desk.serving.address, name="nightly") as client:
        client.submit(group, {(desk.topic, 0): 5}, sync=True, timeout=WAIT_S)
        row = until(lambda: (found := desk.row_of(group)).get("lag") is not None and found)
        assert (row["lag"], row["clients"], row["members"]) == (15, ["nightly"], 0)
        assert (row["state"], row["status"], row["partitions"]) == ("Empty", "OK", 1)
        until(lambda: desk.row_of(group)["lag_points"][-2:] == [15, 15])
        unwatched = {"state": "Empty", "watched": False, "lag": None}
        assert unwatched.items() <= desk.row_of(other).items()
        assert "offsetmgr_lag{" not in desk.page.get("/metrics").text
        (partition,) = desk.ask(f"lag?group={group}")["groups"][0]["partitions"]
        assert (partition["submitted"], partition["committed"]) == (5, 5)
        assert partition["phase"] == "ready"
        assert partition["committed_at"] > 1e9
        listed = desk.ask(f"lag?group={group}&field=committed&field=partition")["groups"][0]
        assert listed["partitions"] == [[5, 0]]
        streams = desk.ask("streams")
        assert streams["processors"] == []
        (view,) = streams["views"]
        assert "127.0.0.1:1" in view["error"]


def test_starting_offsets_of_spark_are_those_of_the_command(desk: Desk) -> None:
    """The service, the command through it, and the command without one answer alike.

    A partition without an offset starts at the earliest record; a named topic has to exist.
    """
    topic, group = desk.topic, desk.group
    desk.commits(12)
    start = desk.ask(f"starting-offsets?group={group}")["starting_offsets"]
    assert json.loads(start) == {topic: {"0": 12, "1": -2}}
    for address in (desk.serving.address, f"kafka://{desk.kafka.bootstrap_servers}"):
        words = ["spark", "starting-offsets", "--group", group, "--topic", topic]
        done = run_alone(*words, "--service", address, "--timeout", "60")
        assert (done.status, done.out) == (0, f"{start}\n")
    absent = desk.ask(f"starting-offsets?group={group}-none", 404)["error"]
    assert absent["code"] == "not_found"
    named = desk.ask(f"starting-offsets?group={group}-none&topic={topic}")
    assert json.loads(named["starting_offsets"]) == {topic: {"0": -2, "1": -2}}
    missing = desk.ask(f"starting-offsets?group={group}&topic={topic}&topic=absent", 502)["error"]
    assert missing["code"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_reset_is_planned_carried_out_and_undone(desk: Desk) -> None:
    """The plan is the command's; the history names the time that takes the group back.

    The audit log has who did it, from where, and to where.
    """
    kafka, topic, group = desk.kafka, desk.topic, desk.group
    desk.commits(12, 0)
    wanted = [f"{topic}:0"]
    planned = desk.ask("plan", group=group, mode="to-offset", value="3", topics=wanted)
    assert (planned["refused"], planned["can_live"], planned["executed"]) == (None, False, False)
    (row,) = planned["partitions"]
    assert (row["current"], row["new"], row["lag"], row["note"]) == (12, 3, 17, "")
    same = run(kafka, "reset", group, "--topic", *wanted, "--to-offset", "3", "--json").json()
    assert [{**each, "metadata": ""} for each in same["partitions"]] == planned["partitions"]

    chosen = {name: row[name] for name in ("topic", "partition", "current", "new")}
    plan = {"group": group, "partitions": [chosen]}
    with ThreadPoolExecutor(2) as pool:  # two people execute the plan at once: one of them does
        answers = list(pool.map(lambda _: desk.page.post("/v1/reset", json=plan), range(2)))
    done, refused = sorted(answers, key=lambda answer: answer.status_code)
    assert (done.status_code, refused.json()["error"]["code"]) == (200, "offset_conflict")
    assert (done.json()["executed"], done.json()["partitions"][0]["note"]) == (True, "")
    records = desk.serving.records
    (line,) = until(lambda: [each for each in records if each.get("operation") == "reset"])
    assert (line["client"], line["group"], line["outcome"]) == ("page", group, "done")
    assert line["partitions"] == [{"topic": topic, "partition": 0, "from": 12, "to": 3}]
    error = desk.ask("reset", 409, **plan)["error"]
    assert error["code"] == "offset_conflict"
    assert f"{topic}-0 (planned at 12, now 3)" in error["message"]

    history = desk.ask(f"history?group={group}&since=1h")
    assert [each["change"] for each in history["steps"]] == ["first", "first", "backward"]
    assert history["steps"] == run(kafka, "history", group, "--json").json()["steps"]
    newest = desk.ask(f"history?group={group}&limit=1")
    assert (newest["left_out"], newest["steps"]) == (2, history["steps"][2:])
    undo = desk.ask("plan", group=group, mode="to-history", value=history["undo_to"])
    assert {each["partition"]: each["new"] for each in undo["partitions"]} == {0: 12, 1: 0}


def test_a_plan_names_no_topic_that_its_identity_may_not_see(
    kafka: DevKafka, new_topic: TopicFactory, group: str, tmp_path: Path
) -> None:
    """Its rows and its errors are of the other topics alone, for each mode of a reset."""
    topic, hidden = new_topic(1), new_topic(1)
    produce(kafka, topic, 0, 20)
    for name in (group, f"{group}-other"):
        commit(kafka, name, {TopicPartition(topic, 0): 5, TopicPartition(hidden, 0): 0})
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("token-of-etl-0123456789")
    config = tmp_path / "o.toml"
    config.write_text(
        f'[kafka]\nbootstrap.servers = "{kafka.bootstrap_servers}"\n[identities.etl]\n'
        f'groups = ["{group}*"]\ntopics = ["{topic}"]\ntoken_file = "{token}"\n'
    )
    modes = {"to-earliest": None, "shift-by": "-1", "from-group": f"{group}-other"}
    with (
        serve_process("--listen", "127.0.0.1:0", "--config", str(config)) as process,
        process.http("page") as page,
    ):
        page.headers["Authorization"] = "Bearer token-of-etl-0123456789"
        for mode, value in modes.items():
            answer = page.post("/v1/plan", json={"group": group, "mode": mode, "value": value})
            assert hidden not in answer.text
            assert [row["topic"] for row in answer.json()["partitions"]] == [topic]


def test_a_plan_of_a_recreated_topic_is_refused(desk: Desk, new_topic: TopicFactory) -> None:
    """Its offsets are of the former log, also where nothing was committed before.

    So are those of a command that is between plan and execution, and offsets that it is to delete.
    """
    kafka, topic, group = desk.kafka, desk.topic, desk.group
    commit(kafka, group, {TopicPartition(new_topic(1), 0): 0})
    planned = desk.ask("plan", group=group, mode="to-latest", topics=[f"{topic}:0"])
    (row,) = planned["partitions"]
    entry = {name: row[name] for name in ("topic", "partition", "current", "new")}
    plan = {"group": group, "partitions": [entry], "topic_ids": planned["topic_ids"]}
    servers = kafka.bootstrap_servers
    command = GroupChanges({"bootstrap.servers": servers}, timeout_s=WAIT_S)
    rows = command.plan(group, "to-latest", "", {topic: None})
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_topics([topic])[topic].result(WAIT_S)
    assert "deleted or recreated" in desk.ask("reset", 409, **plan)["error"]["message"]
    until(lambda: topic not in admin.list_topics(timeout=WAIT_S).topics)
    create_topic(kafka, topic, 1)
    assert "deleted or recreated" in desk.ask("reset", 409, **plan)["error"]["message"]
    deletion = PlannedOffset(TopicPartition(topic, 0), 5, None, deleted=True)
    with command:
        with pytest.raises(OffsetConflictError, match="deleted or recreated"):
            command.carry_out(group, rows)
        commit(kafka, group, {deletion.partition: 1})
        with pytest.raises(OffsetConflictError, match="planned at 5, now 1"):
            command.carry_out(group, [deletion])


def test_an_offset_that_is_cut_off_between_plan_and_execution_is_not_committed(desk: Desk) -> None:
    """Its row says so, on the page and in a command; the other partitions are done.

    An offset outside its log that was committed before can be committed again.
    """
    kafka, topic, group = desk.kafka, desk.topic, desk.group
    servers = kafka.bootstrap_servers
    cut, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    produce(kafka, topic, 1, 3)
    desk.commits(6, 0, group=f"{group}-command")
    with GroupChanges({"bootstrap.servers": servers}, timeout_s=WAIT_S) as command:
        rows = command.plan(f"{group}-command", "set", f"{topic}:0=2 {topic}:1=2", None)
        again = command.plan(f"{group}-command", "to-current", "", None)
        planned = desk.ask("plan", group=group, mode="to-earliest", topics=[topic])
        names = ("topic", "partition", "current", "new")
        entries = [{name: row[name] for name in names} for row in planned["partitions"]]
        admin = AdminClient({"bootstrap.servers": servers})
        admin.delete_records([KafkaPartition(topic, 0, 8)])[KafkaPartition(topic, 0)].result(WAIT_S)
        done = desk.ask("reset", group=group, partitions=entries, topic_ids=planned["topic_ids"])
        reason = "its log is from 8 to 20, without {}: make a new plan"
        assert [row["note"] for row in done["partitions"]] == [f"not done: {reason.format(0)}", ""]
        assert command.committed(group) == {other: OffsetAndMetadata(0)}
        assert command.carry_out(f"{group}-command", again) == {}
        assert command.carry_out(f"{group}-command", rows) == {cut: reason.format(2)}
        done = {cut: OffsetAndMetadata(6), other: OffsetAndMetadata(2)}
        assert command.committed(f"{group}-command") == done


def test_a_held_group_is_reset_through_its_managers_alone(desk: Desk) -> None:
    """Its holder is named; a commit of the job since the plan is not a conflict then."""
    topic, group = desk.topic, desk.group
    row = {"topic": topic, "partition": 0, "current": 5, "new": 2}

    def refused(*, live: bool) -> tuple[str, str]:
        error = desk.ask("reset", 409, group=group, live=live, partitions=[row])["error"]
        return error["code"], error["message"]

    assert refused(live=True)[0] == "group_not_held"
    with OffsetClient(desk.serving.address, name="nightly") as client:

        def submit(offset: int, *, rewind: bool = False) -> None:
            offsets = {(topic, 0): offset}
            client.submit(group, offsets, rewind=rewind, sync=True, timeout=WAIT_S)

        submit(5)
        planned = desk.ask("plan", group=group, mode="to-offset", value="2")
        assert planned["can_live"]
        assert "held by client 'nightly'" in planned["refused"]["message"]
        assert refused(live=False)[0] == "group_held"
        submit(6)
        done = desk.ask("reset", group=group, live=True, partitions=[row | {"metadata": "m"}])
        assert done["partitions"][0]["note"] == ""
        assert client.committed(group)[TopicPartition(topic, 0)] == OffsetAndMetadata(2, "m")
        submit(7)
        submit(4, rewind=True)
        steps = desk.ask(f"history?group={group}")["steps"]
        back = next(step for step in steps if step["metadata"] == "m")
        undo = desk.ask("plan", group=group, mode="to-history", value=back["time"])
        (planned,) = undo["partitions"]
        assert (planned["new"], planned["metadata"], planned["lag"]) == (2, "m", 18)
        assert "(planned at 5, now 4)" in refused(live=True)[1]
