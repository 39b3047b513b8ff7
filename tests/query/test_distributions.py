"""Test `distributions` against a plain computation over the elements, and on damaged and unmeasured rows."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import Column, Distributions, distributions, open_logdir
from tfdbg_arrow.query.present.html import MAX_BYTES
from tfdbg_arrow.writer.native.reference import count_histogram

from .builder import RunBuilder, counts, counts_of

LAYERS = (None, "enc", "enc/a", "enc/ab", "dec")
ELEMENTS = st.lists(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1.5, 3e5, -1e-6, 1e-310, 1.7e308, math.nan, math.inf, -math.inf]), max_size=6
)


def measured(elements: list[float], *, has_histogram: bool = True) -> dict[str, Any]:
    """Returns the columns of a float64 tensor."""
    columns = counts_of(elements)
    if has_histogram:
        found = count_histogram(np.array(elements, np.float64))
        columns |= {
            "histogram_exponent": found.exponent,
            "histogram_negative": list(found.negative),
            "histogram_positive": list(found.positive),
        }
    return {**columns, "dtype": "float64"}


@dataclasses.dataclass
class Tensor:
    """A tensor for the plain computation."""

    op: int
    step: int | None
    elements: list[float]
    has_histogram: bool


TENSORS = st.lists(
    st.builds(Tensor, st.integers(0, 4), st.sampled_from([None, -2, 0, 1, 7]), ELEMENTS, st.booleans()), max_size=12
)


def write(path: Path, tensors: list[Tensor]) -> Path:
    run = RunBuilder("run-a", tensor_debug_mode="FULL_HEALTH")
    graph = run.graph("f")
    for op, layer in enumerate(LAYERS):
        graph.op(f"x{op}", "Mul", layer=layer)
    for tensor in tensors:
        run.tensor(
            graph,
            f"x{tensor.op}",
            {**measured(tensor.elements, has_histogram=tensor.has_histogram), "step": tensor.step},
        )
    return run.write(path)


def plain(tensors: list[Tensor]) -> dict[int, Counter[object]]:
    """Returns the expected numbers of each step: elements by sign and power of two, and elements in no bucket."""
    steps: dict[int, Counter[object]] = {}
    for tensor in tensors:
        if tensor.step is None:
            continue
        found = steps.setdefault(tensor.step, Counter())
        for element in tensor.elements if tensor.has_histogram else ():
            if element == 0 or not math.isfinite(element):
                found[str(abs(element)) if element == 0 else str(element)] += 1
            else:
                found[math.copysign(1, element), math.frexp(element)[1] - 1] += 1
        found["tensors"] += tensor.has_histogram
        found["without"] += not tensor.has_histogram
    return steps


def by_step(found: Distributions) -> dict[int, Counter[object]]:
    """Returns an answer in the form that `plain` returns."""
    assert found.bucket_width == 1
    steps: dict[int, Counter[object]] = {}
    for index, column in enumerate(found.columns):
        assert column.first == column.last
        of_step: Counter[object] = Counter()
        for sign, of_columns in ((-1.0, found.negative), (1.0, found.positive)):
            of_step.update({(sign, e): number for e, number in zip(found.exponents, of_columns[index], strict=True)})
        named = {"0.0": found.num_zero, "nan": found.num_nan, "-inf": found.num_neg_inf, "inf": found.num_pos_inf}
        of_step.update({name: of_columns[index] for name, of_columns in named.items()})
        of_step["tensors"] = found.num_tensors[index]
        steps[column.first] = of_step
        assert found.num_elements(index) == sum(of_step.values()) - of_step["tensors"]
    return steps


@pytest.mark.slow
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensors=TENSORS, chosen=st.sets(st.integers(0, 4), min_size=1))
def test_the_sums_are_those_of_the_elements(
    tmp_path_factory: pytest.TempPathFactory, tensors: list[Tensor], chosen: set[int]
) -> None:
    path = write(tmp_path_factory.mktemp("log"), tensors)
    pattern = "|".join(f"x{op}" for op in sorted(chosen))
    selected = [tensor for tensor in tensors if tensor.op in chosen]
    if not selected:
        with pytest.raises(QueryError, match="no recorded tensor"):
            distributions(path, pattern)
        return
    found = distributions(path, pattern, max_buckets=3000)
    expected = plain(selected)
    # Without steps, the columns are executions. The graph tensors of this run have no execution.
    if not expected:
        assert (found.axis, found.columns) == ("execution", ())
        return
    assert found.axis == "step"
    steps = by_step(found)
    assert sum(of_step["without"] for of_step in expected.values()) == found.num_without
    for step, of_step in expected.items():
        del of_step["without"]
        assert +steps.pop(step) == +of_step
    assert not any(of_step.total() for of_step in steps.values()), "steps without tensors have no counts"
    used = [key[1] for of_step in expected.values() for key in of_step if isinstance(key, tuple)]
    assert found.exponents == (tuple(range(min(used), max(used) + 1)) if used else ())


@pytest.mark.parametrize(
    ("arguments", "ops"),
    [
        ({"pattern": "x1"}, {1}),
        ({"pattern": "x"}, set()),
        ({"pattern": "x[12]:0"}, {1, 2}),
        ({"pattern": "Mul"}, {0, 1, 2, 3, 4}),
        ({"layer": "enc"}, {1, 2, 3}),
        ({"layer": "enc/a"}, {2}),
        ({"layer": "enc", "side": "forward"}, {1, 2, 3}),
        ({"layer": "enc", "side": "gradient"}, set()),
        ({"layer": "enc", "pattern": "x[24]"}, {2}),
        ({}, {0, 1, 2, 3, 4}),
    ],
)
def test_selections(tmp_path: Path, arguments: dict[str, Any], ops: set[int]) -> None:
    path = write(tmp_path, [Tensor(op, 0, [2.0**op], True) for op in range(5)])
    if not ops:
        with pytest.raises(QueryError, match="no recorded tensor"):
            distributions(path, **arguments)
        return
    found = distributions(path, **arguments)
    assert {e for e, number in zip(found.exponents, found.positive[0], strict=True) if number} == ops


def test_columns_and_buckets_can_cover_several_steps_and_powers(tmp_path: Path) -> None:
    path = write(tmp_path, [Tensor(0, step, [2.0**step, -(2.0**-step)], True) for step in range(10)])
    found = distributions(path, max_columns=3, max_buckets=5, positions=(2, 8))
    assert [(column.first, column.last) for column in found.columns] == [(2, 3), (4, 5), (6, 7)]
    # The 15 powers from 2**-7 to 2**7 are in 5 buckets.
    assert (found.exponents, found.bucket_width) == ((-7, -4, -1, 2, 5), 3)
    assert found.bounds(4) == (32.0, 256.0)
    assert found.positive == ((0, 0, 0, 2, 0), (0, 0, 0, 1, 1), (0, 0, 0, 0, 2))
    assert found.negative == ((0, 2, 0, 0, 0), (1, 1, 0, 0, 0), (2, 0, 0, 0, 0))


def test_the_greatest_bucket_has_no_end(tmp_path: Path) -> None:
    found = distributions(write(tmp_path, [Tensor(0, 0, [1.7e308], True)]))
    assert found.bounds(0) == (2.0**1023, math.inf)


def test_eager_tensors_without_steps_have_executions_as_columns(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    for index in range(3):
        run.eager(run.execution("Add"), measured([2.0**index]), tensor_id=index)
    found = distributions(run.write(tmp_path), "Add")
    assert (found.axis, found.num_tensors, found.exponents) == ("execution", (1, 1, 1), (0, 1, 2))


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ([Tensor(0, 0, [1.0, 1.5, 100.0], True)], "The median magnitude was about 1.4 in step 0."),
        (
            [Tensor(0, 0, [0.1], True), Tensor(0, 4, [1e9, math.inf], True), Tensor(0, 5, [math.nan], True)],
            (
                "The median magnitude was about 0.088 in step 0 and about 7.6e+08 in step 4; the first infinity "
                "came in step 4; the first NaN came in step 5."
            ),
        ),
        ([Tensor(0, 0, [1.0], False)], "No histogram was recorded."),
        ([Tensor(0, 0, [0.0], True)], "No element is finite and not zero."),
    ],
)
def test_a_sentence_says_what_happened(tmp_path: Path, tensors: list[Tensor], sentence: str) -> None:
    found = distributions(write(tmp_path, tensors))
    assert found.sentence == sentence
    assert sentence in repr(found)
    assert len(found._repr_html_().encode()) <= MAX_BYTES


def test_runs_without_histograms_are_counted() -> None:
    golden = Path(__file__).parents[1] / "compat" / "golden" / "2.3"
    without = distributions(golden / "imported")
    assert not without.is_known
    assert without.num_without > 0
    assert without.exponents == ()
    recorded = distributions(golden / "full_numerics")
    assert recorded.is_known


def test_damaged_histograms_are_bounded(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Mul")
    for exponent, negative, positive in (
        (-(2**31), [1], [1]),
        (2**31 - 1, [1] * 3, [1]),
        (1023, [1] * 5000, [2]),
        (0, [1, 1], []),
        (None, [1], [1]),
        (3, None, None),
    ):
        histogram = {"histogram_exponent": exponent, "histogram_negative": negative, "histogram_positive": positive}
        run.tensor(graph, "x", {**counts(pos=1), **histogram, "step": 0})
    found = distributions(run.write(tmp_path), max_buckets=3000)
    assert (found.exponents[0], found.exponents[-1]) == (0, 1023)
    assert (found.negative[0][0], found.negative[0][1], found.negative[0][-1]) == (1, 1, 1)
    assert (sum(found.positive[0]), found.positive[0][-1]) == (2, 2)


def test_arguments_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [Tensor(0, 0, [1.0], True)])
    for arguments, message in (
        ({"pattern": "("}, "not a valid regular expression"),
        ({"side": "forward"}, "side is 'forward' and layer is None; expected `forward` or `gradient`, of a layer"),
        ({"layer": "enc", "side": "back"}, "side is 'back'"),
        ({"max_columns": 0}, "max_columns is 0"),
        ({"max_buckets": 0}, "max_buckets is 0; expected 1 or more"),
        ({"run_id": "run-x"}, "run 'run-x' is not in"),
        ({"pattern": "x00"}, "no recorded tensor of run run-a matches the pattern 'x00'; similar names: x0"),
        ({"pattern": "typo"}, "matches the pattern 'typo'.$"),
        ({"layer": "typo", "side": "gradient"}, "belongs to the layer or role 'typo' and is on the side 'gradient'.$"),
    ):
        with pytest.raises(QueryError, match=message):
            distributions(path, **arguments)  # type: ignore[arg-type]


def test_an_open_logdir_and_columns_without_tensors(tmp_path: Path) -> None:
    path = write(tmp_path, [Tensor(0, 0, [1.0], True), Tensor(0, 2, [1.0], True)])
    with open_logdir(path) as logdir:
        found = logdir.distributions("x0", run_id="run-a")
        assert found == distributions(logdir, "x0")
    assert found.columns[1] == Column(first=1, last=1, first_event_index=None, last_event_index=None)
    assert (found.num_tensors, found.positive) == ((1, 0, 1), ((1,), (0,), (1,)))
