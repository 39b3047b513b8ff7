"""Excerpt: some lines of a source file around the one that matters."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query import Frame, Logdir, SourceLine, source_lines


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """Lines of a source file.

    Attributes:
        run_id: The run that kept the text.
        frame: The frame whose line is lit.
        lines: The lines in order; none where the run kept no text of the file.
    """

    run_id: str
    frame: Frame
    lines: tuple[SourceLine, ...]


def read_excerpt(logdir: Logdir, frame: Frame | None, *, run_id: str, context: int = 7) -> Excerpt | None:
    """Returns the lines around a frame, None where there is no frame."""
    if frame is None:
        return None
    return Excerpt(run_id=run_id, frame=frame, lines=source_lines(logdir, frame, run_id=run_id, context=context))
