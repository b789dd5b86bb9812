"""Makes the reference pages of the documentation out of the code."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
import time
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from pkgutil import resolve_name
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
"""Packages with public names, in the order of the reference."""
MORE: Final = {
    "offsetmgr.manager": ("config.CommitSettings", "coordinator.kafka.KafkaCoordinator"),
    "offsetmgr.stores": (
        "stores.sql.SqlOffsetStore",
        "stores.sql.OffsetTransaction",
        "stores.broker.BrokerOffsetStore",
    ),
    "offsetmgr.streams": (
        *(f"streams.codecs.{name}" for name in ("Bytes", "String", "Int64", "Json", "MsgPack")),
        "streams.partition_table.PartitionStats",
        "streams.partition_table.TableState",
        "streams.storage.Storage",
        "streams.tester.TesterProcessor",
    ),
}
"""Public names of modules inside a package, without ``offsetmgr.``."""


def write(folder: Path) -> None:
    """Write the pages into ``folder``."""
    folder.mkdir(exist_ok=True)
    service = _service()
    for name, text in (
        ("commands", _commands()),
        ("settings", _settings()),
        ("metrics", _metrics(service)),
        ("http", _http(service)),
        *((package, _python(package)) for package in PACKAGES),
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


def public_names(package: str) -> list[str]:
    """Return the full names of a package's public classes, functions and data, sorted."""
    module = importlib.import_module(package)
    names = {*module.__all__, *getattr(module, "_LAZY", ())}
    own = [f"{package}.{name}" for name in names if not inspect.ismodule(getattr(module, name))]
    more = [f"offsetmgr.{name}" for name in MORE.get(package, ())]
    return sorted(own + more, key=lambda name: name.rpartition(".")[2].lower())


def settings_of(package: str) -> dict[str, list[tuple[str, object]]]:
    """Return the settings of a package's classes of settings, each with its default."""
    classes = [value for name in public_names(package) if is_dataclass(value := resolve_name(name))]
    return {
        each.__name__: [
            (field.name, _default(field)) for field in fields(each) if has_default(field)
        ]
        for each in classes
        if isinstance(each, type) and each.__name__.endswith(("Settings", "Policy"))
    }


def has_default(field: Field[Any]) -> bool:
    """Return True if a setting may be left out."""
    return field.default is not MISSING or field.default_factory is not MISSING


def _default(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _python(package: str) -> str:
    names = public_names(package)
    values = {name: resolve_name(name) for name in names}
    rows = [(f"[`{name.rpartition('.')[2]}`](#{name})", _purpose(values[name])) for name in names]
    lines = [f"# {package}", PACKAGES[package], *_table(("name", "purpose"), rows)]
    for settings, defaulted in settings_of(package).items():
        shown = [(f"`{name}`", f"`{default!r}`") for name, default in defaulted]
        lines += [f"## Defaults of {settings}", *_table(("setting", "default"), shown)]
    lines += ["## Names", "```{eval-rst}"]
    for name, value in values.items():
        kind = "class" if isinstance(value, type) else "function" if callable(value) else "data"
        lines += [f".. auto{kind}:: {name}", ""]
    return "\n".join([*lines, "```"])


def _purpose(value: object) -> str:
    is_described = isinstance(value, type) or callable(value)
    first = (inspect.getdoc(value) or "").partition("\n\n")[0] if is_described else ""
    return first.replace("``", "`")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [[text.replace("|", "\\|").replace("\n", " ") for text in row] for row in rows]
    if not cells:
        return []
    lines = [" | ".join(row) for row in [heads, ["---"] * len(heads), *cells]]
    return ["", *(f"| {line} |" for line in lines), ""]
