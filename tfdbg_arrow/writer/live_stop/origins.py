"""Finds where bad values come from, with a function of the query layer, which is not imported here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The origin of bad values, as found by the query layer.

    Attributes:
        nonfinite: The answer as an object for the program.
        text: The answer as a paragraph.
        key: Identifies the origin. An op in one place has one key, no matter how often it runs.
    """

    nonfinite: Any
    text: str
    key: object


FindOrigins = Callable[[Path, str, Sequence[int]], Sequence[Origin]]


def _nobody_knows(logdir: Path, run_id: str, event_indexes: Sequence[int]) -> Sequence[Origin]:
    return ()


_find_origins: FindOrigins = _nobody_knows


def look_up_origins_with(find_origins: FindOrigins) -> None:
    """Sets the function of the query layer that finds origins for recordings with `on_nonfinite`.

    Args:
        find_origins: `(logdir, run_id, event_indexes)`: returns the origins of bad tensors, each once.
    """
    global _find_origins
    _find_origins = find_origins


def find_origins(logdir: Path, run_id: str, event_indexes: Sequence[int]) -> Sequence[Origin]:
    """Returns the origins of bad tensors of a run; empty if no function to find them was set."""
    return _find_origins(logdir, run_id, event_indexes)
