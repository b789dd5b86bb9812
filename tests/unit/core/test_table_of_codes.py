"""The meaning of each code, written a second time: the table cannot change by mistake.

The rows are thought out from Kafka's protocol, and from what librdkafka says of its own codes.  A
code that Kafka calls retriable or not may be the other way round here: a group's members leave, and
an outcome that nobody knows is read back first, so both are tried again.
"""

from __future__ import annotations

from offsetmgr.errors import ERRORS, error_info

GOLDEN = """
    -1 UNKNOWN_SERVER_ERROR             retriable group     broker   unknown
     1 OFFSET_OUT_OF_RANGE              permanent partition caller   refused
     3 UNKNOWN_TOPIC_OR_PARTITION       retriable partition caller   refused
     5 LEADER_NOT_AVAILABLE             retriable partition broker   refused
     6 NOT_LEADER_OR_FOLLOWER           retriable partition broker   refused
     7 REQUEST_TIMED_OUT                retriable group     broker   unknown
     8 BROKER_NOT_AVAILABLE             retriable group     broker   unknown
    12 OFFSET_METADATA_TOO_LARGE        permanent partition caller   refused
    13 NETWORK_EXCEPTION                retriable group     network  unknown
    14 COORDINATOR_LOAD_IN_PROGRESS     retriable group     broker   refused
    15 COORDINATOR_NOT_AVAILABLE        retriable group     broker   unknown
    16 NOT_COORDINATOR                  retriable group     broker   unknown
    17 INVALID_TOPIC_EXCEPTION          permanent partition caller   refused
    19 NOT_ENOUGH_REPLICAS              retriable group     broker   unknown
    20 NOT_ENOUGH_REPLICAS_AFTER_APPEND retriable group     broker   unknown
    22 ILLEGAL_GENERATION               retriable group     operator refused
    23 INCONSISTENT_GROUP_PROTOCOL      permanent group     operator refused
    24 INVALID_GROUP_ID                 permanent group     caller   refused
    25 UNKNOWN_MEMBER_ID                retriable group     operator refused
    26 INVALID_SESSION_TIMEOUT          permanent group     operator refused
    27 REBALANCE_IN_PROGRESS            retriable group     operator refused
    28 INVALID_COMMIT_OFFSET_SIZE       permanent partition caller   refused
    29 TOPIC_AUTHORIZATION_FAILED       permanent partition operator refused
    30 GROUP_AUTHORIZATION_FAILED       permanent group     operator refused
    31 CLUSTER_AUTHORIZATION_FAILED     permanent group     operator refused
    33 UNSUPPORTED_SASL_MECHANISM       permanent group     operator refused
    34 ILLEGAL_SASL_STATE               permanent group     operator refused
    35 UNSUPPORTED_VERSION              permanent group     operator refused
    42 INVALID_REQUEST                  permanent group     caller   refused
    44 POLICY_VIOLATION                 permanent group     operator refused
    56 KAFKA_STORAGE_ERROR              retriable group     broker   unknown
    58 SASL_AUTHENTICATION_FAILED       permanent group     operator refused
    69 GROUP_ID_NOT_FOUND               permanent group     operator refused
    74 FENCED_LEADER_EPOCH              permanent partition caller   refused
    75 UNKNOWN_LEADER_EPOCH             retriable partition broker   refused
    79 MEMBER_ID_REQUIRED               retriable group     operator refused
    81 GROUP_MAX_SIZE_REACHED           permanent group     operator refused
    82 FENCED_INSTANCE_ID               permanent group     operator refused
    88 UNSTABLE_OFFSET_COMMIT           retriable partition broker   refused
    89 THROTTLING_QUOTA_EXCEEDED        retriable group     operator refused
   100 UNKNOWN_TOPIC_ID                 retriable partition caller   refused
   110 FENCED_MEMBER_EPOCH              retriable group     operator refused
   111 UNRELEASED_INSTANCE_ID           retriable group     operator refused
   113 STALE_MEMBER_EPOCH               retriable group     operator refused
   129 REBOOTSTRAP_REQUIRED             retriable group     broker   unknown
  -150 _FATAL                           permanent group     operator unknown
  -155 _UNDERFLOW                       retriable group     broker   unknown
  -165 _UNSUPPORTED_FEATURE             permanent group     operator refused
  -166 _TIMED_OUT_QUEUE                 retriable group     network  unknown
  -169 _AUTHENTICATION                  retriable group     operator unknown
  -180 _WAIT_COORD                      retriable group     broker   unknown
  -181 _SSL                             retriable group     operator unknown
  -185 _TIMED_OUT                       retriable group     network  unknown
  -187 _ALL_BROKERS_DOWN                retriable group     network  unknown
  -188 _UNKNOWN_TOPIC                   retriable partition caller   refused
  -190 _UNKNOWN_PARTITION               retriable partition caller   refused
  -192 _MSG_TIMED_OUT                   retriable group     network  unknown
  -193 _RESOLVE                         retriable group     network  unknown
  -194 _CRIT_SYS_RESOURCE               retriable group     operator unknown
  -195 _TRANSPORT                       retriable group     network  unknown
  -196 _FAIL                            retriable group     network  unknown
  -197 _DESTROY                         permanent group     caller   unknown
  -199 _BAD_MSG                         retriable group     broker   unknown
 32001 OFFSET_CHANGED_EXTERNALLY        permanent partition operator refused
 32003 OFFSET_OUTSIDE_LOG               permanent partition caller   refused
 32004 TOPIC_RECREATED                  permanent partition operator refused
 32005 STORE_FAILED retriable group network unknown
 32006 STORE_REFUSED permanent group operator refused
 32007 GENERATION_FENCED permanent partition operator refused
"""


def row_of(code: int) -> str:
    """The row as the table has it."""
    info = error_info(code)
    again = "retriable" if info.retriable else "permanent"
    means = (again, info.scope.value, info.fault.value, info.verdict.value)
    return " ".join((str(code), info.name, *means))


def test_each_code_means_what_was_thought_out_for_it() -> None:
    """Name, retriable or not, scope, fault and verdict; no row more and none less."""
    golden = [" ".join(line.split()) for line in GOLDEN.strip().splitlines()]
    assert sorted(map(row_of, ERRORS)) == sorted(golden)


def test_a_code_that_no_row_names_is_one_of_the_broker_and_the_group() -> None:
    """It is tried again after a look, and nobody of ours has to act."""
    assert row_of(9999) == "9999 CODE_9999 retriable group broker unknown"
