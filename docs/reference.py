"""Makes the reference pages of the documentation out of the code."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from actors import ActorSystem
from offsetmgr.coordinator.memory import MemoryCoordinator
from offsetmgr.service import version
from offsetmgr.service.openapi import document
from offsetmgr.service.run import Assembly
from offsetmgr.service.settings import Settings, defaults, load

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = {
    "offsetmgr": "The client, in-process offsets, values and errors.",
    "offsetmgr.spark": "Spark jobs.",
    "offsetmgr.manager": "Managers in process.",
    "offsetmgr.consumer": "Consumers with marks and acks.",
    "offsetmgr.stores": "Offset stores.",
    "offsetmgr.clusters": "Several clusters.",
    "offsetmgr.streams": "Stateful processors, views and emitters.",
}
"""Packages with public names (``__all__``), in the order of the reference."""


def write(folder: Path) -> None:
    """Write the pages into ``folder``."""
    folder.mkdir(exist_ok=True)
    service = _service()
    for name, text in (
        ("commands", _commands()),
        ("settings", _settings()),
        ("metrics", _metrics(service)),
        ("http", _http(service)),
        ("python", _python()),
    ):
        (folder / f"{name}.md").write_text(text)


def _service() -> Assembly:
    settings = load(None, {}, {"kafka.bootstrap.servers": ("memory:1", "docs")})
    with ActorSystem() as system:
        coordinator = MemoryCoordinator(call_after=system.timers.call_after)
        return Assembly(settings, coordinator, system, wall=time.time)


def _commands() -> str:
    command = [sys.executable, "-m", "typer", "offsetmgr.cli.app", "utils", "docs"]
    command += ["--name", "offsetmgr", "--title", "Commands"]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def _settings() -> str:
    _, components = msgspec.json.schema_components([Settings], ref_template="{name}")

    def row(name: str, default: object) -> tuple[str, ...]:
        section, _, field = name.rpartition(".")
        kind = components["Settings"]["properties"][section or field]
        if section:
            kind = components[kind.get("$ref") or kind["anyOf"][0]["$ref"]]["properties"][field]
        return f"`{name}`", _values(kind), f"`{json.dumps(default)}`"

    rows = [row(name, default) for name, default in defaults().items()]
    explained = (ROOT / "deploy" / "offsetmgr.toml").read_text()
    return "\n".join(
        [
            "# Settings",
            "Of these the later ones win: the TOML file; the environment, as in",
            "`OFFSETMGR_COMMIT__COMMIT_INTERVAL_S`; `--set commit.commit_interval_s=0.5`.",
            *_table(("setting", "values", "default"), rows),
            "## The file, with every setting at its default",
            f"```toml\n{explained}```",
        ]
    )


def _values(kind: Mapping[str, Any]) -> str:
    """Return which values a JSON schema permits, in words."""
    if "enum" in kind:
        return ", ".join(f"`{each}`" for each in kind["enum"])
    if "anyOf" in kind:
        return " or ".join(_values(each) for each in kind["anyOf"])
    names = {"string": "text", "integer": "whole number", "boolean": "true or false"}
    text: str = names.get(kind.get("type", ""), kind.get("type", "any"))
    if kind.get("type") in {"integer", "number"}:
        for word, limit in (
            ("above", kind.get("exclusiveMinimum")),
            ("from", kind.get("minimum")),
            ("to", kind.get("maximum")),
        ):
            text += "" if limit is None else f", {word} {limit:,}"
    return text


def _metrics(service: Assembly) -> str:
    rows = [
        (f"`{each.name}{'_total' * (each.type == 'counter')}`", each.type, each.documentation)
        for each in sorted(service.metrics.registry.collect(), key=lambda family: family.name)
    ]
    watched = "Those of watched groups are in [Running the service](../operator.md#watch-groups)."
    return "\n".join(["# Metrics", watched, *_table(("metric", "type", "meaning"), rows)])


def _http(service: Assembly) -> str:
    described = document(version(), service.app.operations)
    lines = ["# HTTP operations", "The service describes them itself, at `/openapi.json`."]
    for path, methods in sorted(described["paths"].items()):
        for method, each in methods.items():
            lines += [f"## {method.upper()} {path}", f"{each['summary']}."]
            parameters = [
                (f"`{one['name']}`", one["in"], one.get("description", ""))
                for one in each.get("parameters", ())
            ]
            schemas = described["components"]["schemas"]
            lines += _table(("parameter", "in", "meaning"), parameters)
            body = each.get("requestBody", {}).get("content", {}).get("application/json", {})
            lines += _fields("field of the body", body.get("schema", {}), schemas)
            success = each["responses"]["200"]["content"].get("application/json", {})
            lines += _fields("field of the answer", success.get("schema", {}), schemas)
            lines.append(f"Statuses: {', '.join(sorted(each['responses']))}.")
    return "\n".join(lines)


def _fields(title: str, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> list[str]:
    found = schemas.get(schema.get("$ref", "").rpartition("/")[2], {})
    rows = [
        (f"`{name}`", _json_type(kind), kind.get("description", ""))
        for name, kind in found.get("properties", {}).items()
    ]
    return _table((title, "type", "meaning"), rows)


def _json_type(kind: Mapping[str, Any]) -> str:
    if "$ref" in kind:
        return str(kind["$ref"].rpartition("/")[2])
    if "anyOf" in kind:
        return " or ".join(_json_type(each) for each in kind["anyOf"])
    if kind.get("type") == "array":
        return f"list of {_json_type(kind['items'])}"
    return str(kind.get("type", "any"))


def _python() -> str:
    lines = ["# Python"]
    for package, text in PACKAGES.items():
        lines += [f"## {package}", text, "```{eval-rst}"]
        module = importlib.import_module(package)
        for name in sorted(module.__all__, key=str.lower):
            value = getattr(module, name)
            kind = "function" if callable(value) else "data"
            kind = "class" if isinstance(value, type) else kind
            lines += [f".. auto{kind}:: {package}.{name}"]
        lines.append("```")
    return "\n\n".join(lines)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [[text.replace("|", "\\|").replace("\n", " ") for text in row] for row in rows]
    if not cells:
        return []
    lines = [" | ".join(row) for row in [heads, ["---"] * len(heads), *cells]]
    return ["", *(f"| {line} |" for line in lines), ""]
