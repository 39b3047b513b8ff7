"""Ops: a number for each op of each graph at each call site, and a number for each output of these ops.

Nodes that TensorFlow's optimizer made count as ops of the graph in which they ran. Nodes at borders do not count.
"""

from __future__ import annotations

import numpy as np

from tfdbg_arrow.errors import MemoryLimitError
from tfdbg_arrow.link.arrays import Ints
from tfdbg_arrow.link.call_sites import CallSites
from tfdbg_arrow.link.tables import Tables, listed
from tfdbg_arrow.schema import op_traits

WRITER = op_traits.WRITER.pattern
"""Matches the types of ops that write to the resource that they take. For this constant and the constants below, see
"Following values" in the specification."""
REPLACING = f"{tuple(sorted(op_traits.REPLACING))}"
REFERENCE_WRITER = op_traits.REFERENCE_WRITER.pattern
"""Matches the types of ops that write to a variable of TensorFlow 1 through a reference, their first input."""
REFERENCES = f"{tuple(sorted(op_traits.types_with(op_traits.Trait.HOLDS_REFERENCE)))}"
_ENTERING = f"{tuple(sorted(op_traits.types_with(op_traits.Trait.ENTERS | op_traits.Trait.SWITCHES)))}"
NEVER_BAD = r"bool|string|q?u?int\d+"
"""Matches dtypes whose tensors are followed only if they have a row."""
_UNLINKED = f"{op_traits.TAKES_FROM_STORE.pattern}|({'|'.join(op_traits.PIPELINE_ENDS)}).*"
"""Matches the types of ops whose outputs no row links to their sources."""
_BORDER_NODES = "('Identity', 'Switch', 'Merge', 'Enter', 'Exit', 'NextIteration')"
"""Types of nodes at borders, as listed in "Optimized graphs" in the specification."""
_MAX_OUTPUTS = 65_536
"""Maximum number of outputs of one op. Only a hostile logdir has an op with more outputs."""
MAX_TENSORS = 40_000_000
"""Maximum number of outputs of all ops at all call sites. This number of outputs takes 1 GB."""

_SIZES = """
CREATE OR REPLACE TEMP TABLE linked_size AS
SELECT graph_id, op_name, max(slot) + 1 AS num_outputs FROM (
    SELECT graph_id, op_name, output_slot AS slot FROM graph_op_output
    UNION ALL SELECT graph_id, op_name, num_outputs - 1 FROM graph_op
    UNION ALL SELECT graph_id, source_op_name, source_output_slot FROM graph_op_input WHERE NOT is_control
    UNION ALL SELECT graph_id, op_name, output_slot FROM graph_function_output
    UNION ALL SELECT c.graph_id, c.op_name, r.output_index FROM graph_call AS c
    JOIN graph_function AS f ON f.graph_id = c.callee_graph_id
    JOIN graph_function_output AS r ON r.function_name = f.function_name
) GROUP BY graph_id, op_name"""
_NODES = f"""
CREATE OR REPLACE TEMP TABLE linked_node AS
SELECT
    executed_graph_id, node_name, op_type, graph_id, coalesce(op_name, node_name) AS op_name, made_for, call_site,
    op_name IS NULL AS is_made, op_name IS NULL AND op_type IN {_BORDER_NODES} AS is_border, output_dtypes
FROM executed_op
WHERE graph_id IS NOT NULL AND call_site IS NOT NULL"""
_MADE = """
CREATE OR REPLACE TEMP TABLE linked_made AS
SELECT
    graph_id, call_site, op_name, min(op_type) AS op_type, min(made_for) AS made_for,
    min(from_json(output_dtypes, '["VARCHAR"]')) AS dtypes
FROM linked_node
WHERE is_made AND NOT is_border
GROUP BY graph_id, call_site, op_name"""
_OPS = f"""
CREATE OR REPLACE TEMP TABLE linked_op AS
SELECT *, CAST(sum(num_outputs) OVER (ORDER BY op) - num_outputs AS BIGINT) AS base FROM (
    SELECT row_number() OVER (ORDER BY site, is_made, position, op_name) - 1 AS op, * REPLACE (
        least(greatest(coalesce(num_outputs, 1), 1), {_MAX_OUTPUTS}) AS num_outputs
    ) FROM (
        SELECT
            s.site, s.root, s.graph_id, s.text, g.op_name, g.op_type, coalesce(r.position, g.op_index) AS position,
            z.num_outputs, false AS is_made, CAST(NULL AS VARCHAR) AS made_for, coalesce(r.has_run, true) AS has_run
        FROM linked_site AS s
        JOIN graph_op AS g ON g.graph_id = s.graph_id
        LEFT JOIN linked_ran AS r ON r.root = s.root AND r.op_name = g.op_name AND s.text = ''
        LEFT JOIN linked_size AS z ON z.graph_id = g.graph_id AND z.op_name = g.op_name
        WHERE s.root >= -1 OR s.text <> '' OR r.op_name IS NOT NULL
        UNION ALL
        SELECT
            s.site, s.root, s.graph_id, s.text, m.op_name, m.op_type, coalesce(r.position, g.op_index, 0),
            len(m.dtypes), true, m.made_for, true
        FROM linked_site AS s
        JOIN linked_made AS m ON m.graph_id = s.graph_id AND m.call_site = s.text
        LEFT JOIN graph_op AS g ON g.graph_id = m.graph_id AND g.op_name = m.made_for
        LEFT JOIN linked_ran AS r ON r.root = s.root AND r.op_name = m.made_for AND s.text = ''
    )
)"""
_DTYPES = f"""
SELECT tensor, dtype = 'resource' AS is_resource, regexp_full_match(dtype, '{NEVER_BAD}') AS is_never_bad FROM (
    SELECT o.base + d.output_slot AS tensor, d.dtype FROM linked_op AS o
    JOIN graph_op_output AS d ON d.graph_id = o.graph_id AND d.op_name = o.op_name
    WHERE NOT o.is_made AND d.output_slot BETWEEN 0 AND o.num_outputs - 1
    UNION ALL
    SELECT base + place - 1, dtypes[place] FROM (
        SELECT o.base, m.dtypes, unnest(range(1, least(len(m.dtypes), o.num_outputs) + 1)) AS place
        FROM linked_op AS o JOIN linked_made AS m
        ON m.graph_id = o.graph_id AND m.call_site = o.text AND m.op_name = o.op_name
        WHERE o.is_made
    )
) WHERE dtype IS NOT NULL"""


