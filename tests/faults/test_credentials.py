"""A Kafka with TLS, passwords and ACLs: what it refuses, and what is made of that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from offsetmgr.errors import OffsetCommitError
from tests.faults.proxy import Proxy
from tests.faults.support import HASTY, committing
from tests.secured import USER, allow, user_login
from tests.service.support import serve_process
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory


@pytest.mark.fault(21)
def test_a_wrong_password_is_reported_once_and_makes_the_service_unready(
    kafka: DevKafka, group: str
) -> None:
    """A waiting caller gets the reason by the deadline; the log has one line for all tries."""
    login = {**user_login(kafka), "sasl.password": "not-the-one"}
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
def test_a_refused_login_is_not_tried_for_each_request(kafka: DevKafka, group: str) -> None:
    """Logins are tried as often as connections are, and their refusal is reported once."""
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,  # the listener behind the proxy knows no users
        "sasl.password": "not-the-one",
        "reconnect.backoff.ms": 600_000,
        "reconnect.backoff.max.ms": 600_000,
    }
    with (
        Proxy(kafka.bootstrap_servers) as proxy,
        committing({"bootstrap.servers": f"127.0.0.1:{proxy.port}", **login}, HASTY) as managers,
    ):
        managers.factory.spawn(group, "t", 0).submit(1)
        until(lambda: len(managers.told.asked) > 5)
        # One of each client: for commits, for fetches and for the cluster.
        assert 1 <= proxy.connections <= 3
        # Before the first login is over there may be time-outs of which nobody knows more.
        assert [code for code in managers.codes() if code != "_TIMED_OUT"] == ["_AUTHENTICATION"]


@pytest.mark.fault(21)
def test_a_refused_login_that_is_put_right_in_kafka_needs_no_restart(
    kafka: DevKafka, new_topic: TopicFactory, group: str
) -> None:
    """Waiting offsets are committed as soon as the user is known."""
    topic, user = new_topic(), f"late-{group}"
    login = user_login(kafka)
    given = {**login, "sasl.username": user, "sasl.mechanism": "SCRAM-SHA-512"}
    allow(kafka, ResourceType.TOPIC, topic, AclOperation.READ, user=user)
    allow(kafka, ResourceType.GROUP, group, AclOperation.READ, user=user)
    with committing(given, HASTY) as managers:
        handle = managers.factory.spawn(group, topic, 0)
        handle.submit(7)
        until(lambda: "_AUTHENTICATION" in managers.codes())
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        made = UserScramCredentialUpsertion(user, info, login["sasl.password"].encode())
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.alter_user_scram_credentials([made])[user].result(WAIT_S)
        assert managers.flush(handle) is None
        assert managers.in_kafka(group, topic=topic) == 7


@pytest.mark.fault(21)
def test_a_certificate_that_is_not_trusted_is_named_as_the_cause(
    kafka: DevKafka, group: str
) -> None:
    """It is more than a bare time-out."""
    login = {key: v for key, v in user_login(kafka).items() if key != "ssl.ca.location"}
    with committing(login, HASTY) as managers:
        handle = managers.factory.spawn(group, "t", 0)
        errors = handle.errors()
        # Before the first handshake is over there may be time-outs of which nobody knows more.
        while (error := errors.get(timeout=WAIT_S)).code != "_SSL":
            assert error.code == "_TIMED_OUT"
        assert "certificate verify failed" in str(error)


@pytest.mark.fault(21, 22)
def test_good_credentials_commit_as_far_as_the_acls_allow(
    kafka: DevKafka, new_topic: TopicFactory, group: str
) -> None:
    """A group that may be looked at only is told so once per submit; another one is committed."""
    topic = new_topic(2)
    allow(kafka, ResourceType.TOPIC, topic, AclOperation.READ)
    allow(kafka, ResourceType.GROUP, f"{group}-allowed", AclOperation.READ)
    allow(kafka, ResourceType.GROUP, group, AclOperation.DESCRIBE)
    with committing(user_login(kafka)) as managers:
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
