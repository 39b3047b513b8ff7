"""The list of features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FEATURES: dict[str, Callable[[], Any]] = {}
"""All features, by name. Each function returns numbers to compare."""


def feature(run: Callable[[], Any]) -> Callable[[], Any]:
    FEATURES[run.__name__] = run
    return run
