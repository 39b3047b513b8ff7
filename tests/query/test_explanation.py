"""Test the sentence and the repair of bad tensors on small logdirs and on single rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.query.explanation import Computed, Explanation, explain, read_reasons
from tfdbg_arrow.query.explanation.keras_ops import in_keras_ops
from tfdbg_arrow.query.recorded import TensorEvent

from .builder import CLEAN, INF, NAN, NEG_INF, GraphBuilder, RunBuilder, counts

LARGEST = 3.4028234663852886e38
ZERO = counts(zero=1, pos=1)
ONE_0 = {**counts(zero=1), "rank": 0, "shape": []}
ONE = {**counts(pos=1), "rank": 0, "shape": []}
LOG_OF_0 = "Log of 0: 1 of 2 elements is 0, and the logarithm of 0 is -Inf."
OVER = "1 of 2 elements is beyond the largest float32, 3.40282e+38."
TWICE = "Put tf.where around the input of Log as well: the unselected branch still has a gradient."
OF_NEGATIVE = "of a negative number: 1 of 2 elements is below 0, and the result is NaN."
ABOVE_0 = "Keep the argument above 0 with an epsilon such as 1e-7."
NO_NAN = "Use tf.math.divide_no_nan, or a divisor that is never 0."
NO_NAN_OR_LARGE = (
    "Use tf.math.divide_no_nan, which returns 0 there, or divide by tf.maximum(x, 1e-7) if the quotient has to be "
    "large."
)
CLIP = (
    "Clip the argument from above, for example with tf.minimum(x, 22.0). Exp overflows above 88.7; the limit "
    "of 22.0 leaves room for squares and products of the result."
)
ROOM = "leaves room for squares and products of the result."
LOGSUMEXP = (
    "Use tf.reduce_logsumexp in place of the exponentials, their sum and the logarithm: it neither overflows nor "
    "underflows."
)
WEIGHTED = (
    "Use tf.reduce_logsumexp(x + tf.math.log(w)) in place of the logarithm of a sum of w * exp(x): it does not "
    "underflow."
)
LOG_AND_DIVISOR = (
    "Keep the argument above 0 before both ops that take it, the logarithm and a division by it, for example with "
    "tf.maximum where it is computed."
)
XLOGY = "Use tf.math.xlogy(p, p) in place of p * log(p): it is 0 for p = 0, and its gradient is finite."
SOFTMAX = "Use tf.nn.softmax in place of the exponentials, their sum and the division."
OF_AXIS = "Use tf.nn.softmax, with the axis of the sum, in place of the exponentials, their sum and the division."
SEGMENTS = (
    "For a softmax over segments, subtract the maximum of each segment before the exponential: take it with "
    "tf.math.unsorted_segment_max, and gather it as the sums are gathered. The quotients stay the same."
)
UNDERFLOW = (
    "Compute with logarithms (tf.reduce_logsumexp in place of sums of exponentials), or scale the argument of the "
    "exponential down."
)
SCALE = (
    "Scale the operands (data or weights) down, or compute in a wider dtype. In training, lower the learning rate or "
    "clip the gradients."
)
OVER_STEPS = (
    "Lower the learning rate or clip the gradients, if numbers grew from step to step. Otherwise, scale the operands "
    "(data or weights) down, or compute in a wider dtype."
)
OF_HALF = (
    "Scale the operands (data or weights) down, or compute in a wider dtype. If numbers grew from step to step, lower "
    "the learning rate or clip the gradients."
)
BEFORE_TRAINING = "Scale the operands (data or weights) down, or compute in a wider dtype."
OVER_BATCH = (
    "Lower the learning rate or clip the gradients: as all samples of the batch overflow, the weights are the likely "
    "cause. Otherwise, scale the operands (data or weights) down, or compute in a wider dtype."
)
FAR_LARGER = "a number in {} data or label may be far larger than in the others. If none is:"
NEGATIVE_VARIANCE = (
    "The variance is negative, and an epsilon does not repair that. If it is a moving variance, check what was "
    "assigned to it or loaded, and that the momentum is from 0 to 1. If it is computed as E[x^2] - E[x]^2, use "
    "tf.nn.moments: that difference can be negative by rounding."
)
JITTER = (
    "Add jitter to the diagonal, for example matrix + 1e-4 * tf.eye(n). A matrix with large elements needs more, and "
    "float64 less."
)
OF_NORM = (
    "Clip by value (tf.clip_by_value, or clipvalue in Keras), which takes no squares, or scale the inputs and the "
    "loss down. Clipping by a norm does not help, as the norm itself overflows."
)
OF_UPDATE = (
    "Lower the learning rate, clip the gradients by value (tf.clip_by_value, or clipvalue in Keras), or scale the "
    "inputs and the loss down."
)
OF_GRADIENT = (
    "Scale the inputs and the loss down (if the program multiplies the loss by a scale, lower the scale), lower "
    "the learning rate, or compute in a wider dtype. Clipping this gradient comes too late, as it is not finite any "
    "more."
)


def numbers(low: float, high: float, **kinds: int) -> dict[str, Any]:
    return {**counts(**kinds), "min_finite": low, "max_finite": high, "max_abs_finite": max(abs(low), abs(high))}


class Step:
    """A call of a graph, `f(x)`: the first or a later call. Each op is added with the health of its result."""

    def __init__(self, *, is_first: bool = True) -> None:
        self.run = RunBuilder("run-a")
        self.graph: GraphBuilder = self.run.graph("f").op("x", "Placeholder", role="forward")
        if not is_first:
            self.run.execution("f", inputs=[8], outputs={9: "float32"}, graph=self.graph)
        self.execution = self.run.execution("f", inputs=[1], outputs={2: "float32"}, graph=self.graph)
        self.events: dict[str, int] = {}

    def takes(self, health: Mapping[str, Any]) -> Step:
        self.run.external(1, health, execution=self.execution)
        return self._tensor("x", health)

    def op(
        self, name: str, op_type: str, inputs: list[str], health: Mapping[str, Any], role: str = "forward", **of: Any
    ) -> Step:
        self.graph.op(name, op_type, inputs, role=role, **of)
        return self._tensor(name, health)

    def gradient(self, name: str, op_type: str, inputs: list[str], health: Mapping[str, Any], of: str) -> Step:
        return self.op(name, op_type, inputs, health, "gradient", forward_graph_id=0, forward_op_name=of)

    def _tensor(self, name: str, health: Mapping[str, Any], **columns: Any) -> Step:
        self.events[name] = self.run.tensor(self.graph, name, health, execution=self.execution, **columns)
        return self

    def update(self, gradient: str) -> Step:
        """Adds an op that subtracts a gradient from a variable."""
        self.graph.op("w", "Placeholder", dtypes=("resource",), not_recorded="dtype")
        self.graph.op("update", "AssignSubVariableOp", ["w", gradient], dtypes=(), role="optimizer")
        return self

    def reason(self, name: str, tmp_path: Path, *, result: str = "x") -> Explanation | None:
        """Returns the explanation of the result of an op, if the call returns the result of `result`."""
        self.graph.function("f", ["x"], [result])
        return read_reasons(self.run.write(tmp_path), self.events[name], run_id="run-a").explanation


def masked(*, selected: Mapping[str, Any] = CLEAN, gradient: Mapping[str, Any] = NAN, is_trained: bool = True) -> Step:
    """Returns a step with where(x > 0, log(x), 0) and its gradient, 0 * (1 / x)."""
    step = Step().takes(ZERO).op("log", "Log", ["x"], NEG_INF)
    step.graph.op("is_positive", "Greater", ["x"], dtypes=("bool",), not_recorded="dtype")
    stack = step.run.stack(("/home/me/train.py", 9, "loss", "y = tf.where(x > 0, y, x)", "user"))
    step.op("where", "SelectV2", ["is_positive", "log", "x"], selected, stack=stack)
    step.gradient("slope", "Reciprocal", ["x"], gradient, "log")
    step.gradient("product", "Mul", ["slope", "x"], gradient, "log")
    return step.update("product") if is_trained else step


def test_a_value_that_where_replaces_needs_a_second_where_for_its_gradient(tmp_path: Path) -> None:
    found = masked(gradient=INF).reason("log", tmp_path, result="where")
    assert found == Explanation(
        f"{LOG_OF_0} train.py:9 replaces the bad elements with tf.where in the forward pass, but not in the gradient: "
        "Reciprocal returns 1 +Inf there.",
        TWICE,
    )


@pytest.mark.parametrize(
    ("step", "result"),
    [
        (masked(gradient=CLEAN), "where"),  # the gradient is finite, too
        (masked(selected=NEG_INF), "where"),  # where does not replace the value
        (masked(), "log"),  # the program also returns the logarithm
        (masked(is_trained=False), "where"),  # the gradient reaches no variable, so nothing bad happened
    ],
    ids=["finite gradient", "selected", "returned", "unused gradient"],
)
def test_another_bad_value_does_not(step: Step, result: str, tmp_path: Path) -> None:
    assert step.reason("log", tmp_path, result=result) == Explanation(LOG_OF_0, ABOVE_0)


def test_bad_data_that_where_replaces_has_to_be_replaced_before_it_is_used(tmp_path: Path) -> None:
    step = Step().takes(NAN).op("square", "Square", ["x"], NAN)
    step.graph.op("is_known", "IsFinite", ["x"], dtypes=("bool",), not_recorded="dtype")
    step.op("where", "SelectV2", ["is_known", "square", "square"], CLEAN)
    step.gradient("product", "Mul", ["x", "x"], NAN, "square").update("product")
    step.graph.function("f", ["x"], ["where"])
    assert read_reasons(step.run.write(tmp_path), 1, run_id="run-a").explanation == Explanation(
        "No recorded op made the tensor: it already held 1 NaN when the program first used it. "
        "tf.where replaces the bad elements in the forward pass, but not in the gradient: Mul returns 1 NaN there.",
        "Replace the bad elements of the argument x of f with tf.where before anything is computed from them, not only "
        "in the result: the unselected branch still has a gradient.",
    )


@pytest.mark.parametrize(
    ("mask", "is_mask"), [(counts(zero=1, pos=1), True), (counts(pos=2), False), (counts(zero=1, neg=1), False)]
)
def test_bad_data_that_a_product_is_to_mask(mask: dict[str, Any], is_mask: bool, tmp_path: Path) -> None:
    step = Step().takes(NAN)
    stack = step.run.stack(("/home/me/train.py", 9, "loss", "err = x * mask", "user"))
    step.op("mask", "Cast", [], mask).op("err", "Mul", ["x", "mask"], NAN, stack=stack).op("sum", "Sum", ["err"], NAN)
    step.update("sum").graph.function("f", ["x"], ["sum"])
    why = read_reasons(step.run.write(tmp_path), 1, run_id="run-a").explanation
    assert why is not None
    assert (
        "train.py:9 multiplies the NaN by a tensor with as many zeros, but NaN * 0 is NaN." in why.sentence
    ) == is_mask
    repair = "If the product is meant to mask the NaN, replace the NaN of the argument x of f with tf.where before"
    assert (why.repair or "").startswith(repair) == is_mask


def test_an_optimizer_that_divides_by_the_root_of_its_first_step(tmp_path: Path) -> None:
    scalar = {**counts(zero=1), "rank": 0, "shape": []}
    step = Step().takes(CLEAN).op("step", "Cast", [], scalar, "optimizer")
    step.op("rate", "Rsqrt", ["step"], {**counts(pos_inf=1), "rank": 0, "shape": []}, "optimizer")
    why = step.reason("rate", tmp_path, result="rate")
    assert why is not None
    assert why.repair == "The counter of steps begins at 0. Use step + 1, or tf.maximum(step, 1)."


@pytest.mark.parametrize("behind", ["Cast", "Identity", "Mul", "RealDiv", "Sqrt", "Squeeze"])
@pytest.mark.parametrize("op_type", ["Cholesky", "Log", "RealDiv", "Rsqrt"])
def test_an_op_that_takes_its_own_result_in_a_damaged_graph(behind: str, op_type: str, tmp_path: Path) -> None:
    """The search for the cause of a zero must end."""
    step = Step().takes(CLEAN)
    step.op("y", behind, ["y", "y"] if behind in ("Mul", "RealDiv") else ["y"], counts(zero=1, pos=1))
    made = {"Cholesky": NAN, "Log": NEG_INF}.get(op_type, INF)
    step.op("made", op_type, ["x", "y"] if op_type == "RealDiv" else ["y"], made)
    assert step.reason("made", tmp_path, result="made") is not None


def test_an_eager_value_that_where_replaces(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    log = run.execution("Log", inputs=[1], outputs={2: "float32"})
    run.external(1, ZERO, execution=log)
    event = run.eager(log, NEG_INF, tensor_id=2)
    where = run.execution("SelectV2", inputs=[9, 2, 1], outputs={3: "float32"})
    run.eager(where, CLEAN, tensor_id=3)
    slope = run.execution("Reciprocal", inputs=[1], outputs={4: "float32"})
    run.eager(slope, INF, tensor_id=4)
    run.rows["execution"][slope] |= {"role": "gradient", "forward_execution_index": log}
    run.execution("AssignSubVariableOp", inputs=[8, 4])
    found = read_reasons(run.write(tmp_path), event, run_id="run-a").explanation
    assert found is not None
    assert found.sentence.endswith("but not in the gradient: Reciprocal returns 1 +Inf there.")
    assert found.repair == TWICE


@pytest.mark.parametrize(
    ("behind", "where"),
    [(["Sqrt"], "the input of Sqrt"), (["Sqrt", "Mul"], "the input of Sqrt"), (["Mul"], "the divisor")],
)
def test_a_root_behind_a_divisor_of_0_needs_the_second_where(behind: list[str], where: str, tmp_path: Path) -> None:
    """The slope of the root is infinite, too. If only the divisor is replaced, 0 times that slope is NaN."""
    step, last = Step().takes(ZERO), "x"
    for op_type in behind:
        step.op(op_type, op_type, [last], ZERO)
        last = op_type
    step.op("ratio", "RealDiv", ["x", last], INF)
    step.graph.op("is_known", "IsFinite", ["ratio"], dtypes=("bool",), not_recorded="dtype")
    step.op("where", "SelectV2", ["is_known", "ratio", "x"], CLEAN)
    step.gradient("slope", "Mul", ["x", "ratio"], NAN, "ratio").update("slope")
    found = step.reason("ratio", tmp_path, result="where")
    assert found is not None
    assert found.repair == f"Put tf.where around {where} as well: the unselected branch still has a gradient."


@pytest.mark.parametrize(
    ("health", "repair"),
    [
        (INF, "Replace the bad elements with tf.where before anything is computed from them"),
        (counts(pos_inf=1, zero=1), "Use a large finite number, such as 1e9 or -1e9, in place of the infinite one."),
    ],
)
def test_a_constant_that_where_replaces_needs_no_second_where(health: dict[str, Any], repair: str) -> None:
    output = row("Const", health)
    computed = Computed(
        output=output,
        inputs={},
        bad_gradient_of_masked=lambda: row("Mul", NAN),
        is_literal=lambda event: not event.num_pos_finite,
    )
    explanation = explain(computed)
    assert explanation is not None
    assert (explanation.repair or "").startswith(repair)


def test_where_replaces_one_of_two_bad_components_of_the_data(tmp_path: Path) -> None:
    """The other component is returned first, and its NaN has no gradient."""
    run = RunBuilder("run-a")
    made = run.execution("TensorSliceDataset", inputs=[1, 2], outputs={3: "variant"})
    features = run.external(1, {**NAN, "rank": 2, "shape": [2, 1]}, execution=made)
    labels = run.external(2, {**NAN, "rank": 2, "shape": [2, 1]}, execution=made)
    taken = run.execution("IteratorGetNext", inputs=[4], outputs={5: "float32", 6: "float32"})
    for slot, tensor_id in ((0, 5), (1, 6)):
        run.eager(taken, counts(nan=1), tensor_id=tensor_id, slot=slot)
    known = run.execution("SelectV2", inputs=[9, 5, 9], outputs={10: "float32"})
    run.eager(known, CLEAN, tensor_id=10)
    error = run.execution("Square", inputs=[6], outputs={11: "float32"})
    run.eager(error, NAN, tensor_id=11)
    loss = run.execution("SelectV2", inputs=[9, 11, 9], outputs={12: "float32"})
    run.eager(loss, CLEAN, tensor_id=12)
    slope = run.execution("Mul", inputs=[6, 9], outputs={13: "float32"})
    run.eager(slope, NAN, tensor_id=13)
    run.rows["execution"][slope] |= {"role": "gradient", "forward_execution_index": error}
    run.execution("AssignSubVariableOp", inputs=[8, 13])
    logdir = run.write(tmp_path)
    reasons = [read_reasons(logdir, event, run_id="run-a").explanation for event in (features, labels)]
    assert ["not in the gradient" in reason.sentence for reason in reasons if reason is not None] == [False, True]


def test_an_epsilon_that_the_optimizer_moved_is_not_asked_for_again(tmp_path: Path) -> None:
    """The program takes log((1 - p) + epsilon), and TensorFlow computes log((1 + epsilon) - p)."""
    step = Step().takes(CLEAN)
    step.graph.op("one", "Const").op("epsilon", "Const").op("difference", "Sub", ["one", "x"])
    step.graph.op("total", "AddV2", ["difference", "epsilon"])
    step._tensor("difference", counts(pos=1), op_type="Const")
    step._tensor("total", ZERO, op_type="Sub").op("log", "Log", ["total"], NEG_INF)
    node = step.run.executed().node("x", "_Arg", of=step.graph, op="x", index=0)
    node.node("difference", "Const", of=step.graph, op="difference")
    node.node("p", "Tanh", ["x"], of=step.graph, op="p")
    node.node("total", "Sub", ["difference", "p"], of=step.graph, op="total")
    node.node("log", "Log", ["total"], of=step.graph, op="log").node("out", "_Retval", ["log"], index=0)
    step.op("p", "Tanh", ["x"], CLEAN)
    assert step.reason("log", tmp_path, result="log") == Explanation(
        f"{LOG_OF_0} The program adds a constant last to make this argument. TensorFlow's optimizer adds the "
        "constant to another term first, where rounding to float32 can lose it.",
        "Replace the added constant with tf.maximum(x, constant): TensorFlow's optimizer does not move a maximum.",
    )


def test_an_epsilon_that_is_added_last_was_not_moved(tmp_path: Path) -> None:
    step = Step().takes(CLEAN).op("epsilon", "Const", [], counts(pos=1))
    step.op("total", "AddV2", ["x", "epsilon"], ZERO).op("log", "Log", ["total"], NEG_INF)
    assert step.reason("log", tmp_path, result="log") == Explanation(LOG_OF_0, ABOVE_0)


@pytest.mark.parametrize(
    ("divisor", "repair"),
    [
        (
            "Const",
            (
                "Check how the program sets the divisor: it is 0 in every call, so with tf.math.divide_no_nan each "
                "quotient would be 0."
            ),
        ),
        ("ReadVariableOp", "The counter of steps begins at 0. Use step + 1, or tf.maximum(step, 1)."),
    ],
)
def test_a_schedule_that_divides_by_a_constant_divides_by_no_counter(divisor: str, repair: str, tmp_path: Path) -> None:
    step = Step().takes(CLEAN)
    code = "rate = step / tf.cast(self.warmup, tf.float32)"
    stack = step.run.stack(("/home/me/train.py", 9, "rate", code, "user"))
    step.run.rows["stack_frame"][-1] |= {"colno": 15, "end_colno": 47}
    step.run.add("source_file", file_path="/home/me/train.py", source_text="\n" * 8 + code)
    step.graph.op("divisor", divisor, dtypes=("int32",), not_recorded="dtype")
    step.op("step", "Cast", [], ONE_0, "optimizer").op("limit", "Cast", ["divisor"], ONE_0, "optimizer", stack=stack)
    step.op("rate", "RealDiv", ["step", "limit"], {**counts(nan=1), "rank": 0, "shape": []}, "optimizer")
    found = step.reason("rate", tmp_path, result="rate")
    constant = " The divisor `tf.cast(self.warmup, tf.float32)` is the constant 0." if divisor == "Const" else ""
    assert found == Explanation(
        f"0 / 0: the divisor has 1 zero, the dividend 1 zero, and 0 / 0 is NaN.{constant}", repair
    )


@pytest.mark.parametrize(
    ("dtype", "argument", "is_lost"),
    [
        ("float16", ZERO, True),
        ("float32", ZERO, False),  # the usual epsilons are not 0
        ("float16", counts(neg=1, zero=1), False),  # the sum may be 0 where the argument is negative
        ("float16", CLEAN, False),
    ],
)
def test_an_epsilon_before_a_root_that_the_optimizer_removed(
    dtype: str, argument: dict[str, Any], is_lost: bool, tmp_path: Path
) -> None:
    """The program computes x / sqrt(variance + epsilon). TensorFlow's optimizer removes the sum with the epsilon 0."""
    step = Step().takes(CLEAN).op("variance", "Mean", ["x"], {**argument, "dtype": dtype})
    step.graph.op("epsilon", "Const").op("total", "AddV2", ["variance", "epsilon"])
    step.op("root", "Sqrt", ["total"], {**ZERO, "dtype": dtype}).op("ratio", "RealDiv", ["x", "root"], INF)
    node = step.run.executed().node("x", "_Arg", of=step.graph, op="x", index=0)
    node.node("variance", "Mean", ["x"], of=step.graph, op="variance")
    node.node("root", "Sqrt", ["variance"], of=step.graph, op="root")
    node.node("ratio", "RealDiv", ["x", "root"], of=step.graph, op="ratio").node("out", "_Retval", ["ratio"], index=0)
    found = step.reason("ratio", tmp_path, result="ratio")
    assert found is not None
    assert found.sentence.endswith("and the number is 0 in float16.") == is_lost
    assert (found.repair or "").startswith("Add a larger epsilon, such as 1e-3") == is_lost


