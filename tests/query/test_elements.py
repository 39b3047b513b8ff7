"""Test against NumPy that recorded bytes are decoded into the right elements."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tfdbg_arrow.query.values import DECODED_DTYPES, decode
from tfdbg_arrow.schema.dtypes import DTYPES

FLOAT8 = [name for name in sorted(DECODED_DTYPES) if name.startswith("float8")]


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_8_bit_pattern(dtype: str) -> None:
    raw = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(decode(raw, dtype), raw.view(numpy_dtype(dtype)).astype("float32"))


def test_every_bfloat16_pattern() -> None:
    raw = np.arange(65536, dtype="<u2").view(np.uint8)
    np.testing.assert_array_equal(decode(raw, "bfloat16"), raw.view(ml_dtypes.bfloat16).astype("float32"))


@pytest.mark.parametrize("dtype", sorted(DECODED_DTYPES))
def test_bytes_after_the_last_whole_element_are_ignored(dtype: str) -> None:
    itemsize = {one.name: one.itemsize for one in DTYPES}[dtype]
    for num_bytes in (0, 1, itemsize, 3 * itemsize - 1):
        assert len(decode(np.ones(num_bytes, np.uint8), dtype)) == num_bytes // itemsize


def test_decoding_keeps_the_bits_of_numpy_dtypes() -> None:
    nans = np.array([0x7FC00001, 0xFF800000, 0x80000000, 1], "<u4")
    np.testing.assert_array_equal(decode(nans.view(np.uint8), "float32").view("<u4"), nans)


@pytest.mark.parametrize("dtype", ["string", "variant", "resource", "int4", "unknown_99", "float32_ref"])
def test_other_dtypes_are_not_decoded(dtype: str) -> None:
    assert decode(np.zeros(8, np.uint8), dtype) is None
