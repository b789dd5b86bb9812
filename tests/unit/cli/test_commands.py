"""The list of commands, what they refuse, and their tables."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from typer.main import get_group

from offsetmgr.cli.app import app
from offsetmgr.cli.commands import command_line
from offsetmgr.cli.common import table_lines
from offsetmgr.stores.sql import SqlOffsetStore
from tests.commands import run_alone

if TYPE_CHECKING:
    from pathlib import Path

ALL = get_group(app).commands


@pytest.mark.parametrize("word", sorted(ALL))
def test_a_command_is_the_same_without_the_others(word: str) -> None:
    """Only the commands of one part are imported, which must have the command and all below it."""
    alone = get_group(command_line(word)).commands
    assert alone.keys() < ALL.keys()
    assert list(vars(alone[word]).get("commands", [])) == list(vars(ALL[word]).get("commands", []))


def test_commands_are_completed() -> None:
    """The completion of ``--install-completion`` knows the commands."""
    asked = {
        "_OFFSETMGR_COMPLETE": "complete_bash",
        "COMP_WORDS": "offsetmgr de",
        "COMP_CWORD": "1",
    }
    code = "import sys; sys.argv = ['offsetmgr']; from offsetmgr.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert {"describe", "demo", "delete-group"} <= set(done.stdout.split()), done.stderr


def test_a_long_name_widens_its_own_row_alone() -> None:
    """Kafka takes names of 32,767 characters; all rows were as wide."""
    head, short, long = table_lines(("group", "lag"), [("etl", 42), ("x" * 30_000, None)])
    assert len(head) == len(short) == 65
    assert long.split() == ["x" * 30_000, "-"]


@pytest.mark.parametrize(
    ("line", "status", "told"),
    [
        ("reset g --all-topics", 2, "modes [] are not exactly one; give one of --to-earliest"),
        ("reset g --all-topics --to-earliest --to-latest", 2, "are not exactly one"),
        # An empty value, as of a variable of the shell that is not set, is a value.
        ("reset g --from-file= --to-latest", 2, "modes ['to-latest', 'from-file'] are not exactly"),
        ("reset g --to-earliest", 2, "give --topic or --all-topics, and not both"),
        ("reset g --to-earliest --topic t --all-topics", 2, "and not both"),
        ("reset g --to-earliest --topic t:x", 2, "--topic 't:x' has 'x' where a number stands"),
        ("reset g --to-earliest --topic t --live", 2, "--live True needs a service"),
        ("set g t:0", 2, "offset 't:0' is not in that form; write TOPIC:PARTITION=OFFSET"),
        ("set g t:0=42 t:00=7", 2, "offset 't-0' is given twice; give it once"),
        ("delete-offsets g", 2, "give --topic or --all-topics"),
        ("history \udcff", 2, "group '\\udcff' cannot be encoded"),
        ("history g --since yesterday", 2, "--since 'yesterday' is not a time"),
        ("doctor g --bootstrap-servers k:1 --stuck-after soon", 2, "'soon' is not a duration"),
        ("spark status --checkpoint /no/such", 2, "has no file named metadata"),
        ("lag --set fence=true --set fence=false", 2, "--set 'fence' is given twice"),
        (
            "lag --bootstrap-servers k:1 --set kafka.bootstrap.servers=k:2",
            2,
            "--bootstrap-servers 'kafka.bootstrap.servers' is given twice",
        ),
        ("dev-kafka --topic orders:3 --topic orders", 1, "topic 'orders' is given twice"),
        ("dev-kafka --topic orders:none", 1, "'orders:none' has no valid number of partitions"),
        ("dev-kafka --topic orders:0", 1, "give 1 to 10,000, as in orders:8"),
        pytest.param(
            f"dev-kafka --topic orders:{'9' * 5_000}",
            1,
            "give 1 to 10,000, as in orders:8",
            id="dev-kafka with a number of 5,000 digits",
        ),
        ("dev-kafka --topic my,orders", 1, "topic 'my,orders' is not a legal Kafka topic name"),
        ("dev-kafka --produce 10", 1, "produce 10 names no topic to fill; give"),
    ],
)
def test_a_wrong_command_line_is_refused(line: str, status: int, told: str) -> None:
    """With the option, its value and what to give instead, before anything is asked or begun."""
    ran = run_alone(*line.split())
    assert ran.status == status
    assert told in ran.err


def test_groups_of_a_database_are_listed_and_described_without_kafka(tmp_path: Path) -> None:
    """Kafka tells only their states; the reason why these are missing is printed, too."""
    url = f"sqlite:///{tmp_path}/offsets.db"
    with SqlOffsetStore(url) as store:
        store.create_tables()
        store.commit_offset("etl", "orders", 0, 7)
    place = ["--store", url, "--bootstrap-servers", "127.0.0.1:1", "--timeout", "1"]
    ran = run_alone("groups", *place)
    assert ran.status == 3
    assert ran.out.split() == ["name", "state", "type", "etl", "Unknown", "store"]
    assert ran.err.startswith("list of consumer groups: no answer from Kafka")
    ran = run_alone("describe", "etl", *place)
    assert ran.status == 3
    assert ran.out.startswith("Group etl: description of group etl: no answer from Kafka")
    assert "\nLag: unknown\nCommitted by: not known\n" in ran.out
    assert "\norders          0          7" in ran.out


@pytest.mark.parametrize("form", [(), ("--csv",)])
@pytest.mark.parametrize("command", [("lag",), ("describe",), ("top", "--interval", "0.5")])
def test_the_reason_is_printed_with_any_output(command: tuple[str], form: tuple[str]) -> None:
    """Also with CSV, which has no row for a group that cannot be read; JSON has the error.

    One line for all groups with the same cause: of thousands, each had its own.
    """
    kafka = ["--bootstrap-servers", "127.0.0.1:1", "--timeout", "0.5"]
    ran = run_alone(*command, "etl", "peer", *form, *kafka)
    assert ran.status == 3
    assert "NOTFOUND" not in ran.output  # whether the group exists is not known
    reason = "description of group etl: no answer from Kafka"
    assert reason in ran.output
    if command != ("describe",) or form:  # its table has a part for each group
        assert f"etl, peer: {reason}" in ran.err
        assert ran.output.count("no answer from Kafka") == 1


def test_a_checkpoint_that_spark_refuses_before_its_first_batch(tmp_path: Path) -> None:
    """The reason is given; the command ended with status 1 and an empty table."""
    for name, text in {"metadata": '{"id": "x"}', "sources/0/0": ""}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for form in ((), ("--csv",)):
        words = ["--checkpoint", str(tmp_path), *form, "--bootstrap-servers", "127.0.0.1:1"]
        ran = run_alone("spark", "status", *words)
        assert ran.status == 1
        assert "sources/0/0 is empty" in ran.err
