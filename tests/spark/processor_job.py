"""A driver with a stream processor that runs until it is killed; a process of its own."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from offsetmgr import LocalOffsets
from offsetmgr.streams import codecs, define_group, input, output, persist
from offsetmgr.streams.planning import ProcessorSettings
from offsetmgr.streams.processor import Processor
from tests.spark.support import new_session

if TYPE_CHECKING:
    from offsetmgr.streams import Context, GroupGraph

BATCH = 400


def numbering(group: str, inputs: str, outputs: str) -> GroupGraph:
    """Return a group that numbers the messages of each key, and emits the numbers."""

    def number(context: Context, _value: bytes) -> None:
        count = (context.value() or 0) + 1
        context.set_value(count)
        context.emit(outputs, context.key, count)

    return define_group(
        group,
        input(inputs, codecs.Bytes(), number),
        output(outputs, codecs.Int64()),
        persist(codecs.Int64()),
    )


def main() -> None:
    """Process from the checkpoint on, in small batches."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("brokers", "inputs", "outputs", "group", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path(given.checkpoint).parent) as scratch:
        # A task is tried four times: a Python worker that is killed fails one.
        spark = new_session(
            "local[2,4]",
            Path(scratch),
            {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},
        )
        processor = Processor(
            spark,
            numbering(given.group, given.inputs, given.outputs),
            given.brokers,
            checkpoint=given.checkpoint,
            offsets=LocalOffsets(given.brokers),
            settings=ProcessorSettings(
                missing="earliest", buckets=8, max_offsets_per_trigger=BATCH, record_ids=True
            ),
        )
        processor.run()


if __name__ == "__main__":
    main()
