"""The real service process between the real client and a real Kafka, and what may happen to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psutil
import pytest

from offsetmgr import OffsetClient
from offsetmgr.devkafka import DevKafka
from offsetmgr.devkafka.cluster import free_ports
from tests.conftest import create_topic
from tests.kafka.conftest import WIDE, service_of
from tests.kafka.messages import committed
from tests.service.support import serve_process
from tests.waiting import WAIT_S, eventually

if TYPE_CHECKING:
    from tests.conftest import TopicFactory


@pytest.mark.chaos
@pytest.mark.fault(12)
def test_a_kafka_that_comes_later_makes_it_ready_and_gets_waiting_offsets(
    unique_name: str, group: str
) -> None:
    """The same process, unready until then, commits what it was given before there was a Kafka."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    topic, offset = unique_name, {"topic": unique_name, "partition": 0, "offset": 0}
    body: dict[str, Any] = {"group": group, "offsets": [offset]}
    with (
        serve_process("--listen", "127.0.0.1:0", "--bootstrap-servers", address) as sidecar,
        sidecar.http(group) as http,
    ):
        sidecar.wait_for("kafka_unreachable")
        assert http.get("/readyz").status_code == 503
        assert http.post("/v1/offsets", json=body).json()["accepted"] == 1
        with DevKafka(ports=[port]) as kafka:
            create_topic(kafka, topic, 1)
            # It asks Kafka by itself, every few seconds.
            eventually(lambda: http.get("/readyz").status_code, 200)
            assert http.get("/readyz").json()["kafka"] == "ok"
            flush = {"group": group, "timeout_s": WAIT_S}
            assert http.post("/v1/flush", json=flush).json()["uncommitted"] == []
            assert committed(kafka, group, topic, 1) == {0: (0, None)}
            offset["offset"] = 8
            body |= {"wait": True, "timeout_s": WAIT_S}
            assert http.post("/v1/offsets", json=body).json()["uncommitted"] == []
            assert committed(kafka, group, topic, 1) == {0: (8, None)}
            started = [each["pid"] for each in sidecar.records if each["event"] == "serving"]
            assert started == [sidecar.process.pid]
            assert sidecar.stop() == 0


@pytest.mark.fault(5)
def test_kill_9_of_the_sidecar_in_mid_stream_loses_nothing(
    kafka: DevKafka, new_topic: TopicFactory, group: str
) -> None:
    """Submits go on while it is dead; started again, it is sent what it had not committed."""
    (port,) = free_ports(1)
    topic, address = new_topic(8), f"127.0.0.1:{port}"
    with OffsetClient(f"http://{address}", name=group) as client:
        with service_of(kafka, listen=address) as process:
            assert process.address
            for number in range(5_000):
                client.submit(group, {(topic, number % 8): number})
            process.process.kill()
        # Nobody is there: a submit must neither fail nor be lost.
        for number in range(5_000, 6_000):
            client.submit(group, {(topic, number % 8): number})
        with service_of(kafka, listen=address):
            assert client.flush(timeout=WAIT_S).uncommitted == {}
            newest = sorted(offset for offset, _ in committed(kafka, group, topic, 8).values())
            assert newest == list(range(5_992, 6_000))
            assert client.close(timeout=WAIT_S).ok


@pytest.mark.fault(29)
def test_thousands_of_managers_live_on_few_threads(
    kafka: DevKafka, wide_topic: str, group: str
) -> None:
    """1,500 managers of 10 groups, all with their initial offset, in at most 64 threads."""
    groups = [f"{group}-{number}" for number in range(10)]
    with service_of(kafka) as sidecar, sidecar.http(group) as http:
        for name in groups:
            wanted = [{"topic": wide_topic, "partition": each} for each in range(WIDE)]
            body = {"group": name, "partitions": wanted}
            made = http.post("/v1/managers", json=body).json()["managers"]
            assert [each for each in made if each["error"]] == []
        for name in groups:
            query = {"group": name, "wait_s": "60"}
            known = http.get("/v1/initial-offsets", params=query).json()["initial_offsets"]
            assert len(known) == WIDE
            assert all(each["known"] and each["committed"] is None for each in known)
        offsets = [{"topic": wide_topic, "partition": each, "offset": 7} for each in range(WIDE)]
        submit = {"group": groups[3], "offsets": offsets, "wait": True, "timeout_s": WAIT_S}
        answer = http.post("/v1/offsets", json=submit).json()
        assert (len(answer["committed"]), answer["uncommitted"]) == (WIDE, [])
        threads = psutil.Process(sidecar.process.pid).num_threads()
        assert threads <= 64
        assert committed(kafka, groups[3], wide_topic, WIDE) == dict.fromkeys(
            range(WIDE), (7, None)
        )
        assert sidecar.stop() == 0
