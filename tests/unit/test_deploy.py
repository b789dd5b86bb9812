"""The files in deploy/ are valid for the tools that read them, and leave a stop time to commit."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import promql_parser
import pytest
import yaml

from offsetmgr.cli.common import ServiceOptions
from offsetmgr.http.address import Address
from offsetmgr.service.settings import defaults, load
from tests.deploy.check import run
from tests.deploy.manifests import CHART, DEPLOY, ROOT, manifests, troubles

_RULES = yaml.safe_load((DEPLOY / "prometheus" / "offsetmgr.rules.yml").read_text())
_BOARD = json.loads((DEPLOY / "grafana" / "offsetmgr.json").read_text())
_ALERTS = [rule for group in _RULES["groups"] for rule in group["rules"]]
_QUERIES = [
    *(rule["expr"] for rule in _ALERTS),
    *(target["expr"] for panel in _BOARD["panels"] for target in panel["targets"]),
]
_RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
_REPOSITORY = "https://github.com/offsetmgr/offsetmgr"
_SYSTEMD = DEPLOY / "systemd"
_COMPOSE = DEPLOY / "compose" / "compose.yaml"
_SHOP = ROOT / "examples" / "shop" / "compose.yaml"
_KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))

STOP_S = float(str(defaults()["stop_timeout_s"]))

_HARDENED = 2.0
"""Exposure by systemd's own measure, from 0 to 10; it calls less than 2 safe."""


def installed(name: str) -> str:
    """Return a tool's path next to this Python; pip has put it there."""
    return str(Path(sys.executable).parent / name)


@pytest.mark.parametrize("query", _QUERIES)
def test_queries_are_valid(query: str) -> None:
    """Each query is valid PromQL, with the types of functions and operators."""
    promql_parser.parse(query)  # raises ValueError


@pytest.mark.parametrize("rule", _ALERTS, ids=lambda rule: rule["alert"])
def test_alerts_link_to_their_sections_of_the_runbook(rule: dict[str, Any]) -> None:
    """Each section says what the alert means, what to look at, and when to wake somebody."""
    url, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert url == f"{_REPOSITORY}/blob/main/docs/runbook.md"
    assert anchor == rule["alert"].lower()
    _, _, section = _RUNBOOK.partition(f"\n## {rule['alert']}\n")
    section = section.partition("\n## ")[0]
    for part in ("**Meaning:**", "**Look ", "**Do", "**Wake "):
        assert part in section, part
    severity = rule["labels"]["severity"]
    assert re.search(rf"^\| {severity} \|.*\b{rule['alert']}\b", _RUNBOOK, re.MULTILINE)


def test_prometheus_finds_its_rules_and_the_service() -> None:
    """``make deploy-check`` has Prometheus' own tool read the file."""
    settings = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())
    assert all((DEPLOY / "prometheus" / name).exists() for name in settings["rule_files"])
    (job,) = settings["scrape_configs"]
    (targets,) = (each["targets"] for each in job["static_configs"])
    assert targets == [str(defaults()["listen"])]


def test_systemd_takes_its_units_and_finds_little_exposed(tmp_path: Path) -> None:
    """Without a warning; the measure is what a unit may do to the machine."""
    for each in _SYSTEMD.iterdir():  # as if the service were installed
        text = each.read_text().replace("/opt/offsetmgr/bin/offsetmgr", sys.executable)
        (tmp_path / each.name).write_text(text)
    unit = tmp_path / "offsetmgr.service"
    assert run("systemd-analyze", "verify", "--man=no", unit) == ""
    shown = run("systemd-analyze", "security", "--offline=yes", "--no-pager", unit)
    level = re.search(r"exposure level for .*: ([\d.]+)", shown)
    assert level, shown
    assert float(level[1]) < _HARDENED, shown


def test_systemd_gives_a_stop_time_to_commit_and_the_socket_that_is_named() -> None:
    """More time than the service takes at most; with another socket it would refuse to start."""
    service = (_SYSTEMD / "offsetmgr.service").read_text()
    (limit,) = re.findall(r"^TimeoutStopSec=(\d+)$", service, re.MULTILINE)
    assert float(limit) > STOP_S
    socket = (_SYSTEMD / "offsetmgr.socket").read_text()
    (path,) = re.findall(r"^ListenStream=(.+)$", socket, re.MULTILINE)
    (listen,) = re.findall(r"^ExecStart=.+ --listen (\S+)$", service, re.MULTILINE)
    assert listen == f"unix://{path}"
    assert Address.parse(listen).path == path


def test_the_containerfile_has_no_known_flaw() -> None:
    """Checked by hadolint, which knows those of shell commands too."""
    assert run(installed("hadolint"), DEPLOY / "Containerfile") == ""


