"""A checkpoint and a graph that has changed: taken over, or refused in one sentence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.answers import PartitionLog, TopicLog
from offsetmgr.errors import InvalidValueError
from offsetmgr.spark.checkpoint import Checkpoint
from offsetmgr.streams import codecs, define_group, input, inputs, join, loop, persist
from offsetmgr.streams.errors import ProcessorError
from offsetmgr.streams.layout import STREAMS, TABLES, LayoutFiles, Start
from offsetmgr.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from offsetmgr.streams.graph import Edge
    from offsetmgr.streams.layout import Layout

C = codecs.String()
META = '{"batchWatermarkMs":0,"batchTimestampMs":1795645369491,"conf":{}}'


def topic(*logs: tuple[int, int], topic_id: str = "first") -> TopicLog:
    """Return a topic with a partition for each start and end."""
    partitions = {
        number: PartitionLog(*log, last_stable_offset=log[1]) for number, log in enumerate(logs)
    }
    return TopicLog(partitions, topic_id=topic_id)


TOPICS = {
    "clicks": topic((0, 50), (0, 50)),
    "views": topic((60, 100)),
    "names": topic((0, 9)),
    "prices": topic((5, 9)),
    "g-table": topic((0, 30), (0, 20)),
    "g-loop": topic((0, 4)),
    "h-table": topic((0, 0)),
}


def start(*edges: Edge | list[Edge], group: str = "g", **changes: Any) -> Start:
    graph = define_group(group, *edges, table_suffix=changes.pop("table_suffix", "-table"))
    given: dict[str, Any] = {
        "graph": graph,
        "logs": {**TOPICS, **changes.pop("topics", {})},
        "buckets": None,
        "positions": positions,
        "restore": lambda: pytest.fail("there is nothing to restore"),
        "loss_is_accepted": False,
    }
    return Start(**(given | changes))


def positions(added: Collection[str]) -> dict[TopicPartition, int]:
    """Begin at the ends, as missing="latest" does."""
    return {
        TopicPartition(name, number): log.high_watermark
        for name in added
        for number, log in TOPICS[name].partitions.items()
    }


CLICKS = input("clicks", C, print)
TABLE = persist(codecs.Int64())
NAMES = join("names", C)


class Folder:
    """A checkpoint as Spark writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = Checkpoint(str(path))

    def begin(self, made: Start, *batches: dict[str, Any], unfinished: bool = False) -> None:
        """Start with a graph, and process batches that end at positions by source."""
        layout = self.prepare(made)
        self.files.write("metadata", '{"id":"q"}')
        for number, name in enumerate(layout.topics):
            first = {topic_name: {"0": 0} for topic_name in layout.topics[name]}
            self.files.write(f"sources/{number}/0", f"\0v1\n{json.dumps(first)}")
        for number, batch in enumerate(batches):
            lines = [json.dumps(batch[name]) for name in layout.topics]
            self.files.write(f"offsets/{number}", "\n".join(["v1", META, *lines]))
            if not unfinished or number < len(batches) - 1:
                self.files.write(f"commits/{number}", "v1\n{}")

    def prepare(self, made: Start) -> Layout:
        return LayoutFiles(self.files).prepare(made)

    def offsets(self, batch: int) -> list[Any]:
        version, meta, *lines = (self.files.read(f"offsets/{batch}") or "").splitlines()
        assert (version, meta) == ("v1", META)
        return [json.loads(line) for line in lines]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


EMPTY = {"g-table": topic((0, 0))}
READ = {TABLES: {"names": {"0": 9}}, STREAMS: {"clicks": {"0": 40, "1": 41}}}
BEFORE = {TABLES: {"names": {"0": 8}}, STREAMS: {"clicks": {"0": 30, "1": 31}}}
ONLY = {STREAMS: READ[STREAMS]}


