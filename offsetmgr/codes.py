"""The table of what error codes mean for a committer: Kafka's, librdkafka's and our own.

A code carries whether trying again can help, whether it speaks of one partition or of the whole
group, whose fault it is, what is known of the commit, and what to do.  The table holds every code
that Kafka documents for OffsetCommit, OffsetFetch and FindCoordinator, with those of joining a
group, and follows the Java client's treatment.  Left out are the codes of TxnOffsetCommit and of
produce requests, which the broker maps to others here.
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


_C, _O, _B, _N = Fault.CALLER, Fault.OPERATOR, Fault.BROKER, Fault.NETWORK
_P, _G = Scope.PARTITION, Scope.GROUP
_REFUSED, _UNKNOWN = Verdict.REFUSED, Verdict.UNKNOWN

_MOVING = "the group's coordinator is moving or its log is short of replicas; tried again"
_MEMBERS = (
    "the group has live members, so Kafka takes commits from them alone; commit to another "
    "group or stop them"
)
_NETWORK = "Kafka did not answer in time; tried again; check the brokers and the network to them"
_ELECTING = "the partition is between two leaders, or was just created; tried again"
_AUTH = "Kafka did not accept the service's credentials; check sasl.* and ssl.* of the service"
_NO_TOPIC = (
    "the topic or partition does not exist in the cluster; create it, or stop submitting for it"
)
_OLD_BROKER = "the broker is too old for this request; Kafka 2.4 or newer is needed"
_TAKEN = "the group is used in another way than this service does; use another group"

_ROWS: Final = (
    ErrorInfo(
        -1, "UNKNOWN_SERVER_ERROR", True, _G, _B, _UNKNOWN,
        "see the broker's log; it also answers so where not even one commit record fits into the "
        "max.message.bytes of its offsets topic",
    ),
    ErrorInfo(
        1, "OFFSET_OUT_OF_RANGE", False, _P, _C, _REFUSED,
        "the offset lies outside the partition's log; submit one that lies in it",
    ),
    ErrorInfo(3, "UNKNOWN_TOPIC_OR_PARTITION", True, _P, _C, _REFUSED, _NO_TOPIC),
    ErrorInfo(5, "LEADER_NOT_AVAILABLE", True, _P, _B, _REFUSED, _ELECTING),
    ErrorInfo(6, "NOT_LEADER_OR_FOLLOWER", True, _P, _B, _REFUSED, _ELECTING),
    ErrorInfo(7, "REQUEST_TIMED_OUT", True, _G, _B, _UNKNOWN, _NETWORK),
    ErrorInfo(8, "BROKER_NOT_AVAILABLE", True, _G, _B, _UNKNOWN, _NETWORK),
    ErrorInfo(
        12, "OFFSET_METADATA_TOO_LARGE", False, _P, _C, _REFUSED,
        "the metadata is longer than the broker's offset.metadata.max.bytes; submit less",
    ),
    ErrorInfo(13, "NETWORK_EXCEPTION", True, _G, _N, _UNKNOWN, _NETWORK),
    ErrorInfo(
        14, "COORDINATOR_LOAD_IN_PROGRESS", True, _G, _B, _REFUSED,
        "the coordinator is still loading the group's offsets; tried again",
    ),
    # The broker also answers 15 and 16 when an append was written and then missed its replicas
    # or lost its leader, so what they say of the commit itself is: nothing.
    ErrorInfo(15, "COORDINATOR_NOT_AVAILABLE", True, _G, _B, _UNKNOWN, _MOVING),
    ErrorInfo(16, "NOT_COORDINATOR", True, _G, _B, _UNKNOWN, _MOVING),
    ErrorInfo(
        17, "INVALID_TOPIC_EXCEPTION", False, _P, _C, _REFUSED,
        "Kafka does not accept this topic name; submit for another",
    ),
    ErrorInfo(19, "NOT_ENOUGH_REPLICAS", True, _G, _B, _UNKNOWN, _MOVING),
    ErrorInfo(20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", True, _G, _B, _UNKNOWN, _MOVING),
    ErrorInfo(22, "ILLEGAL_GENERATION", True, _G, _O, _REFUSED, _MEMBERS),
    ErrorInfo(23, "INCONSISTENT_GROUP_PROTOCOL", False, _G, _O, _REFUSED, _TAKEN),
    ErrorInfo(
        24, "INVALID_GROUP_ID", False, _G, _C, _REFUSED,
        "Kafka does not accept this group name; use another",
    ),
    # Retriable because it ends by itself when the members leave; told with their names.
    ErrorInfo(25, "UNKNOWN_MEMBER_ID", True, _G, _O, _REFUSED, _MEMBERS),
    ErrorInfo(
        26, "INVALID_SESSION_TIMEOUT", False, _G, _O, _REFUSED,
        "the broker's group.min/max.session.timeout.ms exclude the service's; widen them",
    ),
    ErrorInfo(27, "REBALANCE_IN_PROGRESS", True, _G, _O, _REFUSED, _MEMBERS),
    ErrorInfo(
        28, "INVALID_COMMIT_OFFSET_SIZE", False, _P, _C, _REFUSED,
        "the commit record is larger than the offsets topic's max.message.bytes; submit less "
        "metadata",
    ),
    ErrorInfo(
        29, "TOPIC_AUTHORIZATION_FAILED", False, _P, _O, _REFUSED,
        "the service lacks READ on the topic; grant it, then submit again",
    ),
    ErrorInfo(
        30, "GROUP_AUTHORIZATION_FAILED", False, _G, _O, _REFUSED,
        "the service lacks READ on the group; grant it, then submit again",
    ),
    ErrorInfo(
        31, "CLUSTER_AUTHORIZATION_FAILED", False, _G, _O, _REFUSED,
        "grant the service's principal what it needs on the cluster",
    ),
    ErrorInfo(33, "UNSUPPORTED_SASL_MECHANISM", False, _G, _O, _REFUSED, _AUTH),
    ErrorInfo(34, "ILLEGAL_SASL_STATE", False, _G, _O, _REFUSED, _AUTH),
    ErrorInfo(35, "UNSUPPORTED_VERSION", False, _G, _O, _REFUSED, _OLD_BROKER),
    ErrorInfo(42, "INVALID_REQUEST", False, _G, _C, _REFUSED, "the broker rejects the request"),
    ErrorInfo(44, "POLICY_VIOLATION", False, _G, _O, _REFUSED, "a broker policy forbids it"),
    ErrorInfo(
        56, "KAFKA_STORAGE_ERROR", True, _G, _B, _UNKNOWN,
        "a broker's disk failed; tried again on its successor",
    ),
    ErrorInfo(58, "SASL_AUTHENTICATION_FAILED", False, _G, _O, _REFUSED, _AUTH),
    ErrorInfo(
        69, "GROUP_ID_NOT_FOUND", False, _G, _O, _REFUSED,
        "the group is not one this commit can go to (deleted, or of another type)",
    ),
    ErrorInfo(74, "FENCED_LEADER_EPOCH", False, _P, _C, _REFUSED, "the leader epoch is old"),
    ErrorInfo(75, "UNKNOWN_LEADER_EPOCH", True, _P, _B, _REFUSED, _ELECTING),
    ErrorInfo(
        79, "MEMBER_ID_REQUIRED", True, _G, _O, _REFUSED,
        "the group takes no commits without a member; joined again under the id that Kafka gives",
    ),
    ErrorInfo(
        81, "GROUP_MAX_SIZE_REACHED", False, _G, _O, _REFUSED,
        "the group is full; raise the broker's group.max.size, or stop members",
    ),
    # Not retriable: trying again would take the group back from whom the operator started last.
    ErrorInfo(
        82, "FENCED_INSTANCE_ID", False, _G, _O, _REFUSED,
        "another service has taken the group over; stop it and restart this one, or stop this one",
    ),
    ErrorInfo(
        88, "UNSTABLE_OFFSET_COMMIT", True, _P, _B, _REFUSED,
        "a transaction holds offsets of this partition; tried again",
    ),
    ErrorInfo(
        89, "THROTTLING_QUOTA_EXCEEDED", True, _G, _O, _REFUSED,
        "the service is over its quota; raise it, or the commit interval",
    ),
    ErrorInfo(100, "UNKNOWN_TOPIC_ID", True, _P, _C, _REFUSED, "the topic was recreated"),
    ErrorInfo(110, "FENCED_MEMBER_EPOCH", True, _G, _O, _REFUSED, _MEMBERS),
    ErrorInfo(111, "UNRELEASED_INSTANCE_ID", True, _G, _O, _REFUSED, _MEMBERS),
    ErrorInfo(113, "STALE_MEMBER_EPOCH", True, _G, _O, _REFUSED, _MEMBERS),
    ErrorInfo(129, "REBOOTSTRAP_REQUIRED", True, _G, _B, _UNKNOWN, _NETWORK),
    # librdkafka's own codes are below zero.
    ErrorInfo(-150, "_FATAL", False, _G, _O, _UNKNOWN, "the Kafka client failed; restart"),
    ErrorInfo(
        -155, "_UNDERFLOW", True, _G, _B, _UNKNOWN,
        "the coordinator's answer was cut short; read back, then tried again",
    ),
    ErrorInfo(-165, "_UNSUPPORTED_FEATURE", False, _G, _O, _REFUSED, _OLD_BROKER),
    ErrorInfo(-166, "_TIMED_OUT_QUEUE", True, _G, _N, _UNKNOWN, _NETWORK),
    ErrorInfo(-169, "_AUTHENTICATION", True, _G, _O, _UNKNOWN, _AUTH),
    ErrorInfo(-180, "_WAIT_COORD", True, _G, _B, _UNKNOWN, _MOVING),
    ErrorInfo(-181, "_SSL", True, _G, _O, _UNKNOWN, _AUTH),
    ErrorInfo(-185, "_TIMED_OUT", True, _G, _N, _UNKNOWN, _NETWORK),
    ErrorInfo(-187, "_ALL_BROKERS_DOWN", True, _G, _N, _UNKNOWN, _NETWORK),
    ErrorInfo(-188, "_UNKNOWN_TOPIC", True, _P, _C, _REFUSED, _NO_TOPIC),
    ErrorInfo(-190, "_UNKNOWN_PARTITION", True, _P, _C, _REFUSED, _NO_TOPIC),
    ErrorInfo(-192, "_MSG_TIMED_OUT", True, _G, _N, _UNKNOWN, _NETWORK),
    ErrorInfo(-193, "_RESOLVE", True, _G, _N, _UNKNOWN, "a broker's host name is not known"),
    ErrorInfo(
        -194, "_CRIT_SYS_RESOURCE", True, _G, _O, _UNKNOWN,
        "the service lacks memory, threads or file descriptors; raise its limits",
    ),
    ErrorInfo(-195, "_TRANSPORT", True, _G, _N, _UNKNOWN, _NETWORK),
    ErrorInfo(-196, "_FAIL", True, _G, _N, _UNKNOWN, _NETWORK),
    ErrorInfo(-197, "_DESTROY", False, _G, _C, _UNKNOWN, "the service is shutting down"),
    ErrorInfo(
        -199, "_BAD_MSG", True, _G, _B, _UNKNOWN,
        "the coordinator's answer could not be read; read back, then tried again",
    ),
)  # fmt: skip

OFFSET_CHANGED: Final = 32_001
OFFSET_OUTSIDE_LOG: Final = 32_003
TOPIC_RECREATED: Final = 32_004
STORE_FAILED: Final = 32_005
STORE_REFUSED: Final = 32_006
GENERATION_FENCED: Final = 32_007

OWN_CODES: Final = 32_000
"""Codes from here on are this product's, beyond all that Kafka may come to use."""

