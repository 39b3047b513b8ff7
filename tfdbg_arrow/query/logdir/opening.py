"""Opens the logdir of a question, which may be given as a path."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.integrity.damage import damage_told
from tfdbg_arrow.query.logdir.open_logdir import OpenLogdir


@contextlib.contextmanager
def opened(logdir: Engine | str | Path) -> Iterator[Engine]:
    """Yields the given engine, or opens the given path as an OpenLogdir for the duration of the block."""
    if isinstance(logdir, (str, Path)):
        with OpenLogdir(logdir) as own, damage_told(own):
            yield own
    elif isinstance(logdir, Engine):
        with damage_told(logdir):
            yield logdir
    else:
        raise LogdirError(f"logdir is {logdir!r}, expected a path or the result of open_logdir().")
