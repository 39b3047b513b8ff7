"""Finds the pairs that differ by more than their inputs explain, and the first of these pairs by data flow.

Rounding errors grow as they propagate. If operands nearly cancel, their rounding errors are large relative to the
difference. An exponential turns an absolute error into a relative error. So a pair is not a candidate if

- its difference lies within the tolerance for the magnitudes that the op worked on (`_CONDITION`), or
- its relative difference is at most `growth` times the largest relative difference of its inputs, so that the
  difference grew and was not created here, or
- the op is discontinuous (such as a comparison or a rounding), its inputs differ, and only few elements of its result
  jumped, or
- the difference came through integers or bools that were not recorded, so that the number of jumped elements is
  unknown.

The source of an argument, or of a variable that is read, lies outside the graph. The difference of such a tensor is
compared with the difference that the same tensor had before, and `Roots` follows the tensor to its source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice

from tfdbg_arrow.query.flow.data_flow import DataFlow, Sources
from tfdbg_arrow.query.flow.origins import ProgramOrder
from tfdbg_arrow.query.flow.search import breadth_first
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.query.run_diff.comparing import HARD, Tolerance
from tfdbg_arrow.query.run_diff.workspace import Workspace
from tfdbg_arrow.schema.op_traits import Trait, types_with

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
    """Creates the table `candidate` (event_a, position) from `compared`. The position orders candidates by execution.

    Args:
        work: The workspace with the data of both runs.
        tolerance: The differences that count as rounding.
        known: A regular expression for the names or types of ops that are not candidates; None excludes no ops.
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
"""Each row is a pair that differs, with facts about its inputs. For the result of a call, the tensors in its graph
count as an input."""

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
"""The magnitude that an op's own rounding error is proportional to. For a sum of n numbers, it has the factor sqrt(n).
For a product of matrices, n follows from the three sizes."""

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


_MAX_CANDIDATES = 1000
"""Maximum number of differences that are followed back. Bounds the time; `is_cut` says if there were more."""
_MAX_VISITED = 5000
"""Maximum number of tensors that are visited behind one difference. `is_cut` says if there were more."""
_MAX_THROUGH = 200
"""To find the sources of an op that have a counterpart, at most this many tensors are examined."""
_READS = types_with(Trait.READS | Trait.READS_PART | Trait.HOLDS_REFERENCE)
"""Op types whose output is the sum of the values that were written to a variable."""


@dataclass(frozen=True)
class Pair:
    """A row of the table `compared`; see `compare`."""

    event_b: int
    kind: str | None
    difference: float | None
    scale: float | None
    slack: float
    rtol: float
    relative: float
    excess: float
    is_candidate: bool

    @property
    def is_hard(self) -> bool:
        """Whether the difference has no measure."""
        return self.excess >= HARD and self.kind in ("shape", "dtype", "nonfinite")


@dataclass(frozen=True)
class Root:
    """The first divergence.

    Attributes:
        event: The tensor in A.
        pair: The comparison of the tensor with its counterpart.
        sources: The tensors of A that the tensor was computed from, each with its pair, or None without a counterpart.
        is_proven: Whether all tensors that the tensor was computed from were recorded and aligned, and agree.
    """

    event: TensorEvent
    pair: Pair
    sources: tuple[tuple[TensorEvent, Pair | None], ...]
    is_proven: bool


