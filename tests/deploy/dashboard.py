"""Runs the queries of the dashboard and of the alert rules on a real Prometheus.

It scrapes a service that commits to a real Kafka.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx

from benchmarks.service import sidecar
from offsetmgr import OffsetClient
from offsetmgr.devkafka import DevKafka
from offsetmgr.devkafka.cluster import free_ports
from offsetmgr.devkafka.command import create_topic, produce_orders
from tests.deploy.manifests import DEPLOY
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

_GROUP: Final = "orders-etl"
_MAY_BE_EMPTY: Final = "Commits that failed"


@contextmanager
def _prometheus(service: str) -> Iterator[httpx.Client]:
    """Run Prometheus with the files of deploy/, each second instead of each fifteenth."""
    (port,) = free_ports(1)
    config = (DEPLOY / "compose" / "prometheus.yml").read_text()
    rules = DEPLOY / "prometheus" / "offsetmgr.rules.yml"
    for old, new in (
        ("127.0.0.1:8741", service),
        ("15s", "1s"),
        (f"[{rules.name}]", f"[{rules}]"),
    ):
        config = config.replace(old, new)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prometheus.yml"
        file.write_text(config)
        listen = f"--web.listen-address=127.0.0.1:{port}"
        command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder}", listen]
        with (
            subprocess.Popen([*command, "--log.level=error"]) as process,
            httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1/", timeout=60) as client,
        ):
            try:
                yield client
            finally:
                process.terminate()


def _ask(prometheus: httpx.Client, path: str, **params: str) -> Any:
    """Return the data of an answer; None while Prometheus starts."""
    try:
        answer = prometheus.get(path, params=params)
    except httpx.ConnectError:
        return None
    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        return None
    answer.raise_for_status()
    return answer.json()["data"]


def _evaluated(data: Any) -> list[Any]:
    """Return all rules, or nothing while one was not evaluated yet."""
    rules = [rule for group in data["groups"] for rule in group["rules"]]
    return [] if any(rule["health"] == "unknown" for rule in rules) else rules


def main() -> int:
    """Return how many queries and rules ran; raises AssertionError where a panel stays empty."""
    board = json.loads((DEPLOY / "grafana" / "offsetmgr.json").read_text())
    variables = {each["name"]: each["query"] for each in board["templating"]["list"]}
    queries = [
        (panel["title"], each["expr"]) for panel in board["panels"] for each in panel["targets"]
    ]
    with (
        DevKafka() as kafka,
        sidecar(kafka.bootstrap_servers, **{"watch.groups": ".*"}) as service,
        OffsetClient(service.address, name="etl") as client,
        _prometheus(service.address.removeprefix("http://")) as prometheus,
    ):
        create_topic(kafka.bootstrap_servers, "orders", 1)
        manager = client.spawn(_GROUP, "orders", 0)
        offsets = count(1)

        def found(path: str, **params: str) -> Any:
            """Commit one of two new records, so that there are rates and a lag, and ask."""
            produce_orders(kafka.bootstrap_servers, "orders", 1, 2)
            manager.submit(next(offsets))
            return _ask(prometheus, path, **params)

        def values(query: str) -> Any:
            """Return the values that Grafana would offer for a variable."""
            ((series, label),) = re.findall(r"label_values\((.+), (\w+)\)", query)
            return until(lambda: found(f"label/{label}/values", **{"match[]": series}))

        def result(query: str) -> Any:
            expression = query.replace("$cluster", cluster).replace("$group", _GROUP)
            return found("query", query=expression)["result"]

        (cluster,) = values(variables["cluster"])
        assert values(variables["group"].replace("$cluster", cluster)) == [_GROUP]
        for title, query in queries:
            assert title == _MAY_BE_EMPTY or until(partial(result, query))
            result(query)
        rules = until(lambda: _evaluated(_ask(prometheus, "rules")))
        assert all(rule["health"] == "ok" for rule in rules), rules
    return len(queries) + len(rules)
