"""Checksums of lines of JSON, which reveal changed bytes, lost lines and swapped lines.

A line with a checksum ends in `, "checksum": "<8 hexadecimal digits>"}`. The digits are the CRC-32 of all bytes of the
file before this suffix. The checksum detects accidental damage; it does not protect a file from deliberate changes.

Source: spec/README.md, "Checksums".
"""

from __future__ import annotations

import zlib

CHECKSUM_KEY = "checksum"
CHECKSUMS_SINCE = (1, 1)
"""The first format version in which every line has a checksum."""
_BEGIN = f', "{CHECKSUM_KEY}": "'


def with_checksum(line: str, *, before: int = 0) -> str:
    """Returns a line with its checksum added.

    Args:
        line: A JSON object with at least one key, and a newline.
        before: `zlib.crc32` of all bytes of the file before the line.
    """
    begin = line.removesuffix("}\n")
    return begin + _end(begin, before) + "\n"


def is_intact(line: str, *, before: int = 0) -> bool | None:
    """Returns whether a line, given without its newline, has the right checksum; None if it has no checksum."""
    begin, found, rest = line.rpartition(_BEGIN)
    return found + rest == _end(begin, before) if found else None


def _end(begin: str, before: int) -> str:
    return f'{_BEGIN}{zlib.crc32(begin.encode("utf-8", errors="surrogatepass"), before):08x}"}}'