def test_a_new_checkpoint_recovers_the_table_to_its_ends(folder: Folder) -> None:
    """A start before any batch is new."""
    layout = folder.prepare(start(CLICKS, NAMES, TABLE))
    assert layout.recovery == {0: 30, 1: 20}
    assert layout.topics == {TABLES: ["g-table", "names"], STREAMS: ["clicks"]}
    assert layout.buckets == 128
    again = folder.prepare(start(CLICKS, TABLE, group="h", buckets=5))
    assert (again.buckets, again.recovery, again.topics) == (5, {}, {STREAMS: ["clicks"]})


def test_a_recovered_table_is_not_read_again(folder: Folder) -> None:
    """The next start takes its positions out; until it is recovered they stay."""
    made = start(CLICKS, TABLE)
    first = {TABLES: {"g-table": {"0": 30, "1": 20}}, STREAMS: {"clicks": {"0": 1, "1": 1}}}
    folder.begin(made, first, unfinished=True)
    assert folder.prepare(made).topics == {TABLES: ["g-table"], STREAMS: ["clicks"]}
    folder.files.write("commits/0", "v1\n{}")
    layout = folder.prepare(made)
    assert (layout.topics, layout.recovery) == ({STREAMS: ["clicks"]}, {})
    assert folder.offsets(0) == [first[STREAMS]]


@pytest.mark.parametrize(
    ("before", "after", "read", "expected"),
    [
        pytest.param(
            [NAMES], [NAMES, join("prices", C)], READ,
            [READ[STREAMS], {"names": {"0": 9}, "prices": {"0": 5}}],
            id="second join",
        ),
        pytest.param([], [NAMES], ONLY, [READ[STREAMS], {"names": {"0": 0}}], id="first join"),
        pytest.param([NAMES], [], READ, [READ[STREAMS]], id="removed join"),
        pytest.param(
            [NAMES], [join("prices", C)], READ, [READ[STREAMS], {"prices": {"0": 5}}],
            id="other join",
        ),
        pytest.param(
            [], [loop(C, print)], ONLY, [{"clicks": {"0": 40, "1": 41}, "g-loop": {"0": 4}}],
            id="new loop",
        ),
        pytest.param(
            [], [input("views", C, print)], ONLY,
            [{"clicks": {"0": 40, "1": 41}, "views": {"0": 100}}],
            id="new input",
        ),
        pytest.param(
            [input("views", C, print)], [],
            {STREAMS: {"clicks": {"0": 40, "1": 41}, "views": {"0": 99}}},
            [READ[STREAMS]],
            id="removed input",
        ),
    ],
)  # fmt: skip
def test_a_changed_graph_changes_the_positions(
    folder: Folder, before: list[Edge], after: list[Edge], read: dict[str, Any], expected: list[Any]
) -> None:
    """In Spark's last two batches: joins begin at the start of their log, inputs as configured."""
    persisted = [CLICKS, persist(codecs.Int64())]
    folder.begin(start(*persisted, before, topics=EMPTY), read, read)
    layout = folder.prepare(start(*persisted, after, topics=EMPTY))
    assert folder.offsets(1) == folder.offsets(0) == expected
    assert [*layout.topics] == [STREAMS, TABLES][: len(expected)]
    assert folder.prepare(start(*persisted, after, topics=EMPTY)) == layout


def test_an_unfinished_batch_is_repeated_as_it_was(folder: Folder) -> None:
    """An added input begins at the same place before and after it; so in the first batch.

    Its messages find the rows of an added join, which it reads whole.
    """
    both = [*inputs(["clicks", "views"], C, print), join("prices", C)]
    folder.begin(start(CLICKS, NAMES), BEFORE, READ, unfinished=True)
    folder.prepare(start(both, NAMES))
    views, prices = {"views": {"0": 100}}, {"prices": {"0": 9}}
    assert folder.offsets(0) == [BEFORE[STREAMS] | views, BEFORE[TABLES] | {"prices": {"0": 5}}]
    assert folder.offsets(1) == [READ[STREAMS] | views, READ[TABLES] | prices]
    first = Folder(folder.path / "first")
    first.begin(start(CLICKS, NAMES), READ, unfinished=True)
    first.prepare(start(both, NAMES))
    assert first.offsets(0) == [READ[STREAMS] | views, READ[TABLES] | prices]
    began = (first.files.read("sources/0/0") or "").splitlines()
    assert began[0] == "\0v1"
    assert json.loads(began[1]) == {"clicks": {"0": 0}, "views": {"0": 100}}


