"""Runs the whole service around a coordinator in memory, for tests of the process itself.

Arguments are settings (``listen=127.0.0.1:0``; ``listen=`` leaves it to the file).  ``stalled``
makes a coordinator that never answers, as with all brokers down.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2]))

from offsetmgr.coordinator.memory import MemoryCoordinator
from offsetmgr.service import logs
from offsetmgr.service.run import run
from offsetmgr.service.settings import Found, Settings, load

if TYPE_CHECKING:
    from actors import ActorSystem


def main(arguments: list[str]) -> int:
    flags: Found = {
        "kafka.bootstrap.servers": ("memory:1", "test"),
        "listen": ("127.0.0.1:0", "test"),
    }
    for each in arguments:
        name, equals, value = each.partition("=")
        if equals and value:
            flags[name] = (value, "test")
        elif equals:
            flags.pop(name, None)

    def reload() -> Settings:
        return load(None, os.environ, flags)

    def connect(system: ActorSystem) -> MemoryCoordinator:
        made = MemoryCoordinator(call_after=system.timers.call_after)
        if "stalled" in arguments:
            made.pause()
        return made

    settings = reload()
    return run(settings, logs.set_up(settings.log_level), reload, connect)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
