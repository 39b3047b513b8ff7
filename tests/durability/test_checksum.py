from __future__ import annotations

import zlib

import pytest

from tfdbg_arrow.storage.manifest import is_intact, with_checksum

BEGIN = '{"a": "é"'
SEALED = f'{BEGIN}, "checksum": "{zlib.crc32(BEGIN.encode()):08x}"}}'


def test_a_line_ends_with_the_crc_32_of_all_bytes_before_it() -> None:
    assert with_checksum(f"{BEGIN}}}\n") == f"{SEALED}\n"
    before = zlib.crc32(b"the lines before\n")
    crc = zlib.crc32(b"the lines before\n" + BEGIN.encode())
    assert with_checksum(f"{BEGIN}}}\n", before=before) == f'{BEGIN}, "checksum": "{crc:08x}"}}\n'


def test_a_short_crc_is_padded_with_zeros() -> None:
    line = next(line for i in range(1_000) if zlib.crc32(line := b'{"a": %d' % i) < 2**24).decode()
    assert f'"checksum": "00{zlib.crc32(line.encode()):06x}"}}\n' in with_checksum(f"{line}}}\n")


def test_a_lone_surrogate_has_a_checksum_too() -> None:
    sealed = with_checksum('{"a": "\udc80"}\n')
    assert is_intact(sealed.removesuffix("\n")) is True


@pytest.mark.parametrize(
    ("line", "before", "expected"),
    [
        (SEALED, 0, True),
        (SEALED, 1, False),
        (SEALED.replace("é", "e"), 0, False),
        (SEALED + " ", 0, False),
        (SEALED.upper().replace("CHECKSUM", "checksum"), 0, False),
        (SEALED.replace(", ", ","), 0, False),
        (BEGIN + "}", 0, False),
        ("", 0, False),
    ],
)
def test_only_a_line_with_its_own_checksum_is_intact(line: str, before: int, expected: bool) -> None:
    assert is_intact(line, before=before) is expected


def test_the_last_of_two_checksums_counts() -> None:
    twice = with_checksum(f"{SEALED}\n").removesuffix("\n")
    assert twice.count('"checksum"') == 2
    assert is_intact(twice) is True
