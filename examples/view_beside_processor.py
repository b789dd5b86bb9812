"""A processor on Spark counts clicks, and a view of its table answers over HTTP meanwhile.

In production the view is a process of its own, which any number of hosts may have:
``offsetmgr view serve --table click-counter-table --path /var/lib/clicks --codec int64``
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from urllib.error import URLError
from urllib.request import urlopen

from pyspark.sql import SparkSession

from offsetmgr.devkafka import spark_kafka_jars
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
PORT = 8742


def count(ctx: Context, _url: str) -> None:
    """Add one to the row of the user, who is the key."""
    ctx.set_value((ctx.value() or 0) + 1)


def main(brokers: str, group: str, port: int) -> None:
    """Count some clicks, and ask for the counts over HTTP."""
    clicks, folder = f"{group}-clicks", tempfile.mkdtemp(prefix="clicks-")
    jars = ",".join(map(str, spark_kafka_jars()))
    spark = SparkSession.builder.config("spark.jars", jars).getOrCreate()
    with TopicManager(brokers) as topics:
        topics.ensure_stream(clicks, 2)
        topics.ensure_table(group_table(group), 2)
    graph = define_group(group, input(clicks, codecs.String(), count), persist(codecs.Int64()))
    settings = ProcessorSettings(missing="earliest", buckets=4)
    serve = ["offsetmgr", "view", "serve", "--table", graph.table_topic, "--codec", "int64"]
    serve += ["--path", f"{folder}/view", "--listen", f"127.0.0.1:{port}"]
    serve += ["--bootstrap-servers", brokers]
    processor = Processor(
        spark, graph, brokers, checkpoint=f"{folder}/checkpoint", settings=settings
    )
    with subprocess.Popen([sys.executable, "-m", *serve]) as view:
        try:
            with processor, kafka_emitter(brokers, clicks, codecs.String()) as emitter:
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
    given = sys.argv[1:] or ["localhost:9092"]
    name, own_port = given[1:3] if len(given) > 1 else ("click-counter", str(PORT))
    main(given[0], name, int(own_port))
