"""Test the explanations of overflows: in a gradient, a loop, a batch or an exponential."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.query.explanation import Explanation

from ..builder import CLEAN, INF, NAN, NEG_INF, RunBuilder, counts
from .steps import LOGSUMEXP, OVER, Step, explained, numbers, reason_of_last, row

LARGEST = 3.4028234663852886e38
CLIP = (
    "Clip the argument from above, for example with tf.minimum(x, 22.0). Exp overflows above 88.7; the limit "
    "of 22.0 leaves room for squares and products of the result."
)
ROOM = "leaves room for squares and products of the result."
OF_AXIS = "Use tf.nn.softmax, with the axis of the sum, in place of the exponentials, their sum and the division."
SEGMENTS = (
    "For a softmax over segments, subtract the maximum of each segment before the exponential: take it with "
    "tf.math.unsorted_segment_max, and gather it as the sums are gathered. The quotients stay the same."
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
FAR_LARGER = "too: a number in {} data or label may be far larger than in the others."
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


def test_the_norm_of_a_gradient_that_is_a_penalty(tmp_path: Path) -> None:
    """The program differentiates the norm. A norm that is differentiated scales no gradient, and nothing is clipped."""
    step = Step(is_first=False).takes(CLEAN).op("root", "Sqrt", ["x"], CLEAN)
    step.gradient("gradient", "Mul", ["x", "x"], CLEAN, "root").op("square", "Square", ["gradient"], INF)
    step.op("sum", "Sum", ["square"], INF).op("norm", "Sqrt", ["sum"], INF)
    step.gradient("slope", "Mul", ["x", "x"], CLEAN, "square")
    assert step.reason("square", tmp_path, result="norm").repair == SCALE


def test_before_the_first_update_the_learning_rate_is_no_cause(tmp_path: Path) -> None:
    repairs = []
    for is_first in (True, False):
        step = Step(is_first=is_first).takes(CLEAN).op("square", "Square", ["x"], CLEAN)
        step.op("product", "Mul", ["square", "x"], INF).gradient("slope", "MatMul", ["x", "square"], INF, "square")
        why = [step.reason(name, tmp_path / f"{is_first} {name}") for name in ("product", "slope")]
        repairs.append([reason.repair for reason in why])
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
    assert step.reason("product", tmp_path).repair == repair


BOUND_STATE = (
    "Keep the state of the loop from growing with each iteration: use a smaller step size or gain (such as smaller "
    "recurrent weights), or bound the state, for example with tf.tanh or tf.clip_by_value."
)


def loop(
    *before: Mapping[str, Any],
    taken: str = "state",
    calls: int = 1,
    is_training: bool = False,
    op_type: str = "Square",
) -> RunBuilder:
    """Returns a run of `f(x)`, a loop over state = taken * taken. All iterations except the last are finite.

    Args:
        before: The health of the product in the iterations before it overflows.
        taken: `state`, which is the last product, or `x`.
        calls: The number of calls.
        op_type: The type of the op in place of the square.
        is_training: Whether each iteration computes a gradient. A part of a gradient is always computed before the
            loop.
    """
    run = RunBuilder("run-a")
    outer = run.graph("f").op("x", "Placeholder").op("one_by_n", "DivNoNan", ["x"], role="gradient")
    body = run.graph("body").op("state", "Placeholder").op("x", "Placeholder").op("square", op_type, [taken])
    body.op("slope", "Mul", ["x"], role="gradient")
    outer.op("while", "StatelessWhile", ["x", "x"], dtypes=("float32", "float32"))
    outer.calls("while", "body_1", body, attribute="body").function("f", ["x"], ["while"])
    body.function("body_1", ["state", "x"], ["square", "x"])
    for _ in range(calls):
        call = run.execution("f", inputs=[1], outputs={2: "float32"}, graph=outer)
    run.external(1, CLEAN, execution=call)
    run.tensors(outer, {"x": CLEAN, "one_by_n": CLEAN}, execution=call)
    for iteration, health in enumerate((*before, INF)):
        for name in ("slope", "square") if is_training else ("square",):
            of_op = CLEAN if name == "slope" else health
            run.tensor(body, name, of_op, execution=call, site="while/body", frame=5, iteration=iteration)
    return run


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
    measured.insert(0, numbers(0.0, 0.0, zero=2))  # from which nothing grows
    assert reason_of_last(loop(*measured), tmp_path / "measured") == Explanation(
        "Overflow in Square: the largest magnitude in its inputs is 1e+20, and 1 of 2 elements is beyond the largest "
        "float32, 3.40282e+38. The result grew from 3 to 1e+20 over 4 iterations of the loop.",
        BOUND_STATE,
    )
    assert reason_of_last(loop(CLEAN, CLEAN, CLEAN, calls=2), tmp_path / "later call") == Explanation(
        f"{over} The loop computes each result from the one before, and stayed finite for 3 iterations.",
        f"{BOUND_STATE} If it grew only after some steps of training, lower the learning rate or clip the gradients.",
    )


def test_an_exponential_of_what_a_loop_makes_of_its_own_result(tmp_path: Path) -> None:
    why = reason_of_last(loop(CLEAN, CLEAN, CLEAN, op_type="Exp"), tmp_path)
    over = f"Overflow in Exp: its inputs are finite, and {OVER}"
    assert (
        why.sentence == f"{over} The loop computes each result from the one before, and stayed finite for 3 iterations."
    )
    assert why.repair.startswith("Clip the argument from above")


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
    why = reason_of_last(run, tmp_path)
    assert (why.sentence.endswith(OVER), why.repair) == (True, BEFORE_TRAINING)


@pytest.mark.parametrize(("before", "repair"), [([], BEFORE_TRAINING), ([CLEAN], OVER_STEPS)])
def test_the_second_iteration_of_a_training_is_not_before_it(
    before: list[Mapping[str, Any]], repair: str, tmp_path: Path
) -> None:
    assert reason_of_last(loop(*before, taken="x", is_training=True), tmp_path).repair == repair


def reason_of_batch(
    tmp_path: Path, *, num_bad: int, is_first: bool = False, has_gradient: bool = True, before: str = "Identity"
) -> Explanation:
    """Returns the explanation of squares that overflow in some of 20 samples, in the first or a later step.

    The label is passed through an op of the type `before`. The label and the result of this op have positive and
    negative elements.
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
        (2, False, f"{OF_HALF} Look at these samples, {FAR_LARGER.format('their')}"),
        (1, False, f"{OF_HALF} Look at this sample, {FAR_LARGER.format('its')}"),
        (1, True, f"{BEFORE_TRAINING} Look at this sample, {FAR_LARGER.format('its')}"),
    ],
)
def test_the_repair_of_an_overflow_depends_on_how_many_samples_overflow(
    num_bad: int, is_first: bool, repair: str, tmp_path: Path
) -> None:
    assert reason_of_batch(tmp_path, num_bad=num_bad, is_first=is_first).repair == repair


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
    run.tensors(graph, {"x": CLEAN, "square": INF}, execution=call, step=call)
    why = reason_of_last(run, tmp_path)
    assert why.sentence.endswith(f" The first recorded loss of the training is already {losses[0]:.6g}.") == is_large
    assert why.repair.startswith("Scale the inputs and the targets: ") == is_large


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
    why = reason_of_last(run, tmp_path)
    extreme = "largest float32, 3" if op_type == "SegmentMinV2" else "lowest float32, -3"
    said = (
        f" Numbers of this size may come from {op_type.removesuffix('V2')} at train.py:5, which returns the "
        f"{extreme}.40282e+38, for a segment or row with no element."
    )
    assert why.sentence.endswith(said) == is_named
    assert why.repair.startswith("If a segment or row can be empty, replace its result, ") == is_named


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
    why = reason_of_batch(tmp_path, num_bad=num_bad, before=before)
    assert (f" Numbers of this size may come from {before.removesuffix('V2')}" in why.sentence) == is_named
    assert why.repair.startswith("If a segment or row can be empty, replace its result, ") == is_named


