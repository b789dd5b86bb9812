"""The service's JSON: what is asked as bytes, what is answered as the words of the product."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from offsetmgr.errors import (
    ClientFencedError,
    Fault,
    ManagerExistsError,
    ManagerStoppedError,
    OffsetCommitError,
    OffsetFetchError,
    OffsetManagerError,
    OffsetNoticeError,
    OffsetRegressionError,
    OffsetTimeoutError,
    OverloadedError,
    ServiceError,
    error_info,
    shown,
)
from offsetmgr.types import ManagerKey, OffsetAndMetadata, PartitionRange, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from offsetmgr.client.partitions import Batch, Item

MANAGERS: Final = "/v1/managers"
OFFSETS: Final = "/v1/offsets"
FLUSH: Final = "/v1/flush"
STOP: Final = "/v1/stop"
HEARTBEAT: Final = "/v1/heartbeat"
EVENTS: Final = "/v1/events"
INITIAL_OFFSETS: Final = "/v1/initial-offsets"
TOPICS: Final = "/v1/topics"
TOPIC_NAMES: Final = "/v1/topic-names"

TOO_LARGE: Final = 413
"""The status of a request whose body is longer than the service takes."""

_INDEX: Final = re.compile(r"^\w+\[(\d{1,9})\]")
_BAD_GATEWAY: Final = 502
_MISSING: Final = frozenset({"UNKNOWN_TOPIC_OR_PARTITION", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
_SAFE: Final = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"

Errors = dict[TopicPartition, OffsetManagerError]


class Settled(NamedTuple):
    """What a flush, a stop or a waiting submit ended with."""

    committed: dict[ManagerKey, OffsetAndMetadata]
    uncommitted: dict[ManagerKey, OffsetManagerError | None]


def header_text(name: str) -> str:
    """`name` as a header carries it: percent-encoded where it is not plain ASCII."""
    return quote(name, safe=_SAFE)


def target(path: str, *parameters: tuple[str, object]) -> str:
    """`path` with a query."""
    return f"{path}?{urlencode(parameters)}"


# Requests


def batch_body(batch: Batch) -> bytes:
    """A batch that nobody waits for."""
    if batch.submits:
        return _dump({"group": batch.group, "offsets": _offsets(batch.items)})
    partitions = [
        {"topic": key.topic, "partition": key.partition, "version": version}
        for key, version, *_ in batch.items
    ]
    return _dump({"group": batch.group, "partitions": partitions})


def waiting_body(batch: Batch, timeout_s: float) -> bytes:
    """Offsets to be answered when the coordinator has them."""
    offsets = _offsets(batch.items)
    return _dump({"group": batch.group, "offsets": offsets, "wait": True, "timeout_s": timeout_s})


def flush_body(
    group: str | None, partitions: Collection[TopicPartition] | None, timeout_s: float
) -> bytes:
    """Which managers to flush."""
    body: dict[str, object] = {"timeout_s": timeout_s}
    if group is not None:
        body["group"] = group
        if partitions is not None:
            body["partitions"] = [each._asdict() for each in partitions]
    return _dump(body)


def stop_body(
    group: str | None,
    partitions: Collection[TopicPartition] | None,
    timeout_s: float,
    version: int,
) -> bytes:
    """Which managers to stop."""
    return flush_body(group, partitions, timeout_s)[:-1] + b',"version":%d}' % version


def _offsets(items: Sequence[Item]) -> list[dict[str, object]]:
    entries = []
    for key, version, value, rewind, _ in items:
        if value is None:
            continue
        entry: dict[str, object] = {
            "topic": key.topic,
            "partition": key.partition,
            "offset": value.offset,
            "version": version,
        }
        if value.metadata:
            entry["metadata"] = value.metadata
        if value.leader_epoch is not None:
            entry["leader_epoch"] = value.leader_epoch
        if rewind:
            entry["rewind"] = True
        entries.append(entry)
    return entries


def _dump(body: Mapping[str, object]) -> bytes:
    # An escape takes three times the bytes; lone surrogates are in no group, topic or metadata.
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


# Answers


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Whatever an answer may lack: it ends in a ServiceError, never in a KeyError at the user."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        text = (
            f"the service's answer about {what} cannot be read ({type(error).__name__}: {error}); "
            "is it of another version than this client?"
        )
        raise ServiceError(_BAD_GATEWAY, text, "malformed") from None


def offset_of(data: Mapping[str, Any]) -> OffsetAndMetadata:
    """The offset in an entry."""
    return OffsetAndMetadata(int(data["offset"]), str(data["metadata"]), data["leader_epoch"])


def partition_of(data: Mapping[str, Any]) -> TopicPartition:
    """The partition of an entry."""
    return TopicPartition(str(data["topic"]), int(data["partition"]))


def key_of(data: Mapping[str, Any]) -> ManagerKey:
    """The manager of an event or of a settled entry."""
    return ManagerKey(str(data["group"]), *partition_of(data))


def refused_of(data: Mapping[str, Any], batch: Batch) -> Errors:
    """The refusals in the answer to `batch`."""
    entries = data["refused"] if batch.submits else data["managers"]
    return {
        where: error_of(entry["error"], ManagerKey(batch.group, *where))
        for entry in entries
        if entry["error"] is not None
        for where in [partition_of(entry)]
    }


def settled_of(data: Mapping[str, Any], group: str | None = None) -> Settled:
    """What was committed and what was not; `group` where the entries do not name theirs."""
    named = {} if group is None else {"group": group}
    committed = {key_of({**each, **named}): offset_of(each) for each in data["committed"]}
    uncommitted: dict[ManagerKey, OffsetManagerError | None] = {}
    for each in data["uncommitted"]:
        key = key_of({**each, **named})
        error = each["error"]
        uncommitted[key] = None if error is None else error_of(error, key)
    return Settled(committed, uncommitted)


def topic_of(data: Mapping[str, Any]) -> tuple[str, dict[int, PartitionRange]]:
    """A topic and the ends of its partitions; raises what Kafka says against one of them."""
    name = _sound_topic(data)
    return name, {
        int(each["partition"]): PartitionRange(
            int(each["log_start_offset"]), int(each["high_watermark"])
        )
        for each in data["partitions"]
    }


def offsets_at_of(data: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """A topic's offsets at the time asked for: the end of a log that holds nothing so young."""
    name = _sound_topic(data)
    return {
        TopicPartition(name, int(each["partition"])): int(
            each["high_watermark"] if each["offset_at"] is None else each["offset_at"]
        )
        for each in data["partitions"]
    }


