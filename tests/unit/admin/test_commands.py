"""A wrong command line is refused with exit status 2, before Kafka is asked."""

from __future__ import annotations

import pytest

from tests.commands import run_alone


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("reset g --all-topics", "modes [] are not exactly one; give one of --to-earliest"),
        ("reset g --all-topics --to-earliest --to-latest", "are not exactly one"),
        ("reset g --to-earliest", "give --topic or --all-topics, and not both"),
        ("reset g --to-earliest --topic t --all-topics", "and not both"),
        ("reset g --to-earliest --topic t:x", "--topic 't:x' has 'x' where a number stands"),
        ("reset g --to-earliest --topic t --live", "--live True needs a service"),
        ("set g t:0", "offset 't:0' is not in that form; write TOPIC:PARTITION=OFFSET"),
        ("delete-offsets g", "give --topic or --all-topics"),
        ("history g --since yesterday", "--since 'yesterday' is not a time"),
        ("doctor g --stuck-after soon", "--stuck-after 'soon' is not a duration"),
        ("spark status --checkpoint /no/such", "has no file named metadata"),
    ],
)
def test_a_wrong_command_line_is_refused(line: str, told: str) -> None:
    """With the option, its value and what to give instead."""
    done = run_alone(*line.split(), "--bootstrap-servers", "127.0.0.1:1")
    assert done.status == 2
    assert told in done.output