def test_tables_of_a_former_version_are_read_after_the_streams(folder: Folder) -> None:
    """A row that was in Kafka before a message could be behind the end of its batch."""
    made = start(CLICKS, NAMES)
    folder.begin(made, READ, unfinished=True)
    layout = json.loads(folder.files.read("offsetmgr/layout-000001") or "")
    layout["topics"] = dict(reversed(layout["topics"].items()))
    folder.files.write("offsetmgr/layout-000001", json.dumps(layout))
    positions = [json.dumps(READ[name]) for name in (TABLES, STREAMS)]
    folder.files.write("offsets/0", "\n".join(["v1", META, *positions]))
    for number, position in enumerate(positions):
        folder.files.write(f"sources/{number}/0", f"\0v1\n{position}")
    for _ in range(2):
        folder.prepare(made)
        assert folder.offsets(0) == [READ[STREAMS], READ[TABLES]]
        began = (folder.files.read("sources/0/0") or "").splitlines()[-1]
        assert json.loads(began) == READ[STREAMS]


@pytest.mark.parametrize("edge", [join("prices", C), input("views", C, print)])
def test_a_start_next_to_a_running_processor_is_forgotten(folder: Folder, edge: Edge) -> None:
    """As in a deployment whose processes overlap: the next start adds the topic again."""
    old, new = (start(CLICKS, TABLE, *added, topics=EMPTY) for added in ((), (edge,)))
    folder.begin(old, ONLY)
    layout = folder.prepare(new)
    changed = folder.offsets(0)
    folder.files.write("offsets/1", "\n".join(["v1", META, json.dumps(ONLY[STREAMS])]))
    folder.files.write("commits/1", "v1\n{}")
    assert folder.prepare(new) == layout
    assert folder.offsets(1) == changed


def test_rows_of_a_former_join_are_not_those_of_a_later_one(folder: Folder) -> None:
    """A join that comes back, or whose topic was recreated, begins with no rows."""
    folder.begin(start(CLICKS, NAMES, join("prices", C)), {**READ, TABLES: {"names": {"0": 9}}})
    assert folder.prepare(start(CLICKS, NAMES)).join_name("names") == "names"
    back = folder.prepare(start(CLICKS, NAMES, join("prices", C)))
    assert (back.join_name("names"), back.join_name("prices")) == ("names", "prices/1")
    recreated = {"names": topic((2, 3), topic_id="second")}
    layout = folder.prepare(start(CLICKS, NAMES, topics=recreated))
    assert layout.join_name("names") == "names/1"
    assert folder.offsets(0)[1] == {"names": {"0": 2}}
    # Brokers before 2.8 give no ids.
    unknown = {"names": topic((0, 3), topic_id="")}
    assert folder.prepare(start(CLICKS, NAMES, topics=unknown)).join_name("names") == "names/1"


def test_a_table_that_comes_back_has_to_be_the_one_of_before(folder: Folder) -> None:
    """The checkpoint keeps its rows, also while the graph has no table."""
    folder.begin(start(CLICKS, NAMES, TABLE, topics=EMPTY), READ)
    without = folder.prepare(start(CLICKS, NAMES, topics=EMPTY))
    assert (without.table, without.codec) == ("g-table", "Int64")
    with pytest.raises(ProcessorError, match="has rows of the codec Int64, not of String"):
        folder.prepare(start(CLICKS, NAMES, persist(C), topics=EMPTY))
    folder.prepare(start(CLICKS, NAMES, TABLE, topics=EMPTY))


