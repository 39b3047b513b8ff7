"""Finds the counterpart in B of each recorded tensor of A, by joins over whole tables.

Two rows of tensor_health match if their executions match. Within a call, their contexts, ops and output slots must
match, too. A context is a call site, an entry of a loop, and an iteration. Step ids, frame ids, tensor ids, graph ids
and event_index differ between processes, so only the order of these numbers within the aligned parts is compared.
"""

from __future__ import annotations

import pyarrow as pa

from tfdbg_arrow.query.run_diff.aligned_graphs import AlignedSite, FoundSite, GraphPair, OpAligner, align_sites
from tfdbg_arrow.query.run_diff.alignment import AlignedExecutions
from tfdbg_arrow.query.run_diff.workspace import SIDES, Sides, Workspace


def pair_tensors(work: Workspace, executions: AlignedExecutions, sides: Sides, aligner: OpAligner) -> list[GraphPair]:
    """Creates the tables `pair` (event_a, event_b, ordinal, context_pair, site_id, op_id, output_slot) and `op_source`.

    Returns:
        The pairs of graphs for which both runs have rows.
    """
    _load_executions(work, executions)
    for side in SIDES:
        work.execute(_CONTEXT.format(s=side))
    found_sites = tuple(_found_sites(work, side) for side in SIDES)
    roots = {(-1, -1), *zip(executions.graph_a.tolist(), executions.graph_b.tolist(), strict=True)}
    sites = align_sites(roots, (found_sites[0], found_sites[1]), sides, aligner)
    pairs = [aligner.pair(*key) for key in sorted({(site.graph_a, site.graph_b) for site in sites})]
    _load_sites(work, sites)
    _load_ops(work, pairs)
    for side in SIDES:
        work.execute(_STEP.format(s=side))
    work.execute(_STEP_PAIR)
    for side in SIDES:
        work.execute(_RANKED.format(s=side))
    for statement in (_CONTEXT_PAIR, _NAMED, _PAIR, _EXTERNAL_PAIR):
        work.execute(statement)
    return pairs


def _load_executions(work: Workspace, executions: AlignedExecutions) -> None:
    table = pa.table(
        {
            "ordinal": pa.array(range(len(executions.a)), pa.int64()),
            "execution_a": executions.a,
            "execution_b": executions.b,
            "graph_a": executions.graph_a,
            "graph_b": executions.graph_b,
        }
    )
    work.load_arrow("execution_pair", table)
    # Rows without a known execution are paired with each other.
    work.execute("INSERT INTO execution_pair VALUES (-1, -1, -1, -1, -1)")


def _found_sites(work: Workspace, side: str) -> list[FoundSite]:
    rows = work.rows(
        "SELECT DISTINCT coalesce(e.graph_id, -1), c.graph_id, c.call_site "
        f"FROM context_{side} AS c LEFT JOIN execution_{side} AS e ON e.execution_index = c.execution_index "
        "ORDER BY ALL"
    )
    return [FoundSite(*row) for row in rows]


def _load_sites(work: Workspace, sites: list[AlignedSite]) -> None:
    work.load(
        "site",
        ("site_id", "start_id", "graph_a", "graph_b"),
        list({site.site_id: (site.site_id, site.start_id, site.graph_a, site.graph_b) for site in sites}.values()),
        (int, int, int, int),
    )
    for side in SIDES:
        rows = {
            (root_a, root_b, found_site.graph_id, found_site.call_site, site.site_id, site.start_id)
            for site in sites
            for root_a, root_b, found_site in (site.a if side == "a" else site.b)
        }
        columns = ("root_a", "root_b", "graph_id", "call_site", "site_id", "start_id")
        work.load(f"site_{side}", columns, sorted(rows), (int, int, int, str, int, int))


