"""A service that follows checkpoints: settings, groups, the list of queries and the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.admin.service import ServiceReader
from offsetmgr.client import OffsetClient
from offsetmgr.errors import InvalidValueError
from offsetmgr.service.settings import by_name, load
from offsetmgr.types import TopicPartition
from tests.service.support import Running, running
from tests.unit.spark.checkpoints import WrittenCheckpoint, orders
from tests.waiting import WAIT_S, eventually, until

if TYPE_CHECKING:
    from pathlib import Path


def follow(checkpoint: str, group: str) -> dict[str, object]:
    values = {"checkpoint": checkpoint, "group": group, "interval_s": 0.1}
    return {f"follow__lake__{name}": value for name, value in values.items()}


def followed(service: Running) -> dict[str, dict[str, Any]]:
    """Return the followed checkpoints, by their names."""
    with service.http("page") as http:
        answer = http.get("/v1/queries")
    assert answer.status_code == 200
    return {each["name"]: each for each in answer.json()["followed"]}


def offset(service: Running, group: str) -> int | None:
    found = service.coordinator.broker.committed(group).get(TopicPartition("orders", 0))
    return None if found is None else found.offset


def test_a_service_follows_checkpoints(tmp_path: Path) -> None:
    """It commits them, lists them as queries with their lag, and counts them in the metrics.

    A folder that is not a checkpoint is one bad row, and one that appears later is followed.
    """
    written = WrittenCheckpoint(tmp_path / "orders")
    written.batch(4, orders(40))
    (tmp_path / "notes").mkdir()
    with running(**follow(f"{tmp_path}/*", "spark-{name}")) as service:
        service.coordinator.broker.create_topic("orders")
        service.coordinator.broker.set_log(TopicPartition("orders", 0), 0, 100)
        eventually(lambda: offset(service, "spark-orders"), 40)
        written.batch(5, orders(60))
        eventually(lambda: offset(service, "spark-orders"), 60)
        WrittenCheckpoint(tmp_path / "late").batch(0, orders(5))
        eventually(lambda: offset(service, "spark-late"), 5)
        row = followed(service)["orders"]
        bad = until(lambda: followed(service).get("notes"))
        with service.http("page") as http:
            metrics = http.get("/metrics").text
        failing = ServiceReader(service.address).facts().failing_checkpoints
    assert (row["state"], row["batch_id"], row["records"], row["lag"]) == ("running", 5, 20, 40)
    assert (row["groups"], row["problem"]) == (["spark-orders"], None)
    assert bad["state"] == "failing"
    assert "no file named metadata" in bad["problem"]
    assert failing == {str(tmp_path / "notes"): bad["problem"]}, "as doctor shows it"
    for state, count in (("running", 2), ("failing", 1)):
        labels = f'cluster_name="default",follow="lake",state="{state}"'
        assert f"offsetmgr_followed_checkpoints{{{labels}}} {count}.0" in metrics


def test_another_client_of_the_group_is_not_disturbed(tmp_path: Path) -> None:
    """The row names the owner; once it has stopped, the checkpoint's offset is committed."""
    WrittenCheckpoint(tmp_path / "orders").batch(4, orders(40))
    with running(**follow(f"{tmp_path}/orders", "etl")) as service:
        broker = service.coordinator.broker
        with OffsetClient(service.address, name="driver") as client:
            client.submit("etl", {("orders", 0): 7}, sync=True, timeout=WAIT_S)
            broker.create_topic("orders")
            broker.set_log(TopicPartition("orders", 0), 0, 100)
            until(lambda: "driver" in str(followed(service)["orders"]["problem"]))
            assert offset(service, "etl") == 7
        eventually(lambda: offset(service, "etl"), 40)
        eventually(lambda: followed(service)["orders"]["problem"], None)


def test_settings_of_follow_are_checked(tmp_path: Path) -> None:
    """The kind: a wrong key or value of [follow.NAME] is named with its fix."""
    path = tmp_path / "offsetmgr.toml"
    good = (
        '[kafka]\nbootstrap.servers = "x:1"\n[follow.lake]\ncheckpoint = "s3://k:secret@lake/*"\n'
    )
    path.write_text(good + 'groups = {orders = "o", "a.b" = "{name}"}\ninterval_s = 30\n')
    settings = load(path, {}, {})
    assert settings.follow["lake"].groups == {"orders": "o", "a.b": "{name}"}
    assert settings.follow["lake"].interval_s == 30
    shown = by_name(settings)
    assert "secret" not in str(shown)
    assert shown["follow.lake.keep_alive_s"] == 3_600.0
    for line, field in (
        ("", "group"),
        ('group = "g"\ninterval = 3', "follow.lake.interval"),
        ('group = "g"\ninterval_s = 0', "interval_s"),
        ('group = "g"\ninterval_s = "x"', "interval_s"),
    ):
        path.write_text(good + line)
        with pytest.raises(InvalidValueError, match=field):
            load(path, {}, {})
