"""`tfdbg-arrow why`: shows how a tensor became bad, or where its bad values went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tfdbg_arrow.cli.output import (
    JsonOption,
    MemoryLimitOption,
    RunOption,
    SkipBrokenOption,
    console,
    print_about,
    print_csv,
    print_json,
    reading,
    styled,
)
from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.safe_text import number_of, printable, printable_line

if TYPE_CHECKING:
    from tfdbg_arrow.query import Hop, Logdir, NonFinite, Provenance, Spread, SpreadHop, TensorHop

_NUM_FIRST = 3
_NUM_LAST = 7
_MAX_INDENT = 20
_NUM_SPREAD = 20
_NUM_NAMES = 5


def why(
    logdir: Annotated[str, typer.Argument(metavar="LOGDIR", help="The directory that a recording wrote.")],
    tensor: Annotated[
        str | None,
        typer.Argument(
            metavar="TENSOR",
            help="An event_index, or the name of an op or tensor, e.g. `Log` or `Log:0`, which means its first bad "
            "value. Default: what first-nonfinite names.",
        ),
    ] = None,
    run_id: RunOption = None,
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

    Exit codes: 0 nothing is bad, or the bad value did no harm, 1 a bad value did harm or may have, 2 an error.
    """
    from tfdbg_arrow.query import Provenance, Spread

    if csv and json:
        raise QueryError("--csv and --json were both given; give only one of them.")
    with reading(logdir, skip_broken=skip_broken, memory_limit=memory_limit) as opened:
        about = opened.about_runs(run_id=run_id)
        first = opened.first_nonfinite(run_id=run_id) if tensor is None else None
        search = opened.spread if forward else opened.provenance
        found: Provenance | Spread | None = None
        if first is not None:
            found = search(first, limit=limit)
        elif tensor is not None and (start := _find(opened, tensor, run_id=run_id)) is not None:
            found = search(start[1], run_id=start[0], limit=limit)
    if json:
        print_json({"logdir": logdir, "tensor": tensor, "spread" if forward else "provenance": found, "about": about})
    elif csv:
        columns = Spread.columns() if forward else Provenance.columns()
        print_csv(columns, [] if found is None else [tuple(row.values()) for row in found.rows()])
    elif found is None:
        print_about(about)
        typer.echo("Nothing is bad" + (f" in {tensor}." if tensor else "."))
    else:
        print_about(about)
        if first is not None:
            typer.echo(printable(first.headline))
        if isinstance(found, Spread):
            print_spread(found, full=full)
        else:
            print_provenance(found, start=first, tree=tree, full=full)
    raise typer.Exit(0 if found is None or found.expected_reason is not None else 1)


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


def print_provenance(found: Provenance, *, start: NonFinite | None, tree: bool, full: bool) -> None:
    """Prints the path from a bad tensor back to its origin.

    Args:
        found: The path or paths.
        start: The tensor, if its samples are to be named.
        tree: Whether to print all paths.
        full: Whether to print every tensor of a long path.
    """
    from tfdbg_arrow.query.verdict import effect_lines, explanation_lines, place_lines

    out = console()
    notes = _notes(found)
    origin = found.origin
    reasons = () if origin is None else explanation_lines(why=origin.why, repair=origin.repair, growth=found.growth)
    lines = [
        *reasons,
        *effect_lines(found.effect, found.expected_reason),
        *([] if start is None else place_lines(start)),
    ]
    for line in lines:
        out.print(styled(line))
    if lines:
        out.print()
    if tree:
        _print_tree(found)
    else:
        way = list(reversed(found.path))
        num_folded = 0 if full else max(0, len(way) - _NUM_FIRST - _NUM_LAST)
        for index, hop in enumerate(way):
            if _NUM_FIRST <= index < _NUM_FIRST + num_folded:
                if index == _NUM_FIRST:
                    out.print(styled((f"... {num_folded:,} more tensors on the path; --full shows them", "dim")))
                continue
            _print_hop(hop, note=notes.get(hop.role), indent="    " if hop.is_input or hop.role == "literal" else "")
    if found.is_cut:
        _print_cut(len(found.hops))


