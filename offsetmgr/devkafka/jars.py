"""Kafka's jars and those of Spark's Kafka connector, fetched once and kept in a cache.

Ivy, which pyspark ships, resolves both from the Maven repository it is set up for.  The cache is
``$OFFSETMGR_CACHE``, or ``offsetmgr`` under ``$XDG_CACHE_HOME`` or ``~/.cache``.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from offsetmgr.devkafka.errors import DevKafkaError
from offsetmgr.devkafka.java import find_java

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KAFKA_VERSION: Final = "4.1.1"
"""The Kafka that DevKafka runs."""

_DOWNLOAD_S: Final = 600.0
_LOCK_POLL_S: Final = 0.2
_SHOWN_LINES: Final = 15

# The tools pull in Kafka Connect, a third of all jars, which nothing here runs.
_KAFKA: Final = f"""
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}"
      conf="default->default"/>
    <dependency org="org.apache.kafka" name="kafka-tools" rev="{KAFKA_VERSION}"
      conf="default->default"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="default->default"/>
    <exclude org="org.apache.kafka" module="connect-.*" matcher="regexp"/>
"""
# What the connector depends on and every Spark has on its class path already.
_SPARK_KAFKA: Final = """
    <dependency org="org.apache.spark" name="spark-sql-kafka-0-10_2.13" rev="{version}"
      conf="default->default"/>
    <exclude org="org.apache.spark" module="spark-tags_.*" matcher="regexp"/>
    <exclude org="org.apache.hadoop"/>
    <exclude org="org.scala-lang"/>
    <exclude org="org.scala-lang.modules"/>
    <exclude org="org.slf4j"/>
    <exclude org="org.lz4"/>
    <exclude org="org.xerial.snappy"/>
    <exclude org="com.github.luben"/>
    <exclude org="com.google.code.findbugs"/>
"""
_IVY_FILE: Final = """<ivy-module version="2.0">
  <info organisation="offsetmgr" module="devkafka"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{dependencies}</dependencies>
</ivy-module>
"""


def silent(_message: str) -> None:
    """Log nothing."""


def kafka_jars(log: Callable[[str], None] = silent) -> list[Path]:
    """Return the jars that run Kafka and its tools; the first call on a machine fetches them.

    ``log`` is told of a download.  Raises DevKafkaError where that fails, or where Java or
    pyspark is missing.
    """
    return _cached(f"kafka-{KAFKA_VERSION}", _KAFKA, log)


def spark_kafka_jars(log: Callable[[str], None] = silent) -> list[Path]:
    """Return the jars of Spark's Kafka connector, for ``spark.jars``, as ``kafka_jars`` does.

    Their version is the installed pyspark's.  A session that is given them starts seconds
    faster than one that resolves ``spark.jars.packages`` by itself.
    """
    _pyspark_home()
    version = importlib.metadata.version("pyspark")
    return _cached(f"spark-kafka-{version}", _SPARK_KAFKA.format(version=version), log)


def _cache_dir() -> Path:
    own = os.environ.get("OFFSETMGR_CACHE")
    if own:
        return Path(own).absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "offsetmgr"


def _cached(name: str, dependencies: str, log: Callable[[str], None]) -> list[Path]:
    cache = _cache_dir()
    folder = cache / name
    # The folder appears by one rename when it is complete: where it exists, it is whole.
    if not folder.is_dir():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with _locked(cache / ".lock"):
                if not folder.is_dir():
                    log(f"Fetching {name} into {folder}, once; this takes about a minute.")
                    _fetch(cache, folder, dependencies)
        except OSError as error:
            message = (
                f"{name} could not be kept in {cache} ({error}): make that folder writable, or "
                "set OFFSETMGR_CACHE to one that is"
            )
            raise DevKafkaError(message) from error
    return sorted(folder.glob("*.jar"))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    deadline = time.monotonic() + _DOWNLOAD_S
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    message = (
                        f"another process has held {path} for {_DOWNLOAD_S:.0f} s while it "
                        "fetches jars: end it, then try again"
                    )
                    raise DevKafkaError(message) from error
                time.sleep(_LOCK_POLL_S)
        yield


def _fetch(cache: Path, folder: Path, dependencies: str) -> None:
    java, ivy = find_java(), _ivy_jar()
    # Ivy's own cache stays until all is fetched, so that a download that broke off goes on.
    ivy_cache = cache / "ivy"
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as temporary:
        work = Path(temporary)
        (work / "ivy.xml").write_text(_IVY_FILE.format(dependencies=dependencies))
        command = [
            *(java, "-jar", str(ivy), "-cache", str(ivy_cache), "-ivy", "ivy.xml"),
            *("-confs", "default"),
            *("-retrieve", "jars/[artifact]-[revision](-[classifier]).[ext]", "-warn"),
        ]
        _run_ivy(command, work, folder.name)
        (work / "jars").rename(folder)
    shutil.rmtree(ivy_cache, ignore_errors=True)


def _run_ivy(command: list[str], work: Path, name: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=work,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_DOWNLOAD_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        message = (
            f"{name} was not fetched within {_DOWNLOAD_S:.0f} s: check the network, then try "
            "again; it goes on where it stopped"
        )
        raise DevKafkaError(message) from error
    if done.returncode != 0 or not (work / "jars").is_dir():
        # Its reasons stand at the end, after all the places where it looked.
        said = [line for line in done.stdout.decode(errors="replace").splitlines() if line.strip()]
        output = "\n".join(said[-_SHOWN_LINES:])
        message = (
            f"{name} could not be fetched: check that this machine reaches a Maven repository, "
            f"then try again. Ivy said:\n{output}"
        )
        raise DevKafkaError(message)


def _pyspark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        message = (
            "pyspark is missing, which brings the tool that fetches Kafka's jars: "
            "pip install 'offsetmgr[server,spark]'"
        )
        raise DevKafkaError(message)
    return Path(spec.origin).parent


def _ivy_jar() -> Path:
    folder = _pyspark_home() / "jars"
    found = sorted(folder.glob("ivy-*.jar"))
    if not found:
        message = f"pyspark has no ivy-*.jar in {folder}: install it again with pip"
        raise DevKafkaError(message)
    return found[-1]
