"""Upgrades a shared service under load: ``python -m tests.chaos.upgrade [REVISION]``.

The service of an earlier revision and the present one replace each other at one address, there and
back, while clients of both versions go on.  Then Kafka's own log of commits is held against what
the clients saw: nothing lost, nothing backward, nothing committed twice.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.devkafka import DevKafka
from offsetmgr.service import version
from tests.chaos.processes import ROOT
from tests.chaos.run import ChaosRun, Outcome, Setting, say, summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


EARLIER: Final = "9d7ee24"
"""A revision whose service and clients differ from the present ones; raise it with each release."""

UPGRADES: Final = 4
"""Every second one is a downgrade."""

# The defaults of the product, so that a slow machine gives no commit up as unknown.
_SETTINGS: Final = ("commit.request_timeout_s=30", "lease_s=30", "stop_timeout_s=60")


class Upgrade(NamedTuple):
    outcome: Outcome
    versions: list[str]
    """Those of the service, in the order of its lives."""

    def troubles(self) -> Iterator[str]:
        """Yield a line for each thing that must not happen in an upgrade."""
        verdict, nemesis, _ = self.outcome
        yield from map(str, verdict.violations)
        yield from nemesis.incidents
        for count, what in (
            (verdict.repeated, "committed twice"),
            (verdict.late, "landed behind newer ones"),
            (verdict.superseded, "of replaced clients"),
        ):
            if count:
                yield f"{count} commits {what}"


def source_of(revision: str, folder: Path) -> Path:
    """Return a tree with the sources of a revision, whose version names it."""
    tree = folder / revision
    tree.mkdir()
    archive = folder / "sources.tar"
    command = ["git", "archive", "--output", str(archive), revision, "actors", "offsetmgr", "tests"]
    subprocess.run(command, cwd=ROOT, check=True)
    subprocess.run(["tar", "-xf", str(archive), "-C", str(tree)], check=True)
    stamp = tree / "offsetmgr-0.dist-info"
    stamp.mkdir()
    (stamp / "METADATA").write_text(f"Name: offsetmgr\nVersion: {version()}+{revision}\n")
    return tree


def upgrade(
    kafka: DevKafka, folder: Path, name: str, revision: str, settings: Sequence[str]
) -> Upgrade:
    """Upgrade and judge, in a topic and groups whose names begin with ``name``."""
    setting = Setting(
        kafka=kafka,
        folder=folder,
        seed=7,
        topic=f"{name}-topic",
        groups=[f"{name}-a", f"{name}-b"],
        clients=2,
        settings=[*_SETTINGS, *settings],
        trees=[source_of(revision, folder), ROOT],
    )
    with ChaosRun(setting) as chaos:
        for _ in range(UPGRADES):
            chaos.replace_service()
        outcome = chaos.judge()
    log = outcome.nemesis.targets.service.log_path.read_text().splitlines()
    records = [json.loads(line) for line in log if line.startswith("{")]
    versions = [each["version"] for each in records if each["event"] == "serving"]
    return Upgrade(outcome, versions)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.upgrade", description=__doc__)
    parser.add_argument("revision", nargs="?", default=EARLIER, help="of the earlier service")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="for both services"
    )
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="offsetmgr-upgrade-") as name:
        kafka = DevKafka(brokers=1, data_dir=Path(name) / "kafka")
        kafka.start(180.0)
        try:
            done = upgrade(kafka, Path(name), "upgrade", given.revision, given.set)
        finally:
            kafka.stop()
    for line in summary(done.outcome):
        say(line)
    say(f"versions of the service: {', '.join(done.versions)}")
    troubles = list(done.troubles())
    for trouble in troubles:
        say(f"- {trouble}")
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
