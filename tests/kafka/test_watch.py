"""The service process watches groups of a real Kafka, whoever commits them."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import httpx
import pytest
import yaml

from actors import MonotonicClock
from offsetmgr import OffsetClient
from offsetmgr.coordinator.memory import MemoryCoordinator
from offsetmgr.errors import KafkaRequestError
from offsetmgr.kafka.clients import NoThreadsError
from offsetmgr.kafka.commit_log import CommitTail
from offsetmgr.manager import Factory
from offsetmgr.service.settings import load
from offsetmgr.service.threads import ReadThreads
from offsetmgr.service.watch import GroupWatch
from offsetmgr.types import TopicPartition
from tests.commands import run, run_alone
from tests.kafka.conftest import service_of
from tests.kafka.test_cluster_reader import commit, produce
from tests.kafka.test_lag_commands import our_rows
from tests.secured import user_login
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory
    from tests.service.support import ServeProcess

_WAIT_S = 200.0
_DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="module")
def watching(kafka: DevKafka) -> Iterator[ServeProcess]:
    """A service that watches the groups of these tests, once a second."""
    with service_of(
        kafka,
        WATCH__GROUPS="group-test_(groups_of|burrow|rules).*",
        WATCH__INTERVAL_S="1",
        # So that a window covers more time than a slow machine lets pass between two rounds.
        WATCH__MIN_DISTANCE_S="1",
        WATCH__OTHER_NAMES="true",
        CLUSTER_NAME="local",
    ) as process:
        yield process


def get(service: ServeProcess, path: str) -> httpx.Response:
    return httpx.get(f"{service.address}{path}", timeout=_WAIT_S)


def watched(service: ServeProcess, group: str) -> Any:
    groups = get(service, "/v1/watched").json()["groups"]
    return next((each for each in groups if each["name"] == group and not each["error"]), None)


def test_groups_of_both_kinds(
    kafka: DevKafka, watching: ServeProcess, new_topic: TopicFactory, group: str
) -> None:
    """Lag of a group committed here and of another; the former says for which client."""
    topic, other = new_topic(2), f"{group}-other"
    produce(kafka, topic, 0, 20)
    commit(kafka, other, {TopicPartition(topic, 0): 15})
    with OffsetClient(watching.address, name="nightly") as client:
        client.submit(group, {(topic, 0): 5}, sync=True, timeout=_WAIT_S)
        asked = f"/v1/lag?group={group}&group={other}"
        found = {each["name"]: each for each in get(watching, asked).json()["groups"]}
        assert {name: each["lag"] for name, each in found.items()} == {group: 15, other: 5}
        assert found[group]["partitions"][0]["committer"] == "nightly"
        assert found[other]["partitions"][0]["committer"] is None

        through = run_service(watching, "describe", group, "--json")["groups"]
        without = run(kafka, "describe", group, "--json").json()["groups"]
        assert list(map(our_rows, through)) == list(map(our_rows, without))
        listed = run_service(watching, "groups", "--json")["groups"]
        assert {group, other} <= {each["name"] for each in listed}
    until(lambda: watched(watching, other))
    seen = run_service(watching, "top", other, "--json")["groups"]
    assert [each["name"] for each in seen] == [other]


def run_service(service: ServeProcess, *args: str) -> Any:
    done = run_alone(*args, "--service", service.address, "--timeout", "60")
    assert done.status == 0, done.output
    return done.json()


def test_burrow_drop_in(
    kafka: DevKafka, watching: ServeProcess, new_topic: TopicFactory, group: str
) -> None:
    """An offset that is committed again and again while records wait is a STALL, as in Burrow."""
    topic = new_topic()
    produce(kafka, topic, 0, 20)
    where = TopicPartition(topic, 0)
    path = f"/v3/kafka/local/consumer/{group}/status"
    assert get(watching, path).status_code == 404

    def stalled() -> Any:
        commit(kafka, group, {where: 5})
        answer = get(watching, path)
        status = answer.json()["status"]
        bad = [each for each in status["partitions"] if each["status"] == "STALL"]
        return (answer, status, bad[0]) if bad else None

    answer, status, partition = until(stalled, poll_s=0.5)
    assert answer.status_code == 200
    assert answer.json()["error"] is False
    assert answer.json()["request"]["url"] == path
    assert (status["status"], status["totallag"]) == ("ERR", 15)
    assert partition["current_lag"] == 15
    consumers = get(watching, "/v3/kafka/local/consumer").json()["consumers"]
    assert group in consumers
    absent = get(watching, "/v3/kafka/elsewhere/consumer")
    assert (absent.status_code, absent.json()["message"]) == (404, "cluster not found")


def test_without_the_right_to_read_the_log_of_commits(kafka: DevKafka) -> None:
    """The right is named, at every try: it may be granted later."""
    tail = CommitTail(user_login(kafka))
    for _ in range(2):
        with pytest.raises(KafkaRequestError, match="lacks READ on topic __consumer_offsets"):
            tail.read()


def test_groups_are_watched_without_room_for_readers_of_logs(
    kafka: DevKafka, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind: where the log of commits, or the age of a lag, cannot be read, nothing is shown."""
    produce(kafka, topic, 0, 20)
    commit(kafka, group, {TopicPartition(topic, 0): 5})
    full = Mock(side_effect=NoThreadsError("no room"))
    monkeypatch.setattr("offsetmgr.kafka.log_reader.open_consumer", full)
    names = {"KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers, "WATCH__GROUPS": group}
    settings = load(None, {f"OFFSETMGR_{name}": value for name, value in names.items()}, {})
    clock, factory = MonotonicClock(), Factory(MemoryCoordinator())
    watch = GroupWatch(settings, factory, clock, time.time, ReadThreads(1))
    watch.start()
    until(lambda: watch.read_at_s or watch.failed_rounds)
    watch.close()
    factory.stop(0)
    full.assert_called()
    assert watch.failed_rounds == 0
    assert watch._watcher is not None
    (lag,) = watch._watcher.view[group].partitions
    assert (lag.lag, lag.seconds_unknown) == (15, "no room")


def test_rules_and_dashboard_are_of_exported_metrics(
    kafka: DevKafka, watching: ServeProcess, new_topic: TopicFactory, group: str
) -> None:
    """Every metric that an alert or a panel names is one that the service exports."""
    topic = new_topic()
    commit(kafka, group, {TopicPartition(topic, 0): 0})
    until(lambda: watched(watching, group))
    page = get(watching, "/metrics").text
    exported = set(re.findall(r"^# TYPE (\w+) ", page, re.MULTILINE))
    exported |= {f"{name}_{end}" for name in exported for end in ("bucket", "count", "sum")}
    labels = set(re.findall(r"(\w+)=\"", page)) | {"job", "instance", "le", "severity"}

    rules = yaml.safe_load((_DEPLOY / "prometheus" / "offsetmgr.rules.yml").read_text())
    alerts = [rule for each in rules["groups"] for rule in each["rules"]]
    assert all({"summary", "description"} <= set(rule["annotations"]) for rule in alerts)
    board = json.loads((_DEPLOY / "grafana" / "offsetmgr.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    queries += [each["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    assert alerts
    assert queries
    for query in [*queries, *(rule["expr"] for rule in alerts)]:
        assert set(re.findall(r"\b(?:offsetmgr|kafka|process)_\w+", query)) <= exported, query
        assert set(re.findall(r"(\w+)=~?\"", query)) <= labels, query
