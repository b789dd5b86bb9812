"""The documented JSON of groups and their lag."""

from __future__ import annotations

import re
from pathlib import Path

from offsetmgr.acked_ranges import encode_acks
from offsetmgr.errors import OffsetCommitError, OffsetManagerError, error_info
from offsetmgr.lag.measure import measure
from offsetmgr.lag.report import PARTITION_FIELDS, OwningClient, lag_report, with_watch
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.unit.lag.fake_cluster import FakeCluster, Watched

ORDERS = [TopicPartition("orders", number) for number in range(3)]
METADATA_TOO_LARGE = 12


def report() -> dict[str, object]:
    kafka = FakeCluster()
    kafka.ends = {ORDERS[0]: 10, ORDERS[1]: 10}
    for each, offset in zip(ORDERS, (4, 40, 4), strict=True):
        kafka.commit("etl", each, offset)
    kafka.member("etl", ORDERS[0])
    failed = OffsetCommitError("etl", "orders", 0, 9, error_info(METADATA_TOO_LARGE))
    owner = OwningClient("nightly", failed, submitted=9, committed_at=990.0, phase="ready")
    committers = {("etl", ORDERS[0]): owner}
    (found,) = lag_report(measure(kafka, ["etl"], 1_000.0), committers)["groups"]
    return dict(found)


def test_every_field_is_documented() -> None:
    """The guide names each field of a group, of its members and of its partitions."""
    guide = (Path(__file__).parents[3] / "docs" / "operator.md").read_text()
    named = set(re.findall(r"`(\w+)`", guide))
    found = report()
    members, partitions = found["members"], found["partitions"]
    assert isinstance(members, list)
    assert isinstance(partitions, list)
    assert set(partitions[0]) == set(PARTITION_FIELDS)
    assert {*found, *members[0], *partitions[0]} <= named


def test_each_trouble_of_a_partition_has_a_code() -> None:
    """A commit that fails, an offset above the end of its log, a topic that is gone."""
    partitions = report()["partitions"]
    assert isinstance(partitions, list)
    assert [each["error"]["code"] for each in partitions] == [
        "OFFSET_METADATA_TOO_LARGE",
        "OFFSET_OUTSIDE_LOG",
        "UNKNOWN_TOPIC_OR_PARTITION",
    ]
    assert [each["error"]["fault"] for each in partitions] == ["caller", "operator", "caller"]
    assert "submit less" in partitions[0]["error"]["hint"]
    assert [each["lag"] for each in partitions] == [6, 0, None]
    first = partitions[0]
    assert (first["submitted"], first["committed_at"], first["phase"]) == (9, 990.0, "ready")
    assert partitions[1]["submitted"] is None
    assert [each["committer"] for each in partitions] == ["nightly", None, None]


def test_pending_acks_are_counted() -> None:
    """Offsets 4 and 5 and 8 have no ack; other metadata, and acks above the end, are not ours."""
    kafka = FakeCluster()
    kafka.ends = dict.fromkeys(ORDERS, 10)
    ours = [encode_acks(4, [(6, 8), (9, end)]) for end in (10, 11)]
    texts = ours[0], "CCBB", ours[1]
    for each, metadata in zip(ORDERS, texts, strict=True):
        kafka.commit("etl", each, 4)
        kafka.offsets["etl"][each] = OffsetAndMetadata(4, metadata)
    (found,) = lag_report(measure(kafka, ["etl"], 1_000.0))["groups"]
    assert [each["pending_acks"] for each in found["partitions"]] == [3, None, None]
    assert found["pending_acks"] == 3
    kafka.offsets["etl"] = {ORDERS[0]: OffsetAndMetadata(4)}
    (found,) = lag_report(measure(kafka, ["etl"], 1_000.0))["groups"]
    assert found["pending_acks"] == 0


def test_a_new_answer_has_no_error_of_an_earlier_round() -> None:
    """Rates and status of before the last round failed are left out, too."""
    watched = Watched()
    watched.round(10, 4)
    watcher = watched.watcher
    (now,) = measure(watched.kafka, ["etl"], watched.now_s + 1)
    assert with_watch(now, watcher.view["etl"]).status is not None
    watcher.fail(OffsetManagerError("the group's coordinator is moving"))
    assert with_watch(now, watcher.view["etl"]) == now
