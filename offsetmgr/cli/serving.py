"""The commands ``serve`` and ``config check``."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from offsetmgr.service import logs
from offsetmgr.service.settings import Found, load


def serve(config: Path | None, flags: Found) -> int:
    """Run the service; the process's exit status."""
    settings = load(config, os.environ, flags)
    log_output = logs.set_up(settings.log_level)

    from offsetmgr.service.run import over_kafka, run  # noqa: PLC0415 -- not for `config check`

    return run(settings, log_output, lambda: load(config, os.environ, flags), over_kafka(settings))


def show(config: Path | None, flags: Found) -> None:
    """Print the settings as they would be used."""
    settings = load(config, os.environ, flags)
    table = Table("setting", "value", box=None, header_style="bold")
    table.add_row("listen", str(settings.listen))
    for name in ("log_level", "cluster_name", "lease_s", "stop_timeout_s", "fence"):
        table.add_row(name, _shown(getattr(settings, name)))
    for section in ("commit", "limits"):
        for name, value in asdict(getattr(settings, section)).items():
            table.add_row(f"{section}.{name}", _shown(value))
    for name, value in sorted(settings.kafka.masked().items()):
        table.add_row(f"kafka.{name}", _shown(value))
    Console(soft_wrap=True).print(table, markup=False, highlight=False)


def _shown(value: object) -> str:
    return logs.visible(str(value))
