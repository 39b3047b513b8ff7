"""The health kernels give the same results as their NumPy twin, for every bit pattern, size and alignment."""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdbg_arrow.writer.native import reference
from tfdbg_arrow.writer.native.reference import BadPlace, HealthSummary, HistogramSummary

from .magnitudes import RELATIVE_TOLERANCE, NumericsSummary, measure

try:
    core: Any = importlib.import_module("tfdbg_arrow.writer.native._core")
except ImportError:
    core = None

Array = np.ndarray[Any, np.dtype[Any]]
Bytes = npt.NDArray[np.uint8]

native = pytest.mark.skipif(
    core is None, reason="the native core is not built; install tfdbg_arrow with a C++17 compiler"
)

EXPONENT_AND_MANTISSA_BITS = {
    "float16": (5, 10),
    "bfloat16": (8, 7),
    "float32": (8, 23),
    "float64": (11, 52),
    "float8_e5m2": (5, 2),
    "float8_e4m3fn": (4, 3),
    "float8_e4m3fnuz": (4, 3),
    "float8_e4m3b11fnuz": (4, 3),
    "float8_e5m2fnuz": (5, 2),
}
FLOATS = sorted(EXPONENT_AND_MANTISSA_BITS)
COMPLEX_PARTS = {"complex64": "float32", "complex128": "float64"}
DTYPES = sorted(reference.TENSORFLOW_DTYPES)

