"""Burrow's answers, field by field, and the metrics of watched groups."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from offsetmgr.lag.burrow_api import BurrowApi
from offsetmgr.lag.metrics import Series, families, labels_of, page_of
from offsetmgr.types import TopicPartition
from tests.unit.lag.fake_cluster import Watched

ORDERS = [TopicPartition("orders", number) for number in range(3)]


@pytest.fixture
def watched() -> Watched:
    """A member reads partition 0 and keeps up; partition 2 has stood still for 11 rounds."""
    made = Watched()
    made.now_s = 970.0
    made.kafka.member("etl", ORDERS[0])
    made.kafka.ends[ORDERS[2]] = 1_000
    made.kafka.commit("etl", ORDERS[2], 400)
    for number in range(11):
        made.round(100 * number, 100 * number)
    return made


@pytest.fixture
def api(watched: Watched) -> BurrowApi:
    return BurrowApi("local", watched.watcher.view)


def test_the_status_of_a_group(api: BurrowApi) -> None:
    """``/status`` names what is bad alone, ``/lag`` all; both have the sums of all."""
    answer = api.full_status("local", "etl")
    assert answer["message"] == "consumer status returned"
    good, bad = answer["status"].pop("partitions")
    assert answer["status"] == {
        "cluster": "local",
        "group": "etl",
        "status": "ERR",
        "complete": 0.5,
        "partition_count": 2,
        "maxlag": bad,
        "totallag": 600,
    }
    assert good == {
        "topic": "orders",
        "partition": 0,
        "owner": "/10.0.0.1",
        "client_id": "one",
        "status": "OK",
        "start": {"offset": 100, "timestamp": 1_030_000, "observedAt": 1_030_000, "lag": 0},
        "end": {"offset": 1_000, "timestamp": 1_300_000, "observedAt": 1_300_000, "lag": 0},
        "current_lag": 0,
        "complete": 1.0,
    }
    assert (bad["owner"], bad["status"], bad["current_lag"], bad["complete"]) == (
        "", "STOP", 600, 0.1,
    )  # fmt: skip
    assert api.status("local", "etl")["status"]["partitions"] == [bad]


def test_an_offset_outside_its_log_is_an_error_to_burrows_readers() -> None:
    """They do not know our status for it."""
    watched = Watched()
    watched.round(100, 101)
    status = BurrowApi("local", watched.watcher.view).status("local", "etl")["status"]
    assert (status["status"], status["partitions"][0]["status"]) == ("ERR", "ERR")
    assert series(watched)["offsetmgr_group_status{local,etl}"] == 7


def test_an_absent_group_is_not_found(api: BurrowApi) -> None:
    """It has a status like any other: NOTFOUND."""
    for cluster, consumer in (("local", "none"), ("other", "etl")):
        assert api.full_status(cluster, consumer)["status"] == {
            "cluster": cluster,
            "group": consumer,
            "status": "NOTFOUND",
            "complete": 1.0,
            "partitions": [],
            "partition_count": 0,
            "maxlag": None,
            "totallag": 0,
        }


def test_clusters_groups_and_topics_are_listed(api: BurrowApi) -> None:
    """Clusters, consumers and topics; what is not known is told in Burrow's words."""
    assert api.clusters() == {"message": "cluster list returned", "clusters": ["local"]}
    assert api.consumers("local") == {"message": "consumer list returned", "consumers": ["etl"]}
    assert api.topics("local") == {"message": "topic list returned", "topics": ["orders"]}
    assert api.topic("local", "orders") == {
        "message": "topic offsets returned",
        "offsets": [1_000, 0, 1_000],
    }
    assert api.consumers("other") == api.topics("other") == "cluster not found"
    assert api.consumer("local", "none") == "cluster or consumer not found"
    assert api.topic("local", "none") == "cluster or topic not found"


def test_windows_stand_at_the_numbers_of_their_partitions(api: BurrowApi) -> None:
    """A window stands at the place of its partition's number, empty places before its commits."""
    answer = api.consumer("local", "etl")
    assert isinstance(answer, dict)
    first, empty, last = answer["topics"]["orders"]
    assert [each["offset"] for each in first["offsets"]] == list(range(100, 1_001, 100))
    assert empty == {"offsets": [], "owner": "", "client_id": "", "current-lag": 0}
    assert last["offsets"][:9] == [None] * 9
    assert last["current-lag"] == 600


def test_a_partition_that_does_not_exist_makes_no_long_answer(watched: Watched) -> None:
    """A database keeps a commit of any partition: partition 1,000,000 is not a million windows."""
    for number in (3, 1_000_000):
        watched.kafka.commit("etl", TopicPartition("orders", number), 1)
        watched.kafka.commit("etl", TopicPartition("gone", number), 1)
    watched.watcher.poll(["etl"])
    answer = BurrowApi("local", watched.watcher.view).consumer("local", "etl")
    assert isinstance(answer, dict)
    assert {topic: len(windows) for topic, windows in answer["topics"].items()} == {"orders": 4}


