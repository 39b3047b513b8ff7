"""Candidates for the first divergence: pairs that differ by more than their inputs explain.

Rounding errors grow as they propagate. The operands of a difference that nearly cancels are large compared to it, and
an exponential turns an absolute error into a relative one. So a pair is not a candidate if

- its difference lies within the tolerance for the magnitudes that the op worked on (`_CONDITION`), or
- its relative difference is at most `growth` times the largest one of its inputs: it grew and was not created here, or
- the op jumps (a mask, a maximum), its inputs differ by rounding, and only few elements jumped, or the number of jumped
  elements is unknown because integers and bools were not recorded.

The source of an argument or of a read of a variable lies elsewhere. Such a tensor is compared with its own previous
difference, and `roots` follows it across the border.
"""

from __future__ import annotations

from tfdbg_arrow.query.diff.comparing import HARD
from tfdbg_arrow.query.diff.tolerance import Tolerance
from tfdbg_arrow.query.diff.workspace import Workspace

_OF_INPUT = (
    "Add", "AddV2", "AddN", "AccumulateNV2", "BiasAdd", "BiasAddV1", "ClipByValue", "FloorMod", "Mean", "Mod", "Sub",
)  # fmt: skip
_OF_SUM = ("BiasAddGrad", "Cumsum", "SegmentSum", "Sum", "UnsortedSegmentSum")
_OF_PRODUCT = (
    "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Conv1D", "Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput",
    "Conv3D", "Conv3DBackpropFilterV2", "Conv3DBackpropInputV2", "DepthwiseConv2dNative",
    "DepthwiseConv2dNativeBackpropFilter", "DepthwiseConv2dNativeBackpropInput", "Einsum", "MatMul",
    "SparseTensorDenseMatMul", "SquaredDifference",
)  # fmt: skip
_OF_ONE = (
    "Cos", "Log", "Log1p", "LogSoftmax", "Sin", "SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits",
)  # fmt: skip
_EXPONENTIAL = ("Exp", "Expm1", "Softmax")
_JUMPING = (
    "ArgMax", "ArgMin", "Cast", "Ceil", "Equal", "Floor", "Greater", "GreaterEqual", "InTopKV2", "Less", "LessEqual",
    "LogicalAnd", "LogicalNot", "LogicalOr", "MaxPoolGrad", "NotEqual", "Relu6Grad", "ReluGrad", "LeakyReluGrad",
    "Rint", "Round", "Select", "SelectV2", "Sign", "TopKV2", "Where",
)  # fmt: skip


def find_candidates(work: Workspace, tolerance: Tolerance, *, known: str | None) -> None:
    """Creates the table `candidate` (event_a, position) from the table `compared`, by data flow between executions.

    Args:
        work: The workspace in which both runs were staged.
        tolerance: The differences that count as rounding.
        known: Regular expression for the names or types of ops that are not candidates; None for none.
    """
    work.execute("CREATE TABLE apart AS SELECT * FROM compared WHERE excess > 1")
    work.execute(_INPUT)
    work.execute(_BEFORE)
    work.execute(_CANDIDATE.format(hard=HARD, growth=repr(tolerance.growth), condition=_CONDITION))
    if known is not None:
        work.rows(
            "DELETE FROM candidate WHERE event_a IN (SELECT event_index FROM health_a "
            "WHERE regexp_full_match(op_name, $known) OR regexp_full_match(op_type, $known))",
            {"known": known},
        )


def _in(names: tuple[str, ...]) -> str:
    return "(" + ", ".join(f"'{name}'" for name in names) + ")"


