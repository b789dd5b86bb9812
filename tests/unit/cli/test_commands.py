"""The list of commands, and their tables."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from typer.main import get_group

from offsetmgr.cli.app import app
from offsetmgr.cli.commands import command_line
from offsetmgr.cli.common import print_table
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


def test_no_column_is_left_out_on_the_narrowest_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A terminal may have no size: the lines are those of one with 40 columns."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "0")
    print_table(("group", "lag"), [("orders-etl", 42)])
    assert "orders-etl   42" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "twice"),
    [
        (["set", "etl", "orders:0=42", "orders:00=7"], "offset 'orders-0'"),
        (
            ["spark", "follow", "--checkpoint", "/c", "--topic-group", "t=a", "--topic-group=t=b"],
            "--topic-group 't'",
        ),
        (["dev-kafka", "--topic", "orders:3", "--topic", "orders"], "topic 'orders'"),
    ],
)
def test_a_list_that_says_two_things_is_refused(words: list[str], twice: str) -> None:
    """An option or argument that is given for one thing twice would mean the last one in silence.

    Before anything is asked or begun.
    """
    ran = run_alone(*words)
    assert ran.status in {1, 2}
    assert f"{twice} is given twice; give it once" in ran.err


def test_an_empty_value_is_a_value() -> None:
    """As of a variable of the shell that is not set; the other option was carried out alone."""
    ran = run_alone("reset", "etl", "--all-topics", "--from-file", "", "--to-latest")
    assert "modes ['to-latest', 'from-file'] are not exactly one" in ran.err


def test_groups_of_a_database_are_listed_without_kafka(tmp_path: Path) -> None:
    """Kafka tells only their states; why these are missing stands below the table."""
    url = f"sqlite:///{tmp_path}/offsets.db"
    with SqlOffsetStore(url) as store:
        store.create_tables()
        store.commit_offset("etl", "orders", 0, 1)
    kafka = ["--bootstrap-servers", "127.0.0.1:1", "--timeout", "1"]
    ran = run_alone("groups", "--store", url, *kafka)
    assert ran.status == 3
    assert ran.out.split() == ["name", "state", "type", "etl", "Unknown", "store"]
    assert ran.err.startswith("list of consumer groups: no answer from Kafka")


@pytest.mark.parametrize("form", [(), ("--csv",)])
@pytest.mark.parametrize("command", [("lag",), ("describe",), ("top", "--interval", "0.5")])
def test_the_reason_is_printed_with_any_output(command: tuple[str], form: tuple[str]) -> None:
    """Also with CSV, which has no row for a group that cannot be read; JSON has the error."""
    kafka = ["--bootstrap-servers", "127.0.0.1:1", "--timeout", "0.5"]
    ran = run_alone(*command, "etl", *form, *kafka)
    assert ran.status == 3
    assert "description of group etl: no answer from Kafka" in ran.output


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
