"""`tfdbg-arrow verify`: checks that a logdir is as it was written."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from tfdbg_arrow.cli.output import JsonOption, byte_progress, console, print_json, styled

if TYPE_CHECKING:
    from tfdbg_arrow.query import Verification

_MAX_SHOWN = 20
"""Number of deviations per kind that are named in a terminal; `--json` names up to 1,000."""
_STYLES = {"changed": "bold red", "missing": "bold red", "extra": "bold red", "leftover": "yellow", "unchecked": "dim"}


def verify(
    logdir: Annotated[str, typer.Argument(metavar="LOGDIR", help="The directory that a recording wrote.")],
    json: JsonOption = False,
) -> None:
    """Finds every changed, missing and extra byte of data in a local logdir, without changing it.

    Files that a killed process left are listed as `leftover` and are not damage. Data of its spool that has no
    checksum is listed as `unchecked`.

    Exit codes: 0 nothing is damaged, 1 something is damaged, 2 the logdir cannot be read.
    """
    from tfdbg_arrow.query import verify as examine

    with byte_progress("Verifying") as progress:
        found = examine(logdir, progress=progress)
    if json:
        print_json({"logdir": logdir, "is_intact": found.is_intact, "verification": found})
    else:
        _print(found)
    raise typer.Exit(0 if found.is_intact else 1)


def _print(found: Verification) -> None:
    from tfdbg_arrow.query.one_line import verification_text

    out = console()
    for kind, group in groupby(found.deviations, key=lambda deviation: deviation.kind):
        deviations = list(group)
        for deviation in deviations[:_MAX_SHOWN]:
            out.print(styled((kind, _STYLES[kind]), f": {deviation.path} {deviation.what}"))
        if len(deviations) > _MAX_SHOWN:
            out.print(styled((kind, _STYLES[kind]), f": and {len(deviations) - _MAX_SHOWN:,} more; see --json"))
    out.print(styled((found.path, "bold"), f": {verification_text(found)}"))
