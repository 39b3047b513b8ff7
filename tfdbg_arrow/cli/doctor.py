"""`tfdbg-arrow doctor`: finds problems of a logdir and advises what to do."""

from __future__ import annotations

from typing import Annotated

import typer

from tfdbg_arrow.cli.output import JsonOption, byte_progress, print_answer, print_json


def doctor(
    logdir: Annotated[
        str, typer.Argument(metavar="LOGDIR", help="The directory or URL to examine; need not be a logdir.")
    ],
    json: JsonOption = False,
) -> None:
    """Reports what is wrong with a logdir, the evidence, and what to do. Also explains an empty or partial logdir.

    Exit codes: 0 nothing is wrong (there may be findings of severity `info`), 1 something is wrong, 2 the logdir
    cannot be examined.
    """
    from tfdbg_arrow.query import doctor as examine

    with byte_progress("Examining") as progress:
        answer = examine(logdir, progress=progress)
    if json:
        print_json({"logdir": logdir, "is_healthy": answer.is_healthy, "findings": answer.findings})
    else:
        print_answer(answer)
    raise typer.Exit(0 if answer.is_healthy else 1)
