"""One bad item of a collection is one bad row, in every command and endpoint that works through it.

Groups of any name that Kafka takes, an offset outside its log, a share group, a member to which no
topic can be assigned as it is, a dead view, one that answers nonsense, a cluster with a wrong
setting.
"""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.devkafka import DevKafka
from offsetmgr.devkafka.jars import java_command
from offsetmgr.text import visible
from offsetmgr.types import OffsetAndMetadata, TopicPartition
from tests.answering import answering
from tests.commands import run, run_alone
from tests.conftest import create_topic
from tests.kafka.conftest import service_of
from tests.kafka.odd_member import member_of
from tests.kafka.test_cluster_reader import produce
from tests.kafka.test_resets import commit
from tests.waiting import WAIT_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.service.support import ServeProcess

ODD: Final = (
    "",
    "x" * 300,
    " both ends ",
    "two\nlines",
    "\u202egnp.exe",
    "zero\u200bwidth",
    'quote"back\\slash',
    "a/b",
    "..",
    "$(touch hacked)",
    "x;touch hacked;y",
    "=1+1",
    "-lead",
    "%!s(<nil>)",
)
GOOD, OUTSIDE, SHARED, STRANGE = "good", "outside", "shared", "strange"
ASSIGNED: Final = (
    (b"", 0),
    (b"no topic!", 0),
    (b"x" * 300, 0),
    (b"\xff\xfe", 0),
    (b"a\nb", 2**31 - 1),
    (b"orders", -1),
)
ORDERS: Final = TopicPartition("orders", 0)


@pytest.fixture(scope="module")
def odd_kafka() -> Iterator[DevKafka]:
    """A Kafka with a good group, and bad ones of every kind."""
    with DevKafka() as kafka:
        create_topic(kafka, ORDERS.topic, 1)
        produce(kafka, ORDERS.topic, 0, 20)
        offsets = {GOOD: 15, OUTSIDE: 999_999, **dict.fromkeys(ODD, 5)}
        with KafkaCoordinator(kafka.bootstrap_servers, clients=1) as coordinator:
            for group, offset in offsets.items():
                commit(coordinator, group, {ORDERS: offset})
        with shared_by(kafka), member_of(kafka, STRANGE, ASSIGNED):
            yield kafka


@contextmanager
def shared_by(kafka: DevKafka) -> Iterator[None]:
    """Have Kafka's own tool consume a topic as a member of a share group."""
    servers = ["--bootstrap-server", kafka.bootstrap_servers]
    feature = ["upgrade", "--feature", "share.version=1"]
    tool = [*java_command(), "org.apache.kafka.tools.FeatureCommand", *servers, *feature]
    subprocess.run(tool, check=True, capture_output=True, timeout=WAIT_S)
    consumer = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
    asked = ["--topic", ORDERS.topic, "--group", SHARED]
    command = [*java_command(), consumer, *servers, *asked]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


@pytest.fixture(scope="module")
def service(odd_kafka: DevKafka) -> Iterator[ServeProcess]:
    """A service that watches all groups, and shows two views of which none answers as one."""
    with answering(b'{"partitions": [], "other": "\\ud800"}') as nonsense:
        streams = f"http://127.0.0.1:1,{nonsense.url}"
        settings = {"WATCH__GROUPS": ".*", "WATCH__INTERVAL_S": "1", "STREAMS": streams}
        with service_of(odd_kafka, **settings) as process:
            yield process


def ask(service: ServeProcess, path: str, **query: Any) -> Any:
    answer = httpx.get(f"{service.address}{path}", params=query, timeout=WAIT_S)
    assert answer.status_code == 200, answer.text
    return answer.json()


def by_name(answer: Any) -> dict[str, Any]:
    return {each["name"]: each for each in answer["groups"]}


def well(answer: Any) -> bool:
    """Return True if the answer has the good group as it is, and a row for each of the others."""
    found = by_name(answer)
    assert found[GOOD]["lag"] == 5
    assert found[OUTSIDE]["partitions"][0]["error"]["code"] == "OFFSET_OUTSIDE_LOG"
    strange = [each["error"]["code"] for each in found[STRANGE]["partitions"]]
    assert strange == ["invalid_value"] * len(ASSIGNED)
    return all(found[name]["lag"] == 15 and not found[name]["error"] for name in ODD)


