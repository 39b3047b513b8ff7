"""Test the encoding of string tensors in tensor_value."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdbg_arrow.schema.dtypes import decode_strings, encode_strings


def test_the_encoding_starts_with_the_ends_of_the_strings() -> None:
    assert encode_strings([b"ab", b"", b"\0c"]) == struct.pack("<3q", 2, 2, 4) + b"ab\0c"


@given(st.lists(st.binary()))
def test_decoding_returns_the_encoded_elements(elements: list[bytes]) -> None:
    assert decode_strings(encode_strings(elements), len(elements)) == tuple(elements)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (b"", 1),
        (b"x", 0),
        (struct.pack("<q", 2) + b"a", 1),
        (struct.pack("<q", 0) + b"a", 1),
        (struct.pack("<2q", 2, 1) + b"a", 2),
        (struct.pack("<2q", -1, 1) + b"a", 2),
        (struct.pack("<q", 1) + b"a", 2**62),
    ],
)
def test_invalid_encodings_are_refused(value: bytes, size: int) -> None:
    with pytest.raises(ValueError, match=f"{len(value)} bytes are not an encoding of {size} strings"):
        decode_strings(value, size)