@pytest.mark.parametrize(
    ("op_type", "terms"),
    [
        ("Rsqrt", ["variance", "cast"]),
        ("Log", ["cast", "variance"]),
    ],
)
def test_a_cast_epsilon_that_the_optimizer_removed(op_type: str, terms: list[str], tmp_path: Path) -> None:
    """The op takes the other term of the sum in place of the sum with the epsilon, which is 0 in float16."""
    zeros, made = {**ZERO, "dtype": "float16"}, NEG_INF if op_type == "Log" else INF
    step = Step().takes(CLEAN).op("variance", "Mean", ["x"], zeros)
    step.graph.op("epsilon", "Const").op("cast", "Cast", ["epsilon"]).op("total", "AddV2", terms)
    step.op("made", op_type, ["total"], {**made, "dtype": "float16"})
    node = step.run.executed().node("x", "_Arg", of=step.graph, op="x", index=0)
    node.node("variance", "Mean", ["x"], of=step.graph, op="variance")
    node.node("made", op_type, ["variance"], of=step.graph, op="made").node("out", "_Retval", ["made"])
    found = step.reason("made", tmp_path, result="made")
    assert found is not None
    assert found.sentence.endswith("and the number is 0 in float16.")
    assert (found.repair or "").startswith("Add a larger epsilon, such as 1e-3")


@pytest.mark.parametrize(("epsilon", "is_lost"), [(counts(zero=1), True), (counts(pos=1), False)])
def test_an_epsilon_before_a_root_that_is_0(epsilon: dict[str, Any], is_lost: bool, tmp_path: Path) -> None:
    step = Step().takes(CLEAN).op("epsilon", "Const", [], epsilon).op("total", "AddV2", ["x", "epsilon"], ZERO)
    step.op("root", "Sqrt", ["total"], {**ZERO, "dtype": "float16"}).op("ratio", "RealDiv", ["x", "root"], INF)
    found = step.reason("ratio", tmp_path, result="ratio")
    assert found is not None
    assert found.sentence.endswith("and the number is 0 in float16.") == is_lost


WRITE_OF_0 = "Give the variable a value that is not 0 there, or update it before it is used. If it may be 0:"


@pytest.mark.parametrize(
    ("op_type", "made", "num_writes", "said"),
    [
        ("Abs", ZERO, 1, "still holds its initial value, from `u = tf.Variable(zeros)` at train.py:3."),
        ("Abs", ZERO, 2, "`u = tf.Variable(zeros)` at train.py:3 wrote last."),
        ("Sum", {**counts(zero=1), "rank": 0, "shape": []}, 1, None),  # not all terms are 0
        ("AddV2", ZERO, 1, None),
    ],
)
def test_a_divisor_that_is_0_as_a_variable_is(
    op_type: str, made: Mapping[str, Any], num_writes: int, said: str | None, tmp_path: Path
) -> None:
    run = RunBuilder("run-a")
    run.execution("VarHandleOp", outputs={7: "resource"})
    stack = run.stack(("/home/me/train.py", 3, "<module>", "u = tf.Variable(zeros)", "user"))
    for _ in range(num_writes):
        run.execution("AssignVariableOp", inputs=[7, 1], stack=stack)
    read = run.execution("ReadVariableOp", inputs=[7], outputs={2: "float32"})
    run.eager(read, ZERO, tensor_id=2)
    divisor = run.execution(op_type, inputs=[2], outputs={3: "float32"})
    run.eager(divisor, made, tensor_id=3)
    ratio = run.execution("RealDiv", inputs=[9, 3], outputs={4: "float32"})
    run.external(9, CLEAN, execution=ratio)
    event = run.eager(ratio, INF, tensor_id=4)
    found = read_reasons(run.write(tmp_path), event, run_id="run-a").explanation
    assert found is not None
    _, _, variable = found.sentence.partition(" The divisor is 0 because of a variable that ")
    assert (variable or None, found.repair) == (
        said,
        NO_NAN_OR_LARGE if said is None else f"{WRITE_OF_0} {NO_NAN_OR_LARGE}",
    )


@pytest.mark.parametrize(
    ("write", "value", "dtype", "is_named"),
    [
        ("AssignVariableOp", "Const", "int32", True),
        ("AssignVariableOp", "Const", "float16", False),  # the cast may round it to 0
        ("AssignVariableOp", "Sub", "int32", False),  # the op that made the value explains it better
        ("AssignAddVariableOp", "Const", "int32", False),
    ],
)
def test_a_divisor_that_a_function_sets_to_0(
    write: str, value: str, dtype: str, is_named: bool, tmp_path: Path
) -> None:
    """The function resets its counter and then divides by it."""
    run = RunBuilder("run-a")
    run.execution("AssignVariableOp", inputs=[7, 1])
    graph = run.graph("f").op("x", "Placeholder").op("n", "Placeholder", dtypes=("resource",), not_recorded="dtype")
    graph.op("zero", value, dtypes=(dtype,), not_recorded="dtype")
    graph.op("set", write, ["n", "zero"], dtypes=(), stack=run.stack(("/m.py", 3, "f", "n.assign(0)", "user")))
    graph.op("read", "ReadVariableOp", ["n"], dtypes=(dtype,), not_recorded="dtype").op("count", "Cast", ["read"])
    graph.op("ratio", "RealDiv", ["x", "count"]).function("f", ["x"], ["ratio"], captures=["n"])
    call = run.execution("f", inputs=[9, 7], outputs={2: "float32"}, graph=graph)
    run.external(9, CLEAN, execution=call)
    run.tensor(graph, "count", ONE_0, execution=call)
    event = run.tensor(graph, "ratio", INF, execution=call)
    found = read_reasons(run.write(tmp_path), event, run_id="run-a").explanation
    assert found is not None
    because = " The divisor is 0 because of a variable that `n.assign(0)` at m.py:3 wrote last."
    assert found.sentence == BY_ONE_0 + (because if is_named else "")
    reset = "Use the variable before the call sets it to 0, or give it a value that is not 0 there."
    assert found.repair == (reset if is_named else NO_NAN_OR_LARGE)


