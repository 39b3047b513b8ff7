"""Compares the view `tensor_input` with the inputs that the reader finds by the specification alone.

Both are compared as pairs of rows of tensor_health: a tensor, and a nearest recorded tensor behind one of its inputs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from tests.spec_reader.reader import Run, open_logdir
from tfdbg_arrow.query import Logdir
from tfdbg_arrow.query import open_logdir as open_for_queries

_NEVER_BAD = re.compile(r"bool|string|q?u?int\d+")

Pair = tuple[int, int]
"""(event_index of a tensor, event_index of a nearest recorded tensor behind one of its inputs)."""


def differences(logdir: Path) -> list[str]:
    """Returns the pairs of each run that only one of the two has."""
    found = []
    with open_for_queries(logdir) as opened:
        for run in open_logdir(logdir):
            if run.has_sessions:  # the view has no inputs of these
                continue
            ours, theirs = _pairs_of_view(opened, run), _pairs_of_reader(run)
            found += [f"{run.run_id}: only the view has {_named(run, pair)}" for pair in sorted(ours - theirs)]
            found += [f"{run.run_id}: only the reader has {_named(run, pair)}" for pair in sorted(theirs - ours)]
    return found


def _pairs_of_reader(run: Run) -> set[Pair]:
    return {
        (row["event_index"], run.health[source]["event_index"])
        for tensor, row in run.health.items()
        for source in run.ancestors(tensor, is_through_rows=False)
        if source in run.health and not _NEVER_BAD.fullmatch(run.health[source]["dtype"] or "")
    }


def _pairs_of_view(logdir: Logdir, run: Run) -> set[Pair]:
    dtypes = {row["event_index"]: row["dtype"] or "" for row in run.health.values()}
    sources: dict[int, set[int]] = defaultdict(set)
    for node, source in logdir.rows(
        "SELECT node_id, source_node_id FROM tensor_input WHERE run_id = ? AND source_node_id IS NOT NULL", [run.run_id]
    ):
        if not _NEVER_BAD.fullmatch(dtypes.get(source, "")):
            sources[node].add(source)
    return {(event, source) for event in dtypes for source in _nearest(event, sources)}


def _nearest(event: int, sources: dict[int, set[int]]) -> set[int]:
    seen: set[int] = set()
    waiting = [event]
    while waiting:
        new = sources[waiting.pop()] - seen
        seen |= new
        waiting += [source for source in new if source < 0]
    return {source for source in seen if source >= 0}


def _named(run: Run, pair: Pair) -> str:
    rows = {row["event_index"]: row for row in run.health.values()}
    return " <- ".join(
        f"{event} {row['op_name'] or row['op_type']}:{row['output_slot']} ({row['call_site']}, {row['iteration']})"
        for event, row in ((event, rows[event]) for event in pair)
    )
