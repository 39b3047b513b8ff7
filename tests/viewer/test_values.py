"""Test the elements of a tensor as a table and as a histogram."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.query.values import Histogram, TensorValues, count_elements, read_histogram, read_values
from tfdbg_arrow.schema.dtypes import encode_strings
from tfdbg_arrow.viewer.charts import bars, histogram_text

from ..query.builder import CLEAN, RunBuilder
from .serving import serving

NAN, INF = float("nan"), float("inf")


def keep(path: Path, value: bytes, *, dtype: str, shape: tuple[int, ...]) -> Path:
    """Writes a run with the elements of one tensor, at event 0."""
    run = RunBuilder("run-a", tensor_debug_mode="FULL_TENSOR")
    event = run.tensor(run.graph("f").op("x", "Mul"), "x", CLEAN)
    run.add("tensor_value", event_index=event, dtype=dtype, shape=list(shape), value=value)
    return run.write(path)


def values(path: Path, array: npt.NDArray[Any], **arguments: Any) -> TensorValues:
    keep(path, array.tobytes(), dtype=str(array.dtype), shape=array.shape)
    with open_logdir(path) as logdir:
        found = read_values(logdir, 0, run_id="run-a", **arguments)
    assert found is not None
    return found


def cells(found: TensorValues) -> list[tuple[tuple[int, ...], tuple[object, ...]]]:
    assert found.rows is not None
    return [(row.index, row.elements) for row in found.rows]


def test_a_vector_continues_in_the_next_row(tmp_path: Path) -> None:
    found = values(tmp_path, np.arange(23, dtype="int32"), at=(12,))
    assert (found.num_rows, found.num_columns, found.first_row) == (3, 10, 1)
    assert cells(found) == [((10,), tuple(range(10, 20))), ((20,), (20, 21, 22))]


def test_a_matrix_is_paged_along_both_dimensions(tmp_path: Path) -> None:
    found = values(tmp_path, np.arange(300.0).reshape(20, 15), at=(18, 13), num_rows=5)
    assert cells(found) == [((18, 13), (283.0, 284.0)), ((19, 13), (298.0, 299.0))]
    assert (found.num_rows, found.num_columns, list(found.columns)) == (20, 15, [13, 14])


def test_rows_of_higher_ranks_have_full_indices(tmp_path: Path) -> None:
    array = np.arange(2 * 3 * 4, dtype="float16").reshape(2, 3, 4)
    found = values(tmp_path, array, at=(0, 2), num_rows=2)
    assert cells(found) == [((0, 2, 0), (8, 9, 10, 11)), ((1, 0, 0), (12, 13, 14, 15))]
    assert found.index_at(4, 3) == (1, 1, 3)


@pytest.mark.parametrize(
    ("shape", "expected"), [((), [((), (7.0,))]), ((0,), []), ((2, 0), []), ((0, 3), []), ((1, 1), [((0, 0), (7.0,))])]
)
def test_small_shapes(shape: tuple[int, ...], expected: object, tmp_path: Path) -> None:
    assert cells(values(tmp_path, np.full(shape, 7.0))) == expected


@pytest.mark.parametrize(
    ("dtype", "value", "elements"),
    [
        ("bfloat16", b"\x80\x3f\x00\xc0", (1.0, -2.0)),
        ("bool", b"\x01\x00", (True, False)),
        ("string", encode_strings([b"a", b"\xff"]), ("a", "\\xff")),
        ("complex64", np.array([1 + 2j, -1j], "complex64").tobytes(), (1 + 2j, -1j)),
        ("variant", b"?", None),
        ("float8_e5m2", b"?\xfc", (1.75, -math.inf)),
        ("float8_e4m3fnuz", b"\x40\x38", (1.0, 0.5)),
        ("int4", b"??", None),
    ],
)
def test_elements_of_every_kind(dtype: str, value: bytes, elements: object, tmp_path: Path) -> None:
    path = keep(tmp_path, value, dtype=dtype, shape=(2,))
    with open_logdir(path) as logdir:
        found = read_values(logdir, 0, run_id="run-a")
        assert found is not None
        assert found.rows == (None if elements is None else found.rows)
        assert elements is None or cells(found) == [((0,), elements)]
        assert (read_histogram(logdir, 0, run_id="run-a") is None) == (dtype in ("string", "variant", "int4"))


@pytest.mark.parametrize("at", [(2,), (0, 3), (0, 0, 0)])
def test_the_error_for_a_missing_element(at: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(
        QueryError, match=rf"there is no element \[{', '.join(map(str, at))}\] in a tensor of the shape"
    ):
        values(tmp_path, np.zeros((2, 3)), at=at)


def counted(histogram: Histogram) -> list[tuple[float, float, int]]:
    return [(bin_.low, bin_.high, bin_.num_elements) for bin_ in histogram.bins]


def test_a_histogram_of_floats_counts_nonfinite_elements_separately() -> None:
    histogram = count_elements(np.array([0.0, 0.4, 1.0, 2.0, NAN, NAN, INF, -INF], "float32"), num_bins=4)
    assert counted(histogram) == [(0.0, 0.5, 2), (0.5, 1.0, 0), (1.0, 1.5, 1), (1.5, 2.0, 1)]
    assert (histogram.num_nan, histogram.num_pos_inf, histogram.num_neg_inf, histogram.num_finite) == (2, 1, 1, 4)
    assert histogram_text(histogram) == (
        "8 elements, 4 finite from 0 to 2, most (2) at 0 to 0.5; 2 NaN; 1 -Inf; 1 +Inf"
    )
    found = bars(histogram)
    assert [bar.kind for bar in found] == ["neg-inf", *["finite"] * 4, "pos-inf", "nan"]
    assert [bar.height for bar in found] == [50, 100, 0, 50, 50, 50, 100]
    ends = [bar.start + bar.width for bar in found]
    assert all(end <= bar.start for end, bar in zip(ends, found[1:], strict=False))
    assert ends[-1] <= 100


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([True, False, True]), [(0, 0, 1), (1, 1, 2)]),
        (np.array([-1, 1, 1], "int8"), [(-1, -1, 1), (0, 0, 0), (1, 1, 2)]),
        (np.array([0, 2**64 - 1], "uint64"), [(0, 2.0**63, 1), (2.0**63, 2.0**64, 1)]),
        (np.array([5.0, 5.0]), [(5, 5, 2)]),
        (np.array([3 + 4j, complex(0, INF), complex(NAN, 0)]), [(5, 5, 1)]),
        (np.array([-1.7e308, 1.7e308]), [(-1.7e308, 0, 1), (0, 1.7e308, 1)]),
        (np.array([1e-45, 3e-45], "float32"), [(1.4012984643e-45, 2.1e-45, 1), (2.1e-45, 2.8025969286e-45, 1)]),
        (np.array([NAN]), []),
        (np.array([], "float16"), []),
    ],
    ids=str,
)
def test_histogram_bins(array: npt.NDArray[Any], expected: list[tuple[float, float, int]]) -> None:
    found = counted(count_elements(array, num_bins=40 if array.dtype.kind in "bi" else 2))
    assert [num for _, _, num in found] == [num for _, _, num in expected]
    assert [low for low, _, _ in found] == pytest.approx([low for low, _, _ in expected], rel=1e-6)
    assert [high for _, high, _ in found] == pytest.approx([high for _, high, _ in expected], rel=1e-6)


def test_the_histogram_of_a_large_tensor_counts_the_first_elements(tmp_path: Path) -> None:
    path = keep(tmp_path, np.arange(100.0).tobytes(), dtype="float64", shape=(100,))
    with open_logdir(path) as logdir:
        histogram = read_histogram(logdir, 0, run_id="run-a", max_bytes=80)
    assert histogram is not None
    assert (histogram.num_counted, histogram.num_elements, histogram.num_finite) == (10, 100, 10)
    assert histogram_text(histogram).startswith("the first 10 of 100 elements, 10 finite from 0 to 9")


def test_the_page_links_the_blocks_of_a_large_tensor(tmp_path: Path) -> None:
    array = np.arange(30 * 12, dtype="float32").reshape(30, 12)
    array[29, 11] = NAN
    path = keep(tmp_path, array.tobytes(), dtype="float32", shape=array.shape)
    with serving(path) as served:
        text = served.ask("/tensor?event=0").text
        assert "Histogram: 360 elements, 359 finite from 0 to 358" in text
        assert "values_at=20%2C0#values" in text
        assert "values_at=0%2C10#values" in text
        last = served.ask("/tensor?event=0&values_at=29,%2010").text
        assert '<td class="num">358</td><td class="num is-bad">nan</td>' in last
        assert served.ask("/tensor.json?event=0&values_at=30,0").json["error"]["status"] == 400
        assert "expected a whole number" in served.ask("/tensor.json?event=0&values_at=x").json["error"]["message"]
