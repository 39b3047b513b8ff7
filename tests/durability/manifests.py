"""Manifest entries for tests."""

from __future__ import annotations

import re
import zlib

from tfdbg_arrow.storage.manifest import CHECKSUM_KEY, ManifestEntry, with_checksum

RUN = "run1"
DAMAGED = "; the manifest is damaged: restore it, or remove this run from the logdir."


def part(number: int, *, table: str = "mark") -> ManifestEntry:
    path = f"{table}/run={RUN}/part-{number:06d}.parquet"
    return ManifestEntry(
        table=table, path=path, rows=2, bytes=10, sha256="0a" * 32, min_event_index=1, max_event_index=5
    )


def sealed(text: str) -> str:
    """Returns a manifest. Adds a checksum to each line that is a JSON object without a checksum."""
    content = ""
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        is_open = re.search(r"[^{]}\n$", line) and f'"{CHECKSUM_KEY}"' not in line
        content += with_checksum(line, before=crc(content)) if is_open else line
    return content


def crc(text: str) -> int:
    """Returns the CRC-32 of a text."""
    return zlib.crc32(text.encode(errors="surrogatepass"))