def test_every_command_shows_all_groups(odd_kafka: DevKafka, service: ServeProcess) -> None:
    """Also through the service; none prints a character that a terminal obeys."""
    through = "--service", service.address, "--timeout", "60"
    servers = "--bootstrap-servers", odd_kafka.bootstrap_servers, "--timeout", "60"
    for words in (
        ["lag", *servers],
        ["top", "--interval", "0.5", *servers],
        ["describe", *servers, "--", *ODD, GOOD],
        ["describe", *through, "--", *ODD, GOOD],
    ):
        plain = run_alone(*words)
        assert GOOD in plain.out, plain.err
        assert all(visible(name) in plain.out for name in ODD)
        assert all(line.isprintable() for line in (plain.out + plain.err).splitlines())
    assert well(run(odd_kafka, "lag", "--json").json())
    assert well(run(odd_kafka, "top", "--interval", "0.5", "--json").json())
    listed = by_name(run(odd_kafka, "groups", "--json").json())
    assert {*ODD, GOOD, OUTSIDE} <= listed.keys()
    assert (listed[SHARED]["type"], listed[GOOD]["type"]) == ("share", "classic")
    described = run(odd_kafka, "describe", SHARED)
    assert described.status == 0
    assert "a share group, which commits no offsets" in described.out
    assert run(odd_kafka, "doctor", SHARED).status == 0, "it lacks no offsets"
    history = run(odd_kafka, "history", "two\nlines", "--topic", "other", "--json")
    assert (history.status, history.json()["steps"]) == (0, [])
    reset = run(odd_kafka, "reset", SHARED, "--all-topics", "--to-earliest", "--execute")
    assert reset.status == 2
    assert "group 'shared' is a share group" in reset.err
    for command in ("groups", "lag", "top"):
        ran = run_alone(command, "--json", *through)
        assert {*ODD, GOOD} <= by_name(ran.json()).keys(), ran.err
    found = run(odd_kafka, "doctor", "--json").json()["findings"]
    assert {each["group"] for each in found} >= {*ODD, GOOD}
    assert not [each for each in found if each["level"] == "unknown"]
    assert {each["check"] for each in found if each["group"] == OUTSIDE} >= {"outside log"}
    assert not [e for e in found if e["group"] == GOOD and e["level"] != "ok"]


def test_every_endpoint_shows_all_groups(service: ServeProcess) -> None:
    """Each odd group by its name too, also where a path has to hold it."""
    until(lambda: set(by_name(ask(service, "/v1/watched"))) >= {*ODD, GOOD})
    assert well(ask(service, "/v1/watched"))
    assert well(ask(service, "/v1/lag", group=[*ODD, GOOD, OUTSIDE, STRANGE]))
    overview = ask(service, "/v1/overview")
    rows = by_name(overview)
    assert {*ODD, GOOD, SHARED} <= rows.keys()
    assert rows[OUTSIDE]["status"] == "OUT OF RANGE"
    assert rows[SHARED]["type"] == "share"
    assert overview["groups_error"] is None
    assert {*ODD, GOOD, SHARED} <= by_name(ask(service, "/v1/groups")).keys()
    base = "/v3/kafka/default/consumer"
    assert {*ODD, GOOD} <= set(ask(service, base)["consumers"])
    for name in ODD:
        path = f"{base}/{quote(name, safe='')}"
        if name != "..":  # which httpx takes out of a path
            assert ask(service, f"{path}/lag")["status"]["totallag"] == 15
            assert ask(service, path)["topics"][ORDERS.topic]
        assert ask(service, "/v1/offsets", group=name)["offsets"][0]["offset"] == 5
    for name in ODD[::4]:  # each reads Kafka's log of commits
        assert ask(service, "/v1/history", group=name)["steps"]
    views = ask(service, "/v1/streams")["views"]
    assert [bool(each["error"]) for each in views] == [True, True]


