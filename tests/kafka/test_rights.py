"""The rights of docs/operator.md are enough, and one that is missing is named with its resource."""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from offsetmgr.streams import codecs
from offsetmgr.streams.view import View
from offsetmgr.types import TopicPartition
from tests.commands import Ran, run_alone
from tests.conftest import create_topic
from tests.kafka.test_cluster_reader import commit, produce
from tests.secured import allow, user_login
from tests.service.support import serve_process
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from pathlib import Path

    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory


class User:
    """A new user, who may do nothing in the beginning, with a configuration file."""

    def __init__(self, kafka: DevKafka, folder: Path) -> None:
        self._kafka = kafka
        self.config = folder / "user.toml"
        self._name = f"user-{uuid.uuid4().hex[:8]}"
        self.login = user_login(kafka)
        self.login |= {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": self._name}
        login, secret = dict(self.login), folder / "password"
        secret.write_text(login.pop("sasl.password"))
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        made = UserScramCredentialUpsertion(self._name, info, secret.read_bytes())
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.alter_user_scram_credentials([made])[self._name].result(WAIT_S)
        lines = [f'"{name}" = {json.dumps(value)}' for name, value in login.items()]
        lines += [f'"sasl.password_file" = "{secret}"']
        self.config.write_text("[kafka]\n" + "\n".join(lines))

    def may(self, operation: AclOperation, kind: ResourceType, name: str) -> None:
        allow(self._kafka, kind, name, operation, user=self._name)

    def may_not(self, operation: AclOperation, kind: ResourceType, name: str) -> None:
        denied = AclPermissionType.DENY
        allow(self._kafka, kind, name, operation, user=self._name, permission=denied)

    def types(self, *words: str) -> Ran:
        return run_alone(*words, "--config", str(self.config), "--timeout", "60")


@pytest.fixture
def user(kafka: DevKafka, tmp_path: Path) -> User:
    """A user of the listener with ACLs."""
    return User(kafka, tmp_path)


def partitions(ran: Ran) -> list[dict[str, Any]]:
    (group,) = ran.json()["groups"]
    found: list[dict[str, Any]] = group["partitions"]
    return found


def test_each_command_needs_the_rights_of_the_guide(
    kafka: DevKafka, user: User, new_topic: TopicFactory, group: str
) -> None:
    """No more than these: no right on a group that the product made up for itself."""
    topic = new_topic()
    where = TopicPartition(topic, 0)
    produce(kafka, topic, 0, 20)
    commit(kafka, group, {where: 5})

    refused = user.types("describe", group, "--json")
    assert f"lacks DESCRIBE on group {group}" in refused.out
    # The right that a command needs is named from the start, not that of its first request.
    for words in (["delete-group", group], ["delete-offsets", group, "--all-topics"]):
        assert f"lacks DELETE on group {group}" in user.types(*words).err
    plan = user.types("reset", group, "--all-topics", "--to-earliest")
    assert f"lacks READ on group {group}" in plan.err
    refused = user.types("history", group)
    assert "lacks READ on topic __consumer_offsets; grant it: kafka-acls" in refused.err
    user.may(AclOperation.READ, ResourceType.TOPIC, "__consumer_offsets")
    (step,) = user.types("history", group, "--json").json()["steps"]
    assert step["to"] == 5

    user.may(AclOperation.DESCRIBE, ResourceType.GROUP, group)
    user.may(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
    (found,) = partitions(user.types("describe", group, "--json"))
    assert (found["lag"], found["lag_seconds"]) == (15, None)
    assert f"lacks READ on topic {topic}" in found["lag_seconds_unknown"]
    assert user.types("lag", group).status == 0
    assert user.types("lag", group, "--max-seconds", "3600").status == 3  # it is not known
    user.may(AclOperation.READ, ResourceType.TOPIC, topic)
    (found,) = partitions(user.types("describe", group, "--json"))
    assert found["lag_seconds"] > 0

    reset = ["reset", group, "--all-topics", "--to-earliest", "--execute"]
    assert f"lacks READ on group {group}" in user.types(*reset).out
    user.may(AclOperation.READ, ResourceType.GROUP, group)
    assert user.types(*reset).status == 0
    plan = user.types("reset", group, "--to-history", "2020-01-01T00:00:00")
    assert "compacted away" in plan.out

    for words in (["delete-offsets", group, "--topic", topic], ["delete-group", group]):
        assert f"lacks DELETE on group {group}" in user.types(*words, "--execute").err
    user.may(AclOperation.DELETE, ResourceType.GROUP, group)
    assert user.types("delete-offsets", group, "--topic", topic, "--execute").status == 0
    assert user.types("delete-group", group, "--execute").status == 0


def test_a_topic_that_may_not_be_read_is_one_row_of_a_copy(
    kafka: DevKafka, user: User, new_topic: TopicFactory, group: str
) -> None:
    """The others are translated; nor is a right needed on a topic of MirrorMaker's own."""
    topics = good, secret = [new_topic(), new_topic()]
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    begin_ms = int(time.time() - 60) * 1_000
    for topic in topics:
        create_topic(kafka, f"west.{topic}", 1)
        for name in (topic, f"west.{topic}"):
            for number in range(9):
                producer.produce(name, str(number), timestamp=begin_ms + number)
            right = AclOperation.READ if topic == good else AclOperation.DESCRIBE
            user.may(right, ResourceType.TOPIC, name)
    assert producer.flush(WAIT_S) == 0
    commit(kafka, group, {TopicPartition(topic, 0): 7 for topic in topics})
    user.may(AclOperation.READ, ResourceType.GROUP, group)
    tables = user.config.read_text().partition("\n")[2]
    user.config.write_text(f"[clusters.west]\n{tables}\n[clusters.east]\n{tables}")
    ran = user.types("clusters", "copy-offsets", group, "--from", "west", "--to", "east", "--json")
    rows = {row["topic"]: row for row in ran.json()["partitions"]}
    assert ran.status == 3
    assert {topic: row["new"] for topic, row in rows.items()} == {good: 7, secret: None}
    assert f"this user lacks READ on topic {secret}" in rows[secret]["note"]


def test_a_watched_group_that_is_not_listed_any_more_is_unread_not_gone(
    kafka: DevKafka, user: User, new_topic: TopicFactory, group: str
) -> None:
    """Such as one whose right was taken away, or whose coordinator moves; the log says why."""
    topic = new_topic()
    commit(kafka, group, {TopicPartition(topic, 0): 0})
    user.may(AclOperation.DESCRIBE, ResourceType.GROUP, group)
    user.may(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
    settings = {"watch.groups": f"{group}.*", "watch.interval_s": "1"}
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with serve_process(
        "--listen", "127.0.0.1:0", "--config", str(user.config), *options
    ) as service:

        def watched() -> list[Any]:
            found = httpx.get(f"{service.address}/v1/watched", timeout=WAIT_S).json()["groups"]
            return [each for each in found if not each["error"]]

        until(watched)
        user.may_not(AclOperation.DESCRIBE, ResourceType.GROUP, group)
        line = service.wait_for("groups_unread")
        assert line["groups"] == 1
        assert f"lacks DESCRIBE on group {group}" in line["error"]
        assert not watched()


def test_a_view_needs_read_on_its_topic_alone(
    kafka: DevKafka, user: User, new_topic: TopicFactory, tmp_path: Path
) -> None:
    topic = new_topic()
    produce(kafka, topic, 0, 3)
    user.may(AclOperation.READ, ResourceType.TOPIC, topic)
    with View(user.login, topic, codecs.String(), tmp_path / "view") as view:
        view.wait_until_running(WAIT_S)