# Kernels work on vectors of 16, 32 or 64 bytes, rows of 4 vectors and blocks of 252 rows. Kernels measure elements in
# blocks of 2048 and rows of 16, and complex elements in blocks of 65536. A histogram has one counter for each index for
# fewer than 512 elements, and several counters for each index otherwise. A histogram's kernel looks for subnormal
# elements in blocks of 64.
VECTORS = [vectors * bytes_ for bytes_ in (16, 32, 64) for vectors in (1, 4, 252, 504)]


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def edge_sizes(name: str) -> list[int]:
    """Returns each size at which a kernel changes from one loop to the next, and the sizes directly below and above."""
    edges = {edge // dtype_of(name).itemsize for edge in VECTORS} | {16, 64, 512, 2048, 4096}
    if name in COMPLEX_PARTS:
        edges.add(65536)
    return sorted({max(0, edge + step) for edge in edges for step in (-1, 0, 1)})


def telling_patterns(name: str) -> Array:
    """Returns zeros, least and greatest subnormals and normals, infinities, quiet and signalling NaNs of both signs."""
    exponent_bits, mantissa_bits = EXPONENT_AND_MANTISSA_BITS[name]
    top, quiet, full = (1 << exponent_bits) - 1, 1 << (mantissa_bits - 1), (1 << mantissa_bits) - 1
    patterns = [
        sign << (exponent_bits + mantissa_bits) | exponent << mantissa_bits | mantissa
        for sign in (0, 1)
        for exponent in (0, 1, top >> 1, top - 1, top)
        for mantissa in (0, 1, quiet, quiet | 1, full - 1, full)
    ]
    return np.array(patterns, dtype=f"u{dtype_of(name).itemsize}").view(dtype_of(name))


def make_tensor(name: str, *, size: int, mix: str, seed: int) -> Array:
    """Returns `size` elements: any bit patterns, only telling patterns, or healthy numbers with one telling pattern."""
    random, dtype = np.random.default_rng(seed), dtype_of(name)
    if dtype.kind == "b":
        return random.integers(0, 2, size).astype(np.bool_)
    part = dtype_of(COMPLEX_PARTS.get(name, name))
    count = size * dtype.itemsize // part.itemsize
    if mix == "any" or (part.kind in "iu" and mix == "healthy but one"):
        return random.integers(0, 256, size * dtype.itemsize, dtype=np.uint8).view(dtype)
    if part.kind in "iu":
        limits = np.iinfo(part)
        return random.choice(np.array([limits.min, limits.max, 0, 1], part), count)
    telling = random.choice(telling_patterns(part.name).view(f"u{part.itemsize}"), count)
    if mix == "telling":
        return telling.view(dtype)
    parts = random.standard_normal(count).astype(np.float32).astype(part).view(f"u{part.itemsize}")
    if count:
        index = random.integers(count)
        parts[index] = telling[index]
    return parts.view(dtype)


def to_bytes(array: Array, *, offset: int = 0) -> Bytes:
    """Returns the bytes of the elements, stored `offset` bytes after an aligned address."""
    room = np.empty(array.nbytes + offset + 64, np.uint8)
    start = -room.ctypes.data % 64 + offset
    taken = room[start : start + array.nbytes]
    taken[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return taken


def native_summary(array: Array, *, offset: int = 0) -> HealthSummary:
    return HealthSummary(
        *core.count_health(reference.TENSORFLOW_DTYPES[array.dtype.name], to_bytes(array, offset=offset))
    )


def native_measures(array: Array, *, offset: int = 0) -> tuple[HealthSummary, NumericsSummary]:
    numbers = core.measure(reference.TENSORFLOW_DTYPES[array.dtype.name], to_bytes(array, offset=offset))
    return HealthSummary(*numbers[:6]), NumericsSummary(*numbers[6:])


def native_histogram(array: Array, *, offset: int = 0) -> HistogramSummary:
    number = reference.TENSORFLOW_DTYPES[array.dtype.name]
    exponent, negative, positive = core.count_histogram(number, to_bytes(array, offset=offset))
    return HistogramSummary(exponent if negative else None, tuple(negative), tuple(positive))


def native_place(array: Array) -> BadPlace | None:
    """Returns the place that the core finds in a bad array; None if the core counts no bad element."""
    if not any(vars(native_summary(array))[name] for name in ("num_neg_inf", "num_pos_inf", "num_nan")):
        return None
    slice_size = array.size // len(array) if array.ndim else array.size
    first, num_slices = core.find_bad(reference.TENSORFLOW_DTYPES[array.dtype.name], to_bytes(array), slice_size)
    return BadPlace(first, num_slices if array.ndim else None)


def assert_same(measured: NumericsSummary, expected: NumericsSummary) -> None:
    """Asserts that both results are equal, within the documented tolerance of mean and stddev."""
    tolerance = max(RELATIVE_TOLERANCE * expected.max_abs, 5e-324)
    assert abs(measured.mean - expected.mean) <= tolerance, (measured, expected)
    assert abs(measured.stddev - expected.stddev) <= tolerance, (measured, expected)
    for field in ("num_subnormal", "min", "max", "max_abs", "any_finite", "ordered"):
        assert getattr(measured, field) == getattr(expected, field), (field, measured, expected)


def assert_native_agrees(array: Array, *, offset: int = 0) -> None:
    """Asserts that all native kernels agree with the twin, and that each element is counted as one kind."""
    expected = reference.summarize(array)
    counts, numerics = native_measures(array, offset=offset)
    assert native_summary(array, offset=offset) == expected
    assert counts == expected
    assert sum(vars(expected).values()) == array.size
    assert_same(numerics, measure(array))
    if array.dtype.name in reference.HISTOGRAM_DTYPES:
        histogram = native_histogram(array, offset=offset)
        assert histogram == reference.count_histogram(array)
        assert sum(histogram.negative) == expected.num_neg_finite
        assert sum(histogram.positive) == expected.num_pos_finite


class TestTwin:
    """The twin, on values that a reader can check."""

    @pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "float8_e5m2"])
    def test_counts_each_kind_of_float(self, name: str) -> None:
        values = np.array([-np.inf, np.inf, np.inf, np.nan, -np.nan, np.nan, -2.0, -0.0, 0.0, 1.0], dtype_of(name))
        assert reference.summarize(values) == HealthSummary(1, 2, 3, 1, 2, 1)

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            # Patterns 0x00 to 0xff: how many are infinite, NaN, negative, zero, positive.
            ("float8_e5m2", HealthSummary(1, 1, 6, 123, 2, 123)),
            ("float8_e4m3fn", HealthSummary(0, 0, 2, 126, 2, 126)),
            ("float8_e4m3fnuz", HealthSummary(0, 0, 1, 127, 1, 127)),
            ("float8_e4m3b11fnuz", HealthSummary(0, 0, 1, 127, 1, 127)),
            ("float8_e5m2fnuz", HealthSummary(0, 0, 1, 127, 1, 127)),
        ],
    )
    def test_counts_all_patterns_of_each_float8(self, name: str, expected: HealthSummary) -> None:
        assert reference.summarize(np.arange(256, dtype=np.uint8).view(dtype_of(name))) == expected

    @pytest.mark.parametrize("name", FLOATS)
    def test_a_subnormal_number_is_finite_and_keeps_its_sign(self, name: str) -> None:
        _, mantissa_bits = EXPONENT_AND_MANTISSA_BITS[name]
        patterns = np.array([1, 2**mantissa_bits - 1, 2**mantissa_bits], f"u{dtype_of(name).itemsize}")
        values = patterns.view(dtype_of(name))
        assert reference.summarize(values) == HealthSummary(0, 0, 0, 0, 0, 3)
        assert measure(values).num_subnormal == 2
        assert reference.summarize(-values) == HealthSummary(0, 0, 0, 3, 0, 0)
        assert measure(-values).num_subnormal == 2

    @pytest.mark.parametrize(
        ("value", "kind"),
        [
            (complex(np.nan, -np.inf), "num_nan"),
            (complex(0, np.nan), "num_nan"),
            (complex(np.inf, -np.inf), "num_neg_inf"),
            (complex(1, -np.inf), "num_neg_inf"),
            (complex(-np.inf, 1), "num_neg_inf"),
            (complex(-1, np.inf), "num_pos_inf"),
            (complex(np.inf, 0), "num_pos_inf"),
            (complex(0.0, -0.0), "num_zero"),
            (complex(-0.0, 0.0), "num_zero"),
            (complex(-1, 5), "num_neg_finite"),
            (complex(1, -5), "num_pos_finite"),
            (complex(-0.0, 5), "num_pos_finite"),
            (complex(0.0, -5), "num_neg_finite"),
        ],
    )
    def test_a_complex_element_is_one_element(self, value: complex, kind: str) -> None:
        for name in COMPLEX_PARTS:
            summary = vars(reference.summarize(np.array([value], dtype_of(name))))
            assert summary == {field: int(field == kind) for field in summary}

    def test_integers_and_bools_are_negative_zero_or_positive(self) -> None:
        assert reference.summarize(np.array([-3, 0, 0, 9], np.int64)) == HealthSummary(0, 0, 0, 1, 2, 1)
        assert reference.summarize(np.array([0, 2**64 - 1], np.uint64)) == HealthSummary(0, 0, 0, 0, 1, 1)
        assert reference.summarize(np.array([True, False, True])) == HealthSummary(0, 0, 0, 0, 1, 2)

    def test_measures_the_finite_elements(self) -> None:
        values = np.array([[np.nan, 1.0, 2.0], [3.0, -4.0, np.inf]])
        stddev = math.sqrt((0.5**2 + 1.5**2 + 2.5**2 + 4.5**2) / 4)
        assert measure(values) == NumericsSummary(0, -4.0, 3.0, 0.5, stddev, 4.0, any_finite=True, ordered=True)

    def test_measures_the_largest_modulus_of_complex_elements(self) -> None:
        values = np.array([3 + 4j, complex(np.inf, 0), -1j], np.complex64)
        assert measure(values) == NumericsSummary(0, 0.0, 0.0, 0.0, 0.0, 5.0, any_finite=True, ordered=False)

    @pytest.mark.parametrize("values", [[], [np.nan, np.inf, -np.inf]])
    def test_without_finite_elements_there_is_no_magnitude(self, values: list[float]) -> None:
        expected = NumericsSummary(0, 0.0, 0.0, 0.0, 0.0, 0.0, any_finite=False, ordered=False)
        assert measure(np.array(values, np.float32)) == expected

    def test_neither_sum_nor_squares_overflow(self) -> None:
        most = float(np.finfo(np.float64).max)
        same, opposite = measure(np.array([most, most])), measure(np.array([most, -most]))
        assert (same.mean, same.stddev) == (most, 0.0)
        assert (opposite.mean, opposite.stddev) == (0.0, most)

    def test_squares_do_not_underflow(self) -> None:
        assert measure(np.array([1e-300, -1e-300])).stddev == pytest.approx(1e-300, rel=1e-15)

    def test_finds_the_first_bad_element_and_counts_the_bad_slices(self) -> None:
        values = np.zeros((4, 3), np.float32)
        assert reference.find_bad(values) is None
        values[1, 2], values[3, 0], values[3, 1] = -np.inf, np.nan, np.nan
        assert reference.find_bad(values) == BadPlace(5, 2)
        assert reference.find_bad(np.array(np.inf)) == BadPlace(0, None)

    def test_a_histogram_counts_powers_of_two_of_each_sign(self) -> None:
        values = np.array([1.0, 1.999, 2.0, -3.0, 0.25, 0.0, -0.0, np.nan, np.inf, -np.inf], np.float32)
        assert reference.count_histogram(values) == HistogramSummary(-2, (0, 0, 0, 1), (1, 0, 2, 1))

    @pytest.mark.parametrize("name", FLOATS)
    def test_a_histogram_has_subnormal_numbers_in_their_true_bucket(self, name: str) -> None:
        _, mantissa_bits = EXPONENT_AND_MANTISSA_BITS[name]
        patterns = np.array([1, 2, 3, 2**mantissa_bits - 1, 2**mantissa_bits], f"u{dtype_of(name).itemsize}")
        values = patterns.view(dtype_of(name))
        least = math.frexp(float(values[0]))[1] - 1
        counts = [0] * (mantissa_bits + 1)
        for bucket in (0, 1, 1, mantissa_bits - 1, mantissa_bits):
            counts[bucket] += 1
        nothing = (0,) * len(counts)
        assert reference.count_histogram(values) == HistogramSummary(least, nothing, tuple(counts))
        assert reference.count_histogram(-values) == HistogramSummary(least, tuple(counts), nothing)

    @pytest.mark.parametrize("values", [[], [0.0, -0.0, np.nan, np.inf, -np.inf]])
    def test_without_finite_elements_other_than_zero_a_histogram_has_no_buckets(self, values: list[float]) -> None:
        assert reference.count_histogram(np.array(values, np.float32)) == HistogramSummary(None, (), ())

    @pytest.mark.parametrize("name", ["int32", "bool", "complex64"])
    def test_other_dtypes_have_no_histogram(self, name: str) -> None:
        with pytest.raises(TypeError, match=f"dtype {name} has no histogram; expected one of float32, "):
            reference.count_histogram(np.zeros(1, name))

    def test_other_dtypes_raise_an_error(self) -> None:
        with pytest.raises(TypeError, match="The health of dtype datetime64"):
            reference.summarize(np.array(["2026-01-01"], "datetime64[D]"))


