"""Excerpt: the lines of a source file around a given line."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query import Frame, Logdir, SourceLine, source_lines
from tfdbg_arrow.query.run_settings import withholds_source


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """Lines of a source file.

    Attributes:
        run_id: The run that recorded the text.
        frame: The frame whose line is highlighted.
        lines: The lines in order; empty if the run did not record the file's text.
        is_withheld: Whether the setting `redact` prevented recording the text.
    """

    run_id: str
    frame: Frame
    lines: tuple[SourceLine, ...]
    is_withheld: bool = False


def read_excerpt(logdir: Logdir, frame: Frame | None, *, run_id: str, context: int = 7) -> Excerpt | None:
    """Returns the lines around a frame; None if `frame` is None."""
    if frame is None:
        return None
    lines = source_lines(logdir, frame, run_id=run_id, context=context)
    is_withheld = not lines and withholds_source(logdir, run_id=run_id)
    return Excerpt(run_id=run_id, frame=frame, lines=lines, is_withheld=is_withheld)
