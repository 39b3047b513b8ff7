"""Test explanations of ops against NumPy on many kinds of input, eagerly and in functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfdbg_arrow.query.explanation import Computed, explain
from tfdbg_arrow.query.recorded import TensorEvent

Array = npt.NDArray[Any]
Claim = Callable[..., Any]

SIZE = 4
NUM_EXAMPLES = 10
INF = float("inf")
TINY = 1.1754944e-38
MAX = 3.4028234663852886e38
VALUES = (0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, -3.0, 1.5, 100.0, 1e-40, -1e-40, 5e-39, 2e-38, 1e-20, 1e20, -1e20, 3e38)
SPECIAL = (INF, -INF, float("nan"))


def event_of(array: Array, op_type: str | None = None, slot: int | None = 0) -> TensorEvent:
    """Returns the row that FULL_NUMERICS would record."""
    facts: dict[str, Any] = dict.fromkeys(TensorEvent.__dataclass_fields__)
    parts = array.view(array.real.dtype) if np.iscomplexobj(array) else array
    flat = array.reshape(-1)
    is_nan = np.isnan(flat)
    is_inf = np.isinf(flat) & ~is_nan
    finite = flat[~is_nan & ~is_inf]
    sign = flat.real
    facts.update(
        event_index=1,
        scope="execution",
        op_type=op_type,
        output_slot=slot,
        dtype=array.dtype.name,
        shape=array.shape,
        size=array.size,
        has_inf_or_nan=bool((is_nan | is_inf).any()),
        num_nan=int(is_nan.sum()),
        num_pos_inf=int((is_inf & (sign > 0)).sum()),
        num_neg_inf=int((is_inf & ~(sign > 0)).sum()),
        num_zero=int((finite == 0).sum()),
        num_neg_finite=int((finite.real < 0).sum()),
        num_pos_finite=int(((finite != 0) & ~(finite.real < 0)).sum()),
        num_subnormal=int(((parts != 0) & (np.abs(parts) < np.finfo(parts.dtype).tiny)).sum()),
        max_abs_finite=float(np.abs(finite.astype("complex128")).max()) if finite.size else None,
    )
    return TensorEvent(**facts)


def zero(x: Array) -> int:
    return int((x == 0).sum())


def small(x: Array) -> Array:
    """Returns which elements the threads of TensorFlow treat as 0."""
    return np.abs(x) < TINY


def no_inf(*arrays: Array) -> bool:
    return all(bool(np.isfinite(array).all()) for array in arrays)


def over(result: Array) -> bool:
    """Returns whether a result computed in float64 is too large for float32."""
    return bool((np.abs(result) > MAX * 0.999).any())


def count(of: Callable[[Array], Array]) -> Claim:
    """Returns the claim that states how many elements satisfy a function."""
    return lambda x: int(of(x).sum())


def some(of: Callable[..., Array]) -> Claim:
    """Returns the claim that at least one element satisfies a function."""
    return lambda *arrays: bool(np.asarray(of(*arrays)).any())


def is_pole(x: Array) -> Array:
    return (x <= 0) & (x == np.floor(x))


def finite_over(limit: float) -> Claim:
    return lambda x: bool((x[np.isfinite(x)] > limit).any()) and not (x == INF).any()


def wide_of_bessel(x: Array) -> bool:
    return bool((np.abs(x[np.isfinite(x)]) > 88).any()) and not np.isinf(x).any()


def power_of_negative(x: Array, y: Array) -> int:
    return bool(((x < 0) & (y != np.floor(y))).any()) and int(((x < 0) & np.isfinite(x)).sum())


def power_overflows(x: Array, y: Array) -> bool:
    base = np.where(x == 0, 1, x).astype("float64")
    return no_inf(x, y) and over(np.power(base, y.astype("float64")))


def product_overflows(x: Array) -> bool:
    return no_inf(x) and over(np.where(np.abs(x) < 1, 1, x).astype("float64").prod(keepdims=True))


def dot_overflows(x: Array, y: Array) -> bool:
    return no_inf(x, y) and over(np.abs(x.astype("float64")) @ np.abs(y.astype("float64")) * np.ones(1))


def inf_by_zero(x: Array, y: Array) -> bool:
    return bool((np.isinf(x) & small(y)).any() or (np.isinf(y) & small(x)).any())


def _sparse_loss(x: Any) -> Any:
    return tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=x, labels=[0, 1])[0]


def _dense_loss(x: Any, y: Any) -> Any:
    return tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=tf.reshape(x, [2, 2]), labels=tf.reshape(y, [2, 2]))[0]


def _is_singular(x: Array) -> bool:
    values = _eigenvalues(x)
    return bool((values <= 1e-6 * np.abs(values).max()).any())


@dataclass(frozen=True)
class Op:
    """An op, and the claims about its inputs that its explanations make.

    Attributes:
        name: The op type.
        claims: For the beginning of each explanation, a function of the inputs. It returns the count of elements that
            the explanation states, or whether the explanation is true.
        num_inputs: The number of inputs.
        values: The possible elements of the inputs.
        call: The function that runs the op; None means the raw op of that name.
    """

    name: str
    claims: Mapping[str, Claim]
    num_inputs: int = 1
    values: tuple[float, ...] = VALUES
    call: Callable[..., Any] | None = None

    def run(self, arrays: list[Array]) -> Array:
        if self.call is not None:
            return np.asarray(self.call(*arrays))
        return np.asarray(_raw(self.name)(*arrays))


@cache
def _raw(name: str) -> Callable[..., Any]:
    raw = getattr(tf.raw_ops, name)
    names = [each for each in raw.__signature__.parameters if each != "name"]
    return lambda *arrays: raw(**dict(zip(names, arrays, strict=False)))


@cache
def _function(op: int) -> Callable[..., Any]:
    return tf.function(lambda *arrays: OPS[op].call(*arrays) if OPS[op].call else _raw(OPS[op].name)(*arrays))


def wide(function: Callable[..., Array]) -> Claim:
    """Returns the claim of an overflow: the inputs are finite and the result in float64 is too large for float32."""
    return lambda *arrays: no_inf(*arrays) and over(function(*[array.astype("float64") for array in arrays]))


def outside(low: float, high: float) -> Claim:
    return lambda x: int(((x < low) | (x > high)).sum())


def next_to_zero(x: Array) -> bool:
    return bool((small(x) & (x != 0)).any())


def has_0_by_0(x: Array, y: Array) -> bool:
    return bool((small(x) & small(y)).any())


def partial_sums(x: Array) -> Array:
    terms = x.astype("float64")
    return np.array([np.where(terms > 0, terms, 0).sum(), np.where(terms < 0, terms, 0).sum()])


OVERFLOW_SUM = {
    "Overflow in": lambda *arrays: no_inf(*arrays) and over(partial_sums(np.concatenate(arrays))),
    "Inf - Inf": lambda *arrays: any(np.isinf(array).any() for array in arrays),
}
POW = {
    "Pow of 0": lambda x, y: zero(x) if (y < 0).all() else False,
    "Pow of a negative number": lambda x, y: (
        bool(((x < 0) & (y != np.floor(y))).any()) and int(((x < 0) & np.isfinite(x)).sum())
    ),
    "Overflow in Pow": lambda x, y: (
        no_inf(x, y) and over(np.power(np.where(x == 0, 1, x).astype("float64"), y.astype("float64")))
    ),
}
DIVISION = {
    "Division by 0": lambda x, y: no_inf(x, y) and zero(y),
    "0 / 0": has_0_by_0,
    "Inf / Inf": lambda x, y: bool((np.isinf(x) & np.isinf(y)).any()),
    "Overflow in": lambda x, y: no_inf(x, y) and zero(y) == 0,
}
REMAINDER = {
    " by 0": lambda x, y: bool((small(y) & np.isfinite(x)).any()),
    " of an infinity": lambda x, y: bool(np.isinf(x).any()),
}
UNIT = (0.0, 0.5, 1.0, -1.0, -0.5, 0.99999994, 1.0000001, 2.0, -2.0, 1e-40)
MATRIX = (0.0, 1.0, -1.0, 2.0, 0.5, 4.0, 1e20, 1e-20)


def _products(x: Array, y: Array) -> bool:
    return any(np.isinf(array).any() for array in (x, y))


def _matmul(x: Any, y: Any) -> Any:
    return tf.matmul(tf.reshape(x, [2, 2]), tf.reshape(y, [2, 2]))


def _overflowing_products(x: Array, y: Array) -> bool:
    a, b = (np.abs(array.astype("float64")).reshape(2, 2) for array in (x, y))
    return no_inf(x, y) and over(a @ b)


def _all_masked(x: Array) -> bool:
    return bool((x.reshape(2, 2) == -INF).all(axis=1).any())


def _square_of(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: function(tf.reshape(x, [2, 2]))


def _eigenvalues(x: Array) -> Array:
    lower = np.tril(x.astype("float64").reshape(2, 2))
    return np.linalg.eigvalsh(lower, UPLO="L")


OPS = (
    Op("Log", {"Log of 0": zero, "Log of a number next": next_to_zero, "Log of a neg": count(lambda x: x < 0)}),
    Op("Log1p", {"Log1p of -1": count(lambda x: x == -1), "Log1p of a number": count(lambda x: x < -1)}),
    Op("Sqrt", {"Sqrt of a neg": count(lambda x: x < 0)}),
    Op("Rsqrt", {"Rsqrt of 0": zero, "Rsqrt of a number next": next_to_zero, "Rsqrt of a neg": count(lambda x: x < 0)}),
    Op("Reciprocal", {"Reciprocal of 0": zero, "Reciprocal of a number next": next_to_zero}),
    Op("Inv", {"Inv of 0": zero, "Inv of a number next": next_to_zero}),
    Op("Acos", {"Acos of a number outside": outside(-1, 1)}, values=UNIT),
    Op("Asin", {"Asin of a number outside": outside(-1, 1)}, values=UNIT),
    Op("Acosh", {"Acosh of a number below 1": count(lambda x: x < 1)}),
    Op(
        "Atanh",
        {"Atanh of a number outside": outside(-1, 1), "Atanh of 1 or -1": count(lambda x: np.abs(x) == 1)},
        values=UNIT,
    ),
    Op(
        "Erfinv",
        {
            "Erfinv of a number outside": some(lambda x: np.abs(x) > 1),
            "Erfinv of 1 or -1": some(lambda x: np.abs(np.abs(x) - 1) < 1e-6),
        },
        values=UNIT,
    ),
    Op(
        "Ndtri",
        {
            "Ndtri of a number outside": outside(0, 1),
            "Ndtri of 0 or 1": some(lambda x: (np.abs(x) < 1e-6) | (np.abs(x - 1) < 1e-6)),
        },
        values=UNIT,
    ),
    Op("Sin", {"Sin of an infinity": count(np.isinf)}),
    Op("Tan", {"Tan of an infinity": count(np.isinf)}),
    Op(
        "Lgamma",
        {
            "Lgamma at a pole": count(is_pole),
            "Lgamma of 0:": count(lambda x: x == 0),
            "Lgamma of 0, of a": some(lambda x: is_pole(x) | (np.abs(x) > 1e36) | small(x)),
            "Overflow in Lgamma": some(lambda x: (np.abs(x) > 1e36) | small(x)),
        },
    ),
    Op(
        "Digamma",
        {"Digamma: ": some(lambda x: is_pole(x) | small(x)), "Digamma of 0:": count(lambda x: x == 0)},
    ),
    Op("Betainc", {"Betainc: ": some(lambda a, b, x: (a < TINY) | (b < TINY) | (x < 0) | (x > 1))}, 3, (*UNIT, 100.0)),
    Op("Igamma", {"Igamma: ": some(lambda a, x: (a < TINY) | (x < 0))}, 2, (*UNIT, 100.0)),
    Op("Igammac", {"Igammac: ": some(lambda a, x: (a < TINY) | (x < 0))}, 2, (*UNIT, 100.0)),
    Op("Zeta", {"Zeta: ": some(lambda x, q: (x <= 1) | (q < TINY))}, 2, (*UNIT, -3.0, 3.0)),
    *(
        Op(f"Bessel{name}", {f"Bessel{name}: ": some(lambda x: x < 1e-36)})
        for name in ("K0", "K0e", "K1", "K1e", "Y0", "Y1")
    ),
    *(Op(f"Bessel{name}", {f"Overflow in Bessel{name}": wide_of_bessel}) for name in ("I0", "I1")),
    Op("Expint", {"Expint: ": some(lambda x: (x < TINY) | (x > 88))}),
    Op("Spence", {"Spence: ": some(lambda x: (x < 0) | (x > 1e30))}),
    Op("Exp", {"Overflow in Exp": finite_over(88)}),
    Op("Expm1", {"Overflow in Expm1": finite_over(88)}),
    Op("Sinh", {"Overflow in Sinh": lambda x: no_inf(x) and bool((np.abs(x) > 88).any())}),
    Op("Cosh", {"Overflow in Cosh": lambda x: no_inf(x) and bool((np.abs(x) > 88).any())}),
    Op("Square", {"Overflow in Square": wide(np.square)}),
    Op("L2Loss", {"Overflow in L2Loss": wide(lambda x: np.square(x).sum(keepdims=True))}),
    Op("SquaredDifference", {"Overflow in Squ": wide(lambda x, y: np.square(x - y))}, 2),
    Op(
        "Cast",
        {"Overflow in Cast": lambda x: no_inf(x) and bool((np.abs(x) > 65504).any())},
        call=lambda x: tf.cast(x, tf.float16),
    ),
    Op("RealDiv", DIVISION, 2),
    Op("Div", DIVISION, 2),
    Op("FloorDiv", DIVISION, 2),
    Op("DivNoNan", {**DIVISION, "Overflow in": no_inf}, 2),
    Op("FloorMod", {f"FloorMod{key}": claim for key, claim in REMAINDER.items()}, 2),
    Op(
        "Xlogy",
        {
            "Xlogy of a number below 0": some(lambda x, y: (y < 0) & (x != 0)),
            "Xlogy at 0": lambda x, y: zero(y),
            "Overflow": no_inf,
        },
        2,
    ),
    Op("Xlog1py", {"Xlog1py of a number below -1": some(lambda x, y: (y < -1) & (x != 0))}, 2),
    Op("Xdivy", {"Xdivy at 0": lambda x, y: zero(y), "Overflow": no_inf}, 2),
    Op("Pow", POW, 2),
    Op("Mul", {"Inf * 0": inf_by_zero, "Overflow in Mul": wide(np.multiply)}, 2),
    Op("TanhGrad", {"Inf * 0": lambda y, dy: _products(y, dy), "Overflow": no_inf}, 2),
    Op("SqrtGrad", {"The gradient of Sqrt at 0": lambda y, dy: zero(y), "The gradient of Sqrt over": no_inf}, 2),
    Op(
        "RsqrtGrad",
        {"The gradient of Rsqrt at 0": lambda y, dy: int(np.isinf(y).sum()), "The gradient of Rsqrt over": no_inf},
        2,
    ),
    Op(
        "ReciprocalGrad",
        {
            "The gradient of Reciprocal at 0": lambda y, dy: int(np.isinf(y).sum()),
            "The gradient of Reciprocal over": no_inf,
        },
        2,
    ),
    Op("AddV2", OVERFLOW_SUM, 2),
    Op("Sub", {"Overflow in": lambda x, y: no_inf(x, y) and over(x.astype("float64") - y), "Inf - Inf": _products}, 2),
    Op("AddN", OVERFLOW_SUM, 3, call=lambda *arrays: tf.add_n(list(arrays))),
    Op("Sum", OVERFLOW_SUM, call=tf.reduce_sum),
    Op("Mean", OVERFLOW_SUM, call=tf.reduce_mean),
    Op("Cumsum", OVERFLOW_SUM, call=tf.cumsum),
    Op("UnsortedSegmentSum", OVERFLOW_SUM, call=lambda x: tf.math.unsorted_segment_sum(x, [0, 1, 0, 1], 2)),
    Op("Prod", {"Overflow in": product_overflows, "Inf * 0": lambda x: bool(np.isinf(x).any())}, call=tf.reduce_prod),
    Op("MatMul", {"Inf * 0 or Inf - Inf": _products, "Overflow in MatMul": _overflowing_products}, 2, call=_matmul),
    Op(
        "Einsum",
        {"Inf * 0 or Inf - Inf": _products, "Overflow in Einsum": dot_overflows},
        2,
        call=lambda x, y: tf.einsum("i,i->", x, y),
    ),
    Op(
        "Softmax",
        {"Softmax of +Inf": lambda x: int((x == INF).sum()), "Softmax of -Inf alone": _all_masked},
        call=_square_of(tf.nn.softmax),
    ),
    Op(
        "LogSoftmax",
        {"LogSoftmax of +Inf": lambda x: int((x == INF).sum()), "LogSoftmax of -Inf alone": _all_masked},
        call=_square_of(tf.nn.log_softmax),
    ),
    Op(
        "SparseSoftmaxCrossEntropyWithLogits",
        {
            "SparseSoftmaxCrossEntropyWithLogits: the logit": lambda x: bool((x[[0, 3]] == -INF).any()),
            "SparseSoftmaxCrossEntropyWithLogits of +Inf": lambda x: bool((x == INF).any()),
            "SparseSoftmaxCrossEntropyWithLogits of -Inf": _all_masked,
        },
        call=_square_of(_sparse_loss),
    ),
    Op(
        "SoftmaxCrossEntropyWithLogits",
        {
            "SoftmaxCrossEntropyWithLogits: a masked logit": lambda x, y: (
                (bool((np.isinf(x) & (np.abs(y) < TINY)).any()) or _all_masked(x)) and no_inf(y)
            ),
            "SoftmaxCrossEntropyWithLogits: the logit of a label": lambda x, y: bool(((x == -INF) & (y > 0)).any()),
            "SoftmaxCrossEntropyWithLogits of": lambda x, y: _all_masked(x) or bool((x == INF).any()),
        },
        2,
        call=_dense_loss,
    ),
    Op("Cholesky", {"Cholesky: ": _is_singular}, values=MATRIX, call=_square_of(tf.linalg.cholesky)),
    Op("MatrixDeterminant", {"Overflow in MatrixDet": no_inf}, values=MATRIX, call=_square_of(tf.linalg.det)),
)


def arrays_of(op: Op) -> st.SearchStrategy[list[Array]]:
    """Generates tensors of few distinct values each, so that each combination of values occurs without others."""
    values = st.sampled_from(op.values + (SPECIAL if op.values is VALUES else ()))
    one = st.lists(values, min_size=1, max_size=3).flatmap(
        lambda few: st.lists(st.sampled_from(few), min_size=SIZE, max_size=SIZE)
    )
    return st.lists(one.map(lambda row: np.array(row, "float32")), min_size=op.num_inputs, max_size=op.num_inputs)


def check(op: Op, arrays: list[Array], result: Array) -> str | None:
    """Checks the explanation of one op. Returns the key of its claim, or None if there is no explanation."""
    inputs = {index: event_of(array.reshape(_shape(op, array))) for index, array in enumerate(arrays)}
    found = explain(Computed(output=event_of(result, op.name), inputs=inputs))
    if found is None:
        return None
    key = next((key for key in op.claims if found.sentence.startswith(key)), None)
    assert key is not None, found.sentence
    truth = op.claims[key](*arrays)
    assert truth, (found.sentence, arrays, result)
    stated = re.search(r": ([\d,]+) of \d+ elements", found.sentence)
    if stated is not None and not isinstance(truth, bool):
        num_taken_for_zero = int(((arrays[0] != 0) & small(arrays[0])).sum())
        assert truth - num_taken_for_zero <= int(stated[1]) <= truth, (found.sentence, arrays)
    return key


def _shape(op: Op, array: Array) -> tuple[int, ...]:
    return (2, 2) if "Softmax" in op.name else array.shape


@pytest.mark.parametrize("is_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("index", range(len(OPS)), ids=[op.name for op in OPS])
def test_explanations_are_true_of_the_inputs(index: int, is_function: bool) -> None:
    op = OPS[index]

    @settings(max_examples=NUM_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(arrays=arrays_of(op))
    def run(arrays: list[Array]) -> None:
        with np.errstate(all="ignore"):
            result = np.asarray(_function(index)(*arrays)) if is_function else op.run(arrays)
            check(op, arrays, result)

    run()


def test_the_explanation_of_a_gradient_op_names_its_forward_op() -> None:
    zero_root, infinite = np.array([0.0, 1.0], "float32"), np.array([INF, 1.0], "float32")
    computed = Computed(output=event_of(infinite, "Reciprocal"), inputs={0: event_of(zero_root)}, forward_type="Acos")
    found = explain(computed)
    assert found is not None
    assert found.sentence.startswith("The gradient of Acos divides by 0: 1 of 2 elements is 0")
    assert "tf.clip_by_value" in (found.repair or "")


def test_a_tensor_without_counts_is_not_explained() -> None:
    bad = replace(event_of(np.array([-INF], "float32"), "Log"), num_nan=None)
    assert explain(Computed(output=bad, inputs={0: event_of(np.zeros(1, "float32"))})) is None


def test_an_overflow_with_an_unrecorded_input_is_not_explained() -> None:
    infinite = event_of(np.array([INF], "float32"), "AddV2")
    half = {0: event_of(np.zeros(1, "float32"))}
    assert explain(Computed(output=infinite, inputs=half, is_complete=False)) is None


@pytest.mark.parametrize(
    ("op", "inputs", "sentence"),
    [
        ("ResourceApplyAdam", [], "ResourceApplyAdam wrote 1 NaN to a variable, and all its inputs are finite."),
        ("ResourceApplyAdam", [(1.0,)] * 8 + [(0.0,)], "ResourceApplyAdam: its epsilon is 0 in float32, so it divides"),
        ("ApplyAdam", [(1.0,)] * 8 + [(1e-8,)], None),
        ("FusedBatchNormV3", [(0.0, 1.0), (1.0,), (0.0,), (0.0,), (-1.0,)], "FusedBatchNorm: the only element is neg"),
        ("FusedBatchNormV3", [(5.0, 5.0), (1.0,), (0.0,), (), ()], "FusedBatchNorm: a channel has variance 0"),
        ("FusedBatchNormV3", [(1e30, 5.0), (1.0,), (0.0,), (), ()], None),
        ("Const", [], "Const: this constant of the program holds 1 NaN."),
        ("IteratorGetNext", [], "IteratorGetNext: the dataset returned 1 NaN."),
        ("Relu", [(1.0,)], None),
    ],
)
def test_explanations_of_ops_that_are_not_elementwise(
    op: str, inputs: list[tuple[float, ...]], sentence: str | None
) -> None:
    given = {index: event_of(np.array(values, "float32")) for index, values in enumerate(inputs)}
    output = event_of(np.array([float("nan")], "float32"), op)
    found = explain(Computed(output=output, inputs=given))
    assert (found is None) == (sentence is None)
    assert found is None or found.sentence.startswith(sentence or "")
