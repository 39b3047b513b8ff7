"""Test the timeline: windows of executions, details of an execution, and runs without data for the timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.storage.marker import mark_logdir
from tfdbg_arrow.viewer.page import parameters_of
from tfdbg_arrow.viewer.pages.executions import ExecutionsPage, read_executions

from ..query.builder import CLEAN, NAN, RunBuilder
from . import logdirs
from .serving import serving


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes executions 0 to 29, one for each step. Executions 10 and 20 are bad."""
    run = RunBuilder("run-a")
    for number in range(30):
        execution = run.execution("Mul" if number % 2 else "Log", outputs={number: "float32"})
        run.eager(execution, {**(NAN if number in (10, 20) else CLEAN), "step": number}, tensor_id=number)
        run.rows["execution"][-1]["step"] = number
    return run.write(tmp_path_factory.mktemp("logdir"))


def executions(path: Path, **asked: Any) -> ExecutionsPage:
    with open_logdir(path) as logdir:
        return read_executions(logdir, parameters_of(**{"run": "run-a", **asked}))


def indexes(page: ExecutionsPage) -> list[int]:
    return [row.execution_index for row in page.rows]


def test_windows_count_the_rows_around_them_and_have_the_nearest_bad_executions(path: Path) -> None:
    page = executions(path, at=12, limit=4)
    assert (indexes(page), page.num_before, page.num_after, page.num_matching) == ([12, 13, 14, 15], 12, 14, 30)
    assert (page.previous_bad_execution_index, page.next_bad_execution_index) == (10, 20)
    odd = executions(path, op_type="Mul", place=14)
    assert (indexes(odd), odd.num_after, odd.previous_bad_execution_index) == ([29], 0, None)
    assert indexes(executions(path, before=3)) == [0, 1, 2]


def test_jumps_to_a_step(path: Path) -> None:
    assert indexes(executions(path, step=25, limit=2)) == [25, 26]
    assert indexes(executions(path, step=99)) == []


def test_the_window_contains_the_focused_execution(path: Path) -> None:
    page = executions(path, execution=20, limit=12)
    assert indexes(page) == list(range(12, 24))
    assert page.focus is not None
    assert (page.focus.previous_execution_index, page.focus.next_execution_index) == (19, 21)
    filtered = executions(path, bad=1, execution=20, at=0)
    assert filtered.focus is not None
    assert (indexes(filtered), filtered.focus.previous_execution_index) == ([10, 20], 10)


def test_the_strip_shows_the_whole_run_regardless_of_filters(path: Path) -> None:
    strip = executions(path, op_type="Mul").strip
    assert strip is not None
    assert (strip.num_buckets, strip.num_executions, strip.num_bad) == (30, 30, 2)
    assert [bucket.bucket for bucket in strip.buckets if bucket.bad_percent] == [10, 20]
    assert (strip.buckets[7].first_execution_index, strip.buckets[7].first_step, strip.buckets[7].num_calls) == (
        7,
        7,
        0,
    )


def test_details_of_a_call_have_its_graph_stack_trace_and_source_line(tmp_path: Path) -> None:
    focus = executions(logdirs.log_of_zero(tmp_path), execution=0).focus
    assert focus is not None
    row = focus.execution
    assert (row.graph_name, row.num_inside, row.num_bad_inside, row.is_bad) == ("loss", 6, 3, True)
    assert [frame.owner for frame in focus.stack] == ["framework", "user"]
    assert focus.source is not None
    assert focus.source.frame.lineno == 9


@pytest.mark.parametrize("mode", ["NO_TENSOR", "SHAPE", "CURT_HEALTH"])
def test_a_run_in_a_mode_without_counts(mode: str, tmp_path: Path) -> None:
    run = RunBuilder("run-a", tensor_debug_mode=mode)
    flag = {"has_inf_or_nan": True} if mode == "CURT_HEALTH" else {}
    run.eager(run.execution("Log", outputs={0: "float32"}), flag, tensor_id=0)
    run.execution("Mul", outputs={1: "float32"})
    page = executions(run.write(tmp_path), execution=0)
    assert page.measures_health is (mode == "CURT_HEALTH")
    assert [(row.num_recorded_outputs, row.is_bad) for row in page.rows] == [(1, mode == "CURT_HEALTH"), (0, False)]
    assert page.focus is not None
    assert [output.health is not None for output in page.focus.outputs] == [True]


def test_pages_of_a_run_without_executions_and_a_logdir_without_runs(tmp_path: Path) -> None:
    page = executions(logdirs.healthy(tmp_path / "healthy"))
    assert (page.rows, page.strip, page.num_matching) == ((), None, 0)
    mark_logdir(tmp_path)
    assert executions(tmp_path, run=None).rows == ()


def test_a_run_of_many_threads_is_one_timeline(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    for thread_id in range(3000):
        run.execution("Mul")
        run.rows["execution"][-1]["thread_id"] = thread_id
    page = executions(run.write(tmp_path), thread=2999)
    assert (indexes(page), page.num_matching) == ([2999], 1)


def test_handles_of_captured_variables_are_folded(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("one_step_on_data").op("x")
    trainer = "/site/keras/src/backend/tensorflow/trainer.py"
    run.rows["graph"][0]["stack_trace_id"] = run.stack((trainer, 5, "TensorFlowTrainer.fit", None, "framework"))
    made = run.execution("Mul", outputs={0: "float32"})
    run.eager(made, CLEAN, tensor_id=0)
    handles = range(1, 38)
    run.execution("VarHandleOp", outputs=dict.fromkeys(handles, "resource"))
    call = run.execution("__inference_one_step_on_data_7", inputs=[0, *handles], graph=graph)
    with serving(run.write(tmp_path)) as served:
        text = served.ask(f"/executions?execution={call}").text
    detail = text[text.index("data-detail") : text.index("Outputs <span")]
    before, _, folded = detail.partition('<details class="handles">')
    assert (before.count("<li>"), folded.count("<li>")) == (1, 37)
    assert "and 37 captured variables" in folded
    assert '</span> train_step <span class="quiet">function' in detail
    assert "__inference_one_step_on_data_7" in detail
    assert 'train_step</a> <span class="quiet">one_step_on_data, function</span>' in text
