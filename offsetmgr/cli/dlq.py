"""The commands for dead letters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offsetmgr.cli.options import (
    EXIT_TROUBLE,
    Bootstrap,
    ConfigFile,
    Csv,
    Json,
    Set,
    for_scripts,
    load_settings,
)

if TYPE_CHECKING:
    from offsetmgr.consumer.dlq import Letter

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The dead-letter topic.")]
From = Annotated[str | None, typer.Option("--origin", help="Letters from this topic alone.")]
ErrorText = Annotated[
    str | None, typer.Option("--error", help="Letters with this text in their error alone.")
]
Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Failed from then on: 2026-01-31T13:05:00 (UTC), or 2h ago."),
]
Places = Annotated[
    list[str] | None,
    typer.Option("--letter", metavar="PARTITION:OFFSET", help="This letter; may be repeated."),
]
All = Annotated[bool, typer.Option("--all", help="Also letters that were replayed.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for Kafka.")]
Execute = Annotated[bool, typer.Option("--execute", help="Do it.")]

_HEADS = "letter", "failed", "origin", "tries", "replays", "error", "replayed"


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    dlq = typer.Typer(help="Look at dead letters and replay them.", no_args_is_help=True)
    dlq.command("list")(list_letters)
    dlq.command()(show)
    dlq.command()(replay)
    app.add_typer(dlq, name="dlq")


def list_letters(
    topic: Topic,
    origin: From = None,
    error: ErrorText = None,
    since: Since = None,
    letter: Places = None,
    config: ConfigFile = None,
    bootstrap_servers: Bootstrap = None,
    set_: Set = None,
    timeout: Timeout = 30.0,
    *,
    replayed: All = False,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """List dead letters: where they came from, and why they failed.

    \b
    Exit status:
      0    they are listed
      1    Kafka refused
      2    an option is wrong
      3    the topic was not read to its end in time
    """  # noqa: D301 -- \b is typer's mark for lines to keep
    with for_scripts():
        kafka = load_settings(config, bootstrap_servers, set_).kafka.for_librdkafka()
        found = _chosen(kafka, topic, timeout, origin, error, since, letter)
    found = [each for each in found if replayed or not each.replayed]
    _print(found, {"topic": topic}, as_json=as_json, as_csv=as_csv)


def show(
    topic: Topic,
    letter: Annotated[str, typer.Argument(metavar="PARTITION:OFFSET", help="The letter.")],
    config: ConfigFile = None,
    bootstrap_servers: Bootstrap = None,
    set_: Set = None,
    timeout: Timeout = 30.0,
    *,
    as_json: Json = False,
) -> None:
    """Show one dead letter whole: headers, key, value, error and stack.

    The exit statuses are those of list; 1 as well where there is no such letter.
    """
    from offsetmgr.cli.output import print_json
    from offsetmgr.service.logs import visible

    with for_scripts():
        kafka = load_settings(config, bootstrap_servers, set_).kafka.for_librdkafka()
        found = _chosen(kafka, topic, timeout, None, None, None, [letter])
    if not found:
        typer.echo(f"offsetmgr: {topic} has no letter {letter}", err=True)
        raise typer.Exit(EXIT_TROUBLE)
    (each,) = found
    more = {
        "headers": [[name, _text(value)] for name, value in each.headers],
        "key": _text(each.key),
        "value": _text(each.value),
        "stack": each.stack,
    }
    told = dict(zip(_HEADS, _row(each), strict=True)) | more
    if as_json:
        print_json(told)
        return
    for name, value in told.items():
        if name == "stack":
            print("\n".join(visible(line) for line in each.stack.splitlines()))
        else:
            print(f"{name}: {visible(str(value))}")


def replay(
    topic: Topic,
    origin: From = None,
    error: ErrorText = None,
    since: Since = None,
    letter: Places = None,
    to: Annotated[str | None, typer.Option(help="Send them to this topic instead.")] = None,
    config: ConfigFile = None,
    bootstrap_servers: Bootstrap = None,
    set_: Set = None,
    timeout: Timeout = 30.0,
    *,
    execute: Execute = False,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Send dead letters back to their origin; without --execute it only shows which.

    A letter that was replayed already is left out, also where a replay was interrupted. It may
    come back as a new letter; `replays` counts that.

    \b
    Exit status:
      0    the letters are shown; with --execute, all are replayed
      1    Kafka refused
      2    an option is wrong
      3    Kafka did not answer in time
    """  # noqa: D301 -- \b is typer's mark for lines to keep
    from offsetmgr.types import check_topic

    with for_scripts():
        from offsetmgr.consumer.dlq import Replayer

        if to is not None:
            check_topic(to, "--to")
        kafka = load_settings(config, bootstrap_servers, set_).kafka.for_librdkafka()
        found = _chosen(kafka, topic, timeout, origin, error, since, letter)
        found = [each for each in found if not each.replayed]
        if execute:
            with Replayer(kafka, topic, timeout) as replayer:
                found = replayer.replay(found, to=to)
    _print(found, {"topic": topic, "executed": execute}, as_json=as_json, as_csv=as_csv)
    if not as_json and not as_csv:
        done = "were replayed" if execute else "would be replayed; --execute does it"
        print(f"{len(found)} letters {done}.")


def _chosen(
    kafka: dict[str, object],
    topic: str,
    timeout_s: float,
    origin: str | None,
    error: str | None,
    since: str | None,
    places: list[str] | None,
) -> list[Letter]:
    from offsetmgr.admin.times import parse_since
    from offsetmgr.consumer.dlq import read_letters
    from offsetmgr.types import check_topic

    check_topic(topic)
    since_s = 0.0 if since is None else parse_since(since, "--since", time.time())
    wanted = None if places is None else [_place(each) for each in places]
    return [
        each
        for each in read_letters(kafka, topic, timeout_s)
        if origin in {None, each.origin.topic}
        and (error is None or error in each.error)
        and each.failed_at_s >= since_s
        and (wanted is None or each.place[1:] in wanted)
    ]


def _place(text: str) -> tuple[int, int]:
    from offsetmgr.errors import InvalidValueError

    partition, _, offset = text.partition(":")
    if not partition.isdecimal() or not offset.isdecimal():
        raise InvalidValueError("letter", text, "is not PARTITION:OFFSET", "give such as 0:17")
    return int(partition), int(offset)


def _row(letter: Letter) -> list[Any]:
    from offsetmgr.admin.times import time_text

    place = f"{letter.place.partition}:{letter.place.offset}"
    origin = f"{letter.origin.topic} {letter.origin.partition}:{letter.origin.offset}"
    failed = time_text(letter.failed_at_s)
    return [place, failed, origin, letter.tries, letter.replays, letter.error, letter.replayed]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


def _print(letters: list[Letter], head: dict[str, Any], *, as_json: bool, as_csv: bool) -> None:
    from offsetmgr.cli.output import print_csv, print_json, print_table

    rows = [_row(each) for each in letters]
    if as_json:
        print_json({**head, "letters": [dict(zip(_HEADS, row, strict=True)) for row in rows]})
    elif as_csv:
        print_csv(_HEADS, rows)
    elif rows:
        print_table(_HEADS, rows)
    else:
        print("There are no such letters.")
