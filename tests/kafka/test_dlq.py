"""Dead letters on a real broker, from the example that makes them to their replay."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from offsetmgr.consumer import AckSettings, RetryPolicy
from offsetmgr.consumer.retry import Letter, Replayer
from offsetmgr.errors import KafkaRequestError
from tests.commands import run, run_alone
from tests.conftest import create_topic
from tests.kafka.leaders import give_back_to_preferred
from tests.kafka.messages import handled, read_letters, replace_topic, send
from tests.kafka.test_acks import all_of
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from offsetmgr.consumer import AckMessage
    from offsetmgr.devkafka import DevKafka

EXAMPLE = Path(__file__).parents[2] / "examples" / "order_processor.py"


def orders(*values: str) -> list[dict[str, object]]:
    return [{"value": each, "key": b"key", "headers": {"trace": "abc"}} for each in values]


def dead(kafka: DevKafka, group: str, count: int) -> None:
    """Have ``count`` messages fail for good."""
    failed: list[object] = []

    def fail(message: AckMessage) -> None:
        failed.append(message)
        raise ValueError(f"bad {(message.value() or b'').decode()}")

    settings = AckSettings(retry=RetryPolicy(delays_s=(), partitions=1))
    handled(kafka, group, fail, lambda: len(failed) == count, settings, workers=1)


def test_a_letter_is_replayed_once(kafka: DevKafka, group: str) -> None:
    """It is listed, filtered, shown whole, planned, sent; and counted when it comes back."""
    create_topic(kafka, group, 1)
    send(kafka, group, *orders("one", "two", "three"))
    dead(kafka, group, 3)
    topic = f"{group}.dlq"
    listed = run(kafka, "dlq", "list", topic, "--json").json()["letters"]
    assert [(each["letter"], each["error"], each["replays"]) for each in listed] == [
        (f"0:{n}", f"ValueError: bad {name}", 0) for n, name in enumerate(["one", "two", "three"])
    ]
    shown = run(kafka, "dlq", "show", topic, "0:1", "--json").json()
    assert (shown["key"], shown["value"], shown["origin"]) == ("key", "two", f"{group} 0:1")
    assert shown["headers"] == [["trace", "abc"]]
    assert "in fail" in shown["stack"]
    assert run(kafka, "dlq", "show", topic, "0:99").status == 1

    for wrong in (topic, "__consumer_offsets"):
        assert run(kafka, "dlq", "replay", topic, "--to", wrong, "--execute").status == 2
    chosen = ("dlq", "replay", topic, "--error", "two")
    plan = run(kafka, *chosen)
    assert (plan.status, plan.out.splitlines()[-1]) == (
        0,
        "1 letters would be replayed; --execute does it.",
    )
    assert run(kafka, *chosen, "--execute").out.splitlines()[-1] == "1 letters were replayed."
    assert run(kafka, *chosen, "--execute").out.splitlines()[-1] == "0 letters were replayed."
    for letter in ("0:1", "0:99"):  # which was replayed, and which never was there
        named = run(kafka, "dlq", "replay", topic, "--letter", letter)
        assert named.status == 1
        assert f"letter {letter} is not replayed: the letter does not exist" in named.err
    (*_, last) = all_of(kafka, group, 4)
    assert (last.value(), last.key()) == (b"two", b"key")
    assert dict(last.headers() or ()) == {
        "trace": b"abc",
        "offsetmgr-replays": b"1",
        "offsetmgr-replayed-from": f"{topic}/0/1".encode(),
    }
    left = run(kafka, "dlq", "list", topic, "--json").json()["letters"]
    assert [each["letter"] for each in left] == ["0:0", "0:2"]
    dead(kafka, group, 1)
    again = run(kafka, "dlq", "list", topic, "--error", "two", "--json").json()["letters"]
    assert [each["replays"] for each in again] == [1]
    everything = run(kafka, "dlq", "list", topic, "--all", "--origin", group, "--json").json()
    assert len(everything["letters"]) == 4
    late = run(kafka, "dlq", "list", topic, "--since", "2099-01-01T00:00:00")
    assert late.out == "There are none.\n"
    assert run(kafka, "dlq", "list", topic, "--letter", "one").status == 2


def test_two_replays_at_once_send_a_letter_once(kafka: DevKafka, group: str) -> None:
    """Kafka refuses the first one from when the second has begun; copies are one letter."""
    create_topic(kafka, group, 1)
    send(kafka, group, *orders("one"))
    dead(kafka, group, 1)
    settings: dict[str, object] = {"bootstrap.servers": kafka.bootstrap_servers}
    topic = f"{group}.dlq"
    (letter,) = all_of(kafka, topic, 1)
    copy = {"value": letter.value(), "key": letter.key(), "headers": letter.headers()}
    send(kafka, topic, copy)
    letters = read_letters(settings, topic, WAIT_S)
    first, second = (Replayer(settings, topic, WAIT_S) for _ in range(2))
    with pytest.raises(KafkaRequestError):
        first.replay(letters)
    assert second.replay(letters) == (letters, [])
    assert len(letters) == 1
    assert Replayer(settings, topic, WAIT_S).replay(letters) == ([], [])
    assert len(all_of(kafka, group, 2)) == 2


def test_a_partition_that_cannot_be_read_hides_no_letters_of_others(
    kafka3: DevKafka, group: str
) -> None:
    """It is named, as is one with an open transaction, which hides the letters behind it.

    Nothing is replayed meanwhile: a letter, or a copy of one, may be marked as replayed in it.
    """
    admin = AdminClient({"bootstrap.servers": kafka3.bootstrap_servers})
    admin.create_topics([NewTopic(group, 3, replication_factor=1)])[group].result(WAIT_S)
    send(kafka3, group, *({"value": "x", "partition": number} for number in range(3)))
    servers = "--bootstrap-servers", kafka3.bootstrap_servers, "--timeout", "10"
    held = Producer({"bootstrap.servers": kafka3.bootstrap_servers, "transactional.id": group})
    held.init_transactions(WAIT_S)
    held.begin_transaction()
    held.produce(group, "x", partition=2)
    assert held.flush(WAIT_S) == 0
    replay = "dlq", "replay", group, "--to", f"{group}-2", "--execute", *servers
    assert run_alone(*replay).status == 3
    dead = kafka3.broker(admin.list_topics(group).topics[group].partitions[1].leader)
    dead.kill()
    try:
        listed = run_alone("dlq", "list", group, "--json", *servers)
        replayed = run_alone(*replay)
    finally:
        dead.start()
        held.abort_transaction(WAIT_S)
    assert [each["letter"] for each in listed.json()["letters"]] == ["0:0", "2:0"]
    assert listed.json()["unread"].keys() == {f"{group}-1", f"{group}-2"}
    assert (listed.status, replayed.status) == (1, 3)
    give_back_to_preferred(kafka3)


def test_letters_of_a_recreated_topic_are_not_taken_for_those_that_were_chosen(
    kafka: DevKafka, group: str
) -> None:
    """They are in the same places; a producer with a small queue sends the letters all the same."""
    settings: dict[str, object] = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "queue.buffering.max.messages": 5,
    }
    letters: list[list[Letter]] = []
    for value in ("old", "new"):
        create_topic(kafka, f"{group}-{value}", 1)
        replace_topic(kafka, group) if letters else create_topic(kafka, group, 1)
        origin = {"offsetmgr-origin-topic": f"{group}-{value}", "offsetmgr-origin-partition": "0"}
        for number in range(10):
            headers = {**origin, "offsetmgr-origin-offset": str(number)}
            send(kafka, group, {"value": value, "headers": headers})
        letters.append(read_letters(settings, group, WAIT_S))
    old, new = letters
    assert Replayer(settings, group, WAIT_S).replay([*old, *new]) == (new, [])
    assert all(each.replayed for each in read_letters(settings, group, WAIT_S))


def test_the_order_processor(kafka: DevKafka, group: str) -> None:
    """The example fills its topic; the good orders are processed, the bad one is a dead letter."""
    options = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic", group, "--group", group]
    options += ["--orders", "8", "--delays", "0.1", "0.2", "0.3"]
    process = subprocess.Popen(
        # A shell's background job ignores SIGINT, and so would its children.
        ["env", "--default-signal=INT", sys.executable, "-u", str(EXAMPLE), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # The letter is the last thing that comes of the orders.
        letters = all_of(kafka, f"{group}.dlq", 1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    assert json.loads(letters[0].value() or b"")["order_id"] == 3
    assert sorted(out.splitlines()) == sorted(
        [f"order {n} in try 1" for n in range(8) if n != 3] + ["stopping"]
    )
    assert "stopped after 11 handled, 4 of them failed" in err
    assert process.returncode == 0
