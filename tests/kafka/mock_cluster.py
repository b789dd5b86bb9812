"""librdkafka's mock cluster, driven through ctypes: faults that a real broker makes no offer of.

It serves metadata, commits, fetches of committed offsets and coordinator look-ups to ordinary
clients of this or any other process; it does not serve descriptions of groups, topics or itself.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Final

import confluent_kafka

if TYPE_CHECKING:
    from typing_extensions import Self

LIST_OFFSETS: Final = 2
"""Kafka's API key of the ListOffsets request."""

OFFSET_COMMIT: Final = 8
"""Of the OffsetCommit request."""

OFFSET_FETCH: Final = 9
"""Of the OffsetFetch request."""

_PRODUCER: Final = 0
_ERROR_CHARS: Final = 512


def _library() -> ctypes.CDLL:
    """Open the librdkafka inside confluent-kafka's wheel, already loaded into this process."""
    package = Path(confluent_kafka.__file__).parent
    (path,) = (package.parent / "confluent_kafka.libs").glob("librdkafka*.so*")
    library = ctypes.CDLL(str(path))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32
    library.rd_kafka_conf_new.restype = pointer
    library.rd_kafka_new.argtypes = [ctypes.c_int, pointer, text, ctypes.c_size_t]
    library.rd_kafka_new.restype = pointer
    library.rd_kafka_destroy.argtypes = [pointer]
    library.rd_kafka_mock_cluster_new.argtypes = [pointer, ctypes.c_int]
    library.rd_kafka_mock_cluster_new.restype = pointer
    library.rd_kafka_mock_cluster_destroy.argtypes = [pointer]
    library.rd_kafka_mock_cluster_bootstraps.argtypes = [pointer]
    library.rd_kafka_mock_cluster_bootstraps.restype = text
    library.rd_kafka_mock_topic_create.argtypes = [pointer, text, ctypes.c_int, ctypes.c_int]
    library.rd_kafka_mock_partition_set_leader.argtypes = [pointer, text, number, number]
    library.rd_kafka_mock_coordinator_set.argtypes = [pointer, text, text, number]
    library.rd_kafka_mock_broker_set_rtt.argtypes = [pointer, number, ctypes.c_int]
    library.rd_kafka_mock_broker_set_down.argtypes = [pointer, number]
    library.rd_kafka_mock_broker_set_up.argtypes = [pointer, number]
    library.rd_kafka_mock_push_request_errors_array.argtypes = [
        pointer,
        ctypes.c_int16,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_int),
    ]
    library.rd_kafka_mock_push_request_errors_array.restype = None
    library.rd_kafka_mock_broker_set_host_port.argtypes = [pointer, number, text, ctypes.c_int]
    library.rd_kafka_mock_start_request_tracking.argtypes = [pointer]
    requests, size = ctypes.POINTER(pointer), ctypes.c_size_t
    library.rd_kafka_mock_get_requests.argtypes = [pointer, ctypes.POINTER(size)]
    library.rd_kafka_mock_get_requests.restype = requests
    library.rd_kafka_mock_request_api_key.argtypes = [pointer]
    library.rd_kafka_mock_request_api_key.restype = ctypes.c_int16
    library.rd_kafka_mock_request_destroy_array.argtypes = [requests, size]
    return library


class MockCluster:
    """Some mock brokers, numbered from 1; stopped on leaving the ``with`` block."""

    def __init__(self, brokers: int = 1) -> None:
        self._library = _library()
        error = ctypes.create_string_buffer(_ERROR_CHARS)
        conf = self._library.rd_kafka_conf_new()
        self._owner = self._library.rd_kafka_new(_PRODUCER, conf, error, _ERROR_CHARS)
        if not self._owner:
            raise RuntimeError(f"no mock cluster: {error.value.decode()}")
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._owner, brokers)
        self._library.rd_kafka_mock_start_request_tracking(self._cluster)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._owner)

    @property
    def bootstrap_servers(self) -> str:
        found: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return found.decode()

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)

    def set_leader(self, topic: str, broker: int) -> None:
        """Let ``broker`` lead partition 0 from now on, in the next leader epoch."""
        self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), 0, broker)

    def set_coordinator(self, group: str, broker: int) -> None:
        """Let ``broker`` be the coordinator of ``group`` from now on."""
        self._library.rd_kafka_mock_coordinator_set(self._cluster, b"group", group.encode(), broker)

    def push_errors(self, api: int, *codes: int) -> None:
        """Answer the next requests of kind ``api`` with ``codes``, in order."""
        array = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, api, len(codes), array)

    def count(self, api: int) -> int:
        """The number of requests of kind ``api`` so far."""
        size = ctypes.c_size_t()
        requests = self._library.rd_kafka_mock_get_requests(self._cluster, ctypes.byref(size))
        try:
            keys = [
                self._library.rd_kafka_mock_request_api_key(requests[n]) for n in range(size.value)
            ]
        finally:
            self._library.rd_kafka_mock_request_destroy_array(requests, size)
        return keys.count(api)

    def advertise(self, host: str, port: int, broker: int = 1) -> None:
        """Tell clients that ``broker`` is to be found at ``host`` and ``port``."""
        self._library.rd_kafka_mock_broker_set_host_port(self._cluster, broker, host.encode(), port)

    def set_round_trip(self, rtt_ms: int, broker: int = -1) -> None:
        """Delay every answer of ``broker`` (all where -1) by ``rtt_ms`` milliseconds."""
        self._library.rd_kafka_mock_broker_set_rtt(self._cluster, broker, rtt_ms)

    def set_down(self, broker: int) -> None:
        """Take ``broker`` down: its connections end and new ones are refused."""
        self._library.rd_kafka_mock_broker_set_down(self._cluster, broker)

    def set_up(self, broker: int) -> None:
        self._library.rd_kafka_mock_broker_set_up(self._cluster, broker)
