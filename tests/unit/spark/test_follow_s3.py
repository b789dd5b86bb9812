"""Checkpoints in S3, on a real S3 server of a package."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from moto.server import ThreadedMotoServer

from offsetmgr.spark import starting_offsets
from offsetmgr.spark.checkpoint import Checkpoint
from offsetmgr.spark.files import open_files
from offsetmgr.spark.follow import Follow, Follower
from tests.service.support import local_over
from tests.unit.spark.broker import ORDERS, offset_of
from tests.unit.spark.checkpoints import HEAD, finished
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offsetmgr.coordinator.memory import MemoryCoordinator
    from offsetmgr.spark.files import Files


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder of a bucket with nothing but the objects that mark folders.

    The library finds its server and login in the environment.
    """
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "reader")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    name = f"lake-{port}"
    try:
        import fsspec  # noqa: PLC0415 -- its file system is made for this server

        fsspec.filesystem("s3", skip_instance_cache=True).mkdir(name)
        fsspec.filesystem("s3").clear_instance_cache()
        for marker in ("", "etl/", "etl/offsets/", "etl_$folder$"):
            key = f"checkpoints/{marker}"
            fsspec.filesystem("s3").call_s3("put_object", Bucket=name, Key=key)
        yield f"s3://{name}/checkpoints"
    finally:
        server.stop()


def write_batch(files: Files, number: int, end: int) -> None:
    files.write("metadata", '{"id":"7d3d4a8e"}')
    files.write(f"offsets/{number}", f'{HEAD}\n{{"orders":{{"0":{end}}}}}')
    files.write(f"commits/{number}", "v1\n{}")


def test_checkpoints_in_s3_are_followed(bucket: str, coordinator: MemoryCoordinator) -> None:
    """Commands and ``starting_offsets(checkpoint=)`` read the same URLs, also as ``s3a:``.

    The objects by which Hadoop and consoles mark folders are not rows.
    """
    files = open_files(f"{bucket}/etl", None)
    write_batch(files, 3, 30)

    with local_over(coordinator) as client:
        follower = Follower({"lake": Follow(f"{bucket}/*", "{name}", interval_s=0.1)}, client)
        follower.start()
        eventually(lambda: offset_of(coordinator.broker, "etl"), 30)
        for number in range(4, 9):
            write_batch(files, number, number * 10)
        eventually(lambda: offset_of(coordinator.broker, "etl"), 80)
        assert [each.problem for each in follower.queries()] == [None]
        follower.close()
        url = f"{bucket}/etl".replace("s3:", "s3a:")
        assert starting_offsets(client, "none", ["orders"], checkpoint=url) == "earliest"
    files.write("commits/9", "")  # an empty object has no range to read
    assert finished(Checkpoint(f"{bucket}/etl")) == (8, {ORDERS: 80})
