"""The offsets of a client: requests that are too large for the service, and what is committed."""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING

import pytest

from offsetmgr.client import wire
from offsetmgr.client.partitions import FORMER_ID, Batch, ClientPartition, Partitions
from offsetmgr.codes import TOPIC_RECREATED, error_info
from offsetmgr.errors import OffsetCommitError, ServiceError
from offsetmgr.types import ManagerKey, OffsetAndMetadata
from tests.unit.client.scripted import Fault, error_body
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.client import OffsetClient
    from tests.unit.client.scripted import Json, ScriptedService, Seen

OFFSETS = {("orders", number): 5 for number in range(4)}


@pytest.fixture
def refuse(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int, Callable[[list[Json]], bool]], None]:
    """Have the service refuse submits whose offsets are odd."""
    handle = service.handle

    def refuse(status: int, is_odd: Callable[[list[Json]], bool]) -> None:
        def strictly(seen: Seen) -> tuple[int, bytes]:
            if is_odd(seen.body.get("offsets", [])):
                return status, error_body("invalid_value", "too long for us")
            return handle(seen)

        monkeypatch.setattr(service, "handle", strictly)

    return refuse


@pytest.mark.parametrize("sync", [False, True], ids=["flush", "sync"])
def test_a_request_too_large_is_sent_in_pieces(
    service: ScriptedService, client: OffsetClient, refuse: Callable[..., None], *, sync: bool
) -> None:
    """Offsets whose request is too large are sent in smaller ones, and none is lost."""
    refuse(413, lambda offsets: len(offsets) > 1)
    client.submit("g", OFFSETS, sync=sync)
    assert not client.flush().uncommitted
    assert len(service.kafka) == len(OFFSETS)


@pytest.mark.parametrize("status", [400, 413])
def test_a_bad_offset_is_refused_alone(
    client: OffsetClient, refuse: Callable[..., None], status: int
) -> None:
    """One that the service calls bad, or too large by itself, holds back none of its peers."""
    refuse(status, lambda offsets: any("metadata" in each for each in offsets))
    manager = client.spawn("g", "orders", 9)
    client.submit("g", {**OFFSETS, ("orders", 9): OffsetAndMetadata(5, "m" * 4_000)})
    committed, uncommitted = client.flush(timeout=600)
    assert len(committed) == len(OFFSETS)
    assert list(uncommitted) == [manager.key]
    error = uncommitted[manager.key].error
    assert isinstance(error, ServiceError)
    assert error.status == status
    assert "too long for us" in str(manager.errors().get(timeout=WAIT_S))
    manager.submit(6)
    assert client.flush(timeout=600).committed[manager.key] == OffsetAndMetadata(6)


ENDLESS = {"code": "offset_regression", "message": "m", "offset": 1e999, "floor": 1}


@pytest.mark.parametrize("odd", ["no", {"code": "x"}, ENDLESS], ids=["text", "short", "infinite"])
def test_an_unreadable_entry_fails_its_own_partition_alone(
    service: ScriptedService, client: OffsetClient, odd: Json | str
) -> None:
    """In the answer to a submit and to a flush; it is reported, and the others are committed.

    The kind: one odd entry makes the whole answer unreadable.
    """
    refused = [{"topic": "orders", "partition": 9, "error": odd}]
    answer = json.dumps({"accepted": 1, "refused": refused}).encode()
    service.script("/v1/offsets", Fault(act=False, status=200, body=answer))
    client.submit("g", {**OFFSETS, ("orders", 9): 5})
    committed = OffsetAndMetadata(5)._asdict()
    rows = [{**ManagerKey("g", *where)._asdict(), **committed} for where in OFFSETS]
    half = {**ManagerKey("g", "orders", 9)._asdict(), **committed, "offset": 1.5}
    answer = json.dumps({"committed": [None, half, *rows], "uncommitted": []}).encode()
    service.script("/v1/flush", Fault(status=200, body=answer))
    result = client.flush(timeout=WAIT_S)
    assert len(result.committed) == len(OFFSETS)
    ((where, left),) = result.uncommitted.items()
    assert (where.partition, left.error.code) == (9, "malformed")