class Ops:
    """The ops of a run by number. Output `s` of op `i` is the tensor `base[i] + s`.

    The class also creates the temporary tables `linked_node` (nodes that ran) and `linked_op` (the ops with their
    numbers).

    Args:
        tables: The tables of the run.
        sites: The call sites.

    Attributes:
        site, base, num_outputs, position: Columns with one value for each op. The position is the `op_index` of the op,
            or of the op for which the optimizer made the op. In a session's run, the position is the place of the op in
            the order of the run.
        is_made: Whether the optimizer made the op.
        is_writer, is_reference_writer, is_replacing, is_iterator: Whether and how the op writes to a resource.
        is_unlinked: Whether no row links the outputs of the op to their sources.
        is_passing: Whether the op hands on a resource or a reference: Identity, or a border of a loop or branch.
        is_handle: Whether the op makes the handle or the reference of a variable.
        of_tensor: The op of each tensor.
        is_resource: For each tensor, whether it is a resource or the reference of a variable.
        is_never_bad: For each tensor, whether its dtype cannot hold a bad value.

    Raises:
        MemoryLimitError: The graphs have too many ops.
    """

    def __init__(self, tables: Tables, sites: CallSites) -> None:
        listed(
            tables,
            "linked_site",
            site=("BIGINT", range(len(sites))),
            root=("BIGINT", [place.root for place in sites.places]),
            graph_id=("BIGINT", [place.graph_id for place in sites.places]),
            text=("VARCHAR", [place.text for place in sites.places]),
        )
        for statement in (_SIZES, _NODES, _MADE, _OPS):
            tables.run(statement)
        rows = tables.columns(
            "SELECT site, base, num_outputs, position, is_made, "
            f"has_run AND regexp_full_match(op_type, '{WRITER}|{REFERENCE_WRITER}') AS is_writer, "
            f"regexp_full_match(op_type, '{REFERENCE_WRITER}') AS is_reference_writer, "
            f"op_type IN {REPLACING} OR op_type = 'Assign' AS is_replacing, op_type IN {REFERENCES} AS is_reference, "
            f"op_type = 'MakeIterator' AS is_iterator, regexp_full_match(op_type, '{_UNLINKED}') AS is_unlinked, "
            f"op_type = 'Identity' OR op_type IN {_ENTERING} AS is_passing, op_type = 'VarHandleOp' AS is_handle "
            "FROM linked_op ORDER BY op"
        )
        self.site, self.base, self.num_outputs, self.position = (
            rows[name] for name in ("site", "base", "num_outputs", "position")
        )
        self.is_made, self.is_writer, self.is_replacing, self.is_iterator, self.is_unlinked, self.is_passing = (
            rows[name] for name in ("is_made", "is_writer", "is_replacing", "is_iterator", "is_unlinked", "is_passing")
        )
        self.is_reference_writer, is_reference = rows["is_reference_writer"], rows["is_reference"]
        self.is_passing |= self.is_reference_writer
        self.is_handle = rows["is_handle"] | is_reference
        self.num_tensors = int(self.base[-1] + self.num_outputs[-1]) if len(self.base) else 1
        if self.num_tensors > MAX_TENSORS:
            raise MemoryLimitError(
                f"the graphs have {self.num_tensors:,} outputs at all their call sites, expected at most "
                f"{MAX_TENSORS:,}; ask for views that do not follow the data, such as tensor_health."
            )
        self.of_tensor: Ints = np.repeat(np.arange(len(self.base)), self.num_outputs)
        self.is_resource, self.is_never_bad = np.zeros((2, self.num_tensors), bool)
        dtypes = tables.columns(_DTYPES)
        self.is_resource[dtypes["tensor"]] = dtypes["is_resource"]
        self.is_never_bad[dtypes["tensor"]] = dtypes["is_never_bad"]
        self.is_resource[self.base[is_reference]] = True

    def __len__(self) -> int:
        return len(self.base)


def unlinked_types() -> str:
    """Returns a regular expression for the types of ops whose outputs no row links to their sources."""
    return _UNLINKED
