"""Resets on a real Kafka: Kafka's own tool and ours do the same to the same groups."""

from __future__ import annotations

import os
import signal
import time
import uuid
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from threading import Thread
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from offsetmgr import OffsetClient
from offsetmgr.admin.changes import GroupChanges
from offsetmgr.admin.reset import NOT_KNOWN, PlannedOffset
from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.devkafka import consumer_groups
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.commands import run
from tests.conftest import create_topic
from tests.kafka.conftest import service_of
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory

STEP_S: Final = 600
"""Between the times of two records of a partition."""
RECORDS: Final = {"a": [12, 0], "b": [7, 30, 1]}
"""Of each partition of each topic."""
STARTS: Final = {("a", 0): 5, ("b", 1): 29}
"""The start of logs that have lost records."""

KAFKAS = "kafka"
OURS = "ours"


class Logs(NamedTuple):
    """Topics with records of known times."""

    kafka: DevKafka
    names: Mapping[str, str]
    begin_s: float


@pytest.fixture(scope="module")
def logs(kafka: DevKafka) -> Logs:
    """Two topics, with partitions that are empty, short, and cut off at their start."""
    run = uuid.uuid4().hex[:8]
    names = {name: f"resets-{name}-{run}" for name in RECORDS}
    begin_s = round(time.time()) - 40 * STEP_S
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for name, counts in RECORDS.items():
        create_topic(kafka, names[name], len(counts))
        for partition, count in enumerate(counts):
            for number in range(count):
                at_ms = (begin_s + number * STEP_S) * 1_000
                producer.produce(names[name], b"x", partition=partition, timestamp=at_ms)
    assert producer.flush(WAIT_S) == 0
    cut = [KafkaPartition(names[n], number, start) for (n, number), start in STARTS.items()]
    for pending in admin.delete_records(cut).values():
        pending.result(WAIT_S)
    return Logs(kafka, names, begin_s)


@pytest.fixture(scope="module")
def committer(kafka: DevKafka) -> Iterator[KafkaCoordinator]:
    with KafkaCoordinator(kafka.bootstrap_servers, clients=1) as coordinator:
        yield coordinator


def commit(committer: KafkaCoordinator, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    wanted = {where: OffsetAndMetadata(offset) for where, offset in offsets.items()}
    assert not committer.commit(group, wanted, WAIT_S).get(timeout=WAIT_S).failures


def committed(committer: KafkaCoordinator, group: str) -> dict[str, int]:
    found = committer.fetch(group, None, WAIT_S).get(timeout=WAIT_S).offsets
    return {str(where): each.offset for where, each in found.items() if each is not None}


PARTITIONS: Final = [
    (name, number) for name, counts in RECORDS.items() for number in range(len(counts))
]
WHOLE = ("--topic", "a", "--topic", "b")
SCOPES: Final[Sequence[Sequence[str]]] = (
    ("--all-topics",),
    WHOLE,
    ("--topic", "a:0,1", "--topic", "b:2"),
)
MODES: Final = (
    *("to-earliest", "to-latest", "to-current", "to-offset", "shift-by", "to-datetime"),
    *("by-duration", "from-file"),
)


def value_of(mode: str, logs: Logs, groups: list[str], file: Path, chance: Random) -> list[str]:
    """Return what follows the option of a mode; offsets lie beyond both ends of the logs too."""
    # Half a step away from the records, where a slow machine does no harm.
    if mode == "to-datetime":
        at_s = logs.begin_s + chance.randint(-2, 42) * STEP_S - STEP_S / 2
        return [time.strftime("%Y-%m-%dT%H:%M:%S.000", time.gmtime(at_s))]
    if mode == "by-duration":
        return [f"PT{chance.randint(0, 42) * STEP_S + STEP_S // 2}S"]
    if mode == "from-file":
        offsets = {where: chance.randint(0, 45) for where in chance.sample(PARTITIONS, 3)}
        lines = [
            f"{group},{logs.names[topic]},{partition},{offset}\n"
            for group in groups
            for (topic, partition), offset in offsets.items()
        ]
        file.write_text("".join(lines))
        return [str(file)]
    bounds = {"to-offset": (-3, 45), "shift-by": (-45, 45)}.get(mode)
    return [] if bounds is None else [str(chance.randint(*bounds))]


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.chaos) for n in (2, 3))])
@pytest.mark.parametrize("mode", MODES)
def test_kafkas_tool_and_ours_do_the_same(
    logs: Logs, committer: KafkaCoordinator, tmp_path: Path, mode: str, seed: int
) -> None:
    """Twin groups, one for each tool: the same plan is printed, and the same is committed."""
    run_id, chance = uuid.uuid4().hex[:8], Random(f"{mode} {seed}")  # noqa: S311 -- no secret
    commits = [
        {where: chance.randint(0, 40) for where in chance.sample(PARTITIONS, size)}
        for size in (1, 2, 3, 4, 5)
    ]
    scope = chance.choice(SCOPES)
    scope = {"from-file": (), "shift-by": ("--all-topics",)}.get(mode, scope)
    named = [
        logs.names.get(word[:1], word) + word[1:] if word[:1] in logs.names else word
        for word in scope
    ]
    printed, stand = {}, {}
    for tool in (KAFKAS, OURS):
        groups = [f"resets-{tool}-{run_id}-{index}" for index in range(len(commits))]
        for group, offsets in zip(groups, commits, strict=True):
            named_offsets = {
                TopicPartition(logs.names[topic], number): value
                for (topic, number), value in offsets.items()
            }
            commit(committer, group, named_offsets)
        value = value_of(mode, logs, groups, tmp_path / f"{tool}.csv", Random(seed))  # noqa: S311
        words = [f"--{mode}", *value, *named, "--execute", "--export"]
        if tool == KAFKAS:
            options = [word for group in groups for word in ("--group", group)]
            output = consumer_groups(
                logs.kafka.bootstrap_servers, "--reset-offsets", *options, *words
            )
        else:
            done = run(logs.kafka, "reset", *groups, *words)
            assert done.status == 0, done.output
            output = done.out
        printed[tool] = sorted(
            line.replace(f"-{tool}-", "-") for line in output.splitlines() if line.count(",") == 3
        )
        stand[tool] = [committed(committer, group) for group in groups]
    assert printed[OURS] == printed[KAFKAS]
    assert stand[OURS] == stand[KAFKAS]


