"""Logins by tokens that a function of the application gets (``oauth_cb``), as of AWS MSK IAM."""

from __future__ import annotations

import base64
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from offsetmgr import InvalidValueError, LocalOffsets
from offsetmgr.cli.app import app
from offsetmgr.consumer import GroupConsumer
from offsetmgr.coordinator.fence import FencedCoordinator
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.kafka.cluster import ClusterReader
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.kafka.messages import produce
from tests.secured import TOKEN_USER, SecuredKafka
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from pathlib import Path

    from offsetmgr.devkafka import DevKafka


class Tokens:
    """A function that writes unsigned tokens, which the broker takes, for so many seconds."""

    def __init__(self, seconds: float = 3600.0) -> None:
        self.calls = 0
        self.renewed = threading.Event()
        self._seconds = seconds

    def __call__(self, _config: str | None) -> tuple[str, float]:
        self.calls += 1
        if self.calls > 1:
            self.renewed.set()
        now_s = time.time()
        until_s = now_s + self._seconds
        claims = {"sub": TOKEN_USER, "iat": now_s, "exp": until_s}
        parts = (json.dumps(each).encode() for each in ({"alg": "none"}, claims))
        encoded = [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts]
        return ".".join([*encoded, ""]), until_s


def login(kafka: DevKafka, tokens: Any) -> dict[str, object]:
    assert isinstance(kafka, SecuredKafka)
    return {**kafka.token_login(), "oauth_cb": tokens}


def test_every_room_logs_in_by_tokens(kafka: DevKafka, group: str, topic: str) -> None:
    """Managers, the fence, questions about the cluster, and consumers."""
    config = login(kafka, Tokens())
    produce(kafka, topic, range(5), partitions=1)
    where = TopicPartition(topic, 0)
    with LocalOffsets(config) as offsets:
        offsets.submit(group, {where: 3}, sync=True, timeout=WAIT_S)
    with ClusterReader(config, timeout_s=WAIT_S) as reader:
        assert reader.committed([group])[group] == {where: OffsetAndMetadata(3)}
    with FencedCoordinator(config, KafkaCoordinator(config, clients=1)) as fenced:
        done = fenced.commit(f"{group}-fenced", {where: OffsetAndMetadata(4)}, WAIT_S)
        assert done.get(timeout=WAIT_S).failures == {}
    with GroupConsumer(config, f"{group}-read", [topic]) as consumer:
        message = consumer.poll(timeout=WAIT_S)
        assert message is not None
        assert message.offset() == 0


get_token = Tokens()


def no_token(_config: str | None) -> tuple[str, float]:
    raise ConnectionError("the vault is sealed")


def test_commands_log_in_by_an_allowed_function(kafka: DevKafka, tmp_path: Path) -> None:
    """The service has the same settings; a failing function is named."""
    config = tmp_path / "offsetmgr.toml"
    ours = {f"{__name__}:{name}" for name in ("get_token", "no_token")}
    lines = [f"{name!r} = {value!r}" for name, value in login(kafka, "").items() if value]
    config.write_text("\n".join([f"oauth_functions = {sorted(ours)}", "[kafka]", *lines]))
    command = ["doctor", "--config", str(config), "--set"]
    good, bad = (
        CliRunner().invoke(app, [*command, f"kafka.oauth={name}"]) for name in sorted(ours)
    )
    # Its status tells of other tests' groups.
    assert "oauth_cb failed" not in good.output
    assert good.exit_code in {0, 1}, good.output
    assert f"oauth_cb failed: {__name__}:no_token: " in bad.output
    assert "the vault is sealed" in bad.output


def test_a_token_is_renewed_before_it_ends(kafka: DevKafka, group: str, topic: str) -> None:
    """Commits go on with the next one."""
    tokens = Tokens(seconds=3.0)
    with LocalOffsets(login(kafka, tokens)) as offsets:
        offsets.submit(group, {(topic, 0): 3}, sync=True, timeout=WAIT_S)
        assert tokens.renewed.wait(WAIT_S)
        offsets.submit(group, {(topic, 0): 4}, sync=True, timeout=WAIT_S)


def test_a_failing_token_function_is_named_in_the_error(kafka: DevKafka) -> None:
    """Kafka is not blamed, nor the settings."""

    def fail(_config: str | None) -> tuple[str, float]:
        raise SystemExit("no credentials for the role")

    with pytest.raises(InvalidValueError, match=r"oauth_cb failed: .*no credentials for the role"):
        LocalOffsets(login(kafka, fail))