_OWN_ROWS: Final = (
    ErrorInfo(
        OFFSET_CHANGED, "OFFSET_CHANGED_EXTERNALLY", False, _P, _O, _REFUSED,
        "somebody else changed the group's committed offset; it is followed",
    ),
    ErrorInfo(
        OFFSET_OUTSIDE_LOG, "OFFSET_OUTSIDE_LOG", False, _P, _C, _REFUSED,
        "a committed offset lies outside its partition's log; check its unit, topic and cluster",
    ),
    ErrorInfo(
        TOPIC_RECREATED, "TOPIC_RECREATED", False, _P, _O, _REFUSED,
        "offsets of before count records that are gone; rewind() to where the new ones begin",
    ),
    ErrorInfo(
        STORE_FAILED, "STORE_FAILED", True, _G, _N, _UNKNOWN,
        "the database of the offset store did not answer; check it and the network to it",
    ),
    ErrorInfo(
        STORE_REFUSED, "STORE_REFUSED", False, _G, _O, _REFUSED,
        "the database of the offset store refuses the statement; check its tables and rights",
    ),
    ErrorInfo(
        GENERATION_FENCED, "GENERATION_FENCED", False, _P, _O, _REFUSED,
        "another process has claimed the partition in the offset store; stop one of the two",
    ),
)  # fmt: skip

ERRORS: Final[Mapping[int, ErrorInfo]] = {row.code: row for row in (*_ROWS, *_OWN_ROWS)}
"""The known codes; ``error_info`` also answers for others."""


def error_info(code: int, name: str = "") -> ErrorInfo:
    """Return the meaning of ``code``; an unknown one is retriable, with an unknown outcome."""
    found = ERRORS.get(code)
    if found is not None:
        return found
    hint = "not a code this version knows; tried again; see Kafka's protocol guide"
    return ErrorInfo(code, name or f"CODE_{code}", True, _G, _B, _UNKNOWN, hint)
