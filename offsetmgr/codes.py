"""The meaning of error codes for a committer: Kafka's, librdkafka's and our own.

A code carries whether trying again can help, whether it speaks of one partition or of the whole
group, whose fault it is, the outcome of the commit, and advice.  The table holds every code
that Kafka documents for OffsetCommit, OffsetFetch and FindCoordinator, with those of joining a
group and of deleting its offsets, and follows the Java client's treatment.  Left out are the codes
of TxnOffsetCommit and of produce requests, which the broker maps to others here.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Scope(str, Enum):
    """One partition, or its whole group."""

    PARTITION = "partition"
    GROUP = "group"


class Fault(str, Enum):
    """The side that has to act."""

    CALLER = "caller"
    """The job that submitted: its offset, metadata or names."""
    OPERATOR = "operator"
    """The people who run the group, its ACLs or the configuration."""
    BROKER = "broker"
    """Kafka; passes, or its operators act."""
    NETWORK = "network"
    """Between the service and Kafka."""


class Verdict(str, Enum):
    """Outcome of a commit that was answered with the error."""

    REFUSED = "refused"
    """It did not happen and will not."""
    UNKNOWN = "unknown"
    """It may have happened, or may happen yet: read before writing again."""


class ErrorInfo(NamedTuple):
    """Meaning of a Kafka (or librdkafka) error code for a committer."""

    code: int
    name: str
    retriable: bool
    """Trying the same again can succeed without anybody changing the request."""
    scope: Scope
    fault: Fault
    verdict: Verdict
    hint: str
    """Explanation and advice for people."""


# Our own, beyond all that Kafka may come to use.
OFFSET_CHANGED: Final = 32_001
TOPIC_DELETED: Final = 32_002
OFFSET_OUTSIDE_LOG: Final = 32_003
TOPIC_RECREATED: Final = 32_004
STORE_FAILED: Final = 32_005
STORE_REFUSED: Final = 32_006
GENERATION_FENCED: Final = 32_007

# Kafka's and librdkafka's codes that the product itself asks for.
UNKNOWN_TOPIC: Final = 3
NOT_COORDINATOR: Final = 16
TOPIC_REFUSED: Final = 29
"""Of a user who lacks a right on the topic."""
GROUP_REFUSED: Final = 30
"""Of a user who lacks a right on the group."""
UNKNOWN_MEMBER_ID: Final = 25
"""Of a commit to a group that has live members."""
TIMED_OUT: Final = -185
"""librdkafka's, of a request whose deadline passed before an answer came."""
TRANSPORT: Final = -195
"""librdkafka's, of a connection that failed."""
NO_SUCH_PARTITION: Final = frozenset({UNKNOWN_TOPIC, -188, -190})
"""The codes of a topic or partition that does not exist: Kafka's, and librdkafka's own two."""

_C, _O, _B, _N = Fault.CALLER, Fault.OPERATOR, Fault.BROKER, Fault.NETWORK
_P, _G = Scope.PARTITION, Scope.GROUP
_REFUSED, _UNKNOWN = Verdict.REFUSED, Verdict.UNKNOWN
_RETRIED, _FINAL = True, False

_MOVING = "the group's coordinator is moving or its log is short of replicas; tried again"
_MEMBERS = (
    "the group has live members, so Kafka takes commits from them alone; commit to another "
    "group or stop them"
)
_NETWORK = "Kafka did not answer in time; tried again; check the brokers and the network to them"
_ELECTING = "the partition is between two leaders, or was just created; tried again"
_AUTH = "Kafka did not accept the service's credentials; check sasl.* and ssl.* of the service"
_NO_TOPIC = "the topic or partition does not exist in the cluster; create it, or stop submitting"
_OLD_BROKER = "the broker is too old for this request; Kafka 2.4 or newer is needed"

