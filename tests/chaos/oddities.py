"""Odd things that are there from the begin of a chaos run, and the doors that they must not close.

A group whose name Kafka takes and we refuse, a letter with hostile headers among good ones, and a
broker's address where nobody answers.  Each door (endpoint or command) must go on to show all
groups and letters.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from offsetmgr.text import visible
from tests.chaos.checker import Look
from tests.chaos.processes import ROOT
from tests.conftest import create_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from offsetmgr.devkafka import DevKafka

_WAIT_S: Final = 60.0
_ANSWER_S: Final = 20.0
_SHOWN_CHARS: Final = 2_000

_LETTERS: Final = 3
_POISONED: Final = 1
"""The offset of the letter with hostile headers."""


class Oddities:
    """The odd things next to some groups and their topic, and the doors that show them."""

    def __init__(self, kafka: DevKafka, topic: str, groups: Sequence[str], address: str) -> None:
        """``address`` is the service's; ``topic`` exists and has all ``groups``."""
        self._kafka = kafka
        self._topic = topic
        self._groups = groups
        self._address = address
        self._odd_group = f"{topic}-odd\t\x1b[2J\n "
        self._letters = f"{topic}-letters"
        self._silent = socket.create_server(("127.0.0.1", 0), backlog=1)

    @property
    def bootstrap_servers(self) -> str:
        """Those of Kafka, with one where nobody answers before them."""
        return f"127.0.0.1:{self._silent.getsockname()[1]},{self._kafka.bootstrap_servers}"

    def settings(self) -> list[str]:
        """Return those of the service: it watches the groups, also the odd one."""
        return [f"watch.groups={self._topic}.*", "watch.interval_s=1"]

    def begin(self) -> None:
        config = {"bootstrap.servers": self._kafka.bootstrap_servers}
        committer = Consumer({**config, "group.id": self._odd_group})
        committer.commit(offsets=[TopicPartition(self._topic, 0, 0)], asynchronous=False)
        committer.close()
        create_topic(self._kafka, self._letters, 1)
        good = {"topic": self._topic.encode(), "partition": b"0", "offset": b"0"}
        poisoned = {**good, "partition": b"9" * 400, "topic": b"\xff\x1b[2J"}
        producer = Producer(config)
        for number in range(_LETTERS):
            origin = poisoned if number == _POISONED else good
            headers = {f"offsetmgr-origin-{name}": value for name, value in origin.items()}
            producer.produce(self._letters, str(number), headers=headers)  # type: ignore[arg-type]
            if producer.flush(_WAIT_S):
                raise TimeoutError(f"{self._letters} took no letters")

    def close(self) -> None:
        self._silent.close()

    # The doors

    def endpoints(self) -> list[Callable[[], Look]]:
        """Return those of the service; they show all once a round of its watch is over."""
        asked = urlencode([("group", name) for name in self._all_groups])
        return [
            self._endpoint("/readyz", lambda _: {"ready"}, {"ready"}),
            self._endpoint("/v1/groups", _listed),
            self._endpoint("/v1/watched", self._measured),
            self._endpoint(f"/v1/lag?{asked}", self._measured),
            self._endpoint("/metrics", self._in_metrics),
        ]

    def commands(self) -> list[Callable[[], Look]]:
        groups, letters = self._all_groups, {f"0:{number}" for number in range(_LETTERS)}
        service = ["--service", f"http://{self._address}"]
        direct = ["--bootstrap-servers", self.bootstrap_servers, "--timeout", f"{_ANSWER_S:g}"]
        return [
            self._command(["groups", *direct], _listed),
            self._command(["lag", *groups, *direct], self._measured),
            self._command(["describe", *groups, *direct], self._measured),
            self._command(["top", *groups, "--interval=0.5", *direct], self._measured),
            self._command(["doctor", *groups, *direct], _examined),
            self._command(["history", self._odd_group, *direct], _stepped, {self._odd_group}),
            self._command(["dlq", "list", self._letters, *direct], _lettered, letters),
            self._command(["dlq", "replay", self._letters, *direct], _lettered, letters),
            self._command(["lag", *groups, *service], self._measured),
            self._command(["top", *groups, "--interval=0.5", *service], self._measured),
        ]

    @property
    def _all_groups(self) -> list[str]:
        return [*self._groups, self._odd_group]

    def _endpoint(
        self, path: str, shows: Callable[[Any], set[str]], expected: set[str] | None = None
    ) -> Callable[[], Look]:
        def look() -> Look:
            shown, answer = set[str](), ""
            connection = http.client.HTTPConnection(self._address, timeout=_ANSWER_S)
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                answer = response.read().decode()
                if response.status == HTTPStatus.OK:
                    shown = shows(answer if path == "/metrics" else json.loads(answer))
            except OSError as error:
                answer = str(error)
            finally:
                connection.close()
            return self._look(path, expected, shown, answer)

        return look

    def _command(
        self, words: list[str], shows: Callable[[Any], set[str]], expected: set[str] | None = None
    ) -> Callable[[], Look]:
        command = [sys.executable, "-m", "offsetmgr", *words, "--json"]
        door = f"offsetmgr {words[0]}{' --service' if '--service' in words else ''}"

        def look() -> Look:
            try:
                done = subprocess.run(
                    command, cwd=ROOT, capture_output=True, text=True, timeout=_WAIT_S, check=False
                )
            except subprocess.TimeoutExpired as error:
                return self._look(door, expected, set(), str(error))
            found = json.loads(done.stdout) if done.stdout else {}
            shown = shows(found) if found else set()
            answer = _unmeasured(found) or done.stdout
            return self._look(
                door, expected, shown, f"{answer}\nexit status {done.returncode}: {done.stderr}"
            )

        return look

    def _look(self, door: str, expected: set[str] | None, shown: set[str], answer: str) -> Look:
        wanted = set(self._all_groups) if expected is None else expected
        return Look(door, frozenset(wanted), frozenset(shown), answer[-_SHOWN_CHARS:])

    # The groups and letters that an answer shows

    def _measured(self, answer: Any) -> set[str]:
        """Return the groups without an error, with a known lag in each partition of our topic."""
        return {
            group["name"]
            for group in answer["groups"]
            if group["error"] is None
            and {
                each["lag"] is not None
                for each in group["partitions"]
                if each["topic"] == self._topic
            }
            == {True}
        }

    def _in_metrics(self, answer: str) -> set[str]:
        """Return the groups that have a lag in the metrics, where names are escaped."""
        shown = {
            sample.labels["group"]
            for family in text_string_to_metric_families(answer)
            if family.name == "offsetmgr_lag"
            for sample in family.samples
            if sample.labels["topic"] == self._topic
        }
        return {name for name in self._all_groups if visible(name) in shown}


def _unmeasured(answer: Any) -> str:
    """Return the groups and partitions of an answer whose lag is not known; empty if all are."""
    rows = [
        (group["name"], group.get("error"), each)
        for group in answer.get("groups", [])
        for each in group.get("partitions") or [{"lag": 0}]
        if group.get("error") is not None or each["lag"] is None
    ]
    return "\n".join(map(str, rows))


def _listed(answer: Any) -> set[str]:
    return {group["name"] for group in answer["groups"]}


def _examined(answer: Any) -> set[str]:
    return {finding["group"] for finding in answer["findings"]} - {""}


def _stepped(answer: Any) -> set[str]:
    return {answer["group"]} if answer["steps"] else set()


def _lettered(answer: Any) -> set[str]:
    """Return the letters, with those that are refused for their headers."""
    return {each["letter"] for each in (*answer["letters"], *answer.get("refused", ()))}
