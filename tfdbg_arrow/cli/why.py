"""`tfdbg-arrow why`: shows how a tensor became bad, or where its bad values went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tfdbg_arrow.cli.output import JsonOption, print_csv, print_json
from tfdbg_arrow.cli.reading import MemoryLimitOption, SkipBrokenOption, reading
from tfdbg_arrow.errors import QueryError

if TYPE_CHECKING:
    from tfdbg_arrow.query import Logdir


def why(
    logdir: Annotated[str, typer.Argument(metavar="LOGDIR", help="The directory that a recording wrote.")],
    tensor: Annotated[
        str | None,
        typer.Argument(
            metavar="TENSOR",
            help="An event_index, or the name of an op or tensor, e.g. `Log` or `Log:0`, which means its first bad "
            "value. Default: the first bad tensor of all.",
        ),
    ] = None,
    run_id: Annotated[str | None, typer.Option("--run-id", metavar="ID", help="Read only this run.")] = None,
    tree: Annotated[
        bool, typer.Option("--tree", help="Show all paths back, not only the one to the earliest origin.")
    ] = False,
    forward: Annotated[
        bool,
        typer.Option(
            "--forward", help="Search in the other direction: which tensors, variables and results became bad."
        ),
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Show every tensor of a long path.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", help="Find at most N tensors.")] = 1000,
    csv: Annotated[bool, typer.Option("--csv", help="Print every tensor found as a row of CSV.")] = False,
    skip_broken: SkipBrokenOption = False,
    memory_limit: MemoryLimitOption = None,
    json: JsonOption = False,
) -> None:
    """Shows how a tensor became bad: the path back to the op that created the first bad value, and that op's inputs.

    With --forward it shows where the bad values went: the bad tensors that were computed from the tensor, the variables
    that they were written to, and the functions that returned them to eager code.

    Exit codes: 0 nothing is bad, 1 something is bad, 2 an error.
    """
    from tfdbg_arrow.cli.why_text import print_provenance, print_spread
    from tfdbg_arrow.query import Provenance, Spread

    if csv and json:
        raise QueryError("--csv and --json were both given; give only one of them.")
    with reading(logdir, skip_broken=skip_broken, memory_limit=memory_limit) as opened:
        start = _find(opened, tensor, run_id=run_id)
        found: Provenance | Spread | None = None
        if start is not None:
            search = opened.spread if forward else opened.provenance
            found = search(start[1], run_id=start[0], limit=limit)
    if json:
        print_json({"logdir": logdir, "tensor": tensor, "spread" if forward else "provenance": found})
    elif csv:
        columns = Spread.columns() if forward else Provenance.columns()
        print_csv(columns, [] if found is None else [tuple(row.values()) for row in found.rows()])
    elif found is None:
        typer.echo("Nothing is bad" + (f" in {tensor}." if tensor else "."))
    elif isinstance(found, Spread):
        print_spread(found, full=full)
    else:
        print_provenance(found, tree=tree, full=full)
    raise typer.Exit(0 if found is None else 1)


def _find(logdir: Logdir, tensor: str | None, *, run_id: str | None) -> tuple[str, int] | None:
    """Returns (run id, event_index) of the bad tensor that `tensor` names; None if it was never bad."""
    if tensor is None:
        first = logdir.first_nonfinite(run_id=run_id)
        return None if first is None else (first.run_id, first.event_index)
    if tensor.isdecimal():
        rows = logdir.rows(
            "SELECT run_id, event_index, has_inf_or_nan FROM tensor_health "
            "WHERE event_index = $event AND (run_id = $run_id OR $run_id IS NULL) ORDER BY run_id",
            {"event": int(tensor), "run_id": run_id},
        )
        if len(rows) > 1:
            raise QueryError(f"event {tensor} is in {len(rows)} runs; select one with --run-id: {rows[0][0]}, …")
    else:
        name, _, slot = tensor.rpartition(":") if tensor.rpartition(":")[2].isdecimal() else (tensor, "", "")
        rows = logdir.rows(
            "SELECT run_id, event_index, has_inf_or_nan FROM tensor_health "
            "WHERE (op_name = $name OR (op_name IS NULL AND op_type = $name)) "
            "AND ($slot IS NULL OR output_slot = $slot) AND (run_id = $run_id OR $run_id IS NULL) "
            "ORDER BY has_inf_or_nan DESC NULLS LAST, wall_time_ns, event_index LIMIT 1",
            {"name": name, "slot": int(slot) if slot else None, "run_id": run_id},
        )
    if not rows:
        raise QueryError(
            f"{logdir.path} has no recorded tensor named {tensor}; see SELECT DISTINCT op_name FROM graph_op."
        )
    return (rows[0][0], rows[0][1]) if rows[0][2] else None