@pytest.mark.parametrize("num_writes", [1, 2])
def test_a_singular_matrix_that_is_the_initial_value_of_a_variable(num_writes: int, tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    run.execution("VarHandleOp", outputs={7: "resource"})
    stack = run.stack(("/home/me/train.py", 3, "<module>", "w = tf.Variable(ones)", "user"))
    for _ in range(num_writes):
        run.execution("AssignVariableOp", inputs=[7, 1], stack=stack)
    run.eager(run.execution("ReadVariableOp", inputs=[7], outputs={2: "float32"}), CLEAN, tensor_id=2)
    determinant = run.execution("LogMatrixDeterminant", inputs=[2], outputs={3: "float32", 4: "float32"})
    event = run.eager(determinant, NEG_INF, tensor_id=4, slot=1)
    found = read_reasons(run.write(tmp_path), event, run_id="run-a").explanation
    assert found is not None
    singular = "LogMatrixDeterminant: the matrix is singular: its determinant is 0, and log(0) is -Inf."
    value = " The matrix is a variable that still holds its initial value, from `w = tf.Variable(ones)` at train.py:3."
    assert found.sentence == (singular + value if num_writes == 1 else singular)
    assert (found.repair or "").startswith("Give the variable an initial value that is an") == (num_writes == 1)
    assert (found.repair == JITTER) == (num_writes == 2)


@pytest.mark.parametrize(
    ("behind", "role", "sentence", "repair"),
    [
        (("Sum", "Sqrt"), "optimizer", " It is a part of the norm of a gradient, and the gradient is finite.", OF_NORM),
        (("Sum", "Sqrt"), "forward", " It is a part of the norm of a gradient, and the gradient is finite.", OF_NORM),
        (("Sub", "Sqrt"), "optimizer", "", OF_UPDATE),  # Adam squares gradients, too
        (("Sum", "Log"), "forward", "", SCALE),
    ],
)
def test_the_norm_of_a_gradient_that_overflows(
    behind: tuple[str, str], role: str, sentence: str, repair: str, tmp_path: Path
) -> None:
    step = Step(is_first=False).takes(CLEAN).op("root", "Sqrt", ["x"], CLEAN)
    step.gradient("gradient", "Mul", ["x", "x"], CLEAN, "root").op("square", "Square", ["gradient"], INF, role)
    step.op("one", behind[0], ["square"], INF, role).op("two", behind[1], ["one"], INF, role)
    assert step.reason("square", tmp_path, result="two") == Explanation(
        f"Overflow in Square: its inputs are finite, and {OVER}{sentence}", repair
    )


def test_before_the_first_update_the_learning_rate_is_no_cause(tmp_path: Path) -> None:
    repairs = []
    for is_first in (True, False):
        step = Step(is_first=is_first).takes(CLEAN).op("square", "Square", ["x"], CLEAN)
        step.op("product", "Mul", ["square", "x"], INF).gradient("slope", "MatMul", ["x", "square"], INF, "square")
        found = [step.reason(name, tmp_path / f"{is_first} {name}") for name in ("product", "slope")]
        repairs.append([None if each is None else each.repair for each in found])
    of_loss = (
        "Scale the inputs and the loss down (if the program multiplies the loss by a scale, lower the scale), or "
        "compute in a wider dtype. Clipping this gradient comes too late, as it is not finite any more."
    )
    assert repairs == [[BEFORE_TRAINING, of_loss], [SCALE, OF_GRADIENT]]


@pytest.mark.parametrize(("weight", "repair"), [("Identity", SCALE), ("Const", BEFORE_TRAINING)])
def test_the_learning_rate_may_be_the_cause_after_an_update_in_the_first_call(
    weight: str, repair: str, tmp_path: Path
) -> None:
    """An inner step of a training is unrolled. A constant minus the norm of a gradient is a penalty, not a weight."""
    step = Step().takes(CLEAN).op("square", "Square", ["x"], CLEAN).op("weight", weight, ["x"], CLEAN)
    step.gradient("gradient", "MatMul", ["x", "square"], CLEAN, "square").op("step", "Mul", ["gradient", "x"], CLEAN)
    step.op("updated", "Sub", ["weight", "step"], CLEAN).op("product", "MatMul", ["x", "updated"], INF)
    found = step.reason("product", tmp_path, result="product")
    assert found is not None
    assert found.repair == repair


BOUND_STATE = (
    "Keep the state of the loop from growing with each iteration: use a smaller step size or gain (such as smaller "
    "recurrent weights), or bound the state, for example with tf.tanh or tf.clip_by_value."
)


def loop(*before: Mapping[str, Any], taken: str = "state", calls: int = 1, is_training: bool = False) -> RunBuilder:
    """Returns a run of `f(x)`, a loop over state = taken * taken. All iterations except the last are finite.

    Args:
        before: The health of the product in the iterations before it overflows.
        taken: `state`, which is the last product, or `x`.
        calls: The number of calls.
        is_training: Whether each iteration computes a gradient. A part of a gradient is always computed before the
            loop.
    """
    run = RunBuilder("run-a")
    outer = run.graph("f").op("x", "Placeholder").op("one_by_n", "DivNoNan", ["x"], role="gradient")
    body = run.graph("body").op("state", "Placeholder").op("x", "Placeholder").op("square", "Square", [taken])
    body.op("slope", "Mul", ["x"], role="gradient")
    outer.op("while", "StatelessWhile", ["x", "x"], dtypes=("float32", "float32"))
    outer.calls("while", "body_1", body, attribute="body").function("f", ["x"], ["while"])
    body.function("body_1", ["state", "x"], ["square", "x"])
    for _ in range(calls):
        call = run.execution("f", inputs=[1], outputs={2: "float32"}, graph=outer)
    run.external(1, CLEAN, execution=call)
    run.tensor(outer, "x", CLEAN, execution=call)
    run.tensor(outer, "one_by_n", CLEAN, execution=call)
    for iteration, health in enumerate((*before, INF)):
        for name in ("slope", "square") if is_training else ("square",):
            of_op = CLEAN if name == "slope" else health
            run.tensor(body, name, of_op, execution=call, site="while/body", frame=5, iteration=iteration)
    return run


def reason_of_last(run: RunBuilder, tmp_path: Path) -> Explanation | None:
    return read_reasons(run.write(tmp_path), run.next_event_index - 1, run_id="run-a").explanation


def test_an_overflow_of_what_a_loop_makes_of_its_own_result_asks_for_a_bound(tmp_path: Path) -> None:
    over = f"Overflow in Square: its inputs are finite, and {OVER}"
    assert reason_of_last(loop(CLEAN, CLEAN, INF, CLEAN), tmp_path / "bad before") == Explanation(
        f"{over} The loop computes each result from the one before, and stayed finite for 2 iterations.",
        BOUND_STATE,
    )
    assert reason_of_last(loop(CLEAN, CLEAN, CLEAN), tmp_path / "counted") == Explanation(
        f"{over} The loop computes each result from the one before, and stayed finite for 3 iterations.",
        BOUND_STATE,
    )
    measured = [numbers(1.0, largest, pos=2) for largest in (3.0, 9.0, 1e10, 1e20)]
    assert reason_of_last(loop(*measured), tmp_path / "measured") == Explanation(
        "Overflow in Square: the largest magnitude in its inputs is 1e+20, and 1 of 2 elements is beyond the largest "
        "float32, 3.40282e+38. The result grew from 3 to 1e+20 over 4 iterations of the loop.",
        BOUND_STATE,
    )
    assert reason_of_last(loop(CLEAN, CLEAN, CLEAN, calls=2), tmp_path / "later call") == Explanation(
        f"{over} The loop computes each result from the one before, and stayed finite for 3 iterations.",
        f"{BOUND_STATE} If it grew only after some steps of training, lower the learning rate or clip the gradients.",
    )


@pytest.mark.parametrize(
    "run",
    [
        loop(CLEAN, CLEAN, CLEAN, taken="x"),
        loop(CLEAN),
        loop(NAN, CLEAN, CLEAN),
        loop(*[numbers(1.0, largest, pos=2) for largest in (3.0, 9e20, 5.0, 1e20)]),
        loop(*[numbers(1.0, largest, pos=2) for largest in (1.0, 2.0, 3.0)]),
    ],
    ids=["computed from other values", "too short", "bad before", "not the largest", "small"],
)
def test_another_overflow_in_a_loop_is_no_growth(run: RunBuilder, tmp_path: Path) -> None:
    found = reason_of_last(run, tmp_path)
    assert found is not None
    assert (found.sentence.endswith(OVER), found.repair) == (True, BEFORE_TRAINING)


@pytest.mark.parametrize(("before", "repair"), [([], BEFORE_TRAINING), ([CLEAN], OVER_STEPS)])
def test_the_second_iteration_of_a_training_is_not_before_it(
    before: list[Mapping[str, Any]], repair: str, tmp_path: Path
) -> None:
    found = reason_of_last(loop(*before, taken="x", is_training=True), tmp_path)
    assert found is not None
    assert found.repair == repair


def reason_of_batch(
    tmp_path: Path, *, num_bad: int, is_first: bool = False, has_gradient: bool = True, before: str = "Identity"
) -> Explanation | None:
    """Returns the explanation of squares that overflow in some of 20 samples, in the first or a later step.

    The label is passed through an op of the type `before`. Both have positive and negative elements.
    """
    run = RunBuilder("run-a")
    batch = counts(pos=20)
    bad = {**counts(pos_inf=num_bad, pos=20 - num_bad), "first_bad_index": 0, "num_bad_slices": num_bad}
    graph = run.graph("f").op("x", "Placeholder").op("label", "Placeholder").op("before", before, ["label"])
    graph.op("error", "Sub", ["x", "before"]).op("square", "Square", ["error"])
    graph.op("slope", "Mul", ["error"], role="gradient" if has_gradient else None)
    graph.function("f", ["x", "label"], ["square"])
    for is_last in (True,) if is_first else (False, True):
        call = run.execution("f", inputs=[1, 2], outputs={3: "float32"}, graph=graph)
        if call == 0:
            run.external(1, batch, execution=call)
            run.external(2, counts(neg=10, pos=10), execution=call)
        for name in ("x", "label", "before", "error", "slope"):
            mixed = counts(neg=10, pos=10) if name in ("label", "before") else batch
            run.tensor(graph, name, mixed, execution=call, step=call)
        run.tensor(graph, "square", bad if is_last else batch, execution=call, step=call)
    return reason_of_last(run, tmp_path)


@pytest.mark.parametrize(
    ("num_bad", "is_first", "repair"),
    [
        (20, False, OVER_BATCH),
        (20, True, BEFORE_TRAINING),
        (19, False, OVER_STEPS),
        (11, False, OVER_STEPS),
        (10, False, OF_HALF),
        (3, False, OF_HALF),
        (2, False, f"Look at these samples first: {FAR_LARGER.format('their')} {OF_HALF}"),
        (1, False, f"Look at this sample first: {FAR_LARGER.format('its')} {OF_HALF}"),
        (1, True, f"Look at this sample first: {FAR_LARGER.format('its')} {BEFORE_TRAINING}"),
    ],
)
def test_the_repair_of_an_overflow_depends_on_how_many_samples_overflow(
    num_bad: int, is_first: bool, repair: str, tmp_path: Path
) -> None:
    found = reason_of_batch(tmp_path, num_bad=num_bad, is_first=is_first)
    assert found is not None
    assert found.repair == repair


@pytest.mark.parametrize(
    ("losses", "has_gradient", "is_large"),
    [
        ([-2.5e6, 3.0], True, True),
        ([2e6], True, True),
        ([3.0, 1e30], True, False),  # the training diverged: TensorFlow traced the function again
        ([float("inf")], True, False),
        ([2e6], False, False),  # an evaluation
    ],
)
def test_an_overflow_after_a_large_first_loss_asks_for_smaller_data(
    losses: list[float], has_gradient: bool, is_large: bool, tmp_path: Path
) -> None:
    run = RunBuilder("run-a")
    for trace, loss in enumerate(losses):
        graph = run.graph("f").op("x", "Placeholder").op("loss", "Mean", ["x"], role="loss")
        if has_gradient:
            graph.op("slope", "Mul", ["x"], role="gradient", forward_graph_id=trace, forward_op_name="loss")
        graph.op("square", "Square", ["x"]).function(f"f_{trace}", ["x"], ["square"])
        call = run.execution(f"f_{trace}", inputs=[1], outputs={2 + trace: "float32"}, graph=graph)
        health = {**counts(pos=1), "rank": 0, "shape": [], "scalar_value": loss}
        run.tensor(graph, "loss", health, execution=call, step=call)
    run.tensor(graph, "x", CLEAN, execution=call, step=call)
    run.tensor(graph, "square", INF, execution=call, step=call)
    found = reason_of_last(run, tmp_path)
    assert found is not None
    assert found.sentence.endswith(f" The first recorded loss of the training is already {losses[0]:.6g}.") == is_large
    assert (found.repair or "").startswith("Scale the inputs and the targets: ") == is_large


@pytest.mark.parametrize(
    ("loss", "op_type", "health", "is_named"),
    [
        (1e37, "UnsortedSegmentMax", counts(neg=1, pos=1), True),
        (1e37, "SegmentMinV2", counts(neg=1, pos=1), True),
        (1e7, "UnsortedSegmentMax", counts(neg=1, pos=1), False),
        (1e37, "UnsortedSegmentMax", counts(pos=2), False),
        (1e37, "SegmentMinV2", counts(neg=2), False),
        (1e37, "SegmentMaxV2", NEG_INF, False),
        (1e37, "MaxPool", counts(neg=1, pos=1), False),
    ],
)
def test_the_maximum_of_an_empty_row_of_the_data_may_have_overflowed(
    loss: float, op_type: str, health: dict[str, object], is_named: bool, tmp_path: Path
) -> None:
    run = RunBuilder("run-a")
    stack = run.stack(("/home/me/train.py", 5, "rows", "tf.reduce_max(rows, 1)", "user"))
    rows = run.graph("rows").op("max", op_type, role="input", stack=stack)
    run.tensor(rows, "max", health, step=9)
    graph = run.graph("f").op("x", "Placeholder").op("loss", "Mean", ["x"], role="loss")
    graph.op("slope", "Mul", ["x"], role="gradient", forward_graph_id=graph.graph_id, forward_op_name="loss")
    graph.op("square", "Square", ["x"]).function("f", ["x"], ["square"])
    call = run.execution("f", inputs=[1], outputs={2: "float32"}, graph=graph)
    run.tensor(graph, "loss", {**counts(pos=1), "rank": 0, "shape": [], "scalar_value": loss}, execution=call)
    run.tensor(graph, "x", CLEAN, execution=call)
    run.tensor(graph, "square", INF, execution=call)
    found = reason_of_last(run, tmp_path)
    assert found is not None
    extreme = "largest float32, 3" if op_type == "SegmentMinV2" else "lowest float32, -3"
    said = (
        f" Numbers of this size may come from {op_type.removesuffix('V2')} at train.py:5, which returns the "
        f"{extreme}.40282e+38, for a segment or row with no element."
    )
    assert found.sentence.endswith(said) == is_named
    assert (found.repair or "").startswith("If a segment or row can be empty, replace its result, ") == is_named


@pytest.mark.parametrize(
    ("before", "num_bad", "is_named"),
    [
        ("UnsortedSegmentMax", 1, True),
        ("SegmentMinV2", 1, True),
        ("UnsortedSegmentMax", 11, False),
        ("UnsortedSegmentSum", 1, False),
    ],
)
def test_the_maximum_of_an_empty_segment_may_have_overflowed_in_few_samples(
    before: str, num_bad: int, is_named: bool, tmp_path: Path
) -> None:
    found = reason_of_batch(tmp_path, num_bad=num_bad, before=before)
    assert found is not None
    assert (f" Numbers of this size may come from {before.removesuffix('V2')}" in found.sentence) == is_named
    assert (found.repair or "").startswith("If a segment or row can be empty, replace its result, ") == is_named


def test_samples_that_overflow_where_nothing_is_trained_are_no_sign_of_the_learning_rate(tmp_path: Path) -> None:
    found = reason_of_batch(tmp_path, num_bad=20, has_gradient=False)
    assert found is not None
    assert found.repair == SCALE


def test_a_gradient_that_overflows_cannot_be_clipped_any_more(tmp_path: Path) -> None:
    step = Step(is_first=False).takes(CLEAN).op("square", "Square", ["x"], CLEAN)
    step.gradient("gradient", "MatMul", ["x", "square"], INF, "square")
    assert step.reason("gradient", tmp_path, result="gradient") == Explanation(
        f"In the gradient of Square, overflow in MatMul: its inputs are finite, and {OVER}", OF_GRADIENT
    )


def test_the_gradient_of_an_op_may_be_an_op_of_its_own_type() -> None:
    computed = Computed(output=row("MatMul", INF), inputs={0: row("Mul", CLEAN)}, forward_type="MatMul")
    assert explain(computed) == Explanation(
        f"The gradient of MatMul overflowed: its inputs are finite, and {OVER}", OF_GRADIENT
    )


@pytest.mark.parametrize("scale", [2.0**100, 2.0])
def test_a_gradient_that_overflows_because_of_a_scaled_loss(scale: float, tmp_path: Path) -> None:
    step = Step(is_first=False).takes(CLEAN).op("loss", "Mul", ["x", "x"], numbers(1.0, 1.0, pos=1))
    begin = {**numbers(scale, scale, pos=1), "rank": 0, "shape": []}
    step.gradient("begin", "Mul", ["x", "x"], begin, "loss").gradient("gradient", "Mul", ["begin", "x"], INF, "loss")
    found = step.reason("gradient", tmp_path, result="gradient")
    assert found is not None
    said = (
        " The gradient was computed from the scalar 1.26765e+30, which is itself the gradient of a product of two "
        "scalars: the program multiplies the loss, or a part of it, by a large number."
    )
    assert found.sentence.endswith(said) == (scale > 2)
    lower = "Lower the scale of the loss, or let keras.optimizers.LossScaleOptimizer find it."
    assert found.repair == (lower if scale > 2 else OF_GRADIENT)


@pytest.mark.parametrize(
    ("op_type", "taken", "made", "cause", "repair"),
    [
        (
            "UnsortedSegmentMax",
            counts(zero=1, pos=3),
            counts(neg=1, pos=1),
            (
                "UnsortedSegmentMax, which holds in 1 of 2 elements the lowest float32, -3.40282e+38: "
                "UnsortedSegmentMax returns it for a segment with no element."
            ),
            "Replace the result of such a segment, for example with tf.where(tf.abs(y) < y.dtype.max, y, 0.0).",
        ),
        (
            "UnsortedSegmentMin",
            numbers(-2.0, 3.0, neg=1, pos=1),
            numbers(-2.0, LARGEST, neg=1, pos=1),
            (
                "UnsortedSegmentMin, which holds the largest float32, 3.40282e+38: UnsortedSegmentMin returns it for "
                "a segment with no element."
            ),
            "Replace the result of such a segment, for example with tf.where(tf.abs(y) < y.dtype.max, y, 0.0).",
        ),
        (
            "MaxPool",
            counts(nan=4, pos=12),
            counts(neg=1, pos=3),
            (
                "MaxPool, which holds in 1 of 4 elements the lowest float32, -3.40282e+38: MaxPool returns it for a "
                "window of NaN, and its input holds 4 NaN."
            ),
            "Replace the NaN before the pooling, for example with tf.where(tf.math.is_nan(x), 0.0, x).",
        ),
        ("UnsortedSegmentMax", counts(neg=1, pos=3), counts(neg=1, pos=1), None, SCALE),  # the input has negatives
        ("UnsortedSegmentMax", numbers(-LARGEST, 1.0, neg=1), numbers(-LARGEST, 1.0, neg=1), None, SCALE),  # a mask
        ("MaxPool", counts(pos=12), counts(pos=4), None, SCALE),
    ],
)
def test_an_overflow_behind_the_maximum_of_nothing(
    op_type: str, taken: Mapping[str, Any], made: Mapping[str, Any], cause: str | None, repair: str, tmp_path: Path
) -> None:
    step = Step(is_first=False).takes(taken).op("extreme", op_type, ["x"], made).op("pad", "Pad", ["extreme"], made)
    step.op("square", "Square", ["pad"], INF)
    found = step.reason("square", tmp_path, result="square")
    assert found is not None
    _, _, said = found.sentence.partition(" An input was computed from the result of ")
    assert (said or None, found.repair) == (cause, repair)


@pytest.mark.parametrize(("op_type", "health"), [("Maximum", CLEAN), ("Neg", numbers(0.0, 2.0, zero=1, pos=1))])
def test_an_overflow_behind_a_bound_is_not_of_the_maximum_of_nothing(
    op_type: str, health: Mapping[str, Any], tmp_path: Path
) -> None:
    step = Step(is_first=False).takes(counts(pos=4)).op("extreme", "UnsortedSegmentMax", ["x"], counts(neg=1, pos=1))
    step.op("bound", op_type, ["extreme"], health).op("square", "Square", ["bound"], INF)
    found = step.reason("square", tmp_path, result="square")
    assert found is not None
    assert (found.sentence.startswith("Overflow in Square: "), found.repair) == (True, SCALE)
    assert "UnsortedSegmentMax" not in found.sentence


def log_of(*takers: tuple[str, str, list[str]]) -> Step:
    """Returns a step with log(x), where x holds a 0, and ops that take the logarithm."""
    step = Step().takes(ZERO).op("log", "Log", ["x"], NEG_INF)
    for name, op_type, inputs in takers:
        step.op(name, op_type, inputs, NAN)
    return step


@pytest.mark.parametrize(
    ("step", "repair"),
    [
        (log_of(("product", "Mul", ["x", "log"])), "xlogy"),
        (
            log_of(("product", "Mul", ["log", "x"])).gradient("slope", "Mul", ["log", "product"], NAN, "product"),
            "xlogy",
        ),
        (log_of(("other", "Neg", ["x"]), ("product", "Mul", ["other", "log"])), ABOVE_0),  # another factor
        (log_of(("product", "Mul", ["x", "log"]), ("sum", "Sum", ["log"])), ABOVE_0),  # the logarithm is needed, too
        (log_of(("product", "Mul", ["log", "log"])), ABOVE_0),
        (log_of(("quotient", "RealDiv", ["log", "x"])), LOG_AND_DIVISOR),
        (log_of(("quotient", "RealDiv", ["x", "log"])), ABOVE_0),  # the divisor is the logarithm
    ],
    ids=["entropy", "entropy with its gradient", "other factor", "second use", "square", "quotient", "by the log"],
)
def test_the_repair_of_a_logarithm_depends_on_the_other_uses_of_its_argument(
    step: Step, repair: str, tmp_path: Path
) -> None:
    found = step.reason("log", tmp_path, result="log")
    assert found == Explanation(LOG_OF_0, XLOGY if repair == "xlogy" else repair)


def logarithms(one: float, *, of: str = "x", dtype: str = "float32") -> Step:
    """Returns a step with log(x) - log(one - x). `of` tells which logarithm is -Inf: `x` or `other`."""
    zero = {**ZERO, "dtype": dtype}
    step = Step().takes(zero if of == "x" else {**CLEAN, "dtype": dtype})
    step.op("one", "Const", [], {**ONE, "scalar_value": one})
    step.op("other", "Sub", ["one", "x"], CLEAN if of == "x" else zero)
    step.op("log_x", "Log", ["x"], NEG_INF if of == "x" else CLEAN)
    step.op("log_other", "Log", ["other"], CLEAN if of == "x" else NEG_INF)
    return step.op("logit", "Sub", ["log_x", "log_other"], NEG_INF)


BOTH_LOGARITHMS = (
    "Clip x before both logarithms, log(x) and log(1 - x), for example with tf.clip_by_value(x, {0}, 1 - {0})."
)


@pytest.mark.parametrize(
    ("step", "name", "repair"),
    [
        (logarithms(1.0), "log_x", BOTH_LOGARITHMS.format("1e-6")),
        (logarithms(1.0, of="other"), "log_other", BOTH_LOGARITHMS.format("1e-6")),
        (logarithms(1.0, dtype="float16"), "log_x", BOTH_LOGARITHMS.format("1e-3")),
        (logarithms(10.0), "log_x", ABOVE_0),
        (log_of(("one", "Const", []), ("other", "Sub", ["one", "x"])), "log", ABOVE_0),
    ],
    ids=["x", "1 - x", "float16", "10 - x", "one logarithm"],
)
def test_a_clip_from_above_0_is_not_enough_for_two_logarithms(
    step: Step, name: str, repair: str, tmp_path: Path
) -> None:
    assert step.reason(name, tmp_path, result="x") == Explanation(LOG_OF_0, repair)


def test_the_gradient_of_one_of_two_logarithms_needs_a_clip_for_both(tmp_path: Path) -> None:
    step = logarithms(1.0).gradient("slope", "Reciprocal", ["x"], INF, "log_x")
    found = step.reason("slope", tmp_path)
    assert found is not None
    assert found.repair == BOTH_LOGARITHMS.format("1e-6")


@pytest.mark.parametrize(("number", "repair"), [(1.0, BOTH_LOGARITHMS.format("1e-6")), (2.0, ABOVE_0)])
def test_two_logarithms_in_eager_code(number: float, repair: str, tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    difference = run.execution("Sub", inputs=[2, 1], outputs={3: "float32"})
    run.external(1, ZERO, execution=difference)
    run.external(2, {**ONE, "scalar_value": number}, execution=difference)
    run.eager(difference, CLEAN, tensor_id=3)
    run.eager(run.execution("Log", inputs=[3], outputs={4: "float32"}), CLEAN, tensor_id=4)
    event = run.eager(run.execution("Log", inputs=[1], outputs={5: "float32"}), NEG_INF, tensor_id=5)
    found = read_reasons(run.write(tmp_path), event, run_id="run-a").explanation
    assert found == Explanation(LOG_OF_0, repair)


@pytest.mark.parametrize(
    ("taken", "weight", "repair"),
    [
        (CLEAN, counts(pos=4), WEIGHTED),
        (CLEAN, counts(zero=1, pos=3), ABOVE_0),  # all exponentials of a sum may have the weight 0
        (NEG_INF, counts(pos=4), ABOVE_0),  # exp(-Inf) is 0, too
    ],
)
def test_a_weighted_sum_of_exponentials_that_underflows(
    taken: Mapping[str, Any], weight: Mapping[str, Any], repair: str, tmp_path: Path
) -> None:
    """The program takes log(sum(weight * (exp(x) / scale)))."""
    step = Step().takes(taken).op("exp", "Exp", ["x"], counts(zero=2, pos=2)).op("scale", "Exp", [], counts(pos=4))
    step.op("density", "RealDiv", ["exp", "scale"], counts(zero=2, pos=2)).op("weight", "Softmax", [], weight)
    step.op("terms", "Mul", ["weight", "density"], counts(zero=2, pos=2)).op("sum", "Sum", ["terms"], ZERO)
    step.op("log", "Log", ["sum"], NEG_INF)
    assert step.reason("log", tmp_path, result="log") == Explanation(LOG_OF_0, repair)


@pytest.mark.parametrize(
    ("takers", "repair"),
    [
        ([("sum", "Sum", ["exp"]), ("log", "Log", ["sum"])], LOGSUMEXP),
        ([("sum", "Sum", ["exp"]), ("ratio", "RealDiv", ["exp", "sum"])], OF_AXIS),
        (
            [
                ("sum", "UnsortedSegmentSum", ["exp", "x"]),
                ("own", "GatherV2", ["sum", "x"]),
                ("ratio", "RealDiv", ["exp", "own"]),
            ],
            SEGMENTS,
        ),
        ([("sum", "UnsortedSegmentSum", ["exp", "x"]), ("own", "GatherV2", ["sum", "x"])], CLIP),
        ([("sum", "UnsortedSegmentSum", ["exp", "x"]), ("ratio", "RealDiv", ["exp", "x"])], CLIP),
        (
            [("sum", "AddV2", ["one", "exp"]), ("log", "Log", ["sum"])],
            "Use tf.nn.softplus(x) in place of log(1 + exp(x)): it cannot overflow.",
        ),
        (
            [("sum", "AddV2", ["one", "exp"]), ("ratio", "RealDiv", ["one", "sum"])],
            (
                "Use tf.nn.sigmoid(x) in place of 1 / (1 + exp(-x)), and tf.math.log_sigmoid(x) in place of its "
                "logarithm: they cannot overflow."
            ),
        ),
        ([("sum", "AddV2", ["x", "exp"]), ("log", "Log", ["sum"])], CLIP),
        ([("sum", "Sum", ["exp"])], CLIP),
        ([("product", "Mul", ["exp", "x"])], CLIP),
    ],
    ids=[
        "logsumexp",
        "softmax",
        "softmax of segments",
        "sums of segments",
        "sums of segments and quotients",
        "softplus",
        "sigmoid",
        "another sum",
        "sum",
        "product",
    ],
)
def test_the_repair_of_an_exponential_depends_on_what_takes_it(
    takers: list[tuple[str, str, list[str]]], repair: str, tmp_path: Path
) -> None:
    step = Step().takes(CLEAN).op("exp", "Exp", ["x"], INF)
    step.graph.op("one", "Const")
    for name, op_type, inputs in takers:
        step.op(name, op_type, inputs, INF)
    found = step.reason("exp", tmp_path, result=takers[-1][0])
    assert found == Explanation(f"Overflow in Exp: its inputs are finite, and {OVER}", repair)


@pytest.mark.parametrize(
    ("dtype", "bound"),
    [
        ("float16", f"(x, 2.0). Exp overflows above 11.1; the limit of 2.0 {ROOM}"),
        ("float64", f"(x, 177.0). Exp overflows above 709.8; the limit of 177.0 {ROOM}"),
        ("unknown", "."),
    ],
)
def test_the_bound_of_an_exponential_depends_on_the_dtype(dtype: str, bound: str) -> None:
    found = explain(Computed(output=row("Exp", INF, dtype=dtype), inputs={0: row("Sub", CLEAN)}))
    assert found is not None
    assert found.repair == f"Clip the argument from above, for example with tf.minimum{bound}"


def test_the_gradient_of_a_logarithm_needs_the_repair_of_the_logarithm(tmp_path: Path) -> None:
    step = Step().takes(CLEAN).op("exp", "Exp", ["x"], counts(zero=2, pos=1)).op("sum", "Sum", ["exp"], ZERO)
    step.op("log", "Log", ["sum"], NEG_INF).gradient("slope", "Reciprocal", ["sum"], INF, "log")
    assert step.reason("slope", tmp_path, result="log") == Explanation(
        "The gradient of Log divides by 0: 1 of 2 elements is 0, and 1 / 0 is infinite.", LOGSUMEXP
    )


@pytest.mark.parametrize(
    ("x", "terms", "is_mask"),
    [
        (counts(neg_inf=2, zero=1), counts(zero=2, pos=1), True),
        (counts(neg_inf=1, neg=2), counts(zero=2, pos=1), False),  # one exponential underflowed
        (counts(neg=3), counts(zero=2, pos=1), False),
        (
            counts(neg_inf=2, zero=1),
            {**counts(zero=2, pos=1), "num_subnormal": 1},
            False,
        ),  # TensorFlow may add 0 in its place
    ],
)
def test_a_sum_of_exponentials_of_infinities_is_no_underflow(
    x: dict[str, Any], terms: dict[str, Any], is_mask: bool, tmp_path: Path
) -> None:
    step = Step().takes(x).op("exp", "Exp", ["x"], terms).op("sum", "Sum", ["exp"], ZERO)
    found = step.op("log", "Log", ["sum"], NEG_INF).reason("log", tmp_path, result="log")
    of_mask = Explanation(
        "Log-sum-exp of -Inf alone: 1 of 2 rows holds nothing else, and the log-sum-exp of such a row is -Inf.",
        "Mask with a large negative number such as -1e9, or leave one element of each row unmasked.",
    )
    assert found == (of_mask if is_mask else Explanation(LOG_OF_0, LOGSUMEXP))


BY_0 = "Division by 0: 2 of 2 elements are 0 in the divisor, and the quotient is infinite."
ALL_0 = counts(zero=2)


def test_a_divisor_that_is_0_because_the_exponentials_underflowed(tmp_path: Path) -> None:
    step = Step().takes(CLEAN).op("kernel", "Exp", ["x"], counts(zero=4)).op("v", "MatMul", ["kernel", "x"], ALL_0)
    step.op("divisor", "Squeeze", ["v"], ALL_0).op("ratio", "RealDiv", ["x", "divisor"], counts(pos_inf=2))
    assert step.reason("ratio", tmp_path, result="ratio") == Explanation(
        f"{BY_0} The divisor is 0 because Exp underflowed: 4 of 4 elements are 0 in its result.", UNDERFLOW
    )


def test_products_of_exponentials_that_underflowed(tmp_path: Path) -> None:
    kernel = counts(zero=3, pos=1)
    step = Step().takes(counts(pos=2)).op("kernel", "Exp", ["x"], kernel).op("v", "MatMul", ["kernel", "x"], ZERO)
    step.op("divisor", "Squeeze", ["v"], ZERO).op("ratio", "RealDiv", ["x", "divisor"], counts(pos_inf=1, pos=1))
    assert step.reason("ratio", tmp_path, result="ratio") == Explanation(
        "Division by 0: 1 of 2 elements is 0 in the divisor, and the quotient is infinite. The divisor sums products "
        "of exponentials, and where it is 0, all of them underflowed.",
        UNDERFLOW,
    )


@pytest.mark.parametrize(
    ("shape", "summed", "repair"),
    [
        ([2, 3], [3], "Use tf.nn.softmax with axis=0 in place of"),
        ([2, 3], [2, 1], "Use tf.nn.softmax in place of"),
        ([2, 3], [2], "Use tf.nn.softmax in place of"),
        ([2, 2], [2], "Use tf.nn.softmax, with the axis of the sum, in place of"),
        ([2, 3], [], "Use tf.nn.softmax, with the axis of the sum, in place of"),
    ],
)
def test_a_sum_of_exponentials_that_underflowed(
    shape: list[int], summed: list[int], repair: str, tmp_path: Path
) -> None:
    exponentials = {**counts(zero=3, pos=prod(shape) - 3), "rank": 2, "shape": shape}
    total = {**counts(zero=1, pos=prod(summed) - 1), "rank": len(summed), "shape": summed}
    step = Step().takes(CLEAN).op("exp", "Exp", ["x"], exponentials).op("sum", "Sum", ["exp"], total)
    step.op("ratio", "RealDiv", ["exp", "sum"], NAN)
    found = step.reason("ratio", tmp_path, result="ratio")
    assert found == Explanation(
        "0 / 0: the divisor has 1 zero, the dividend 3 zeros, and 0 / 0 is NaN. The divisor sums exponentials, and "
        "where it is 0, all of them underflowed.",
        f"{repair} the exponentials, their sum and the division.",
    )


def test_a_division_by_the_sum_of_products_of_exponentials_is_no_softmax(tmp_path: Path) -> None:
    step = Step().takes(CLEAN).op("exp", "Exp", ["x"], ALL_0).op("weighted", "Mul", ["x", "exp"], ALL_0)
    step.op("sum", "Sum", ["weighted"], ALL_0).op("ratio", "RealDiv", ["weighted", "sum"], NAN)
    assert step.reason("ratio", tmp_path, result="ratio") == Explanation(
        "0 / 0: the divisor has 2 zeros, the dividend 2 zeros, and 0 / 0 is NaN. The divisor is 0 because Exp "
        "underflowed: 2 of 2 elements are 0 in its result.",
        UNDERFLOW,
    )


@pytest.mark.parametrize(
    ("taken", "kernel"),
    [(CLEAN, counts(zero=3, pos=1)), (counts(neg_inf=4), counts(zero=4))],
    ids=["the other factor is 0", "exp(-Inf) is 0"],
)
def test_a_divisor_that_is_0_for_another_reason(
    taken: Mapping[str, Any], kernel: Mapping[str, Any], tmp_path: Path
) -> None:
    step = Step().takes(taken).op("y", "Tanh", ["x"], ZERO).op("kernel", "Exp", ["x"], kernel)
    step.op("divisor", "MatMul", ["kernel", "y"], ALL_0).op("ratio", "RealDiv", ["y", "divisor"], counts(pos_inf=2))
    found = step.reason("ratio", tmp_path, result="ratio")
    assert found in (Explanation(BY_0, NO_NAN), Explanation(BY_0, NO_NAN_OR_LARGE))


def row(op_type: str | None, health: Mapping[str, Any], *, slot: int = 0, dtype: str = "float32") -> TensorEvent:
    facts = dict.fromkeys(TensorEvent.__dataclass_fields__)
    facts |= {"event_index": 1, "scope": "graph", "op_type": op_type, "output_slot": slot, "dtype": dtype}
    facts |= {name: value for name, value in health.items() if name in facts}
    return TensorEvent(**{**facts, "shape": tuple(health["shape"])})  # type: ignore[arg-type]


MASKED = {**counts(neg_inf=3, pos=3), "shape": [2, 3]}
LABELS = {**counts(zero=4, pos=2), "shape": [2, 3]}
DECOMPOSED = "its input is finite, so the decomposition overflowed or did not converge."
ABOVE_0_BEFORE_ROOT = (
    "Keep the argument above 0, for example with tf.maximum(x, 1e-7). A maximum with 0 is not enough: at 0, the "
    "gradient of the root is infinite, and so is a division by the root."
)
BEFORE_ROOT = (
    "Before the root, add an epsilon such as 1e-7 (1e-4 in float16). A norm, a standard deviation and a power of 0.5 "
    "take a root, too."
)
AWAY_FROM_0 = "Keep the base away from 0: add an epsilon or use tf.maximum."
POWER = (
    f"{AWAY_FROM_0} To get 0 for a base of 0, such as the degree of a node without neighbors, use tf.where(x > 0, "
    "tf.maximum(x, epsilon) ** p, 0.0)."
)
FACTORS = "Scale the matrix down, or compute in float64."
FINITE_MASK = (
    "Mask with a large negative number such as -1e9 in place of -Inf. If no mask is -Inf: Look for the op that "
    "made the infinities: tfdbg-arrow first-nonfinite --kinds inf."
)
LOGARITHMS = (
    "Add the logarithms of the factors in place of the product (tf.reduce_sum or tf.cumsum of tf.math.log), or "
    "scale the factors."
)
CANCELLED = (
    "Inf - Inf: the inputs hold 2 infinities. In 1 of 2 elements, infinities cancel each other, and Inf - Inf is NaN."
)
MAXIMUM = "Keep the argument above 0, for example with tf.maximum(x, 1e-7)."
GAMMA = "Keep the arguments in the domain with tf.clip_by_value or tf.maximum."
ORIGIN = "Look for the op that made the infinities: tfdbg-arrow first-nonfinite --kinds inf."
SIGNED = "Use tf.linalg.slogdet: it returns the sign of the determinant and the logarithm of its magnitude."


@pytest.mark.parametrize(
    ("op_type", "inputs", "made", "sentence", "repair"),
    [
        (
            "MatrixSquareRoot",
            [CLEAN],
            NAN,
            (
                "MatrixSquareRoot: the matrix is finite and its root is not. An eigenvalue is 0 or a negative number, "
                "or is after rounding, or the computation overflowed."
            ),
            (
                "Keep the eigenvalues above 0: with tf.linalg.eigh, take the roots of tf.maximum(eigenvalues, "
                "epsilon) and multiply them with the eigenvectors. For a matrix that is not symmetric, cast it to "
                "complex64."
            ),
        ),
        (
            "MatrixLogarithm",
            [CLEAN],
            INF,
            (
                "MatrixLogarithm: the matrix is finite and its logarithm is not. An eigenvalue is 0, or is after "
                "rounding, or the computation overflowed."
            ),
            JITTER,
        ),
        ("Svd", [CLEAN], NAN, f"Svd: {DECOMPOSED}", FACTORS),
        (
            "Lgamma",
            [ZERO],
            INF,
            "Lgamma of 0: 1 of 2 elements is 0, and the result is infinite.",
            "Keep the argument above 0, for example with tf.maximum(x, 1e-7).",
        ),
        ("Qr", [CLEAN], NAN, f"Qr: {DECOMPOSED}", FACTORS),
        ("SelfAdjointEigV2", [CLEAN], NAN, f"SelfAdjointEig: {DECOMPOSED}", FACTORS),
        (
            "Polygamma",
            [CLEAN, ZERO],
            INF,
            "Polygamma: the order is negative or not a whole number, x is not above 0, or the result is too large.",
            GAMMA,
        ),
        (
            "LRN",
            [ZERO],
            NAN,
            "LRN: bias + alpha * the sum of squares around an element is 0, negative or too large.",
            "Use a bias and an alpha above 0, and scale the input down.",
        ),
        (
            "CumulativeLogsumexp",
            [INF],
            NAN,
            "CumulativeLogsumexp of +Inf: 1 of 2 elements is +Inf, and Inf - Inf is NaN.",
            ORIGIN,
        ),
        (
            "BesselI0",
            [CLEAN],
            INF,
            f"Overflow in BesselI0: its inputs are finite, and {OVER}",
            (
                "Use tf.math.bessel_i0e, which is this function times exp(-abs(x)) and cannot overflow. For the "
                "logarithm, use tf.math.log(tf.math.bessel_i0e(x)) + tf.abs(x)."
            ),
        ),
        ("BesselK1", [ZERO], INF, "BesselK1: an element is 0, next to 0 or negative.", MAXIMUM),
        ("Expint", [ZERO], NEG_INF, "Expint: an element is 0, next to 0, negative or above 88.", GAMMA),
        ("Spence", [CLEAN], NAN, "Spence: an element is negative, or too large to compute with.", GAMMA),
        (
            "Rsqrt",
            [counts(neg=1, zero=1)],
            counts(nan=1, pos_inf=1),
            f"Rsqrt of 0: 1 of 2 elements is 0, and 1 / sqrt(0) is infinite. Rsqrt {OF_NEGATIVE}",
            ABOVE_0_BEFORE_ROOT,
        ),
        ("SegmentProdV2", [CLEAN], INF, f"Overflow in SegmentProd: its inputs are finite, and {OVER}", LOGARITHMS),
        (
            "MatrixDeterminant",
            [CLEAN],
            INF,
            f"Overflow in MatrixDeterminant: its inputs are finite, and {OVER}",
            SIGNED,
        ),
        (
            "Bitcast",
            [],
            NAN,
            "Bitcast: the bytes, read as numbers, hold 1 NaN.",
            "Check that the bytes are numbers of that dtype and byte order.",
        ),
        (
            "SoftmaxCrossEntropyWithLogits",
            [MASKED, LABELS],
            NAN,
            (
                "SoftmaxCrossEntropyWithLogits: a masked logit times a label of 0, or a row of nothing else. In the "
                "logits, 3 of 6 elements are -Inf, and Inf * 0 and 0 / 0 are NaN."
            ),
            "Mask with a large negative number such as -1e9 instead of -Inf.",
        ),
        (
            "Sub",
            [NEG_INF, NEG_INF],
            NAN,
            CANCELLED,
            FINITE_MASK,
        ),
        (
            "Sub",
            [INF, INF],
            NAN,
            CANCELLED,
            ORIGIN,
        ),
        (
            "FusedBatchNormV3",
            [*[numbers(1.0, 2.0, pos=2)] * 4, numbers(-1.0, 2.0, neg=1, pos=1)],
            NAN,
            "FusedBatchNorm: 1 of 2 elements is negative in the variance, and its root is NaN.",
            NEGATIVE_VARIANCE,
        ),
        (
            "FusedBatchNormV3",
            [*[numbers(1.0, 2.0, pos=2)] * 4, numbers(0.0, 2.0, zero=1, pos=1)],
            NAN,
            "FusedBatchNorm: 1 of 2 elements is 0 in the variance, and the epsilon is 0 or rounds to 0.",
            "Use an epsilon above 0.",
        ),
        (
            "RealDiv",
            [counts(pos_inf=2), counts(pos_inf=2)],
            counts(nan=2),
            "Inf / Inf: the dividend holds 2 infinities and the divisor 2 infinities; Inf / Inf is NaN.",
            "Look for the op that made the infinities: tfdbg-arrow first-nonfinite --kinds inf.",
        ),
        ("RealDiv", [INF, INF], NAN, None, None),  # without numerics, a number may be so small that it counts as 0
        (
            "Softmax",
            [{**counts(neg_inf=5, pos=1), "shape": [3, 2]}],
            {**counts(nan=4, zero=1, pos=1), "shape": [3, 2]},
            "Softmax of -Inf alone: 2 of 3 rows of the logits hold nothing else, which gives 0 / 0.",
            "Mask with a large negative number such as -1e9, or leave one element of each row unmasked.",
        ),
        ("UnsortedSegmentMax", [CLEAN], CLEAN, None, None),
        ("Svd", [NAN], NAN, None, None),
        ("CumulativeLogsumexp", [NAN], NAN, None, None),
    ],
)
def test_the_rule_of_an_op(
    op_type: str,
    inputs: list[Mapping[str, Any]],
    made: Mapping[str, Any],
    sentence: str | None,
    repair: str | None,
) -> None:
    taken = {index: row("Identity", health) for index, health in enumerate(inputs)}
    found = explain(Computed(output=row(op_type, made), inputs=taken))
    assert found == (None if sentence is None else Explanation(sentence, repair))


@pytest.mark.parametrize(
    ("program_ops", "made", "sentence"),
    [
        (("MatMul", "BiasAdd"), INF, f"Overflow in MatMul + BiasAdd: its inputs are finite, and {OVER}"),
        (
            ("MatMul", "BiasAdd", "Relu"),
            NAN,
            (
                "Overflow in MatMul + BiasAdd + Relu: its inputs are finite, but partial sums reached +Inf and -Inf, "
                "and Inf - Inf is NaN."
            ),
        ),
    ],
)
def test_an_overflow_of_a_fused_layer(program_ops: tuple[str, ...], made: Mapping[str, Any], sentence: str) -> None:
    taken = {index: row("Identity", CLEAN) for index in range(3)}
    found = explain(Computed(output=row("_FusedMatMul", made), inputs=taken, program_ops=program_ops))
    assert found == Explanation(sentence, SCALE)


@pytest.mark.parametrize(
    ("program_ops", "makers", "repair"),
    [
        (("Relu", "Log"), ("Log",), "Keep the argument above 0, for example with tf.maximum(x, 1e-7)."),
        (("Sqrt", "Neg"), ("Sqrt",), ABOVE_0_BEFORE_ROOT),
        (("Log", "Sqrt"), ("Sqrt", "Log"), None),
    ],
)
def test_the_repair_of_a_fused_op_is_that_of_its_only_maker(
    program_ops: tuple[str, ...], makers: tuple[str, ...], repair: str | None
) -> None:
    taken = {0: row("Identity", CLEAN)}
    computed = Computed(output=row("_UnaryOps", NAN), inputs=taken, program_ops=program_ops, makers=makers)
    found = explain(computed)
    assert found is not None
    assert found.repair == repair


def test_a_convolution_fused_with_a_normalization_may_be_bad_for_another_reason() -> None:
    taken = {index: row("Identity", CLEAN) for index in range(6)}
    program_ops = ("Conv2D", "FusedBatchNormV3")
    output = row("_FusedConv2D", INF)
    found = explain(Computed(output=output, inputs=taken, program_ops=program_ops, makers=program_ops))
    assert found is not None
    assert "Overflow" not in found.sentence


@pytest.mark.parametrize(
    ("made_by", "repair"),
    [
        (
            "Sub",
            (
                "Keep the argument above 0 with tf.maximum. Do not add an epsilon to the difference: TensorFlow's "
                "optimizer can add it to a larger term, where it is rounded away."
            ),
        ),
        ("Prod", LOGARITHMS),
        (
            "Relu",
            "Use tf.nn.softplus in place of tf.nn.relu, which returns 0 for a number below 0, or add an epsilon.",
        ),
        ("Sigmoid", "Use tf.math.log_sigmoid in place of the sigmoid and the logarithm."),
        ("Softmax", "Use tf.nn.log_softmax in place of the softmax and the logarithm."),
        ("Sum", ABOVE_0),  # not of exponentials
        ("Mul", ABOVE_0),
    ],
)
def test_the_repair_of_a_logarithm_depends_on_its_argument(made_by: str, repair: str) -> None:
    computed = Computed(output=row("Log", NEG_INF), inputs={0: row(made_by, ZERO)})
    assert explain(computed) == Explanation(LOG_OF_0, repair)


def test_only_a_logarithm_in_a_loss_can_be_left_to_a_loss_from_logits() -> None:
    computed = Computed(output=row("Log", NEG_INF), inputs={0: row("Softmax", ZERO)}, is_in_loss=True)
    assert explain(computed) == Explanation(
        LOG_OF_0, "Use tf.nn.log_softmax, or a loss with from_logits=True, in place of the softmax and the logarithm."
    )


def test_a_logarithm_of_a_determinant_that_is_0_is_of_a_singular_matrix() -> None:
    taken = {0: row("MatrixDeterminant", ZERO)}
    assert explain(Computed(output=row("Log", NEG_INF), inputs=taken)) == Explanation(
        f"{LOG_OF_0} It is a determinant: the matrix is singular, or the product of its eigenvalues underflowed.",
        "Add jitter to the diagonal of the matrix, for example 1e-4 * tf.eye(n). If the matrix is not singular, "
        "tf.linalg.slogdet is enough: it does not underflow.",
    )


def test_a_logarithm_of_a_negative_determinant_is_of_its_magnitude() -> None:
    taken = {0: row("MatrixDeterminant", counts(neg=1, pos=1))}
    assert explain(Computed(output=row("Log", NAN), inputs=taken)) == Explanation(
        "Log of a negative number: 1 of 2 elements is below 0, and the result is NaN.", SIGNED
    )


BY_ONE_0 = "Division by 0: the divisor is 0, and the quotient is infinite."
STEP_COUNTER = "The counter of steps begins at 0. Use step + 1, or tf.maximum(step, 1)."


@pytest.mark.parametrize(
    ("base", "step", "repair"),
    [
        ("Pow", ONE_0, STEP_COUNTER),
        ("Pow", ONE, NO_NAN_OR_LARGE),
        ("Pow", counts(zero=1), NO_NAN_OR_LARGE),
        ("Mul", ONE_0, NO_NAN_OR_LARGE),
    ],
)
def test_a_bias_correction_in_step_0(base: str, step: Mapping[str, Any], repair: str, tmp_path: Path) -> None:
    program = Step().takes(CLEAN).op("step", "ReadVariableOp", [], step).op("one", "Const", [], ONE)
    program.op("power", base, ["one", "step"], ONE).op("correction", "Sub", ["one", "power"], ONE_0)
    program.op("ratio", "RealDiv", ["x", "correction"], INF)
    assert program.reason("ratio", tmp_path, result="ratio") == Explanation(BY_ONE_0, repair)


OF_ONE_SAMPLE = " Dividend and divisor are computed from a single sample."
LEAVE_OUT = (
    "Use tf.math.divide_no_nan, or leave out batches of one sample (such as with drop_remainder=True): their "
    "variance is 0."
)


@pytest.mark.parametrize(
    ("shape", "square", "is_of_one"),
    [
        ([1], "SquaredDifference", True),
        ([1, 3], "SquaredDifference", True),
        ([3, 1], "SquaredDifference", False),  # another axis
        ([3, 3], "SquaredDifference", False),
        ([1], "Cast", False),  # a mask
    ],
)
def test_the_standard_deviation_of_a_single_sample(
    shape: list[int], square: str, is_of_one: bool, tmp_path: Path
) -> None:
    size = max(shape)
    zero = {**counts(zero=prod(shape)), "rank": len(shape), "shape": shape}
    step = Step().takes(zero).op("square", square, ["x", "x"], zero).op("mean", "Mean", ["square"], counts(zero=size))
    step.op("variance", "Squeeze", ["mean"], counts(zero=size)).op("root", "Sqrt", ["variance"], counts(zero=size))
    step.op("ratio", "RealDiv", ["x", "root"], {**counts(nan=prod(shape)), "shape": shape})
    found = step.reason("ratio", tmp_path, result="ratio")
    assert found is not None
    assert found.sentence.endswith(OF_ONE_SAMPLE) == is_of_one
    assert found.repair == (LEAVE_OUT if is_of_one else NO_NAN)


@pytest.mark.parametrize(("shape", "count"), [([1, 1], "Cast"), ([2, 1], "Cast"), ([1, 1], "Sum")])
def test_the_number_of_samples_minus_1(shape: list[int], count: str, tmp_path: Path) -> None:
    zero = {**counts(zero=prod(shape)), "rank": 2, "shape": shape}
    step = Step().takes(zero).op("sum", "Sum", ["x"], counts(zero=1)).op("count", count, [], ONE)
    step.op("one", "Const", [], ONE).op("less", "Sub", ["count", "one"], ONE_0)
    step.op("ratio", "RealDiv", ["sum", "less"], counts(nan=1))
    found = step.reason("ratio", tmp_path, result="ratio")
    assert found is not None
    assert found.sentence.endswith(OF_ONE_SAMPLE) == (shape == [1, 1] and count == "Cast")


@pytest.mark.parametrize(
    ("program_ops", "forward_type", "sentence", "repair"),
    [
        (("Pow",), None, "Pow of 0: 1 of 2 elements is 0, and 0 to a negative power is infinite.", POWER),
        (
            ("Sub", "Pow"),
            "Pow",
            "The gradient of Pow at 0: 1 of 2 elements is 0, and 0 to a negative power is infinite.",
            AWAY_FROM_0,
        ),
        (("RealDiv", "Sqrt"), None, "Rsqrt of 0: 1 of 2 elements is 0, and 1 / sqrt(0) is infinite.", BEFORE_ROOT),
    ],
)
def test_a_power_that_ran_as_an_inverse_root(
    program_ops: tuple[str, ...], forward_type: str | None, sentence: str, repair: str
) -> None:
    found = explain(
        Computed(
            output=row("Rsqrt", INF),
            inputs={0: row("Sum", ZERO)},
            program_ops=program_ops,
            forward_type=forward_type,
        )
    )
    assert found == Explanation(sentence, repair)


@pytest.mark.parametrize(
    ("output", "taken", "forward_type"), [(NAN, CLEAN, None), (INF, ZERO, "Acos")], ids=["function", "gradient"]
)
def test_an_angle_needs_a_clipped_cosine(
    output: Mapping[str, Any], taken: Mapping[str, Any], forward_type: str | None
) -> None:
    op_type = "Acos" if forward_type is None else "Reciprocal"
    found = explain(Computed(output=row(op_type, output), inputs={0: row("Sub", taken)}, forward_type=forward_type))
    assert found is not None
    assert found.repair == (
        "Clip the argument with tf.clip_by_value, for example to -0.999999 to 0.999999: the slope at 1 is infinite."
    )


@pytest.mark.parametrize(
    ("output", "added"), [(counts(nan=1, pos_inf=1), " Any other number divided by 0 is infinite."), (NAN, "")]
)
def test_infinities_beside_0_by_0_are_explained(output: Mapping[str, Any], added: str) -> None:
    taken = {0: row("Mul", ZERO), 1: row("Square", counts(zero=2))}
    assert explain(Computed(output=row("RealDiv", output), inputs=taken)) == Explanation(
        f"0 / 0: the divisor has 2 zeros, the dividend 1 zero, and 0 / 0 is NaN.{added}", NO_NAN
    )


@pytest.mark.parametrize(
    ("has_gradients", "repair"),
    [
        (False, "use tf.math.multiply_no_nan(x, y), which returns 0 where y is 0."),
        (True, "replace the infinity before the product: tf.where(mask, x, 0.0)."),  # the gradient is a product, too
    ],
)
def test_a_constant_infinity_times_zero_has_to_be_finite(has_gradients: bool, repair: str) -> None:
    taken = {0: row("Const", counts(neg_inf=1)), 1: row("Sub", ZERO)}
    computed = Computed(output=row("Mul", NAN), inputs=taken, has_gradients=lambda: has_gradients)
    assert explain(computed) == Explanation(
        "Inf * 0: one factor holds 1 infinity, the other holds 1 zero, and Inf * 0 is NaN.",
        f"Use a large finite number, such as 1e9 or -1e9, in place of the infinite one, or {repair}",
    )


@pytest.mark.parametrize(("made_by", "dtype"), [("Where", "float16"), ("Cast", "float32"), ("Where", "bfloat16")])
def test_a_mask_is_finite_in_its_dtype(made_by: str, dtype: str) -> None:
    logits = row(made_by, {**counts(neg_inf=2), "shape": [2]}, dtype=dtype)
    before_cast = row("Where", counts(neg_inf=2), dtype="float16")
    output = row("Softmax", counts(nan=2), dtype=dtype)
    found = explain(Computed(output=output, inputs={0: logits}, made_from=lambda _: {0: before_cast}))
    assert found is not None
    assert found.repair == (
        "Mask with a large negative number such as -1e9, or leave one element of each row unmasked."
        if dtype == "bfloat16"
        else "Mask with a large negative number such as -1e4, or leave one element of each row unmasked. In float16, a "
        "number beyond 65504, such as -1e9, is infinite."
    )


HALF_MASK = {**counts(neg_inf=3, zero=1), "shape": [2, 2]}


@pytest.mark.parametrize(
    ("mask", "made", "is_mask"),
    [
        (HALF_MASK, ("Mul", "Const"), True),
        (HALF_MASK, ("SelectV2", "Const"), True),
        (HALF_MASK, ("Mul", "x"), False),  # a product of data
        ({**counts(neg_inf=4), "shape": [2, 2]}, ("Mul", "Const"), False),
        ({**counts(neg_inf=2, zero=1, pos=1), "shape": [2, 2]}, ("Mul", "Const"), False),
        ({**counts(pos_inf=3, zero=1), "shape": [2, 2]}, ("Mul", "Const"), False),  # as Relu returns
    ],
)
def test_a_mask_that_a_cast_makes_infinite(
    mask: Mapping[str, Any], made: tuple[str, str], is_mask: bool, tmp_path: Path
) -> None:
    op_type, factor = made
    logits = {**mask, "dtype": "float16"}
    probabilities = {**counts(nan=2, pos=2), "shape": [2, 2], "dtype": "float16", "first_bad_index": 2}
    step = Step().takes(CLEAN).op("keep", "Cast", ["x"], {**counts(zero=1, pos=3), "shape": [2, 2]})
    if factor == "Const":
        step.op("Const", "Const", [], counts(neg=1))
    step.op("penalty", op_type, ["keep", factor], {**counts(zero=1, neg=3), "shape": [2, 2]})
    step.op("mask", "Cast", ["penalty"], logits).op("softmax", "Softmax", ["mask"], probabilities)
    found = step.reason("mask", tmp_path, result="softmax")
    assert found is not None
    of_mask = " The other elements are 0, as in a mask. Softmax makes NaN (the first NaN is at [1, 0]) of a row that "
    assert found.sentence.endswith(f"65504.{of_mask}holds only -Inf." if is_mask else "65504.")
    assert (found.repair or "").startswith("Mask with a large negative number such as -1e4, or" if is_mask else "Cast")


@pytest.mark.parametrize(("dtype", "number"), [("bfloat16", "1e9 or -1e9"), ("float16", "1e4 or -1e4")])
def test_a_large_finite_number_is_finite_in_the_dtype(dtype: str, number: str) -> None:
    taken = {0: row("Const", counts(neg_inf=1), dtype=dtype), 1: row("Sub", ZERO, dtype=dtype)}
    explanation = explain(Computed(output=row("Mul", NAN, dtype=dtype), inputs=taken))
    assert explanation is not None
    assert (explanation.repair or "").startswith(f"Use a large finite number, such as {number}, in place of")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("tf.math.log(p + 1e-8)", "The program adds 1e-8 to make the argument, and 1e-8 is 0 in float16."),
        (
            "tf.math.log(p + EPSILON)",
            "The program adds a number to make the argument, and the number is 0 in float16.",
        ),
        ("tf.math.log(p + 1e-8) + (q + 0.5)", "The program adds a number to make the argument, and the number is 0"),
    ],
)
def test_an_epsilon_that_is_0_in_the_dtype_is_named(code: str, reason: str, tmp_path: Path) -> None:
    half = {**ZERO, "dtype": "float16"}
    step = Step().takes(half)
    stack = step.run.stack(("/home/me/train.py", 2, "loss", code, "user"))
    step.run.add("source_file", file_path="/home/me/train.py", source_text=f"def loss(p, q):\n    {code}\n")
    step.op("epsilon", "Const", [], {**half, **counts(zero=1)})
    step.op("sum", "AddV2", ["x", "epsilon"], half, stack=stack).op("log", "Log", ["sum"], {**half, **NEG_INF})
    found = step.reason("log", tmp_path, result="log")
    assert found is not None
    assert found.sentence.startswith(f"{LOG_OF_0} {reason}")


