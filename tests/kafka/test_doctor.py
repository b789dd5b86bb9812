"""The doctor on a real Kafka: what it learns of rights, and what it cannot learn without them."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from confluent_kafka.admin import AclOperation, ResourceType

from offsetmgr import LocalOffsets
from offsetmgr.admin.doctor import Level, examine, gather
from tests.secured import SecuredKafka, allow, user_login
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from offsetmgr.admin.doctor import Finding
    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory


def bad(config: dict[str, str], *groups: str, timeout_s: float = WAIT_S) -> list[Finding]:
    facts = gather(config, groups, None, stuck_after_s=WAIT_S, timeout_s=timeout_s)
    return [each for each in examine(facts) if each.level is not Level.OK]


def test_missing_rights_are_named(kafka: DevKafka, new_topic: TopicFactory, group: str) -> None:
    """This user may look at the group and its topic, and commit to neither."""
    topic = new_topic(1)
    with LocalOffsets(kafka.bootstrap_servers) as job:
        job.submit(group, {(topic, 0): 0}, sync=True, timeout=WAIT_S)
    config = {"bootstrap.servers": kafka.bootstrap_servers}
    assert gather(config, [group], None, timeout_s=WAIT_S).retention_s == 7 * 86_400
    assert not bad(config, group)
    (mistyped,) = bad(config, f"no-{group}")
    assert mistyped.what == f"group no-{group} has no committed offsets"

    allow(kafka, ResourceType.GROUP, group, AclOperation.DESCRIBE)
    allow(kafka, ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    found = bad(user_login(kafka), group)
    trouble = {each.what: each.mend for each in found if each.level is Level.TROUBLE}
    servers = user_login(kafka)["bootstrap.servers"]
    grant = f"kafka-acls --bootstrap-server {servers} --add --allow-principal User:NAME"
    grant += " --operation Read"
    assert trouble == {
        f"this user lacks READ on group {group}": f"{grant} --group {group}",
        f"this user lacks READ on topic {topic}": f"{grant} --topic {topic}",
    }
    unknown = [each for each in found if each.level is Level.UNKNOWN]
    assert [(each.check, each.group) for each in unknown] == [("unread", "")] * 2

    allow(kafka, ResourceType.GROUP, group, AclOperation.READ)
    allow(kafka, ResourceType.TOPIC, topic, AclOperation.READ)
    assert {each.level for each in bad(user_login(kafka), group)} == {Level.UNKNOWN}


def test_a_kafka_that_does_not_answer_is_the_only_finding() -> None:
    """Within the time-out, and with its address; nothing listens there, or nobody reads."""
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        for port in (1, frozen.getsockname()[1]):
            (found,) = bad({"bootstrap.servers": f"127.0.0.1:{port}"}, "g", timeout_s=1)
            assert (found.level, found.check) == (Level.TROUBLE, "connection")
            assert f"connection to Kafka at 127.0.0.1:{port}" in found.what
            assert "offsetmgr config check" in found.mend


def test_a_name_that_cannot_be_resolved_is_the_only_trouble(kafka: DevKafka, group: str) -> None:
    """Kafka answers at its bootstrap address, and its broker is somewhere else.

    librdkafka asks either of the two: the name is what is wrong with the connection or, where the
    bootstrap address has said which brokers there are, with the broker.
    """
    assert isinstance(kafka, SecuredKafka)
    found = bad({"bootstrap.servers": kafka.unresolved}, group, timeout_s=10)
    (trouble,) = [each for each in found if each.level is not Level.UNKNOWN]
    words = {"connection": "Failed to resolve 'broker.invalid:", "brokers": "broker.invalid:"}
    assert words[trouble.check] in trouble.what
    assert "advertised.listeners" in trouble.mend


def test_a_frozen_broker_is_named(kafka3: DevKafka) -> None:
    """It takes connections, so its address is fine, and answers none of its questions."""
    frozen, *_, awake = kafka3.brokers
    frozen.pause()
    try:
        found = bad({"bootstrap.servers": awake.bootstrap_server}, timeout_s=30)
    finally:
        frozen.resume()
    named = [each.what for each in found if each.check == "brokers"]
    where = f"broker {frozen.node_id} ({frozen.bootstrap_server})"
    assert named == [f"{where}: takes connections, and does not answer"]
