"""A link that is taken away while the service talks over it: a network namespace of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import pytest

from offsetmgr import OffsetClient
from tests.faults.proxy import Proxy
from tests.faults.support import TOPIC, WAIT_S, committing
from tests.kafka.mock_cluster import MockCluster
from tests.service.support import ServeProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

_HERE: Final = "10.213.77.1"
_THERE: Final = "10.213.77.2"


def ip(*arguments: str) -> None:
    """Run iproute2's ``ip``; its words are the error."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr.strip()}"


class Link:
    """A network namespace, and the one link that leads into it."""

    def __init__(self) -> None:
        self.namespace = f"offsetmgr-{os.getpid()}"
        self.device = f"om{os.getpid()}"

    def make(self) -> None:
        """Make both, up."""
        inside = f"{self.device}i"
        ip("netns", "add", self.namespace)
        ip("link", "add", self.device, "type", "veth", "peer", "name", inside)
        ip("link", "set", inside, "netns", self.namespace)
        ip("addr", "add", f"{_HERE}/30", "dev", self.device)
        ip("link", "set", self.device, "up")
        ip("-n", self.namespace, "addr", "add", f"{_THERE}/30", "dev", inside)
        ip("-n", self.namespace, "link", "set", inside, "up")

    def set(self, state: str) -> None:
        """Take it ``down``: nothing passes, and nobody is told.  Or ``up`` again."""
        ip("link", "set", self.device, state)

    def remove(self) -> None:
        """Remove both, as far as they are there."""
        for arguments in (("link", "del", self.device), ("netns", "del", self.namespace)):
            subprocess.run(["ip", *arguments], capture_output=True, check=False)


@pytest.fixture
def link() -> Iterator[Link]:
    """A namespace with its link."""
    assert shutil.which("ip"), "install iproute2 (apt-get install iproute2): ip is missing"
    assert os.geteuid() == 0, "run this as root: it makes a network namespace"
    made = Link()
    try:
        made.make()
        yield made
    finally:
        made.remove()


class InNamespace(ServeProcess):
    """The service in the namespace; its address is a Unix socket, which all namespaces share."""

    def __init__(self, link: Link, folder: Path, broker: str) -> None:
        options = ("--listen", f"unix://{folder}/o.sock", "--bootstrap-servers", broker)
        enter = "import os, sys; os.execvp('ip', ['ip', *sys.argv[1:]])"
        serve = (sys.executable, "-m", "offsetmgr", "serve", *options)
        env = {"OFFSETMGR_COMMIT__COMMIT_INTERVAL_S": "0.1"}
        super().__init__(["-c", enter, "netns", "exec", link.namespace, *serve], env)


@pytest.mark.chaos
@pytest.mark.fault(14)
def test_a_link_that_goes_away_is_found_out_and_all_is_committed_when_it_is_back(
    link: Link, group: str
) -> None:
    """Connections that only look alive are given up; the newest offset arrives over new ones."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        mock = stack.enter_context(MockCluster())
        mock.create_topic(TOPIC)
        proxy = stack.enter_context(Proxy(mock.bootstrap_servers, _HERE))
        mock.advertise(_HERE, proxy.port)
        service = stack.enter_context(InNamespace(link, folder, f"{_HERE}:{proxy.port}"))
        client = stack.enter_context(OffsetClient(service.address, name=group))
        manager = client.spawn(group, TOPIC, 0)
        errors = manager.errors()
        client.submit(group, {(TOPIC, 0): 1}, sync=True, timeout=WAIT_S)
        link.set("down")
        # What the broker's side still had of these connections is gone without a word, too.
        proxy.swallow()
        manager.submit(2)
        assert errors.get(timeout=WAIT_S).code == "_TIMED_OUT"
        manager.submit(3)
        link.set("up")
        assert client.flush(timeout=WAIT_S).uncommitted == {}
        with committing(f"{_HERE}:{proxy.port}") as kafka:
            assert kafka.in_kafka(group) == 3
