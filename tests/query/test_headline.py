"""Test the headline, which names the line, the bad values, the step and the sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tfdbg_arrow.query import BadSamples, Frame, FunctionCall, InputTensor, NonFinite, first_nonfinite
from tfdbg_arrow.query.headline import headline_of
from tfdbg_arrow.query.user_places import CallSite, Forward
from tfdbg_arrow.query.wording import facts_text

from .builder import CLEAN, RunBuilder, counts

TEXT = "        return p * tf.math.log(1 - p)"
FRAME = Frame("/home/me/layers.py", 12, "call", TEXT.strip(), "user")
PART = replace(FRAME, colno=20, end_colno=38)
OTHER = Frame("/home/me/layers.py", 15, "call", TEXT.strip(), "user")
FORWARD = Forward(op_type="Sqrt", op_name="Sqrt", graph_name="step", layer=None, source=FRAME)
CALL = CallSite(function="fit", op_name=None, graph_name=None, layer=None, source=FRAME)
SAMPLES = BadSamples(
    first=17,
    num_bad=1,
    num_samples=64,
    whole="the batch",
    unit="sample",
    name=None,
    inputs=(),
    row=None,
    is_row_of_arrays=False,
    follows_skipped=False,
)
WHOLE = "`return p * tf.math.log(1 - p)` at layers.py:12"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> NonFinite:
    run = RunBuilder("run-a")
    graph = run.graph("loss").op("x", "Mul").op("Log", "Log", inputs=["x"])
    run.tensors(graph, {"x": CLEAN, "Log": counts(neg_inf=1, neg=2)})
    found = first_nonfinite(run.write(tmp_path_factory.mktemp("logdir")))
    assert found is not None
    return replace(found, is_origin=True, source=None, step=None, call=None)


CASES: list[tuple[dict[str, Any], str]] = [
    (
        {"source": PART, "step": 211, "samples": SAMPLES},
        "`tf.math.log(1 - p)` at layers.py:12 made -Inf in step 211: sample 17 of the batch.",
    ),
    ({"source": FRAME, "step": 1211}, f"{WHOLE} made -Inf in step 1,211."),
    ({"source": FRAME}, f"{WHOLE} made -Inf."),
    ({"source": FRAME, "call": FunctionCall("train_step", 12, 30)}, f"{WHOLE} made -Inf in call 12 of train_step."),
    ({"source": FRAME, "step": 3, "worker": "worker:1"}, f"{WHOLE} made -Inf in step 3 on worker:1."),
    ({"source": replace(FRAME, code=None), "step": 3}, "layers.py:12 made -Inf in step 3."),
    (
        {"source": replace(FRAME, code=f"y = {'x + ' * 40}x")},
        f"`{('y = ' + 'x + ' * 40)[:79].rstrip()}…` at layers.py:12 made -Inf.",
    ),
    (
        {"source": replace(FRAME, file_path="Cell In[2]"), "num_nan": 1, "num_pos_inf": 1},
        "`return p * tf.math.log(1 - p)` at Cell In[2], line 12 made NaN, -Inf and +Inf.",
    ),
    ({"source": FRAME, "equal_lines": (OTHER,)}, f"{WHOLE} (the same as at layers.py:15) made -Inf."),
    (
        {"source": FRAME, "samples": replace(SAMPLES, num_bad=3)},
        f"{WHOLE} made -Inf: sample 17 and 2 more of the 64 samples of the batch.",
    ),
    (
        {"source": FRAME, "samples": replace(SAMPLES, num_bad=64, whole="the data")},
        f"{WHOLE} made -Inf: every sample of the data.",
    ),
    (
        {"source": replace(FRAME, code="y = tf.math.log(x)  # of `x`"), "step": 2},
        "`y = tf.math.log(x)` at layers.py:12 made -Inf in step 2.",
    ),
    ({"source": replace(FRAME, code="f(`x`,  # x")}, "`f('x', …` at layers.py:12 made -Inf."),
    ({"source": FRAME, "called_from": (CALL,), "role": "loss"}, f"The loss in {WHOLE} made -Inf."),
    ({"source": FRAME, "called_from": (CALL,), "layer": "dense"}, f"The layer dense in {WHOLE} made -Inf."),
    ({"source": FRAME, "called_from": (CALL,)}, f"Log:0 in {WHOLE} made -Inf."),
    ({"source": FRAME, "called_from": (CALL,), "op_name": "loss/log"}, f"loss/log:0 in {WHOLE} made -Inf."),
    (
        {"source": FRAME, "called_from": (CALL,), "layer": "dense", "forward": FORWARD},
        f"The gradient of the layer dense in {WHOLE} is -Inf.",
    ),
    (
        {"op_type": "Placeholder", "op_name": "x", "source": FRAME},
        "-Inf came into the program in the argument `x` of `loss`, read at layers.py:12.",
    ),
    (
        {"op_type": "Placeholder", "source": FRAME, "iteration": 9, "is_origin": False},
        "-Inf came from an earlier iteration that was not recorded, of the loop at layers.py:12.",
    ),
    (
        {"op_type": "Placeholder", "op_name": "x", "source": FRAME, "iteration": 0, "is_origin": False},
        "-Inf came into the program in the argument `x` of `loss`, read at layers.py:12.",
    ),
    ({}, "-Inf came up in Log:0, in the function loss."),
    ({"step": 2}, "-Inf came up in Log:0, in the function loss, in step 2."),
    ({"op_name": None, "graph_name": None}, "-Inf came up in Log:0."),
    ({"num_neg_inf": None, "source": FRAME}, f"{WHOLE} made Inf or NaN."),
    ({"source": FRAME, "is_origin": False, "inputs": ()}, f"As far as it is known, {WHOLE} made -Inf."),
    ({"source": FRAME, "is_expected": True, "step": 2}, f"The bad values did no harm: {WHOLE} made -Inf in step 2."),
    (
        {"source": PART, "forward": FORWARD, "step": 2},
        "The gradient of `tf.math.log(1 - p)` at layers.py:12 is -Inf in step 2.",
    ),
    (
        {"source": PART, "forward": replace(FORWARD, order=2)},
        "The gradient of the gradient of `tf.math.log(1 - p)` at layers.py:12 is -Inf.",
    ),
    ({"source": replace(FRAME, code=None), "forward": FORWARD}, "The gradient of Sqrt at layers.py:12 is -Inf."),
    ({"forward": FORWARD, "step": 2}, "The gradient of Sqrt is -Inf in step 2."),
    ({"op_type": None, "op_name": None}, "-Inf came into the program in a tensor from outside."),
    (
        {"op_type": "IteratorGetNext", "source": FRAME, "step": 2},
        "-Inf came into the program in the data, read at layers.py:12, in step 2.",
    ),
    (
        {"op_type": None, "source": FRAME, "samples": SAMPLES, "outside_name": "the argument `x` of `f`"},
        "-Inf came into the program in the argument `x` of `f`, read at layers.py:12: sample 17 of the batch.",
    ),
]


@pytest.mark.parametrize(("facts", "sentence"), CASES)
def test_a_sentence_leaves_out_what_is_not_known(log: NonFinite, facts: dict[str, Any], sentence: str) -> None:
    assert headline_of(replace(log, **facts), line=TEXT if facts.get("source") is PART else None) == sentence


def test_ops_that_may_have_made_the_nan_of_an_infinity_are_named_too(log: NonFinite) -> None:
    found = replace(log, source=FRAME)
    assert headline_of(found, line=None, later=("Mul", "Sum")) == f"{WHOLE}, or an op after it (Mul, Sum), made -Inf."


def test_a_value_that_an_input_has_is_passed_on(log: NonFinite) -> None:
    health = replace(log.inputs[0].health, has_inf_or_nan=True, num_neg_inf=1)  # type: ignore[type-var]
    found = replace(log, is_origin=False, inputs=(InputTensor(0, health, None),), step=2)
    assert headline_of(found, line=None) == "-Inf was passed on by Log:0, in the function loss, in step 2."
    assert headline_of(replace(found, source=FRAME), line=None) == f"{WHOLE} passed on -Inf in step 2."


@pytest.mark.parametrize(
    ("code", "quoted"),
    [
        ("a / b", "a / b"),
        ("-a", "-a"),
        ("/ tf.square(x)", "… / tf.square(x)"),
        ("* (x)", "… * (x)"),
        ("x / # of x", "x / …"),
        ("tf.square(x) \\", "tf.square(x) …"),
        ("/ tf.where( # all (", "… / tf.where( …"),
        ("x > 0, y) / tf.where(", "… x > 0, y) / tf.where( …"),
        ("]) == (", "… ]) == ( …"),
        ('"( +"', '"( +"'),
    ],
)
@pytest.mark.parametrize("is_part", [False, True])
def test_ellipses_stand_for_the_other_lines_of_an_expression(
    log: NonFinite, code: str, quoted: str, is_part: bool
) -> None:
    line = f"    y = {code}" if is_part else f"    {code}"
    colno = 9 if is_part else 5
    frame = Frame("/home/me/a.py", 3, "f", line.strip(), "user", colno=colno, end_colno=len(line) + 1)
    assert headline_of(replace(log, source=frame), line=line) == f"`{quoted}` at a.py:3 made -Inf."


def test_complex_numbers_have_no_sign(log: NonFinite) -> None:
    health = replace(log, dtype="complex64", num_neg_inf=0, num_nan=1, num_zero=2, num_neg_finite=3, num_pos_finite=4)
    text = facts_text(replace(health, shape=(10,), size=10, first_bad_index=5))
    assert text == "complex64 [10]: 1 NaN, 2 zero, 7 nonzero of 10 elements, the first NaN at [5]"
