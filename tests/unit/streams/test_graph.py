"""The graph of a group: its mistakes, its getters, its topics."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from offsetmgr.streams import GraphError, codecs, loop_topic, output, persist, visitor
from offsetmgr.streams.graph import define_group, group_table, input, inputs, join, lookup, loop

C = codecs.String()


def called(context: Any, value: Any) -> None:
    """Do nothing."""


def test_mistakes_in_their_order() -> None:
    """The first mistake of a graph with all of them is named; each corrected shows the next."""
    edges = [
        loop(C, called),
        loop(C, called),
        persist(C),
        persist(C),
        output("group-loop", C),
        visitor("reset", called),
    ]
    with pytest.raises(GraphError, match=r"more than one loop stream.*define loop\(\) once"):
        define_group("group", edges).validate()
    with pytest.raises(GraphError, match=r"more than one group table.*define persist\(\) once"):
        define_group("group", edges[1:]).validate()
    with pytest.raises(GraphError, match=r"no input stream.*add an input"):
        define_group("group", loop(C, called), edges[4:]).validate()
    with pytest.raises(GraphError, match=r"should not directly use loop stream"):
        define_group("group", input("clicks", C, called), edges[4:]).validate()
    with pytest.raises(GraphError, match=r"visitors cannot be used in stateless"):
        define_group("group", input("clicks", C, called), visitor("reset", called)).validate()
    define_group("group", input("clicks", C, called)).validate()


@pytest.mark.parametrize("suffix", ["-loop", "-table"])
@pytest.mark.parametrize("edge", [output, join, lookup])
def test_own_topics_are_not_used_directly(edge: Any, suffix: str) -> None:
    """Loop and table of the group are written and read through the context alone."""
    graph = define_group("group", input("clicks", C, called), edge(f"group{suffix}", C))
    with pytest.raises(GraphError, match=r"should not directly use (loop stream|group table)"):
        graph.validate()
    with pytest.raises(GraphError, match="should not directly use"):
        define_group("group", input(f"group{suffix}", C, called), persist(C)).validate()


def test_getters() -> None:
    """Each kind of edge is found again, in the order of its definition."""
    graph = define_group(
        "group",
        input("t1", C, called),
        inputs(["t2", "t3"], C, called),
        output("t4", C),
        output("t5", C),
        join("a1", C),
        join("a2", C),
        lookup("b1", C),
        visitor("v", called),
    )
    assert graph.group == "group"
    assert [edge.topic for edge in graph.input_streams] == ["t1", "t2", "t3"]
    assert [edge.topic for edge in graph.output_streams] == ["t4", "t5"]
    assert [edge.topic for edge in graph.joint_tables] == ["a1", "a2"]
    assert [edge.topic for edge in graph.lookup_tables] == ["b1"]
    assert [edge.topic for edge in graph.copartitioned] == ["t1", "t2", "t3", "a1", "a2"]
    assert [edge.topic for edge in graph.visitors] == ["v"]
    assert graph.loop_stream is None
    assert graph.group_table is None
    again = define_group(graph.group, graph.all_edges, loop(C, called), persist(C))
    assert again.loop_stream
    assert again.loop_stream.topic == "group-loop" == loop_topic("group")
    assert again.group_table
    assert again.group_table.topic == "group-table" == group_table("group")
    edges = define_group("g", input("t", C, called), persist(C)).all_edges
    assert [str(edge) for edge in edges] == ["input t/String", "persist g-table/String"]


def test_suffixes() -> None:
    """The names of loop and table can be others; the checks know them."""
    edges = [input("t", C, called), loop(C, called), persist(C)]
    graph = define_group("g", edges, table_suffix="-state", loop_suffix="-again")
    assert (graph.table_topic, graph.loop_topic) == ("g-state", "g-again")
    assert graph.group_table
    assert graph.group_table.topic == group_table("g", "-state")
    with pytest.raises(GraphError, match="group table"):
        define_group("g", edges, join("g-state", C), table_suffix="-state").validate()


def test_graphs_are_picklable() -> None:
    """An executor of Spark gets the graph with its callbacks."""
    graph = define_group("g", input("t", codecs.Json(), called), persist(codecs.MsgPack(dict)))
    again = pickle.loads(pickle.dumps(graph))  # noqa: S301 -- our own
    assert [*map(str, again.all_edges)] == [*map(str, graph.all_edges)]
