"""Test coverage, which lists what a recording did not examine."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tfdbg_arrow.cli import app
from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import CaptureStat, Coverage, UnobservedOp, UnobservedOps, open_logdir

from .builder import CLEAN, NAN, RunBuilder


def history() -> RunBuilder:
    """Returns a run of two graphs. The graph that XLA compiled has three unrecorded outputs that could be bad."""
    run = RunBuilder("run-a")
    plain = run.graph("plain").op("Log", inputs=()).op("Shape", dtypes=("int32",), not_recorded="dtype")
    compiled = run.graph("compiled").op("Exp", not_recorded="xla")
    compiled.op("Split", dtypes=("float32", "float32"), not_recorded="xla")
    compiled.op("Size", dtypes=("int32",), not_recorded="dtype").op("Read", dtypes=("resource",), not_recorded="dtype")
    run.tensor(plain, "Log", CLEAN)
    return run


def stat(run: RunBuilder, name: str, subject: str, reason: str, *, num_events: int | None = None) -> None:
    index = run.next_event_index
    run.add("capture_stat", event_index=index, stat=name, subject=subject, reason=reason, num_events=num_events)


def coverage(logdir: Path, run_id: str | None = None) -> Coverage:
    with open_logdir(logdir) as opened:
        return opened.coverage(run_id=run_id)


def group(
    graph_id: int, name: str, reason: str, *ops: tuple[str, int], could_be_bad: int, run_id: str = "run-a"
) -> UnobservedOps:
    return UnobservedOps(
        run_id=run_id,
        graph_id=graph_id,
        graph_name=name,
        reason=reason,
        num_outputs=sum(number for _, number in ops),
        num_could_be_bad=could_be_bad,
        ops=tuple(UnobservedOp(op, op, number) for op, number in ops),
    )


def test_unobserved_ops_are_listed_by_run_graph_and_reason(tmp_path: Path) -> None:
    found = coverage(history().write(tmp_path))
    assert found.unobserved == (
        group(0, "plain", "dtype", ("Shape", 1), could_be_bad=0),
        group(1, "compiled", "dtype", ("Read", 1), ("Size", 1), could_be_bad=0),
        group(1, "compiled", "xla", ("Exp", 1), ("Split", 2), could_be_bad=3),
    )
    assert (found.stats, found.is_complete, found.summary) == ((), False, "3 op outputs (xla)")


def test_integer_outputs_and_changed_functions_leave_the_coverage_complete(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    run.graph("plain").op("Shape", dtypes=("int32",), not_recorded="dtype")
    stat(run, "changed", "f", "runs without XLA")
    found = coverage(run.write(tmp_path))
    assert (found.is_complete, found.summary) == (True, None)
    assert found.stats == (CaptureStat("run-a", "changed", "f", "runs without XLA", None),)


def test_references_to_variables_leave_the_coverage_complete(tmp_path: Path) -> None:
    """The tensors that ops write to a variable are recorded, so all values of a reference to it are recorded."""
    run = RunBuilder("run-a")
    graph = run.graph("tf.Graph").op("VariableV2", not_recorded="reference").op("Enter", not_recorded="control_flow")
    graph.op("Shape", dtypes=("int32",), not_recorded="dtype")
    found = coverage(run.write(tmp_path))
    assert (found.is_complete, [group.num_could_be_bad for group in found.unobserved]) == (True, [0, 0, 0])
    assert command("coverage", tmp_path) == (
        0,
        (
            "Every tensor that could be bad was looked at.\n"
            "3 other outputs cannot be bad or are recorded at another op; --json lists them.\n"
        ),
    )
    assert "unobserved_outputs" not in command("doctor", tmp_path, "--json")[1]


def test_lost_events_are_summed_and_named_in_the_summary(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    stat(run, "dropped", "events", "no room", num_events=3)
    stat(run, "dropped", "events", "no room", num_events=4)
    stat(run, "unobservable", "f", "was traced before")
    found = coverage(run.write(tmp_path))
    assert found.stats == (
        CaptureStat("run-a", "dropped", "events", "no room", 7),
        CaptureStat("run-a", "unobservable", "f", "was traced before", None),
    )
    assert found.summary == "1 noted as dropped, 1 noted as unobservable"


def test_coverage_of_one_run(tmp_path: Path) -> None:
    history().write(tmp_path)
    RunBuilder("run-b").write(tmp_path)
    assert coverage(tmp_path, "run-b").is_complete
    assert not coverage(tmp_path).is_complete
    with pytest.raises(QueryError, match="run 'run-c' is not in"):
        coverage(tmp_path, "run-c")


def command(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout


def test_the_answer_for_a_healthy_run_names_unobserved_outputs(tmp_path: Path) -> None:
    history().write(tmp_path)
    assert command("first-nonfinite", tmp_path) == (
        0,
        (
            "Nothing is bad: no recorded tensor contains nan or inf.\n"
            f"Not looked at: 3 op outputs (xla); see: tfdbg-arrow coverage {tmp_path}\n"
        ),
    )
    assert "not looked at: 3 op outputs (xla); see coverage" in command("info", tmp_path)[1]
    code, text = command("coverage", tmp_path)
    assert (code, text.splitlines()[0]) == (1, "Not looked at: 3 op outputs (xla)")
    assert "compiled: 3 outputs of 2 ops: xla" in text
    assert "Exp (Exp), Split (Split)" in text
    assert "3 other outputs cannot be bad or are recorded at another op; --json lists them." in text
    assert "dtype" not in text
    assert '"num_could_be_bad": 3' in command("coverage", tmp_path, "--json")[1]


def test_the_answer_for_a_full_recording_names_no_unobserved_outputs(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    run.tensor(run.graph("plain").op("Log"), "Log", CLEAN)
    run.write(tmp_path)
    assert "Not looked at" not in command("first-nonfinite", tmp_path)[1]
    assert command("coverage", tmp_path) == (0, "Every tensor that could be bad was looked at.\n")


def test_the_answer_for_a_bad_run_names_no_unobserved_outputs(tmp_path: Path) -> None:
    run = history()
    run.tensor(run.graph("bad").op("Sqrt"), "Sqrt", NAN)
    code, text = command("first-nonfinite", run.write(tmp_path))
    assert (code, "Not looked at" in text) == (1, False)
