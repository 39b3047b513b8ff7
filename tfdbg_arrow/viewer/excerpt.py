"""Excerpt: some lines of a source file around the one that matters."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query import Frame, Logdir, SourceLine, source_lines
from tfdbg_arrow.query.run_settings import withholds_source


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """Lines of a source file.

    Attributes:
        run_id: The run that kept the text.
        frame: The frame whose line is lit.
        lines: The lines in order; none where the run kept no text of the file.
        is_withheld: Whether it was told to keep none.
    """

    run_id: str
    frame: Frame
    lines: tuple[SourceLine, ...]
    is_withheld: bool = False


def read_excerpt(logdir: Logdir, frame: Frame | None, *, run_id: str, context: int = 7) -> Excerpt | None:
    """Returns the lines around a frame, None where there is no frame."""
    if frame is None:
        return None
    lines = source_lines(logdir, frame, run_id=run_id, context=context)
    is_withheld = not lines and withholds_source(logdir, run_id=run_id)
    return Excerpt(run_id=run_id, frame=frame, lines=lines, is_withheld=is_withheld)
