"""The examples run as they stand, against the real service and a real Kafka."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import urlopen

import pyspark
import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from typer.testing import CliRunner

from offsetmgr.cli.app import app
from offsetmgr.devkafka.cluster import free_ports
from offsetmgr.devkafka.command import produce_orders
from offsetmgr.devkafka.process import WatchedProcess
from tests.spark.support import EXAMPLES, WAIT_S, Topic, offsets_of
from tests.waiting import eventually, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsetmgr.client import OffsetClient
    from offsetmgr.devkafka import DevKafka
    from tests.service.support import ServeProcess

ORDERS = 400

GROUPS = {
    "streaming_etl": ["orders-parquet"],
    "new_checkpoint": ["orders-archive"],
    "two_queries": ["orders-archive-2", "orders-alarms"],
}
SAID = {
    "streaming_etl": ["batch 0: ", f"{ORDERS} orders in "],
    "new_checkpoint": ["old checkpoint: 200 ", f"{ORDERS} orders in the archive, 0 of them twice"],
    "two_queries": [f"{ORDERS} orders in archive", "30 orders in alarms"],
}


@pytest.fixture
def example(
    run_example: Callable[..., None], sidecar: ServeProcess, topic: Topic, tmp_path: Path
) -> Callable[..., None]:
    """Runs an example with those of the usual options that it has."""
    options = {
        "--bootstrap-servers": topic.kafka.bootstrap_servers,
        "--service": sidecar.address,
        "--topic": topic.name,
        "--folder": str(tmp_path),
    }

    def run(name: str, *further: str) -> None:
        used = {option: text for option, text in options.items() if option in source(name)}
        arguments = [*(text for option in used.items() for text in option), *further]
        run_example(name, *arguments)

    return run


def source(name: str) -> str:
    return (EXAMPLES / f"{name}.py").read_text()


def fill(topic: Topic) -> None:
    """Write orders as `offsetmgr dev-kafka --produce` does."""
    produce_orders(topic.kafka.bootstrap_servers, topic.name, topic.partitions, ORDERS)


def check_group(said: str, group: str) -> None:
    """Fail unless an example says that its group is at the end of all its partitions."""
    found = re.findall(rf"^{group}: \S+: (\d+) committed of (\d+)$", said, re.MULTILINE)
    assert found
    assert [offset for offset, end in found if offset != end] == []


PROGRAMS = sorted([*EXAMPLES.glob("*.py"), *EXAMPLES.glob("shop/*.py")])


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_can_be_copied(path: Path) -> None:
    """It names its extras, has options, and imports neither a neighbour nor development tools."""
    text = path.read_text()
    assert re.match(r"# pip install ('offsetmgr\[[a-z,]+\]'|pyspark)\n\"\"\"", text)
    assert '"--bootstrap-servers"' in text
    assert "devkafka" not in text
    neighbours = "|".join(program.stem for program in PROGRAMS)
    assert not re.search(rf"^(import|from) ({neighbours})\b", text, re.MULTILINE)


def test_none_is_left_out() -> None:
    """Every file of the folder is run here, but for those without Spark."""
    # In tests/kafka:
    by_kafka = {"in_process", "batch_writer", "order_processor", "surviving_writer"}
    # In test_stream_examples.py:
    streams = {"stream_on_spark", "emitter_promises", "view_beside_processor", "view_lookup"}
    elsewhere = {"database_consumer", *by_kafka, *streams}  # the consumer in tests/stores
    assert {path.stem for path in EXAMPLES.glob("*.py")} - elsewhere == {
        *SAID,
        "database_batches",
        "hourly_batch",
        "windowed_revenue",
    }


@pytest.mark.parametrize("name", list(SAID))
def test_examples_keep_their_promises(
    example: Callable[..., None],
    client: OffsetClient,
    topic: Topic,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    """Its result holds every order, and its groups are at the end of the topic."""
    if name == "new_checkpoint":
        example(name, "--orders", str(ORDERS))  # it writes them itself
    else:
        fill(topic)
        example(name)
    output = capsys.readouterr().out
    for text in SAID[name]:
        assert text in output
    for group in GROUPS[name]:
        check_group(output, group)
        committed = offsets_of(client.committed(group, timeout=WAIT_S))
        here = {where: each for where, each in committed.items() if where.topic == topic.name}
        assert sum(here.values()) == ORDERS


def test_late_orders_are_reported(
    example: Callable[..., None], topic: Topic, capsys: pytest.CaptureFixture[str]
) -> None:
    """The written and the dropped revenue of windowed_revenue add up to the produced revenue."""
    producer = Producer({"bootstrap.servers": topic.kafka.bootstrap_servers})
    ahead = {"order_id": 0, "placed_at": "2027-01-01T00:00:00Z", "amount": 5.0}
    producer.produce(topic.name, json.dumps(ahead))
    assert producer.flush(WAIT_S) == 0
    fill(topic)
    example("windowed_revenue", "--batch-size", str(ORDERS // 2))
    said = capsys.readouterr().out
    check_group(said, "revenue-by-hour")
    found = re.search(r"(\d+) orders in .*, (\d+) more came too late", said)
    assert found
    counted, late = map(int, found.groups())
    assert late > 0
    assert counted + late == ORDERS + 1


def test_a_second_run_of_an_hour_keeps_the_first(
    example: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The reports contain the commits of both."""
    for run in (1, 2):
        example("hourly_batch", "--orders", str(ORDERS))
        said = capsys.readouterr().out
        assert f"{run * ORDERS} orders in " in said
        check_group(said, "orders-hourly")