def test_compose_files_are_valid_mount_existing_files_and_give_a_stop_time() -> None:
    """The specification's schema takes them; relative paths begin at the folder of the file."""
    schema = "--builtin-schema", "vendor.compose-spec"
    run(installed("check-jsonschema"), *schema, _COMPOSE, _SHOP)
    compose = yaml.safe_load(_COMPOSE.read_text())
    service = compose["services"]["offsetmgr"]
    assert float(service["stop_grace_period"].removesuffix("s")) > STOP_S
    assert (_COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    for each in compose["services"].values():
        assert each["mem_limit"]
        for volume in each.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (_COMPOSE.parent / source).exists(), source


def test_the_service_takes_the_environment_of_its_containers(tmp_path: Path) -> None:
    """In Compose, and in the driver's pod."""
    password = tmp_path / "password"
    password.write_text("geheim")
    compose = yaml.safe_load(_COMPOSE.read_text())["services"]["offsetmgr"]["environment"]
    (sidecar,) = driver_pods()[0]["spec"]["initContainers"]
    pod = {each["name"]: each["value"] for each in sidecar["env"]}
    (mount,) = sidecar["volumeMounts"]
    assert pod["OFFSETMGR_KAFKA__SASL_PASSWORD_FILE"].startswith(f"{mount['mountPath']}/")
    pod["OFFSETMGR_KAFKA__SASL_PASSWORD_FILE"] = str(password)
    assert load(None, compose, {}).watch.groups == ".*"
    shop = yaml.safe_load(_SHOP.read_text())["services"]["offsetmgr"]["environment"]
    assert load(None, compose | shop, {}).streams == ["http://127.0.0.1:8742"]
    assert load(None, pod, {}).kafka.for_librdkafka()["sasl.password"] == "geheim"


def test_a_plain_sidecar_ends_by_an_option() -> None:
    """It is the setting of that name."""
    options = ServiceOptions(bootstrap_servers="broker:9092", exit_after_last_client=60.0)
    assert options.load().exit_after_last_client_s == 60.0


@pytest.mark.parametrize("path", _KUBERNETES, ids=lambda path: path.name)
def test_manifests_are_valid_and_restricted(path: Path) -> None:
    """Checked by Kubernetes' own schemas, without unknown fields, and its pod security."""
    for manifest in manifests(path.read_text()):
        assert list(troubles(manifest)) == []


def driver_pods() -> list[Any]:
    """Return the pod template of spark-submit, and that of the Spark operator."""
    (template,), (application,) = (manifests(path.read_text()) for path in _KUBERNETES)
    return [template, application["spec"]["driver"]["template"]]


def test_the_sidecar_ends_after_the_driver_with_time_to_commit() -> None:
    """A native sidecar, in a pod whose grace period is the driver's and the service's.

    Both pods are the same: a change of one is made in the other.
    """
    pod, application = driver_pods()
    assert pod["spec"] == application["spec"]
    assert pod["metadata"] == application["metadata"]
    (sidecar,) = pod["spec"]["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert "readinessProbe" not in sidecar
    assert pod["spec"]["terminationGracePeriodSeconds"] >= STOP_S + 60


def chart_values() -> tuple[Any, Any]:
    """Return the schema of the chart's values, and values that it takes."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    given = yaml.safe_load((CHART / "ci" / "full-values.yaml").read_text())
    for name, value in given.items():
        values[name] = values[name] | value if isinstance(value, dict) else value
    return json.loads((CHART / "values.schema.json").read_text()), values


def test_the_chart_takes_its_example() -> None:
    """Its defaults alone lack what only the user knows."""
    schema, values = chart_values()
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(values, schema)
    alone = yaml.safe_load((CHART / "values.yaml").read_text())
    errors = jsonschema.Draft7Validator(schema).iter_errors(alone)
    assert {"/".join(map(str, each.path)) for each in errors} == {
        "identities",
        "image/repository",
        "secrets/tls",
        "secrets/tokens",
        "settings/kafka/bootstrap.servers",
    }


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("settings", {"kafka": {"bootstrap.servers": "k:9092", "sasl.password": "geheim"}}),
        ("settings", {"kafka": {"bootstrap.servers": "k:9092"}, "listen": "0.0.0.0:1"}),
        ("identities", {}),
        ("identities", {"etl": {"groups": ["*"], "topics": ["*"], "token": "geheim"}}),
        ("replicas", 2),
    ],
)
def test_the_chart_refuses(section: str, value: object) -> None:
    """Secrets in values, a service without identities, and two services."""
    schema, values = chart_values()
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values | {section: value}, schema)


def test_the_guide_names_files_that_exist() -> None:
    """Its commands need tools and clusters that no test has."""
    guide = (ROOT / "docs" / "deploy.md").read_text()
    named = set(re.findall(r"\bdeploy/[\w./-]+\w", guide))
    assert len(named) > 5
    assert [each for each in named if not (ROOT / each).exists()] == []


def test_versions_agree() -> None:
    """Image, chart and package are of one version."""
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert {str(chart["version"]), str(chart["appVersion"])} == {version[1]}
    image = f"offsetmgr:{version[1]}"
    for path in (_COMPOSE, DEPLOY / "Containerfile", *_KUBERNETES):
        assert image in path.read_text(), path
