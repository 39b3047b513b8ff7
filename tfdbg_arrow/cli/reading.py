"""How the reading subcommands open a logdir, and tell what of it they left out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tfdbg_arrow.cli.output import printable, progress

if TYPE_CHECKING:
    from tfdbg_arrow.query import BrokenPart, Logdir

SkipBrokenOption = Annotated[
    bool,
    typer.Option(
        "--skip-broken",
        help="Read on without parts that are changed, cut or missing; stderr names them. Every part is read to know.",
    ),
]

MemoryLimitOption = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        help="What the queries may take of memory, as 500MB; 2GiB if neither this nor TFDBG_ARROW_MEMORY_LIMIT is set.",
    ),
]

_MAX_SHOWN = 3


@contextlib.contextmanager
def reading(
    logdir: str, *, skip_broken: bool, memory_limit: str | None, what: str | None = "Reading …"
) -> Iterator[Logdir]:
    """Yields a logdir, and tells on stderr what was left out of it once it is read.

    Args:
        logdir: Its path or URL.
        skip_broken: Whether to leave out what is broken.
        memory_limit: What the queries may take of memory; None: the default.
        what: What is shown while it is read, if stderr is a terminal; None: nothing.
    """
    from tfdbg_arrow.query import open_logdir

    broken: Sequence[BrokenPart] = ()
    try:
        with contextlib.ExitStack() as stack:
            if what is not None:
                stack.enter_context(progress(what))
            opened = stack.enter_context(open_logdir(logdir, skip_broken=skip_broken, memory_limit=memory_limit))
            try:
                yield opened
            finally:
                broken = opened.broken_parts
    finally:
        tell_broken(logdir, broken)


def tell_broken(logdir: str, broken: Sequence[BrokenPart]) -> None:
    """Tells on stderr what of a logdir was left out."""
    if not broken:
        return
    named = "; ".join(f"{part.path} {part.reason}" for part in broken[:_MAX_SHOWN])
    more = f"; and {len(broken) - _MAX_SHOWN:,} more" if len(broken) > _MAX_SHOWN else ""
    rows = sum(part.rows or 0 for part in broken)
    number = f"{len(broken):,} broken file{'' if len(broken) == 1 else 's'} of {logdir} with {rows:,} known rows"
    typer.echo(printable(f"tfdbg-arrow: warning: left out {number}: {named}{more}; see: tfdbg-arrow verify"), err=True)
