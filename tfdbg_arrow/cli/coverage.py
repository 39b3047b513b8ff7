"""`tfdbg-arrow coverage`: the tensors that a recording did not look at."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from tfdbg_arrow.cli.output import (
    JsonOption,
    MemoryLimitOption,
    RunOption,
    SkipBrokenOption,
    print_about,
    print_answer,
    print_json,
    reading,
)


def coverage(
    logdir: Annotated[str, typer.Argument(metavar="LOGDIR", help="The directory that a recording wrote.")],
    run_id: RunOption = None,
    skip_broken: SkipBrokenOption = False,
    memory_limit: MemoryLimitOption = None,
    json: JsonOption = False,
) -> None:
    """Lists what was not looked at, and why: op outputs by run, graph and reason, and the entries of capture_stat.

    Outputs that cannot be bad, such as integers, are counted; --json lists them.

    It also counts the ops and calls that raised an error: tensors of a failed call may be missing.

    Exit codes: 0 every tensor that could be bad was looked at, 1 some were not, 2 an error.
    """
    with reading(logdir, skip_broken=skip_broken, memory_limit=memory_limit) as opened:
        answer, about = opened.coverage(run_id=run_id), opened.about_runs(run_id=run_id)
    if json:
        print_json(
            {**dataclasses.asdict(answer), "is_complete": answer.is_complete, "summary": answer.summary, "about": about}
        )
    else:
        print_about(about)
        print_answer(answer)
    raise typer.Exit(0 if answer.is_complete else 1)