class Roots:
    """Finds the first divergence of two runs.

    Attributes:
        is_cut: Whether the search ended before all candidates were examined.
    """

    def __init__(self, work: Workspace, flow: DataFlow, tolerance: Tolerance) -> None:
        self._work = work
        self._flow = flow
        self._growth = tolerance.growth
        self._order = ProgramOrder(flow).key
        self._pairs: dict[int, Pair | None] = {}
        self._sources: dict[int, Sources] = {}
        self.is_cut = False

    def first(self) -> Root | None:
        """Returns the first divergence, or None.

        The candidates are examined by execution and, within an execution, in the order of the program. The order of
        arrival within an execution does not follow the data flow and varies from run to run. Each candidate is followed
        back through all tensors that differ. The result is the first root in program order.
        """
        rows = self._work.rows(
            f"SELECT position, event_a FROM candidate ORDER BY position, event_a LIMIT {_MAX_CANDIDATES + 1}"
        )
        self.is_cut = len(rows) > _MAX_CANDIDATES
        for _, group in groupby(rows[:_MAX_CANDIDATES], key=lambda row: row[0]):
            events = [event for _, index in group if (event := self._flow.events.event(index)) is not None]
            roots = (self._root_of(event) for event in sorted(events, key=self._order))
            if (root := next((root for root in roots if root is not None), None)) is not None:
                self.is_cut = False
                return self._root(root)
        return None

    def pair(self, event_index: int) -> Pair | None:
        """Returns the comparison of a tensor of A with its counterpart, or None if the tensor has no counterpart."""
        self._read([event_index])
        return self._pairs[event_index]

    def _root(self, event: TensorEvent) -> Root:
        sources = self._sources_of(event)
        pair = self.pair(event.event_index)
        assert pair is not None
        pairs = tuple((source, self.pair(source.event_index)) for source in sources.events)
        agree = all(
            source_pair is not None and source_pair.kind is not None and source_pair.excess <= 1
            for _, source_pair in pairs
        )
        return Root(event, pair, pairs, is_proven=sources.is_complete and agree)

    def _root_of(self, start: TensorEvent) -> TensorEvent | None:
        above: dict[int, tuple[int, ...]] = {}
        roots: dict[int, TensorEvent] = {}
        unvisited = [start]
        while unvisited:
            event = unvisited.pop()
            if event.event_index in above:
                continue
            if len(above) >= _MAX_VISITED:
                self.is_cut = True
                break
            sources = self._sources_of(event).events
            self._read([source.event_index for source in sources])
            pairs = [(source, self._pairs[source.event_index]) for source in sources]
            apart = [source for source, pair in pairs if pair is not None and pair.excess > 1]
            above[event.event_index] = tuple(source.event_index for source in apart)
            unvisited += apart
            if self._is_root(event, [pair for _, pair in pairs if pair is not None]):
                roots[event.event_index] = event
        first = [root for index, root in roots.items() if roots.keys().isdisjoint(_ancestors(index, above))]
        return min(first or roots.values(), key=self._order, default=None)

    def _is_root(self, event: TensorEvent, inputs: list[Pair]) -> bool:
        pair = self.pair(event.event_index)
        if pair is None or not pair.is_candidate:
            return False
        relative = pair.relative
        if event.op_type in _READS and pair.difference is not None and not pair.is_hard:
            # A variable near zero is a sum whose terms cancelled: the old value and the update.
            magnitude = max([pair.scale or 0.0, *(source.scale or 0.0 for source in inputs)])
            if pair.difference <= pair.slack + pair.rtol * magnitude:
                return False
            relative = pair.difference / magnitude
        return all(relative > self._growth * source.relative for source in inputs)

    def _sources_of(self, event: TensorEvent) -> Sources:
        """Returns the sources of a tensor. A source without a counterpart is replaced by its own sources."""
        cached = self._sources.get(event.event_index)
        if cached is not None:
            return cached
        direct = self._flow.sources_of(event)
        event_of_index: dict[int, TensorEvent] = {}
        is_complete = direct.is_complete
        seen: set[int] = set()
        unvisited = list(direct.events)
        while unvisited:
            source = unvisited.pop()
            if source.event_index in seen:
                continue
            seen.add(source.event_index)
            if self.pair(source.event_index) is not None:
                event_of_index[source.event_index] = source
            elif len(seen) > _MAX_THROUGH:
                is_complete = False
            else:
                indirect = self._flow.sources_of(source)
                # A tensor without a counterpart and without sources, such as a constant, is not known to agree.
                is_complete = is_complete and indirect.is_complete and bool(indirect.events)
                unvisited += indirect.events
        sources = Sources(tuple(event_of_index[index] for index in sorted(event_of_index)), is_complete)
        self._sources[event.event_index] = sources
        return sources

    def _read(self, event_indexes: Iterable[int]) -> None:
        missing = [index for index in event_indexes if index not in self._pairs]
        if not missing:
            return
        rows = self._work.rows(
            "SELECT c.event_a, c.event_b, c.kind, c.difference, c.scale, c.slack, c.rtol, c.relative, "
            "c.excess, k.event_a IS NOT NULL FROM compared AS c LEFT JOIN candidate AS k ON k.event_a = c.event_a "
            "WHERE c.event_a IN (SELECT unnest(?))",
            [missing],
        )
        self._pairs.update(dict.fromkeys(missing))
        self._pairs.update((event_a, Pair(*facts)) for event_a, *facts in rows)


def _ancestors(start: int, above: Mapping[int, tuple[int, ...]]) -> Iterator[int]:
    """Yields the tensors that a tensor was computed from, without the tensor itself, the nearest first."""
    return islice(breadth_first([start], lambda index: above.get(index, ())), 1, None)