@pytest.mark.parametrize(
    ("made_by", "repair"),
    [
        ("ReadVariableOp", "Give the optimizer an epsilon such as 1e-7."),
        ("Cast", BEFORE_ROOT),  # the step, in a schedule
    ],
)
def test_an_optimizer_that_divides_by_the_root_of_its_variable(made_by: str, repair: str) -> None:
    computed = Computed(output=row("Rsqrt", INF), inputs={0: row(made_by, ZERO)}, is_optimizer=True)
    assert explain(computed) == Explanation("Rsqrt of 0: 1 of 2 elements is 0, and 1 / sqrt(0) is infinite.", repair)


@pytest.mark.parametrize(
    ("made_by", "repair"),
    [
        (["AddV2", "Sqrt", "RealDiv", "ReadVariableOp"], "Give the optimizer an epsilon such as 1e-7."),
        (["Cast", "ReadVariableOp"], NO_NAN_OR_LARGE),  # the step, in a schedule
        (["Sqrt", "Sum", "Square", "ReadVariableOp"], NO_NAN_OR_LARGE),  # a norm, in a constraint
        (["Sqrt"], NO_NAN_OR_LARGE),  # nothing shows the argument of the root
    ],
)
def test_a_division_of_the_user_inside_an_optimizer(made_by: list[str], repair: str) -> None:
    rows = [replace(row(op_type, ZERO), event_index=index) for index, op_type in enumerate(made_by)]
    behind = {index: {0: taken} for index, taken in enumerate(rows[1:])}
    computed = Computed(
        output=row("RealDiv", INF),
        inputs={0: row("Mul", CLEAN), 1: rows[0]},
        made_from=lambda event: behind.get(event.event_index, {}),
        is_optimizer=True,
    )
    assert explain(computed) == Explanation(
        "Division by 0: 1 of 2 elements is 0 in the divisor, and the quotient is infinite.", repair
    )