def test_a_recreated_input_is_read_from_its_beginning(folder: Folder) -> None:
    """Its messages are all new, so ``missing`` does not matter."""
    folder.begin(start(CLICKS, NAMES), READ)
    again = start(CLICKS, NAMES, topics={"clicks": topic((3, 90), (0, 41), topic_id="second")})
    goes_on = Folder(folder.path / "goes on")
    goes_on.begin(start(CLICKS, NAMES), READ)
    layout = goes_on.prepare(again._replace(logs=TOPICS))
    now = {name: log.topic_id for name, log in again.logs.items()}
    assert layout.recreated(now) == {"clicks": "second"}
    # A query that accepts the loss goes on in it, and so does the next start.
    assert LayoutFiles(goes_on.files).renew(layout, {"clicks": "second"}).recreated(now) == {}
    goes_on.prepare(again)
    assert goes_on.offsets(0) == [READ[STREAMS], READ[TABLES]]
    folder.prepare(again)
    assert folder.offsets(0) == [{"clicks": {"0": 3, "1": 0}}, READ[TABLES]]


def test_a_new_partition_that_begins_above_zero_is_not_a_loss(folder: Folder) -> None:
    """Spark would take it for one; others it finds by itself."""
    folder.begin(start(CLICKS, NAMES), READ)
    text = folder.files.read("offsets/0")
    grown = [(0, 50), (0, 50), (0, 7)]
    folder.prepare(start(CLICKS, NAMES, topics={"clicks": topic(*grown)}))
    assert folder.files.read("offsets/0") == text
    folder.prepare(start(CLICKS, NAMES, topics={"clicks": topic(*grown, (4, 7))}))
    assert folder.offsets(0)[0] == {"clicks": {"0": 40, "1": 41, "3": 4}}


def test_messages_that_are_gone_stop_the_start(folder: Folder) -> None:
    """Unless the loss is accepted."""
    folder.begin(start(CLICKS, NAMES), READ)
    cut = {"clicks": topic((45, 50), (0, 50))}
    shorter = {"clicks": topic((0, 39), (0, 50))}  # as after an unclean election
    for topics in (cut, shorter):
        with pytest.raises(
            ProcessorError, match=r"has no longer what comes next of clicks-0\. .*new"
        ):
            folder.prepare(start(CLICKS, NAMES, topics=topics))
        folder.prepare(start(CLICKS, NAMES, topics=topics, loss_is_accepted=True))
    assert folder.offsets(0) == [READ[STREAMS], READ[TABLES]]


@pytest.mark.parametrize("name", ["offsets/1", "commits/1", "sources/1/0"])
def test_a_checkpoint_that_spark_refuses_is_refused_in_one_sentence(
    folder: Folder, name: str
) -> None:
    """Files were deleted, or emptied by a crash of the file system."""
    made = start(CLICKS, TABLE, NAMES)
    folder.begin(made, BEFORE, READ)
    if name == "offsets/1":
        folder.files.remove(name)
    else:
        folder.files.write(name, "")
    if name == "sources/1/0":  # which Spark reads until it has finished a batch
        for number in range(2):
            folder.files.remove(f"offsets/{number}")
            folder.files.remove(f"commits/{number}")
    with pytest.raises(ProcessorError, match=f"group g cannot start: .*{name} is"):
        folder.prepare(made)


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ([CLICKS], start(CLICKS, TABLE), "has no state, and the graph has a table or a join now"),
        ([CLICKS, TABLE], start(CLICKS), "has a table or a join, and the graph has none now"),
        ([CLICKS, TABLE], start(CLICKS, TABLE, group="h"), "is of group g; give each group"),
        ([CLICKS, NAMES], start(CLICKS, NAMES, TABLE), "has no table, and topic g-table has rows"),
        (
            [CLICKS, TABLE],
            start(CLICKS, TABLE, table_suffix="-new", topics={"g-new": topic((0, 1))}),
            "has not written the rows in topic g-new, which was g-table or is recreated; delete",
        ),
        (
            [CLICKS, TABLE],
            start(CLICKS, TABLE, topics={"g-table": topic((0, 1), (0, 0), topic_id="second")}),
            "has not written the rows in topic g-table",
        ),
        (
            [CLICKS, TABLE],
            start(CLICKS, TABLE, topics={"g-table": topic((0, 9), (0, 9), (0, 9))}),
            r"has rows for 2 partitions .* has 3 now.* streams copy-table g-table NEW\)",
        ),
        ([CLICKS, TABLE], start(CLICKS, persist(C)), "has rows of the codec Int64, not of String"),
    ],
)
def test_a_graph_that_cannot_be_taken_over_is_refused(
    folder: Folder, before: list[Edge], after: Start, problem: str
) -> None:
    """In one sentence that says what to do; the checkpoint stays as it is."""
    made = start(*before, topics={"g-table": topic((0, 0), (0, 0))})
    folder.begin(made, dict.fromkeys((TABLES, STREAMS), READ[STREAMS]))
    with pytest.raises(ProcessorError, match=problem) as refused:
        folder.prepare(after)
    assert len(str(refused.value)) < 600
    assert folder.offsets(0)[0] == READ[STREAMS]