def test_offsets_are_set_copied_exported_and_deleted(
    logs: Logs, committer: KafkaCoordinator, group: str, tmp_path: Path
) -> None:
    """Each by its command; the plan alone changes nothing."""
    kafka, a, b = logs.kafka, logs.names["a"], logs.names["b"]
    copy, third = f"{group}-copy", f"{group}-third"

    stands = partial(committed, committer)
    wanted = {f"{a}-0": 7, f"{b}-1": 30}
    words = ["set", group, f"{a}:0=7", f"{b}:1=99"]  # beyond the end
    assert run(kafka, *words).status == 0
    assert stands(group) == {}
    done = run(kafka, *words, "--execute")
    assert (done.status, stands(group)) == (0, wanted)
    assert "99 is beyond the end of the log" in done.out

    plan = run(kafka, "reset", copy, "--from-group", group, "--export")
    assert (plan.status, stands(copy)) == (0, {})
    assert run(kafka, "reset", copy, "--from-group", group, "--execute").status == 0
    assert stands(copy) == wanted
    file = tmp_path / "plan.csv"
    file.write_text(plan.out)
    assert run(kafka, "reset", third, "--from-file", str(file), "--execute").status == 0
    assert stands(third) == wanted

    delete = ["delete-offsets", group, "--topic", f"{a}:0"]
    assert (run(kafka, *delete).status, stands(group)) == (0, wanted)
    refused = run(kafka, *delete, "--topic", f"{a}:9", "--topic", "no-topic", "--execute")
    assert (refused.status, stands(group)) == (2, wanted)
    assert f"has no committed offsets of no-topic, {a}-9; check" in refused.err
    assert (run(kafka, *delete, "--execute").status, stands(group)) == (0, {f"{b}-1": 30})
    assert run(kafka, "delete-group", copy).status == 0
    assert stands(copy) == wanted
    assert run(kafka, "delete-group", copy, "--execute").status == 0
    assert stands(copy) == {}


def test_a_group_that_becomes_active_behind_a_plan_is_left_as_it_is(
    logs: Logs, committer: KafkaCoordinator, group: str
) -> None:
    """Kafka refuses each change, which is not done; that was not known of a deletion."""
    where = TopicPartition(logs.names["a"], 0)
    commit(committer, group, {where: 9})
    config = {"bootstrap.servers": logs.kafka.bootstrap_servers}
    member = Consumer({**config, "group.id": group, "enable.auto.commit": False})
    with GroupChanges(config, timeout_s=WAIT_S) as change:
        reset = change.plan(group, "to-latest", "", None)
        deletion = [PlannedOffset(where, 9, None, deleted=True)]
        member.subscribe([where.topic])
        until(lambda: member.poll(0.1) is None and member.assignment())
        for plan in (reset, deletion):
            reason = change.carry_out(group, plan)[where]
            assert "has live members" in reason
            assert not reason.startswith(NOT_KNOWN)
    member.close()
    assert committed(committer, group) == {str(where): 9}


