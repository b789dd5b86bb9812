"""A client on librdkafka's C interface, without a broker: what it takes, and what it survives."""

from __future__ import annotations

import ctypes
import threading

import pytest
from confluent_kafka import cimpl
from structlog.testing import capture_logs

from actors import Future
from offsetmgr.coordinator.kafka_offsets import Committed, Fetched, OffsetCommitter, OffsetFetcher
from offsetmgr.coordinator.librdkafka import FAIL, Answer
from offsetmgr.types import OffsetAndMetadata, TopicPartition

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
TIMED_OUT, INVALID_ARG = -185, -186
WAIT_S = 30.0
"""A guard against what never comes, not a measure."""

TWICE = (("t", 0), ("t", 0))
"""Partitions that librdkafka refuses at once, without a broker."""


class Silent:
    """A listener that does nothing with what it hears."""

    def failed(self, code: int, text: str) -> None:
        """A connection failed."""

    def logged(self, level: int, kind: str, text: str) -> None:
        """Take a line of librdkafka's log."""


class Clumsy(Silent):
    """A listener that fails whenever it hears something."""

    def __init__(self) -> None:
        self.heard = threading.Event()

    def failed(self, code: int, text: str) -> None:
        """Fail."""
        self.heard.set()
        raise LookupError(code, text)

    def logged(self, level: int, kind: str, text: str) -> None:
        """Fail."""
        self.failed(level, kind + text)


class Illiterate(OffsetFetcher):
    """A fetcher that cannot read a certain answer."""

    def read(self, answer: Answer) -> Fetched:
        """Fail where librdkafka refused the request."""
        if answer.error == INVALID_ARG:
            raise LookupError(answer.text)
        return super().read(answer)


class TestTimeOut:
    """What librdkafka is given for a request."""

    def test_the_longest_one_never_becomes_a_short_one(self) -> None:
        """Librdkafka refuses more than an hour and would take its own: it would run out inside."""
        fetcher = OffsetFetcher({**NOWHERE, "socket.timeout.ms": 10})
        patient: Future[Fetched] = Future()
        hasty: Future[Fetched] = Future()
        fetcher.fetch("g", None, 1e9, patient.set)
        fetcher.fetch("g", None, 1.0, hasty.set)
        assert hasty.get(timeout=WAIT_S).error == TIMED_OUT
        fetcher.close(WAIT_S)
        assert patient.get(timeout=WAIT_S).error == FAIL, "it was open until the close"

    def test_one_that_librdkafka_refuses_is_no_request(self) -> None:
        """Nothing is sent, and nobody is answered later."""
        fetcher = OffsetFetcher(NOWHERE)
        answers: list[Fetched] = []
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"refuses the time-out: .*3600000"):
                fetcher.fetch("g", None, -1.0, answers.append)
        fetcher.close(WAIT_S)
        assert not answers


class TestThread:
    """The thread that hands out answers."""

    def test_where_it_cannot_start_nothing_is_left_behind(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a machine that is short of threads, librdkafka's would pile up with every try."""
        threads = ctypes.PyDLL(cimpl.__file__).rd_kafka_thread_cnt
        before = threads()
        start = threading.Thread.start

        def refused(thread: threading.Thread) -> None:
            if thread.name == "kafka-fetches":
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start"):
            OffsetFetcher(NOWHERE)
        assert threads() <= before

    def test_a_listener_that_fails_costs_nobody_an_answer(self) -> None:
        """It is logged, and the thread goes on."""
        listener = Clumsy()
        with capture_logs() as logs:
            committer = OffsetCommitter(NOWHERE, listener)
            assert listener.heard.wait(WAIT_S)
            answer: Future[Committed] = Future()
            offsets = {TopicPartition("t", 0): OffsetAndMetadata(1)}
            committer.commit("g", offsets, 300.0, answer.set)
            committer.close(WAIT_S)
            assert answer.get(timeout=WAIT_S).error == FAIL
        assert "kafka_event_failed" in {entry["event"] for entry in logs}

    def test_an_answer_that_cannot_be_read_is_a_failure(self) -> None:
        """Of its own request alone: the next one is answered too."""
        with capture_logs() as logs:
            fetcher = Illiterate(NOWHERE)
            for _ in range(2):
                answer: Future[Fetched] = Future()
                fetcher.fetch("g", TWICE, 300.0, answer.set)
                assert answer.get(timeout=WAIT_S).error == FAIL
            fetcher.close(WAIT_S)
        assert [entry["event"] for entry in logs] == ["kafka_answer_unreadable"] * 2

    @pytest.mark.parametrize("end", ["answer", "close"])
    def test_who_fails_at_an_answer_costs_nobody_else_one(self, end: str) -> None:
        """Whether Kafka gave it or the close."""
        told = threading.Event()

        def fail(answer: Fetched) -> None:
            told.set()
            raise LookupError(answer.text)

        fetcher = OffsetFetcher(NOWHERE)
        other: Future[Fetched] = Future()
        fetcher.fetch("g", TWICE if end == "answer" else None, 300.0, fail)
        fetcher.fetch("g", None, 300.0, other.set)
        if end == "answer":
            assert told.wait(WAIT_S)
        fetcher.close(WAIT_S)
        assert other.get(timeout=WAIT_S).error == FAIL


def test_a_commit_that_cannot_be_written_down_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The list that it was begun in is freed, once."""
    committer = OffsetCommitter(NOWHERE, Silent())
    free = committer.library.topic_partition_list_destroy
    freed: list[object] = []

    def freeing(wanted: object) -> None:
        freed.append(wanted)
        free(wanted)

    monkeypatch.setattr(committer.library, "topic_partition_list_destroy", freeing)
    offsets = {TopicPartition("t", 0): OffsetAndMetadata(2**63)}
    with pytest.raises(OverflowError):
        committer.commit("g", offsets, 300.0, lambda _: None)
    committer.close(WAIT_S)
    assert len(freed) == 1
