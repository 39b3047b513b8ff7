"""Test the page of a graph: its contents, its picture, and the links in the picture."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import Logdir, open_logdir
from tfdbg_arrow.viewer.graph_drawing import Box, Drawing, draw
from tfdbg_arrow.viewer.graph_links import GraphLinks
from tfdbg_arrow.viewer.links import ServerLinks
from tfdbg_arrow.viewer.page import parameters_of
from tfdbg_arrow.viewer.pages.graph import GraphPage, read_graph
from tfdbg_arrow.viewer.rendering import static_files

from ..query.builder import CLEAN, NAN, RunBuilder
from . import logdirs
from .serving import Served


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return logdirs.nested(tmp_path_factory.mktemp("logdir"))


@pytest.fixture(scope="module")
def logdir(path: Path) -> Iterator[Logdir]:
    with open_logdir(path) as opened:
        yield opened


def read(logdir: Logdir, **asked: Any) -> GraphPage:
    return read_graph(logdir, parameters_of(run="run-a", **asked))


def drawn(page: GraphPage) -> Drawing:
    assert page.focus is not None
    return draw(page.focus.neighbourhood, GraphLinks(ServerLinks(), "run-a", page.view, page.run))


def box(page: GraphPage, name: str, kind: str | None = None) -> Box:
    return next(one for one in drawn(page).boxes if one.lines[0] == name and kind in (None, one.kind))


def test_the_lists_of_graphs_and_ops(logdir: Logdir) -> None:
    page = read(logdir)
    assert page.graphs is not None
    assert [(row.graph_name, row.outer_name) for row in page.graphs.rows] == [
        ("step", None),
        ("body", "step"),
        ("double", "step"),
    ]
    assert (page.graph, page.ops, page.focus) == (None, None, None)
    page = read(logdir, graph=0, name="use1")
    assert page.ops is not None
    assert [row.op_name for row in page.ops.rows] == [f"use{number}" for number in range(10, 20)]
    assert page.graph is not None
    assert (page.graph.num_executions, page.graph.num_ops, page.graph.callers) == (1, 37, ())


def test_an_op_has_its_neighbourhood_stack_trace_and_source_line(logdir: Logdir) -> None:
    page = read(logdir, graph=0, op="call", up=1, down=1)
    assert page.focus is not None
    assert [node.op_name for node in page.focus.neighbourhood.nodes] == ["call", "x", "w", "while", "waiting"]
    assert [(frame.owner, frame.lineno) for frame in page.focus.stack] == [("framework", 10), ("user", 4)]
    assert page.focus.source is not None
    assert page.focus.source.frame.lineno == 4
    assert [one.graph_name for one in read(logdir, graph=2, op="Mul").graph.path] == ["step", "body"]  # type: ignore[union-attr]


def test_boxes_of_the_picture_have_health_and_links(logdir: Logdir) -> None:
    page = read(logdir, graph=0, op="while", up=1, down=1)
    found = box(page, "while")
    assert (found.kind, found.state, found.mark, found.is_focus) == ("call", "bad", "✕", True)
    assert found.lines == ("while", "body body", "3 iterations, run once", "✕ 2 bad inside")
    assert found.into == "/graph?run=run-a&graph=2&op=Mul&up=1&down=1"
    assert box(page, "w").state == "not recorded"
    assert (box(page, "w").mark, box(page, "w").lines) == ("○", ("w", "not recorded"))
    assert box(page, "y").href == "/graph?run=run-a&graph=0&op=y&up=1&down=1"
    assert "1 of 1 bad: 1 NaN" in box(page, "y").title
    bad = {(line.text, line.is_bad, line.is_control) for line in drawn(page).lines}
    assert bad == {(":0 float32 […]", False, False), (":0 float32 […]", True, False)}


def test_control_edges_are_lines_without_text_and_can_be_hidden(logdir: Logdir) -> None:
    page = read(logdir, graph=0, op="waiting", up=1)
    assert [(line.text, line.is_control) for line in drawn(page).lines] == [("", True)]
    assert drawn(read(logdir, graph=0, op="waiting", up=1, control=0)).lines == ()


def test_borders_of_a_loop_body_link_to_the_caller_and_the_previous_iteration(logdir: Logdir) -> None:
    page = read(logdir, graph=2, op="v")
    assert box(page, "call", "border").href == "/graph?run=run-a&graph=0&op=call"
    assert box(page, "Mul", "border").head == "iteration before"
    result = box(read(logdir, graph=1, op="mul"), "call", "border")
    assert (result.href, result.level, result.title) == (
        "/graph?run=run-a&graph=0&op=call",
        1,
        "result 0 of call in step: call in step",
    )


def test_hidden_consumers_are_counted(logdir: Logdir) -> None:
    page = read(logdir, graph=0, op="hub")
    assert page.focus is not None
    assert (len(page.focus.neighbourhood.nodes), page.focus.neighbourhood.num_consumers_left_out) == (25, 6)
    hidden = {one.lines[0]: one.num_hidden for one in drawn(read(logdir, graph=0, op="y", up=1)).boxes}
    assert hidden == {"y": 0, "while": 2}


def test_health_and_links_of_one_call(logdir: Logdir) -> None:
    page = read(logdir, event=4)
    assert (page.view.graph_id, page.view.op_name) == (2, "Mul")
    assert page.run is not None
    assert (page.run.previous_event_index, page.run.next_event_index, page.run.outer_event_index) == (3, 5, 6)
    assert box(read(logdir, event=3), "Mul", "op").state == "healthy"
    assert box(page, "Mul", "op").state == "bad"
    argument = read(logdir, event=4, op="v")
    assert argument.focus is not None
    assert box(argument, "call", "border").href == "/graph?run=run-a&graph=0&op=call&event=6"
    assert box(argument, "Mul", "border").href == "/graph?run=run-a&graph=2&op=Mul&event=3"
    outer = read(logdir, event=6)
    assert outer.focus is not None
    assert [(run.attribute, run.event_index) for run in outer.focus.inner_runs] == [("body", 4)]


def test_the_eager_producer_of_an_argument_is_shown_for_one_call(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    first = run.graph("model").op("out", "Softmax").function("__inference_model_1", [], ["out"])
    second = run.graph("loss").op("probs", "Placeholder").function("__inference_loss_2", ["probs"], ["probs"])
    made = run.execution("__inference_model_1", outputs={7: "float32"}, graph=first)
    event = run.tensor(first, "out", NAN, execution=made)
    run.eager(made, NAN, tensor_id=7)
    used = run.execution("__inference_loss_2", inputs=[7], graph=second)
    probs = run.tensor(second, "probs", NAN, execution=used, step=2)
    with open_logdir(run.write(tmp_path)) as logdir:
        focus = read(logdir, event=probs).focus
        assert focus is not None
        (origin,) = focus.origins
        assert origin.producer is not None
        assert (origin.producer.op_name, origin.producer.event_index) == ("out", event)
        over_the_run = read(logdir, graph=1, op="probs").focus
        assert over_the_run is not None
        assert over_the_run.origins == ()


def test_errors_for_events_that_do_not_fit(logdir: Logdir) -> None:
    with pytest.raises(QueryError, match="event 99 of run run-a is not a recorded tensor of a graph"):
        read(logdir, event=99)
    with pytest.raises(QueryError, match="event 4 is a tensor of graph 2, not of graph 0"):
        read(logdir, event=4, graph=0)


def test_a_name_that_does_not_fit_in_an_address_has_no_link(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x").op("y" * 5000, "Neg", ["x"])
    run.tensor(graph, "x", CLEAN)
    with open_logdir(run.write(tmp_path)) as logdir:
        (focus, long) = drawn(read(logdir, graph=0, op="x")).boxes
    assert (focus.href, long.href) == ("/graph?run=run-a&graph=0&op=x", None)
    assert (len(long.lines[0]), len(long.title.splitlines()[0])) == (30, 300)


def test_the_address_sets_the_depths(served: Served) -> None:
    def depths(query: str) -> tuple[int, int, bool]:
        view = served.ask(f"/graph.json?graph=0&op=call{query}").json["view"]
        return view["up"], view["down"], view["has_control"]

    assert depths("") == (2, 2, True)
    assert depths("&depth=3") == (3, 3, True)
    assert depths("&depth=3&up=0&control=0") == (0, 3, False)
    assert depths("&down=99") == (2, 8, True)
    assert served.ask("/graph.json?graph=0&op=call&up=x").status == 400


def test_inputs_and_consumers_are_listed_without_javascript(served: Served) -> None:
    text = served.ask("/graph?graph=0&op=call").text
    links = {unescape(link) for link in re.findall(r'href="(/graph[^"]*op=[^"]*)"', text)}
    assert {f"/graph?run=run-a&graph=0&op={name}" for name in ("x", "w", "while", "waiting")} <= links
    assert "/graph?run=run-a&graph=1&op=mul" in links
    (data,) = re.findall(r'data-drawing="([^"]*)"', text)
    assert len(json.loads(unescape(data))["boxes"]) == 6


def test_the_layout_library_is_served_unchanged(served: Served) -> None:
    names = {name for name in static_files() if name.startswith("vendor/dagre/")}
    assert names == {"vendor/dagre/dagre.min.js"}
    answer = served.ask("/static/vendor/dagre/dagre.min.js")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
