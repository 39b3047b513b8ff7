"""Passes: a number for each iteration of each frame of each step.

A pass is a context, as defined in the specification, without the call site. Iteration i of a frame is the pass
`start[frame] + i`.
"""

from __future__ import annotations

import numpy as np

from tfdbg_arrow.link.arrays import Ints, distinct, ints
from tfdbg_arrow.link.frame_entries import find_entries
from tfdbg_arrow.link.tables import Tables

MAX_PASSES = 30_000_000
"""Maximum number of passes of all frames. Frames beyond this number are left out. This number of passes needs 1 GB."""

_SEEN = f"""
CREATE OR REPLACE TEMP TABLE linked_seen AS
SELECT
    step_id, frame_id, iteration, call_site, graph_id, min(event_index) AS first,
    min(execution_index) AS execution_index, max(executed_graph_id) AS executed_graph_id
FROM tensor_health
WHERE scope = 'graph' AND event_index >= 0 AND iteration BETWEEN 0 AND {MAX_PASSES}
AND step_id IS NOT NULL AND frame_id IS NOT NULL AND call_site IS NOT NULL AND graph_id IS NOT NULL
GROUP BY step_id, frame_id, iteration, call_site, graph_id"""
_STEPS = """
CREATE OR REPLACE TEMP TABLE linked_step AS
SELECT
    s.step_id, min(s.first) AS first, min(s.execution_index) AS execution_index,
    min(coalesce(r.root, e.graph_id, -1)) AS root, min(e.event_index) AS started,
    max(s.executed_graph_id) AS executed_graph_id
FROM linked_seen AS s
LEFT JOIN execution AS e ON e.execution_index = s.execution_index
LEFT JOIN linked_session AS r ON r.function_name = e.op_type
GROUP BY s.step_id"""
_SILENT_STEPS = """
INSERT INTO linked_step
SELECT
    -1 - e.execution_index, e.event_index, e.execution_index, coalesce(r.root, e.graph_id), e.event_index, NULL
FROM execution AS e
LEFT JOIN linked_session AS r ON r.function_name = e.op_type
WHERE e.graph_id IS NOT NULL AND e.event_index >= 0 AND e.execution_index >= 0
AND e.execution_index NOT IN (SELECT execution_index FROM linked_step WHERE execution_index IS NOT NULL)
AND e.graph_id NOT IN (SELECT graph_id FROM linked_seen WHERE execution_index IS NULL)"""
"""A call without rows is a step of its own, unless its rows may be among the rows without an execution."""
_FRAMES = f"""
CREATE OR REPLACE TEMP TABLE linked_frame AS
SELECT
    *, row_number() OVER place - 1 AS frame,
    CAST(sum(num_passes) OVER place - num_passes AS BIGINT) AS start
FROM (
    SELECT
        t.step_id, f.frame_id, f.num_passes, f.first, t.root, t.execution_index,
        coalesce(t.started, t.first) AS started, t.executed_graph_id
    FROM linked_step AS t
    JOIN (
        SELECT step_id, frame_id, min(first) AS first, max(iteration) + 1 AS num_passes FROM linked_seen
        GROUP BY step_id, frame_id
        UNION ALL
        SELECT step_id, 0, first, 1 FROM linked_step
        WHERE step_id NOT IN (SELECT step_id FROM linked_seen WHERE frame_id = 0)
    ) AS f ON f.step_id = t.step_id
    QUALIFY sum(f.num_passes) OVER (ORDER BY f.num_passes, f.first, t.step_id, f.frame_id) <= {MAX_PASSES}
)
WINDOW place AS (ORDER BY started, first, step_id, frame_id)"""


class Passes:
    """The passes of a run.

    The class also creates the temporary table `linked_frame`: the frames with their first passes. The class needs the
    temporary tables of `Sessions`.

    Attributes:
        start: The first pass of each frame. Frames are in the order in which they began.
        num_passes: The number of passes of each frame.
        step: The rank of each frame's step among all steps, from 0.
        frame_id: The `frame_id` of each frame, 0 outside loops.
        root: The outermost graph, or the `root` of a session's function; -1 if no execution is known.
        started: `event_index` of the execution, or the smallest `event_index` of the step.
        execution: `execution_index`, -1 if it is unknown.
        executed_graph: `executed_graph_id`, -1 if no optimized graph ran.
    """

    def __init__(self, tables: Tables) -> None:
        for statement in (_SEEN, _STEPS, _SILENT_STEPS, _FRAMES):
            tables.run(statement)
        rows = tables.columns("SELECT * FROM linked_frame ORDER BY frame")
        self.start = rows["start"]
        self.num_passes, self.frame_id, self.root = rows["num_passes"], rows["frame_id"], rows["root"]
        self.started, self.execution = rows["started"], rows["execution_index"]
        self.executed_graph = rows["executed_graph_id"]
        self.step: Ints = np.searchsorted(distinct(rows["step_id"]), rows["step_id"])

    def __len__(self) -> int:
        return int(self.start[-1] + self.num_passes[-1]) if len(self.start) else 0

    def add_frame(self, like: int, num_passes: int) -> int:
        """Adds a frame without rows to the step of an existing frame, and returns the number of the new frame."""
        self.start = np.append(self.start, len(self))
        self.num_passes = np.append(self.num_passes, num_passes)
        self.frame_id = np.append(self.frame_id, -1)
        for name in ("root", "started", "execution", "executed_graph", "step"):
            column = getattr(self, name)
            setattr(self, name, np.append(column, column[like]))
        return len(self.start) - 1

    def entries_of(self, frames: Ints, entries: Ints) -> Ints:
        """Returns the pass in which each frame of a nested loop was entered, -1 if it is unknown.

        Args:
            frames: The frames of the loop in one step.
            entries: The passes in which the loop can have been entered.
        """
        outer = self.frame_of(entries)
        iterations = entries - self.start[outer]
        possible = list(zip(self.frame_id[outer].tolist(), iterations.tolist(), strict=True))
        frame_ids = self.frame_id[frames].tolist()
        index_of = find_entries(frame_ids, possible)
        return ints([int(entries[index_of[frame]]) if frame in index_of else -1 for frame in frame_ids])

    def frame_of(self, passes: Ints) -> Ints:
        """Returns the frame of each pass."""
        return np.searchsorted(self.start, passes, "right") - 1
