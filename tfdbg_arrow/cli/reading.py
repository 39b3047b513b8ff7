"""Opens a logdir for the subcommands that read one, and reports broken parts that were skipped."""

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
        help="Skip parts that are changed, truncated or missing, and list them on stderr. Checks every part, which "
        "takes time.",
    ),
]

MemoryLimitOption = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        help="Memory limit of the queries, e.g. 500MB. Default: TFDBG_ARROW_MEMORY_LIMIT, or 2GiB if that is not set.",
    ),
]

_MAX_SHOWN = 3


@contextlib.contextmanager
def reading(
    logdir: str, *, skip_broken: bool, memory_limit: str | None, what: str | None = "Reading …"
) -> Iterator[Logdir]:
    """Yields an open logdir. On exit, prints the parts that were skipped on stderr.

    Args:
        logdir: The logdir's path or URL.
        skip_broken: Whether to skip broken parts.
        memory_limit: The memory limit of the queries; None means the default.
        what: The status text shown while the logdir is read, if stderr is a terminal; None shows nothing.
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
    """Prints the parts of a logdir that were skipped on stderr; prints nothing if there are none."""
    if not broken:
        return
    named = "; ".join(f"{part.path} {part.reason}" for part in broken[:_MAX_SHOWN])
    more = f"; and {len(broken) - _MAX_SHOWN:,} more" if len(broken) > _MAX_SHOWN else ""
    rows = sum(part.rows or 0 for part in broken)
    number = f"{len(broken):,} broken file{'' if len(broken) == 1 else 's'} of {logdir} with {rows:,} known rows"
    typer.echo(printable(f"tfdbg-arrow: warning: left out {number}: {named}{more}; see: tfdbg-arrow verify"), err=True)
