"""Kubernetes manifests: checked against Kubernetes' schemas and the restricted pod security."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import kubernetes_validate
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
CHART: Final = DEPLOY / "helm" / "offsetmgr"

_CUSTOM: Final = frozenset({"ServiceMonitor", "SparkApplication"})
"""Kinds of operators, of which Kubernetes knows nothing."""
_SIDECARS: Final = "1.33"
"""The release in which native sidecars became stable."""


def manifests(text: str) -> list[Any]:
    return [each for each in yaml.safe_load_all(text) if each is not None]


def pod_of(manifest: Any) -> Any:
    """Return a pod with the spec that a manifest has for its pods; None if it has none."""
    spec = manifest.get("spec", {})
    spec = spec.get("driver", spec).get("template", manifest)
    return (
        {"apiVersion": "v1", "kind": "Pod"} | spec if "containers" in spec.get("spec", {}) else None
    )


def troubles(manifest: Any) -> Iterator[str]:
    """Return what is wrong with a manifest; unknown fields are wrong too."""
    pod = pod_of(manifest)
    checked = [] if manifest["kind"] in _CUSTOM else [manifest]
    checked += [_named(pod)] if pod and pod is not manifest else []
    for each in checked:
        try:
            kubernetes_validate.validate(each, _SIDECARS, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{manifest['kind']}: {error.message}"
    if pod:
        yield from _unrestricted(pod["spec"])


def _named(pod: Any) -> Any:
    """Return the pod with what Spark adds to a template."""
    return pod | {"metadata": {"name": "pod"} | pod["metadata"]}


def _unrestricted(spec: Any) -> Iterator[str]:
    """Return what the pod security standard "restricted", or we, do not allow."""
    of_pod = spec["securityContext"]
    if not of_pod["runAsNonRoot"] or of_pod["seccompProfile"]["type"] != "RuntimeDefault":
        yield "the pod may run as root, or without seccomp"
    for each in (*spec.get("initContainers", ()), *spec["containers"]):
        own = each["securityContext"]
        if own["allowPrivilegeEscalation"] or own["capabilities"]["drop"] != ["ALL"]:
            yield f"container {each['name']} may gain rights"
        if each["name"] != "offsetmgr":
            continue  # the driver's own
        if not own["readOnlyRootFilesystem"]:
            yield "the root is writable"
        if "memory" not in each["resources"]["limits"]:
            yield "there is no limit of memory"
        yield from (f"no {kind}" for kind in ("livenessProbe", "startupProbe") if kind not in each)
    if "secretKeyRef" in str(spec):
        yield "a secret is in the environment"
