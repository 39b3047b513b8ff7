"""Parses JSON from a logdir, which may come from an untrusted source."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str) -> Any:
    """Parses a JSON text.

    Raises:
        ValueError: The text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
