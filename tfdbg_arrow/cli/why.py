"""`tfdbg-arrow why`: how a tensor became bad."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tfdbg_arrow.cli.output import JsonOption, console, print_json, printable_line, progress, styled
from tfdbg_arrow.errors import QueryError

if TYPE_CHECKING:
    from tfdbg_arrow.query import Hop, Logdir, Provenance

_NUM_FIRST = 3
_NUM_LAST = 7
_MAX_INDENT = 20

_ROLES = {"origin": "here it went bad", "candidate": "bad here; an input was not recorded", "cause": "healthy"}


def why(
    logdir: Annotated[str, typer.Argument(metavar="LOGDIR", help="The directory that a recording wrote.")],
    tensor: Annotated[
        str | None,
        typer.Argument(
            metavar="TENSOR",
            help="An event_index, or the name of an op or tensor, as `Log` or `Log:0`: its first bad value. "
            "Without it, the first bad tensor of all.",
        ),
    ] = None,
    run_id: Annotated[str | None, typer.Option("--run-id", metavar="ID", help="Only this run.")] = None,
    tree: Annotated[
        bool, typer.Option("--tree", help="All ways back, not only the one to the earliest origin.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Every tensor of a long way.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", help="At most so many tensors.")] = 10_000,
    json: JsonOption = False,
) -> None:
    """Tells how a bad tensor came about: from it back to the op that made the first bad value, and what that op took.

    Exit codes: 0 nothing is bad, 1 something is, 2 an error.
    """
    from tfdbg_arrow.query import open_logdir

    with progress("Reading …"), open_logdir(logdir) as opened:
        start = _find(opened, tensor, run_id=run_id)
        found = None if start is None else opened.provenance(start[1], run_id=start[0], limit=limit)
    if json:
        print_json({"logdir": logdir, "tensor": tensor, "provenance": found})
    elif found is None:
        typer.echo("Nothing is bad" + (f" in {tensor}." if tensor else "."))
    else:
        _print(found, tree=tree, full=full)
    raise typer.Exit(0 if found is None else 1)


def _find(logdir: Logdir, tensor: str | None, *, run_id: str | None) -> tuple[str, int] | None:
    """Returns (run id, event_index) of the bad tensor meant, None where it was never bad."""
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
            raise QueryError(f"event {tensor} is in {len(rows)} runs; name one with --run-id: {rows[0][0]}, …")
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
            f"{tensor} names no recorded tensor of {logdir.path}; see SELECT DISTINCT op_name FROM graph_op."
        )
    return (rows[0][0], rows[0][1]) if rows[0][2] else None


def _print(found: Provenance, *, tree: bool, full: bool) -> None:
    out = console()
    origin = found.origin
    if origin is not None and origin.why is not None:
        out.print(styled((origin.why, "bold")))
        out.print()
    if tree:
        _print_tree(found)
    else:
        way = list(reversed(found.path))
        num_folded = 0 if full else max(0, len(way) - _NUM_FIRST - _NUM_LAST)
        for index, hop in enumerate(way):
            if _NUM_FIRST <= index < _NUM_FIRST + num_folded:
                if index == _NUM_FIRST:
                    out.print(styled((f"... {num_folded:,} more tensors on the way; --full shows them", "dim")))
                continue
            _print_hop(hop, indent="    " if hop.role == "cause" else "")
    if found.is_cut:
        out.print()
        out.print(styled((f"The search ended after {len(found.hops):,} tensors; --limit raises that.", "bold")))


def _print_tree(found: Provenance) -> None:
    """Each tensor once, under the one through which it was found."""
    inputs: dict[int | None, list[Hop]] = {}
    for hop in found.hops:
        inputs.setdefault(hop.user_hop_index, []).append(hop)
    waiting = [(hop, 0) for hop in reversed(inputs[None])]
    while waiting:
        hop, depth = waiting.pop()
        _print_hop(hop, indent="  " * min(depth, _MAX_INDENT))
        waiting += [(input_, depth + 1) for input_ in reversed(inputs.get(hop.hop_index, []))]


def _print_hop(hop: Hop, *, indent: str) -> None:
    from tfdbg_arrow.query.wording import facts_text

    out = console()
    note = _ROLES.get(hop.role)
    head: list[str | tuple[str, str]] = [
        indent,
        (_name(hop), "bold red" if hop.has_inf_or_nan else "bold"),
        _where(hop),
    ]
    if note is not None:
        head.append((f"  <- {note}", "bold" if hop.role == "origin" else "dim"))
    out.print(styled(*head))
    out.print(styled(indent, "    ", facts_text(hop)))
    if hop.source is not None:
        line = f"{hop.source.file_path}:{hop.source.lineno}"
        code = "" if hop.source.code is None else f"  {printable_line(hop.source.code)}"
        out.print(styled(indent, "    ", (line + code, "dim")))


def _name(hop: Hop) -> str:
    if hop.op_type is None:
        return "a tensor from outside"
    slot = "" if hop.output_slot is None else f":{hop.output_slot}"
    return f"{hop.op_name}{slot} ({hop.op_type})" if hop.op_name is not None else f"{hop.op_type}{slot}, run eagerly"


def _where(hop: Hop) -> str:
    facts = [
        None if hop.graph_name is None else f"in {hop.graph_name}",
        f"iteration {hop.iteration}" if hop.iteration else None,
        None if hop.step is None else f"step {hop.step}",
        _HOW.get(hop.how),
    ]
    known = [fact for fact in facts if fact is not None]
    return ("" if hop.graph_name is None or not known else " ") + ", ".join(
        ["", *known] if hop.graph_name is None else known
    )


_HOW = {
    "argument": "passed as an argument",
    "capture": "captured by the function",
    "loop": "handed on by the loop",
    "call": "returned by a call",
    "variable": "written to the variable that was read",
    "external": "from outside",
    "unrecorded": "over unrecorded tensors",
}
