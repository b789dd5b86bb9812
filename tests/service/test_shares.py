"""One identity cannot use up what all need; answers have pages and a limit of bytes."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote

import pytest

from offsetmgr.admin.service import ServiceReader
from offsetmgr.errors import OffsetManagerError
from offsetmgr.http import answers
from offsetmgr.kafka.cluster import GroupListing
from offsetmgr.lag.measure import GroupLag, PartitionLag
from offsetmgr.service import overview
from offsetmgr.service.access import Requester
from offsetmgr.service.run import SLOW_READS
from offsetmgr.service.threads import ReadThreads
from offsetmgr.types import TopicPartition
from tests.service.identities import as_identity, identities
from tests.service.support import Running, asking, running
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx


OFFSET: Final[dict[str, Any]] = {"topic": "orders", "partition": 0, "offset": 1}
QUERY: Final[dict[str, Any]] = {
    "id": "i",
    "run_id": "r",
    "state": "failed",
    "groups": ["orders-etl"],
}


def opened(client: httpx.Client, group: str, *partitions: int) -> list[str]:
    """Ask for managers; return the code of the error of each partition, empty if it has none."""
    wanted = [{"topic": "orders", "partition": number} for number in partitions]
    answer = client.post("/v1/managers", json={"group": group, "partitions": wanted})
    return [(each["error"] or {}).get("code", "") for each in answer.json()["managers"]]


def test_clients_and_managers_of_one_identity_leave_room_for_others(tmp_path: Path) -> None:
    """The share of managers is of all its clients together."""
    given = {**identities(tmp_path), "limits__clients": 6, "limits__managers": 10}
    with running(**given) as service, ExitStack() as stack:
        jobs = [stack.enter_context(as_identity(service, "etl", f"job-{n}")) for n in range(5)]
        statuses = [job.post("/v1/heartbeat", json={}).status_code for job in jobs]
        assert statuses == [200, 200, 200, 429, 429]
        assert opened(jobs[0], "orders-a", 0, 1, 2) == [""] * 3
        assert opened(jobs[1], "orders-b", 0, 1, 2, 3) == ["", "", "overloaded", "overloaded"]
        admin = stack.enter_context(as_identity(service, "admin"))
        assert opened(admin, "any", *range(5)) == [""] * 5


def test_fenced_groups_of_one_identity_leave_room_for_others(tmp_path: Path) -> None:
    """A group that it has already takes no further place; without the fence there is no limit."""
    given = identities(tmp_path)
    with (
        running(**given, limits__fenced_groups=4, fence=True) as service,
        as_identity(service, "etl") as etl,
        as_identity(service, "admin") as admin,
    ):
        groups = [opened(etl, f"orders-{number}", 0) for number in range(3)]
        assert groups == [[""], [""], ["overloaded"]]
        assert opened(etl, "orders-0", 1) == [""]
        assert opened(admin, "any", 0) == [""]
    with running(**given, limits__fenced_groups=4) as service, as_identity(service, "etl") as etl:
        assert [opened(etl, f"orders-{number}", 0) for number in range(3)] == [[""]] * 3


@pytest.mark.parametrize("others", [{"reader"}, set()])
def test_event_streams_of_one_identity_leave_room_for_others(
    tmp_path: Path, others: set[str]
) -> None:
    """An identity that reads needs them as well; a single one for all jobs has them all."""
    named = {"etl", *others}
    given = {k: v for k, v in identities(tmp_path).items() if k.split("__")[1] in named}
    with (
        running(**given, limits__event_streams=8) as service,
        as_identity(service, "etl") as etl,
        ExitStack() as stack,
    ):
        streams = [stack.enter_context(etl.stream("GET", "/v1/events")) for _ in range(9)]
        room = 4 if others else 8
        assert [each.status_code for each in streams] == [200] * room + [429] * (9 - room)


@pytest.mark.parametrize("alone", ["reader", "etl"])
def test_an_identity_without_others_that_change_something_has_all(
    tmp_path: Path, alone: str
) -> None:
    """A single job next to a scraper is not halved, nor is a service without identities."""
    named = {"etl", "reader"} if alone == "reader" else {"etl"}
    given = {k: v for k, v in identities(tmp_path).items() if k.split("__")[1] in named}
    with running(**given, limits__managers=4) as service, as_identity(service, "etl") as etl:
        assert opened(etl, "orders-a", *range(4)) == [""] * 4
    with running(limits__managers=4) as service, service.http("etl") as etl:
        assert opened(etl, "orders-a", *range(4)) == [""] * 4


def test_answers_from_memory_wait_for_no_read_of_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """Monitoring sees what is known while Kafka hangs and people look at groups."""
    with running() as service, service.http("burrow") as monitor, ExitStack() as stack:
        begun, gone = threading.Semaphore(0), threading.Event()
        stack.callback(gone.set)

        def hang() -> None:
            begun.release()
            gone.wait()
            raise OffsetManagerError("gone")

        monkeypatch.setattr(service.service.assembly.watch, "reader", hang)
        for number in range(SLOW_READS):
            lag = asking(service, "GET /v1/lag?group=g", client=f"viewer-{number}")
            stack.enter_context(lag)
            assert begun.acquire(timeout=WAIT_S)
        for path in ("/v1/watched", "/v1/queries", "/v3/kafka/default/consumer"):
            assert monitor.get(path).status_code == 200


def test_reported_queries_have_a_limit_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them and those of one identity: a thousand names with fifty each fit in memory.

    The name of the client, which stands in each row of the answer, counts.
    """
    monkeypatch.setattr(overview, "QUERY_BYTES", 40_000)
    report: dict[str, Any] = {"queries": [{**QUERY, "error": "x" * 4_000}]}
    with running(**identities(tmp_path)) as service:
        statuses = []
        for number in range(6):
            with as_identity(service, "etl", f"job-{number}") as etl:
                statuses.append(etl.post("/v1/queries", json=report).status_code)
        assert statuses == [200] * 4 + [429] * 2
        with as_identity(service, "admin") as admin:
            assert admin.post("/v1/queries", json=report).status_code == 200
            assert admin.post("/v1/queries", json=report).status_code == 200  # in its place
    with running() as service:
        statuses = []
        for number in range(11):
            with service.http(quote(200 * "\N{GRINNING FACE}" + str(number))) as job:
                statuses.append(job.post("/v1/queries", json=report).status_code)
                largest = len(job.get("/v1/queries").content)
        assert statuses == [200] * 7 + [429] * 4
        assert largest < overview.QUERY_BYTES