def stable_ends_of(data: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """A topic's last stable offsets."""
    name = _sound_topic(data)
    return {
        TopicPartition(name, int(each["partition"])): int(each["last_stable_offset"])
        for each in data["partitions"]
    }


def _sound_topic(data: Mapping[str, Any]) -> str:
    """The topic's name; raises what Kafka says against it or one of its partitions."""
    name = str(data["topic"])
    for what, entry in [(f"topic {name}", data)] + [
        (f"partition {name}-{each['partition']}", each) for each in data["partitions"]
    ]:
        if entry.get("error") is not None:
            error = entry["error"]
            code = str(error["code"])
            if code in _MISSING:
                text = f"{what} does not exist in the cluster; create it, or correct its name"
            else:
                text = f"{what}: {error['message']}"
            # A topic that does not exist may be created, but nobody wants to wait for that.
            passing = error.get("retriable") and error.get("fault") == Fault.BROKER.value
            kind = PassingError if passing else ServiceError
            raise kind(_BAD_GATEWAY, text, code)
    return name


def bad_index(error: ServiceError) -> int | None:
    """The entry that a bad request was refused for; None: the whole of it."""
    found = _INDEX.match(error.field) if isinstance(error, RefusedRequestError) else None
    return None if found is None else int(found[1])


class PassingError(ServiceError):
    """Kafka's answer of a moment, such as that a new partition has no leader yet."""


class RefusedRequestError(ServiceError):
    """The service calls a request bad; `field` is where, "" where it does not say."""

    def __init__(
        self, status: int, message: str, code: str = "invalid_value", field: str = ""
    ) -> None:
        super().__init__(status, message, code)
        self.field = field


def error_of(
    data: Mapping[str, Any], key: ManagerKey | None, status: int = 200
) -> OffsetManagerError:
    """The error in an answer or an event; `key` is the manager it speaks of."""
    code, message = str(data["code"]), str(data["message"])
    if data.get("kafka_code") is not None:
        return _kafka_error(data, key, status, code, message)
    name = "a manager" if key is None else str(key)
    if code == OffsetRegressionError.code:
        return OffsetRegressionError(name, int(data["offset"]), int(data["floor"]))
    if code == ManagerExistsError.code:
        left_s = data.get("lease_left_s")
        owner = str(data.get("owner") or "another client")
        return ManagerExistsError(name, owner, None if left_s is None else float(left_s))
    for kind in (ManagerStoppedError, ClientFencedError, OffsetTimeoutError, OverloadedError):
        if code == kind.code:
            return kind(message)
    return RefusedRequestError(status, message, code, str(data.get("field") or ""))


def _kafka_error(
    data: Mapping[str, Any], key: ManagerKey | None, status: int, code: str, message: str
) -> OffsetManagerError:
    if key is None:
        return ServiceError(status, message, code)
    info = error_info(int(data["kafka_code"]), code)
    hint = str(data.get("hint") or "")
    detail = "" if hint == info.hint else hint
    offset = data.get("offset")
    if data.get("notice"):
        return OffsetNoticeError(key.group, key.topic, key.partition, offset, info, detail)
    # Only a commit is about an offset.
    kind = OffsetFetchError if offset is None else OffsetCommitError
    return kind(key.group, key.topic, key.partition, offset, info, detail)


def failure_of(status: int, body: bytes) -> OffsetManagerError:
    """What an answer that is not a success says."""
    try:
        return error_of(json.loads(body)["error"], None, status)
    except (KeyError, TypeError, ValueError, RecursionError):
        return ServiceError(status, f"the service answered with status {status}: {shown(body)}")