@pytest.mark.parametrize(("output", "is_mask"), [
    (counts(neg_inf=2, zero=1), True), (counts(neg_inf=3), False), (counts(neg_inf=2, zero=1, neg=1), False),
])  # fmt: skip
def test_the_logarithm_of_a_mask(output: Mapping[str, Any], is_mask: bool) -> None:
    computed = Computed(output=row("Log", output), inputs={0: row("Cast", counts(zero=2, pos=1))})
    explanation = explain(computed)
    assert explanation is not None
    assert explanation.repair is not None
    assert ("If it is a mask of zeros and ones" in explanation.repair) == is_mask


@pytest.mark.parametrize(("takers", "is_default"), [
    ({("ParseExampleV2",)}, True), ({("Reshape",), ("Reshape", "ParseExampleV2")}, True), (set(), False),
    ({("ParseExampleV2",), ("Mul",)}, False), ({("Reshape",)}, False),
])  # fmt: skip
def test_the_default_value_of_a_feature(takers: set[tuple[str, ...]], is_default: bool) -> None:
    computed = Computed(output=row("Const", counts(nan=1)), inputs={}, takers=lambda: frozenset(takers))
    sentence = (
        "A feature of an example is missing or bad: its default value holds 1 NaN."
        if is_default
        else "Const: this constant of the program holds 1 NaN."
    )
    explanation = explain(computed)
    assert explanation is not None
    assert explanation.sentence == sentence