def _load_ops(work: Workspace, pairs: list[GraphPair]) -> None:
    ops: list[tuple[int, str, int, str, int]] = []
    sources: list[tuple[int, int, str, int, bool]] = []
    for pair in pairs:
        for op_a, op_b in pair.ops.items():
            op_id = len(ops)
            ops.append((pair.graph_a, op_a, pair.graph_b, op_b, op_id))
            jumps = pair.jumps.get(op_a, frozenset())
            sources += ((op_id, pair.graph_a, name, slot, (name, slot) in jumps) for name, slot in pair.sources[op_a])
    work.load("op_pair", ("graph_a", "op_a", "graph_b", "op_b", "op_id"), ops, (int, str, int, str, int))
    work.load(
        "source_name", ("op_id", "graph_a", "op_a", "output_slot", "is_jump"), sources, (int, int, str, int, bool)
    )
    # If one run traced a function more often, an op may be paired with ops of several graphs of B.
    work.execute(
        "CREATE TABLE op_source AS SELECT s.op_id, o.op_id AS source_id, s.output_slot, s.is_jump "
        "FROM source_name AS s JOIN op_pair AS own ON own.op_id = s.op_id "
        "JOIN op_pair AS o ON o.graph_a = s.graph_a AND o.op_a = s.op_a AND o.graph_b = own.graph_b"
    )


_CONTEXT = """
CREATE TABLE context_{s} AS
SELECT row_number() OVER (ORDER BY first_event) AS context_id, *
FROM (
    SELECT execution_index, step_id, frame_id, iteration, call_site, graph_id, min(event_index) AS first_event
    FROM health_{s} WHERE scope = 'graph'
    GROUP BY execution_index, step_id, frame_id, iteration, call_site, graph_id
) AS c
"""
"""Each row is one execution of a graph; in a loop, one iteration."""

_STEP = """
CREATE TABLE step_{s} AS
SELECT ordinal, start_id, step_id, first_event, content,
    row_number() OVER (PARTITION BY ordinal, start_id, content ORDER BY first_event) AS content_rank
FROM (
    SELECT x.ordinal, m.start_id, c.step_id, min(c.first_event) AS first_event,
        CASE WHEN x.ordinal >= 0 THEN 0 ELSE max(w.content) END AS content
    FROM context_{s} AS c
    JOIN execution_pair AS x ON x.execution_{s} = c.execution_index
    JOIN site_{s} AS m ON m.root_a = x.graph_a AND m.root_b = x.graph_b
        AND m.graph_id = c.graph_id AND m.call_site = c.call_site
    LEFT JOIN (
        SELECT step_id, sum(hash(op_type, output_slot, dtype, shape, num_nan, num_neg_inf, num_pos_inf, num_neg_finite,
            num_zero, num_pos_finite, min_finite, max_finite, mean_finite, stddev_finite) % 1000000007) AS content
        FROM health_{s} WHERE scope = 'graph' AND execution_index = -1 GROUP BY step_id
    ) AS w ON w.step_id = c.step_id
    GROUP BY x.ordinal, m.start_id, c.step_id
) AS steps
"""
"""Each row is one step of the runtime. The functions that a dataset runs in its own threads come in any order. If their
execution is unknown, they are paired by their outputs first, and then by their order."""

_UNPAIRED_STEP = """
SELECT *, row_number() OVER (PARTITION BY ordinal, start_id ORDER BY first_event, step_id) AS step_rank
FROM step_{s} AS s WHERE NOT EXISTS (
    SELECT 1 FROM step_pair AS p WHERE p.ordinal = s.ordinal AND p.start_id = s.start_id AND p.step_{s} = s.step_id)
"""

_STEP_PAIR = f"""
CREATE TABLE step_pair AS
SELECT a.ordinal, a.start_id, a.step_id AS step_a, b.step_id AS step_b
FROM step_a AS a
JOIN step_b AS b ON b.ordinal = a.ordinal AND b.start_id = a.start_id
    AND b.content = a.content AND b.content_rank = a.content_rank
WHERE a.ordinal < 0;
INSERT INTO step_pair
SELECT a.ordinal, a.start_id, a.step_id, b.step_id
FROM ({_UNPAIRED_STEP.format(s="a")}) AS a
JOIN ({_UNPAIRED_STEP.format(s="b")}) AS b
    ON b.ordinal = a.ordinal AND b.start_id = a.start_id AND b.step_rank = a.step_rank
"""

