"""Test the explanations of divisions by 0, and of roots of 0 and of negative numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.query.explanation import Explanation

from ..builder import CLEAN, INF, NAN, NEG_INF, RunBuilder, counts
from .steps import (
    ABOVE_0,
    ABOVE_0_BEFORE_ROOT,
    BEFORE_ROOT,
    ONE,
    ZERO,
    Step,
    explained,
    reason_of,
    row,
    written_variable,
)

ONE_0 = {**counts(zero=1), "rank": 0, "shape": []}
NO_NAN = "Use tf.math.divide_no_nan, or a divisor that is never 0."
NO_NAN_OR_LARGE = (
    "Use tf.math.divide_no_nan, which returns 0 there, or divide by tf.maximum(x, 1e-7) if the quotient has to be "
    "large."
)
UNDERFLOW = (
    "Compute with logarithms (tf.reduce_logsumexp in place of sums of exponentials), or scale the argument of the "
    "exponential down."
)


def test_an_optimizer_that_divides_by_the_root_of_its_first_step(tmp_path: Path) -> None:
    step = Step().takes(CLEAN).op("step", "Cast", [], ONE_0, "optimizer")
    step.op("rate", "Rsqrt", ["step"], {**counts(pos_inf=1), "rank": 0, "shape": []}, "optimizer")
    why = step.reason("rate", tmp_path)
    assert why.repair == "The counter of steps begins at 0. Use step + 1, or tf.maximum(step, 1)."


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
    why = step.reason("rate", tmp_path)
    constant = " The divisor `tf.cast(self.warmup, tf.float32)` is the constant 0." if divisor == "Const" else ""
    assert why == Explanation(
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
    executed = step.run.executed(step.graph).argument("x").node("variance", "Mean", ["x"])
    executed.node("root", "Sqrt", ["variance"]).node("ratio", "RealDiv", ["x", "root"]).result("ratio")
    why = step.reason("ratio", tmp_path)
    assert why.sentence.endswith("and the number is 0 in float16.") == is_lost
    assert why.repair.startswith("Add a larger epsilon, such as 1e-3") == is_lost


@pytest.mark.parametrize(("op_type", "terms"), [("Rsqrt", ["variance", "cast"]), ("Log", ["cast", "variance"])])
def test_a_cast_epsilon_that_the_optimizer_removed(op_type: str, terms: list[str], tmp_path: Path) -> None:
    """The op takes the other term of the sum in place of the sum with the epsilon, which is 0 in float16."""
    zeros, made = {**ZERO, "dtype": "float16"}, NEG_INF if op_type == "Log" else INF
    step = Step().takes(CLEAN).op("variance", "Mean", ["x"], zeros)
    step.graph.op("epsilon", "Const").op("cast", "Cast", ["epsilon"]).op("total", "AddV2", terms)
    step.op("made", op_type, ["total"], {**made, "dtype": "float16"})
    executed = step.run.executed(step.graph).argument("x").node("variance", "Mean", ["x"])
    executed.node("made", op_type, ["variance"]).result("made")
    why = step.reason("made", tmp_path)
    assert why.sentence.endswith("and the number is 0 in float16.")
    assert why.repair.startswith("Add a larger epsilon, such as 1e-3")


@pytest.mark.parametrize(("epsilon", "is_lost"), [(counts(zero=1), True), (counts(pos=1), False)])
def test_an_epsilon_before_a_root_that_is_0(epsilon: dict[str, Any], is_lost: bool, tmp_path: Path) -> None:
    step = Step().takes(CLEAN).op("epsilon", "Const", [], epsilon).op("total", "AddV2", ["x", "epsilon"], ZERO)
    step.op("root", "Sqrt", ["total"], {**ZERO, "dtype": "float16"}).op("ratio", "RealDiv", ["x", "root"], INF)
    assert step.reason("ratio", tmp_path).sentence.endswith("and the number is 0 in float16.") == is_lost


WRITE_OF_0 = "Give the variable a value that is not 0 there. If it may be 0, use tf.math.divide_no_nan"
INITIAL_0 = WRITE_OF_0.replace("there.", "there, or update it before it is used.")


@pytest.mark.parametrize(
    ("op_type", "made", "num_writes", "said", "repair"),
    [
        ("Abs", ZERO, 1, "still holds its initial value, from `u = tf.Variable(zeros)` at train.py:3.", INITIAL_0),
        ("Abs", ZERO, 2, "`u = tf.Variable(zeros)` at train.py:3 wrote last.", WRITE_OF_0),
        ("Sum", ONE_0, 1, None, NO_NAN_OR_LARGE),  # not all terms are 0
        ("AddV2", ZERO, 1, None, NO_NAN_OR_LARGE),
    ],
)
def test_a_divisor_that_is_0_as_a_variable_is(
    op_type: str, made: Mapping[str, Any], num_writes: int, said: str | None, repair: str, tmp_path: Path
) -> None:
    run = written_variable("u = tf.Variable(zeros)", num_writes)
    run.eager_op("ReadVariableOp", ZERO, tensor_id=2, inputs=[7])
    run.eager_op(op_type, made, tensor_id=3, inputs=[2])
    ratio = run.execution("RealDiv", inputs=[9, 3], outputs={4: "float32"})
    run.external(9, CLEAN, execution=ratio)
    event = run.eager(ratio, INF, tensor_id=4)
    why = reason_of(run, event, tmp_path)
    _, _, variable = why.sentence.partition(" The divisor is 0 because of a variable that ")
    assert (variable or None) == said
    assert (why.repair or "").startswith(repair)


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
    why = reason_of(run, event, tmp_path)
    because = " The divisor is 0 because of a variable that `n.assign(0)` at m.py:3 wrote last."
    assert why.sentence == BY_ONE_0 + (because if is_named else "")
    reset = "Use the variable before the call sets it to 0, or give it a value that is not 0 there."
    assert why.repair == (reset if is_named else NO_NAN_OR_LARGE)


BY_0 = "Division by 0: 2 of 2 elements are 0 in the divisor, and the quotient is infinite."
ALL_0 = counts(zero=2)


def test_a_divisor_that_is_0_because_the_exponentials_underflowed(tmp_path: Path) -> None:
    step = Step().takes(CLEAN).op("kernel", "Exp", ["x"], counts(zero=4)).op("v", "MatMul", ["kernel", "x"], ALL_0)
    step.op("divisor", "Squeeze", ["v"], ALL_0).op("ratio", "RealDiv", ["x", "divisor"], counts(pos_inf=2))
    assert step.reason("ratio", tmp_path) == Explanation(
        f"{BY_0} The divisor is 0 because Exp underflowed: 4 of 4 elements are 0 in its result.", UNDERFLOW
    )


def test_a_divisor_that_is_an_exponential_that_underflowed(tmp_path: Path) -> None:
    step = Step().takes(CLEAN).op("deviation", "Exp", ["x"], ALL_0).op("divisor", "Squeeze", ["deviation"], ALL_0)
    step.op("ratio", "RealDiv", ["x", "divisor"], counts(pos_inf=2))
    assert step.reason("ratio", tmp_path) == Explanation(
        f"{BY_0} The divisor is 0 because Exp underflowed: 2 of 2 elements are 0 in its result.",
        "Clip the argument of the exponential from below, for example with tf.maximum(x, -22.0): this limit leaves "
        "room for squares and products of the quotient.",
    )


def test_products_of_exponentials_that_underflowed(tmp_path: Path) -> None:
    kernel = counts(zero=3, pos=1)
    step = Step().takes(counts(pos=2)).op("kernel", "Exp", ["x"], kernel).op("v", "MatMul", ["kernel", "x"], ZERO)
    step.op("divisor", "Squeeze", ["v"], ZERO).op("ratio", "RealDiv", ["x", "divisor"], counts(pos_inf=1, pos=1))
    assert step.reason("ratio", tmp_path) == Explanation(
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
    assert step.reason("ratio", tmp_path) == Explanation(
        "0 / 0: the divisor has 1 zero, the dividend 3 zeros, and 0 / 0 is NaN. The divisor sums exponentials, and "
        "where it is 0, all of them underflowed.",
        f"{repair} the exponentials, their sum and the division.",
    )


def test_a_division_by_the_sum_of_products_of_exponentials_is_no_softmax(tmp_path: Path) -> None:
    step = Step().takes(CLEAN).op("exp", "Exp", ["x"], ALL_0).op("weighted", "Mul", ["x", "exp"], ALL_0)
    step.op("sum", "Sum", ["weighted"], ALL_0).op("ratio", "RealDiv", ["weighted", "sum"], NAN)
    assert step.reason("ratio", tmp_path) == Explanation(
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
    assert step.reason("ratio", tmp_path) in (Explanation(BY_0, NO_NAN), Explanation(BY_0, NO_NAN_OR_LARGE))


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
    assert program.reason("ratio", tmp_path) == Explanation(BY_ONE_0, repair)


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
    why = step.reason("ratio", tmp_path)
    assert why.sentence.endswith(OF_ONE_SAMPLE) == is_of_one
    assert why.repair == (LEAVE_OUT if is_of_one else NO_NAN)


@pytest.mark.parametrize(("shape", "count"), [([1, 1], "Cast"), ([2, 1], "Cast"), ([1, 1], "Sum")])
def test_the_number_of_samples_minus_1(shape: list[int], count: str, tmp_path: Path) -> None:
    zero = {**counts(zero=prod(shape)), "rank": 2, "shape": shape}
    step = Step().takes(zero).op("sum", "Sum", ["x"], counts(zero=1)).op("count", count, [], ONE)
    step.op("one", "Const", [], ONE).op("less", "Sub", ["count", "one"], ONE_0)
    step.op("ratio", "RealDiv", ["sum", "less"], counts(nan=1))
    assert step.reason("ratio", tmp_path).sentence.endswith(OF_ONE_SAMPLE) == (shape == [1, 1] and count == "Cast")


@pytest.mark.parametrize(
    ("output", "added"), [(counts(nan=1, pos_inf=1), " Any other number divided by 0 is infinite."), (NAN, "")]
)
def test_infinities_beside_0_by_0_are_explained(output: Mapping[str, Any], added: str) -> None:
    assert explained("RealDiv", output, row("Mul", ZERO), row("Square", counts(zero=2))) == Explanation(
        f"0 / 0: the divisor has 2 zeros, the dividend 1 zero, and 0 / 0 is NaN.{added}", NO_NAN
    )


@pytest.mark.parametrize(
    ("made_by", "repair"),
    [
        ("ReadVariableOp", "Give the optimizer an epsilon such as 1e-7."),
        ("Cast", BEFORE_ROOT),  # the step, in a schedule
    ],
)
def test_an_optimizer_that_divides_by_the_root_of_its_variable(made_by: str, repair: str) -> None:
    why = explained("Rsqrt", INF, row(made_by, ZERO), is_optimizer=True)
    assert why == Explanation("Rsqrt of 0: 1 of 2 elements is 0, and 1 / sqrt(0) is infinite.", repair)


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
    taken = row("Mul", CLEAN), rows[0]
    why = explained(
        "RealDiv", INF, *taken, made_from=lambda event: behind.get(event.event_index, {}), is_optimizer=True
    )
    assert why == Explanation(
        "Division by 0: 1 of 2 elements is 0 in the divisor, and the quotient is infinite.", repair
    )


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
    argument = difference if epsilon is None else added
    why = explained(op_type, NAN, argument, made_from=lambda event: behind.get(event.event_index, {}))
    sentence = f"{op_type} of a negative number: 1 of 2 elements is below 0, and the result is NaN."
    if mean_of == "Mean":
        sentence += " The argument is E[x^2] - E[x]^2, and rounding can make this difference negative."
        repair = (
            "Use tf.math.reduce_variance or tf.nn.moments: they average the squares of the differences from the mean, "
            "which are not negative. For running sums, use Welford's algorithm, or float64."
        )
    else:
        repair = ABOVE_0_BEFORE_ROOT
    assert why == Explanation(sentence, repair)


@pytest.mark.parametrize(("size", "is_mean"), [(1, True), (2, False)])
def test_the_root_of_a_difference_of_moments_from_running_sums(size: int, is_mean: bool) -> None:
    types = ["Sub", "RealDiv", "Square", "RealDiv", "ReadVariableOp", "ReadVariableOp"]
    rows = [replace(row(made_by, counts(neg=1, pos=1)), event_index=index) for index, made_by in enumerate(types)]
    numbers = {index: {1: replace(rows[index + 3 - index // 2], size=size)} for index in (1, 3)}
    behind = {0: {0: rows[1], 1: rows[2]}, 2: {0: rows[3]}, **numbers}
    why = explained("Sqrt", NAN, rows[0], made_from=lambda event: behind.get(event.event_index, {}))
    assert ("The argument is E[x^2] - E[x]^2" in why.sentence) == is_mean


@pytest.mark.parametrize("is_twice", [False, True])
def test_a_root_whose_gradient_is_differentiated_has_to_be_avoided(is_twice: bool, tmp_path: Path) -> None:
    step = Step().takes(ZERO).op("root", "Sqrt", ["x"], ZERO)
    step.gradient("slope", "SqrtGrad", ["root", "x"], INF, "root")
    if is_twice:
        step.gradient("again", "Mul", ["slope", "x"], INF, "slope")
    why = step.reason("slope", tmp_path)
    assert (why.repair == BEFORE_ROOT) == (not is_twice)
    assert why.repair.startswith("Leave out the points where the root is 0") == is_twice


def test_a_division_in_the_gradient_of_the_gradient_of_a_root_has_the_fix_for_the_root(tmp_path: Path) -> None:
    step = (
        Step().takes(ZERO).op("root", "Sqrt", ["x"], ZERO).gradient("slope", "SqrtGrad", ["root", "x"], CLEAN, "root")
    )
    step.gradient("quotient", "RealDiv", ["x", "root"], NAN, "slope")
    assert step.reason("quotient", tmp_path).repair == BEFORE_ROOT


@pytest.mark.parametrize("made_by", ["Sub", "Sum"])
def test_an_epsilon_does_not_help_the_root_of_a_difference(made_by: str, tmp_path: Path) -> None:
    """Rounding can make a difference negative by more than the epsilon."""
    step = Step().takes(CLEAN).op("rest", made_by, ["x", "x"], ZERO).op("root", "Sqrt", ["rest"], ZERO)
    step.gradient("slope", "SqrtGrad", ["root", "x"], INF, "root")
    repair = step.reason("slope", tmp_path).repair
    is_of_difference = made_by == "Sub"
    assert repair.startswith("Keep the argument of the root above 0, for example with tf.maximum") == is_of_difference
    assert (repair == BEFORE_ROOT) == (not is_of_difference)


@pytest.mark.parametrize(("num_writes", "is_not_updated"), [(1, True), (2, False)])
def test_an_average_that_is_corrected_before_its_first_update(
    num_writes: int, is_not_updated: bool, tmp_path: Path
) -> None:
    run = written_variable("mean = tf.Variable(tf.zeros([3]))", num_writes)
    run.eager_op("ReadVariableOp", counts(zero=3), tensor_id=11, inputs=[7])
    run.eager_op("Cast", ONE_0, tensor_id=12, inputs=[1])
    run.eager_op("Pow", ONE, tensor_id=13, inputs=[1, 12])
    run.eager_op("Sub", ONE_0, tensor_id=14, inputs=[1, 13])
    event = run.eager_op("RealDiv", counts(nan=3), tensor_id=15, inputs=[11, 14])
    why = reason_of(run, event, tmp_path)
    assert why.repair.startswith("Update the average and its counter of steps") == is_not_updated
    assert (why.repair == STEP_COUNTER) == (not is_not_updated)


@pytest.mark.parametrize(
    ("code", "is_named"), [("y = tf.sqrt(x)", True), ("y = ops.rsqrt(x)", True), ("y = x**0.5", False)]
)
def test_a_line_that_names_the_root_needs_no_list_of_functions_with_roots(
    code: str, is_named: bool, tmp_path: Path
) -> None:
    step = Step().takes(ZERO)
    stack = step.run.stack(("/home/me/train.py", 9, "loss", code, "user"))
    step.op("root", "Sqrt", ["x"], ZERO, stack=stack).gradient("slope", "SqrtGrad", ["root", "x"], INF, "root")
    why = step.reason("slope", tmp_path, result="root")
    assert BEFORE_ROOT.startswith(why.repair or "none")
    assert (why.repair != BEFORE_ROOT) == is_named


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
    why = step.reason("ratio", tmp_path, result="end")
    assert (why.repair in (NO_NAN, NO_NAN_OR_LARGE)) == (repair is None)
    assert repair is None or (why.repair.startswith(f"Keep {repair}") and why.repair.endswith(NOT_ENOUGH))


@pytest.mark.parametrize(("other_type", "is_twice"), [("RealDiv", True), ("Mul", False)])
def test_a_quotient_of_0_in_a_sum_that_the_program_divides_by(
    other_type: str, tmp_path: Path, *, is_twice: bool
) -> None:
    """As in an F-score: precision and recall are both 0 / 0."""
    step = Step().takes(ZERO).op("count", "Sum", ["x"], ZERO).op("precision", "RealDiv", ["x", "count"], NAN)
    step.op("recall", other_type, ["x", "count"], NAN).op("total", "AddV2", ["precision", "recall"], NAN)
    step.op("score", "RealDiv", ["x", "total"], NAN)
    why = step.reason("precision", tmp_path, result="score")
    assert why.repair.startswith("Use tf.math.divide_no_nan, also where the program divides") == is_twice


@pytest.mark.parametrize(
    ("op_type", "is_trained", "is_root"),
    [("Sqrt", True, True), ("EuclideanNorm", True, True), ("Sum", True, False), ("Sqrt", False, False)],
)
def test_a_division_by_a_norm_of_0(op_type: str, is_trained: bool, is_root: bool, tmp_path: Path) -> None:
    step = Step().takes(ZERO).op("norm", op_type, ["x"], ZERO).op("product", "Mul", ["norm", "x"], ZERO)
    step.op("ratio", "RealDiv", ["x", "product"], NAN)
    step.gradient("slope", "Mul", ["ratio", "x"], NAN, "norm" if is_trained else "ratio")
    why = step.reason("ratio", tmp_path)
    assert (why.repair == NO_NAN) == (not is_root)
    assert why.repair.startswith("The divisor is computed with a root") == is_root


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
    why = step.op("root", "Sqrt", ["mean"], NAN).reason("root", tmp_path)
    said = f" The argument was cast from a sum of squares in {dtype}: the sum was too large for {dtype}, and so became"
    assert (said in why.sentence) == is_wrapped
    assert (why.repair == "Cast the numbers to float32 before they are squared.") == is_wrapped


def test_a_complex_number_divided_by_0_is_nan() -> None:
    divisor = row("Const", counts(zero=1, pos=1), dtype="complex64")
    why = explained("RealDiv", NAN, row("Const", CLEAN, dtype="complex64"), divisor)
    assert why == Explanation(
        "Division by 0: 1 of 2 elements is 0 in the divisor, and for complex numbers, the quotient is NaN.", NO_NAN
    )
    why = explained("Reciprocal", NAN, divisor)
    assert why.sentence == "Reciprocal of 0: 1 of 2 elements is 0, and for complex numbers, the result is NaN."


@pytest.mark.parametrize("op_type", ["Log", "Sqrt", "Rsqrt"])
@pytest.mark.parametrize("dtype", ["int32", "float64"])
def test_a_negative_counter_may_have_overflowed(op_type: str, dtype: str, tmp_path: Path) -> None:
    step = Step().takes(counts(pos=1))
    step.graph.op("counter", "Placeholder", [], dtypes=(dtype,), not_recorded="dtype")
    step.op("cast", "Cast", ["counter"], counts(neg=1))
    why = step.op("result", op_type, ["cast"], NAN).reason("result", tmp_path)
    assert why.sentence.endswith(" The program cast it from int32.") == (dtype == "int32")
    assert ("check whether the int32 overflowed" in why.repair) == (dtype == "int32")


@pytest.mark.parametrize(
    ("op_type", "dtype", "said", "repair"),
    [
        ("FloorDiv", "int32", ", which FloorDiv returned: the result is 0 if", "Keep the integer above 0"),
        ("AddV2", "uint8", ", which Add returned.", "If it should not be 0, check whether the uint8 overflowed"),
        ("AddV2", "int8", None, ABOVE_0),  # the sum of 1 and -1 is 0
        ("Neg", "uint8", None, ABOVE_0),
        ("Mul", "int32", ", which Mul returned.", "If no factor is 0, the int32 overflowed: a product that becomes"),
        ("Sum", "int32", None, ABOVE_0),
        ("Mul", "int64", None, ABOVE_0),
        ("FloorDiv", "float64", None, ABOVE_0),
    ],
)
@pytest.mark.parametrize("is_scaled", [False, True])
def test_a_zero_of_integers(
    op_type: str, dtype: str, said: str | None, repair: str, is_scaled: bool, tmp_path: Path
) -> None:
    step = Step().takes(counts(pos=2))
    step.graph.op("counter", "Placeholder", [], dtypes=(dtype,), not_recorded="dtype")
    step.graph.op("made", op_type, ["counter"], dtypes=(dtype,), not_recorded="dtype")
    step.op("cast", "Cast", ["made"], ONE_0).op("scaled", "RealDiv", ["cast", "x"], ONE_0)
    why = step.op("result", "Log", ["scaled" if is_scaled else "cast"], NEG_INF).reason("result", tmp_path)
    _, _, integers = why.sentence.partition(f" The program cast the argument from {dtype}")
    assert integers.startswith(said or "")
    assert (said is not None) == bool(integers)
    assert why.repair.startswith(repair)
