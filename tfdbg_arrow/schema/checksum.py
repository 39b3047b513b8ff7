"""Checksums of lines of JSON, by which a changed byte, a lost line and a swapped one are found.

A line that has one ends in `, "checksum": "<8 hexadecimal digits>"}`: the CRC-32 of all bytes of its file before these.
It finds what goes wrong by itself; it does not keep anybody from changing a file on purpose.

Source: spec/README.md, "Checksums".
"""

from __future__ import annotations

import zlib

CHECKSUM_KEY = "checksum"
CHECKSUMS_SINCE = (1, 1)
"""The first format version in which every line has one."""
_BEGIN = f', "{CHECKSUM_KEY}": "'


def with_checksum(line: str, *, before: int = 0) -> str:
    """Returns a line with its checksum.

    Args:
        line: A JSON object with at least one key, and a newline.
        before: `zlib.crc32` of all bytes of the file before the line.
    """
    begin = line.removesuffix("}\n")
    return begin + _end(begin, before) + "\n"


def is_intact(line: str, *, before: int = 0) -> bool | None:
    """Returns whether a line, without its newline, has the right checksum; None if it has none where one belongs."""
    begin, found, rest = line.rpartition(_BEGIN)
    return found + rest == _end(begin, before) if found else None


def _end(begin: str, before: int) -> str:
    return f'{_BEGIN}{zlib.crc32(begin.encode("utf-8", errors="surrogatepass"), before):08x}"}}'
