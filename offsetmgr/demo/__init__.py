"""``offsetmgr demo``: the whole product on one machine, with every claim checked."""

from __future__ import annotations

from offsetmgr.demo.run import run

__all__ = ["run"]