_CLASSES: Final[Mapping[tuple[bool, Scope, Fault, Verdict], tuple[tuple[int, str, str], ...]]] = {
    (_RETRIED, _P, _C, _REFUSED): (
        (3, "UNKNOWN_TOPIC_OR_PARTITION", _NO_TOPIC),
        (100, "UNKNOWN_TOPIC_ID", "the topic was recreated"),
        (-188, "_UNKNOWN_TOPIC", _NO_TOPIC),
        (-190, "_UNKNOWN_PARTITION", _NO_TOPIC),
    ),
    (_RETRIED, _P, _B, _REFUSED): (
        (5, "LEADER_NOT_AVAILABLE", _ELECTING),
        (6, "NOT_LEADER_OR_FOLLOWER", _ELECTING),
        (75, "UNKNOWN_LEADER_EPOCH", _ELECTING),
        (88, "UNSTABLE_OFFSET_COMMIT", "a transaction holds offsets of the partition; tried again"),
    ),
    (_FINAL, _P, _C, _REFUSED): (
        (12, "OFFSET_METADATA_TOO_LARGE",
         "the metadata is longer than the broker's offset.metadata.max.bytes; submit less"),
        (28, "INVALID_COMMIT_OFFSET_SIZE",
         "the commit record exceeds the offsets topic's max.message.bytes; submit less metadata"),
        (OFFSET_OUTSIDE_LOG, "OFFSET_OUTSIDE_LOG",
         "a committed offset lies outside its partition's log; check its unit, topic and cluster"),
    ),
    (_FINAL, _P, _O, _REFUSED): (
        (29, "TOPIC_AUTHORIZATION_FAILED",
         "the service lacks READ on the topic; grant it, then submit again"),
        (OFFSET_CHANGED, "OFFSET_CHANGED_EXTERNALLY",
         "somebody else changed the group's committed offset; it is followed"),
        (TOPIC_DELETED, "TOPIC_DELETED",
         "the topic does not exist any more, and Kafka deleted the group's offset with it"),
        (TOPIC_RECREATED, "TOPIC_RECREATED",
         "the topic was recreated; only offsets that were read from the new one are committed"),
        (GENERATION_FENCED, "GENERATION_FENCED",
         "another process has claimed the partition in the offset store; stop one of the two"),
    ),
    (_RETRIED, _G, _B, _REFUSED): (
        (14, "COORDINATOR_LOAD_IN_PROGRESS", "the group's offsets are still loading; tried again"),
    ),
    (_RETRIED, _G, _B, _UNKNOWN): (
        (-1, "UNKNOWN_SERVER_ERROR",
         "see the broker's log; a commit record may exceed max.message.bytes of its offsets topic"),
        (7, "REQUEST_TIMED_OUT", _NETWORK),
        (8, "BROKER_NOT_AVAILABLE", _NETWORK),
        # The broker also answers 15 and 16 when an append was written and then missed its replicas
        # or lost its leader, so they say nothing about the commit itself.
        (15, "COORDINATOR_NOT_AVAILABLE", _MOVING),
        (16, "NOT_COORDINATOR", _MOVING),
        (56, "KAFKA_STORAGE_ERROR", "a broker's disk failed; tried again on its successor"),
        (129, "REBOOTSTRAP_REQUIRED", _NETWORK),
        (-155, "_UNDERFLOW", "the coordinator's answer was cut short; read back, then tried again"),
        (-180, "_WAIT_COORD", _MOVING),
        (-199, "_BAD_MSG", "the coordinator's answer is not readable; read back, then tried again"),
    ),
    (_RETRIED, _G, _N, _UNKNOWN): (
        (13, "NETWORK_EXCEPTION", _NETWORK),
        (-166, "_TIMED_OUT_QUEUE", _NETWORK),
        (-185, "_TIMED_OUT", _NETWORK),
        (-187, "_ALL_BROKERS_DOWN", _NETWORK),
        (-192, "_MSG_TIMED_OUT", _NETWORK),
        (-193, "_RESOLVE", "a broker's host name is not known"),
        (-195, "_TRANSPORT", _NETWORK),
        (-196, "_FAIL", _NETWORK),
        (STORE_FAILED, "STORE_FAILED",
         "the database of the offset store did not answer; check it and the network to it"),
    ),
    (_RETRIED, _G, _O, _REFUSED): (
        (22, "ILLEGAL_GENERATION", _MEMBERS),
        # Retriable because it ends by itself when the members leave; reported with their names.
        (25, "UNKNOWN_MEMBER_ID", _MEMBERS),
        (27, "REBALANCE_IN_PROGRESS", _MEMBERS),
        (68, "NON_EMPTY_GROUP", "the group has live members; stop them"),
        (79, "MEMBER_ID_REQUIRED",
         "the group takes no commits without a member; joined again under the id that Kafka gives"),
        (86, "GROUP_SUBSCRIBED_TO_TOPIC",
         "the group has live members that subscribe to the topic; stop them"),
        (89, "THROTTLING_QUOTA_EXCEEDED", "the quota is reached; raise it, or the commit interval"),
        (110, "FENCED_MEMBER_EPOCH", _MEMBERS),
        (111, "UNRELEASED_INSTANCE_ID", _MEMBERS),
        (113, "STALE_MEMBER_EPOCH", _MEMBERS),
    ),
    (_RETRIED, _G, _O, _UNKNOWN): (
        (-169, "_AUTHENTICATION", _AUTH),
        (-181, "_SSL", _AUTH),
        (-194, "_CRIT_SYS_RESOURCE",
         "the service lacks memory, threads or file descriptors; raise its limits"),
    ),
    (_FINAL, _G, _C, _REFUSED): (
        (24, "INVALID_GROUP_ID", "Kafka does not accept this group name; use another"),
        (42, "INVALID_REQUEST", "the broker rejects the request"),
    ),
    (_FINAL, _G, _C, _UNKNOWN): ((-197, "_DESTROY", "the service is shutting down"),),
    (_FINAL, _G, _O, _REFUSED): (
        (23, "INCONSISTENT_GROUP_PROTOCOL",
         "the group is used in another way than this service does; use another group"),
        (26, "INVALID_SESSION_TIMEOUT",
         "the broker's group.min/max.session.timeout.ms exclude the service's; widen them"),
        (30, "GROUP_AUTHORIZATION_FAILED",
         "the service lacks READ on the group; grant it, then submit again"),
        (31, "CLUSTER_AUTHORIZATION_FAILED", "grant the service what it needs on the cluster"),
        (33, "UNSUPPORTED_SASL_MECHANISM", _AUTH),
        (34, "ILLEGAL_SASL_STATE", _AUTH),
        (35, "UNSUPPORTED_VERSION", _OLD_BROKER),
        (58, "SASL_AUTHENTICATION_FAILED", _AUTH),
        (69, "GROUP_ID_NOT_FOUND",
         "the group is not one this commit can go to (deleted, or of another type)"),
        (81, "GROUP_MAX_SIZE_REACHED",
         "the group is full; raise the broker's group.max.size, or stop members"),
        # Final: trying again would take the group back from whom the operator started last.
        (82, "FENCED_INSTANCE_ID",
         "another service took the group over; stop it and restart this one, or stop this one"),
        (-165, "_UNSUPPORTED_FEATURE", _OLD_BROKER),
        (STORE_REFUSED, "STORE_REFUSED",
         "the database of the offset store refuses the statement; check its tables and rights"),
    ),
    (_FINAL, _G, _O, _UNKNOWN): ((-150, "_FATAL", "the Kafka client failed; restart"),),
}  # fmt: skip
"""Kafka's codes and our own; those below zero are librdkafka's, but for -1."""

ERRORS: Final[Mapping[int, ErrorInfo]] = {
    code: ErrorInfo(code, name, *each_class, hint)
    for each_class, rows in _CLASSES.items()
    for code, name, hint in rows
}
"""The known codes; ``error_info`` also answers for others."""


def error_info(code: int, name: str = "") -> ErrorInfo:
    """Return the meaning of ``code``; an unknown one is retriable, with an unknown outcome."""
    hint = "not a code this version knows; tried again; see Kafka's protocol guide"
    unknown = ErrorInfo(code, name or f"CODE_{code}", True, _G, _B, _UNKNOWN, hint)
    return ERRORS.get(code, unknown)


NOT_SENT: Final = ErrorInfo(
    -166, "NOT_SENT", _RETRIED, _G, _N, _REFUSED,
    "the request was still waiting for a free connection at its deadline and was never sent; "
    "tried again; check whether Kafka is slow or down",
)  # fmt: skip
"""The deadline passed before the request was handed to the Kafka client: it had no effect."""

CLOSED: Final = ErrorInfo(
    -197, "CLOSED", _FINAL, _G, _C, _REFUSED,
    "the coordinator's connections were closed before this request was sent",
)  # fmt: skip
"""The coordinator was closed before the request was sent: it had no effect."""
