"""Expected bad values: what a check found and a skipped branch did not use, by data flow."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tfdbg_arrow.cli import app
from tfdbg_arrow.query import NonFinite, first_nonfinite, nonfinite
from tfdbg_arrow.query.flow.effects import SKIPPED_BRANCH, SKIPPED_STEP, UNUSED

from .builder import CLEAN, INF, NAN, GraphBuilder, RunBuilder, counts


class Step:
    """A training step: `gradient` overflows, IsFinite asks, `cond` applies it or lowers the scale."""

    def __init__(self, run: RunBuilder, *, with_check: bool = True, gradient_type: str = "Mul") -> None:
        self.run = run
        self.graph: GraphBuilder = run.graph("step").op("x", "Placeholder").op("gradient", gradient_type, ["x", "x"])
        if with_check:
            self.graph.op("IsFinite", inputs=["gradient"], dtypes=("bool",), not_recorded="dtype")
        else:
            self.graph.op("IsFinite", "Greater", ["x"], dtypes=("bool",), not_recorded="dtype")
        self.graph.op("All", inputs=["IsFinite"], dtypes=("bool",), not_recorded="dtype")
        self.graph.op("handle", "Placeholder", dtypes=("resource",), not_recorded="dtype")
        self.graph.op("cond", "If", ["All", "gradient", "handle"], dtypes=("bool",), not_recorded="dtype")
        self.apply = run.graph("apply").op("g", "Placeholder").op("w", "Placeholder", dtypes=("resource",))
        self.apply.op("scaled", "Mul", ["g"]).op("Assign", "AssignSubVariableOp", ["w", "scaled"], dtypes=())
        self.skip = run.graph("skip").op("g", "Placeholder").op("w", "Placeholder", dtypes=("resource",))
        self.skip.op("half", "Mul")
        for graph, name in ((self.apply, "apply"), (self.skip, "skip")):
            graph.function(f"__{name}", ["g", "w"])
        self.graph.calls("cond", "__apply", self.apply, attribute="then_branch")
        self.graph.calls("cond", "__skip", self.skip, attribute="else_branch")
        self.graph.function("__step", ["x", "handle"])

    def call(self, health: dict[str, object], *, is_applied: bool, step: int = 1) -> int:
        """A call of the step; returns the event of the gradient."""
        execution = self.run.execution("__step", inputs=[1, 2], graph=self.graph)
        self.run.tensor(self.graph, "x", CLEAN, execution=execution, step=step)
        event = self.run.tensor(self.graph, "gradient", health, execution=execution, step=step)
        branch, site = (self.apply, "cond/then/_1") if is_applied else (self.skip, "cond/else/_2")
        self.run.tensor(branch, "g", health, site=site, execution=execution, step=step)
        name = "scaled" if is_applied else "half"
        self.run.tensor(branch, name, health if is_applied else CLEAN, site=site, execution=execution, step=step)
        return event


def reasons(rows: list[NonFinite]) -> list[tuple[str | None, str | None]]:
    return [(row.op_name, row.expected_reason) for row in rows]


def test_what_a_skipped_branch_would_have_used_is_expected(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    Step(run).call(INF, is_applied=False)
    run.write(tmp_path)
    assert reasons(nonfinite(tmp_path)) == [("gradient", SKIPPED_STEP), ("g", SKIPPED_STEP)]


def test_what_was_applied_is_not(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    Step(run).call(INF, is_applied=True)
    run.write(tmp_path)
    assert reasons(nonfinite(tmp_path)) == [("gradient", None), ("g", None), ("scaled", None)]


def test_so_is_what_a_branch_that_was_skipped_for_another_reason_would_have_used(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    Step(run, with_check=False).call(INF, is_applied=False)
    run.graph("elsewhere").op("IsFinite", dtypes=("bool",), not_recorded="dtype")
    run.write(tmp_path)
    assert reasons(nonfinite(tmp_path)) == [("gradient", None), ("g", None)]


@pytest.mark.parametrize(
    ("gradient_type", "health", "is_expected"),
    [("Mul", INF, True), ("Mul", NAN, False), ("RealDiv", INF, True), ("SqrtGrad", INF, True)],
)
def test_only_an_overflow_is(gradient_type: str, health: dict[str, object], is_expected: bool, tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    Step(run, gradient_type=gradient_type).call(health, is_applied=False)
    assert nonfinite(run.write(tmp_path))[0].is_expected == is_expected


def test_an_infinity_out_of_a_zero_is_not(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    step = Step(run, gradient_type="SqrtGrad")
    execution = run.execution("__step", inputs=[1, 2], graph=step.graph)
    run.tensor(step.graph, "x", counts(zero=1, pos=1), execution=execution)
    run.tensor(step.graph, "gradient", INF, execution=execution)
    run.tensor(step.skip, "half", CLEAN, site="cond/else/_2", execution=execution)
    assert [row.is_expected for row in nonfinite(run.write(tmp_path))] == [False]


@pytest.mark.parametrize("op_type", ["AssignVariableOp", "ResourceApplyAdam", "EagerPyFunc"])
def test_nor_is_what_an_op_with_an_effect_took_as_well(op_type: str, tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    step = Step(run)
    outputs = ("float32",) if op_type == "EagerPyFunc" else ()
    step.graph.op("effect", op_type, ["handle", "gradient"], dtypes=outputs, not_recorded="dtype")
    step.call(INF, is_applied=False)
    assert nonfinite(run.write(tmp_path))[0].is_expected is False


@pytest.mark.parametrize("health", [INF, NAN])
def test_what_no_op_took_is_expected(health: dict[str, object], tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    step = Step(run)
    step.graph.op("scaled_loss", "Mul", ["x"])
    step.call(CLEAN, is_applied=True)
    run.tensor(step.graph, "scaled_loss", health, execution=0)
    assert reasons(nonfinite(run.write(tmp_path))) == [("scaled_loss", UNUSED)]


def test_nor_what_the_call_gave_back(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    step = Step(run)
    step.graph.op("loss", "Sum", ["gradient"]).function("__step", ["x", "handle"], ["loss"])
    step.call(INF, is_applied=False)
    assert nonfinite(run.write(tmp_path))[0].is_expected is False


def test_without_call_sites_nothing_is_known_to_be_expected(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    step = Step(run)
    run.tensor(step.graph, "gradient", INF, step=None)
    assert [row.is_expected for row in nonfinite(run.write(tmp_path))] == [False]


def test_the_first_is_one_that_is_not_expected_where_there_is_one(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    step = Step(run)
    first = step.call(INF, is_applied=False, step=1)
    step.call(INF, is_applied=False, step=2)
    later = step.call(INF, is_applied=True, step=3)
    found = first_nonfinite(run.write(tmp_path / "both"))
    assert found is not None
    assert (found.event_index, found.is_expected) == (later, False)
    run = RunBuilder("run-b")
    Step(run).call(INF, is_applied=False)
    other = RunBuilder("run-c", wall_time_ns=1_800_000_000_000_000_000)
    applied = Step(other).call(INF, is_applied=True)
    logdir = other.write(run.write(tmp_path / "runs"))
    found = first_nonfinite(logdir)
    assert found is not None
    assert (found.run_id, found.event_index) == ("run-c", applied)
    found = first_nonfinite(logdir, run_id="run-b")
    assert found is not None
    assert (found.event_index, found.is_expected) == (first, True)


def test_an_eager_value_that_was_only_checked_is_a_result(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    made = run.execution("Mul", inputs=[1, 1], outputs={2: "float32"})
    run.eager(made, INF, tensor_id=2)
    check = run.execution("IsFinite", inputs=[2], outputs={3: "bool"})
    run.execution("All", inputs=[3], outputs={4: "bool"})
    assert check == 1
    logdir = run.write(tmp_path / "checked")
    assert [(row.effect, row.is_expected) for row in nonfinite(logdir)] == [("result", False)]
    run.execution("AssignSubVariableOp", inputs=[9, 2])
    assert [(row.effect, row.is_expected) for row in nonfinite(run.write(tmp_path / "assigned"))] == [
        ("variable", False)
    ]


def test_the_command_calls_it_healthy_and_says_so(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    Step(run).call(INF, is_applied=False)
    result = CliRunner().invoke(app, ["first-nonfinite", str(run.write(tmp_path))])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "Nothing is bad but what the program itself looked for and threw away. The first such value:"
    assert lines[1] == "+Inf in gradient:0 (Mul)"
    assert any(line.strip() == f"expected yes: {SKIPPED_STEP}" for line in lines)
