"""A job for ``test_kills.py``: commits rising offsets and prints each once it is acknowledged.

Arguments: the service's address, group, topic, first offset.  Runs until it is killed.
"""

from __future__ import annotations

import itertools
import sys

from offsetmgr import OffsetClient


def main(address: str, group: str, topic: str, first: str) -> None:
    """Submit for ever."""
    client = OffsetClient(address, name=group)
    for offset in itertools.count(int(first)):
        client.submit(group, {(topic, 0): offset}, sync=True, timeout=60)
        sys.stdout.write(f"{offset}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