@pytest.mark.parametrize("num_infs", [0, 2])
@pytest.mark.parametrize("program_op", ["Mul", "AddV2"])
def test_a_mask_times_an_infinity_that_was_computed_in_advance(num_infs: int, program_op: str) -> None:
    output = row("Const", counts(nan=3, neg_inf=num_infs))
    computed = Computed(output=output, inputs={}, program_ops=("Sub", program_op), makers=("Const",))
    explanation = explain(computed)
    assert explanation is not None
    assert explanation.repair is not None
    is_product = num_infs > 0 and program_op == "Mul"
    assert ("An infinity times 0 is NaN" in explanation.sentence) == is_product
    assert ("tf.where" in explanation.repair) == is_product


@pytest.mark.parametrize("op_type", ["Sqrt", "Rsqrt"])
@pytest.mark.parametrize("square", ["Mul", "Pow", "Square"])
@pytest.mark.parametrize("epsilon", [None, "added", "moved"])
@pytest.mark.parametrize("mean_of", ["Mean", "Placeholder"])
def test_the_root_of_a_difference_of_moments(op_type: str, square: str, epsilon: str | None, mean_of: str) -> None:
    types = ["AddV2", "Sub", "Mean", square, mean_of, "Const"]
    added, difference, first, second, mean, number = (
        replace(row(made_by, counts(neg=1, pos=1)), event_index=index) for index, made_by in enumerate(types)
    )
    behind = {0: {0: difference}, 1: {0: first, 1: second}, 3: {0: mean}}
    if epsilon == "moved":  # TensorFlow's optimizer adds the epsilon to the second term
        behind |= {0: {0: first, 1: difference}, 1: {0: replace(number, size=1), 1: second}}
    computed = Computed(
        output=row(op_type, NAN),
        inputs={0: difference if epsilon is None else added},
        made_from=lambda event: behind.get(event.event_index, {}),
    )
    sentence = f"{op_type} of a negative number: 1 of 2 elements is below 0, and the result is NaN."
    if mean_of == "Mean":
        sentence += " The argument is E[x^2] - E[x]^2, and rounding can make this difference negative."
        repair = (
            "Use tf.math.reduce_variance or tf.nn.moments: they average the squares of the differences from the mean, "
            "which are not negative. For running sums, use Welford's algorithm, or float64."
        )
    else:
        repair = ABOVE_0_BEFORE_ROOT
    assert explain(computed) == Explanation(sentence, repair)


