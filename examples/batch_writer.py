# pip install 'offsetmgr[kafka]'
"""Write the messages of a topic to files in batches, and mark each batch once it is on disk.

A batch that was written and not yet committed is written again after a crash: no message is lost.
Runs until it is stopped (Ctrl-C or SIGTERM), or for ``--records`` messages.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from offsetmgr.consumer import GroupConsumer

if TYPE_CHECKING:
    from confluent_kafka import Message


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--group", default="orders-files")
    parser.add_argument("--folder", type=Path, default=Path("orders-files"))
    parser.add_argument("--records", type=int, help="stop after so many")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    written = 0
    with GroupConsumer(given.bootstrap_servers, given.group, [given.topic]) as consumer:
        for batch in consumer.batches(max_records=1000, max_wait_s=1.0):
            write(given.folder, batch)
            consumer.mark_messages(batch)
            written += len(batch)
            print(f"{written:,} messages written", flush=True)
            if given.records is not None and written >= given.records:
                break


def write(folder: Path, batch: list[Message]) -> None:
    """Put a batch into a file that is there in full or not at all."""
    first = batch[0]
    path = folder / f"{first.topic()}-{first.partition()}-{first.offset():020}.txt"
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        for message in batch:
            file.write((message.value() or b"") + b"\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


if __name__ == "__main__":
    main()
