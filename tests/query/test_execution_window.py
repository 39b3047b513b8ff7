"""Test windows of executions: their filters, and the health of the tensors that each execution made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tfdbg_arrow.query import Logdir, open_logdir
from tfdbg_arrow.query.display.execution_window import (
    ExecutionFilter,
    execution_tensors,
    executions,
    read_execution,
)
from tfdbg_arrow.query.display.row_window import first_of_step

from .builder import CLEAN, CPU, INF, NAN, NEG_INF, RunBuilder

EVERYTHING = ExecutionFilter()


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logdir]:
    """Returns a logdir with five executions: the ops 0, 1 and 3, and the calls 2 and 4.

    Op 1 has a bad input from outside. Call 2 has bad tensors inside. Op 3 is bad. Call 4 was not recorded.
    """
    run = RunBuilder("run-a")
    graph = run.graph("Step").op("x", "Log").op("y", "Neg", ["x"]).function("__inference_Step_9", [], ["y"])
    stack = run.stack(("/tf/ops.py", 1, "op", None, "framework"), ("/me/train.py", 7, "train", "a + b", "user"))
    run.eager_op("Mul", CLEAN, tensor_id=10, stack=stack)
    second = run.execution("AddV2", inputs=[10, 11], outputs={12: "float32"})
    run.external(11, INF, execution=second)
    run.eager(second, CLEAN, tensor_id=12)
    call = run.execution("__inference_Step_9", inputs=[12], outputs={13: "float32"}, graph=graph)
    run.tensors(graph, {"x": NEG_INF, "y": INF}, execution=call)
    third = run.execution("Split", outputs={20: "float32", 21: "float32", 22: "float32"})
    for slot, health in enumerate((CLEAN, CLEAN, NAN)):
        run.eager(third, health, tensor_id=20 + slot, slot=slot)
    run.execution("__forward_f_3", outputs={30: "variant"})
    for index, row in enumerate(run.rows["execution"]):
        row["step"], row["thread_id"] = index // 2, 70 + index % 2
    run.rows["execution"][0]["step"] = None
    with open_logdir(run.write(tmp_path_factory.mktemp("logdir"), parts=2)) as logdir:
        yield logdir


@pytest.mark.parametrize(
    ("filter_", "expected"),
    [
        (EVERYTHING, [0, 1, 2, 3, 4]),
        (ExecutionFilter(is_bad=True), [2, 3]),
        (ExecutionFilter(is_call=True), [2, 4]),
        (ExecutionFilter(op_type="Mul"), [0]),
        (ExecutionFilter(name="STEP"), [2]),
        (ExecutionFilter(name="f_3"), [4]),
        (ExecutionFilter(name="%"), []),
        (ExecutionFilter(graph_id=0), [2]),
        (ExecutionFilter(thread_id=71), [1, 3]),
        (ExecutionFilter(first_step=1, last_step=1), [2, 3]),
        (ExecutionFilter(is_bad=True, is_call=True, first_step=1), [2]),
    ],
)
def test_filters(logdir: Logdir, filter_: ExecutionFilter, expected: list[int]) -> None:
    window = executions(logdir, filter_, run_id="run-a").window()
    assert ([row.execution_index for row in window.rows], window.num_matching) == (expected, len(expected))


def test_windows_can_start_at_an_index_end_at_an_index_or_start_at_a_place(logdir: Logdir) -> None:
    def indexes(**asked: int) -> tuple[list[int], int]:
        window = executions(logdir, EVERYTHING, run_id="run-a").window(limit=2, **asked)
        return [row.execution_index for row in window.rows], window.num_before

    assert indexes() == ([0, 1], 0)
    assert indexes(first=2) == ([2, 3], 2)
    assert indexes(before=4) == ([2, 3], 2)
    assert indexes(before=1) == ([0], 0)
    assert indexes(place=3) == ([3, 4], 3)
    assert indexes(place=99) == ([4], 4)
    assert indexes(first=99) == ([], 5)


def test_a_row_describes_the_outputs_of_its_execution(logdir: Logdir) -> None:
    mul, add, step, split, forward = executions(logdir, EVERYTHING, run_id="run-a").window().rows
    assert (mul.devices, mul.is_call, mul.is_bad, mul.num_outputs) == ((CPU,), False, False, 1)
    assert (mul.source.file_path, mul.source.lineno) == ("/me/train.py", 7)
    # The execution that first used a tensor from outside did not make the tensor.
    assert (add.is_bad, add.num_recorded_outputs) == (False, 1)
    assert (step.graph_name, step.is_call, step.num_inside, step.num_bad_inside) == ("Step", True, 2, 2)
    assert (step.num_recorded_outputs, step.outputs) == (0, ())
    assert (split.num_recorded_outputs, split.num_bad_outputs) == (3, 1)
    assert [(output.output_slot, output.num_nan) for output in split.outputs] == [(2, 1), (0, 0)]
    assert (forward.is_call, forward.graph_name, forward.devices, forward.source) == (True, None, (), None)


def test_next_and_previous_executions_and_first_executions_of_steps(logdir: Logdir) -> None:
    def neighbour(filter_: ExecutionFilter, index: int, *, is_backwards: bool = False) -> int | None:
        return executions(logdir, filter_, run_id="run-a").next(index, is_backwards=is_backwards)

    bad = ExecutionFilter(is_bad=True)
    assert [neighbour(bad, 0), neighbour(bad, 2), neighbour(bad, 3)] == [2, 3, None]
    assert [neighbour(bad, index, is_backwards=True) for index in (4, 3, 2)] == [3, 2, None]
    assert neighbour(ExecutionFilter(is_call=True), 2) == 4
    assert [first_of_step(logdir, "execution", "execution_index", step, run_id="run-a") for step in (0, 1, 3)] == [
        1,
        2,
        None,
    ]
    assert read_execution(logdir, 5, run_id="run-a") is None


def test_inputs_and_outputs_have_their_health_and_producer(logdir: Logdir) -> None:
    inputs, outputs = execution_tensors(logdir, 1, run_id="run-a")
    assert [(one.index, one.op_type, one.execution_index) for one in inputs] == [(0, "Mul", 0), (1, None, None)]
    assert [one.health and one.health.has_inf_or_nan for one in (*inputs, *outputs)] == [False, True, False]
    # The graph computed the result of the call.
    _, (result,) = execution_tensors(logdir, 2, run_id="run-a")
    assert (result.tensor_id, result.health.num_pos_inf) == (13, 1)
    assert execution_tensors(logdir, 9, run_id="run-a") == ((), ())


def test_the_window_of_a_run_without_executions_is_empty(tmp_path: Path) -> None:
    with open_logdir(RunBuilder("run-a").write(tmp_path)) as logdir:
        window = executions(logdir, EVERYTHING, run_id="run-a").window(place=3)
        assert (window.rows, window.num_matching, window.num_before) == ((), 0, 0)
        assert executions(logdir, EVERYTHING, run_id="run-a").next(0) is None
