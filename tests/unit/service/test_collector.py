"""The garbage collector's pace in the service."""

from __future__ import annotations

import gc
import subprocess
import sys

ASK = """
import gc
from offsetmgr.service.collector import spare_the_collector
spare_the_collector()
print(gc.get_threshold()[0], gc.get_freeze_count() > 1_000, gc.isenabled())
"""


def test_it_looks_more_rarely_and_never_at_what_was_loaded() -> None:
    """In a process of its own: this one goes on as it is."""
    done = subprocess.run(
        [sys.executable, "-c", ASK], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["100000", "True", "True"]
    assert gc.get_freeze_count() == 0
