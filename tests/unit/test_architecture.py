"""The packages and the direction of their imports, as DESIGN.md lists them."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

ROOT = Path(__file__).parents[2]

VALUES = {"types", "errors", "codes", "config", "answers"}
VALUES |= {"text", "repeats", "backoff", "deadlines", "extras", "mailboxes", "logs", "workers"}
"""They need the standard library alone; every package may import them."""

ARROWS: dict[str, set[str]] = {
    "types": {"errors"},
    "errors": {"codes", "text"},
    "codes": set(),
    "config": {"errors"},
    "answers": {"codes", "types"},
    "text": set(),
    "repeats": set(),
    "backoff": set(),
    "deadlines": {"types"},
    "extras": set(),
    "mailboxes": {"types", "errors"},
    "logs": set(),
    "workers": {"errors", "backoff", "logs"},
    "acked_ranges": {"types"},
    "retry_headers": {"types", "errors", "text"},
    "kafka": VALUES | {"actors"},
    "coordinator": VALUES | {"kafka", "actors"},
    "lag": VALUES | {"acked_ranges", "kafka", "stores"},
    "admin": VALUES | {"kafka", "lag", "client", "spark", "stores", "actors"},
    "manager": VALUES | {"backoff", "coordinator", "actors"},
    "service": VALUES
    | {"http", "kafka", "coordinator", "manager", "actors", "lag", "admin", "stores", "streams"}
    | {"client", "local", "spark"},
    "client": VALUES,
    "stores": VALUES | {"kafka", "coordinator", "actors", "client"},
    "consumer": VALUES | {"acked_ranges", "retry_headers", "kafka", "client", "stores"},
    "streams": VALUES | {"http", "retry_headers", "kafka", "client", "spark"},
    "clusters": VALUES | {"consumer", "kafka", "stores"},
    "spark": VALUES | {"client"},
    "http": VALUES,
    "local": VALUES | {"coordinator", "manager", "client", "actors", "stores"},
    "devkafka": VALUES,
    "demo": VALUES | {"client", "spark", "devkafka"},
    "cli": VALUES
    | {"kafka", "lag", "admin", "consumer", "service", "client", "local", "spark", "devkafka"}
    | {"http", "demo", "clusters", "stores", "streams"},
}
"""The packages that each package may import; every package is listed."""

STANDARD_LIBRARY_ONLY = (*sorted(VALUES), "acked_ranges", "retry_headers", "client")


def _package(path: Path) -> str:
    parts = path.relative_to(ROOT / "offsetmgr").parts
    return parts[0].removesuffix(".py")


@cache
def _import_nodes(path: Path) -> list[ast.Import | ast.ImportFrom]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in _import_nodes(path):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif node.module and not node.level:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def _sources(package: str) -> list[Path]:
    base = ROOT / "offsetmgr" / package
    return sorted(base.rglob("*.py")) if base.is_dir() else [base.with_suffix(".py")]


def _packages_of(path: Path) -> set[str]:
    packages = set()
    for name in _imports(path):
        parts = name.split(".")
        if parts[0] == "actors":
            packages.add("actors")
        elif parts[0] == "offsetmgr" and len(parts) > 1 and parts[1] in ARROWS:
            packages.add(parts[1])
    return packages - {_package(path)}


def test_every_package_is_listed() -> None:
    """A new package must declare its imports."""
    here = {
        p.name.removesuffix(".py")
        for p in (ROOT / "offsetmgr").iterdir()
        if (p.is_dir() and any(p.glob("*.py"))) or p.suffix == ".py"
    }
    assert here - {"__init__", "__main__"} == set(ARROWS)


@pytest.mark.parametrize("package", sorted(ARROWS))
def test_imports_point_one_way(package: str) -> None:
    """No package imports one that ``ARROWS`` does not allow."""
    wrong = {
        f"{path.relative_to(ROOT)} imports {target}"
        for path in _sources(package)
        for target in _packages_of(path) - ARROWS[package]
    }
    assert not wrong


def test_no_two_modules_import_each_other() -> None:
    """Not even for types: each module can be read, and tested, before those that import it."""
    base = ROOT / "offsetmgr"
    paths = {
        ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__"): path
        for path in base.rglob("*.py")
    }
    imports = {name: _modules_of(path, paths.keys() - {name}) for name, path in paths.items()}
    circles = {name for name in paths if name in _reached(imports, name)}
    assert not circles


def _modules_of(path: Path, modules: Collection[str]) -> set[str]:
    """Return the modules of the product that a file imports, or imports a name from."""
    found = set()
    for node in _import_nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("offsetmgr"):
            package = (node.module or "").removeprefix("offsetmgr").removeprefix(".")
            for alias in node.names:
                name = f"{package}.{alias.name}".removeprefix(".")
                found.add(name if name in modules else package)
    return found & set(modules)


def _reached(imports: Mapping[str, set[str]], start: str) -> set[str]:
    """Return all modules that importing ``start`` imports, with ``start`` itself in a circle."""
    reached: set[str] = set()
    pending = [start]
    while pending:
        new = imports[pending.pop()] - reached
        reached |= new
        pending += new
    return reached


def test_actors_know_nothing_of_the_product() -> None:
    """The actor runtime could serve any other program."""
    sources = sorted((ROOT / "actors").rglob("*.py"))
    assert sources
    wrong = [p.name for p in sources for name in _imports(p) if name.startswith("offsetmgr")]
    assert not wrong


@pytest.mark.parametrize("package", STANDARD_LIBRARY_ONLY)
def test_a_driver_needs_the_standard_library_alone(package: str) -> None:
    """The thin client enters any Spark driver without a dependency."""
    allowed = sys.stdlib_module_names | {"offsetmgr", "__future__", "typing_extensions"}
    foreign = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in _sources(package)
        for name in _imports(path)
        if name.split(".")[0] not in allowed
    }
    assert not foreign


@pytest.mark.parametrize("folder", ["actors", "offsetmgr/manager", "offsetmgr/coordinator"])
@pytest.mark.fault(19)
def test_the_core_reads_no_wall_clock_and_never_sleeps(folder: str) -> None:
    """Time is injected, so that a seed replays any run; ``MonotonicClock`` alone reads it."""
    calls = {
        f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"time.time", "time.sleep", "time.time_ns", "datetime.now"}
    }
    assert not calls


def test_all_rooms_log_through_the_safe_logger() -> None:
    """A handler or filter of the application that raises must not end a thread of the product."""
    wrong = {
        path.relative_to(ROOT)
        for path in sorted((ROOT / "offsetmgr").rglob("*.py"))
        if "structlog" in _imports(path) or "= logging.getLogger(" in path.read_text()
    }
    allowed = ("offsetmgr/logs.py", "offsetmgr/service/logs.py")
    assert wrong == set(map(Path, allowed))


def test_files_stay_readable() -> None:
    """A file is one idea and fits a sitting: at most 800 lines."""
    long = {
        f"{path.relative_to(ROOT)}: {lines}"
        for folder in ("actors", "offsetmgr", "tests", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (lines := len(path.read_text().splitlines())) > 800
    }
    assert not long