def test_orders_are_in_the_database_once(
    example: Callable[..., None],
    topic: Topic,
    database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also those of a batch that Spark runs again, and with a new checkpoint."""
    fill(topic)
    example("database_batches", "--database", database)
    assert f"{ORDERS} orders in the table, 0 of them twice" in capsys.readouterr().out
    commits = tmp_path / "checkpoint" / "commits"
    last = max(
        (each for each in commits.iterdir() if each.name.isdigit()), key=lambda e: int(e.name)
    )
    last.unlink()  # as if the driver had died before Spark's own commit
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    if pyspark.__version__.startswith("4.1."):
        # Spark's own bug, SPARK-55271, as in test_foreach_batch.py.
        with pytest.raises(StreamingQueryException, match=r"scala\.Option\.get"):
            example("database_batches", "--database", database)
    example("database_batches", "--database", database)
    said = capsys.readouterr().out
    assert f"batch {last.name} is in the table already" in said
    assert f"{ORDERS} orders in the table, 0 of them twice" in said
    shutil.rmtree(tmp_path / "checkpoint")
    example("database_batches", "--database", database)
    said = capsys.readouterr().out
    assert f"{ORDERS} orders in the table, 0 of them twice" in said
    check_group(said, "orders-database")


def test_the_programs_of_the_shop_work_together(
    example: Callable[..., None],
    kafka: DevKafka,
    sidecar: ServeProcess,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Three groups reach the end of the orders, each in its way; a view serves the prices."""
    (port,) = free_ports(1)
    servers = ["--bootstrap-servers", kafka.bootstrap_servers]
    view = ["view", "serve", "--table", "prices", "--path", "prices-view"]
    view += ["--listen", f"127.0.0.1:{port}", *servers]
    checkpoint = f"{tmp_path}/archive-checkpoint"
    follow = ["spark", "follow", "--once", "--checkpoint", checkpoint, "--group", "shop-archive"]
    orders, groups = Topic(kafka, "orders", 4), ("shop-revenue", "shop-archive", "shop-labels")

    def started(name: str, *words: str) -> closing[WatchedProcess]:
        command = [sys.executable, "-u", *words]
        return closing(WatchedProcess(command, cwd=tmp_path, log_path=tmp_path / f"{name}.log"))

    example("shop/producer", "--orders", str(ORDERS), "--rate", "100000")
    with (
        started("labels", str(EXAMPLES / "shop" / "labels.py"), *servers) as labels,
        started("view", "-m", "offsetmgr", *view),
    ):
        example("shop/revenue", "--available-now")
        assert f"{ORDERS} orders so far, 52,042.00 in all" in capsys.readouterr().out
        example("shop/archive", "--available-now")
        followed = CliRunner().invoke(app, [*follow, "--service", sidecar.address])
        assert followed.exit_code == 0, followed.output
        eventually(
            lambda: {group: sum(orders.described(group).values()) for group in groups},
            dict.fromkeys(groups, ORDERS),
        )
        assert until(lambda: price_of("lamp", port)) == {"price": 25.0}
        labels.signal(signal.SIGTERM)
        assert labels.wait(WAIT_S)
    printed = (tmp_path / "labels.log").read_text()
    assert printed.count(" (order ") == ORDERS - 2  # two are not paid


def price_of(product: str, port: int) -> object:
    """Return the row of a product in the view; None while the view starts."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/v1/keys/{product}") as answer:
            return json.load(answer)["value"]
    except URLError:
        return None
