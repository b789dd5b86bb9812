"""The graph of a group: its mistakes, its getters, its topics."""

from __future__ import annotations

from typing import Any

import pytest

from offsetmgr.streams import GraphError, codecs, loop_topic, output, persist, visitor
from offsetmgr.streams.graph import define_group, group_table, input, inputs, join, lookup, loop

C = codecs.String()
CLICKS = input("clicks", C, print)
LOOP = loop(C, print)
RESET = visitor("reset", print)


@pytest.mark.parametrize(
    ("edges", "problem"),
    [
        ([LOOP, LOOP, persist(C), persist(C)], r"more than one loop stream.*define loop\(\) once"),
        ([persist(C), persist(C), LOOP], r"more than one group table.*define persist\(\) once"),
        ([LOOP, output("group-loop", C)], r"no input stream.*add an input"),
        ([CLICKS, output("group-loop", C), RESET], "should not directly use loop stream"),
        ([CLICKS, output("group-table", C)], "should not directly use group table"),
        ([CLICKS, join("group-loop", C)], "should not directly use loop stream"),
        ([CLICKS, join("group-table", C)], "should not directly use group table"),
        ([CLICKS, lookup("group-loop", C)], "should not directly use loop stream"),
        ([CLICKS, lookup("group-table", C)], "should not directly use group table"),
        ([input("group-loop", C, print), persist(C)], "should not directly use loop stream"),
        ([input("group-table", C, print), persist(C)], "should not directly use group table"),
        ([CLICKS, RESET], "visitors cannot be used in stateless"),
    ],
)
def test_the_first_mistake_of_a_graph_is_named(edges: list[Any], problem: str) -> None:
    """Loop and table of the group are written and read through the context alone."""
    with pytest.raises(GraphError, match=problem):
        define_group("group", edges).validate()
    define_group("group", CLICKS).validate()


def test_getters() -> None:
    """Each kind of edge is found again, in the order of its definition."""
    edges: list[Any] = [input("t1", C, print), inputs(["t2", "t3"], C, print), output("t4", C)]
    edges += [output("t5", C), join("a1", C), join("a2", C), lookup("b1", C), visitor("v", print)]
    graph = define_group("group", *edges)
    assert graph.group == "group"
    assert [edge.topic for edge in graph.input_streams] == ["t1", "t2", "t3"]
    assert [edge.topic for edge in graph.output_streams] == ["t4", "t5"]
    assert [edge.topic for edge in graph.joint_tables] == ["a1", "a2"]
    assert [edge.topic for edge in graph.lookup_tables] == ["b1"]
    assert [edge.topic for edge in graph.copartitioned] == ["t1", "t2", "t3", "a1", "a2"]
    assert [edge.topic for edge in graph.visitors] == ["v"]
    assert (graph.loop_stream, graph.group_table) == (None, None)
    again = define_group(graph.group, graph.all_edges, LOOP, persist(C))
    assert (
        str(again.loop_stream) == f"loop {loop_topic('group')}/String" == "loop group-loop/String"
    )
    assert str(again.group_table) == "persist group-table/String"
    assert group_table("group") == "group-table"


def test_suffixes() -> None:
    """The names of loop and table can be others; the checks know them."""
    edges = [CLICKS, LOOP, persist(C)]
    graph = define_group("g", edges, table_suffix="-state", loop_suffix="-again")
    assert (graph.table_topic, graph.loop_topic) == ("g-state", "g-again")
    assert (graph.table, group_table("g", "-state")) == ("g-state", "g-state")
    with pytest.raises(GraphError, match="group table"):
        define_group("g", edges, join("g-state", C), table_suffix="-state").validate()
