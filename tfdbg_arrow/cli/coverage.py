"""`tfdbg-arrow coverage`: the tensors that a recording did not look at."""

from __future__ import annotations

import dataclasses
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from tfdbg_arrow.cli.output import (
    JsonOption,
    MemoryLimitOption,
    RunOption,
    SkipBrokenOption,
    console,
    print_about,
    print_json,
    reading,
    styled,
)
from tfdbg_arrow.safe_text import number_of

if TYPE_CHECKING:
    from tfdbg_arrow.query import Coverage


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
        found, about = opened.coverage(run_id=run_id), opened.about_runs(run_id=run_id)
    if json:
        print_json(
            {**dataclasses.asdict(found), "is_complete": found.is_complete, "summary": found.summary, "about": about}
        )
    else:
        print_about(about)
        _print_coverage(found)
    raise typer.Exit(0 if found.is_complete else 1)


def _print_coverage(found: Coverage) -> None:
    from tfdbg_arrow.query.wording import changed_text, ops_text, unobserved_text

    out = console()
    if found.summary is None:
        out.print(styled("Every tensor that could be bad was looked at."))
    else:
        out.print(styled(("Not looked at: ", "bold"), found.summary))
    unobserved = [group for group in found.unobserved if group.num_could_be_bad]
    for run_id, groups in groupby(unobserved, key=lambda group: group.run_id):
        out.print()
        out.print(styled(("run ", "dim"), (run_id, "bold")))
        for group in groups:
            out.print(styled(f"  {group.graph_name or f'graph {group.graph_id}'}: {unobserved_text(group)}"))
            out.print(styled((f"      {ops_text(group)}", "dim")))
    num_others = sum(group.num_outputs for group in found.unobserved if not group.num_could_be_bad)
    if num_others:
        text = (
            f"{number_of(num_others, 'other output')} cannot be bad or are recorded at another op; --json lists them."
        )
        out.print(styled((text, "dim")))
    if found.changed:
        out.print()
        out.print(styled(("changed by TensorFlow's optimizer, and recorded as executed", "bold")))
    for changed in found.changed:
        out.print(styled(f"  {changed.graph_name or f'graph {changed.graph_id}'}: {changed_text(changed)}"))
    if found.failed:
        out.print()
        out.print(styled(("raised an error", "bold")))
    for failed in found.failed:
        text = f"  {failed.op_type}: {failed.error_type}, {number_of(failed.num_executions, 'time')}"
        out.print(styled(text + ("; some of its tensors may be missing" if failed.is_lossy else "")))
    if found.stats:
        out.print()
        out.print(styled(("noted while recording", "bold")))
    for stat in found.stats:
        number = "" if stat.num_events is None else f" ({number_of(stat.num_events, 'event')})"
        out.print(styled(f"  {stat.stat}: {stat.subject}{number}: {stat.reason}"))
