"""Builds the image of deploy/Containerfile by podman, and runs it.

Its base is a root of its own with Debian's packages and their Python, which debootstrap makes once.
Needs root, and Debian's packages podman, runc and debootstrap.
"""

from __future__ import annotations

import subprocess
import tempfile
from typing import Final

from tests.deploy.manifests import DEPLOY, ROOT

_BASE: Final = "localhost/offsetmgr-base:trixie"
_PACKAGES: Final = "ca-certificates,netbase,python3-pip,python3-venv,python-is-python3"
_IMAGE: Final = "localhost/offsetmgr:checked"
_AUTHORITIES: Final = "--volume=/etc/ssl/certs:/etc/ssl/certs:ro"
"""A mirror of packages may have an authority that this machine trusts, and the base does not."""
_LOCKED_DOWN: Final = (
    "--network=none",
    "--read-only",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
    "--volume=/dev/null:/usr/bin/dash:ro",
    "--volume=/dev/null:/usr/bin/bash:ro",
    "--ulimit=nofile=4096:4096",  # podman's own limits are above those of some machines
    "--ulimit=nproc=4096:4096",
)
_TRIES: Final = 100
_TIME_LIMIT_S: Final = 1_800


def podman(*words: object) -> str:
    """Return what the command prints; raises CalledProcessError where it fails."""
    command = ["podman", "--runtime=runc", "--cgroup-manager=cgroupfs", *map(str, words)]
    return _output(*command)


def _output(*command: str) -> str:
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=_TIME_LIMIT_S
    )
    return done.stdout.strip()


def _make_base() -> None:
    with tempfile.TemporaryDirectory() as folder:
        base, archive = f"{folder}/base", f"{folder}/base.tar"
        _output("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "trixie", base)
        _output("tar", "--create", f"--file={archive}", f"--directory={base}", ".")
        podman("import", archive, _BASE)


def _healthy(container: str) -> bool:
    try:
        podman("healthcheck", "run", container)
    except subprocess.CalledProcessError:
        return False
    return True


def main() -> None:
    """Build and run; raises CalledProcessError or AssertionError where a step fails."""
    if _BASE not in podman("images", "--format={{.Repository}}:{{.Tag}}").splitlines():
        _make_base()
    built = "--format=docker", "--isolation=chroot", "--layers=false", _AUTHORITIES
    base = f"--build-arg=PYTHON={_BASE}"
    podman("build", *built, base, f"--tag={_IMAGE}", f"--file={DEPLOY / 'Containerfile'}", ".")
    kafka = "--env=OFFSETMGR_KAFKA__BOOTSTRAP_SERVERS=127.0.0.1:1"
    container = podman("run", "--detach", *_LOCKED_DOWN, kafka, _IMAGE)
    try:
        healthy = any(_healthy(container) for _ in range(_TRIES))
        user = podman("top", container, "user", "capeff").splitlines()[1:] if healthy else []
        podman("stop", "--time=40", container)
        status = podman("wait", container)
        log = podman("logs", container)
        assert [line.split() for line in user] == [["10001", "none"]], f"{user}:\n{log}"
        assert status == "0", f"status {status}:\n{log}"
    finally:
        podman("rm", "--force", container)
        podman("rmi", _IMAGE)