@native
@pytest.mark.parametrize("name", sorted(set(DTYPES) - set(reference.HISTOGRAM_DTYPES)))
def test_the_core_has_no_histogram_of_other_dtypes(name: str) -> None:
    with pytest.raises(ValueError, match="the dtype has no histogram"):
        core.count_histogram(reference.TENSORFLOW_DTYPES[name], np.zeros(16, np.uint8))


@native
class TestAgainstTwin:
    """The native kernels agree with the twin."""

    @settings(deadline=None, max_examples=60)
    @given(data=st.data(), mix=st.sampled_from(["any", "telling", "healthy but one"]), seed=st.integers(0, 2**32))
    @pytest.mark.parametrize("name", DTYPES)
    def test_on_tensors_of_any_size_and_alignment(self, name: str, data: st.DataObject, mix: str, seed: int) -> None:
        size = data.draw(st.integers(0, 140) | st.sampled_from(edge_sizes(name)), label="size")
        offset = data.draw(st.integers(0, 63), label="offset")
        assert_native_agrees(make_tensor(name, size=size, mix=mix, seed=seed), offset=offset)

    @settings(deadline=None, max_examples=60)
    @given(
        shape=st.lists(st.integers(0, 9), max_size=4) | st.tuples(st.integers(1, 300), st.integers(1, 300)),
        mix=st.sampled_from(["any", "telling", "healthy but one"]),
        seed=st.integers(0, 2**32),
    )
    @pytest.mark.parametrize("name", DTYPES)
    def test_on_the_places_of_bad_elements(self, name: str, shape: Sequence[int], mix: str, seed: int) -> None:
        array = make_tensor(name, size=math.prod(shape), mix=mix, seed=seed).reshape(shape)
        assert native_place(array) == reference.find_bad(array)

    @settings(deadline=None, max_examples=20)
    @given(mix=st.sampled_from(["any", "telling"]), seed=st.integers(0, 2**32))
    @pytest.mark.parametrize("name", reference.HISTOGRAM_DTYPES)
    def test_on_the_values_of_scalars(self, name: str, mix: str, seed: int) -> None:
        number = reference.TENSORFLOW_DTYPES[name]
        for element in make_tensor(name, size=50, mix=mix, seed=seed):
            array = np.array(element)
            value = core.read_scalar(number, to_bytes(array))
            assert repr(value) == repr(reference.scalar_value(array))

    @settings(deadline=None)
    @given(data=st.data())
    @pytest.mark.parametrize("name", [name for name in DTYPES if name != "bool"])
    def test_on_any_few_bytes(self, name: str, data: st.DataObject) -> None:
        itemsize = dtype_of(name).itemsize
        size = data.draw(st.integers(0, 6), label="size")
        raw = data.draw(st.binary(min_size=size * itemsize, max_size=size * itemsize), label="bytes")
        assert_native_agrees(np.frombuffer(raw, dtype_of(name)))

    @pytest.mark.parametrize("mix", ["any", "telling", "healthy but one"])
    @pytest.mark.parametrize("name", DTYPES)
    def test_at_every_edge(self, name: str, mix: str) -> None:
        for size in edge_sizes(name):
            assert_native_agrees(make_tensor(name, size=size, mix=mix, seed=size), offset=size % 7)

    @pytest.mark.parametrize("name", ["float16", "bfloat16"])
    def test_on_all_16_bit_patterns(self, name: str) -> None:
        patterns = np.arange(65536, dtype=np.uint16).view(dtype_of(name))
        assert_native_agrees(patterns)
        for start in range(0, 65536, 256):
            assert_native_agrees(patterns[start : start + 256])

    @pytest.mark.parametrize("name", [name for name in FLOATS if name.startswith("float8")])
    def test_on_all_8_bit_patterns(self, name: str) -> None:
        patterns = np.arange(256, dtype=np.uint8).view(dtype_of(name))
        assert_native_agrees(patterns)
        for start in range(256):
            assert_native_agrees(patterns[start : start + 1])
            assert_native_agrees(np.repeat(patterns[start : start + 1], 300))

    @pytest.mark.parametrize("low_half", [0x0000, 0x0001, 0x8000, 0xFFFF])
    def test_on_all_upper_halves_of_float32(self, low_half: int) -> None:
        patterns = np.arange(65536, dtype=np.uint32) << 16 | np.uint32(low_half)
        for start in range(0, 65536, 64):  # half an exponent in each pass, so that other exponents hide no error
            assert_native_agrees(patterns[start : start + 64].view(np.float32))

    @pytest.mark.parametrize("name", [*FLOATS, *COMPLEX_PARTS])
    def test_on_one_bad_element_at_every_place(self, name: str) -> None:
        healthy = np.ones(300, dtype_of(name))
        for place in range(healthy.size):
            one_bad = healthy.copy()
            one_bad[place] = np.nan
            assert native_summary(one_bad) == HealthSummary(0, 0, 1, 0, 0, 299)
            assert native_place(one_bad.reshape(30, 10)) == BadPlace(place, 1)

    @pytest.mark.parametrize("name", FLOATS)
    def test_on_more_of_one_kind_than_a_lane_counts(self, name: str) -> None:
        for pattern in telling_patterns(name):
            assert_native_agrees(np.full(70_000, pattern, dtype_of(name)))

    def test_on_a_mean_much_larger_than_the_deviations(self) -> None:
        values = 1e8 + np.random.default_rng(0).standard_normal(100_000)
        assert_native_agrees(values)
        assert native_measures(values)[1].stddev == pytest.approx(float(np.std(values - 1e8)), rel=1e-6)

    @pytest.mark.parametrize("scale", [1e-320, 1e-300, 1e-150, 1e-118, 1e118, 1e150, 1e300, 1.7e308])
    def test_on_magnitudes_whose_square_is_outside_float64(self, scale: float) -> None:
        values = np.random.default_rng(0).uniform(-1, 1, 5_000) * scale
        assert_native_agrees(values)
        assert native_measures(values)[1].stddev == pytest.approx(scale / math.sqrt(3), rel=0.05)
        assert_native_agrees((values + 1j * values[::-1]).astype(np.complex128))

    def test_any_byte_but_zero_is_true(self) -> None:
        assert core.count_health(10, np.array([0, 1, 2, 255], np.uint8)) == [0, 0, 0, 0, 1, 3]
        assert core.measure(10, np.array([2, 255], np.uint8))[6:] == [0, 1.0, 1.0, 1.0, 0.0, 1.0, True, True]


