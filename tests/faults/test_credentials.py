"""A Kafka with TLS, passwords and ACLs: what it refuses, and what is made of that."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from offsetmgr.errors import OffsetCommitError
from tests.conftest import USER
from tests.faults.support import HASTY, WAIT_S, committing
from tests.service.support import serve_process

if TYPE_CHECKING:
    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory


def allow(kafka: DevKafka, kind: ResourceType, name: str, operation: AclOperation) -> None:
    """Give the user one right more, and see that the broker goes by it."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    binding = AclBinding(
        kind,
        name,
        ResourcePatternType.LITERAL,
        f"User:{USER}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
    admin.create_acls([binding])[binding].result(WAIT_S)
    # The controller has it then; the broker itself learns of it a moment later.
    deadline = time.monotonic() + WAIT_S
    while not admin.describe_acls(_exactly(binding)).result(WAIT_S):
        assert time.monotonic() < deadline, f"the broker does not learn of {binding}"


def _exactly(binding: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )


@pytest.mark.fault(21)
def test_a_wrong_password_is_told_once_and_makes_the_service_unready(
    kafka: DevKafka, group: str
) -> None:
    """Who waits learns the reason by the deadline; the log has one line, however often it tries."""
    login = {**kafka.login(USER), "sasl.password": "not-the-one"}
    env = {f"OFFSETMGR_KAFKA__{key.replace('.', '_').upper()}": v for key, v in login.items()}
    env |= {"OFFSETMGR_COMMIT__REQUEST_TIMEOUT_S": "0.5", "OFFSETMGR_STOP_TIMEOUT_S": "0.5"}
    offset = {"topic": "t", "partition": 0, "offset": 7}
    body = {"group": group, "offsets": [offset], "wait": True, "timeout_s": 1}
    with serve_process("--listen", "127.0.0.1:0", env=env) as service, service.http(group) as http:
        service.wait_for("kafka_refuses_credentials")
        while True:
            (left,) = http.post("/v1/offsets", json=body).json()["uncommitted"]
            if left["error"]["code"] == "_AUTHENTICATION":
                break
        assert "credentials" in left["error"]["message"]
        assert http.get("/readyz").status_code == 503
        assert http.get("/livez").status_code == 200
        assert service.stop() == 3
        said = [each for each in service.records if each["event"] == "kafka_refuses_credentials"]
        assert len(said) == 1
        assert "not-the-one" not in "".join(service.lines)


@pytest.mark.fault(21)
def test_a_certificate_that_is_not_trusted_is_told_as_such(kafka: DevKafka, group: str) -> None:
    """It is no bare time-out."""
    login = {key: v for key, v in kafka.login(USER).items() if key != "ssl.ca.location"}
    with committing(login, HASTY) as managers:
        handle = managers.factory.spawn(group, "t", 0)
        errors = handle.errors()
        # Before the first handshake is over there may be time-outs of which nobody knows more.
        while (error := errors.get(timeout=WAIT_S)).code != "_SSL":
            assert error.code == "_TIMED_OUT"
        assert "certificate verify failed" in str(error)


@pytest.mark.fault(21, 22)
def test_good_credentials_commit_what_the_acls_allow(
    kafka: DevKafka, new_topic: TopicFactory, group: str
) -> None:
    """A group that may be looked at only is told so once per submit; another one is committed."""
    topic = new_topic(2)
    allow(kafka, ResourceType.TOPIC, topic, AclOperation.READ)
    allow(kafka, ResourceType.GROUP, f"{group}-allowed", AclOperation.READ)
    allow(kafka, ResourceType.GROUP, group, AclOperation.DESCRIBE)
    with committing(kafka.login(USER)) as managers:
        allowed = managers.spawn(f"{group}-allowed", topic=topic)
        denied = managers.spawn(group, topic=topic)
        for attempt in (1, 2):
            denied.submit(attempt)
            error = denied.errors().get(timeout=WAIT_S)
            assert isinstance(error, OffsetCommitError)
            assert (error.code, error.retriable) == ("GROUP_AUTHORIZATION_FAILED", False)
            for offset in range(5):
                allowed.submit(10 * attempt + offset)
                assert managers.flush(allowed) is None
        assert managers.codes() == ["GROUP_AUTHORIZATION_FAILED"] * 2
        requests = [group for kind, group, *_ in managers.told.asked if kind == "commit"]
        assert requests.count(group) == 2
        # Once it is granted, the same offset needs no more than to be submitted again.
        allow(kafka, ResourceType.GROUP, group, AclOperation.READ)
        denied.submit(2)
        assert managers.flush(denied) is None
        assert managers.in_kafka(group, topic=topic) == 2
