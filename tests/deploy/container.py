"""Carries the steps of deploy/Containerfile out where there is no engine for containers.

In mount namespaces of its own, each stage has an empty ``/opt``.  The image's entry point then runs
as the image's user, without rights, network and shell, on a root that is read-only.  Needs root.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.deploy.manifests import DEPLOY, ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIME_LIMIT_S: Final = 900

_BUILD: Final = """
mount --bind {stage} /opt
mkdir -p /opt/build
cd {root}
{copies}
cd /opt/build
{arguments}
{command}
"""

# Python may be in a folder that only root may enter.
_RUN: Final = """
mount --bind {stage} /opt
mount --bind {python} /mnt
if ! setpriv --reuid=10001 --clear-groups test -r {python}; then
  mount -t tmpfs -o mode=755 tmpfs {hidden}
  mkdir -p {python}
  mount --bind /mnt {python}
fi
ip link set lo up
mount -o remount,bind,ro /opt
mount -o remount,bind,ro /
for shell in $(readlink -f /bin/sh /bin/bash | sort -u); do mount --bind /dev/null $shell; done
as_user=(
  setpriv --reuid={user} --regid={group} --clear-groups --no-new-privs --inh-caps=-all
  --bounding-set=-all env -i {environment} OFFSETMGR_KAFKA__BOOTSTRAP_SERVERS=127.0.0.1:1
)
"${{as_user[@]}}" {entry} & service=$!
trap 'kill $service' EXIT
tries=0
until "${{as_user[@]}}" {health}; do
  tries=$((tries + 1))
  ((tries < 100))
  kill -0 $service
done
trap - EXIT
kill $service
wait $service
"""


class Step(NamedTuple):
    name: str
    text: str

    @property
    def words(self) -> list[str]:
        found: list[str] = json.loads(self.text) if self.text[0] == "[" else shlex.split(self.text)
        return found


def stages(path: Path) -> list[list[Step]]:
    """Return the instructions of each stage, without those before the first."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found: list[list[Step]] = []
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name == "FROM":
            found.append([])
        if name and found:
            found[-1].append(Step(name, rest.strip()))
    return found


def _one(stage: Sequence[Step], name: str) -> Step:
    (found,) = (each for each in stage if each.name == name)
    return found


def _in_namespace(script: str, *own: str) -> None:
    command = ["unshare", "--mount", *own, "bash", "-euo", "pipefail", "-c", script]
    subprocess.run(command, check=True, timeout=_TIME_LIMIT_S)


def _copy(source: str, target: str) -> str:
    """Return the commands of a COPY: a file goes into the folder, a folder's content too."""
    folder = f"/opt/build/{target}"
    copied = f"{source}/." if (ROOT / source).is_dir() else source
    return f"mkdir -p {folder} && cp -r {copied} {folder}"


def build(stage: Sequence[Step], folder: Path) -> None:
    """Carry the first stage out, with ``folder`` as its ``/opt``."""
    tools = folder / "tools"
    tools.mkdir()
    commands = {"pip": f"{sys.executable} -m pip", "python": f"{sys.base_prefix}/bin/python3"}
    for name, command in commands.items():
        tool = tools / name
        tool.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        tool.chmod(0o755)
    copied = [each.words for each in stage if each.name == "COPY"]
    copies = [_copy(source, target) for *sources, target in copied for source in sources]
    arguments = [f"export {each.text}" for each in stage if each.name == "ARG"]
    script = _BUILD.format(
        stage=folder,
        root=ROOT,
        copies="\n".join(copies),
        arguments="\n".join([*arguments, "PATH=/opt/tools:$PATH", "export PIP_QUIET=1"]),
        command=_one(stage, "RUN").text,
    )
    _in_namespace(script)


def serve(stage: Sequence[Step], folder: Path) -> None:
    """Run the image's entry point, with ``folder`` as ``/opt``, until it is healthy; stop it."""
    user, _, group = _one(stage, "USER").text.partition(":")
    health = _one(stage, "HEALTHCHECK").text.partition(" CMD ")[2]
    python = Path(sys.base_prefix)
    script = _RUN.format(
        stage=folder,
        python=python,
        hidden=f"/{python.parts[1]}",
        user=user,
        group=group,
        environment=shlex.join(_one(stage, "ENV").words),
        entry=shlex.join(_one(stage, "ENTRYPOINT").words + _one(stage, "CMD").words),
        health=shlex.join(json.loads(health)),
    )
    _in_namespace(script, "--net")


def main() -> None:
    """Build and run; raises CalledProcessError where a step fails."""
    first, second = stages(DEPLOY / "Containerfile")
    with tempfile.TemporaryDirectory(prefix="offsetmgr-image-") as name:
        built, image = Path(name) / "build", Path(name) / "image"
        for each in (built, image):
            each.mkdir()
            each.chmod(0o755)
        build(first, built)
        for step in second:
            if step.name == "COPY":
                _, source, target = step.words
                (built / Path(source).relative_to("/opt")).rename(
                    image / Path(target).relative_to("/opt")
                )
        serve(second, image)


if __name__ == "__main__":
    main()
