"""Test the explanations of bad values that tf.where or a product masks, and of masks that are infinite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.query.explanation import Explanation, read_reasons

from ..builder import CLEAN, INF, NAN, NEG_INF, RunBuilder, counts
from .steps import ABOVE_0, LOG_OF_0, ZERO, Step, explained, reason_of, row

TWICE = "Put tf.where around the input of Log as well: the unselected branch still has a gradient."


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
    assert masked(gradient=INF).reason("log", tmp_path, result="where") == Explanation(
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
    assert reason_of(step.run, 1, tmp_path) == Explanation(
        "No recorded op made the tensor: it already held 1 NaN when the program first used it. "
        "tf.where replaces the bad elements in the forward pass, but not in the gradient: Mul returns 1 NaN there.",
        "Replace the bad elements of the argument `x` of `f` with tf.where before anything is computed from them, "
        "not only in the result: the unselected branch still has a gradient.",
    )


@pytest.mark.parametrize(
    ("mask", "is_mask"), [(counts(zero=1, pos=1), True), (counts(pos=2), False), (counts(zero=1, neg=1), False)]
)
def test_bad_data_that_a_product_is_to_mask(mask: dict[str, Any], is_mask: bool, tmp_path: Path) -> None:
    step = Step().takes(NAN)
    stack = step.run.stack(("/home/me/train.py", 9, "loss", "err = x * mask", "user"))
    step.op("mask", "Cast", [], mask).op("err", "Mul", ["x", "mask"], NAN, stack=stack).op("sum", "Sum", ["err"], NAN)
    step.update("sum").graph.function("f", ["x"], ["sum"])
    why = reason_of(step.run, 1, tmp_path)
    assert (
        "train.py:9 multiplies the NaN by a tensor with as many zeros, but NaN * 0 is NaN." in why.sentence
    ) == is_mask
    repair = "If the product is meant to mask the NaN, replace the NaN of the argument `x` of `f` with tf.where before"
    assert why.repair.startswith(repair) == is_mask


@pytest.mark.parametrize(
    ("mask", "is_mask"), [(counts(zero=1, pos=1), True), (counts(pos=2), False), (counts(zero=1, neg=1), False)]
)
def test_a_bad_argument_of_a_data_set_that_a_product_is_to_mask(
    mask: dict[str, Any], is_mask: bool, tmp_path: Path
) -> None:
    """Nothing shows which step of the data set passed the argument."""
    run = RunBuilder("run-a")
    stack = run.stack(("/home/me/train.py", 9, "<lambda>", "x * mask", "user"))
    graph = run.graph("map").op("x", "Placeholder", role="input").op("mask", "Cast", role="input")
    graph.op("product", "Mul", ["x", "mask"], role="input", stack=stack).function("map", ["x"], ["product"])
    event = run.tensor(graph, "x", NAN)
    run.tensors(graph, {"mask": mask, "product": NAN})
    element = run.execution("IteratorGetNext", outputs={1: "float32"})
    run.eager(element, NAN, tensor_id=1)
    run.execution("AssignVariableOp", inputs=[2, 1])
    why = reason_of(run, event, tmp_path)
    assert why.sentence.startswith("No op of the function made the tensor: the argument already held 1 NaN.")
    assert why.sentence.endswith("NaN by a tensor with as many zeros, but NaN * 0 is NaN.") == is_mask
    assert why.repair.startswith("Check what passes the argument to the function") != is_mask


def test_an_eager_value_that_where_replaces(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    log = run.execution("Log", inputs=[1], outputs={2: "float32"})
    run.external(1, ZERO, execution=log)
    event = run.eager(log, NEG_INF, tensor_id=2)
    run.eager_op("SelectV2", CLEAN, tensor_id=3, inputs=[9, 2, 1])
    slope = run.execution("Reciprocal", inputs=[1], outputs={4: "float32"})
    run.eager(slope, INF, tensor_id=4)
    run.rows["execution"][slope] |= {"role": "gradient", "forward_execution_index": log}
    run.execution("AssignSubVariableOp", inputs=[8, 4])
    why = reason_of(run, event, tmp_path)
    assert why.sentence.endswith("but not in the gradient: Reciprocal returns 1 +Inf there.")
    assert why.repair == TWICE


@pytest.mark.parametrize(
    ("behind", "where"),
    [(["Sqrt"], "the input of Sqrt"), (["Sqrt", "Mul"], "the input of Sqrt"), (["Mul"], "the divisor")],
)
def test_a_root_behind_a_divisor_of_0_needs_the_second_where(behind: list[str], where: str, tmp_path: Path) -> None:
    """The slope of the root is infinite, too. If only the divisor is replaced, 0 times the infinite slope is NaN."""
    step, last = Step().takes(ZERO), "x"
    for op_type in behind:
        step.op(op_type, op_type, [last], ZERO)
        last = op_type
    step.op("ratio", "RealDiv", ["x", last], INF)
    step.graph.op("is_known", "IsFinite", ["ratio"], dtypes=("bool",), not_recorded="dtype")
    step.op("where", "SelectV2", ["is_known", "ratio", "x"], CLEAN)
    step.gradient("slope", "Mul", ["x", "ratio"], NAN, "ratio").update("slope")
    why = step.reason("ratio", tmp_path, result="where")
    assert why.repair == f"Put tf.where around {where} as well: the unselected branch still has a gradient."


@pytest.mark.parametrize(
    ("health", "repair"),
    [
        (INF, "Replace the bad elements with tf.where before anything is computed from them"),
        (
            counts(pos_inf=1, zero=1),
            "Use a large finite number of the same sign, such as 1e9, in place of the infinite one.",
        ),
    ],
)
def test_a_constant_that_where_replaces_needs_no_second_where(health: dict[str, Any], repair: str) -> None:
    gradient = row("Mul", NAN)
    why = explained(
        "Const", health, bad_gradient_of_masked=lambda: gradient, is_literal=lambda event: not event.num_pos_finite
    )
    assert why.repair.startswith(repair)


def test_where_replaces_one_of_two_bad_components_of_the_data(tmp_path: Path) -> None:
    """The other component is returned first, and its NaN has no gradient."""
    run = RunBuilder("run-a")
    made = run.execution("TensorSliceDataset", inputs=[1, 2], outputs={3: "variant"})
    features = run.external(1, {**NAN, "rank": 2, "shape": [2, 1]}, execution=made)
    labels = run.external(2, {**NAN, "rank": 2, "shape": [2, 1]}, execution=made)
    taken = run.execution("IteratorGetNext", inputs=[4], outputs={5: "float32", 6: "float32"})
    for slot, tensor_id in ((0, 5), (1, 6)):
        run.eager(taken, counts(nan=1), tensor_id=tensor_id, slot=slot)
    run.eager_op("SelectV2", CLEAN, tensor_id=10, inputs=[9, 5, 9])
    error = run.execution("Square", inputs=[6], outputs={11: "float32"})
    run.eager(error, NAN, tensor_id=11)
    run.eager_op("SelectV2", CLEAN, tensor_id=12, inputs=[9, 11, 9])
    slope = run.execution("Mul", inputs=[6, 9], outputs={13: "float32"})
    run.eager(slope, NAN, tensor_id=13)
    run.rows["execution"][slope] |= {"role": "gradient", "forward_execution_index": error}
    run.execution("AssignSubVariableOp", inputs=[8, 13])
    logdir = run.write(tmp_path)
    reasons = [read_reasons(logdir, event, run_id="run-a").explanation for event in (features, labels)]
    assert ["not in the gradient" in reason.sentence for reason in reasons] == [False, True]


def test_many_bad_arguments_are_named_up_to_a_limit(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    names = [f"a{number}" for number in range(7)]
    graph = run.graph("f").function("__inference_f_1", names)
    for name in names:
        graph.op(name, "Placeholder")
    call = run.execution("__inference_f_1", inputs=range(7), graph=graph)
    first, *_ = [run.external(tensor_id, NAN, execution=call) for tensor_id in range(7)]
    reason = read_reasons(run.write(tmp_path), first, run_id="run-a").explanation
    assert reason is not None
    assert "Also bad: the argument `a1` of `f`, with 1 NaN, the argument `a2`" in reason.sentence
    assert reason.sentence.endswith("the argument `a4` of `f`, with 1 NaN, and others.")


@pytest.mark.parametrize(
    ("has_gradients", "repair"),
    [
        (False, "use tf.math.multiply_no_nan(x, y), which returns 0 where y is 0."),
        (True, "replace the infinity before the product: tf.where(mask, x, 0.0)."),  # the gradient is a product, too
    ],
)
def test_a_constant_infinity_times_zero_has_to_be_finite(has_gradients: bool, repair: str) -> None:
    infinity = row("Const", counts(neg_inf=1))
    assert explained("Mul", NAN, infinity, row("Sub", ZERO), has_gradients=lambda: has_gradients) == Explanation(
        "Inf * 0: one factor holds 1 infinity, the other holds 1 zero, and Inf * 0 is NaN.",
        f"Use a large finite number of the same sign, such as 1e9, in place of the infinite one, or {repair}",
    )


@pytest.mark.parametrize(("made_by", "dtype"), [("Where", "float16"), ("Cast", "float32"), ("Where", "bfloat16")])
def test_a_mask_is_finite_in_its_dtype(made_by: str, dtype: str) -> None:
    logits = row(made_by, {**counts(neg_inf=2), "shape": [2]}, dtype=dtype)
    before_cast = row("Where", counts(neg_inf=2), dtype="float16")
    why = explained("Softmax", {**counts(nan=2), "dtype": dtype}, logits, made_from=lambda _: {0: before_cast})
    assert why.repair == (
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
    why = step.reason("mask", tmp_path, result="softmax")
    of_mask = " The other elements are 0, as in a mask. Softmax makes NaN (the first NaN is at [1, 0]) of a row that "
    assert why.sentence.endswith(f"65504.{of_mask}holds only -Inf." if is_mask else "65504.")
    assert why.repair.startswith("Mask with a large negative number such as -1e4, or" if is_mask else "Cast")


@pytest.mark.parametrize("has_bad_row", [True, False])
def test_the_softmax_of_a_row_in_which_the_logarithm_of_a_mask_is_infinite(has_bad_row: bool, tmp_path: Path) -> None:
    """The -Inf of the other rows does no harm."""
    step = Step().takes({**counts(zero=3, pos=1), "shape": [2, 2]}).op("mask", "Log", ["x"], HALF_MASK)
    bad = {**counts(nan=2, zero=1, pos=1), "first_bad_index": 2} if has_bad_row else counts(zero=2, pos=2)
    step.op("softmax", "Softmax", ["mask"], {**bad, "shape": [2, 2]})
    sentence = step.reason("mask", tmp_path, result="softmax").sentence
    assert sentence.endswith(
        "the logarithm of 0 is -Inf."
        + (" Softmax makes NaN (the first NaN is at [1, 0]) of a row that holds only -Inf." if has_bad_row else "")
    )


@pytest.mark.parametrize(("dtype", "number"), [("bfloat16", "1e9"), ("float16", "1e4")])
def test_a_large_finite_number_is_finite_in_the_dtype(dtype: str, number: str) -> None:
    taken = row("Const", counts(neg_inf=1), dtype=dtype), row("Sub", ZERO, dtype=dtype)
    why = explained("Mul", {**NAN, "dtype": dtype}, *taken)
    assert why.repair.startswith(f"Use a large finite number of the same sign, such as {number}, in place of")


@pytest.mark.parametrize("num_infs", [0, 2])
@pytest.mark.parametrize("program_op", ["Mul", "AddV2"])
def test_a_mask_times_an_infinity_that_was_computed_in_advance(num_infs: int, program_op: str) -> None:
    bad = counts(nan=3, neg_inf=num_infs)
    why = explained("Const", bad, program_ops=("Sub", program_op), makers=("Const",))
    is_product = num_infs > 0 and program_op == "Mul"
    assert ("An infinity times 0 is NaN" in why.sentence) == is_product
    assert ("tf.where" in why.repair) == is_product


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
    assert ("tf.reduce_logsumexp" in step.reason("difference", tmp_path, result=takers[-1][0]).repair) == is_logsumexp
