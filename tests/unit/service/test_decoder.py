"""Bad input is refused at the door, with field, value and fix; good input becomes core types."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offsetmgr.errors import InvalidValueError
from offsetmgr.manager import Submission
from offsetmgr.service import validation
from offsetmgr.service.decoder import Decoder, Flush, Open, Stop
from offsetmgr.types import MAX_METADATA_CHARS, MAX_OFFSET, MAX_PARTITION, TopicPartition

LIMIT = 50
DECODER = Decoder(LIMIT)


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
        DECODER.submit(body)
    return caught.value


BAD_VALUES = [
    # JSON in place of a value; the field that the error names; what its text holds
    ({"offset": "1.0"}, "offsets[0].offset", "1.0 is a float"),
    ({"offset": "1e3"}, "offsets[0].offset", "1000.0 is a float"),
    ({"offset": "1.5"}, "offsets[0].offset", "1.5 is a float"),
    ({"offset": "true"}, "offsets[0].offset", "True is a bool"),
    ({"offset": '"5"'}, "offsets[0].offset", "'5' is a str"),
    ({"offset": "null"}, "offsets[0].offset", "None is a NoneType"),
    ({"offset": "[1]"}, "offsets[0].offset", "[1] is a list"),
    ({"offset": str(2**63)}, "offsets[0].offset", f"{2**63} is too large"),
    ({"offset": str(2**64)}, "offsets[0].offset", "is too large"),
    ({"offset": "9" * 400}, "offsets[0].offset", "is too large"),
    ({"offset": "9" * 10_000}, "offsets[0].offset", "is too large"),
    ({"offset": "1e999"}, "offsets[0].offset", "inf is a float"),
    ({"offset": "-1"}, "offsets[0].offset", "-1 is negative"),
    ({"offset": "NaN"}, "body", "JSON has no NaN"),
    ({"offset": "Infinity"}, "body", "JSON has no Infinity"),
    ({"partition": "-1"}, "offsets[0].partition", "-1 is negative"),
    ({"partition": "1000001"}, "offsets[0].partition", "is too large"),
    ({"partition": "3.0"}, "offsets[0].partition", "3.0 is a float"),
    ({"partition": "false"}, "offsets[0].partition", "False is a bool"),
    ({"topic": '""'}, "offsets[0].topic", "is not a legal Kafka topic name"),
    ({"topic": '".."'}, "offsets[0].topic", "is not a legal Kafka topic name"),
    ({"topic": '"a b"'}, "offsets[0].topic", "is not a legal Kafka topic name"),
    ({"topic": f'"{"x" * 250}"'}, "offsets[0].topic", "has 250 characters"),
    ({"topic": "7"}, "offsets[0].topic", "7 is not text"),
    ({"metadata": '"a\\u0000b"'}, "offsets[0].metadata", "holds a NUL"),
    ({"metadata": f'"{"m" * 4097}"'}, "offsets[0].metadata", "has 4097 characters"),
    ({"metadata": '"\\ud800"'}, "offsets[0].metadata", "cannot be encoded"),
    ({"metadata": "null"}, "offsets[0].metadata", "None is not text"),
    ({"leader_epoch": "1.0"}, "offsets[0].leader_epoch", "1.0 is a float"),
    ({"leader_epoch": "-1"}, "offsets[0].leader_epoch", "-1 is negative"),
    ({"version": "-1"}, "offsets[0].version", "must be a whole number from 0"),
    ({"version": "1.0"}, "offsets[0].version", "must be a whole number from 0"),
    ({"version": "true"}, "offsets[0].version", "must be a whole number from 0"),
    ({"rewind": "1"}, "offsets[0].rewind", "must be true or false, not 1"),
    ({"ofset": "1"}, "offsets[0].ofset", "1 is an unknown field"),
    ({"\\ud800": "1"}, r"offsets[0].'\ud800'", "1 is an unknown field"),
    ({"a\\nb": "1"}, r"offsets[0].'a\nb'", "1 is an unknown field"),
    ({"k" * 10_000: "1"}, f"offsets[0].'{'k' * 80}'… (10000 characters)", "1 is an unknown field"),
    ({"group": '""'}, "group", "is empty"),
    ({"group": '"a\\nb"'}, "group", "unprintable"),
    ({"group": f'"{"g" * 256}"'}, "group", "has 256 characters"),
    ({"group": "null"}, "group", "None is not text"),
    ({"extra": ',"wait":"yes"'}, "wait", "must be true or false, not 'yes'"),
    ({"extra": ',"timeout_s":0'}, "timeout_s", "up to 300, not 0"),
    ({"extra": ',"timeout_s":301'}, "timeout_s", "up to 300, not 301"),
    ({"extra": ',"timeout_s":"1"'}, "timeout_s", "up to 300, not '1'"),
    ({"extra": ',"timeout_s":true'}, "timeout_s", "up to 300, not True"),
    ({"extra": ',"timeout":1'}, "timeout", "1 is an unknown field"),
]


@pytest.mark.parametrize(("changes", "field", "text"), BAD_VALUES)
@pytest.mark.fault(25, 27, 28)
def test_a_bad_value_is_named(changes: dict[str, str], field: str, text: str) -> None:
    """Whatever is wrong, the error has field, value and fix, in one short line."""
    error = refusal(submit_body(**changes))
    assert error.field == field
    assert text in str(error)
    assert error.fix
    assert len(str(error)) < 400
    assert str(error).isprintable()


BAD_BODIES = [
    (b"", "line 1, column 1"),
    (b"[]", "is not a JSON object"),
    (b"null", "is not a JSON object"),
    (b'{"group":"g"', "is not JSON"),
    (b'{"group":"g","offsets":[]} trailing', "is not JSON"),
    (b'{"group":"g\xff","offsets":[]}', "at byte 11 is not UTF-8"),
    (b"[" * 100_000, "is nested too deeply"),
    (b'{"group":' * 100_000, "is nested too deeply"),
    (b'{"group":"g"}', "offsets is missing"),
    (b'{"group":"g","offsets":[]}', "offsets [] is empty"),
    (b'{"group":"g","offsets":{}}', "offsets {} is not a list"),
    (b'{"group":"g","offsets":[7]}', "offsets[0] 7 is not a JSON object"),
    (b'{"group":"g","offsets":[{"topic":"t","partition":0}]}', "offsets[0].offset is missing"),
]


@pytest.mark.parametrize(("body", "text"), BAD_BODIES)
def test_a_bad_body_is_explained(body: bytes, text: str) -> None:
    """What is no request at all says where it goes wrong, and nothing crashes."""
    assert text in str(refusal(body))


def test_a_partition_may_stand_once() -> None:
    """Two values for one partition have no order: the request says which two they are."""
    entry = '{"topic":"t","partition":%d,"offset":1}'
    offsets = ",".join(entry % number for number in (0, 1, 0))
    error = refusal(f'{{"group":"g","offsets":[{offsets}]}}'.encode())
    assert error.field == "offsets[2]"
    assert "'t-0' is named twice" in str(error)
    assert "offsets[0]" in error.fix


ENTRY = '{"topic":"t","partition":0,"offset":1'
SUBMIT = '{"group":"g","offsets":['


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (SUBMIT + ENTRY + ',"offset":2}]}', "offsets[0].offset"),
        (SUBMIT + ENTRY + ',"offset":1}]}', "offsets[0].offset"),
        (SUBMIT + ENTRY + ',"metadata":"a","metadata":"a"}]}', "offsets[0].metadata"),
        (SUBMIT + ENTRY + ',"metadata":"","metadata":"\\""}]}', "offsets[0].metadata"),
        (SUBMIT + ENTRY + ',"metadata":"\\\\","rewind":true,"rewind":true}]}', "offsets[0].rewind"),
        (SUBMIT + ENTRY + ',"\\u006fffset":2}]}', "offsets[0].offset"),
        (SUBMIT + ENTRY + '}],"wait":true,"wait":true}', "wait"),
        (SUBMIT + ENTRY + '}],"timeout_s":1,"timeout_s":2}', "timeout_s"),
        (SUBMIT + ENTRY + '}],"group":"h"}', "group"),
        (SUBMIT + ENTRY + '}],"\\ud800":1,"\\ud800":2}', r"'\ud800'"),
    ],
)
def test_a_key_that_stands_twice_is_named(body: str, field: str) -> None:
    """Two values of one field have no order: whoever sends both is told, not guessed at."""
    error = refusal(body.encode())
    assert (error.field, error.problem) == (field, "is given twice")


def test_a_key_stands_once_in_every_request() -> None:
    """Opening and settling look as closely as a submit."""
    ref = '{"topic":"t","partition":0}'
    with pytest.raises(InvalidValueError, match="group 'h' is given twice"):
        DECODER.open(f'{{"group":"g","group":"h","partitions":[{ref}]}}'.encode())
    with pytest.raises(InvalidValueError, match="timeout_s 2 is given twice"):
        DECODER.stop(b'{"timeout_s":1,"timeout_s":2}')


@pytest.mark.parametrize(
    "more",
    [
        '"metadata":"","leader_epoch":null,"rewind":false,"version":null',
        r'"metadata":"\"\\"',
        r'"metadata":"\\\""',
    ],
)
def test_a_default_may_be_spelled_out(more: str) -> None:
    """What is said although it need not be, and quotes within texts, are no second keys."""
    body = f'{SUBMIT}{ENTRY},{more}}}],"wait":false,"timeout_s":10}}'
    asked = DECODER.submit(body.encode())
    taken = asked.offsets[TopicPartition("t", 0)]
    assert isinstance(taken, Submission)
    assert taken.offset == 1


def test_what_is_no_more_than_offsets_stays_plain_numbers() -> None:
    """Offsets without metadata, epoch or rewind are taken by the core as they are, at once."""
    asked = DECODER.submit(f'{SUBMIT}{ENTRY},"version":7}}]}}'.encode())
    assert asked.offsets == {TopicPartition("t", 0): 1}
    assert asked.versions == {TopicPartition("t", 0): 7}
    assert type(next(iter(asked.offsets))) is TopicPartition


def test_too_many_entries_are_refused() -> None:
    """The limit is named."""
    entries = [{"topic": "t", "partition": n, "offset": 1} for n in range(LIMIT + 1)]
    error = refusal(json.dumps({"group": "g", "offsets": entries}).encode())
    assert error.field == "offsets"
    assert f"at most {LIMIT}" in error.fix


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
    asked = DECODER.submit(body)
    where = TopicPartition("orders", MAX_PARTITION)
    assert asked.offsets == {
        where: Submission(MAX_OFFSET, "m" * MAX_METADATA_CHARS, 0, rewind=True)
    }
    assert type(next(iter(asked.offsets))) is TopicPartition
    assert isinstance(asked.offsets[where], Submission)
    assert (asked.group, asked.wait, asked.timeout_s) == ("orders-etl", True, 300.0)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from(
        [0, 1, -1, 10**6, 10**6 + 1, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64, 10**400]
    )
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "t", "a b", "x\x00", "\ud800", "ü", "m" * 4097]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)
good_or_bad: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.just("t") | json_values,
    "partition": st.integers(0, 3) | json_values,
    "offset": st.integers(0, 5) | json_values,
}
entries = st.fixed_dictionaries(
    good_or_bad,
    optional={
        "metadata": st.just("m") | json_values,
        "leader_epoch": st.integers(0, 5) | json_values,
        "rewind": st.booleans() | json_values,
        "version": st.integers(0, 5) | json_values,
        "other": json_values,
    },
)
requests = st.fixed_dictionaries(
    {"group": st.just("g") | json_values, "offsets": st.lists(entries, max_size=3) | json_values},
    optional={"wait": st.booleans() | json_values, "timeout_s": st.just(1) | json_values},
)


@given(requests)
@example({"group": "g", "offsets": [{"topic": "t", "partition": 0, "offset": 1}]})
def test_the_fast_way_and_the_slow_way_agree(request: dict[str, Any]) -> None:
    """What the fast way takes has nothing the slow way would name, and the other way round."""
    body = json.dumps(request).encode()
    slow: InvalidValueError | None = None
    try:
        validation.check(body, validation.of_submit(LIMIT))
    except InvalidValueError as error:
        slow = error
    if slow is None:
        DECODER.submit(body)
    else:
        fast = refusal(body)
        assert (fast.field, fast.problem) == (slow.field, slow.problem)


texts = st.sampled_from(
    ["1", "0", '""', '"m"', r'"\""', r'"\\"', r'"\\\""', "null", "true", "false"]
)
NAMES = ["topic", "partition", "offset", "metadata", "leader_epoch", "rewind", "version"]
fields = st.sampled_from(NAMES)


@given(st.lists(st.tuples(fields, texts), max_size=4))
def test_no_repeated_key_gets_through(more: list[tuple[str, str]]) -> None:
    """Whatever stands in a body, what is taken has each key once."""
    entry = "".join(f',"{name}":{text}' for name, text in more)
    body = f"{SUBMIT}{ENTRY}{entry}}}]}}".encode()
    names = ["topic", "partition", "offset", *(name for name, _ in more)]
    try:
        DECODER.submit(body)
    except InvalidValueError:
        return
    assert len(names) == len(set(names))


@given(st.binary(max_size=60))
def test_any_bytes_are_answered(body: bytes) -> None:
    """No body whatever raises anything but an error for its sender."""
    refusal(body)


def test_opening_takes_partitions() -> None:
    """The body of POST /v1/managers."""
    entries = b'{"topic":"t","partition":1,"version":4},{"topic":"t","partition":0}'
    asked = DECODER.open(b'{"group":"g","partitions":[%s]}' % entries)
    assert asked == Open("g", {TopicPartition("t", 1): 4, TopicPartition("t", 0): None})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"group":"g","partitions":null}', "partitions"),
        (b'{"group":"g","partitions":[{"topic":"t","partition":0,"offset":1}]}',
         "partitions[0].offset"),
        (b'{"group":"g","partitions":[{"topic":"t","partition":0},{"topic":"t","partition":0}]}',
         "partitions[1]"),
        (b'{"partitions":[{"topic":"t","partition":0}]}', "group"),
        (b'{"group":"g","partitions":[{"topic":"t","partition":1000001}]}',
         "partitions[0].partition"),
    ],
)  # fmt: skip
def test_opening_refuses_what_it_does_not_know(body: bytes, field: str) -> None:
    """As submits do, by name."""
    with pytest.raises(InvalidValueError) as caught:
        DECODER.open(body)
    assert caught.value.field == field


def test_a_flush_and_a_stop_may_name_nothing() -> None:
    """An empty body object means all managers of all groups."""
    assert DECODER.flush(b"{}") == Flush(None, None, 10.0)
    assert DECODER.stop(b"{}") == Stop(None, None, 10.0, None)
    body = b'{"group":"g","partitions":[{"topic":"t","partition":0}],"version":3}'
    assert DECODER.stop(body) == Stop("g", [TopicPartition("t", 0)], 10.0, 3)
    with pytest.raises(InvalidValueError, match="version"):
        DECODER.flush(body)


def test_partitions_need_their_group() -> None:
    """Partitions of no group could be anybody's."""
    with pytest.raises(InvalidValueError, match="group is missing"):
        DECODER.stop(b'{"partitions":[{"topic":"t","partition":0}]}')


def test_a_heartbeat_is_an_empty_object() -> None:
    """Nothing more is known there, so nothing more is taken."""
    DECODER.heartbeat(b"{}")
    with pytest.raises(InvalidValueError, match="unknown field"):
        DECODER.heartbeat(b'{"a":1}')
