"""Runs a test of each room on each Kafka release that managed services run; prints a table.

``python -m tests.compat.kafka_releases [VERSION ...]``; non-zero where a release fails.  The other
cluster of the copied offsets is the Kafka of all other tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Final

from offsetmgr.cli.common import print_table
from offsetmgr.devkafka import DevKafkaError, kafka_jars
from tests.compat.run import ROOT

VERSIONS: Final = ("3.3.2", "3.6.2", "3.9.1", "4.0.1", "4.1.1", "4.2.0")
"""A release of each line that managed services run."""

ROOMS: Final = {
    "service": (
        "tests/kafka/test_sidecar.py::test_kill_9_of_the_sidecar_in_mid_stream_loses_nothing",
    ),
    "fence": (
        "tests/kafka/test_fence.py::test_a_newer_service_takes_the_group_over_by_reading_it",
        "tests/kafka/test_fence.py::test_others_can_neither_commit_nor_reset",
    ),
    "in process": (
        "tests/kafka/test_in_process.py::test_the_example_runs_as_it_stands",
        "tests/kafka/test_oauth.py::test_every_room_logs_in_by_tokens",
    ),
    "tools": (
        "tests/kafka/test_resets.py::test_kafkas_tool_and_ours_do_the_same",
        "tests/kafka/test_commit_log.py::test_commits_are_read_in_order",
    ),
    "copy": ("tests/kafka/test_migration.py::test_a_group_goes_on_in_the_mirror_where_it_was",),
    "consumer": (
        "tests/kafka/test_group_consumer.py::test_members_hand_over_in_order_and_repeat_nothing",
        "tests/kafka/test_acks.py::test_a_restart_repeats_only_unacknowledged_messages",
    ),
    "view": ("tests/kafka/test_views.py::test_a_view_is_served_over_http",),
    "Spark": (
        "tests/spark/test_commit_offsets.py::test_a_groups_offsets_are_where_spark_has_finished",
        "tests/spark/test_examples.py::test_examples_keep_their_promises[new_checkpoint]",
    ),
    "processor": (
        "tests/spark/test_stream_examples.py::test_example_of_a_view_beside_a_processor",
    ),
}
"""The tests of each room."""

_WAIT_S: Final = 1_800.0


def main(versions: list[str]) -> int:
    """Try the releases one after the other; return the exit status."""
    rows = []
    for version in versions or VERSIONS:
        sys.stdout.write(f"\nKafka {version}\n")
        sys.stdout.flush()
        results = tried(version)
        rows.append((version, *(results.get(room, "failed") for room in ROOMS)))
    print_table(("Kafka", *ROOMS), rows)
    return any("failed" in row for row in rows)


def tried(version: str) -> dict[str, str]:
    """Return the result of each room, "passed" or "failed", as far as there is one."""
    try:
        kafka_jars(print, version)
    except DevKafkaError as error:
        sys.stdout.write(f"{error}\n")
        return {}
    # The shared classes of the other tests are those of another Kafka.
    env = os.environ | {
        "TEST_KAFKA_VERSION": version,
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
    }
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        tests = [test for room in ROOMS.values() for test in room]
        command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", f"--junitxml={report}"]
        subprocess.run([*command, *tests], cwd=ROOT, env=env, timeout=_WAIT_S, check=False)
        return results_of(report) if report.exists() else {}


def results_of(report: Path) -> dict[str, str]:
    """Return the results by room, from pytest's report."""
    passed: Counter[str] = Counter()
    failed: set[str] = set()
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 -- pytest has just written it
        file = f"{str(case.get('classname')).replace('.', '/')}.py"
        name = f"{file}::{str(case.get('name')).partition('[')[0]}"
        room = next(
            room for room, tests in ROOMS.items() if any(test in {file, name} for test in tests)
        )
        if len(case):  # an error, a failure, or a test that was skipped
            failed.add(room)
        passed[room] += 1
    return {room: "failed" if room in failed else "passed" for room in passed}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