@native
class TestNative:
    """Properties that only the native kernels have."""

    def test_unknown_dtypes_raise_an_error(self) -> None:
        for kernel in (core.count_health, core.measure):
            with pytest.raises(ValueError, match="dtype"):
                kernel(7, np.zeros(8, np.uint8))

    @pytest.mark.skipif(
        sys.platform != "linux" or platform.machine() != "x86_64", reason="sets the MXCSR register through glibc"
    )
    @pytest.mark.parametrize("name", [*FLOATS, *COMPLEX_PARTS])
    def test_flushing_subnormals_to_zero_changes_nothing(self, name: str) -> None:
        tensors = [make_tensor(name, size=3_000, mix=mix, seed=0) for mix in ("any", "telling", "healthy but one")]
        tensors.append(telling_patterns(COMPLEX_PARTS.get(name, name))[1:4].astype(dtype_of(name)))
        plain = [native_measures(tensor) for tensor in tensors]
        flushed: list[tuple[HealthSummary, NumericsSummary]] = []
        still_set: list[bool] = []

        def measure_flushing() -> None:
            _flush_subnormals()
            flushed.extend(native_measures(tensor) for tensor in tensors)
            still_set.append(_flushes_subnormals())

        thread = threading.Thread(target=measure_flushing)  # each thread has its own register
        thread.start()
        thread.join()
        assert flushed == plain
        assert still_set == [True]

    @pytest.mark.slow
    def test_every_instruction_set_gives_the_same_bits(self) -> None:
        results = {kernel: _run_with_kernel(kernel) for kernel in ("avx512", "avx2", "baseline")}
        names = {name for name, _ in results.values()}
        assert names <= set(results)
        assert "baseline" in names
        assert len({numbers for _, numbers in results.values()}) == 1

    @pytest.mark.slow
    @pytest.mark.parametrize("kernel", ["avx2", "baseline"])
    @pytest.mark.parametrize("name", DTYPES)
    def test_older_instruction_sets_agree_with_the_twin(self, name: str, kernel: str, fallback_results: Any) -> None:
        for size, mix, numbers in fallback_results[kernel][name]:
            tensor = make_tensor(name, size=size, mix=mix, seed=size)
            assert HealthSummary(*numbers[:6]) == reference.summarize(tensor)
            assert_same(NumericsSummary(*numbers[6:]), measure(tensor))

    def test_read_sum_adds_the_words(self) -> None:
        for size in (*range(300), 4096, 10_001):
            raw = to_bytes(make_tensor("uint8", size=size, mix="any", seed=size), offset=3)
            words = np.concatenate([raw, np.zeros(-size % 8, np.uint8)]).view(np.uint64)
            assert core.read_sum(raw) == int(words.sum(dtype=np.uint64))

    def test_time_kernel_times_each_kernel(self) -> None:
        buffer = np.zeros(4096, np.uint8)
        for kernel in ("count_health", "count_histogram", "measure", "read_sum"):
            assert core.time_kernel(kernel, 1, buffer, 1000) > 0
        assert math.isnan(core.time_kernel("count_histogram", 3, buffer, 1))  # int32 has no histogram
        assert math.isnan(core.time_kernel("count_health", 7, buffer, 1))
        assert math.isnan(core.time_kernel("no such kernel", 1, buffer, 1))


