"""Where bad values come from: the query layer knows it, which is not imported here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where bad values come from, as the query layer answers it.

    Attributes:
        nonfinite: The answer, for the program to look at.
        text: The answer as a paragraph.
        key: Tells origins apart: one op in one place has one, however often it runs.
    """

    nonfinite: Any
    text: str
    key: object


FindOrigins = Callable[[Path, str, Sequence[int]], Sequence[Origin]]


def _nobody_knows(logdir: Path, run_id: str, event_indexes: Sequence[int]) -> Sequence[Origin]:
    return ()


_find_origins: FindOrigins = _nobody_knows


def look_up_origins_with(find_origins: FindOrigins) -> None:
    """Says how a recording with `on_nonfinite` finds its answer; the query layer knows it, which is not imported here.

    Args:
        find_origins: `(logdir, run_id, event_indexes)`: returns the origins that bad tensors go back to, each once.
    """
    global _find_origins
    _find_origins = find_origins


def find_origins(logdir: Path, run_id: str, event_indexes: Sequence[int]) -> Sequence[Origin]:
    """Returns the origins that bad tensors of a run go back to, as far as anybody knows."""
    return _find_origins(logdir, run_id, event_indexes)
