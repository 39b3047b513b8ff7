"""JSON out of a logdir, which may be anybody's."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str) -> Any:
    """Returns what a text holds.

    Raises:
        ValueError: It is no JSON, or nested too deeply to be read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
