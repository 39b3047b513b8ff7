"""Test the page of a tensor: inputs of the same call and iteration, path to the origin, and neighbours."""

from __future__ import annotations

from pathlib import Path

from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.viewer.pages.tensor import TensorPage, read_tensor_page

from ..query.builder import CLEAN, NAN, RunBuilder
from . import logdirs


def tensor(path: Path, event_index: int, *, at: tuple[int, ...] = (), num_rows: int = 20) -> TensorPage:
    with open_logdir(path) as logdir:
        return read_tensor_page(logdir, event_index, run_id="run-a", values_at=at, num_rows=num_rows)


def test_a_bad_tensor_has_its_path_to_the_origin_and_its_neighbours(tmp_path: Path) -> None:
    page = tensor(logdirs.log_of_zero(tmp_path), 6)
    assert (page.tensor.op_name, page.tensor.graph_name, page.tensor.step) == ("Neg", "loss", 2)
    assert [hop.op_name for hop in page.path] == ["probs", "Log", "Neg"]
    assert page.why == "Log of 0: 2 of 6 elements are 0, and the logarithm of 0 is -Inf."
    assert [(frame.owner, frame.lineno) for frame in page.stack] == [("framework", 10), ("user", 9)]
    assert page.source is not None
    assert page.source.frame.lineno == 9
    neighbours = (page.previous_event_index, page.next_event_index, page.previous_bad_event_index)
    assert (neighbours, page.next_bad_event_index, page.values) == ((5, None, 5), None, None)


def test_a_healthy_tensor_has_inputs_and_no_path(tmp_path: Path) -> None:
    page = tensor(logdirs.log_of_zero(tmp_path), 2)
    (images,) = page.inputs
    assert images.producer is not None
    assert images.health is not None
    assert (images.producer.op_name, images.health.event_index, page.path) == ("images", 1, ())
    assert (page.previous_bad_event_index, page.next_bad_event_index) == (None, 3)


def test_inputs_are_from_the_same_call_and_iteration(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Mul").op("y", "Log", ["x"])
    found = {}
    for step in (1, 2):
        for iteration in (0, 1):
            x = run.tensor(graph, "x", CLEAN, step=step, frame=1, iteration=iteration)
            found[run.tensor(graph, "y", NAN, step=step, frame=1, iteration=iteration)] = x
    path = run.write(tmp_path)
    for event_index, x in found.items():
        (input_,) = tensor(path, event_index).inputs
        assert input_.health is not None
        assert input_.health.event_index == x
