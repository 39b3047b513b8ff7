"""Parametrizes a test with a few values in the fast suite and the other values in the slow one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_slow(values: Iterable[Any], *, fast: Collection[Any]) -> list[Any]:
    """Returns the values for `pytest.mark.parametrize`, of which all except `fast` are marked `slow`.

    Raises:
        ValueError: A fast value is none of the values.
    """
    values = list(values)
    if missing := [value for value in fast if value not in values]:
        raise ValueError(f"the test has no values {missing}; expected some of {values}")
    arguments = [value if isinstance(value, tuple) else (value,) for value in values]
    marks = [() if value in fast else pytest.mark.slow for value in values]
    return [pytest.param(*each, marks=mark) for each, mark in zip(arguments, marks, strict=True)]
