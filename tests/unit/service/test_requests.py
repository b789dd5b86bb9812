"""Bad input is refused at the door, with field, value and fix; good input becomes core types."""

from __future__ import annotations

import pytest

from offsetmgr.errors import InvalidValueError
from offsetmgr.manager import Submission
from offsetmgr.service.api import decode
from offsetmgr.service.messages import StopRequest, SubmitRequest
from offsetmgr.types import MAX_METADATA_CHARS, MAX_OFFSET, MAX_PARTITION, TopicPartition


def submit_body(**changes: str) -> bytes:
    """A submit of one good entry, with JSON texts in place of some values."""
    fields = {"topic": '"orders"', "partition": "3", "offset": "42"}
    fields |= {name: text for name, text in changes.items() if name not in {"group", "extra"}}
    entry = ",".join(f'"{name}":{text}' for name, text in fields.items())
    group = changes.get("group", '"orders-etl"')
    extra = changes.get("extra", "")
    return f'{{"group":{group},"offsets":[{{{entry}}}]{extra}}}'.encode("utf-8", "surrogatepass")


def refusal(body: bytes) -> InvalidValueError:
    """Why a submit is refused, which it has to be."""
    with pytest.raises(InvalidValueError) as caught:
        decode(SubmitRequest, body)
    return caught.value


WHOLE = f"must be a whole number from 0 to {MAX_OFFSET}, not "

BAD_VALUES = [
    # JSON in place of a value; the field that the error names; what its text holds
    ({"offset": "1.0"}, "offsets[0].offset", f"{WHOLE}1.0"),
    ({"offset": "true"}, "offsets[0].offset", f"{WHOLE}True"),
    ({"offset": '"5"'}, "offsets[0].offset", f"{WHOLE}'5'"),
    ({"offset": str(2**63)}, "offsets[0].offset", f"{WHOLE}{2**63}"),
    ({"offset": "9" * 10_000}, "body", "out of range"),
    ({"offset": "1e999"}, "body", "out of range"),
    ({"offset": "-1"}, "offsets[0].offset", f"{WHOLE}-1"),
    ({"offset": "NaN"}, "body", "invalid character (byte 74)"),
    ({"partition": "1000001"}, "offsets[0].partition", "from 0 to 1000000, not 1000001"),
    ({"topic": '""'}, "offsets[0].topic", "must be text of 1 to 249 characters, not ''"),
    ({"topic": '"a b"'}, "offsets[0].topic", "is not a legal Kafka topic name"),
    ({"topic": f'"{"x" * 250}"'}, "offsets[0].topic", "(250 characters)"),
    ({"metadata": '"a\\u0000b"'}, "offsets[0].metadata", "holds a NUL"),
    ({"metadata": f'"{"m" * 4097}"'}, "offsets[0].metadata", "text of 0 to 4096 characters"),
    ({"metadata": f'"{"😀" * 2049}"'}, "offsets[0].metadata", "has 4098 characters"),
    ({"metadata": '"\\ud800"'}, "body", "is not JSON"),
    ({"leader_epoch": "-1"}, "offsets[0].leader_epoch", "from 0 to 2147483647, not -1"),
    ({"version": "-1"}, "offsets[0].version", WHOLE),
    ({"rewind": "1"}, "offsets[0].rewind", "must be true or false, not 1"),
    ({"ofset": "1"}, "offsets[0].ofset", "1 is an unknown field"),
    ({"\\ud800": "1"}, "body", "is not JSON"),
    ({"a\\nb": "1"}, r"offsets[0].'a\nb'", "1 is an unknown field"),
    ({"group": '""'}, "group", "must be text of 1 to 255 characters, not ''"),
    ({"group": '"a\\nb"'}, "group", "unprintable"),
    ({"extra": ',"wait":"yes"'}, "wait", "must be true or false, not 'yes'"),
    ({"extra": ',"timeout_s":0'}, "timeout_s", "must be a number above 0, up to 300, not 0"),
    ({"extra": ',"timeout":1'}, "timeout", "1 is an unknown field"),
]


@pytest.mark.parametrize(("changes", "field", "text"), BAD_VALUES)
@pytest.mark.fault(25, 27, 28)
def test_a_bad_value_is_named(changes: dict[str, str], field: str, text: str) -> None:
    """The error has field, value and hint, in one short line."""
    error = refusal(submit_body(**changes))
    assert error.field == field
    assert text in str(error)
    assert error.hint
    assert len(str(error)) < 400
    assert str(error).isprintable()


TWICE = b'{"group":"g","offsets":[%s,%s]}' % ((b'{"topic":"t","partition":0,"offset":1}',) * 2)

BAD_BODIES = [
    (b"", "is not JSON"),
    (b"[]", "must be a JSON object, not []"),
    (b'{"group":"g"', "is not JSON"),
    (b'{"group":"g","offsets":[]} trailing', "trailing characters (byte 28)"),
    (b'{"group":"g\xff","offsets":[]}', "can't decode byte 0xff"),
    (b"[" * 100_000, "recursion"),
    (b'{"group":"g"}', "offsets is missing; add 'offsets' to the request"),
    (b'{"group":"g","offsets":[]}', "offsets must be a list of 1 to 10000 entries, not 0"),
    (b'{"group":"g","offsets":[7]}', "offsets[0] must be a JSON object, not 7"),
    (b'{"group":"g","offsets":[{"topic":"t","partition":0}]}', "offsets[0].offset is missing"),
    (submit_body(extra=',"topic_ids":{"t":1}'), "topic_ids[...] must be text of 1 to 64 char"),
    (submit_body(extra=',"topic_ids":{"":"x"}'), "topic_ids[...] must be text of 1 to 249 char"),
    (TWICE, "offsets[1] 't-0' is named twice; give each partition once; the other is offsets[0]"),
    (b'{"group":"g","ofsets":[]}', "known here: group, offsets, topic_ids, wait, timeout_s"),
]


@pytest.mark.parametrize(("body", "text"), BAD_BODIES)
def test_a_bad_body_is_explained(body: bytes, text: str) -> None:
    """The error of an invalid request says where it is wrong, and nothing crashes."""
    assert text in str(refusal(body))


def test_partitions_need_their_group() -> None:
    """Partitions of no group could be anybody's."""
    with pytest.raises(InvalidValueError, match="group is missing"):
        decode(StopRequest, b'{"partitions":[{"topic":"t","partition":0}]}')


def test_good_input_becomes_checked_values() -> None:
    """The edges of every range pass, as the core's own types."""
    body = submit_body(
        partition=str(MAX_PARTITION),
        offset=str(MAX_OFFSET),
        metadata=f'"{"m" * MAX_METADATA_CHARS}"',
        leader_epoch="0",
        rewind="true",
        extra=',"wait":true,"timeout_s":300',
    )
    asked = decode(SubmitRequest, body)
    assert asked.submissions() == {
        TopicPartition("orders", MAX_PARTITION): Submission(
            MAX_OFFSET, "m" * MAX_METADATA_CHARS, 0, rewind=True
        )
    }
    assert (asked.group, asked.wait, asked.timeout_s) == ("orders-etl", True, 300.0)