def test_a_lost_table_is_written_from_the_checkpoint(folder: Folder) -> None:
    """Before the layout has its new id; so is one under another name.

    A start goes on with one that was killed in between: its rows were refused as somebody else's.
    """
    folder.begin(start(CLICKS, TABLE, topics=EMPTY), ONLY)
    gone = {"g-table": topic((0, 0), (0, 0), topic_id="second")}
    failing = start(CLICKS, TABLE, topics=gone, restore=lambda: int("fails"))
    with pytest.raises(ValueError, match="fails"):
        folder.prepare(failing)
    restored = []
    partly = {"g-table": topic((0, 3), (0, 0), topic_id="second")}
    again = start(CLICKS, TABLE, topics=partly, restore=lambda: restored.append(1))
    layout = folder.prepare(again)
    assert (restored, layout.table_partitions) == ([1], 2)
    folder.prepare(start(CLICKS, TABLE, topics=gone))
    renamed = start(CLICKS, TABLE, table_suffix="-new", topics={**gone, "g-new": topic((0, 0))})
    assert folder.prepare(renamed._replace(restore=lambda: restored.append(2))).table == "g-new"
    assert restored == [1, 2]


def test_another_program_or_other_buckets_are_refused(folder: Folder) -> None:
    """A checkpoint in an unknown form is refused too."""
    made = start(CLICKS, NAMES)
    folder.begin(made, READ)
    with pytest.raises(InvalidValueError, match="buckets 3 is not that of the checkpoint; give"):
        folder.prepare(made._replace(buckets=3))
    folder.files.write("offsets/0", f"v1\n{META}\n{{}}")
    with pytest.raises(ProcessorError, match=r"batch 0 of checkpoint .* cannot be read: start"):
        folder.prepare(made)
    for path in folder.path.glob("offsetmgr/*"):
        path.unlink()
    with pytest.raises(ProcessorError, match="is of another program: give the processor a check"):
        folder.prepare(made)


def test_a_start_that_was_killed_while_it_edited_is_finished(folder: Folder) -> None:
    """The next start writes all that it had begun; a torn or strange file does not count."""
    folder.begin(start(CLICKS, TABLE, topics=EMPTY), ONLY)
    folder.files.write("offsetmgr/layout-copy", "of a person")
    for cut in ("", '{"offsets/0": "v'):
        folder.files.write("offsetmgr/edit.json", cut)
        LayoutFiles(folder.files)
        assert folder.files.read("offsets/0") != ""
    edit = {"offsets/0": "v1\n{}\n{}\n{}", "offsetmgr/layout-000002": "torn"}
    folder.files.write("offsetmgr/edit.json", json.dumps(edit))
    LayoutFiles(folder.files)
    assert folder.files.read("offsets/0") == "v1\n{}\n{}\n{}"
    assert folder.files.read("offsetmgr/edit.json") is None
    folder.files.write("offsets/0", f"v1\n{META}\n{json.dumps(ONLY[STREAMS])}")
    made = start(CLICKS, TABLE, NAMES, topics=EMPTY)
    assert folder.prepare(made).joins == {"names": 0}
    assert (folder.path / "offsetmgr" / "layout-000003").exists()