# Pages


def pages(client: httpx.Client, path: str, key: str, **query: Any) -> Iterator[list[Any]]:
    after: dict[str, str] = {}
    while True:
        answer = client.get(path, params={**query, **after})
        assert answer.is_success, answer.text
        assert len(answer.content) < 2 * answers.PAGE_BYTES
        yield answer.json()[key]
        if answer.json()["next"] is None:
            return
        after = {"after": answer.json()["next"]}


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch, service: Running) -> Running:
    """Twelve partitions with the longest metadata."""
    monkeypatch.setattr(answers, "PAGE_BYTES", 30_000)
    for name in ("b", "a/1"):
        with service.http(name) as client:
            entries = [
                {**OFFSET, "partition": number, "metadata": "m" * 4_096} for number in range(6)
            ]
            body = {"group": f"orders-{name}", "offsets": entries, "wait": True}
            client.post("/v1/offsets", json=body).raise_for_status()
    return service


def test_a_page_ends_at_its_bytes_and_all_pages_have_all(crowded: Running) -> None:
    """A large ``limit`` does not matter; each entry comes once, in order."""
    with crowded.http() as client:
        found = [
            (each["group"], each["partition"])
            for page in pages(client, "/v1/managers", "managers", limit=10_000)
            for each in page
        ]
        assert found == sorted(found)
        assert len(set(found)) == len(found) == 12
        of_group = list(pages(client, "/v1/offsets", "offsets", group="orders-b", limit=4))
        assert [each["partition"] for page in of_group for each in page] == list(range(6))
        assert len(of_group) == 2
        refused = client.get("/v1/offsets", params={"group": "orders-b", "after": "orders"})
        assert refused.json()["error"]["field"] == "query.after"


