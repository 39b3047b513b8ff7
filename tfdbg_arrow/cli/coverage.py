"""`tfdbg-arrow coverage`: the tensors that a recording did not examine."""

from __future__ import annotations

import click
from click.exceptions import Exit

from tfdbg_arrow.cli.command import Command
from tfdbg_arrow.cli.output import Opening, print_result, reading, reading_options, run_option


@click.command("coverage", cls=Command)
@click.argument("logdir", help="The directory that a recording wrote.")
@run_option
@reading_options
def coverage(logdir: str, run_id: str | None, opening: Opening, json: bool) -> None:
    """Lists what was not looked at, and why: op outputs by run, graph and reason, and the entries of capture_stat.

    Outputs that cannot be bad, such as integers, are counted; --json lists them.

    It also counts the ops and calls that raised an error: tensors of a failed call may be missing.

    Exit codes: 0 every tensor that could be bad was looked at, 1 some were not, 2 an error.
    """
    with reading(logdir, opening) as opened:
        answer, about = opened.coverage(run_id=run_id), opened.about_runs(run_id=run_id)
    facts = {**vars(answer), "is_complete": answer.is_complete, "summary": answer.summary, "about": about}
    print_result(facts, answer, json=json, about=about)
    raise Exit(0 if answer.is_complete else 1)