def test_only_known_commits_count() -> None:
    """A late answer undoes nothing, and an event counts only if it must be about the newest."""
    partition = ClientPartition(-1)

    def submit(offset: int, version: int, *, rewind: bool = False) -> None:
        partition.submit(OffsetAndMetadata(offset), version, "", rewind=rewind)

    def seen(offset: int) -> tuple[OffsetAndMetadata | None, int]:
        partition.commit_seen(OffsetAndMetadata(offset))
        return partition.committed, partition.committed_version

    submit(5, 1)
    submit(9, 2)
    assert seen(5) == (None, 0)
    assert seen(9) == (OffsetAndMetadata(9), 2)
    submit(5, 3, rewind=True)
    assert seen(5) == (OffsetAndMetadata(9), 2)  # it may be about the first 5
    partition.commit(OffsetAndMetadata(5), 3)
    partition.commit(OffsetAndMetadata(9), 2)
    assert seen(9) == (OffsetAndMetadata(5), 3)


def test_the_id_of_a_topic_is_asked_for_until_it_is_known(
    service: ScriptedService, client: OffsetClient
) -> None:
    """The service may learn it later than the first offset: Kafka is asked meanwhile."""

    def answer(**topic_ids: str) -> Fault:
        found = {"lease_s": 1_000, "last_event_id": 7, "topic_ids": topic_ids}
        return Fault(status=200, body=json.dumps(found).encode())

    service.script("/v1/heartbeat", answer(), answer(), answer(), answer(orders="of-its-log"))
    offsets = count(1)

    def named() -> bool:
        client.submit("g", {("orders", 0): next(offsets)}, sync=True)
        return bool(service.of("/v1/offsets")[-1].body.get("topic_ids") == {"orders": "of-its-log"})

    until(named)


def batch_of(partitions: Partitions, offset: int, metadata: str = "") -> Batch:
    """Submit an offset, 3 as a rewind, and take its request."""
    value = OffsetAndMetadata(offset, metadata)
    assert partitions.submit(ManagerKey("g", "orders", 3), value, rewind=offset == 3) is None
    batch = partitions.take()
    assert batch is not None
    return batch


def test_text_is_not_escaped() -> None:
    """Metadata in any script takes the bytes of UTF-8, not the six of an escape each."""
    assert len(wire.batch_body(batch_of(Partitions(), 5, "é" * 4_000))) < 8_200


def test_offsets_after_a_lower_one_name_no_former_topic() -> None:
    """It may be the first of a recreated topic: its id, and that of later ones, is asked for."""
    partitions, named = Partitions(), []
    for offset, learned in ((9, "former"), (10, ""), (3, ""), (5, "new"), (6, "")):
        batch = batch_of(partitions, offset)
        named.append(batch.topic_ids.get("orders"))
        partitions.accept(batch, {})
        partitions.learn({"orders": learned} if learned else {})
    assert named == [None, "former", None, None, "new"]


def test_an_offset_names_the_topic_that_the_answer_to_it_names() -> None:
    """Also if the id was learned by another answer, while the offset was under way."""
    partitions = Partitions()
    batch = batch_of(partitions, 9)
    partitions.learn({"orders": "former"})
    partitions.accept(batch, {}, {"orders": "former"})
    partitions.learn({"orders": "new"})
    assert batch_of(partitions, 9, "again").topic_ids == {"orders": "former"}


def test_a_repeated_offset_names_the_topic_that_it_was_read_from() -> None:
    """The kind: a reader that has not noticed, and a service that has forgotten the former log."""
    partitions = Partitions()
    batch_of(partitions, 9)
    partitions.learn({"orders": "former"})
    batch_of(partitions, 100)
    partitions.learn({"orders": "new"})
    for offset, metadata, named in (
        (100, "again", "former"),
        (100, "", "former"),
        (101, "", "new"),
    ):
        assert batch_of(partitions, offset, metadata).topic_ids == {"orders": named}


def test_a_repeated_refused_offset_of_an_unknown_topic_does_not_name_the_new_one() -> None:
    """The kind: as above, where the topic was recreated before its id was learned."""
    partitions, key = Partitions(), ManagerKey("g", "orders", 3)
    batch = batch_of(partitions, 9)
    error = OffsetCommitError(*key, 9, error_info(TOPIC_RECREATED))
    partitions.accept(batch, {key: error}, {"orders": "new"})
    assert batch_of(partitions, 9, "again").topic_ids == {"orders": FORMER_ID}
    assert batch_of(partitions, 10).topic_ids == {"orders": "new"}