def test_watched_groups_have_pages(crowded: Running) -> None:
    """All together were refused above 64 MiB.  A page may end at a name of any length."""
    names = ["", " ", "g" * 9_000, "g" * 9_000 + "h", "h" * 20_000, "odd\n", "orders-b"]
    lag = PartitionLag(TopicPartition("orders", 0), None, error=OffsetManagerError("m" * 9_000))
    watch = crowded.service.assembly.watch
    view = {name: GroupLag(name, None, (lag,)) for name in reversed(names)}
    watch._watcher = cast("Any", SimpleNamespace(view=view))
    watch._chosen = dict.fromkeys(names, True)
    with crowded.http() as client:
        for limit in (1, 2, 10_000):
            found = list(pages(client, "/v1/watched", "groups", limit=limit))
            assert [each["name"] for page in found for each in page] == names
            assert len(found) > 1
        (asked,) = pages(client, "/v1/watched", "groups", group=["odd\n", "gone"])
    assert [each["name"] for each in asked] == ["odd\n"]
    read = ServiceReader(str(crowded.address)).pages("/v1/watched", "groups")
    assert [each["name"] for each in read] == names
    committers = [each["partitions"][0]["committer"] for each in read]
    assert committers == [None] * 6 + ["b"]


def test_groups_with_very_long_names_hide_no_other(
    crowded: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind: names of any size that anybody may write make an answer too large to be given.

    The largest rows are left out, those of groups that nobody commits or watches first.
    """
    names = [*(letter * 9_000 for letter in "xyz"), "few"]
    listing = [GroupListing(name, "Empty", "classic") for name in names]
    crowded.service.assembly.watch.listing = {each.name: each for each in listing}
    reader = SimpleNamespace(groups=lambda: (listing, []), close=lambda: None)
    crowded.service.assembly.watch._reader = cast("Any", reader)
    monkeypatch.setattr(answers, "MOST_BYTES", 40_000)
    with crowded.http() as client:
        overview = client.get("/v1/overview").json()
        groups = client.get("/v1/groups").json()
    shown = ["few", "orders-a/1", "orders-b", "x" * 9_000, "y" * 9_000]
    assert [each["name"] for each in overview["groups"]] == shown
    assert "1 of 6 groups are not listed" in overview["groups_error"]["message"]
    assert [each["name"] for each in groups["groups"]] == ["x" * 9_000, "y" * 9_000, "few"]
    assert "1 of 4 groups are not listed" in groups["errors"][0]["message"]


def test_an_answer_that_is_too_large_is_refused_with_the_way_out(
    crowded: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that was cut without a word would be taken for the whole."""
    monkeypatch.setattr(answers, "MOST_BYTES", 20_000)
    with crowded.http() as client:
        for path in ("/v1/offsets?group=orders-b", "/v1/managers"):
            answer = client.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "answer_too_large")
            assert "limit and after" in answer.json()["error"]["message"]
        assert (
            client.get("/v1/offsets?group=orders-b&limit=2").json()["next"] == "orders-b/orders/1"
        )


# Threads


@pytest.mark.anyio
async def test_reads_keep_their_thread_until_it_is_done() -> None:
    """Callers that hang up and ask again start no more threads than the limit."""
    gate, by = threading.Event(), Requester("etl")
    threads = ReadThreads(4)
    started = []

    def read() -> None:
        started.append(threading.current_thread())
        gate.wait()

    for _ in range(50):
        hung_up = asyncio.create_task(threads.run(by, read))
        await asyncio.sleep(0)
        hung_up.cancel()
        await asyncio.gather(hung_up, return_exceptions=True)
    assert len(started) == 2, "half of them are for others"
    assert await threads.run(Requester("admin"), lambda: "answered") == "answered"
    gate.set()
    await asyncio.gather(*(threads.run(by, lambda: None) for _ in range(9)))


@pytest.mark.anyio
async def test_an_error_of_a_read_is_raised_to_its_caller() -> None:
    threads = ReadThreads(1)

    def read() -> None:
        raise ValueError("no")

    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            await threads.run(Requester(), read)
