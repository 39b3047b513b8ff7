"""Compares the view `tensor_input` with the inputs that the reader finds.

The module compares edges between rows of tensor_health. An edge consists of a tensor, the index of an input of its op,
and a nearest recorded tensor behind this input.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from tests.spec_reader.reader import Run, open_logdir
from tfdbg_arrow.query import Logdir
from tfdbg_arrow.query import open_logdir as open_for_queries

_NEVER_BAD = re.compile(r"bool|string|q?u?int\d+")

Edge = tuple[int, int, int]
"""(event_index of a tensor, input index or -1 at a border, event_index of a nearest recorded tensor behind it)."""


def differences(logdir: Path) -> list[str]:
    """Returns the edges of each run that only the view or only the reader has."""
    found = []
    with open_for_queries(logdir) as opened:
        for run in open_logdir(logdir):
            ours, theirs = edges_of_view(opened, run), edges_of_reader(run)
            found += [f"{run.run_id}: only the view has {_named(run, edge)}" for edge in sorted(ours - theirs)]
            found += [f"{run.run_id}: only the reader has {_named(run, edge)}" for edge in sorted(theirs - ours)]
    return found


def edges_of_reader(run: Run) -> set[Edge]:
    """Returns the edges that the reader finds."""
    found = set()
    for tensor, row in run.health.items():
        for index, source in run.numbered_inputs(tensor):
            nearest = [source] if source in run.health else run.ancestors(source, is_through_rows=False)
            rows = (run.health[each] for each in nearest if each in run.health)
            number = -1 if index is None else index
            found |= {
                (row["event_index"], number, other["event_index"]) for other in rows if _can_be_bad(other["dtype"])
            }
    return found


def edges_of_view(logdir: Logdir, run: Run) -> set[Edge]:
    """Returns the edges in the view."""
    dtypes = {row["event_index"]: row["dtype"] for row in run.health.values()}
    inputs: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for node, index, kind, source in logdir.rows(
        "SELECT node_id, input_index, source_kind, source_node_id FROM tensor_input "
        "WHERE run_id = ? AND source_node_id IS NOT NULL",
        [run.run_id],
    ):
        if _can_be_bad(dtypes.get(source)):
            inputs[node].add((-1 if kind in ("argument", "result") else index, source))
    return {
        (event, index, nearest)
        for event in dtypes
        for index, source in inputs[event]
        for nearest in _nearest(source, inputs)
    }


def _can_be_bad(dtype: str | None) -> bool:
    return _NEVER_BAD.fullmatch(dtype or "") is None


def _nearest(node: int, inputs: dict[int, set[tuple[int, int]]]) -> set[int]:
    """Returns the tensor itself if it has a row. Otherwise, returns the nearest tensors with rows behind it."""
    seen = {node}
    waiting = [node]
    while waiting:
        at = waiting.pop()
        new = {source for _, source in inputs[at]} - seen if at < 0 else set()
        seen |= new
        waiting += new
    return {each for each in seen if each >= 0}


def _named(run: Run, edge: Edge) -> str:
    rows = {row["event_index"]: row for row in run.health.values()}
    user, source = (
        f"{event} {row['op_name'] or row['op_type']}:{row['output_slot']} ({row['call_site']}, {row['iteration']})"
        for event, row in ((event, rows[event]) for event in (edge[0], edge[2]))
    )
    return f"{user} <- {edge[1]}: {source}"