def test_a_partition_that_cannot_be_reset_is_left_and_the_rest_is_done(
    logs: Logs, committer: KafkaCoordinator, group: str
) -> None:
    """The exit status says that it is not complete."""
    a = logs.names["a"]
    done = run(logs.kafka, "set", group, f"{a}:0=7", f"{a}:9=7", "--execute")
    assert done.status == 3
    assert "does not exist; left as it is" in done.out
    assert "Done for 1 of 2 partitions." in done.out
    exported = run(logs.kafka, "reset", group, "--to-earliest", "--topic", f"{a}:0,9", "--export")
    assert exported.out == f"{a},0,5\n"
    assert exported.err == f"group {group}, {a}-9: does not exist; left as it is\n"
    assert committed(committer, group) == {f"{a}-0": 7}


def test_records_without_a_time_have_no_age_and_are_not_skipped(
    kafka: DevKafka, new_topic: TopicFactory, committer: KafkaCoordinator, group: str
) -> None:
    """Their lag in seconds is unknown, and a time before 1970 is the start of their log."""
    topic = new_topic(1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, b"x", timestamp=-1)
    assert producer.flush(WAIT_S) == 0
    commit(committer, group, {TopicPartition(topic, 0): 0})
    assert "records of this topic have no timestamps" in run(kafka, "lag", group).err
    words = ["--topic", topic, "--to-datetime", "1969-01-01", "--export"]
    assert run(kafka, "reset", group, *words).out == f"{topic},0,0\n"


class _Interrupting(BaseHTTPRequestHandler):
    """A service that sets offsets; the second request is not answered, or Ctrl-C is pressed."""

    asked = 0
    interrupts = True

    def do_POST(self) -> None:
        type(self).asked += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.asked == 2:
            if self.interrupts:
                os.kill(os.getpid(), signal.SIGINT)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"refused": [], "uncommitted": [], "committed": []}')


@pytest.mark.parametrize("interrupts", [True, False])
def test_an_interrupted_reset_reports_each_group(
    logs: Logs,
    committer: KafkaCoordinator,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    interrupts: bool,
) -> None:
    """One group is done, one may be done, and one is left as it is.

    A service that hangs up may have set the offsets, too: that group was called unchanged.
    """
    monkeypatch.setattr(_Interrupting, "asked", 0)
    monkeypatch.setattr(_Interrupting, "interrupts", interrupts)
    where = TopicPartition(logs.names["a"], 0)
    groups = [f"{group}-{number}" for number in range(3)]
    for name in groups:
        commit(committer, name, {where: 9})
    # A shell's background job ignores SIGINT, and so would its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Interrupting) as service:
        Thread(target=service.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{service.server_port}"
        words = ["--all-topics", "--to-earliest", "--execute", "--live", "--service", url, "--json"]
        done = run(logs.kafka, "reset", *groups, *words)
        service.shutdown()
    signal.signal(signal.SIGINT, before)
    notes = [each["note"] for each in done.json()["partitions"]]
    if not interrupts:
        assert done.status == 3
        assert (notes[0], notes[2]) == ("", "")
        assert notes[1].startswith("not known: ")
        assert done.json()["errors"] == []
        return
    assert done.status == 130
    assert notes == ["", "not known: interrupted; look again"]
    assert done.json()["errors"] == [{"group": groups[2], "message": "interrupted before it"}]


def test_the_group_of_a_fenced_service_is_reset_by_that_service_alone(
    logs: Logs, committer: KafkaCoordinator, group: str
) -> None:
    """Kafka refuses everybody else; past the service the member is named."""
    where = TopicPartition(logs.names["a"], 0)
    with (
        service_of(logs.kafka, FENCE="true") as service,
        OffsetClient(service.address, "etl") as job,
    ):
        job.submit(group, {where: 9}, sync=True, timeout=WAIT_S)
        words = ["reset", group, "--all-topics", "--to-offset", "6", "--execute"]
        refused = run(logs.kafka, *words)
        assert refused.status == 1
        assert "held by its members offsetmgr-" in refused.err
        assert "reset --live --service URL" in refused.err
        live = ["--live", "--service", service.address]
        assert run(logs.kafka, *words, *live).status == 0
        assert committed(committer, group) == {str(where): 6}