@pytest.mark.parametrize(
    ("is_first", "made", "is_named"),
    [
        (True, counts(neg=1, pos=1), True),
        (False, counts(neg=1, pos=1), False),
        (True, counts(pos=2), False),
        (True, numbers(-2.0, 2.0, neg=1, pos=1), False),  # the smallest element is no extreme
    ],
)
def test_the_maximum_of_an_empty_segment_may_have_overflowed_before_the_first_update(
    is_first: bool, made: Mapping[str, Any], is_named: bool, tmp_path: Path
) -> None:
    step = Step(is_first=is_first).takes(counts(neg=1, pos=3)).op("max", "UnsortedSegmentMax", ["x"], made)
    step.op("product", "MatMul", ["max"], INF)
    why = step.reason("product", tmp_path)
    assert (" Numbers of this size may come from UnsortedSegmentMax" in why.sentence) == is_named
    assert why.repair.startswith("If a segment or row can be empty, replace its result, ") == is_named


@pytest.mark.parametrize(
    ("is_first", "op_type", "is_named"),
    [(True, "DecodeRaw", True), (False, "DecodeRaw", False), (True, "DecodeCSV", False)],
)
def test_numbers_that_were_read_from_bytes_may_have_overflowed(
    is_first: bool, op_type: str, is_named: bool, tmp_path: Path
) -> None:
    step = Step(is_first=is_first)
    parse = step.run.graph("parse").op("numbers", op_type, role="input")
    step.run.tensor(parse, "numbers", counts(neg=1, pos=3))
    why = step.takes(counts(neg=1, pos=3)).op("square", "Square", ["x"], INF).reason("square", tmp_path)
    said = " Numbers of this size may come from DecodeRaw, which reads bytes as numbers of float32."
    assert why.sentence.endswith(said) == is_named
    assert why.repair.startswith("Check that the bytes are numbers of float32, in the byte order") == is_named


