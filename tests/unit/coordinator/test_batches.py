"""Commits that are larger than what the broker takes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import Future
from offsetmgr.coordinator.base import CommitResult, Failure
from offsetmgr.coordinator.batches import BATCH_BYTES, RECORD_BYTES, commit_in_batches
from offsetmgr.coordinator.explain import NOT_SENT
from offsetmgr.errors import Verdict, error_info
from offsetmgr.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Offsets = dict[TopicPartition, OffsetAndMetadata]

REFUSALS = [-1, 10, 18, 28]
"""Error codes of brokers for a batch that is too large."""


def offsets_of(metadata_bytes: Sequence[int]) -> Offsets:
    """Offsets of one partition each, with so much metadata."""
    return {
        TopicPartition("t", number): OffsetAndMetadata(1, "m" * size)
        for number, size in enumerate(metadata_bytes)
    }


def record_bytes(value: OffsetAndMetadata) -> int:
    """Size of a record of group "g" and topic "t", as it is estimated."""
    return RECORD_BYTES + 2 + len(value.metadata)


class Broker:
    """Takes batches up to a size, and answers at once."""

    def __init__(self, limit_bytes: int, code: int = -1) -> None:
        self.limit_bytes = limit_bytes
        self._refusal = Failure(error_info(code))
        self.sent: list[Offsets] = []
        self.committed: Offsets = {}
        self.answers: dict[int, Mapping[TopicPartition, Failure]] = {}
        """Other failures, by the number of the request."""

    def send(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Future[CommitResult]:
        """Answer one request."""
        self.sent.append(dict(offsets))
        said = self.answers.get(len(self.sent), {})
        failures = {where: failure for where, failure in said.items() if where in offsets}
        written = {p: v for p, v in offsets.items() if p not in failures}
        if sum(map(record_bytes, written.values())) > self.limit_bytes:
            failures.update(dict.fromkeys(written, self._refusal))
        else:
            self.committed.update(written)
        answer: Future[CommitResult] = Future()
        answer.set(CommitResult(failures))
        return answer

    def commit(self, offsets: Offsets) -> dict[TopicPartition, Failure]:
        """Commit all of them; return what failed."""
        return dict(commit_in_batches("g", offsets, self.send).get(timeout=0).failures)


def names(failures: Mapping[TopicPartition, Failure]) -> dict[int, str]:
    """The error codes by partition."""
    return {where.partition: failure.info.name for where, failure in failures.items()}


def test_what_fits_is_one_request() -> None:
    """Whatever its order is, the broker gets it so."""
    broker, offsets = Broker(BATCH_BYTES), offsets_of([9, 3, 5])
    assert broker.commit(offsets) == {}
    assert [list(each.items()) for each in broker.sent] == [list(offsets.items())]


def test_more_than_a_batch_goes_in_as_many_as_it_takes() -> None:
    """2,000 partitions with 600 bytes are 1.4 MB: no request is refused."""
    broker, offsets = Broker(BATCH_BYTES), offsets_of([600] * 2_000)
    assert broker.commit(offsets) == {}
    assert broker.committed == offsets
    assert len(broker.sent) == 2


@pytest.mark.parametrize("code", REFUSALS)
@given(
    sizes=st.lists(st.integers(0, 4_000), min_size=1, max_size=30),
    limit_bytes=st.integers(200, 20_000),
)
def test_what_fits_alone_is_committed_and_the_rest_is_refused(
    code: int, sizes: list[int], limit_bytes: int
) -> None:
    """However small the broker's limit is, with a bounded number of requests."""
    broker, offsets = Broker(limit_bytes, code), offsets_of(sizes)
    failures = broker.commit(offsets)
    fits = {p: v for p, v in offsets.items() if record_bytes(v) <= limit_bytes}
    assert broker.committed == fits
    assert failures.keys() == offsets.keys() - fits.keys()
    total = sum(map(record_bytes, offsets.values()))
    assert len(broker.sent) <= 20 + 4 * total / limit_bytes


def test_a_broker_that_fails_whatever_the_size_is_asked_a_few_times() -> None:
    """Nothing is blamed on the size then; what was sent is in doubt."""
    broker, offsets = Broker(limit_bytes=0), offsets_of([0] * 10_000)
    failures = broker.commit(offsets)
    assert {f.info.name for f in failures.values()} == {"UNKNOWN_SERVER_ERROR"}
    assert failures.keys() == offsets.keys()
    assert len(broker.sent) < 20


@pytest.mark.parametrize(
    ("code", "told"),
    [(25, "UNKNOWN_MEMBER_ID"), (30, "GROUP_AUTHORIZATION_FAILED"), (-185, "NOT_SENT")],
)
def test_nothing_is_sent_behind_a_failure_of_the_whole_group(code: int, told: str) -> None:
    """A refusal holds for the rest as well; of what was not answered the rest is not in doubt."""
    broker, offsets = Broker(BATCH_BYTES), offsets_of([4_000] * 600)
    broker.answers[1] = dict.fromkeys(offsets, Failure(error_info(code)))
    failures = broker.commit(offsets)
    (sent,) = broker.sent
    assert {failures[each].info.code for each in sent} == {code}
    rest = [failures[each].info for each in offsets if each not in sent]
    assert len(rest) + len(sent) == 600
    assert {(info.name, info.verdict) for info in rest} == {(told, Verdict.REFUSED)}


def test_a_partition_that_is_refused_holds_up_no_other_batch() -> None:
    """An unknown topic is a matter of its own."""
    broker, offsets = Broker(BATCH_BYTES), offsets_of([4_000] * 600)
    gone = TopicPartition("t", 0)
    broker.answers[1] = {gone: Failure(error_info(3))}
    assert names(broker.commit(offsets)) == {0: "UNKNOWN_TOPIC_OR_PARTITION"}
    assert broker.committed.keys() == offsets.keys() - {gone}


@pytest.mark.parametrize(("code", "verdict"), [(-1, Verdict.UNKNOWN), (28, Verdict.REFUSED)])
def test_what_is_not_sent_again_in_time_is_as_the_broker_left_it(
    code: int, verdict: Verdict
) -> None:
    """In doubt where the broker did not say that it wrote nothing, else refused for now."""
    broker, offsets = Broker(20_000, code), offsets_of([4_000] * 10)
    broker.answers[2] = dict.fromkeys(offsets, Failure(NOT_SENT))
    failures = broker.commit(offsets)
    assert failures.keys() == offsets.keys()
    assert {(f.info.verdict, f.info.retriable) for f in failures.values()} == {(verdict, True)}
