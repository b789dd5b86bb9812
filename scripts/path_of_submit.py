"""Print the size of the rooms, and the calls of one submit from the user to the acknowledgement.

The submit runs in this process, with the coordinator in memory, on the simulated system: the same
calls in the same order each time.  ``--calls`` lists them.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from actors.testing import SimSystem  # noqa: E402 -- of this tree
from offsetmgr.config import CommitSettings  # noqa: E402
from offsetmgr.coordinator.memory import MemoryCoordinator  # noqa: E402
from offsetmgr.manager import Factory  # noqa: E402

if TYPE_CHECKING:
    from types import FrameType

NOT_OURS = ("actors/testing.py", "offsetmgr/coordinator/memory.py")
"""The simulator, and Kafka's stand-in."""


def calls_of_a_submit() -> list[str]:
    """Return the product's functions in the order of their calls, as ``module:function``."""
    system = SimSystem(0)
    coordinator = MemoryCoordinator(call_after=system.timers.call_after, latency_s=0.01)
    factory = Factory(coordinator, CommitSettings(verify_interval_s=0), system=system)
    handle = factory.spawn("group", "topic", 0)
    handle.submit(1)
    system.advance(120.0)  # the first commit is repeated after a minute
    calls: list[str] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith((f"{ROOT}/actors", f"{ROOT}/offsetmgr")):
            name, function = path.removeprefix(f"{ROOT}/"), frame.f_code.co_name
            if name not in NOT_OURS and not function.endswith(("comp>", "genexpr>")):
                calls.append(f"{name}:{function}")

    sys.setprofile(profile)
    handle.submit(2)
    system.advance(1.1)  # its commit interval and the coordinator's latency
    sys.setprofile(None)
    if handle.status().dirty:
        raise RuntimeError("the submit is not committed within its interval")
    return calls


def main(arguments: list[str]) -> None:
    """Print the figures."""
    total: Counter[str] = Counter()
    for room in ("actors", *sorted(p.name for p in (ROOT / "offsetmgr").iterdir() if p.is_dir())):
        paths = sorted((ROOT / ("" if room == "actors" else "offsetmgr") / room).rglob("*.py"))
        sources = [path.read_text() for path in paths]
        nodes = (node for source in sources for node in ast.walk(ast.parse(source)))
        figures = Counter(
            lines=sum(source.count("\n") for source in sources),
            modules=len(paths),
            classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
        )
        total += figures
        if paths:
            print(f"{room:12}", "  ".join(f"{n:6,} {unit}" for unit, n in figures.items()))
    print("total       ", "  ".join(f"{n:6,} {unit}" for unit, n in total.items()))
    calls = calls_of_a_submit()
    modules = {call.partition(":")[0] for call in calls}
    print(f"one submit in process: {len(calls)} calls in {len(modules)} modules")
    if "--calls" in arguments:
        print(*calls, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