def test_samples_that_overflow_where_nothing_is_trained_are_no_sign_of_the_learning_rate(tmp_path: Path) -> None:
    assert reason_of_batch(tmp_path, num_bad=20, has_gradient=False).repair == SCALE


def test_a_gradient_that_overflows_cannot_be_clipped_any_more(tmp_path: Path) -> None:
    step = Step(is_first=False).takes(CLEAN).op("square", "Square", ["x"], CLEAN)
    step.gradient("gradient", "MatMul", ["x", "square"], INF, "square")
    assert step.reason("gradient", tmp_path) == Explanation(
        f"In the gradient of Square, overflow in MatMul: its inputs are finite, and {OVER}", OF_GRADIENT
    )


def test_the_gradient_of_an_op_may_be_an_op_of_its_own_type() -> None:
    assert explained("MatMul", INF, row("Mul", CLEAN), forward_type="MatMul") == Explanation(
        f"The gradient of MatMul overflowed: its inputs are finite, and {OVER}", OF_GRADIENT
    )


@pytest.mark.parametrize("scale", [2.0**100, 2.0])
def test_a_gradient_that_overflows_because_of_a_scaled_loss(scale: float, tmp_path: Path) -> None:
    step = Step(is_first=False).takes(CLEAN).op("loss", "Mul", ["x", "x"], numbers(1.0, 1.0, pos=1))
    begin = {**numbers(scale, scale, pos=1), "rank": 0, "shape": []}
    step.gradient("begin", "Mul", ["x", "x"], begin, "loss").gradient("gradient", "Mul", ["begin", "x"], INF, "loss")
    why = step.reason("gradient", tmp_path)
    said = (
        " The gradient was computed from the scalar 1.26765e+30, which is itself the gradient of a product of two "
        "scalars: the program multiplies the loss, or a part of it, by a large number."
    )
    assert why.sentence.endswith(said) == (scale > 2)
    lower = "Lower the scale of the loss, or let keras.optimizers.LossScaleOptimizer find it."
    assert why.repair == (lower if scale > 2 else OF_GRADIENT)


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
    why = step.reason("square", tmp_path)
    _, _, said = why.sentence.partition(" An input was computed from the result of ")
    assert (said or None, why.repair) == (cause, repair)