_RANKED = """
CREATE TABLE ranked_{s} AS
SELECT context_id, ordinal, site_id, step_a, iteration, frame_rank,
    row_number() OVER (PARTITION BY ordinal, site_id, step_a, iteration, frame_rank ORDER BY context_id) AS copy
FROM (
    SELECT context_id, ordinal, site_id, step_a, iteration,
        dense_rank() OVER (PARTITION BY ordinal, site_id, step_a ORDER BY frame_first, frame_id) AS frame_rank
    FROM (
        SELECT c.context_id, x.ordinal, m.site_id, p.step_a, c.iteration, c.frame_id,
            min(c.first_event) OVER (PARTITION BY x.ordinal, m.site_id, p.step_a, c.frame_id) AS frame_first
        FROM context_{s} AS c
        JOIN execution_pair AS x ON x.execution_{s} = c.execution_index
        JOIN site_{s} AS m ON m.root_a = x.graph_a AND m.root_b = x.graph_b
            AND m.graph_id = c.graph_id AND m.call_site = c.call_site
        JOIN step_pair AS p ON p.ordinal = x.ordinal AND p.start_id = m.start_id AND p.step_{s} = c.step_id
    ) AS placed
) AS framed
"""
"""Each row is a context with its key, which both runs share. The frames of a loop are distinguished by their order."""

_CONTEXT_PAIR = """
CREATE TABLE context_pair AS
SELECT row_number() OVER (ORDER BY a.context_id) AS context_pair, a.context_id AS context_a, b.context_id AS context_b,
    a.ordinal, a.site_id, s.graph_a, s.graph_b
FROM ranked_a AS a
JOIN ranked_b AS b ON b.ordinal = a.ordinal AND b.site_id = a.site_id AND b.step_a = a.step_a
    AND b.iteration = a.iteration AND b.frame_rank = a.frame_rank AND b.copy = a.copy
JOIN site AS s ON s.site_id = a.site_id
"""

_GRAPH_EVENT = """
SELECT h.event_index, c.context_id, h.op_name, h.op_type, h.output_slot, row_number() OVER (
    PARTITION BY c.context_id, h.op_name, h.output_slot ORDER BY h.event_index) AS occurrence
FROM health_{s} AS h
JOIN context_{s} AS c ON c.execution_index = h.execution_index AND c.step_id = h.step_id AND c.frame_id = h.frame_id
    AND c.iteration = h.iteration AND c.call_site = h.call_site AND c.graph_id = h.graph_id
WHERE h.scope = 'graph'
"""

_NAMED = f"""
CREATE TABLE named AS
SELECT a.event_index, a.op_type, a.output_slot, a.occurrence, c.ordinal, c.context_pair, c.context_b, c.site_id,
    o.op_id, o.op_b
FROM ({_GRAPH_EVENT.format(s="a")}) AS a
JOIN context_pair AS c ON c.context_a = a.context_id
JOIN op_pair AS o ON o.graph_a = c.graph_a AND o.graph_b = c.graph_b AND o.op_a = a.op_name
"""
"""Each row is a tensor of A in a graph, with the name of its op in B."""

_PAIR = f"""
CREATE TABLE pair AS
SELECT a.event_index AS event_a, b.event_index AS event_b, a.ordinal, a.context_pair, a.site_id, a.op_id, a.output_slot
FROM named AS a
JOIN ({_GRAPH_EVENT.format(s="b")}) AS b ON b.context_id = a.context_b AND b.op_name = a.op_b
    AND b.output_slot = a.output_slot AND b.occurrence = a.occurrence AND b.op_type = a.op_type
UNION ALL
SELECT a.event_index, b.event_index, x.ordinal, NULL, NULL, NULL, a.output_slot
FROM health_a AS a
JOIN execution_pair AS x ON x.execution_a = a.execution_index
JOIN health_b AS b ON b.execution_index = x.execution_b AND b.output_slot = a.output_slot AND b.scope = 'execution'
WHERE a.scope = 'execution'
"""

_EXTERNAL = """
SELECT h.event_index, h.execution_index, min(i.input_index) AS input_index
FROM health_{s} AS h
LEFT JOIN execution_input_{s} AS i ON i.execution_index = h.execution_index AND i.tensor_id = h.tensor_id
WHERE h.scope = 'external' GROUP BY h.event_index, h.execution_index
"""

_EXTERNAL_PAIR = f"""
INSERT INTO pair
SELECT a.event_index, b.event_index, x.ordinal, NULL, NULL, NULL, NULL
FROM ({_EXTERNAL.format(s="a")}) AS a
JOIN execution_pair AS x ON x.execution_a = a.execution_index
JOIN ({_EXTERNAL.format(s="b")}) AS b ON b.execution_index = x.execution_b AND b.input_index = a.input_index
"""
"""Tensors from outside are paired if they have the same input index in aligned executions that used them first."""