_INPUT = """
CREATE TABLE input AS
SELECT event_a, max(relative) AS relative,
    max(CASE WHEN is_jump THEN relative ELSE 0 END) AS jump_relative, max(scale) AS scale,
    sum(size) AS size, count(*) AS num,
    sum(CASE WHEN scale > 0 AND class IN ('float', 'complex') THEN ln(scale) ELSE 0 END) AS log_scale,
    sum(CASE WHEN size > 0 AND class IN ('float', 'complex') THEN ln(size) ELSE 0 END) AS log_size
FROM (
    SELECT p.event_a, q.relative, q.scale, q.size, q.class, s.is_jump
    FROM apart AS p
    JOIN op_source AS s ON s.op_id = p.op_id
    JOIN compared AS q ON q.context_pair = p.context_pair AND q.op_id = s.source_id AND q.output_slot = s.output_slot
    UNION ALL
    SELECT p.event_a, q.relative, q.scale, q.size, q.class, false AS is_jump
    FROM apart AS p
    JOIN health_a AS h ON h.event_index = p.event_a AND h.scope = 'execution'
    JOIN execution_input_a AS i ON i.execution_index = h.execution_index
    JOIN health_a AS t ON t.tensor_id = i.tensor_id AND t.scope <> 'graph'
    JOIN compared AS q ON q.event_a = t.event_index
    UNION ALL
    SELECT p.event_a, q.relative, q.scale, q.size, q.class, false AS is_jump
    FROM apart AS p
    JOIN health_a AS h ON h.event_index = p.event_a AND h.scope = 'graph' AND h.call_site = ''
    JOIN function_input_a AS f ON f.graph_id = h.graph_id AND f.op_name = h.op_name
    JOIN execution_input_a AS i ON i.execution_index = h.execution_index AND i.input_index = f.input_index
    JOIN health_a AS t ON t.tensor_id = i.tensor_id AND t.scope <> 'graph'
    JOIN compared AS q ON q.event_a = t.event_index
    UNION ALL
    SELECT p.event_a, g.relative, 0, 0, 'call', false
    FROM apart AS p
    JOIN health_a AS h ON h.event_index = p.event_a AND h.scope = 'execution'
    JOIN execution_a AS e ON e.execution_index = h.execution_index AND e.graph_id >= 0
    JOIN (SELECT ordinal, max(relative) AS relative FROM apart WHERE context_pair IS NOT NULL GROUP BY ordinal) AS g
        ON g.ordinal = p.ordinal
) AS inputs
GROUP BY event_a
"""
"""One row is a pair that differs, with the facts about its inputs. The input of a call's result is its graph."""

_BEFORE = """
CREATE TABLE before AS
SELECT event_a, lag(relative) OVER (PARTITION BY site_id, op_id, output_slot ORDER BY event_a) AS relative
FROM compared AS c
WHERE op_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM op_source AS s WHERE s.op_id = c.op_id)
    AND EXISTS (SELECT 1 FROM apart AS p WHERE p.op_id = c.op_id)
"""

_CONDITION = f"""
    CASE WHEN p.kind = 'counts' OR p.class NOT IN ('float', 'complex') THEN 0
        WHEN h.op_type IN {_in(_OF_INPUT)} THEN i.scale
        WHEN h.op_type IN {_in(_OF_SUM)} THEN i.scale * sqrt(i.size / p.size)
        WHEN h.op_type IN {_in(_OF_PRODUCT)}
            THEN exp(least(700,
                (i.log_scale + 0.25 * (i.log_size - ln(p.size))) * CASE WHEN i.num = 1 THEN 2 ELSE 1 END))
        WHEN h.op_type IN {_in(_OF_ONE)} THEN greatest(i.scale, 1)
        WHEN h.op_type IN {_in(_EXPONENTIAL)} THEN p.scale * greatest(i.scale, 1)
        ELSE 0 END
"""
"""The magnitude to which an op's own rounding is proportional. For a sum of n numbers this contains the square root of
n. For a product of matrices, n follows from the three sizes."""

_CANDIDATE = """
CREATE TABLE candidate AS
SELECT c.event_a, coalesce(e.event_index, c.event_a) AS position
FROM (
    SELECT p.*, h.execution_index, h.op_type, coalesce(i.relative, 0) AS input_relative,
        greatest(p.scale, coalesce({condition}, 0)) AS magnitude,
        coalesce(b.relative, 0) AS before_relative, coalesce(i.jump_relative, 0) AS jump_relative
    FROM apart AS p
    JOIN health_a AS h ON h.event_index = p.event_a
    LEFT JOIN input AS i ON i.event_a = p.event_a
    LEFT JOIN before AS b ON b.event_a = p.event_a
) AS c
LEFT JOIN execution_a AS e ON e.execution_index = c.execution_index
WHERE CASE WHEN difference >= {hard} THEN input_relative < {hard} AND before_relative < {hard}
    ELSE (is_one_zero AND magnitude = scale OR difference > slack + rtol * magnitude)
        AND (magnitude = 0 OR difference / magnitude > {growth} * greatest(input_relative, before_relative))
        AND NOT (c.op_type IN {jumping} AND input_relative > 0 AND coalesce(num_apart <= 1 + 4 * rtol * size, false))
        AND NOT (c.op_type = 'Bitcast' AND input_relative > 0)
        AND jump_relative = 0
    END
""".replace("{jumping}", _in(_JUMPING))
