"""`tfdbg-arrow why`: shows how a tensor became bad, or where its bad values went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from tfdbg_arrow.cli.command import Command
from tfdbg_arrow.cli.output import (
    Opening,
    print_about,
    print_blocks,
    print_csv,
    print_json,
    reading,
    reading_options,
    run_option,
)
from tfdbg_arrow.errors import QueryError

if TYPE_CHECKING:
    from tfdbg_arrow.query import Logdir, Provenance, Spread


@click.command("why", cls=Command)
@click.argument("logdir", help="The directory that a recording wrote.")
@click.argument(
    "tensor",
    required=False,
    help="An event_index, or the name of an op or tensor, e.g. `Log` or `Log:0`, which means its first bad "
    "value. Default: what first-nonfinite names.",
)
@run_option
@click.option("--tree", is_flag=True, help="Show all paths back, not only the one to the earliest origin.")
@click.option(
    "--forward", is_flag=True, help="Search in the other direction: which tensors, variables and results became bad."
)
@click.option("--full", is_flag=True, help="Show every tensor of a long path.")
@click.option("--limit", metavar="N", type=int, default=1000, help="Find at most N tensors.")
@click.option("--csv", is_flag=True, help="Print every tensor found as a row of CSV.")
@reading_options
def why(
    logdir: str,
    tensor: str | None,
    run_id: str | None,
    tree: bool,
    forward: bool,
    full: bool,
    limit: int,
    csv: bool,
    opening: Opening,
    json: bool,
) -> None:
    """Shows how a tensor became bad: the path back to the op that created the first bad value, and that op's inputs.

    With --forward it shows where the bad values went: the bad tensors that were computed from the tensor, the variables
    that they were written to, and the functions that returned them to eager code.

    Exit codes: 0 nothing is bad, or the bad value did no harm, 1 a bad value did harm or may have, 2 an error.
    """
    from tfdbg_arrow.query import Provenance, Spread
    from tfdbg_arrow.query.present.tensors import provenance, spread

    if csv and json:
        raise QueryError("--csv and --json were both given; give only one of them.")
    with reading(logdir, opening) as opened:
        about = opened.about_runs(run_id=run_id)
        first = opened.first_nonfinite(run_id=run_id) if tensor is None else None
        search = opened.spread if forward else opened.provenance
        answer: Provenance | Spread | None = None
        if first is not None:
            answer = search(first, limit=limit)
        elif tensor is not None and (start := _find(opened, tensor, run_id=run_id)) is not None:
            answer = search(start[1], run_id=start[0], limit=limit)
    if json:
        print_json({"logdir": logdir, "tensor": tensor, "spread" if forward else "provenance": answer, "about": about})
    elif csv:
        columns = Spread.columns() if forward else Provenance.columns()
        print_csv(columns, [] if answer is None else [tuple(row.values()) for row in answer.rows()])
    elif answer is None:
        print_about(about)
        click.echo("Nothing is bad" + (f" in {tensor}." if tensor else "."))
    else:
        print_about(about)
        if isinstance(answer, Spread):
            print_blocks(spread(answer, first, full=full))
        else:
            print_blocks(provenance(answer, first, tree=tree, full=full))
    raise Exit(0 if answer is None or answer.expected_reason is not None else 1)


def _find(logdir: Logdir, tensor: str, *, run_id: str | None) -> tuple[str, int] | None:
    """Returns (run id, event_index) of the bad tensor that `tensor` names; None if it was never bad."""
    from tfdbg_arrow.query.asked_runs import asked_runs
    from tfdbg_arrow.query.tensor_history import recorded_ops
    from tfdbg_arrow.query.wording import similar_text

    condition, run_ids = asked_runs(logdir, run_id).condition()
    if tensor.isdecimal():
        rows = logdir.rows(
            "SELECT run_id, event_index, has_inf_or_nan FROM tensor_health "
            f"WHERE event_index = ? AND {condition} ORDER BY run_id",
            [int(tensor), *run_ids],
        )
        if len(rows) > 1:
            raise QueryError(f"event {tensor} is in {len(rows)} runs; select one with --run: {rows[0][0]}, …")
    else:
        name, _, text = tensor.rpartition(":") if tensor.rpartition(":")[2].isdecimal() else (tensor, "", "")
        slot = int(text) if text else None
        rows = logdir.rows(
            "SELECT run_id, event_index, has_inf_or_nan FROM tensor_health "
            "WHERE (op_name = ? OR (op_name IS NULL AND op_type = ?)) "
            f"AND (CAST(? AS INTEGER) IS NULL OR output_slot = ?) AND {condition} "
            "ORDER BY has_inf_or_nan DESC NULLS LAST, wall_time_ns, event_index LIMIT 1",
            [name, name, slot, slot, *run_ids],
        )
    if not rows:
        similar = similar_text(tensor, recorded_ops(logdir, run_id=run_id))
        raise QueryError(f"{logdir.path} has no recorded tensor named {tensor}.{similar}")
    return (rows[0][0], rows[0][1]) if rows[0][2] else None
