"""``python view_process.py BROKERS TOPIC PATH``: a view that says when it starts and runs."""

from __future__ import annotations

import sys
import threading

from offsetmgr.streams import codecs
from offsetmgr.streams.view import View

if __name__ == "__main__":
    view = View(sys.argv[1], sys.argv[2], codecs.Int64(), sys.argv[3])
    view.observe(lambda state: print(state.name.lower(), flush=True))  # noqa: T201
    view.start()
    threading.Event().wait()
