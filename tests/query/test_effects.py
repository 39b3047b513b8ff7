"""Test where bad values end up (in a variable, a result, a metric, or nowhere), and which op is to blame."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tfdbg_arrow.cli import app
from tfdbg_arrow.query import (
    CallSite,
    Forward,
    Frame,
    NonFinite,
    alerts,
    first_nonfinite,
    nonfinite,
    read_reasons,
    spread,
)
from tfdbg_arrow.query.flow.effects import LITERAL, LITERAL_FROM_OUTSIDE, LOG_OF_MASK, OVERFLOW_OF_MASK
from tfdbg_arrow.query.flow.walk import (
    ABSORBED,
    CAUGHT_ERROR,
    MADE_0,
    REJECTED,
    RETURNED_SCALAR,
    SKIPPED_BRANCH,
    SKIPPED_BY_LOSS_SCALING,
    SKIPPED_STEP,
    SKIPPED_UPDATE,
    UNREACHED,
    UNUSED,
    VANISHED,
    VANISHED_OR_READ,
)

from .builder import CLEAN, INF, NAN, NEG_INF, GraphBuilder, RunBuilder, counts


class Step:
    """A training step. `gradient` overflows, IsFinite checks it, and `cond` applies it or lowers the scale."""

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
        """Adds a call of the step and returns the event_index of the gradient."""
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


def test_a_bad_gradient_of_a_skipped_step_is_expected(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    Step(run).call(INF, is_applied=False)
    run.write(tmp_path)
    assert reasons(nonfinite(tmp_path)) == [("gradient", SKIPPED_STEP), ("g", SKIPPED_STEP)]


def test_a_bad_gradient_that_was_applied_is_not_expected(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    Step(run).call(INF, is_applied=True)
    run.write(tmp_path)
    assert reasons(nonfinite(tmp_path)) == [("gradient", None), ("g", None), ("scaled", None)]


def test_a_bad_input_of_a_branch_skipped_for_another_reason_is_expected(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    Step(run, with_check=False).call(INF, is_applied=False)
    run.graph("elsewhere").op("IsFinite", dtypes=("bool",), not_recorded="dtype")
    run.write(tmp_path)
    assert reasons(nonfinite(tmp_path)) == [("gradient", SKIPPED_BRANCH), ("g", SKIPPED_BRANCH)]


@pytest.mark.parametrize(
    ("gradient_type", "health", "is_expected"),
    [("Mul", INF, True), ("Mul", NAN, False), ("RealDiv", INF, True), ("SqrtGrad", INF, True)],
)
def test_in_a_skipped_step_only_an_overflow_is_expected(
    gradient_type: str, health: dict[str, object], is_expected: bool, tmp_path: Path
) -> None:
    run = RunBuilder("run-a")
    Step(run, gradient_type=gradient_type).call(health, is_applied=False)
    assert nonfinite(run.write(tmp_path))[0].is_expected == is_expected


def _choice(run: RunBuilder, branch_op: str, *, trace: str = "f", is_nan: bool = True) -> None:
    """Adds a call of a function that returns a constant for a NaN, and the result of a branch for other values."""
    graph = run.graph("f").op("x", "Placeholder").op("mean", "Mean", ["x"])
    graph.op("IsNan", inputs=["mean"], dtypes=("bool",), not_recorded="dtype").op("cond", "If", ["IsNan", "mean"])
    zero = run.graph("zero").op("m", "Placeholder").op("made", "Const").function(f"__zero_{trace}", ["m"], ["made"])
    value = run.graph("value").op("m", "Placeholder").op("made", branch_op, ["m"])
    value.function(f"__value_{trace}", ["m"], ["made"])
    graph.calls("cond", f"__zero_{trace}", zero, attribute="then_branch")
    graph.calls("cond", f"__value_{trace}", value, attribute="else_branch").function(f"__{trace}", ["x"], ["cond"])
    execution = run.execution(f"__{trace}", inputs=[1], graph=graph)
    run.tensor(graph, "mean", NAN if is_nan else CLEAN, execution=execution)
    branch, site = (zero, "cond/then/_1") if is_nan else (value, "cond/else/_2")
    run.tensor(branch, "made", CLEAN, site=site, execution=execution)


@pytest.mark.parametrize(
    ("branch_op", "reason"), [("Identity", SKIPPED_STEP), ("Reshape", SKIPPED_STEP), ("Log", None)]
)
def test_a_branch_that_would_only_hand_the_value_on_loses_no_step(
    branch_op: str, reason: str | None, tmp_path: Path
) -> None:
    run = RunBuilder("run-a")
    _choice(run, branch_op)
    assert answer(run, tmp_path) == ("mean", "absorbed", reason)
    result = CliRunner().invoke(app, ["first-nonfinite", str(tmp_path)])
    assert result.exit_code == (reason is None)
    assert ("the branch that would have used it never ran" in result.output) == (reason is None)


def test_a_step_that_another_trace_of_the_function_made_is_not_lost(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    _choice(run, "Log")
    _choice(run, "Log", trace="again", is_nan=False)
    assert answer(run, tmp_path) == ("mean", "absorbed", SKIPPED_STEP)


def test_an_infinity_from_a_zero_is_not_expected(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    step = Step(run, gradient_type="SqrtGrad")
    execution = run.execution("__step", inputs=[1, 2], graph=step.graph)
    run.tensors(step.graph, {"x": counts(zero=1, pos=1), "gradient": INF}, execution=execution)
    run.tensor(step.skip, "half", CLEAN, site="cond/else/_2", execution=execution)
    assert [row.is_expected for row in nonfinite(run.write(tmp_path))] == [False]


@pytest.mark.parametrize("op_type", ["AssignVariableOp", "ResourceApplyAdam", "EagerPyFunc"])
def test_a_bad_gradient_that_an_op_with_side_effects_also_used_is_not_expected(op_type: str, tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    step = Step(run)
    outputs = ("float32",) if op_type == "EagerPyFunc" else ()
    step.graph.op("effect", op_type, ["handle", "gradient"], dtypes=outputs, not_recorded="dtype")
    step.call(INF, is_applied=False)
    assert nonfinite(run.write(tmp_path))[0].is_expected is False


@pytest.mark.parametrize("health", [INF, NAN])
def test_a_bad_value_that_no_op_used_is_expected(health: dict[str, object], tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    step = Step(run)
    step.graph.op("scaled_loss", "Mul", ["x"])
    step.call(CLEAN, is_applied=True)
    run.tensor(step.graph, "scaled_loss", health, execution=0)
    assert reasons(nonfinite(run.write(tmp_path))) == [("scaled_loss", UNUSED)]


def test_a_bad_value_that_the_call_returned_is_not_expected(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    step = Step(run)
    step.graph.op("loss", "Sum", ["gradient"]).function("__step", ["x", "handle"], ["loss"])
    step.call(INF, is_applied=False)
    assert nonfinite(run.write(tmp_path))[0].is_expected is False


class ScaledStep(Step):
    """A step of an optimizer with a dynamic loss scale. The step returns the norm of the scaled gradient."""

    def __init__(self, run: RunBuilder, *, role: str = "gradient", results: Sequence[str] = ("norm",)) -> None:
        super().__init__(run)
        self.results = results
        self.graph.op("norm", "L2Loss", ["gradient"]).function("__step", ["x", "handle"], results)
        roles = {"gradient": role, "Assign": "optimizer"}
        for row in run.rows["graph_op"]:
            row["role"] = roles.get(row["op_name"], "forward")

    def call(self, health: dict[str, object], *, is_applied: bool, step: int = 1) -> int:
        """Adds a call of the step, with its results."""
        event = super().call(health, is_applied=is_applied, step=step)
        execution = len(self.run.rows["execution"]) - 1
        self.run.tensor(self.graph, "norm", {**health, "shape": []}, execution=execution, step=step)
        for slot, name in enumerate(self.results):
            tensor_id = 100 + 10 * execution + slot
            self.run.add(
                "execution_output", execution_index=execution, output_slot=slot, tensor_id=tensor_id, dtype="float32"
            )
            shape = [] if name == "norm" else [2]
            self.run.eager(execution, {**health, "shape": shape}, tensor_id=tensor_id, slot=slot)
        self.run.rows["execution"][execution]["num_outputs"] = len(self.results)
        return event

    def add_stack(self, *frame: str) -> None:
        """Adds a stack with one frame to the op that skips the step."""
        file_path, owner = frame
        stack = self.run.stack((file_path, 1, "apply", None, owner))
        (cond,) = (row for row in self.run.rows["graph_op"] if row["op_name"] == "cond")
        cond["stack_trace_id"] = stack


def test_the_returned_norm_of_a_skipped_step_does_no_harm(tmp_path: Path) -> None:
    step = ScaledStep(RunBuilder("run-a"))
    step.call(INF, is_applied=False, step=1)
    step.call(CLEAN, is_applied=True, step=2)
    logdir = step.run.write(tmp_path)
    assert answer(step.run, tmp_path) == ("gradient", "absorbed", SKIPPED_STEP + RETURNED_SCALAR)
    assert all(row.is_expected for row in nonfinite(logdir))


@pytest.mark.parametrize(
    "facts",
    [
        {"role": "forward"},
        {"results": ("gradient",)},
        {"results": ("norm", "gradient")},
        {"health": NAN},
        {"is_last": True},
        {"is_applied": True},
        {"writes": "norm"},
        {"taken_by": "Neg"},
        {"has_gradient": "norm"},
        {"has_gradient": "gradient"},
        {"is_of_optimizer": False},
    ],
    ids=str,
)
def test_another_bad_result_of_a_skipped_step_does_harm(facts: dict[str, Any], tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    step = ScaledStep(run, **{name: facts[name] for name in ("role", "results") if name in facts})
    if "writes" in facts:
        step.graph.op("tracked", "AssignVariableOp", ["handle", facts["writes"]], dtypes=())
    if "has_gradient" in facts:
        step.graph.op("penalty", "Mul", role="gradient", forward_graph_id=0, forward_op_name=facts["has_gradient"])
    if "is_of_optimizer" in facts:
        (assign,) = (row for row in run.rows["graph_op"] if row["op_name"] == "Assign")
        assign["role"] = "forward"
    health = facts.get("health", INF)
    step.call(health, is_applied=facts.get("is_applied", False), step=1)
    if "taken_by" in facts:
        run.eager_op(facts["taken_by"], {**health, "shape": []}, tensor_id=99, inputs=[100])
    if "is_last" not in facts:
        step.call(CLEAN, is_applied=True, step=2)
    assert not first_nonfinite(run.write(tmp_path)).is_expected


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (("/site-packages/keras/src/optimizers/loss_scale_optimizer.py", "library"), SKIPPED_BY_LOSS_SCALING),
        (("/site-packages/keras/src/optimizers/base_optimizer.py", "library"), SKIPPED_STEP),
    ],
)
def test_the_loss_scaling_is_named_if_it_skipped_the_step(frame: tuple[str, str], reason: str, tmp_path: Path) -> None:
    step = ScaledStep(RunBuilder("run-a"), results=())
    step.add_stack(*frame)
    step.call(INF, is_applied=False)
    assert answer(step.run, tmp_path) == ("gradient", "absorbed", reason)


def test_without_call_sites_no_bad_value_is_expected(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    step = Step(run)
    run.tensor(step.graph, "gradient", INF, step=None)
    assert [row.is_expected for row in nonfinite(run.write(tmp_path))] == [False]


def test_an_unexpected_bad_value_comes_before_expected_ones(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    step = Step(run)
    first = step.call(INF, is_applied=False, step=1)
    step.call(INF, is_applied=False, step=2)
    later = step.call(INF, is_applied=True, step=3)
    found = first_nonfinite(run.write(tmp_path / "both"))
    assert (found.event_index, found.is_expected) == (later, False)
    run = RunBuilder("run-b")
    Step(run).call(INF, is_applied=False)
    other = RunBuilder("run-c", wall_time_ns=1_800_000_000_000_000_000)
    applied = Step(other).call(INF, is_applied=True)
    logdir = other.write(run.write(tmp_path / "runs"))
    found = first_nonfinite(logdir, run_id="all")
    assert (found.run_id, found.event_index) == ("run-c", applied)
    found = first_nonfinite(logdir, run_id="run-b")
    assert (found.event_index, found.is_expected) == (first, True)


def test_a_bad_eager_value_that_was_only_checked_is_a_result(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    run.eager_op("Mul", INF, tensor_id=2, inputs=[1, 1])
    check = run.execution("IsFinite", inputs=[2], outputs={3: "bool"})
    run.execution("All", inputs=[3], outputs={4: "bool"})
    assert check == 1
    logdir = run.write(tmp_path / "checked")
    assert [(row.effect, row.is_expected) for row in nonfinite(logdir)] == [("result", False)]
    run.execution("AssignSubVariableOp", inputs=[9, 2])
    logdir = run.write(tmp_path / "assigned")
    assert [(row.effect, row.is_expected) for row in nonfinite(logdir)] == [("variable", False)]


def test_the_command_exits_with_0_if_all_bad_values_are_expected(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    Step(run).call(INF, is_applied=False)
    result = CliRunner().invoke(app, ["first-nonfinite", str(run.write(tmp_path))])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("The bad values did no harm: +Inf came up in gradient:0")
    assert any(line.strip() == f"effect  no harm: {SKIPPED_STEP}" for line in lines)


class Training:
    """A training function with an argument `x` and a variable `w`. Tests add ops and then call the function."""

    def __init__(self, run: RunBuilder) -> None:
        self.run = run
        self.graph = run.graph("step").op("x", "Placeholder").op("w", "Placeholder", dtypes=("resource",))
        self._values: dict[str, dict[str, object]] = {"x": CLEAN}

    def op(
        self, name: str, op_type: str, inputs: list[str], health: dict[str, object] | None, *, role: str = "forward"
    ) -> Training:
        """Adds an op. If the health is None, the op has no output."""
        self.graph.op(name, op_type, inputs, dtypes=("float32",) if health else ())
        self.run.rows["graph_op"][-1]["role"] = role
        if health:
            self._values[name] = health
        return self

    def call(self, *results: str) -> None:
        """Adds a call of the function. Nothing uses its results."""
        self.graph.function("__step", ["x", "w"], results)
        ids = {100 + index: "float32" for index in range(len(results))}
        execution = self.run.execution("__step", inputs=[1, 2], outputs=ids, graph=self.graph)
        self.run.tensors(self.graph, self._values, execution=execution)
        for slot, (tensor_id, result) in enumerate(zip(ids, results, strict=True)):
            self.run.eager(execution, self._values[result], tensor_id=tensor_id, slot=slot)


def answer(run: RunBuilder, directory: Path) -> tuple[str | None, str | None, str | None]:
    found = first_nonfinite(run.write(directory))
    return found.op_name, found.effect, found.expected_reason


def test_a_bad_variable_outranks_a_bad_result_which_outranks_a_bad_metric(tmp_path: Path) -> None:
    def training(run: RunBuilder, *, writes: bool, returns: bool) -> RunBuilder:
        step = Training(run).op("score", "RealDiv", ["x"], NAN, role="metric")
        step.op("total", "AssignAddVariableOp", ["w", "score"], None, role="metric").op("loss", "Log", ["x"], INF)
        step.op("grad", "Sqrt", ["x"], NAN)
        if writes:
            step.op("update", "AssignSubVariableOp", ["w", "grad"], None, role="optimizer")
        step.call(*(["loss"] if returns else []))
        return run

    assert answer(training(RunBuilder("a"), writes=True, returns=True), tmp_path / "a") == ("grad", "variable", None)
    assert answer(training(RunBuilder("b"), writes=False, returns=True), tmp_path / "b") == ("loss", "result", None)
    assert answer(training(RunBuilder("c"), writes=False, returns=False), tmp_path / "c") == ("score", "metric", None)


def test_the_first_call_that_did_harm_decides(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    step = Training(run).op("a", "Log", ["x"], NAN).op("b", "Sqrt", ["x"], NAN)
    step.op("update", "AssignSubVariableOp", ["w", "b"], None, role="optimizer").call("a")
    run.eager_op("Neg", NAN, tensor_id=101, inputs=[100])
    run.execution("AssignVariableOp", inputs=[2, 101], outputs={})
    assert answer(run, tmp_path)[:2] == ("b", "variable")
    effects = {found.op_name: found.effect for found in nonfinite(tmp_path, limit=None) if found.is_origin}
    assert effects == {"a": "variable", "b": "variable"}


def test_a_bad_value_is_absorbed_if_everything_computed_from_it_is_finite(tmp_path: Path) -> None:
    step = Training(RunBuilder("run-a")).op("log", "Log", ["x"], NEG_INF).op("clip", "Maximum", ["log"], CLEAN)
    step.call("clip")
    assert answer(step.run, tmp_path) == ("log", "absorbed", ABSORBED)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_the_origin_that_was_created_first_is_named_whichever_event_came_first(
    order: tuple[str, str], tmp_path: Path
) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("a", "Log").op("b", "Sqrt").op("sum", "AddV2", ["a", "b"])
    graph.function("__f", [], ["sum"])
    call = run.execution("__f", outputs={100: "float32"}, graph=graph)
    for name in (*order, "sum"):
        run.tensor(graph, name, NAN, execution=call)
    run.eager(call, NAN, tensor_id=100)
    assert answer(run, tmp_path)[:2] == ("a", "result")


def test_a_computed_infinity_is_to_blame_for_the_nan_made_from_it(tmp_path: Path) -> None:
    step = Training(RunBuilder("run-a")).op("log", "Log", ["x"], NEG_INF).op("mul", "Mul", ["x", "log"], NAN)
    step.call("mul")
    assert answer(step.run, tmp_path) == ("log", "result", None)


ALL_INF = counts(neg_inf=2, zero=3)


@pytest.mark.parametrize(
    ("mask", "softmax", "expected"),
    [
        (ALL_INF, CLEAN, ("mask", "absorbed", LITERAL)),
        (ALL_INF, NAN, ("softmax", "result", None)),
        (counts(pos_inf=1, pos=2), NAN, ("mask", "result", None)),
    ],
    ids=["mask", "everything-is-masked", "data"],
)
def test_a_literal_infinity_is_not_to_blame(
    mask: dict[str, object],
    softmax: dict[str, object],
    expected: tuple[str | None, str | None, str | None],
    tmp_path: Path,
) -> None:
    step = Training(RunBuilder("run-a")).op("mask", "Const", [], mask).op("logits", "AddV2", ["x", "mask"], mask)
    step.op("softmax", "Softmax", ["logits"], softmax).call("softmax")
    assert answer(step.run, tmp_path) == expected


MASK = counts(zero=2, pos=3)


def masked_scores(
    run: RunBuilder,
    *,
    made: Sequence[tuple[str, str]] = (("Cast", "bool"),),
    log: dict[str, object] = ALL_INF,
    user: str = "AddV2",
    scores: dict[str, object] = CLEAN,
    result: str = "Softmax",
    softmax: dict[str, object] = CLEAN,
) -> RunBuilder:
    """Adds a step that computes scores plus the logarithm of a mask.

    Args:
        run: The run.
        made: (op type, dtype of its input) for each op that makes the mask, beginning with the op that takes the
            argument.
        log: The health of the logarithm.
        user: The op that takes the logarithm.
        scores: The health of the other tensor that `user` takes.
        result: The op that makes the function's result.
        softmax: The health of the function's result.
    """
    graph = run.graph("step").op("x", "Placeholder").op("given", "Placeholder", dtypes=(made[0][1],))
    names, dtypes = (
        ["given", *(f"made_{index}" for index in range(len(made)))],
        [*(dtype for _, dtype in made[1:]), "float32"],
    )
    for source, name, (op_type, _), dtype in zip(names, names[1:], made, dtypes, strict=False):
        graph.op(name, op_type, [source], dtypes=(dtype,), not_recorded=None if dtype == "float32" else "dtype")
    graph.op("log", "Log", [names[-1]]).op("scores", user, ["x", "log"]).op("softmax", result, ["scores"])
    graph.function("__step", ["x", "given"], ["softmax", "scores"])
    call = run.execution("__step", inputs=[1, 2], outputs={100: "float32", 101: "float32"}, graph=graph)
    healths = {"x": scores, "log": log, "scores": log, "softmax": softmax}
    healths |= {name: MASK for name, dtype in zip(names, (made[0][1], *dtypes), strict=True) if dtype == "float32"}
    run.tensors(graph, healths, execution=call)
    run.external(1, scores, execution=call)
    if made[0][1] == "float32":
        run.external(2, MASK, execution=call)
    run.eager(call, softmax, tensor_id=100)
    run.eager(call, log, tensor_id=101, slot=1)
    return run


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"made": (("Cast", "int32"),)},
        {"made": (("Equal", "int32"), ("Cast", "bool"), ("ExpandDims", "float32"))},
        {"made": (("OneHot", "int32"), ("Reshape", "float32"))},
        {"made": (("Reshape", "float32"),)},
    ],
    ids=["booleans", "given-integers", "comparison", "one-hot", "given-floats"],
)
def test_the_logarithm_of_a_mask_is_a_literal(facts: dict[str, Any], tmp_path: Path) -> None:
    assert answer(masked_scores(RunBuilder("a"), **facts), tmp_path) == ("log", "absorbed", LOG_OF_MASK)


@pytest.mark.parametrize(
    "facts",
    [
        {"made": (("Sigmoid", "float32"),)},
        {"made": (("Sum", "int32"), ("Cast", "int32"))},
        {"log": counts(neg_inf=2, neg=3)},
        {"log": counts(neg_inf=5)},
        {"user": "Mul"},
        {"scores": counts(pos=1)},
        {"made": (("Reshape", "float32"),), "result": "Mul", "softmax": NAN},
    ],
    ids=["probabilities", "counts", "other-numbers", "nothing-is-kept", "product", "epsilon", "given-floats-and-nan"],
)
def test_the_logarithm_of_other_zeros_and_ones_is_no_literal(facts: dict[str, Any], tmp_path: Path) -> None:
    assert answer(masked_scores(RunBuilder("a"), **facts), tmp_path) == ("log", "result", None)


def test_the_sum_of_the_logarithms_of_zeros_and_ones_is_no_mask(tmp_path: Path) -> None:
    """An event can have the probability 0, and its opposite then has the probability 1."""
    run = RunBuilder("run-a")
    graph = run.graph("step").op("p", "Placeholder").op("opposite", "Sub", ["p"]).op("log", "Log", ["p"])
    graph.op("other", "Log", ["opposite"]).op("sum", "AddV2", ["log", "other"]).function("__step", ["p"], ["sum"])
    call = run.execution("__step", inputs=[1], outputs={100: "float32"}, graph=graph)
    run.external(1, MASK, execution=call)
    run.tensors(graph, {"p": MASK, "opposite": MASK, "log": ALL_INF, "other": ALL_INF}, execution=call)
    run.tensor(graph, "sum", counts(neg_inf=5), execution=call)
    run.eager(call, counts(neg_inf=5), tensor_id=100)
    assert answer(run, tmp_path) == ("log", "result", None)


@pytest.mark.parametrize("made", [("Cast", "bool"), ("Reshape", "float32")])
def test_a_nan_made_of_the_logarithm_of_a_mask_is_harmful(made: tuple[str, str], tmp_path: Path) -> None:
    run = masked_scores(RunBuilder("a"), made=(made,), softmax=NAN)
    assert answer(run, tmp_path) == ("softmax", "result", None)


LOW = counts(zero=2, neg=3)
OVERFLOWED = counts(neg_inf=3, zero=2)


def scores_with_low_mask(
    *,
    factor: str = "keep",
    number: str = "Const",
    mask: dict[str, object] = LOW,
    op_type: str = "AddV2",
    scale: str | None = None,
    softmax: dict[str, object] = CLEAN,
) -> RunBuilder:
    """Returns a step that adds a product to scores. The sum overflows, or its product with a number.

    Args:
        factor: A tensor of the step: the argument `keep`, the variable `weight`, or its Relu `relu`.
        number: The op that makes the other factor.
        mask: The health of the product.
        op_type: The op that adds or subtracts the product.
        scale: The op that scales the sum with a number; None if the sum itself overflows.
        softmax: The health of the step's result.
    """
    run = RunBuilder("a")
    graph = (
        run.graph("step").op("x", "Placeholder").op("keep", "Placeholder").op("w", "Placeholder", dtypes=("resource",))
    )
    graph.op("weight", "ReadVariableOp", ["w"]).op("relu", "Relu", ["weight"]).op("number", number)
    graph.op("mask", "Mul", [factor, "number"]).op("sum", op_type, ["x", "mask"])
    overflow = "sum" if scale is None else "scaled"
    graph.op("scaled", scale or "Identity", ["sum", "number"]).op("softmax", "Softmax", [overflow])
    graph.function("__step", ["x", "keep", "w"], ["softmax"])
    call = run.execution("__step", inputs=[1, 2, 3], outputs={100: "float32"}, graph=graph)
    one_number = {**counts(neg=1), "rank": 0, "shape": []}
    healths = {"x": CLEAN, "keep": MASK, "weight": MASK, "relu": MASK, "number": one_number, "mask": mask}
    healths |= {"sum": counts(neg=5) if scale else OVERFLOWED, **({"scaled": OVERFLOWED} if scale else {})}
    run.tensors(graph, {**healths, "softmax": softmax}, execution=call)
    run.external(1, CLEAN, execution=call)
    run.external(2, MASK, execution=call)
    run.eager(call, softmax, tensor_id=100)
    return run


@pytest.mark.parametrize("facts", [{}, {"op_type": "Sub", "mask": MASK}, {"scale": "RealDiv"}, {"scale": "Mul"}])
def test_the_overflow_of_a_sum_with_a_mask_of_low_numbers_is_a_literal(facts: dict[str, Any], tmp_path: Path) -> None:
    finite, nan = scores_with_low_mask(**facts), scores_with_low_mask(**facts, softmax=NAN)
    overflow = "scaled" if "scale" in facts else "sum"
    assert answer(finite, tmp_path / "finite") == (overflow, "absorbed", OVERFLOW_OF_MASK)
    why = read_reasons(tmp_path / "finite", first_nonfinite(tmp_path / "finite"))
    assert why.explanation.repair.startswith("Mask with a large negative number such as -1e9")
    assert answer(nan, tmp_path / "nan") == ("softmax", "result", None)


@pytest.mark.parametrize(
    "facts",
    [
        {"factor": "relu"},
        {"factor": "weight"},
        {"number": "Exp"},
        {"mask": counts(zero=1, neg=3, pos=1)},
        {"op_type": "Sub"},
        {"mask": MASK},
        {"scale": "Square"},
        {"scale": "Mul", "mask": counts(zero=3, neg=2)},  # more elements overflow than the mask has
    ],
)
def test_the_overflow_of_another_sum_is_to_blame(facts: dict[str, Any], tmp_path: Path) -> None:
    overflow = "scaled" if "scale" in facts else "sum"
    assert answer(scores_with_low_mask(**facts, softmax=NAN), tmp_path) == (overflow, "result", None)


@pytest.mark.parametrize("start", [counts(pos_inf=1, zero=1), counts(neg_inf=2)])
def test_an_infinity_from_outside_is_not_said_to_be_of_the_program(start: dict[str, object], tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    minimum = run.execution("Minimum", inputs=[1, 2], outputs={3: "float32"})
    run.external(1, start, execution=minimum)
    run.external(2, CLEAN, execution=minimum)
    run.eager(minimum, CLEAN, tensor_id=3)
    assert answer(run, tmp_path) == (None, "absorbed", LITERAL_FROM_OUTSIDE)


@pytest.mark.parametrize(
    ("code", "shape", "reason"),
    [
        ("best = tf.minimum(np.inf, loss)", [], LITERAL),
        ('best = tf.minimum(float("inf"), loss)', [], LITERAL),
        ("best = tf.minimum(start, loss)  # is_inf", [], LITERAL_FROM_OUTSIDE),
        ("best = tf.minimum(np.full(1, np.inf), loss)", [1], LITERAL_FROM_OUTSIDE),
    ],
)
def test_an_infinite_number_in_the_code_is_of_the_program(
    code: str, shape: list[int], reason: str, tmp_path: Path
) -> None:
    run = RunBuilder("run-a")
    stack = run.stack(("/home/me/train.py", 9, "<module>", code, "user"))
    minimum = run.execution("Minimum", inputs=[1, 2], outputs={3: "float32"}, stack=stack)
    run.external(1, {**counts(pos_inf=1), "shape": shape}, execution=minimum)
    run.eager(minimum, CLEAN, tensor_id=3)
    assert answer(run, tmp_path) == (None, "absorbed", reason)
    found = first_nonfinite(tmp_path)
    assert (found.headline == "The bad values did no harm: the program wrote +Inf at train.py:9.") == (
        reason == LITERAL
    )


LOGARITHMS = counts(neg_inf=2, neg=3)


@pytest.mark.parametrize(
    ("table", "op_type", "taken", "blamed"),
    [
        (LOGARITHMS, "Sub", ["logits", "max"], "result"),
        (LOGARITHMS, "Sub", ["max", "logits"], "result"),
        (LOGARITHMS, "LogSoftmax", ["logits"], "result"),
        (LOGARITHMS, "Sub", ["logits", "other"], "table"),
        (LOGARITHMS, "Sub", ["logits", "mean"], "table"),
        (LOGARITHMS, "Mul", ["x", "table"], "table"),
        (LOGARITHMS, "MatMul", ["x", "table"], "table"),
        (counts(neg_inf=2, pos=3), "Sub", ["logits", "max"], "table"),
        (counts(neg_inf=2, neg=3, nan=1), "LogSoftmax", ["logits"], "table"),
        (counts(neg_inf=2, pos_inf=1, neg=3), "LogSoftmax", ["logits"], "table"),
    ],
)  # fmt: skip
def test_the_logarithms_of_probabilities_are_not_to_blame_for_a_row_of_zeros(
    table: dict[str, object], op_type: str, taken: list[str], blamed: str, tmp_path: Path
) -> None:
    step = Training(RunBuilder("run-a")).op("table", "Const", [], table).op("logits", "AddV2", ["x", "table"], table)
    step.op("other", "AddV2", ["x", "table"], table).op("max", "Max", ["logits"], table)
    step.op("mean", "Mean", ["logits"], table)
    step.op("result", op_type, taken, {**NAN, **LOGARITHMS, "num_nan": 1}).op("sum", "AddV2", ["result", "logits"], NAN)
    step.call("sum")
    assert answer(step.run, tmp_path)[0] == blamed


def test_logarithms_whose_sign_changed_are_to_blame(tmp_path: Path) -> None:
    step = Training(RunBuilder("run-a")).op("table", "Const", [], LOGARITHMS)
    step.op("logits", "Sub", ["x", "table"], counts(pos_inf=2, pos=3)).op("softmax", "Softmax", ["logits"], NAN)
    step.call("softmax")
    assert answer(step.run, tmp_path)[0] == "table"


SCALAR_INF = {**counts(pos_inf=1), "rank": 0, "shape": []}


def sentence(logdir: Path) -> str:
    found = first_nonfinite(logdir)
    assert found is not None
    return read_reasons(logdir, found).explanation.sentence


def log_likelihood(run: RunBuilder, *, has_gradient: bool) -> RunBuilder:
    """Returns a step that sums masked logits to a scalar, and optionally takes the gradient of the scalar."""
    step = Training(run).op("mask", "Const", [], ALL_INF).op("logits", "AddV2", ["x", "mask"], ALL_INF)
    step.op("sum", "Sum", ["logits"], SCALAR_INF).op("scaled", "Mul", ["sum"], SCALAR_INF)
    if has_gradient:
        for forward in ("sum", "scaled"):
            step.op(f"gradient_of_{forward}", "Fill", [], CLEAN, role="gradient")
            run.rows["graph_op"][-1] |= {"forward_graph_id": step.graph.graph_id, "forward_op_name": forward}
    step.call("scaled")
    return run


def test_an_infinite_loss_of_a_mask_is_harmful_and_another_scalar_is_not(tmp_path: Path) -> None:
    loss = log_likelihood(RunBuilder("run-a"), has_gradient=True)
    assert answer(loss, tmp_path / "loss") == ("sum", "result", None)
    assert sentence(tmp_path / "loss").startswith("Sum: the loss is infinite because of infinities that the program")
    other = log_likelihood(RunBuilder("run-a"), has_gradient=False)
    assert answer(other, tmp_path / "other") == ("mask", "absorbed", LITERAL)


@pytest.mark.parametrize("op_type", ["SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"])
def test_a_masked_class_of_a_label_is_harmful(op_type: str, tmp_path: Path) -> None:
    step = Training(RunBuilder("run-a")).op("mask", "Const", [], ALL_INF).op("logits", "AddV2", ["x", "mask"], ALL_INF)
    step.op("labels", "Const", [], counts(zero=4, pos=1))
    step.op("loss", op_type, ["logits", "labels"], counts(pos_inf=1, pos=3)).op(
        "mean", "Mean", ["loss"], SCALAR_INF
    ).call("mean")
    assert answer(step.run, tmp_path) == ("loss", "result", None)
    assert sentence(tmp_path).startswith(f"{op_type}: the logit of a label is -Inf. In the logits, 2 of 5 elements are")


def test_a_bad_forward_op_is_blamed_instead_of_its_gradient(tmp_path: Path) -> None:
    def training(run: RunBuilder, log: dict[str, object]) -> RunBuilder:
        step = Training(run).op("log", "Log", ["x"], log).op("where", "SelectV2", ["log"], CLEAN)
        step.op("reciprocal", "Reciprocal", ["x"], INF, role="gradient")
        run.rows["graph_op"][-1] |= {"forward_graph_id": step.graph.graph_id, "forward_op_name": "log"}
        step.op("grad", "Mul", ["where", "reciprocal"], NAN, role="gradient")
        step.op("update", "AssignSubVariableOp", ["w", "grad"], None, role="optimizer").call()
        return run

    assert answer(training(RunBuilder("a"), NEG_INF), tmp_path / "a") == ("log", "variable", None)
    found = first_nonfinite(training(RunBuilder("b"), CLEAN).write(tmp_path / "b"))
    assert (found.op_name, found.role, found.effect) == ("reciprocal", "gradient", "variable")
    assert found.forward == Forward(op_type="Log", op_name="log", graph_name="step", layer=None, source=None)


def test_the_answer_has_the_layer_and_the_calling_functions(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    inner = run.graph("inner").op("x", "Placeholder").op("Log", inputs=["x"]).function("inner_1", ["x"], ["Log"])
    line = ("/home/me/model.py", 7, "call", "return inner(x)", "user")
    start = ("/home/me/train.py", 3, "<module>", "outer(x)", "user")
    outer = run.graph("outer").op("a", "Mul").op("call", "PartitionedCall", ["a"], stack=run.stack(line))
    run.rows["graph_op"][-1]["layer"] = "encoder/dense"
    outer.calls("call", "inner_1", inner).function("outer_2", [], ["call"])
    call = run.execution("outer_2", outputs={100: "float32"}, graph=outer, stack=run.stack(start))
    run.tensor(outer, "a", CLEAN, execution=call)
    run.tensor(inner, "Log", NAN, execution=call, site="call")
    run.eager(call, NAN, tensor_id=100)
    found = first_nonfinite(run.write(tmp_path))
    assert (found.op_name, found.layer, found.source) == ("Log", "encoder/dense", Frame(*line))
    assert found.called_from == (
        CallSite(function="inner", op_name="call", graph_name="outer", layer="encoder/dense", source=Frame(*line)),
        CallSite(function="outer", op_name=None, graph_name=None, layer=None, source=Frame(*start)),
    )


def test_a_bad_gradient_of_a_single_skipped_update_is_expected(tmp_path: Path) -> None:
    """The program checks gradients with NumPy, and applies only finite gradients."""

    def training(run: RunBuilder, *gradients: dict[str, object]) -> RunBuilder:
        line = run.stack(("/home/me/train.py", 5, "step", "tape.gradient(loss, w)", "user"))
        for index, health in enumerate(gradients):
            made = run.execution("Mul", inputs=[1, 1], outputs={10 + index: "float32"}, stack=line)
            run.rows["execution"][-1]["role"] = "gradient"
            run.eager(made, health, tensor_id=10 + index)
            if health is CLEAN:
                run.execution("AssignSubVariableOp", inputs=[9, 10 + index])
        return run

    assert answer(training(RunBuilder("a"), CLEAN, INF, CLEAN), tmp_path / "a") == (None, "absorbed", SKIPPED_UPDATE)
    assert answer(training(RunBuilder("b"), CLEAN, INF), tmp_path / "b") == (None, "result", None)
    assert answer(training(RunBuilder("c"), INF, INF), tmp_path / "c") == (None, "result", None)


@pytest.mark.parametrize(
    ("calls", "is_harmless"),
    [
        (((INF, "IsFinite"), (CLEAN, "LessEqual"), (NAN, None), (CLEAN, "LessEqual")), True),
        (((NAN, None), (CLEAN, "LessEqual"), (CLEAN, "LessEqual")), True),
        (((CLEAN, "LessEqual"), (CLEAN, "LessEqual"), (NAN, None)), False),
        (((NAN, None), (CLEAN, "LessEqual")), False),
        (((NAN, None), (CLEAN, "LessEqual"), (CLEAN, None), (CLEAN, "LessEqual")), False),
        (((NAN, None), (CLEAN, "LessEqual"), (NAN, "LessEqual"), (CLEAN, "LessEqual")), False),
        (((NAN, None), (CLEAN, None), (CLEAN, None)), False),
        (((NAN, "IsFinite"), (CLEAN, "IsFinite"), (CLEAN, "IsFinite")), False),
    ],
)
def test_a_search_may_reject_bad_values(
    calls: Sequence[tuple[dict[str, object], str | None]], is_harmless: bool, tmp_path: Path
) -> None:
    """A line search compares each finite objective with the best one.

    After a bad objective, the search tries another step.
    """
    run = RunBuilder("run-a")
    _search(run, calls, source="while True:\n    trial = objective(w - step * g)\n    np.isfinite(trial)\n")
    assert answer(run, tmp_path) == ("exp", *(("absorbed", REJECTED) if is_harmless else ("result", None)))


@pytest.mark.parametrize(
    "source",
    [
        "while True:\n    trial = objective(w - step * g)\n",
        "np.isfinite(x)\ntrial = objective(w - step * g)\n",
        "for x in data:\n    trial = objective(w - step * g)\nnp.isfinite(x)\n",
        "while (\n",
    ],
)
def test_a_loop_that_does_not_ask_for_finite_numbers_rejects_none(source: str, tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    _search(run, [(NAN, None), (CLEAN, "LessEqual"), (CLEAN, "LessEqual")], source=source)
    assert answer(run, tmp_path) == ("exp", "result", None)


@pytest.mark.parametrize(
    ("calls", "facts", "is_said"),
    [
        (((INF, None), (CLEAN, None)), {}, True),
        (((CLEAN, None), (INF, "IsFinite"), (CLEAN, "IsFinite")), {}, True),
        (((CLEAN, None), (INF, None)), {}, False),
        (((INF, None), (CLEAN, None)), {"shape": [2]}, False),
        (((INF, None), (CLEAN, None)), {"writes": True}, False),
        (((INF, None), (CLEAN, None)), {"has_gradient": True}, False),
        (((INF, None), (NAN, "Less"), (CLEAN, None)), {}, False),
    ],
)
def test_the_fix_says_that_a_search_may_reject_bad_values(
    calls: Sequence[tuple[dict[str, object], str | None]], facts: dict[str, Any], is_said: bool, tmp_path: Path
) -> None:
    run = RunBuilder("run-a")
    _search(run, calls, **facts)
    assert answer(run, tmp_path) == ("exp", "result", None)
    found = first_nonfinite(tmp_path)
    assert found is not None
    explanation = read_reasons(tmp_path, found).explanation
    assert explanation.repair.startswith("Change nothing if the program rejects such a result, as a search") == is_said


def _search(
    run: RunBuilder,
    calls: Sequence[tuple[dict[str, object], str | None]],
    *,
    shape: Sequence[int] = (),
    writes: bool = False,
    has_gradient: bool = False,
    source: str = "",
) -> None:
    """Adds calls of a function from line 2 of a file.

    Args:
        run: The run.
        calls: For each call, the health of its result and the type of the op that took this result.
        shape: The shape of the result.
        writes: Whether the function writes to a variable.
        has_gradient: Whether the program takes the gradient of the function.
        source: The text of the file.
    """
    line = run.stack(("/home/me/train.py", 2, "<module>", "trial = objective(w - step * g)", "user"))
    run.add("source_file", file_path="/home/me/train.py", source_text=source)
    graph = run.graph("objective").op("x", "Placeholder").op("exp", "Exp", ["x"], role="forward")
    if writes:
        graph.op("w", "Placeholder", dtypes=("resource",)).op("write", "AssignAddVariableOp", ["w", "x"], dtypes=())
    if has_gradient:
        graph.op("gradient", "Mul", ["x"], role="gradient", forward_graph_id=0, forward_op_name="exp")
    graph.function("__objective", ["x"], ["exp"])
    for index, (health, user) in enumerate(calls):
        call = run.execution("__objective", inputs=[1], outputs={10 + index: "float32"}, graph=graph, stack=line)
        run.tensors(graph, {"x": CLEAN, "exp": health}, execution=call, step=index + 1)
        run.eager(call, {**health, "shape": list(shape)}, tensor_id=10 + index)
        if user is not None:
            run.execution(user, inputs=[10 + index, 2], outputs={50 + index: "bool"})


@pytest.mark.parametrize(
    ("op_type", "result", "reason"),
    [
        ("Rsqrt", counts(zero=1, pos=1), MADE_0.format("Rsqrt")),
        ("Rsqrt", CLEAN, ABSORBED),
        ("Softmax", counts(zero=1, pos=1), ABSORBED),
    ],
)
def test_a_division_that_made_0_of_an_infinity(
    op_type: str, result: dict[str, object], reason: str, tmp_path: Path
) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Placeholder").op("total", "Sum", ["x"]).op("made", op_type, ["total"])
    graph.function("__f", ["x"], ["made"])
    call = run.execution("__f", inputs=[1], outputs={100: "float32"}, graph=graph)
    run.tensors(graph, {"x": CLEAN, "total": INF, "made": result}, execution=call)
    run.eager(call, result, tensor_id=100)
    assert answer(run, tmp_path) == ("total", "absorbed", reason)


def test_an_output_that_is_only_for_the_gradient_is_not_a_result(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("mask", "Log").op("y", "Softmax", ["mask"]).function("__f", [], ["y", "mask"])
    call = run.execution("__f", outputs={100: "float32", 101: "float32"}, graph=graph)
    run.rows["execution"][-1]["num_outputs"] = 1
    run.tensors(graph, {"mask": NEG_INF, "y": CLEAN}, execution=call)
    run.eager(call, CLEAN, tensor_id=100)
    run.eager(call, NEG_INF, tensor_id=101, slot=1)
    assert answer(run, tmp_path) == ("mask", "absorbed", VANISHED)


def test_bad_data_that_is_only_stored_in_a_variable_does_no_harm(tmp_path: Path) -> None:
    def variable(run: RunBuilder, read: dict[str, object] | None, op_type: str = "Square") -> RunBuilder:
        assign = run.execution("AssignVariableOp", inputs=[9, 5])
        run.external(5, counts(nan=1, pos=3), execution=assign)
        if read:
            run.eager_op(op_type, read, tensor_id=6, inputs=[5])
        return run

    assert answer(variable(RunBuilder("a"), CLEAN), tmp_path / "a") == (None, "absorbed", ABSORBED)
    assert answer(variable(RunBuilder("b"), NAN), tmp_path / "b") == (None, "result", None)
    # A slice only moves elements.
    assert answer(variable(RunBuilder("c"), NAN, "Slice"), tmp_path / "c") == (None, "absorbed", UNREACHED)


def test_the_origin_in_an_input_pipeline_is_found_from_its_element(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    pipeline = run.graph("Dataset_map").op("x", "Placeholder").op("Log", inputs=["x"]).function("map", ["x"], ["Log"])
    step = run.graph("step").op("next", "IteratorGetNext").op("loss", "Mul", ["next"]).function("step_1", [], ["loss"])
    run.tensors(pipeline, {"x": CLEAN, "Log": NEG_INF}, step=7)
    call = run.execution("step_1", outputs={100: "float32"}, graph=step)
    run.tensors(step, {"next": NEG_INF, "loss": NEG_INF}, execution=call)
    run.eager(call, NEG_INF, tensor_id=100)
    assert answer(run, tmp_path) == ("Log", "result", None)


class Classifier:
    """A function of `x` whose op `log` is bad. The op `choice` computes an integer or a boolean from `log`."""

    def __init__(self, op_type: str, health: dict[str, object], *, dtype: str = "int64", is_used: bool = True) -> None:
        self.run = RunBuilder("run-a")
        inputs = ["log", "log"] if op_type == "NotEqual" else ["log"]
        self.graph = self.run.graph("classify").op("x", "Placeholder").op("log", "Log", ["x"])
        self.graph.op("choice", op_type, inputs, dtypes=(dtype,), not_recorded="dtype")
        self.graph.op("y", "Mul", ["x"]).function("__classify", ["x"], ["choice" if is_used else "y"])
        self.call = self.run.execution("__classify", inputs=[1], outputs={100: dtype}, graph=self.graph)
        self.run.tensors(self.graph, {"x": CLEAN, "log": health}, execution=self.call)


@pytest.mark.parametrize(
    ("op_type", "dtype"),
    [("ArgMax", "int64"), ("Cast", "int32"), ("Greater", "bool"), ("TopKV2", "int32"), ("Where", "int64")],
)
def test_a_nan_of_which_a_function_makes_an_integer_or_a_boolean_did_harm(
    op_type: str, dtype: str, tmp_path: Path
) -> None:
    nan = Classifier(op_type, NAN, dtype=dtype)
    assert answer(nan.run, tmp_path / "nan") == ("log", "result", None)
    infinity = Classifier(op_type, NEG_INF, dtype=dtype)
    assert answer(infinity.run, tmp_path / "inf") == ("log", "absorbed", ABSORBED)


@pytest.mark.parametrize(("op_type", "dtype"), [("IsNan", "bool"), ("NotEqual", "bool"), ("Shape", "int32")])
def test_a_check_and_a_shape_do_not_depend_on_a_nan(op_type: str, dtype: str, tmp_path: Path) -> None:
    assert answer(Classifier(op_type, NAN, dtype=dtype).run, tmp_path)[1] == "absorbed"


def test_an_integer_that_nothing_uses_did_no_harm(tmp_path: Path) -> None:
    assert answer(Classifier("ArgMax", NAN, is_used=False).run, tmp_path)[1] == "absorbed"


def test_a_nan_that_a_metric_compares_reached_a_metric(tmp_path: Path) -> None:
    classifier = Classifier("Equal", NAN, dtype="bool")
    next(row for row in classifier.run.rows["graph_op"] if row["op_name"] == "choice")["role"] = "metric"
    assert answer(classifier.run, tmp_path) == ("log", "metric", None)


def test_a_nan_that_eager_code_compares_did_harm(tmp_path: Path) -> None:
    def where(run: RunBuilder, comparison: str, health: dict[str, object]) -> RunBuilder:
        run.eager_op("Log", health, tensor_id=2, inputs=[1])
        run.execution(comparison, inputs=[2, 2] if comparison == "NotEqual" else [2], outputs={3: "bool"})
        run.eager_op("SelectV2", CLEAN, tensor_id=4, inputs=[3, 2])
        return run

    assert answer(where(RunBuilder("a"), "Greater", NAN), tmp_path / "a") == (None, "result", None)
    assert answer(where(RunBuilder("b"), "Greater", NEG_INF), tmp_path / "b")[1] == "absorbed"
    assert answer(where(RunBuilder("c"), "IsNan", NAN), tmp_path / "c")[1] == "absorbed"
    assert answer(where(RunBuilder("d"), "NotEqual", NAN), tmp_path / "d")[1] == "absorbed"


def test_an_eager_metric_that_tests_for_nan_leaves_them_out(tmp_path: Path) -> None:
    def metric(run: RunBuilder, *types: str) -> RunBuilder:
        run.eager_op("Log", NAN, tensor_id=2, inputs=[1])
        for tensor_id, op_type in enumerate(types, start=3):
            run.execution(op_type, inputs=[2], outputs={tensor_id: "bool"})
            run.rows["execution"][-1]["role"] = "metric"
        run.eager_op("SelectV2", CLEAN, tensor_id=9, inputs=[3, 2])
        return run

    assert answer(metric(RunBuilder("a"), "Greater"), tmp_path / "a")[1] == "metric"
    assert answer(metric(RunBuilder("b"), "Greater", "IsFinite"), tmp_path / "b")[1] == "absorbed"


def test_the_reason_names_a_function_that_ran_unrecorded(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("step").op("loss", "Mean").op("optional", "OptionalFromValue", ["loss"], dtypes=("variant",))
    graph.function("__step", [], ["optional"])
    run.execution("__step", outputs={2: "variant"}, graph=graph)
    value = run.eager_op("OptionalGetValue", NAN, tensor_id=3, inputs=[2])
    run.add("capture_stat", stat="unobservable", subject="__step", reason="ran unrecorded", num_events=1)
    reasons = read_reasons(run.write(tmp_path), value, run_id="run-a")
    assert reasons.sentences == ("It is a result of step, which ran unrecorded.",)


def failing_step(run: RunBuilder, *, error_type: str) -> RunBuilder:
    """Adds a step that fails in the op `solve`, before it computes the update of the variable."""
    graph = run.graph("step").op("x", "Placeholder").op("w", "Placeholder", dtypes=("resource",))
    graph.op("root", "MatrixSquareRoot", ["x"]).op("solve", "MatrixSolve", ["root"]).op("scaled", "Mul", ["solve"])
    graph.op("update", "AssignSubVariableOp", ["w", "scaled"], dtypes=()).function("__step", ["x", "w"])
    call = run.execution("__step", inputs=[1, 2], graph=graph)
    run.tensors(graph, {"x": CLEAN, "root": NAN}, execution=call)
    run.add("execution_error", execution_index=call, event_index=run.next_event_index, error_type=error_type)
    return run


def test_a_value_of_a_step_that_failed_was_not_written(tmp_path: Path) -> None:
    """The program got the error instead of a result."""
    failed = failing_step(RunBuilder("a"), error_type="InvalidArgumentError").write(tmp_path)
    (bad,) = nonfinite(failed)
    assert (bad.op_name, bad.effect, bad.expected_reason) == ("root", "result", None)
    assert first_nonfinite(failed) == bad


TRAIN = ("/home/me/train.py", 9, "<module>", "step(x)", "user")
EVALUATE = ("/home/me/train.py", 20, "<module>", "step(x)", "user")
RETRACED = ("/usr/lib/tensorflow/def_function.py", 3, "_call", None, "framework")


def guarded_training(
    run: RunBuilder,
    *,
    lines: Sequence[tuple[tuple[str, int, str, str | None, str], ...]] = ((TRAIN,), (RETRACED, TRAIN)),
    failed: Sequence[int] = (0,),
    weights_after: dict[str, object] = CLEAN,
    error_type: str = "InvalidArgumentError",
) -> RunBuilder:
    """Adds calls of a step. In the step, a guard and an update take a gradient that may be bad.

    Args:
        run: The run.
        lines: The stack of each call.
        failed: The calls in which the guard raises an error. In other calls, the gradient is healthy.
        weights_after: The health of the weights that calls without an error read.
        error_type: The type of the error.
    """
    graph = run.graph("step").op("w", "Placeholder", dtypes=("resource",)).op("read", "ReadVariableOp", ["w"])
    graph.op("gradient", "Log", ["read"]).op("guard", "CheckNumerics", ["gradient"]).op("loss", "Mul", ["guard"])
    graph.op("update", "AssignSubVariableOp", ["w", "gradient"], dtypes=())
    functions = [f"__inference_step_{number}" for number in range(len(lines))]
    for number, (function, line) in enumerate(zip(functions, lines, strict=True)):
        graph.function(function, ["w"], ["loss"])
        has_failed = number in failed
        outputs = {} if has_failed else {100 + number: "float32"}
        call = run.execution(function, inputs=[1], outputs=outputs, graph=graph, stack=run.stack(*line))
        run.tensor(graph, "read", CLEAN if has_failed else weights_after, execution=call)
        run.tensor(graph, "gradient", NEG_INF if has_failed else CLEAN, execution=call)
        if has_failed:
            run.add("execution_error", execution_index=call, event_index=run.next_event_index, error_type=error_type)
            continue
        for name in ("guard", "loss"):
            run.tensor(graph, name, CLEAN, execution=call)
        run.eager(call, CLEAN, tensor_id=100 + number)
    return run


def test_a_value_in_a_call_whose_error_the_program_caught_did_no_harm(tmp_path: Path) -> None:
    """TensorFlow may trace the function again between the calls.

    TensorFlow then calls the function through other frames.
    """
    caught = guarded_training(RunBuilder("a"))
    assert answer(caught, tmp_path) == ("gradient", "absorbed", CAUGHT_ERROR)
    assert [bad.expected_reason for bad in nonfinite(tmp_path)] == [CAUGHT_ERROR]


@pytest.mark.parametrize(
    "difference",
    [
        {"lines": ((TRAIN,),)},
        {"failed": (0, 1)},
        {"failed": (1,)},
        {"lines": ((TRAIN,), (EVALUATE,))},
        {"weights_after": counts(nan=1, pos=1)},
        {"error_type": "NonFiniteError"},
    ],
    ids=["only-call", "always-fails", "last-call", "another-line", "was-written", "stopped-by-the-recorder"],
)
def test_a_value_in_a_call_with_an_error_may_have_done_harm(difference: dict[str, Any], tmp_path: Path) -> None:
    assert answer(guarded_training(RunBuilder("a"), **difference), tmp_path) == ("gradient", "variable", None)


def unfollowed(run: RunBuilder, *, returns: dict[str, object]) -> RunBuilder:
    """Adds a loss with a logarithm of 0. A function that was not recorded takes this logarithm."""
    graph = run.graph("step").op("x", "Placeholder").op("log", "Log", ["x"]).op("loop", "While", ["log"])
    run.add(
        "graph_call", graph_id=graph.graph_id, op_name="loop", attribute="body", function_name="Defun", is_inline=True
    )
    graph.op("loss", "Sum", ["loop"]).function("__step", ["x"], ["loss"])
    call = run.execution("__step", inputs=[1], outputs={100: "float32"}, graph=graph)
    run.tensors(graph, {"x": CLEAN, "log": NEG_INF, "loss": returns}, execution=call)
    run.eager(call, returns, tensor_id=100)
    return run


def test_a_value_that_cannot_be_followed_is_expected_if_everything_that_left_is_finite(tmp_path: Path) -> None:
    healthy = unfollowed(RunBuilder("a"), returns=CLEAN)
    assert answer(healthy, tmp_path / "a") == ("log", "absorbed", UNREACHED)
    bad = nonfinite(unfollowed(RunBuilder("b"), returns=NAN).write(tmp_path / "b"))[0]
    assert (bad.op_name, bad.effect, bad.is_expected) == ("log", "result", False)
    filtered = unfollowed(RunBuilder("c", op_regex="Log"), returns=CLEAN)
    assert answer(filtered, tmp_path / "c") == ("log", None, None)


def masked_logarithm(run: RunBuilder) -> RunBuilder:
    """Adds a loss in which `where` leaves out the logarithm of 0, but not the infinite gradient of this logarithm."""
    step = Training(run).op("log", "Log", ["x"], NEG_INF).op("loss", "SelectV2", ["x", "log"], CLEAN)
    step.op("reciprocal", "Reciprocal", ["x"], INF, role="gradient")
    run.rows["graph_op"][-1] |= {"forward_graph_id": step.graph.graph_id, "forward_op_name": "log"}
    step.op("grad", "Mul", ["reciprocal"], NAN, role="gradient")
    step.op("update", "AssignSubVariableOp", ["w", "grad"], None, role="optimizer").call("loss")
    return run


@pytest.mark.slow
def test_every_answer_gives_a_tensor_the_same_effect(tmp_path: Path) -> None:
    """All answers treat the gradient of the logarithm as a part of the logarithm, back and forward."""
    logdir = masked_logarithm(RunBuilder("a")).write(tmp_path)
    first = first_nonfinite(logdir)
    assert (first.op_name, first.effect) == ("log", "variable")
    effects = {bad.op_name: bad.effect for bad in nonfinite(logdir)}
    assert (effects["log"], effects["reciprocal"]) == ("variable", "variable")
    found = spread(logdir, first.event_index)
    assert (found.effect, found.variables) == ("variable", (2,))
    assert [(hop.op_name, hop.how) for hop in found.hops] == [
        ("log", "start"), ("reciprocal", "gradient"), ("grad", "graph"),
    ]  # fmt: skip
    severities = {alert.op_name: alert.severity for alert in alerts(logdir).alerts if alert.kind == "nonfinite_origin"}
    assert severities["log"] == "error"


def pipeline(run: RunBuilder, *, op_type: str, dtype: str = "float32") -> RunBuilder:
    """Adds a step that takes a bad array through a tf.data pipeline."""
    graph = run.graph("step").op("iterator", "Placeholder", dtypes=("resource",), not_recorded="dtype")
    graph.op("w", "Placeholder", dtypes=("resource",), not_recorded="dtype")
    graph.op("next", "IteratorGetNext", ["iterator"]).op("made", op_type, ["next"], dtypes=(dtype,))
    writer = "AssignSubVariableOp" if dtype == "float32" else "ResourceScatterAdd"
    graph.op("update", writer, ["w", "made"], dtypes=()).function("__step", ["iterator", "w"])
    dataset = run.execution("TensorSliceDataset", inputs=[5], outputs={6: "variant"})
    run.external(5, NAN, execution=dataset)
    run.execution("MakeIterator", inputs=[6, 7])
    call = run.execution("__step", inputs=[7, 8], graph=graph)
    run.tensor(graph, "next", NAN, execution=call)
    if dtype == "float32":
        run.tensor(graph, "made", NAN, execution=call)
    return run


def test_a_bad_array_is_followed_through_a_pipeline(tmp_path: Path) -> None:
    logdir = pipeline(RunBuilder("a"), op_type="Mul").write(tmp_path / "a")
    array = nonfinite(logdir)[0]
    assert (array.op_type, array.effect) == (None, "variable")
    assert first_nonfinite(logdir) == array
    found = spread(logdir, array.event_index)
    assert ([hop.op_name for hop in found.hops], found.effect) == ([None, "next", "made"], "variable")


def test_a_harmless_array_is_followed_through_a_pipeline(tmp_path: Path) -> None:
    run = RunBuilder("a")
    graph = run.graph("step").op("iterator", "Placeholder", dtypes=("resource",), not_recorded="dtype")
    graph.op("next", "IteratorGetNext", ["iterator"]).op("loss", "Mul", ["next"]).op("where", "SelectV2", ["loss"])
    graph.function("__step", ["iterator"], ["where"])
    dataset = run.execution("TensorSliceDataset", inputs=[5], outputs={6: "variant"})
    run.external(5, NAN, execution=dataset)
    run.execution("MakeIterator", inputs=[6, 7])
    call = run.execution("__step", inputs=[7], outputs={100: "float32"}, graph=graph)
    run.tensors(graph, {"next": NAN, "loss": NAN, "where": CLEAN}, execution=call)
    run.eager(call, CLEAN, tensor_id=100)
    assert answer(run, tmp_path) == (None, "absorbed", VANISHED)


def test_python_code_may_have_read_an_eager_tensor(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    run.eager_op("RealDiv", NAN, tensor_id=2, inputs=[1, 1])
    run.eager_op("Reshape", NAN, tensor_id=3, inputs=[2])
    run.eager_op("GatherV2", CLEAN, tensor_id=5, inputs=[3, 4])
    assert answer(run, tmp_path) == (None, "absorbed", VANISHED_OR_READ)


def test_a_bad_array_that_is_cast_to_integers_did_harm(tmp_path: Path) -> None:
    found = first_nonfinite(pipeline(RunBuilder("a"), op_type="Cast", dtype="int32").write(tmp_path))
    assert (found.op_type, found.effect, found.is_expected) == (None, "result", False)
