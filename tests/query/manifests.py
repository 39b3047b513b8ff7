"""Helpers for tests that edit manifests."""

from __future__ import annotations

import json

from tfdbg_arrow.storage.manifest import CHECKSUM_KEY, checksummed


def resealed(text: str) -> str:
    """Returns an edited manifest with correct checksums."""
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        line.pop(CHECKSUM_KEY, None)
    return checksummed(json.dumps(line) + "\n" for line in lines)
