"""Commits in batches and texts for people, which all implementations of the port share."""

from __future__ import annotations

from concurrent.futures import Future as Pending
from queue import Queue
from typing import TYPE_CHECKING, Any

import pytest

from actors import Future
from offsetmgr.coordinator import kafka
from offsetmgr.coordinator.base import (
    CommitResult,
    Failure,
    FetchResult,
    GroupMember,
    commit_in_batches,
    fetch_in_batches,
    live_members,
)
from offsetmgr.errors import Verdict, error_info
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Offsets = dict[TopicPartition, OffsetAndMetadata]


def offsets_of(metadata_bytes: Sequence[int]) -> Offsets:
    """Offsets of one partition each, with so much metadata."""
    return {
        TopicPartition("t", number): OffsetAndMetadata(1, "m" * size)
        for number, size in enumerate(metadata_bytes)
    }


class Broker:
    def __init__(self) -> None:
        self.sent: list[Offsets] = []
        self.refused: Mapping[TopicPartition, Failure] = {}

    def send(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Future[CommitResult]:
        self.sent.append(dict(offsets))
        answer: Future[CommitResult] = Future()
        answer.set(CommitResult({p: f for p, f in self.refused.items() if p in offsets}))
        return answer

    def commit(self, offsets: Offsets) -> dict[TopicPartition, Failure]:
        return dict(commit_in_batches("g", offsets, self.send).get(timeout=0).failures)


@pytest.mark.parametrize(
    ("code", "told"),
    [(25, "UNKNOWN_MEMBER_ID"), (30, "GROUP_AUTHORIZATION_FAILED"), (-185, "NOT_SENT")],
)
def test_a_failure_of_the_group_ends_the_commit(code: int, told: str) -> None:
    """A refusal holds for the rest as well; of what was not answered the rest is not in doubt."""
    broker, offsets = Broker(), offsets_of([4_000] * 600)
    broker.refused = dict.fromkeys(offsets, Failure(error_info(code)))
    failures = broker.commit(offsets)
    (sent,) = broker.sent
    assert {failures[each].info.code for each in sent} == {code}
    rest = [failures[each].info for each in offsets if each not in sent]
    assert len(rest) + len(sent) == 600
    assert {(info.name, info.verdict) for info in rest} == {(told, Verdict.REFUSED)}


def test_a_refused_partition_does_not_stop_other_batches() -> None:
    """An unknown topic is a matter of its own."""
    broker, offsets = Broker(), offsets_of([4_000] * 600)
    gone = TopicPartition("t", 0)
    broker.refused = {gone: Failure(error_info(3))}
    assert {p: f.info.name for p, f in broker.commit(offsets).items()} == {
        gone: "UNKNOWN_TOPIC_OR_PARTITION"
    }
    assert {where for each in broker.sent for where in each} == offsets.keys()


def test_a_batch_that_cannot_be_sent_ends_the_commit() -> None:
    """Also a later one, which is sent once the one before it is answered."""

    def send(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Future[CommitResult]:
        if TopicPartition("t", 0) not in offsets:
            raise RuntimeError("no more threads")
        return Broker().send(offsets)

    with pytest.raises(RuntimeError, match="no more threads"):
        commit_in_batches("g", offsets_of([600] * 2_000), send).get(timeout=0)


PARTITIONS = [TopicPartition("t", number) for number in range(5_000)]


def test_a_failure_of_the_group_ends_a_fetch() -> None:
    """Each partition of the requests that are not sent any more has the reason."""
    late = Failure(error_info(-185))

    def send(partitions: Sequence[TopicPartition]) -> Future[FetchResult]:
        answer: Future[FetchResult] = Future()
        answer.set(FetchResult.failed(partitions, late))
        return answer

    failures = fetch_in_batches(PARTITIONS, send).get(timeout=0).failures
    assert failures.keys() == set(PARTITIONS)
    assert failures[PARTITIONS[0]] == late
    assert failures[PARTITIONS[-1]].info.name == "NOT_SENT"


def test_kafka_is_asked_for_a_large_group_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind: a group with many partitions that holds the client which all groups share."""
    gone = {PARTITIONS[7]: Failure(error_info(3))}
    asked: list[Sequence[TopicPartition]] = []
    answers: Queue[Pending[FetchResult]] = Queue()

    class Client:
        def __init__(self, *_: object) -> None: ...

        def close(self) -> None: ...

        def fetch(self, _group: str, partitions: Sequence[TopicPartition], _s: float) -> Any:
            asked.append(partitions)
            answer = Pending[FetchResult]()
            answers.put(answer)
            return answer

    monkeypatch.setattr(kafka, "GroupClient", Client)
    with kafka.KafkaCoordinator("127.0.0.1:1") as coordinator:
        fetched = coordinator.fetch("g", PARTITIONS, 60.0)
        for number in range(1, 4):
            answer = answers.get(timeout=60.0)
            assert len(asked) == number  # one request at a time
            failures = {where: gone[where] for where in asked[-1] if where in gone}
            offsets = {p: OffsetAndMetadata(1) for p in asked[-1] if p not in failures}
            answer.set_result(FetchResult(offsets, failures))
        found = fetched.get(timeout=60.0)
    assert max(map(len, asked)) <= 2_000
    assert [where for part in asked for where in part] == PARTITIONS
    assert (len(found.offsets), found.failures) == (4_999, gone)


def test_reading_a_whole_group_does_not_delay_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind: a group so large that librdkafka works on its answer for seconds."""
    asked: dict[object, list[str]] = {}

    class Client:
        def __init__(self, *_: object) -> None:
            asked[self] = []

        def close(self) -> None: ...

        def fetch(self, group: str, _partitions: object, _s: float) -> Any:
            asked[self].append(group)
            answer = Pending[FetchResult]()
            if group == "small":
                answer.set_result(FetchResult({PARTITIONS[0]: None}, {}))
            return answer

    monkeypatch.setattr(kafka, "GroupClient", Client)
    with kafka.KafkaCoordinator("127.0.0.1:1") as coordinator:
        coordinator.fetch("large", None, 60.0)
        coordinator.fetch("small", PARTITIONS[:1], 60.0).get(timeout=60.0)
        coordinator.close(0.0)
    assert sorted(asked.values()) == [["large"], ["small"]]


def test_live_members_are_named_on_one_line() -> None:
    """Ten of them, the others are counted; whoever joined the group has chosen the names."""
    text = live_members("g", [GroupMember("", f"c{n}", f"/10.0.0.{n}") for n in range(12)])
    assert text.startswith("group g has live members (c0, host /10.0.0.0, c1, host /10.0.0.1, c2")
    assert text.endswith("c9, host /10.0.0.9 and 2 more); commit to another group or stop them")
    text = live_members("g", [GroupMember("", "evil\r\n\x1b[2J\u202e", "/h\0")])
    assert text.isprintable()
    assert r"evil\r\n\x1b[2J\u202e, host /h\x00" in text
