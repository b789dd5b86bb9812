# pip install 'offsetmgr[server,spark,streams]'
"""A processor on Spark counts clicks, and a view of its table answers over HTTP meanwhile.

In production the view is a process of its own, which any number of hosts may have:
``offsetmgr view serve --table click-counter-table --path /var/lib/clicks --codec int64``
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from urllib.error import URLError
from urllib.request import urlopen

import pyspark
from pyspark.sql import SparkSession

from offsetmgr.streams import (
    Context,
    Processor,
    ProcessorSettings,
    TopicManager,
    codecs,
    define_group,
    group_table,
    input,
    kafka_emitter,
    persist,
)

WAIT_S = 120.0


def count(ctx: Context, _url: str) -> None:
    """Add one to the row of the user, who is the key."""
    ctx.set_value((ctx.value() or 0) + 1)


def main(servers: str, group: str, port: int) -> None:
    """Count some clicks, and ask for the counts over HTTP."""
    clicks, folder = f"{group}-clicks", tempfile.mkdtemp(prefix="clicks-")
    scala = "2.13" if pyspark.__version__ >= "4" else "2.12"
    connector = f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{pyspark.__version__}"
    spark = SparkSession.builder.config("spark.jars.packages", connector).getOrCreate()
    with TopicManager(servers) as topics:
        topics.ensure_stream(clicks, 2)
        topics.ensure_table(group_table(group), 2)
    graph = define_group(group, input(clicks, codecs.String(), count), persist(codecs.Int64()))
    settings = ProcessorSettings(missing="earliest", buckets=4)
    serve = ["offsetmgr", "view", "serve", "--table", graph.table_topic, "--codec", "int64"]
    serve += ["--path", f"{folder}/view", "--listen", f"127.0.0.1:{port}"]
    serve += ["--bootstrap-servers", servers]
    processor = Processor(
        spark, graph, servers, checkpoint=f"{folder}/checkpoint", settings=settings
    )
    with subprocess.Popen([sys.executable, "-m", *serve]) as view:
        try:
            with processor, kafka_emitter(servers, clicks, codecs.String()) as emitter:
                for user in ("ann", "bob", "bob"):
                    emitter.emit_sync(user, "/cart", timeout=WAIT_S)
                print(f"bob has clicked {clicks_of('bob', 2, port)} times")
        finally:
            view.terminate()


def clicks_of(user: str, wanted: int, port: int) -> int:
    """Return the number of clicks, once it is the wanted one."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            with urlopen(f"http://127.0.0.1:{port}/v1/keys/{user}") as answer:
                found: int = json.load(answer)["value"]
                if found == wanted:
                    return found
        except URLError:
            pass  # the view starts, or has no row of the user yet
        time.sleep(0.2)
    raise SystemExit(f"{user} has no {wanted} clicks after {WAIT_S} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    parser.add_argument("--group", default="click-counter")
    parser.add_argument("--port", type=int, default=8742, help="of the view")
    given = parser.parse_args()
    main(given.bootstrap_servers, given.group, given.port)