def test_metrics_have_all_groups(service: ServeProcess) -> None:
    """A scrape can be parsed; names that would draw on a screen are escaped in their labels."""

    def lags() -> dict[str, float]:
        text = httpx.get(f"{service.address}/metrics", timeout=WAIT_S).text
        families = text_string_to_metric_families(text)
        samples = (each for family in families for each in family.samples)
        return {e.labels["group"]: e.value for e in samples if e.name == "offsetmgr_lag"}

    found = until(lambda: len(found := lags()) > len(ODD) and found)
    assert found[GOOD] == 5
    assert {visible(name): 15.0 for name in ODD}.items() <= found.items()


def test_csv_has_no_formulas(odd_kafka: DevKafka) -> None:
    """A spreadsheet takes no cell for a command, and no name breaks a line."""
    for words in (["groups"], ["lag"], ["top", "--interval", "0.5"], ["doctor"]):
        rows = list(csv.reader(io.StringIO(run(odd_kafka, *words, "--csv").out)))
        cells = [cell for row in rows for cell in row]
        assert len({len(row) for row in rows}) == 1
        assert "'=1+1" in cells
        assert "'-lead" in cells
        numbers = {cell for cell in cells if cell.removeprefix("-").isdecimal()}
        assert not [each for each in cells if each[:1] in "=+-@" and each and each not in numbers]


def test_a_reset_of_several_groups_leaves_the_bad_ones(odd_kafka: DevKafka) -> None:
    """One that does not exist is reported, and the others are set; alone it is an error."""
    words = ["--all-topics", "--to-current", "--execute", "--json"]
    done = run(odd_kafka, "reset", GOOD, "no-such-group", " both ends ", *words)
    assert done.status == 3
    answer = done.json()
    assert [each["group"] for each in answer["errors"]] == ["no-such-group"]
    assert {row["group"]: row["new"] for row in answer["partitions"]} == {
        GOOD: 15, " both ends ": 5,
    }  # fmt: skip
    alone = run(odd_kafka, "reset", "no-such-group", *words)
    assert alone.status == 2
    assert "group 'no-such-group' has no committed offsets" in alone.err
    for command in ("delete-group", "delete-offsets"):
        scope = [] if command == "delete-group" else ["--all-topics"]
        assert run(odd_kafka, command, "no-such-group", *scope, "--execute").status == 2


def test_a_printed_command_can_be_pasted(odd_kafka: DevKafka, tmp_path: Path) -> None:
    """The shell runs it with just the name of the group, on the same Kafka."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    config = tmp_path / "it's a file.toml"
    config.write_text(f'[kafka]\n"bootstrap.servers" = "{odd_kafka.bootstrap_servers}"\n')
    pasted = 0
    with KafkaCoordinator(odd_kafka.bootstrap_servers, clients=1) as coordinator:
        for name in ("x;touch hacked;$(touch hacked)'`id`\ntwo lines", "-lead"):
            for offset in (9, 12, 3):
                commit(coordinator, name, {ORDERS: offset})
            words = ["doctor", "--config", str(config), "--json", "--", name]
            findings = run_alone(*words).json()["findings"]
            mends = [e["mend"] for e in findings if e["mend"].startswith("offsetmgr")]
            history = run_alone("history", "--config", str(config), "--", name).out
            undo = history.splitlines()[-1].partition("these: ")[2]
            for command in (undo, *mends):
                assert command.isprintable()
                done = subprocess.run(
                    ["bash", "-c", command],
                    env=env, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S,
                    check=False,
                )  # fmt: skip
                assert done.returncode == 0, done.stderr
                pasted += 1
            found = coordinator.fetch(name, [ORDERS], WAIT_S).get(timeout=WAIT_S).offsets
            assert found == {ORDERS: OffsetAndMetadata(12)}
    assert pasted == 4
    assert [each.name for each in tmp_path.iterdir()] == [config.name]


def test_a_wrong_cluster_hides_no_other(tmp_path: Path) -> None:
    """It is a row with its error."""
    config = tmp_path / "clusters.toml"
    config.write_text(
        '[clusters.east]\n"bootstrap.servers" = "east:1"\n'
        '[clusters.odd]\n"plugin.library.paths" = "/tmp/evil.so"\n'
    )
    ran = run_alone("clusters", "list", "--config", str(config), "--json")
    rows = {(row["cluster"], row["setting"]): row["value"] for row in ran.json()}
    assert ran.status == 1
    assert rows["east", "bootstrap.servers"] == "east:1"
    assert "is not a setting that may be given here" in rows["odd", "error"]
