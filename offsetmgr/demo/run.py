"""Runs the demo from the first process to the last, and takes all of it down again."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import signal
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.client import OffsetClient
from offsetmgr.demo import steps
from offsetmgr.demo.child import Child
from offsetmgr.demo.errors import DemoError, Interrupted
from offsetmgr.demo.orders import produce
from offsetmgr.demo.screen import Screen
from offsetmgr.demo.stage import Names, Stage, check_kafka, create_topic, delete_from
from offsetmgr.demo.summary import show_summary
from offsetmgr.devkafka import KAFKA_VERSION, DevKafka, kafka_jars, spark_kafka_jars
from offsetmgr.errors import InvalidValueError, OffsetManagerError

if TYPE_CHECKING:
    from collections.abc import Iterator

_READY_S: Final = 30.0
_POLL_S: Final = 0.1
_MAX_ORDERS: Final = 5_000_000
_MIN_ORDERS: Final = 1_000
_MAX_PARTITIONS: Final = 100


@dataclass(frozen=True)
class DemoOptions:
    """What can be asked of the demo."""

    brokers: str | None = None
    """host:port of a Kafka that runs already; None starts one."""
    orders: int = 100_000
    partitions: int = 8
    keep: Path | None = None
    """Keeps logs, checkpoints, Parquet files and Kafka's data here; None removes them."""

    def __post_init__(self) -> None:
        """Raise InvalidValueError for what makes no sense."""
        for name, low, high in (
            ("orders", _MIN_ORDERS, _MAX_ORDERS),
            ("partitions", 1, _MAX_PARTITIONS),
        ):
            if not low <= getattr(self, name) <= high:
                fix = f"give {low} to {high}"
                raise InvalidValueError(name, getattr(self, name), "is out of range", fix)
        if self.keep is not None and self.keep.exists() and any(self.keep.iterdir()):
            raise InvalidValueError("keep", str(self.keep), "is not empty", "name a new folder")


def run(options: DemoOptions) -> int:
    """Run the demo; return the exit status.

    0: every claim was found to hold; 1: one does not, or a step failed; 130 or 143: SIGINT or
    SIGTERM.  No process is left in any case.  To be called in the main thread.  Raises DemoError
    where something is not installed.
    """
    _check_installed()
    screen = Screen()
    kept: list[Path] = []
    try:
        with _interruptible(), contextlib.ExitStack() as cleanup:
            folder = _folder(options, cleanup, kept)
            try:
                _play(options, screen, folder, cleanup)
            except OffsetManagerError as error:
                _keep_logs(folder, options, kept)
                screen.check("The demo runs to its end", holds=False, found=error)
            else:
                if not all(claim.holds for claim in screen.claims):
                    _keep_logs(folder, options, kept)
    except Interrupted as interrupted:
        screen.say("Stopped; everything that was started is gone.")
        return 128 + interrupted.signal_number
    holds = show_summary(screen)
    for path in kept:
        screen.say(f"Kept: {path}")
    return 0 if holds else 1


def _check_installed() -> None:
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        message = f"the demo needs {' and '.join(missing)}: pip install 'offsetmgr[all]'"
        raise DemoError(message)