@pytest.mark.parametrize(("op_type", "health"), [("Maximum", CLEAN), ("Neg", numbers(0.0, 2.0, zero=1, pos=1))])
def test_an_overflow_behind_a_bound_is_not_of_the_maximum_of_nothing(
    op_type: str, health: Mapping[str, Any], tmp_path: Path
) -> None:
    step = Step(is_first=False).takes(counts(pos=4)).op("extreme", "UnsortedSegmentMax", ["x"], counts(neg=1, pos=1))
    step.op("bound", op_type, ["extreme"], health).op("square", "Square", ["bound"], INF)
    why = step.reason("square", tmp_path)
    assert (why.sentence.startswith("Overflow in Square: "), why.repair) == (True, SCALE)
    assert "UnsortedSegmentMax" not in why.sentence


@pytest.mark.parametrize(
    ("takers", "repair"),
    [
        ([("sum", "Sum", ["exp"]), ("log", "Log", ["sum"])], LOGSUMEXP),
        ([("sum", "Sum", ["exp"]), ("ratio", "RealDiv", ["exp", "sum"])], OF_AXIS),
        (
            [
                ("sum", "Sum", ["exp"]),
                ("own", "MatrixDiagPartV3", ["exp"]),
                ("ratio", "RealDiv", ["own", "sum"]),
            ],
            (
                "Subtract the maximum of the terms of each sum before the exponential, as in tf.exp(x - "
                "tf.reduce_max(x, axis=-1, keepdims=True)) with the axis of the sum: the quotients stay the same. "
                "tf.nn.softmax and tf.nn.log_softmax do so."
            ),
        ),
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
        (
            [("sum", "AddV2", ["one", "exp"]), ("ratio", "RealDiv", ["exp", "sum"])],
            (
                "Use tf.nn.sigmoid(x) in place of exp(x) / (1 + exp(x)), and tf.math.log_sigmoid(x) in place of its "
                "logarithm: they cannot overflow."
            ),
        ),
        (
            [("sums", "Cumsum", ["exp"]), ("log", "Log", ["sums"])],
            (
                "Use tf.math.cumulative_logsumexp in place of the exponentials, their cumulative sum and the "
                "logarithm: it neither overflows nor underflows."
            ),
        ),
        ([("sum", "AddV2", ["x", "exp"]), ("log", "Log", ["sum"])], CLIP),
        ([("sum", "Sum", ["exp"])], CLIP),
        ([("product", "Mul", ["exp", "x"])], CLIP),
    ],
    ids=[
        "logsumexp",
        "softmax",
        "softmax of which the program uses the diagonal",
        "softmax of segments",
        "sums of segments",
        "sums of segments and quotients",
        "softplus",
        "sigmoid",
        "sigmoid as a quotient of exponentials",
        "cumulative logsumexp",
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
    why = step.reason("exp", tmp_path, result=takers[-1][0])
    assert why == Explanation(f"Overflow in Exp: its inputs are finite, and {OVER}", repair)


@pytest.mark.parametrize(
    ("dtype", "bound"),
    [
        ("float16", f"(x, 2.0). Exp overflows above 11.1; the limit of 2.0 {ROOM}"),
        ("float64", f"(x, 177.0). Exp overflows above 709.8; the limit of 177.0 {ROOM}"),
        ("unknown", "."),
    ],
)
def test_the_bound_of_an_exponential_depends_on_the_dtype(dtype: str, bound: str) -> None:
    why = explained("Exp", {**INF, "dtype": dtype}, row("Sub", CLEAN))
    assert why.repair == f"Clip the argument from above, for example with tf.minimum{bound}"


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
    why = explained("_FusedMatMul", made, *[row("Identity", CLEAN)] * 3, program_ops=program_ops)
    assert why == Explanation(sentence, SCALE)


def test_a_convolution_fused_with_a_normalization_may_be_bad_for_another_reason() -> None:
    taken, program_ops = [row("Identity", CLEAN)] * 6, ("Conv2D", "FusedBatchNormV3")
    why = explained("_FusedConv2D", INF, *taken, program_ops=program_ops, makers=program_ops)
    assert "Overflow" not in why.sentence


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
    why = step.reason("exp", tmp_path)
    assert why.repair.startswith("Scale the inputs to magnitudes near one, if they are larger") == is_scaled
    assert why.repair.lower().endswith(CLIP.lower())