_SCRIPT = """
import json
from tests.writer import test_health
print(json.dumps([test_health.core.health_kernel_name(), test_health.measure_edges()]))
"""


def measure_edges() -> dict[str, list[tuple[int, str, list[float]]]]:
    """Returns the results of the current kernel at every edge size, for each dtype."""
    results: dict[str, list[tuple[int, str, list[float]]]] = {}
    for name in DTYPES:
        results[name] = []
        for size in edge_sizes(name):
            mix = ("any", "telling", "healthy but one")[size % 3]
            counts, numerics = native_measures(make_tensor(name, size=size, mix=mix, seed=size))
            results[name].append((size, mix, [*vars(counts).values(), *vars(numerics).values()]))
    return results


def _run_with_kernel(kernel: str) -> tuple[str, str]:
    """Returns the kernel that a process used when asked for `kernel`, and its results as JSON."""
    environment = {**os.environ, "TFDBG_ARROW_HEALTH_KERNEL": kernel}
    command = [sys.executable, "-c", _SCRIPT]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    name, numbers = json.loads(done.stdout)
    return name, json.dumps(numbers)


@pytest.fixture(scope="module")
def fallback_results() -> dict[str, Any]:
    return {kernel: json.loads(_run_with_kernel(kernel)[1]) for kernel in ("avx2", "baseline")}


# On x86-64, glibc's fenv_t ends with the MXCSR register. Bits 6 and 15 of this register flush subnormal numbers to
# zero.
_MXCSR_OFFSET = 28
_DENORMALS_ARE_ZERO_AND_FLUSH_TO_ZERO = 0x8040


def _read_environment() -> ctypes.Array[ctypes.c_char]:
    environment = ctypes.create_string_buffer(32)
    assert ctypes.CDLL("libm.so.6").fegetenv(environment) == 0
    return environment


def _flush_subnormals() -> None:
    environment = _read_environment()
    register = ctypes.c_uint32.from_buffer(environment, _MXCSR_OFFSET)
    register.value |= _DENORMALS_ARE_ZERO_AND_FLUSH_TO_ZERO
    assert ctypes.CDLL("libm.so.6").fesetenv(environment) == 0


def _flushes_subnormals() -> bool:
    register = ctypes.c_uint32.from_buffer(_read_environment(), _MXCSR_OFFSET)
    return register.value & _DENORMALS_ARE_ZERO_AND_FLUSH_TO_ZERO == _DENORMALS_ARE_ZERO_AND_FLUSH_TO_ZERO