def _play(
    options: DemoOptions, screen: Screen, folder: Path, cleanup: contextlib.ExitStack
) -> None:
    screen.title("offsetmgr demo: a Kafka, a Spark job, and the sidecar that commits its offsets")
    screen.say("It takes about a minute; Ctrl-C ends it, and all that it has started.")
    brokers, names = _kafka(options, screen, folder, cleanup)
    sidecar, url = _sidecar(screen, folder, brokers, cleanup)
    screen.step(f"Produce {options.orders:,} orders over {options.partitions} partitions")
    create_topic(brokers, names.topic, options.partitions)
    with screen.bar(f"to topic {names.topic}", options.orders) as advance:
        sales = produce(brokers, names.topic, options.orders, advance)
    stage = Stage(
        screen=screen,
        folder=folder,
        brokers=brokers,
        names=names,
        orders=options.orders,
        partitions=options.partitions,
        service_url=url,
        client=cleanup.enter_context(OffsetClient(url, name="demo")),
        sales=sales,
    )
    in_kafka = sum(stage.ends().values())
    screen.check(
        f"Topic {names.topic} holds {options.orders:,} orders on {len(stage.ends())} partitions",
        holds=in_kafka == options.orders and len(stage.ends()) == options.partitions,
        found=f"{in_kafka} on {len(stage.ends())}",
    )
    steps.second_run(stage, steps.first_run(stage))
    steps.refused_commit(stage)
    stage.client.close()
    steps.stop_sidecar(stage, sidecar)
    steps.ask_kafka(stage)


def _kafka(
    options: DemoOptions, screen: Screen, folder: Path, cleanup: contextlib.ExitStack
) -> tuple[str, Names]:
    spark_kafka_jars(screen.say)
    if options.brokers is not None:
        names = Names.unique()
        screen.step(f"Use the Kafka on {options.brokers}")
        check_kafka(options.brokers)
        screen.say(f"Topic {names.topic} and groups {names.group} and {names.busy_group}")
        screen.say("are new, and deleted at the end.")
        cleanup.callback(_delete, options.brokers, names, screen)
        return options.brokers, names
    screen.step("Start a Kafka")
    kafka_jars(screen.say)
    with screen.busy("It takes a few seconds."):
        kafka = cleanup.enter_context(DevKafka(data_dir=folder / "kafka"))
    screen.say(f"Kafka {KAFKA_VERSION} is ready on {kafka.bootstrap_servers}.")
    return kafka.bootstrap_servers, Names.plain()


def _delete(brokers: str, names: Names, screen: Screen) -> None:
    for left in delete_from(brokers, names):
        screen.say(f"Left behind: {left}")


def _sidecar(
    screen: Screen, folder: Path, brokers: str, cleanup: contextlib.ExitStack
) -> tuple[Child, str]:
    port = _free_port()
    listen = f"127.0.0.1:{port}"
    command = ["serve", "--listen", listen, "--bootstrap-servers", brokers]
    screen.step("Start the sidecar")
    screen.quote(f"$ offsetmgr {' '.join(command)}")
    child = Child(["offsetmgr", *command], log_path=folder / "sidecar.log")
    cleanup.callback(child.close)
    url = f"http://{listen}"
    deadline = time.monotonic() + _READY_S
    with screen.busy("It is ready when Kafka answers it."):
        while not _is_ready(url):
            child.check_running()
            if time.monotonic() >= deadline:
                message = (
                    f"the sidecar was not ready within {_READY_S:.0f} s: check that Kafka answers "
                    f"on {brokers}; {child.log_end()}"
                )
                raise DemoError(message)
            time.sleep(_POLL_S)
    screen.say(f"Process {child.pid} serves {url}.")
    return child, url


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=_READY_S):  # noqa: S310 -- loopback
            return True
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _folder(options: DemoOptions, cleanup: contextlib.ExitStack, kept: list[Path]) -> Path:
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        kept.append(options.keep.resolve())
        return options.keep.resolve()
    return Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="offsetmgr-demo-")))


def _keep_logs(folder: Path, options: DemoOptions, kept: list[Path]) -> None:
    """Save the logs from a folder that is going to be removed."""
    logs = [*folder.glob("*.log"), *folder.glob("kafka/**/broker.log")]
    if options.keep is None and logs:
        saved = Path(tempfile.mkdtemp(prefix="offsetmgr-demo-logs-"))
        for log in logs:
            shutil.copy(log, saved)
        kept.append(saved)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into Interrupted; what unwinds then is not disturbed."""

    def interrupt(number: int, _frame: Any) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        sys.stderr.write("\nStopping...\n")
        raise Interrupted(number)

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
