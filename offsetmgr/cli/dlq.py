"""The commands for dead letters."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Annotated, Any

from typer import Argument, Option

from offsetmgr.admin.times import parse_since, time_text
from offsetmgr.cli import common
from offsetmgr.consumer.retry import Letter, Replayer, divide_letters, readable_letters
from offsetmgr.consumer.topics import INTERNAL
from offsetmgr.errors import InvalidValueError, OffsetManagerError
from offsetmgr.kafka.errors import known
from offsetmgr.text import visible
from offsetmgr.types import TopicPartition, check_topic

Unread = dict[TopicPartition, OffsetManagerError]
Topic = Annotated[str, Argument(metavar="TOPIC", help="The dead-letter topic.")]
_MISSING = "the letter does not exist, or was replayed before"
_HEADS = "letter", "failed", "origin", "tries", "replays", "error", "replayed"


@dataclass(frozen=True)
class LetterOptions:
    """The options that choose letters."""

    origin: Annotated[str | None, Option(help="Only letters from this topic.")] = None
    error: Annotated[str | None, Option(help="Only letters with this text in their error.")] = None
    since: common.Since = None
    letter: Annotated[
        list[str] | None, Option(metavar="PARTITION:OFFSET", help="Only this letter; repeatable.")
    ] = None

    def read(self, kafka: common.KafkaOptions, topic: str) -> tuple[list[Letter], Unread]:
        """Return the letters that are chosen, and why partitions are not read."""
        check_topic(topic)
        since_s = parse_since(self.since, "--since", time.time()) if self.since else 0.0
        wanted = None if self.letter is None else [_place(each) for each in self.letter]
        letters, unread = readable_letters(kafka.for_librdkafka(), topic, kafka.timeout)
        found = [
            each
            for each in letters
            if self.origin in {None, each.origin.topic}
            and (self.error is None or self.error in each.error)
            and each.failed_at_s >= since_s
            and (wanted is None or each.place[1:] in wanted)
        ]
        return found, unread


def list_letters(
    topic: Topic,
    *,
    chosen: LetterOptions,
    replayed: Annotated[bool, Option("--all", help="Include letters that were replayed.")] = False,
    kafka: common.KafkaOptions,
    output: common.OutputOptions,
) -> int:
    """List dead letters: where they came from, and why they failed.

    Partitions that cannot be read are named with the reason, and the exit status is 1.
    """
    letters, unread = chosen.read(kafka, topic)
    found = [each for each in letters if replayed or not each.replayed]
    problems = {str(each): str(error) for each, error in unread.items()}
    answer = {"topic": topic, "unread": problems}
    lines = [f"{each} is not read: {error}" for each, error in problems.items()]
    output.print(answer, _HEADS, list(map(_row, found)), "letters", problems=lines)
    return common.Exit.TROUBLE if problems else 0


def show(
    topic: Topic,
    letter: Annotated[str, Argument(metavar="PARTITION:OFFSET", help="The letter.")],
    *,
    kafka: common.KafkaOptions,
    as_json: common.Json = False,
) -> int:
    """Show one dead letter in full: headers, key, value, error and stack."""
    found, unread = LetterOptions(letter=[letter]).read(kafka, topic)
    if not found:
        known(unread.get(TopicPartition(topic, _place(letter)[0])))
        common.say(f"offsetmgr: {topic} has no letter {letter}", error=True)
        return common.Exit.TROUBLE
    (each,) = found
    shown = dict(zip(_HEADS, _row(each), strict=True)) | {
        "headers": [[name, _text(value)] for name, value in each.headers],
        "key": _text(each.key),
        "value": _text(each.value),
        "problem": each.problem,
        "stack": each.stack,
    }
    if as_json:
        common.print_json(shown)
        return 0
    stack = shown.pop("stack")
    lines = [f"{name}: {value}" for name, value in shown.items()]
    print("\n".join(map(visible, [*lines, *stack.splitlines()])))
    return 0


def replay(
    topic: Topic,
    *,
    chosen: LetterOptions,
    to: Annotated[str | None, Option(help="Send them to this topic instead.")] = None,
    execute: common.Execute = False,
    kafka: common.KafkaOptions,
    output: common.OutputOptions,
) -> int:
    """Send dead letters back to their partitions; without --execute, print which.

    A letter is replayed only once, even if a replay was interrupted. If a message fails again, it
    comes back as a new letter; `replays` counts how often. Letters that cannot be replayed, and a
    --letter that is missing, are named with the reason, and the exit status is 1.
    """
    if to is not None:
        check_topic(to, "--to")
        if to == topic or to.startswith(INTERNAL):
            hint = "give a topic that its consumers read"
            raise InvalidValueError("--to", to, "does not take messages of others", hint)
    letters, unread = chosen.read(kafka, topic)
    for failure in unread.values():  # it may have a mark that a copy of a letter was replayed
        raise failure
    found = [each for each in letters if not each.replayed]
    config, places = kafka.for_librdkafka(), {each.place[1:] for each in found}
    missing = [each for each in chosen.letter or () if _place(each) not in places]
    if execute:
        found, refused = Replayer(config, topic, kafka.timeout).replay(found, to=to)
    else:
        found, refused = divide_letters(config, found, to, kafka.timeout)
    named = [{"letter": _row(each)[0], "problem": each.problem} for each in refused]
    named += [{"letter": each, "problem": _MISSING} for each in missing]
    answer = {"topic": topic, "executed": execute, "refused": named}
    done = "were replayed" if execute else "would be replayed; --execute does it"
    problems = [f"letter {each['letter']} is not replayed: {each['problem']}" for each in named]
    rows, ends = list(map(_row, found)), [f"{len(found)} letters {done}."]
    output.print(answer, _HEADS, rows, "letters", ends=ends)
    for problem in problems:  # with JSON, too: what is left of a change is said in any case
        common.say(problem, error=True)
    return common.Exit.TROUBLE if named else 0


def _place(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,19}):([0-9]{1,19})", text)
    if found is None:
        raise InvalidValueError("letter", text, "is not PARTITION:OFFSET", "give such as 0:17")
    return int(found[1]), int(found[2])


def _row(letter: Letter) -> list[Any]:
    place = f"{letter.place.partition}:{letter.place.offset}"
    origin = f"{letter.origin.topic} {letter.origin.partition}:{letter.origin.offset}"
    failed = time_text(letter.failed_at_s)
    return [place, failed, origin, letter.tries, letter.replays, letter.error, letter.replayed]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")
