"""The configuration file that is shipped."""

from __future__ import annotations

from pathlib import Path

from offsetmgr.service.settings import _KNOWN, Settings, from_toml, load

DEFAULTS = Path(__file__).parents[3] / "deploy" / "offsetmgr.toml"


def test_the_shipped_file_names_every_setting_at_its_default() -> None:
    """Who reads it knows what there is to set, and what happens where nothing is said."""
    shown = {name for name in from_toml(DEFAULTS) if not name.startswith("kafka.")}
    assert shown == set(_KNOWN)
    loaded = load(DEFAULTS, {}, {})
    assert loaded == Settings(kafka=loaded.kafka)
