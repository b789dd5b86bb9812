"""A client on librdkafka's C interface, without a broker: what it takes, and what it survives."""

from __future__ import annotations

import threading

from offsetmgr.answers import Failure
from offsetmgr.kafka.librdkafka import (
    FAIL,
    NOT_NAMED,
    PRODUCER,
    GroupClient,
    _rd,
    offset_list,
    read_list,
)
from offsetmgr.kafka.reports import ConnectionReports
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.logs import capture_logs
from tests.waiting import WAIT_S

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


class Clumsy(ConnectionReports):
    """A listener that fails whenever it hears something."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = threading.Event()

    def failed(self, code: int, text: str) -> None:
        self.heard.set()
        raise LookupError(code, text)

    def logged(self, level: int, kind: str, text: str) -> None:
        self.failed(level, kind + text)


def test_a_failing_listener_delays_no_answer() -> None:
    """It is logged, and the thread goes on."""
    listener = Clumsy()
    with capture_logs() as logs:
        committer = GroupClient(NOWHERE, PRODUCER, listener)
        assert listener.heard.wait(WAIT_S)
        offsets = {TopicPartition("t", 0): OffsetAndMetadata(1)}
        answer = committer.commit("g", offsets, 300.0)
        committer.close(WAIT_S)
        failure = answer.result(WAIT_S)
        assert isinstance(failure, Failure)
        assert failure.info.code == FAIL
    assert "kafka_event_failed" in {entry["event"] for entry in logs}


def test_a_partition_missing_in_the_answer_is_not_committed() -> None:
    """The answer is the list that was sent, here as it is before the answer."""
    client = GroupClient(NOWHERE, PRODUCER, ConnectionReports())
    offsets = {
        TopicPartition("b", 1): OffsetAndMetadata(2**63 - 1, "é 'x'\n", 7),
        TopicPartition("a", 0): OffsetAndMetadata(0),
        TopicPartition("a", 1): OffsetAndMetadata(5),
        TopicPartition("a", 2**31 - 1): OffsetAndMetadata(6),
    }
    made = offset_list(client._handle.pointer, offsets)
    found = list(read_list(made, refused=True))
    _rd.topic_partition_list_destroy(made)
    client.close(WAIT_S)
    assert found == [(where, offset, NOT_NAMED) for where, offset in offsets.items()]