def series(watched: Watched, *, other_names: bool = False) -> dict[str, float]:
    """Values by name and labels (in the order of their names), as a scrape has them."""
    text = page_of(families("local", watched.watcher.view, other_names=other_names)).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [sample.labels[name] for name in sorted(sample.labels)]
            name = f"{sample.name}{{{','.join(labels)}}}"
            assert name not in found, "a series stands twice"
            found[name] = sample.value
    return found


def test_metrics_have_our_names_and_those_of_other_exporters(watched: Watched) -> None:
    """Own names by default; those of other exporters, with their labels, where asked for."""
    ours = {
        "offsetmgr_lag{local,etl,2,orders}": 600,
        "offsetmgr_end_offset{local,etl,0,orders}": 1_000,
        "offsetmgr_lag_seconds{local,etl,0,orders}": 0,
        "offsetmgr_committed_offset{local,etl,2,orders}": 400,
        "offsetmgr_pending_acks{local,etl,2,orders}": 0,
        "offsetmgr_group_status{local,etl}": 3,
        "offsetmgr_partition_status{local,etl,2,orders}": 4,
        "offsetmgr_unreadable_groups{local}": 0,
    }
    found = series(watched)
    assert ours.items() <= found.items()
    assert not [name for name in found if name.startswith("kafka")]
    others = {
        "kafka_consumergroup_group_lag{one,local,one-1,etl,/10.0.0.1,0,orders}": 0,
        "kafka_consumergroup_group_lag{,local,,etl,,2,orders}": 600,
        "kafka_consumergroup_group_max_lag{local,etl}": 600,
        "kafka_consumergroup_group_sum_lag{local,etl}": 600,
        "kafka_consumergroup_group_topic_sum_lag{local,etl,orders}": 600,
        "kafka_partition_latest_offset{local,2,orders}": 1_000,
        "kafka_consumergroup_lag{etl,2,orders}": 600,
        "kafka_consumergroup_current_offset{etl,2,orders}": 400,
        "kafka_consumergroup_lag_sum{etl,orders}": 600,
        "kafka_consumergroup_members{etl}": 1,
        "kafka_topic_partition_current_offset{2,orders}": 1_000,
    }
    assert (ours | others).items() <= series(watched, other_names=True).items()


def test_no_series_stands_twice(watched: Watched) -> None:
    """Groups share the ends of their logs; two names look alike once they are escaped."""
    for group in ("two\nlines", "two\\nlines"):
        watched.kafka.commit(group, ORDERS[0], 5)
    watched.watcher.poll(["etl", "two\nlines", "two\\nlines"])
    found = series(watched, other_names=True)
    assert found["offsetmgr_lag{local,two\\nlines,0,orders}"] == 995
    assert found["kafka_partition_latest_offset{local,0,orders}"] == 1_000


def test_families_of_one_name_are_one(watched: Watched) -> None:
    """A group that the service commits and watches has its own offset, once."""
    own, where = Series("offsetmgr_committed_offset", "Of a manager."), ORDERS[2]
    names = "cluster_name", "group", "topic", "partition"
    own.set(labels_of(names, ("local", "etl", *where)), 401)
    own.set(labels_of(names, ("local", 'odd"\\', *where)), 7)
    page = page_of([own, *families("local", watched.watcher.view)]).decode()
    assert page.count("# TYPE offsetmgr_committed_offset gauge") == 1
    (found,) = (each for each in text_string_to_metric_families(page) if each.name == own.name)
    values = {(e.labels["group"], e.labels["partition"]): e.value for e in found.samples}
    assert values == {("etl", "0"): 1_000, ("etl", "2"): 401, ('odd"\\', "2"): 7}


def test_deleted_and_unreadable_groups_have_no_series(watched: Watched) -> None:
    """A deleted topic, a deleted group, and one that could not be read have none."""
    kafka = watched.kafka
    unreadable = "offsetmgr_unreadable_groups{local}"

    def later() -> dict[str, float]:
        watched.watcher.poll(["etl"])
        return series(watched, other_names=True)

    del kafka.ends[ORDERS[2]]
    found = later()
    assert not [name for name in found if name.startswith("offsetmgr") and ",2,orders" in name]
    assert "kafka_consumergroup_group_lag{,local,,etl,,2,orders}" not in found
    assert found[unreadable] == 0
    del kafka.ends[ORDERS[0]]
    kafka.leaderless.add(ORDERS[0])
    assert later()[unreadable] == 1
    kafka.down = True
    assert later() == {unreadable: 1}
    kafka.down = False
    kafka.offsets.clear()
    kafka.members.clear()
    assert later() == {unreadable: 0}
