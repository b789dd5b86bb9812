"""Checks deploy/ by tools that take minutes to build or run: ``make deploy-check``.

Helm and Compose's own parser are built once, into the cache.  The quick checks are in
``tests/unit/test_deploy.py``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from offsetmgr.devkafka.jars import cache_dir
from tests.deploy import container, dashboard
from tests.deploy.manifests import CHART, DEPLOY, ROOT, manifests, troubles

_TOOLS: Final = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.22.0",
    "compose": "github.com/compose-spec/compose-go/v2/cmd@v2.16.2",
}
_KUBERNETES: Final = "--kube-version=1.33.0"
_VALUES: Final = CHART / "ci" / "full-values.yaml"
_TIME_LIMIT_S: Final = 1_800

_SECRETS: Final = ("kafka/password", "tokens/etl", "tokens/prometheus", "tls/tls.key")
_OFF: Final = (
    "podDisruptionBudget.enabled=false,networkPolicy.enabled=false,serviceMonitor.enabled=false"
)
_ALWAYS: Final = {"ConfigMap", "Deployment", "Service"}
_OPTIONAL: Final = {"NetworkPolicy", "PodDisruptionBudget", "ServiceMonitor"}


class CheckError(Exception):
    """A file of deploy/ is wrong."""


def run(*command: str | Path, env: dict[str, str] | None = None, status: int = 0) -> str:
    """Run a command that must end with ``status``; return its output."""
    done = subprocess.run(
        [str(each) for each in command],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIME_LIMIT_S,
    )
    if done.returncode != status:
        raise CheckError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout or done.stderr


def built(name: str) -> Path:
    """Return the path of a tool, which is built if it is not yet there."""
    module, _, version = _TOOLS[name].rpartition("@")
    folder = cache_dir() / "deploy-tools" / f"{name}-{version}"
    tool = folder / module.rpartition("/")[2]
    if not tool.exists():
        say(f"building {_TOOLS[name]}")
        run("go", "install", _TOOLS[name], env={"GOBIN": str(folder)})
    return tool


def check_chart() -> None:
    """Lint the chart; what it renders is valid, restricted, and a configuration of the service."""
    helm = built("helm")
    say(run(helm, "lint", "--strict", CHART, "--values", _VALUES).strip())
    render = helm, "template", "shared", CHART, "--values", _VALUES, _KUBERNETES
    rendered = manifests(run(*render))
    kinds = {each["kind"] for each in rendered}
    found = [trouble for each in rendered for trouble in troubles(each)]
    if found or kinds != _ALWAYS | _OPTIONAL:
        raise CheckError(f"kinds {kinds}: {found}")
    if {each["kind"] for each in manifests(run(*render, "--set", _OFF))} != _ALWAYS:
        raise CheckError("a part that was switched off is there")
    too_short = run(*render, "--set", "terminationGracePeriodSeconds=20", status=1)
    if "stop_timeout_s" not in too_short:
        raise CheckError(f"a short grace period was refused without its reason: {too_short}")
    (config,) = (each["data"] for each in rendered if each["kind"] == "ConfigMap")
    _check_settings(config["offsetmgr.toml"])
    say(f"rendered and checked: {', '.join(sorted(kinds))}")


def _check_settings(text: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in _SECRETS:
            file = folder / path
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"the-secret-of-{path}")
            file.chmod(0o440)  # as in the chart
        tls = folder / "tls"
        made = "-keyout", tls / "tls.key", "-out", tls / "tls.crt", "-subj", "/CN=localhost"
        run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made)
        config = folder / "offsetmgr.toml"
        config.write_text(text.replace("/run/secrets", name))
        run(sys.executable, "-m", "offsetmgr", "config", "check", "--config", config)


def check_spark_pod() -> None:
    """The pod that Spark makes of the template is valid, and has the sidecar as it was written."""
    template = DEPLOY / "kubernetes" / "driver-pod.yaml"
    text = run(sys.executable, Path(__file__).with_name("spark_pod.py"), template)
    pod, driver = manifests(text[text.index("---") :])
    (wanted,) = manifests(template.read_text())
    pod["spec"]["containers"] = [driver]
    kept = "initContainers", "terminationGracePeriodSeconds", "securityContext"
    lost = [name for name in kept if pod["spec"][name] != wanted["spec"][name]]
    if found := [*troubles(pod), *lost]:
        raise CheckError(f"Spark's pod: {found}")
    say("the driver's pod of Spark has the sidecar")


def check_compose() -> None:
    """Compose's own parser takes the files: references, merges and paths included."""
    compose = DEPLOY / "compose" / "compose.yaml"
    run(built("compose"), compose)
    run(built("compose"), compose, ROOT / "examples" / "shop" / "compose.yaml")
    say("compose.yaml is consistent, alone and with that of examples/shop")


def check_prometheus() -> None:
    """Prometheus takes its configuration as the compose file gives it, and runs all queries."""
    tool = shutil.which("promtool")
    if tool is None:
        raise CheckError("there is no promtool; Debian has it in the package prometheus")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(DEPLOY / "compose" / "prometheus.yml", folder)
        shutil.copy(DEPLOY / "prometheus" / "offsetmgr.rules.yml", folder)
        run(tool, "check", "config", f"{folder}/prometheus.yml")
    say(f"prometheus.yml is valid; {dashboard.main()} queries and rules ran on a real Prometheus")


def check_container() -> None:
    """The image is built in a root of its own, and its service runs as its user."""
    lacking = [each for each in ("podman", "runc", "debootstrap") if shutil.which(each) is None]
    if lacking or os.geteuid():
        raise CheckError(f"needs root, and Debian's packages {', '.join(lacking)}")
    container.main()
    say("the image's service ran as its user without rights, shell and writable files, healthy")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    failed = 0
    for check in (check_chart, check_compose, check_prometheus, check_container, check_spark_pod):
        say(f"--- {check.__name__}")
        try:
            check()
        except (CheckError, AssertionError, subprocess.CalledProcessError) as error:
            say(f"FAILED: {error}")
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
