"""Readers and writers over several Kafka clusters."""

from offsetmgr.extras import naming_extra

with naming_extra(__name__):
    from offsetmgr.clusters.reader import (
        ClusterMessage,
        MultiClusterAckConsumer,
        MultiClusterReader,
        ReaderStats,
    )
    from offsetmgr.clusters.writer import (
        MultiClusterWriter,
        ProducerRecord,
        WriteErrors,
        WriterSettings,
        WriterStats,
    )

__all__ = [
    "ClusterMessage",
    "MultiClusterAckConsumer",
    "MultiClusterReader",
    "MultiClusterWriter",
    "ProducerRecord",
    "ReaderStats",
    "WriteErrors",
    "WriterSettings",
    "WriterStats",
]
