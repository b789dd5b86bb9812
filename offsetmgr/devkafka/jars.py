"""Java, and the jars it runs: Kafka, kafka-consumer-groups, and Spark's Kafka connector.

Jars are fetched on first use.  Ivy, which pyspark ships, resolves them from the Maven repository
it is set up for.  They are kept in ``$OFFSETMGR_CACHE``, or in ``offsetmgr`` under
``$XDG_CACHE_HOME`` or ``~/.cache``.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from offsetmgr.devkafka.process import DevKafkaError, run_tool
from offsetmgr.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable

    Log = Callable[[str], None] | None

KAFKA_VERSION: Final = "4.1.1"
"""The Kafka that DevKafka runs by default."""

_RELEASE: Final = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}")
_OLDEST_KAFKA: Final = (3, 3, 1)  # the first whose KRaft is for production
_OLDEST_JAVA: Final = 17
_JAVA_ADVICE: Final = (
    f"install Java {_OLDEST_JAVA} or newer (on Debian and Ubuntu: "
    "apt-get install openjdk-17-jre-headless) and put it on the PATH, or set JAVA_HOME"
)
_TOOL: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_TOOL_S: Final = 180.0

_DOWNLOAD_S: Final = 600.0
_SHOWN_LINES: Final = 15
_ADVICE: Final = (
    "Check the network; behind a proxy, set JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=... "
    "-Dhttps.proxyPort=...'. If the repository lacks the Kafka connector of your pyspark, install "
    "a pyspark that has one: pip install 'offsetmgr[spark]' chooses it. Ivy said:"
)

# The tools pull in Kafka Connect, a third of all jars, which nothing here runs.
_KAFKA: Final = """
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{version}"
      conf="default->default"/>
    <dependency org="org.apache.kafka" name="kafka-tools" rev="{version}"
      conf="default->default"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="default->default"/>
    <exclude org="org.apache.kafka" module="connect-.*" matcher="regexp"/>
"""
# What the connector depends on and every Spark has on its class path already.
_SPARK_KAFKA: Final = """
    <dependency org="org.apache.spark" name="spark-sql-kafka-0-10_{scala}" rev="{version}"
      conf="default->default"/>
    <exclude org="org.apache.spark" module="spark-tags_.*" matcher="regexp"/>
    <exclude org="org.(apache.hadoop|scala-lang.*|slf4j|lz4|xerial.snappy)" matcher="regexp"/>
    <exclude org="com.(github.luben|google.code.findbugs)" matcher="regexp"/>
"""
_IVY_FILE: Final = """<ivy-module version="2.0">
  <info organisation="offsetmgr" module="devkafka"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{dependencies}</dependencies>
</ivy-module>
"""


def find_java() -> str:
    """Return a Java new enough, that of JAVA_HOME first, as Spark does.  Raises DevKafkaError."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if java is None:
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        raise DevKafkaError(f"Kafka needs Java and there is none {where}: {_JAVA_ADVICE}")
    version = re.search(r'version "(\d+)', run_tool(java, [java, "-version"], _TOOL_S).stderr)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        raise DevKafkaError(f"{java} is not Java {_OLDEST_JAVA} or newer: {_JAVA_ADVICE}")
    return java


def java_command(*flags: str, log: Log = None, version: str = KAFKA_VERSION) -> list[str]:
    """Return the command line that runs a main class of Kafka's, without the class.

    Raises as ``kafka_jars``.
    """
    return [
        find_java(),
        # Small, and no slower than the default collector on the heaps used here.
        "-XX:+UseSerialGC",
        "-Djava.awt.headless=true",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
        *flags,
        "-cp",
        f"{kafka_jars(log, version)[0].parent}/*",
    ]