@pytest.mark.parametrize(("size", "is_mean"), [(1, True), (2, False)])
def test_the_root_of_a_difference_of_moments_from_running_sums(size: int, is_mean: bool) -> None:
    types = ["Sub", "RealDiv", "Square", "RealDiv", "ReadVariableOp", "ReadVariableOp"]
    rows = [replace(row(made_by, counts(neg=1, pos=1)), event_index=index) for index, made_by in enumerate(types)]
    numbers = {index: {1: replace(rows[index + 3 - index // 2], size=size)} for index in (1, 3)}
    behind = {0: {0: rows[1], 1: rows[2]}, 2: {0: rows[3]}, **numbers}
    computed = Computed(
        output=row("Sqrt", NAN),
        inputs={0: rows[0]},
        made_from=lambda event: behind.get(event.event_index, {}),
    )
    found = explain(computed)
    assert found is not None
    assert ("The argument is E[x^2] - E[x]^2" in found.sentence) == is_mean


def test_an_angle_at_0_is_kept_away_from_0() -> None:
    computed = Computed(output=row("Reciprocal", INF), inputs={0: row("AddV2", ZERO)}, forward_type="Angle")
    assert explain(computed) == Explanation(
        "The gradient of Angle divides by 0: 1 of 2 elements is 0, and 1 / 0 is infinite.",
        "Add a small number before tf.math.angle, so that no element is 0: the slope at 0 is infinite.",
    )


@pytest.mark.parametrize(
    ("maker", "repair"),
    [("Log", "Check the constants that Log takes. Keep the argument above 0, for example with tf.maximum(x, 1e-7)."),
     ("Pow", ("Check the constants that Pow takes. If the exponent is negative, keep the base away from 0, for example "
              "with tf.maximum.")),
     ("RealDiv", "Check the constants that RealDiv takes. Use tf.math.divide_no_nan, or a divisor that is never 0."),
     ("Mul", "Check the constants that Mul takes.")],
)  # fmt: skip
def test_a_function_of_constants_is_repaired_like_one_of_tensors(maker: str, repair: str) -> None:
    computed = Computed(output=row("Const", INF), inputs={}, program_ops=("Const", maker), makers=(maker,))
    assert explain(computed) == Explanation(
        f"{maker} of constants: TensorFlow computed the result in advance, and it holds 1 +Inf.", repair
    )


@pytest.mark.parametrize(("op_type", "held"), [("Fill", "+Inf"), ("Neg", "an infinity or a NaN")])
def test_the_kinds_of_a_folded_constant_are_named_if_the_ops_keep_them(op_type: str, held: str) -> None:
    computed = Computed(output=row("Const", INF), inputs={}, program_ops=("Pack", op_type), makers=("Const",))
    explanation = explain(computed)
    assert explanation is not None
    assert explanation.sentence == (
        f"TensorFlow folded a constant that holds {held} and the ops that take it into one constant with 1 +Inf."
    )


@pytest.mark.parametrize("is_twice", [False, True])
def test_a_root_whose_gradient_is_differentiated_has_to_be_avoided(is_twice: bool, tmp_path: Path) -> None:
    step = Step().takes(ZERO).op("root", "Sqrt", ["x"], ZERO)
    step.gradient("slope", "SqrtGrad", ["root", "x"], INF, "root")
    if is_twice:
        step.gradient("again", "Mul", ["slope", "x"], INF, "slope")
    found = step.reason("slope", tmp_path, result="slope")
    assert found is not None
    assert (found.repair == BEFORE_ROOT) == (not is_twice)
    assert (found.repair or "").startswith("Leave out the points where the root is 0") == is_twice


@pytest.mark.parametrize(("num_writes", "is_not_updated"), [(1, True), (2, False)])
def test_an_average_that_is_corrected_before_its_first_update(
    num_writes: int, is_not_updated: bool, tmp_path: Path
) -> None:
    run = RunBuilder("run-a")
    run.execution("VarHandleOp", outputs={7: "resource"})
    stack = run.stack(("/home/me/train.py", 3, "<module>", "mean = tf.Variable(tf.zeros([3]))", "user"))
    for _ in range(num_writes):
        run.execution("AssignVariableOp", inputs=[7, 1], stack=stack)
    scalar = {**counts(pos=1), "rank": 0, "shape": []}
    values: dict[int, tuple[str, list[int], Mapping[str, Any]]] = {
        11: ("ReadVariableOp", [7], counts(zero=3)),
        12: ("Cast", [1], {**counts(zero=1), "rank": 0, "shape": []}),
        13: ("Pow", [1, 12], scalar),
        14: ("Sub", [1, 13], {**counts(zero=1), "rank": 0, "shape": []}),
        15: ("RealDiv", [11, 14], counts(nan=3)),
    }
    event = 0
    for tensor_id, (op_type, inputs, health) in values.items():
        event = run.eager(
            run.execution(op_type, inputs=inputs, outputs={tensor_id: "float32"}), health, tensor_id=tensor_id
        )
    found = read_reasons(run.write(tmp_path), event, run_id="run-a").explanation
    assert found is not None
    assert (found.repair or "").startswith("Update the average and its counter of steps") == is_not_updated
    assert (found.repair == STEP_COUNTER) == (not is_not_updated)


RELU = "Use tf.nn.softplus in place of tf.nn.relu, which returns 0 for a number below 0, or add an epsilon."


@pytest.mark.parametrize(
    ("other", "made_by", "is_of_relu"),
    [
        (counts(zero=1, pos=1), "Relu", True),
        (counts(neg=1, pos=1), "Relu", False),  # the terms may cancel each other
        (counts(neg=1, zero=1), "Relu", False),
        (counts(zero=1, pos=1), "Softplus", False),
    ],
)
@pytest.mark.parametrize("function", ["Lgamma", "Digamma"])
def test_a_pole_at_0_where_a_relu_returned_0(
    function: str, other: Mapping[str, Any], made_by: str, is_of_relu: bool, tmp_path: Path
) -> None:
    layer = {"layer": "dense_3"}
    step = Step().takes(other).op("relu", made_by, ["x"], counts(zero=1, pos=1), **layer)
    step.op("mean", "Exp", ["x"], counts(pos=2)).op("both", "ConcatV2", ["mean", "relu"], counts(zero=1, pos=3))
    step.op("part", "Split", ["x", "both"], counts(zero=1, pos=1)).op("sum", "AddV2", ["x", "part"], ZERO)
    found = step.op("bad", function, ["sum"], INF if function == "Lgamma" else NAN).reason("bad", tmp_path)
    assert found is not None
    assert found.sentence.endswith(" The zeros come from Relu in the layer dense_3.") == is_of_relu
    assert found.repair == (RELU if is_of_relu else "Keep the argument above 0, for example with tf.maximum(x, 1e-7).")


@pytest.mark.parametrize(
    ("shape", "ops", "rank"),
    [
        ([2, 3], ["MatMul"], 2),
        ([2, 3], ["MatMul", "RealDiv"], 2),
        ([2, 3], ["MatMul", "RealDiv", "AddV2"], None),  # with jitter
        ([3, 3], ["MatMul"], None),
        ([4, 3], ["MatMul"], None),
    ],
)
def test_a_covariance_of_few_samples_has_a_low_rank(
    shape: list[int], ops: list[str], rank: int | None, tmp_path: Path
) -> None:
    matrix = {**counts(pos=9), "rank": 2, "shape": [3, 3]}
    step = Step().takes({**counts(pos=shape[0] * shape[1]), "rank": 2, "shape": shape})
    step.op("scale", "Const", [], ONE).op("factor", "Sub", ["x"], {**counts(pos=6), "rank": 2, "shape": shape})
    before = ["factor", "factor"]
    for op_type in ops:
        step.op(op_type.lower(), op_type, before, matrix)
        before = [op_type.lower(), "scale"]
    step.op("root", "Cholesky", before[:1], {**counts(nan=9), "rank": 2, "shape": [3, 3]})
    found = step.reason("root", tmp_path)
    assert found is not None
    assert ("so that the rank is at most 2 of 3." in found.sentence) == (rank is not None)
    assert (found.repair == JITTER) == (rank is not None)


@pytest.mark.parametrize(
    ("imports", "named"),
    [
        ("from keras import layers, ops", "ops.divide_no_nan"),
        ("from keras import ops as K", "K.divide_no_nan"),
        ("import keras.ops", "keras.ops.divide_no_nan"),
        ("import keras\ny = keras.ops.exp(1.0)", "keras.ops.divide_no_nan"),
        ("import keras", "keras.ops.divide_no_nan"),
        ("import tensorflow as tf\nfrom keras import ops", "tf.math.divide_no_nan"),
        ("from mine import ops", "tf.math.divide_no_nan"),
        ("from keras import ops\nthis is no Python", "tf.math.divide_no_nan"),
    ],
)
def test_a_program_without_tensorflow_gets_the_fix_in_keras_ops(imports: str, named: str, tmp_path: Path) -> None:
    step = Step().takes(ZERO).op("count", "Sum", ["x"], ZERO)
    stack = step.run.stack(("/home/me/train.py", 9, "loss", "x / count", "user"))
    step.run.add("source_file", file_path="/home/me/train.py", source_text=f"{imports}\n")
    found = step.op("mean", "RealDiv", ["x", "count"], NAN, stack=stack).reason("mean", tmp_path)
    assert found is not None
    assert found.repair == f"Use {named}, or a divisor that is never 0."


def test_functions_that_keras_ops_does_not_have_keep_their_names() -> None:
    assert in_keras_ops("Use tf.math.xlogy(p, p), not p * tf.math.log(p).", "ops") == (
        "Use tf.math.xlogy(p, p), not p * ops.log(p)."
    )


@pytest.mark.parametrize(
    ("code", "is_named"), [("y = tf.sqrt(x)", True), ("y = ops.rsqrt(x)", True), ("y = x**0.5", False)]
)
def test_a_line_that_names_the_root_needs_no_list_of_functions_with_roots(
    code: str, is_named: bool, tmp_path: Path
) -> None:
    step = Step().takes(ZERO)
    stack = step.run.stack(("/home/me/train.py", 9, "loss", code, "user"))
    step.op("root", "Sqrt", ["x"], ZERO, stack=stack).gradient("slope", "SqrtGrad", ["root", "x"], INF, "root")
    found = step.reason("slope", tmp_path, result="root")
    assert found is not None
    assert BEFORE_ROOT.startswith(found.repair or "none")
    assert (found.repair != BEFORE_ROOT) == is_named


NOT_ENOUGH = (
    "tf.math.divide_no_nan is not enough: it returns 0, and the program divides by the quotient or takes its logarithm."
)


@pytest.mark.parametrize(
    ("taken", "ops", "repair"),
    [
        (ZERO, [("end", "Log", ["ratio"])], "the divisor and the dividend away from 0, for example with tf.maximum"),
        (CLEAN, [("end", "Log", ["ratio"])], "the divisor away from 0, for example with tf.maximum(x, 1e-7). "),
        (counts(neg=1, zero=1), [("end", "Log", ["ratio"])], "the divisor and the dividend away from 0. "),
        (CLEAN, [("bound", "Minimum", ["ratio", "x"]), ("end", "RealDiv", ["x", "bound"])], "the divisor away from 0"),
        (CLEAN, [("bound", "Maximum", ["ratio", "x"]), ("end", "RealDiv", ["x", "bound"])], None),
        (CLEAN, [("end", "RealDiv", ["ratio", "x"])], None),
        (CLEAN, [("end", "Exp", ["ratio"])], None),
    ],
)
def test_a_quotient_of_0_that_the_program_divides_by(
    taken: dict[str, Any], ops: list[tuple[str, str, list[str]]], repair: str | None, tmp_path: Path
) -> None:
    step = Step().takes(taken).op("count", "Sum", ["x"], ZERO)
    step.op("ratio", "RealDiv", ["x", "count"], NAN if taken["num_zero"] else INF)
    for name, op_type, inputs in ops:
        step.op(name, op_type, inputs, INF)
    found = step.reason("ratio", tmp_path, result="end")
    assert found is not None
    assert (found.repair in (NO_NAN, NO_NAN_OR_LARGE)) == (repair is None)
    assert repair is None or (
        (found.repair or "").startswith(f"Keep {repair}") and (found.repair or "").endswith(NOT_ENOUGH)
    )


@pytest.mark.parametrize(("other_type", "is_twice"), [("RealDiv", True), ("Mul", False)])
def test_a_quotient_of_0_in_a_sum_that_the_program_divides_by(
    other_type: str, tmp_path: Path, *, is_twice: bool
) -> None:
    """As in an F-score: precision and recall are both 0 / 0."""
    step = Step().takes(ZERO).op("count", "Sum", ["x"], ZERO).op("precision", "RealDiv", ["x", "count"], NAN)
    step.op("recall", other_type, ["x", "count"], NAN).op("total", "AddV2", ["precision", "recall"], NAN)
    step.op("score", "RealDiv", ["x", "total"], NAN)
    found = step.reason("precision", tmp_path, result="score")
    assert found is not None
    assert (found.repair or "").startswith("Use tf.math.divide_no_nan, also where the program divides") == is_twice


@pytest.mark.parametrize(
    ("op_type", "is_trained", "is_root"),
    [("Sqrt", True, True), ("EuclideanNorm", True, True), ("Sum", True, False), ("Sqrt", False, False)],
)
def test_a_division_by_a_norm_of_0(op_type: str, is_trained: bool, is_root: bool, tmp_path: Path) -> None:
    step = Step().takes(ZERO).op("norm", op_type, ["x"], ZERO).op("product", "Mul", ["norm", "x"], ZERO)
    step.op("ratio", "RealDiv", ["x", "product"], NAN)
    step.gradient("slope", "Mul", ["ratio", "x"], NAN, "norm" if is_trained else "ratio")
    found = step.reason("ratio", tmp_path, result="ratio")
    assert found is not None
    assert (found.repair == NO_NAN) == (not is_root)
    assert (found.repair or "").startswith("The divisor is computed with a root") == is_root


@pytest.mark.parametrize(
    ("clip", "other", "is_of_bound"),
    [
        ([("low", "Minimum", ["x", "bound"]), ("clip", "Maximum", ["low", "epsilon"])], "one", True),
        ([("clip", "Minimum", ["bound", "x"])], "one", True),
        ([("clip", "ClipByValue", ["x", "epsilon", "bound"])], "one", True),
        ([("clip", "Minimum", ["x", "total"])], "one", False),
        ([("clip", "Maximum", ["x", "epsilon"])], "one", False),
        ([("clip", "Minimum", ["x", "bound"])], "total", False),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_upper_bound_that_is_1_in_the_dtype(
    clip: list[tuple[str, str, list[str]]], other: str, is_of_bound: bool, dtype: str, tmp_path: Path
) -> None:
    step = Step().takes(CLEAN).op("total", "Sum", ["x"], CLEAN)
    step.op("one", "Const", [], ONE).op("epsilon", "Const", [], ONE).op("bound", "Const", [], ONE)
    for name, op_type, inputs in clip:
        step.op(name, op_type, inputs, CLEAN)
    step.op("rest", "Sub", [other, "clip"], {**ZERO, "dtype": dtype}).op("log", "Log", ["rest"], NEG_INF)
    found = step.reason("log", tmp_path)
    assert found is not None
    assert (found.sentence != LOG_OF_0) == is_of_bound
    small, lost = ("1e-6", "1e-8") if dtype == "float32" else ("1e-3", "1e-4")
    bound = f"Use a lower upper bound: in {dtype}, 1 - {small} is below 1, but 1 - {lost} is 1."
    assert (found.repair == bound) == is_of_bound


@pytest.mark.parametrize(
    ("term", "health", "is_of_variable"),
    [("ReadVariableOp", counts(neg=1), True), ("ReadVariableOp", counts(pos=1), False), ("Neg", counts(neg=1), False)],
)
def test_the_logarithm_of_a_sum_with_a_variable_that_became_negative(
    term: str, health: dict[str, Any], tmp_path: Path, *, is_of_variable: bool
) -> None:
    step = (
        Step().takes(CLEAN).op("noise", term, ["x"], health).op("total", "AddV2", ["x", "noise"], counts(neg=1, pos=1))
    )
    step.op("log", "Log", ["total"], NAN)
    step.gradient("slope", "Reciprocal", ["total"], CLEAN, "log")
    found = step.reason("log", tmp_path, result="log")
    assert found is not None
    assert found.sentence.endswith("a variable that is below 0, and nothing keeps it above 0.") == is_of_variable
    assert (found.repair or "").startswith("Train the logarithm of the variable") == is_of_variable


@pytest.mark.parametrize(
    ("made_by", "is_trained"), [("ReadVariableOp", True), ("ReadVariableOp", False), ("Sub", True)]
)
def test_the_logarithm_of_a_variable_that_became_negative(made_by: str, is_trained: bool, tmp_path: Path) -> None:
    below = counts(neg=1, pos=1)
    step = Step().takes(CLEAN).op("sigma", made_by, ["x"], below).op("log", "Log", ["sigma"], NAN)
    step.gradient("slope", "Reciprocal", ["sigma"], below, "log" if is_trained else "sigma")
    found = step.reason("log", tmp_path, result="log")
    assert found is not None
    is_of_variable = made_by == "ReadVariableOp" and is_trained
    assert found.sentence.endswith("value of a variable, and nothing keeps it above 0.") == is_of_variable
    assert (found.repair or "").startswith("Train the logarithm of the variable") == is_of_variable
    assert (found.repair or "").endswith("use tf.math.log(tf.abs(x)).") == (not is_of_variable)


def test_the_logarithm_of_a_distance_of_0() -> None:
    explanation = explain(Computed(output=row("Log", NEG_INF), inputs={0: row("Abs", ZERO)}))
    assert explanation is not None
    assert (explanation.repair or "").startswith("For a distance, use tf.math.log1p(x)")


@pytest.mark.parametrize(
    ("scale", "scaled", "is_of_relu"),
    [
        ("RealDiv", ZERO, True),
        ("Mul", ZERO, True),
        ("Mul", counts(zero=2), False),  # the product underflowed, too
        ("Sub", ZERO, False),
    ],
)
def test_a_relu_whose_zeros_are_scaled(scale: str, scaled: dict[str, Any], is_of_relu: bool, tmp_path: Path) -> None:
    step = Step().takes(CLEAN).op("two", "Const", [], ONE).op("relu", "Relu", ["x"], ZERO)
    step.op("half", scale, ["relu", "two"], scaled)
    bad = counts(pos_inf=scaled["num_zero"], pos=2 - scaled["num_zero"])
    found = step.op("bad", "Lgamma", ["half"], bad).reason("bad", tmp_path)
    assert found is not None
    assert ("The zeros come from Relu" in found.sentence) == is_of_relu


@pytest.mark.parametrize(
    ("behind", "weights", "is_first", "is_trained", "is_scaled"),
    [
        ("MatMul", "ReadVariableOp", True, True, True),
        ("_FusedMatMul", "ReadVariableOp", True, True, True),
        ("Mul", "ReadVariableOp", True, True, False),  # no layer combines the inputs with weights
        ("MatMul", "Identity", True, True, False),  # weights of a caller, such as a line search
        ("MatMul", "ReadVariableOp", False, True, False),  # the weights may have grown
        ("MatMul", "ReadVariableOp", True, False, False),  # a metric
    ],
)
def test_an_exponential_that_overflows_before_training(
    behind: str, weights: str, is_first: bool, is_trained: bool, is_scaled: bool, tmp_path: Path
) -> None:
    step = Step(is_first=is_first).takes(CLEAN).op("weights", weights, ["x"], CLEAN)
    step.op("logits", behind, ["x", "weights"], CLEAN).op("exp", "Exp", ["logits"], INF)
    step.gradient("slope", "Mul", ["exp", "x"], INF, "exp" if is_trained else "logits")
    found = step.reason("exp", tmp_path, result="exp")
    assert found is not None
    assert (found.repair or "").startswith("Scale the inputs to magnitudes near one, if they are larger") == is_scaled
    assert (found.repair or "").lower().endswith(CLIP.lower())


@pytest.mark.parametrize(
    ("subtracted", "takers", "is_logsumexp"),
    [
        ("maximum", [("sum", "Sum", ["exp"])], True),
        ("other", [("sum", "Sum", ["exp"])], False),
        ("maximum", [("sum", "Sum", ["exp"]), ("share", "RealDiv", ["exp", "sum"])], False),  # a softmax
        ("maximum", [("product", "Mul", ["exp", "x"])], False),
    ],
)
def test_a_log_sum_exp_by_hand_of_a_row_of_a_mask(
    subtracted: str, takers: list[tuple[str, str, list[str]]], is_logsumexp: bool, tmp_path: Path
) -> None:
    row_of_mask, bad = counts(neg_inf=2), counts(nan=2)
    step = Step().takes(row_of_mask).op("maximum", "Max", ["x"], row_of_mask).op("other", "Neg", ["x"], row_of_mask)
    step.op("difference", "Sub", ["x", subtracted], bad).op("exp", "Exp", ["difference"], bad)
    for name, op_type, inputs in takers:
        step.op(name, op_type, inputs, bad)
    found = step.reason("difference", tmp_path, result=takers[-1][0])
    assert found is not None
    assert ("tf.reduce_logsumexp" in (found.repair or "")) == is_logsumexp


@pytest.mark.parametrize("factor", [counts(pos=2), counts(neg=2)])
@pytest.mark.parametrize(
    ("ops", "dtype", "is_wrapped"),
    [
        ([("squares", "Mul", ["samples", "samples"]), ("energy", "Sum", ["squares"])], "int32", True),
        ([("squares", "Square", ["samples"]), ("energy", "Sum", ["squares"])], "int64", True),
        ([("energy", "Square", ["samples"])], "int16", True),
        ([("energy", "Sum", ["samples"])], "int32", False),  # a sum may be negative
        ([("squares", "Mul", ["samples", "other"]), ("energy", "Sum", ["squares"])], "int32", False),
        ([("energy", "Square", ["samples"])], "float64", False),
    ],
)
def test_a_negative_sum_of_squares_of_integers_was_too_large(
    ops: list[tuple[str, str, list[str]]], dtype: str, is_wrapped: bool, factor: dict[str, Any], tmp_path: Path
) -> None:
    """If the program multiplies the sum by a negative number, this number is the reason."""
    step = Step().takes(factor)
    for name, op_type, inputs in [("samples", "Placeholder", []), ("other", "Placeholder", []), *ops]:
        step.graph.op(name, op_type, inputs, dtypes=(dtype,), not_recorded="dtype")
    mixed = counts(neg=1, pos=1)
    step.op("cast", "Cast", ["energy"], mixed).op("mean", "RealDiv", ["cast", "x"], mixed)
    is_wrapped = is_wrapped and factor["num_neg_finite"] == 0
    found = step.op("root", "Sqrt", ["mean"], NAN).reason("root", tmp_path, result="root")
    assert found is not None
    said = f" The argument was cast from a sum of squares in {dtype}: the sum was too large for {dtype}, and so became"
    assert (said in found.sentence) == is_wrapped
    assert (found.repair == "Cast the numbers to float32 before they are squared.") == is_wrapped
