"""The alert rules and the dashboard in deploy/."""

from __future__ import annotations

import json
from pathlib import Path

import promql_parser
import pytest
import yaml

_DEPLOY = Path(__file__).parents[2] / "deploy"
_RULES = yaml.safe_load((_DEPLOY / "prometheus" / "offsetmgr.rules.yml").read_text())
_BOARD = json.loads((_DEPLOY / "grafana" / "offsetmgr.json").read_text())
_QUERIES = [
    *(rule["expr"] for group in _RULES["groups"] for rule in group["rules"]),
    *(target["expr"] for panel in _BOARD["panels"] for target in panel["targets"]),
]


@pytest.mark.parametrize("query", _QUERIES)
def test_queries_are_valid(query: str) -> None:
    """Each query is valid PromQL, with the types of functions and operators."""
    promql_parser.parse(query)  # raises ValueError