def consumer_groups(bootstrap_servers: str, *args: str) -> str:
    """Run Kafka's own ``kafka-consumer-groups`` with ``args`` and return what it prints.

    ``consumer_groups("127.0.0.1:9092", "--describe", "--group", "orders-etl")``.  Raises
    DevKafkaError, with its output, if the tool fails or takes longer than a minute.
    """
    # For a second or two of work Java's full compiler never pays off.
    java = java_command("-XX:TieredStopAtLevel=1")
    command = [*java, _TOOL, "--bootstrap-server", bootstrap_servers, *args]
    done = run_tool(f"kafka-consumer-groups on {bootstrap_servers}", command, _TOOL_S)
    # It reports some failures on standard output, with the exit status 0.
    reported = re.search(r"^Error: .*", done.stdout, re.MULTILINE)
    if done.returncode != 0 or reported:
        output = reported[0] if reported else f"{done.stdout}{done.stderr}".strip()
        raise DevKafkaError(f"kafka-consumer-groups {' '.join(args)} failed:\n{output}")
    return done.stdout


def kafka_jars(log: Log = None, version: str = KAFKA_VERSION) -> list[Path]:
    """Return the jars that run Kafka and its tools; the first call on a machine fetches them.

    ``log`` is called before a download.  Raises DevKafkaError if that fails, or if Java or pyspark
    is missing, and InvalidValueError if ``version`` is not the number of a release.
    """
    is_release = _RELEASE.fullmatch(version) is not None
    if not is_release or tuple(map(int, version.split("."))) < _OLDEST_KAFKA:
        problem = "is not a release of Kafka from 3.3.1 on"
        raise InvalidValueError("version", version, problem, f"give such as {KAFKA_VERSION}")
    return _cached(f"kafka-{version}", _KAFKA.format(version=version), log)


def spark_kafka_jars(log: Log = None) -> list[Path]:
    """Return the jars of pyspark's Kafka connector, for ``spark.jars``, as ``kafka_jars`` does.

    A session starts seconds faster with them than with ``spark.jars.packages``.
    """
    # Connectors are built for one Scala, such as 2.13.
    _, _, library = _pyspark_jar("scala-library-*.jar").stem.rpartition("-")
    scala = ".".join(library.split(".")[:2])
    version = importlib.metadata.version("pyspark")
    dependencies = _SPARK_KAFKA.format(version=version, scala=scala)
    return _cached(f"spark-kafka-{version}", dependencies, log)


def cache_dir() -> Path:
    """Return the folder that keeps what was fetched."""
    own = os.environ.get("OFFSETMGR_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own).absolute() if own else Path(shared) / "offsetmgr"


def _cached(name: str, dependencies: str, log: Log) -> list[Path]:
    cache = cache_dir()
    # The folder appears by one rename when it is complete: where it exists, it is whole.
    folder = cache / name
    if folder.is_dir():
        return sorted(folder.glob("*.jar"))
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                if log is not None:
                    log(f"Fetching {name} into {folder}, once; this takes about a minute.")
                with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as work:
                    _fetch(name, dependencies, Path(work)).rename(folder)
    except OSError as error:
        fix = "make that folder writable, or set OFFSETMGR_CACHE to one that is"
        raise DevKafkaError(f"{name} could not be kept in {cache} ({error}): {fix}") from error
    return sorted(folder.glob("*.jar"))


def _fetch(name: str, dependencies: str, work: Path) -> Path:
    """Return a folder of the jars, in the empty folder ``work``.  Raises DevKafkaError."""
    (work / "ivy.xml").write_text(_IVY_FILE.format(dependencies=dependencies))
    command = [find_java(), "-jar", str(_pyspark_jar("ivy-*.jar")), "-cache", str(work / "cache")]
    command += ["-ivy", "ivy.xml", "-confs", "default", "-warn"]
    command += ["-retrieve", "jars/[artifact]-[revision](-[classifier]).[ext]"]
    done = run_tool(f"the fetch of {name}", command, _DOWNLOAD_S, cwd=work)
    if done.returncode != 0 or not (work / "jars").is_dir():
        # Its reasons stand at the end, after all the places where it looked.
        reasons = f"{done.stdout}\n{done.stderr}".splitlines()[-_SHOWN_LINES:]
        raise DevKafkaError("\n".join((f"{name} could not be fetched. {_ADVICE}", *reasons)))
    return work / "jars"


def _pyspark_jar(pattern: str) -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        fix = "pip install 'offsetmgr[server,spark]'"
        raise DevKafkaError(f"pyspark is missing, whose tool fetches Kafka's jars: {fix}")
    return max((Path(spec.origin).parent / "jars").glob(pattern))