def _notes(found: Provenance) -> dict[str, str]:
    """Returns what the roles of hops mean. If the value did no harm, no hop is called bad."""
    from tfdbg_arrow.query.wording import HOP_ROLES

    return HOP_ROLES if found.expected_reason is None else {**HOP_ROLES, "origin": "it began here"}


def print_spread(found: Spread, *, full: bool) -> None:
    """Prints where a bad tensor went: totals, then each tensor once, below the one that it was computed from.

    Args:
        found: The tensors that became bad.
        full: Whether to print every tensor, not only the first ones.
    """
    from tfdbg_arrow.query.verdict import effect_lines
    from tfdbg_arrow.query.wording import spread_text

    out = console()
    parts = [spread_text(found)]
    if found.returned_by:
        parts.append("returned to eager code by " + _some(found.returned_by))
    if found.variables:
        parts.append("written to variables " + _some([f"#{variable}" for variable in found.variables]))
    out.print(styled(("; ".join(parts) + ".", "bold")))
    for line in effect_lines(found.effect, found.expected_reason):
        out.print(styled(line))
    out.print()
    depths: dict[int, int] = {}
    num_shown = num_left_out = 0
    for hop in _in_tree_order(found):
        depths[hop.hop_index] = 0 if hop.source_hop_index is None else depths[hop.source_hop_index] + 1
        if not full and num_shown >= _NUM_SPREAD:
            num_left_out += 1
            continue
        num_shown += 1
        _print_hop(hop, note=_reach(hop), indent="  " * min(depths[hop.hop_index], _MAX_INDENT))
    if num_left_out:
        out.print(styled((f"... {number_of(num_left_out, 'more tensor')}; --full shows all", "dim")))
    if found.is_cut:
        _print_cut(len(found.hops))


def _in_tree_order(found: Spread) -> Iterator[SpreadHop]:
    users: dict[int | None, list[SpreadHop]] = {}
    for hop in found.hops:
        users.setdefault(hop.source_hop_index, []).append(hop)
    waiting = list(reversed(users[None]))
    while waiting:
        hop = waiting.pop()
        yield hop
        waiting += reversed(users.get(hop.hop_index, []))


def _reach(hop: SpreadHop) -> str | None:
    """Returns which functions returned a tensor and which variables hold it; None if it did not leave its graph."""
    parts = []
    if hop.returned_by:
        parts.append("returned by " + _some(hop.returned_by))
    if hop.variables:
        parts.append("written to variable " + _some([f"#{variable}" for variable in hop.variables]))
    return "; ".join(parts) or None


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NUM_NAMES
    return ", ".join(names[:_NUM_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def _print_cut(num_hops: int) -> None:
    out = console()
    out.print()
    out.print(styled((f"The search stopped after {num_hops:,} tensors; --limit raises the limit.", "bold")))


def _print_tree(found: Provenance) -> None:
    """Prints each tensor once, below the one that led to it."""
    notes = _notes(found)
    inputs: dict[int | None, list[Hop]] = {}
    for hop in found.hops:
        inputs.setdefault(hop.user_hop_index, []).append(hop)
    waiting = [(hop, 0) for hop in reversed(inputs[None])]
    while waiting:
        hop, depth = waiting.pop()
        _print_hop(hop, note=notes.get(hop.role), indent="  " * min(depth, _MAX_INDENT))
        waiting += [(input_, depth + 1) for input_ in reversed(inputs.get(hop.hop_index, []))]


def _print_hop(hop: TensorHop, *, note: str | None, indent: str) -> None:
    from tfdbg_arrow.query.wording import HOP_ROLES, facts_text, hop_place_text, hop_text, made_at_text

    out = console()
    head: list[str | tuple[str, str]] = [
        indent,
        (hop_text(hop), "bold red" if hop.has_inf_or_nan else "bold"),
        hop_place_text(hop),
    ]
    if note is not None:
        head.append((f"  <- {note}", "bold" if note == HOP_ROLES["origin"] else "dim"))
    out.print(styled(*head))
    out.print(styled(indent, "    ", facts_text(hop)))
    if hop.source is not None:
        line = hop.source.place
        code = "" if hop.source.code is None else f"  {printable_line(hop.source.code)}"
        out.print(styled(indent, "    ", (line + code, "dim")))
    if hop.made_at is not None:
        out.print(styled(indent, "    ", (f"made at {printable_line(made_at_text(hop.made_at))}", "dim")))
