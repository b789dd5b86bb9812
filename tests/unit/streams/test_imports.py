"""The extras hold what the documentation says, in environments that have nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsetmgr import streams

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[3]
TOOLS = ROOT / "pyproject.toml"


def required(names: Iterable[str]) -> Iterator[str]:
    """Yield distributions and all that they require, without extras."""
    waiting, seen = list(names), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            needs = distribution(name).requires or []
        except PackageNotFoundError:
            continue  # of another release of Python
        yield name
        waiting += [re.split(r"[^\w.-]", need)[0] for need in needs if "extra ==" not in need]


def extra(name: str) -> list[str]:
    """Return the distributions of an extra of this project."""
    text = TOOLS.read_text()
    (block,) = re.findall(rf"^{name} = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    return re.findall(r'^\s*"([\w-]+)', block, re.MULTILINE)


TESTER = """
from offsetmgr.streams import *

def count(ctx, value):
    ctx.set_value((ctx.value() or 0) + 1)

graph = define_group("g", input("in", codecs.Json(), count), persist(codecs.Int64()))
tester = Tester()
tester.add_processor(graph)
tester.consume("in", "k", {"a": 1})
print(tester.table_value("g-table", "k"))
"""

STORE = """
import tempfile
from offsetmgr.streams import LmdbStorage, codecs
with tempfile.TemporaryDirectory() as path:
    store = LmdbStorage(path)
    store.open("prices", "")
    store.apply({b"k": b"7"}, {0: 0})
    store.close()
    from offsetmgr.streams import ViewReader
    print(ViewReader(path, codecs.Int64()).get("k"))
"""

WORKER = """
import pandas as pd
from offsetmgr.streams import buckets, codecs, define_group, input, output
from offsetmgr.streams.engine import Engine

def keep(ctx, value):
    if value != "drop":
        ctx.emit("out", ctx.key, value)

def frame(value):
    row = [(0, 0, 0, 1, b"k", value, None)]
    return pd.DataFrame(row, columns=buckets.INPUT_COLUMNS)

graph = define_group("g", input("in", codecs.String(), keep), output("out", codecs.String()))
plan = buckets.Plan(
    Engine(graph), 0, [buckets.Source("stream", "in")], {}, ["out", "dead"], {"out": 3, "dead": 1},
    {}, {}, "dead", True, 1, 1.0,
)
for value in (b"drop", b"kept", b"\\xff"):
    print([frame["value"].tolist() for frame in buckets.process_stateless(plan, [frame(value)])])

import fcntl
from offsetmgr.streams import LmdbStorage
from offsetmgr.streams.lookups import rows_of

store = LmdbStorage("view")
store.open("prices", "")
store.apply({b"k": b"7"}, {0: 0})
store.note_seen(1.0)
store.close()
with open("view/view.lock") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)  # as a view in another process
    print(rows_of({}, "prices", "view").get(b"k"))
assert "confluent_kafka" not in sys.modules
"""


@pytest.mark.parametrize(
    ("extras", "script", "out"),
    [
        (["streams"], TESTER + STORE, "1\n7\n"),
        (["streams", "spark"], WORKER, "[]\n[[b'kept']]\n[[b'\\xff']]\nb'7'\n"),
    ],
    ids=["laptop", "worker"],
)
def test_a_script_needs_this_project_and_the_extras_alone(
    extras: list[str], script: str, out: str, tmp_path: Path
) -> None:
    """On a laptop; in a task of Spark dead letters and lookups in a view's store included.

    Other lookups need Kafka's client.
    """
    (tmp_path / "offsetmgr").symlink_to(ROOT / "offsetmgr")
    for name in required(package for group in extras for package in extra(group)):
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            link = tmp_path / top
            if not link.exists() and top != "__pycache__":
                link.symlink_to(Path(str(found.locate_file(top))))
    script = f"import sys; sys.path.append({str(tmp_path)!r})\n{script}"
    command = [sys.executable, "-I", "-S", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, out), done.stderr


def test_the_package_exports_its_public_names() -> None:
    """Each name exists; another one is an ordinary AttributeError."""
    names = {"Processor", "ProcessorSettings", "RegistryCodec", "TopicManager", "kafka_emitter"}
    names |= {"View", "ViewReader", *streams.__all__}
    assert names <= set(dir(streams))
    assert all(getattr(streams, name) for name in names)
    with pytest.raises(AttributeError, match="nonsense"):
        streams.nonsense  # noqa: B018
