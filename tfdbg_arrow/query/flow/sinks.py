"""Sinks: bad tensors that did harm. They were written to a variable, returned to the program, or counted by a metric.

An integer or a boolean that was made from a NaN is arbitrary: the class that ArgMax picks, an index, a comparison. If
it is used or returned, the NaN counts as returned.

A search that starts at the harm finds a bug quickly, however many harmless infinities came before it.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from operator import itemgetter

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.borders import PASSING_OPS, is_in
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.discarded import DiscardedResults
from tfdbg_arrow.query.flow.executed_edges import TakenTensor
from tfdbg_arrow.query.flow.failed_calls import FailedCalls
from tfdbg_arrow.query.flow.graphs import CHECKS, DISCRETE, NEVER_BAD, NEVER_BAD_IN_SQL, Graph, reachable
from tfdbg_arrow.query.flow.skipped import SkippedUses
from tfdbg_arrow.query.recorded import Execution, GraphTensor, Op, TensorEvent, bad_condition, read_events
from tfdbg_arrow.schema.op_traits import (
    CONTAINERS,
    MOVING,
    READER,
    REFERENCE_WRITER,
    UPDATER,
    WRITER,
    Trait,
    types_with,
)

_SELF_CHECKS = types_with(Trait.COMPARES)
"""Types of ops that test whether a tensor is NaN, if they compare it with itself."""
_ELEMENTWISE = types_with(Trait.ELEMENTWISE)
_ORDERS = frozenset({"Greater", "GreaterEqual", "Less", "LessEqual"})
"""Types of ops that compare numbers. Their output is false for NaN."""
SELECTS = frozenset({"Select", "SelectV2"})
_IGNORES_VALUES = re.compile(
    rf"{'|'.join(sorted(types_with(Trait.OF_SHAPE)))}|TensorArraySize(V\d)?|Ragged(?!Range)\w+|Sparse\w+"
)
"""Types of ops whose integers and booleans do not depend on the values of floating-point inputs."""
EFFECTS = ("variable", "result", "metric", "absorbed")
"""Where the badness of a tensor can end, the most harmful first."""
_DISCRETE_DTYPES = ", ".join(f"'{dtype}'" for dtype in sorted(DISCRETE))
_MAX_UNITS = 256
"""Maximum number of executions or steps whose sinks are read at once."""
_EAGER_BATCH = 2048
LAST_EXECUTION = 2**63 - 1
"""An index after all executions."""
_MAX_FAILED = 100
"""Maximum number of executions with an error that are examined."""
_MAX_KEPT = 100
"""Maximum number of tensors that one search examines."""

Site = tuple[int, str, int]
"""Graph, op and output slot."""
Taker = tuple[int, Op, TakenTensor]
"""The graph of an op that writes to a variable or makes a decision, the op, and the tensor that it takes."""
_Start = tuple[int, int]
"""The sort key of a batch. For an execution, it is the index of the execution, and -1. For a step outside of
executions, it is the index of the last execution that started before the step, and the event_index of the first
sink."""
_Batch = tuple[_Start, list[TensorEvent]]


@dataclass(frozen=True, slots=True)
class _Unit:
    """The unit by which the sinks in graphs are grouped, in SQL on tensor_health.

    Attributes:
        column: The execution or step of a row.
        start: A number that orders the groups.
        condition: Selects the rows.
    """

    column: str
    start: str
    condition: str


_EXECUTIONS = _Unit("execution_index", "execution_index", "execution_index IS NOT NULL")
_STEPS = _Unit("coalesce(step_id, 0)", "min(event_index)", "execution_index IS NULL")


@dataclass(frozen=True, slots=True)
class _EagerUse:
    """How executions of one op type and role take an eager tensor.

    Attributes:
        op_type: The op type, or the name of the function.
        role: The role.
        can_be_bad: Whether an output can be bad, or a function takes the tensor.
        is_discrete: Whether an output of an op is an integer or a boolean.
    """

    op_type: str
    role: str | None
    can_be_bad: bool
    is_discrete: bool


class Sinks:
    """Finds the harmful ends of bad values within one run.

    Args:
        kinds: The kinds that count: `nan`, `inf` or both.
    """

    def __init__(self, logdir: Engine, flow: DataFlow, *, run_id: str, kinds: tuple[str, ...]) -> None:
        self._logdir = logdir
        self._flow = flow
        self._labels = flow.labels
        self._run_id = run_id
        self._bad = bad_condition(kinds)
        self._sites: dict[str, dict[Site, list[Taker]]] | None = None
        self.discarded = DiscardedResults(logdir, flow, run_id=run_id)
        self._moved: dict[int, bool] = {}
        self._num_outputs = lru_cache(maxsize=4096)(self._read_num_outputs)

    def batches(self, effect: str, *, upto: int = LAST_EXECUTION) -> Iterator[list[TensorEvent]]:
        """Yields the sinks of an effect by execution, in the order in which the executions started.

        The sinks outside of executions, such as those of a function of tf.data, are in one batch for each step.

        Args:
            effect: `variable`, `result` or `metric`.
            upto: The last execution whose sinks are looked for. Steps outside of executions are always included.
        """
        eager = itertools.takewhile(lambda row: (row.execution_index or 0) <= upto, self._written_eagerly())
        written = (row for row in eager if self._variable_effect(row) == effect)
        streams = [self._in_graphs(effect, unit) for unit in (_EXECUTIONS, _STEPS)]
        streams.append(_by_execution(written))
        if effect == "result":
            streams.append(_by_execution(self._cut_off()))
        if effect != "variable":
            streams.append(_by_execution(self._results(effect, 0, upto)))
        in_order = heapq.merge(*streams, key=itemgetter(0))
        for _, of_same_start in itertools.groupby(in_order, key=itemgetter(0)):
            yield [row for _, batch in of_same_start for row in batch]

    @cached_property
    def skipped_uses(self) -> SkippedUses:
        """Finds the results that the program usually uses, and skipped once."""
        return SkippedUses(self._logdir, self._flow, eager_writers=self._eager_writers, run_id=self._run_id)

    @cached_property
    def failed_calls(self) -> FailedCalls:
        """Finds the calls that raised an error."""
        return FailedCalls(self._logdir, self._flow, next_call=self._next_call, run_id=self._run_id)

    def _next_call(self, execution_index: int) -> int | None:
        return self.skipped_uses.next_call(execution_index)

    def skipped(self, first: int, last: int) -> Iterator[TensorEvent]:
        """Yields the results in a range of executions that the program usually uses, but skipped this time.

        Args:
            first: The first execution.
            last: The last execution.
        """
        return self._results("skipped", first, last)

    # Variables.

    def _in_graphs(self, effect: str, unit: _Unit) -> Iterator[_Batch]:
        """Yields the sinks of an effect in graphs: those in executions, or those in steps outside of executions."""
        sites = self._taken_sites().get(effect, {})
        by_graph: dict[int, set[str]] = {}
        for graph_id, op_name, _ in sites:
            by_graph.setdefault(graph_id, set()).add(op_name)
        if not by_graph:
            return
        of_sites = " OR ".join(f"(graph_id = ? AND op_name IN ({', '.join('?' * len(by_graph[g]))}))" for g in by_graph)
        condition = f"{self._bad} AND {unit.condition} AND ({of_sites})"
        parameters = [self._run_id, *(part for g, names in by_graph.items() for part in (g, *sorted(names)))]
        after, num_units = -1, 1
        while True:
            units = (
                f"SELECT {unit.column} FROM tensor_health WHERE run_id = ? AND {condition} GROUP BY 1 "
                f"HAVING {unit.start} > ? ORDER BY {unit.start} LIMIT {num_units}"
            )
            rows = read_events(
                self._logdir,
                f"{condition} AND {unit.column} IN ({units}) ORDER BY event_index",
                [*parameters, *parameters, after],
            )
            if not rows:
                return
            by_unit: dict[int | None, list[TensorEvent]] = {}
            for row in rows:
                by_unit.setdefault(row.step_id if row.execution_index is None else row.execution_index, []).append(row)
            batches = self._in_order(by_unit.values())
            yield from ((start, [row for row in batch if self._is_taken(row, sites)]) for start, batch in batches)
            last = batches[-1][1][0]
            after = last.event_index if last.execution_index is None else last.execution_index
            num_units = min(2 * num_units, _MAX_UNITS)

    def _in_order(self, batches: Iterable[list[TensorEvent]]) -> list[_Batch]:
        """Returns the batches in order, with their sort keys.

        Args:
            batches: Each holds the sinks of one execution, or of one step outside of executions.
        """
        keyed = [((batch[0].execution_index, -1), batch) for batch in batches if batch[0].execution_index is not None]
        outside = sorted((batch for batch in batches if batch[0].execution_index is None), key=_event_index)
        if outside:
            first, last = _event_index(outside[0]), _event_index(outside[-1])
            ((last_started,),) = self._logdir.rows(
                "SELECT coalesce(max(execution_index), -1) FROM execution WHERE run_id = ? AND event_index < ?",
                [self._run_id, first],
            )
            later = self._logdir.rows(
                "SELECT event_index, execution_index FROM execution WHERE run_id = ? AND event_index BETWEEN ? AND ? "
                "ORDER BY event_index",
                [self._run_id, first, last],
            )
            starts = deque(later)
            for batch in outside:
                while starts and starts[0][0] < _event_index(batch):
                    last_started = max(last_started, starts.popleft()[1])
                keyed.append(((last_started, _event_index(batch)), batch))
        return sorted(keyed, key=itemgetter(0))

    def _is_taken(self, row: TensorEvent, sites: dict[Site, list[Taker]]) -> bool:
        takers = sites.get((row.graph_id or 0, row.op_name or "", row.output_slot or 0), ())
        return any(
            (self._is_written(row) if is_writer(op.op_type) else row.num_nan != 0)
            and self._flow.borders.sessions.is_run(row.context, row.graph_id or 0, op.op_name)
            and taken.call_site in (None, row.call_site)
            and not (taken.is_of_loop and self._is_overwritten(row))
            and self._ran(graph_id, taken.user_site, row, is_next=taken.is_carried)
            for graph_id, op, taken in takers
        )

    def _is_written(self, row: TensorEvent) -> bool:
        """Returns whether it does harm if an op writes a bad tensor to a variable."""
        return not self.is_moved(row) and not self.failed_calls.is_undone(row.execution_index)

    def updates(self, row: TensorEvent) -> bool:
        """Returns whether an op uses a tensor to update a variable.

        A program does not intend to update a variable with an infinity.
        """
        if row.scope == "graph":
            site = (row.graph_id or 0, row.op_name or "", row.output_slot or 0)
            takers = self._taken_sites().get("variable", {}).get(site, ())
            return any(UPDATER.fullmatch(op.op_type) for _, op, _ in takers)
        uses = () if row.tensor_id is None else self._flow.events.uses(row.tensor_id)
        return any(UPDATER.fullmatch(use.execution.op_type) for use in uses)

    def _ran(self, graph_id: int, call_site: str | None, near: TensorEvent, *, is_next: bool) -> bool:
        """Returns whether a graph ran at a call site in a tensor's step. A branch, for example, may not have run.

        Args:
            graph_id: The graph.
            call_site: The call site; None for the call site of the tensor.
            near: The tensor.
            is_next: Whether the graph must have run in the iteration after the tensor's iteration.
        """
        context = near.context
        if is_next and context.iteration is not None:
            context = replace(context, iteration=context.iteration + 1)
        elif (
            call_site is None
            or (graph_id, call_site) == (near.graph_id, near.call_site)
            or near.step_id is None
            or graph_id not in self._flow.graphs.recorded_graphs
        ):
            return True
        if near.step_id is None:
            return False
        visits = self._flow.events.site_visits(near.step_id, near.execution_index)
        return any(
            (visit.graph_id, visit.call_site) == (graph_id, call_site)
            and (is_in(visit, context) if visit.frame_id == near.frame_id else not is_next)
            for visit in visits
        )

    def _is_overwritten(self, row: TensorEvent) -> bool:
        """Returns whether a later iteration of the loop computed a tensor again."""
        if row.step_id is None or row.iteration is None:
            return False
        visits = self._flow.events.site_visits(row.step_id, row.execution_index)
        here = (row.graph_id, row.call_site, row.frame_id)
        return any((v.graph_id, v.call_site, v.frame_id) == here and v.last_iteration > row.iteration for v in visits)

    def _taken_sites(self) -> dict[str, dict[Site, list[Taker]]]:
        """Returns, by effect, the bad tensors of graphs that writers or decisions take, and the ops that take them."""
        if self._sites is None:
            bad: dict[int, set[tuple[str, int]]] = {}
            for graph_id, op_name, slot in self._logdir.rows(
                "SELECT DISTINCT graph_id, op_name, output_slot FROM tensor_health "
                f"WHERE run_id = ? AND {self._bad} AND scope = 'graph' AND graph_id IS NOT NULL",
                [self._run_id],
            ):
                bad.setdefault(graph_id, set()).add((op_name, slot))
            self._sites = {}
            for graph_id in self._taking_graphs(bad):
                graph = self._flow.graphs.graph(graph_id)
                for op in graph.ops.values():
                    is_writing = is_writer(op.op_type)
                    if not is_writing and not self.decides(graph_id, op):
                        continue
                    role = self._labels.op(graph_id, op.op_name).role
                    effect = effect_of_write(role) if is_writing else effect_of_decision(role)
                    sources = [*self._flow.borders.executed.taken_from(graph_id, op.op_name)]
                    sources += [TakenTensor((graph_id, *source)) for source in _taken_by(graph, op)]
                    for taken in dict.fromkeys(sources):
                        site = taken.site
                        if site[1:] in bad.get(site[0], ()) and not self._is_constant(site):
                            self._sites.setdefault(effect, {}).setdefault(site, []).append((graph_id, op, taken))
        return self._sites

    def decides(self, graph_id: int, op: Op) -> bool:
        """Returns whether an op makes integers or booleans from its inputs, and one of these outputs is used.

        An op of a metric does not count if the metric also tests the values, for example with `tf.math.is_nan`: such a
        metric leaves out the bad values.
        """
        if not is_decision(op.op_type) or is_check(op.op_type, op.inputs):
            return False
        graph = self._flow.graphs.graph(graph_id)
        dtypes = (graph.dtypes.get((op.op_name, slot)) for slot in itertools.count())
        made = [slot for slot, dtype in enumerate(itertools.takewhile(bool, dtypes)) if dtype in DISCRETE]
        if not made or self._flow.graphs.calls(graph_id, op.op_name):
            return False
        edges = op if op.made_for is None else graph.ops.get(op.made_for, op)
        if all(graph.dtypes.get(edge) in NEVER_BAD for edge in edges.inputs):
            return False
        if self._is_of_metric(graph, op.op_name) and self._is_tested_by_metric(graph, edges):
            return False
        if _rejects_proposals(graph, edges):
            return False
        return any(self._is_used(graph, op, slot) for slot in made)

    def _is_tested_by_metric(self, graph: Graph, op: Op) -> bool:
        """Returns whether a metric tests whether one of its inputs is bad, and so may leave out bad results.

        Args:
            graph: The graph of the metric.
            op: An op of the metric. The input reaches this op through other ops of the metric.
        """
        to_follow, seen = [*op.inputs], set(op.inputs)
        while to_follow and len(seen) < _MAX_KEPT:
            source = to_follow.pop()
            for name in graph.users.get(source[0], ()):
                user = graph.ops[name]
                if source in user.inputs and is_check(user.op_type, user.inputs) and self._is_of_metric(graph, name):
                    return True
            maker = graph.ops.get(source[0])
            if maker is not None and self._is_of_metric(graph, maker.op_name):
                new = [edge for edge in maker.inputs if edge not in seen]
                to_follow += new
                seen.update(new)
        return False

    def _is_of_metric(self, graph: Graph, op_name: str) -> bool:
        return self._labels.op(graph.graph_id, op_name).role == "metric"

    def _is_used(self, graph: Graph, op: Op, slot: int) -> bool:
        """Returns whether another op takes an output of an op, or a function returns the output."""
        executed = self._flow.graphs.executed(graph.graph_id)
        if executed:
            return any(
                executed_graph.users(node.node_name, slot)
                for executed_graph in executed
                for node in executed_graph.nodes_of(graph.graph_id, op.op_name)
            )
        users = (graph.ops[name] for name in graph.users.get(op.op_name, ()))
        is_taken = any((op.op_name, slot) in user.inputs for user in users)
        return is_taken or self._flow.graphs.may_return(graph.graph_id, op.op_name, slot)

    def _taking_graphs(self, bad: Iterable[int]) -> list[int]:
        """Returns the graphs whose ops may take a bad tensor of the given graphs.

        These are the given graphs and, if one of them was optimized, all optimized graphs.
        """
        executed = self._flow.graphs.executed_graph_ids()
        return sorted({*bad, *executed} if executed.intersection(bad) else bad)

    def _is_constant(self, site: Site) -> bool:
        op = self._flow.graphs.op(site[0], site[1])
        return op is not None and op.op_type == "Const"

    @cached_property
    def _eager_writers(self) -> list[str]:
        return [name for name, graph_id in self._flow.events.op_types() if graph_id is None and is_writer(name)]

    def _written_eagerly(self) -> Iterator[TensorEvent]:
        """Yields the distinct bad eager tensors that eager ops wrote to variables.

        Tensors that ops only moved, as in `is_moved`, are left out.
        """
        if not self._eager_writers:
            return
        written = read_events(
            self._logdir,
            f"{self._bad} AND scope = 'execution' AND tensor_id IN (SELECT i.tensor_id FROM execution AS e "
            "JOIN execution_input AS i ON i.run_id = e.run_id AND i.execution_index = e.execution_index "
            f"WHERE e.run_id = ? AND e.op_type IN ({', '.join('?' * len(self._eager_writers))})) "
            "ORDER BY execution_index, event_index",
            [self._run_id, self._run_id, *self._eager_writers],
        )
        yield from (row for row in written if not self.is_moved(row))

    def is_moved(self, row: TensorEvent) -> bool:
        """Returns whether a bad tensor came from outside, and ops have only moved its elements since then.

        Such a tensor does no harm when it is stored or returned: a program may fill a variable with NaN, and store
        numbers in the variable later. Only tensors that are computed from it can do harm.
        """
        if row.event_index not in self._moved:
            self._moved[row.event_index] = self._find_whether_moved(row)
        return self._moved[row.event_index]

    def _find_whether_moved(self, row: TensorEvent) -> bool:
        seen, to_follow = {row.event_index}, [row]
        while to_follow:
            computed = self._flow.computed(to_follow.pop())
            if computed.scope == "external":
                continue
            bad = [source for source in self._flow.recent_sources_of(computed) if source.has_inf_or_nan]
            if computed.op_type not in MOVING or not bad or len(seen) > _MAX_KEPT:
                return False
            to_follow += [source for source in bad if source.event_index not in seen]
            seen.update(source.event_index for source in bad)
        return True

    def is_given_infinity(self, row: TensorEvent) -> bool:
        """Returns whether elementwise ops made all infinities of an array from infinities of arrays from outside.

        An example is the width of intervals, some of which are open. If only checks take such an array, the program
        expects the infinities.
        """
        seen, to_follow = {row.event_index}, [row]
        while to_follow:
            computed = self._flow.computed(to_follow.pop())
            if computed.num_nan or not computed.shape or computed.shape != row.shape or len(seen) > _MAX_KEPT:
                return False
            if computed.scope == "external":
                continue
            bad = [source for source in self._flow.recent_sources_of(computed) if source.has_inf_or_nan]
            num_given = sum((source.num_neg_inf or 0) + (source.num_pos_inf or 0) for source in bad)
            num_infinite = (computed.num_neg_inf or 0) + (computed.num_pos_inf or 0)
            if computed.op_type not in _ELEMENTWISE or num_infinite > num_given:
                return False
            to_follow += [source for source in bad if source.event_index not in seen]
            seen.update(source.event_index for source in bad)
        return True

    def _variable_effect(self, row: TensorEvent) -> str:
        assert row.tensor_id is not None
        writers = [use.execution for use in self._flow.events.uses(row.tensor_id) if is_writer(use.execution.op_type)]
        effects = {effect_of_write(self._labels.execution(writer.execution_index).role) for writer in writers}
        return min(effects, key=EFFECTS.index)

    # Results.

    def _results(self, effect: str, first: int, last: int) -> Iterator[TensorEvent]:
        """Yields the bad tensors of an effect that eager ops and calls returned.

        Either nothing is computed from such a tensor, or an op makes a decision from it.
        """
        after = (first, -1)
        while True:
            rows = read_events(
                self._logdir,
                f"{self._bad} AND scope = 'execution' AND execution_index BETWEEN ? AND ? "
                "AND (execution_index > ? OR event_index > ?) "
                f"ORDER BY execution_index, event_index LIMIT {_EAGER_BATCH}",
                [self._run_id, after[0], last, *after],
            )
            if not rows:
                return
            after = (rows[-1].execution_index or 0, rows[-1].event_index)
            uses = self._uses_of(rows)
            for row in rows:
                own = uses.get(row.tensor_id, [])
                if not any(_computes(row, use) for use in own):
                    is_end = self._is_result(row, effect, is_taken=bool(own))
                else:
                    is_end = self._effect_of_uses(row, own) == effect
                if is_end:
                    yield row

    def _uses_of(self, rows: list[TensorEvent]) -> dict[int | None, list[_EagerUse]]:
        """Returns, by eager tensor, how executions take it."""
        ids = sorted({row.tensor_id for row in rows if row.tensor_id is not None})
        by_tensor: dict[int | None, list[_EagerUse]] = {}
        for tensor_id, op_type, role, can_be_bad, is_discrete in self._logdir.rows(
            "SELECT i.tensor_id, e.op_type, e.role, max(CASE WHEN e.graph_id IS NOT NULL "
            f"OR (o.output_slot IS NOT NULL AND coalesce(o.dtype, '') NOT IN ({NEVER_BAD_IN_SQL})) THEN 1 ELSE 0 END), "
            f"max(CASE WHEN e.graph_id IS NULL AND o.dtype IN ({_DISCRETE_DTYPES}) THEN 1 ELSE 0 END) "
            "FROM execution_input AS i "
            "JOIN execution AS e ON e.run_id = i.run_id AND e.execution_index = i.execution_index "
            "LEFT JOIN execution_output AS o ON o.run_id = e.run_id AND o.execution_index = e.execution_index "
            f"WHERE i.run_id = ? AND i.tensor_id IN ({', '.join('?' * len(ids))}) "
            "GROUP BY i.tensor_id, e.op_type, e.role",
            [self._run_id, *ids],
        ):
            use = _EagerUse(op_type, role, can_be_bad=bool(can_be_bad), is_discrete=bool(is_discrete))
            by_tensor.setdefault(tensor_id, []).append(use)
        return by_tensor

    def _effect_of_uses(self, row: TensorEvent, uses: list[_EagerUse]) -> str | None:
        """Returns the effect of the decisions that eager ops make from a NaN, or None if there is no decision."""
        if row.num_nan == 0 or row.tensor_id is None:
            return None
        deciding = [use for use in uses if use.is_discrete and is_decision(use.op_type)]
        if any(use.op_type in CHECKS for use in uses):
            deciding = [use for use in deciding if use.role != "metric"]
        if any(use.op_type in _SELF_CHECKS for use in deciding):
            numbers = Counter(use.execution.execution_index for use in self._flow.events.uses(row.tensor_id))
            checking = {self._op_type(index) for index, number in numbers.items() if number > 1}
            deciding = [use for use in deciding if use.op_type not in checking]
        return min((effect_of_decision(use.role) for use in deciding), key=EFFECTS.index, default=None)

    def _op_type(self, execution_index: int) -> str | None:
        execution = self._flow.events.execution(execution_index)
        return None if execution is None else execution.op_type

    def is_given(self, row: TensorEvent) -> bool:
        """Returns whether the program received a tensor. A call's extra outputs for its gradient do not count."""
        if row.scope != "execution" or row.execution_index is None:
            return False
        execution = self._flow.events.execution(row.execution_index)
        return execution is None or execution.graph_id is None or (row.output_slot or 0) < self._num_outputs(execution)

    def _read_num_outputs(self, execution: Execution) -> int:
        rows = self._logdir.rows(
            "SELECT num_outputs FROM execution WHERE run_id = ? AND execution_index = ?",
            [self._run_id, execution.execution_index],
        )
        return int(rows[0][0])

    def _is_result(self, row: TensorEvent, effect: str, *, is_taken: bool) -> bool:
        """Returns whether a tensor from which nothing is computed is a result with an effect, or a skipped result."""
        is_skipped = self.skipped_uses.is_skipped(row, is_taken=is_taken) or self.skipped_uses.is_rejected(row)
        if effect == "skipped" and not is_skipped:
            return False  # asked first, because the other questions read all tensors of the call
        if not self.is_given(row) or self.is_moved(row) or self.discarded.is_discarded(row):
            return False
        if is_taken and self.is_given_infinity(row):
            return False
        if all(self._labels.of(maker).role == "metric" for maker in self._makers(row)):
            return effect == "metric"
        return effect == ("skipped" if is_skipped else "result")

    def _makers(self, row: TensorEvent) -> list[TensorEvent]:
        """Returns the stored bad tensors if a tensor comes from a variable or a list; otherwise the tensor itself."""
        makers: list[TensorEvent] = []
        seen: set[int] = set()
        to_follow = [row]
        while to_follow:
            computed = self._flow.computed(to_follow.pop())
            if computed.event_index in seen:
                continue
            seen.add(computed.event_index)
            is_kept = (computed.op_type or "").startswith((*CONTAINERS, READER))
            put_in = [source for source in self._flow.recent_sources_of(computed) if source.has_inf_or_nan]
            if is_kept and put_in and len(seen) < _MAX_KEPT:
                to_follow += put_in
            else:
                makers.append(computed)
        return makers

    # Errors.

    def _cut_off(self) -> Iterator[TensorEvent]:
        """Yields the bad tensors that an op did not take because their call raised an error that did harm."""
        harmful = itertools.filterfalse(self.failed_calls.is_caught, sorted(self.failed_calls.executions))
        for execution_index in itertools.islice(harmful, _MAX_FAILED):
            rows = read_events(
                self._logdir,
                f"{self._bad} AND scope = 'graph' AND execution_index = ? ORDER BY event_index LIMIT {_EAGER_BATCH}",
                [self._run_id, execution_index],
            )
            yield from (row for row in rows if self._has_waiting_user(row))

    def _has_waiting_user(self, row: TensorEvent) -> bool:
        if row.graph_id is None or row.op_name is None or self._is_constant((row.graph_id, row.op_name, 0)):
            return False
        place = GraphTensor(row.context, row.graph_id, row.op_name, row.output_slot or 0, row.event_index)
        if self._flow.graphs.executed(row.graph_id):
            users = [use.user for use in self._flow.borders.executed.users(place)]
        else:
            users = [place.of_op(name) for name in self._flow.graphs.graph(row.graph_id).users.get(row.op_name, ())]
        return any(
            self.failed_calls.is_cut_off(user) and self._ran(user.graph_id, user.context.call_site, row, is_next=False)
            for user in users
        )


def _event_index(batch: list[TensorEvent]) -> int:
    return batch[0].event_index


def _by_execution(rows: Iterable[TensorEvent]) -> Iterator[_Batch]:
    """Groups eager tensors, or tensors of calls, which must be sorted by execution."""
    for execution_index, batch in itertools.groupby(rows, key=lambda row: row.execution_index or 0):
        yield (execution_index, -1), list(batch)


def effect_of_write(role: str | None) -> str:
    """Returns the effect of a bad tensor that an op with this role writes to a variable."""
    return {"metric": "metric", "loss": "result"}.get(role or "", "variable")


def effect_of_decision(role: str | None) -> str:
    """Returns the effect if an op with this role makes an integer or a boolean from a NaN."""
    return "metric" if role == "metric" else "result"


def _computes(row: TensorEvent, use: _EagerUse) -> bool:
    """Returns whether an execution computes something with a bad tensor, rather than only testing it.

    A comparison of infinities, or a choice among them, is well-defined. With a NaN it is not.
    """
    if use.can_be_bad or is_writer(use.op_type):
        return True
    return row.num_nan == 0 and use.op_type not in CHECKS


def is_check(op_type: str, inputs: Sequence[object]) -> bool:
    """Returns whether an op only tests whether a tensor is bad.

    Args:
        op_type: Its type.
        inputs: The tensors that it takes.
    """
    return op_type in CHECKS or (op_type in _SELF_CHECKS and len(inputs) == 2 and inputs[0] == inputs[1])


def is_decision(op_type: str) -> bool:
    """Returns whether the integers and booleans that an op makes depend on the values that it takes."""
    return op_type not in CHECKS and not is_writer(op_type) and not _IGNORES_VALUES.fullmatch(op_type)


def is_writer(op_type: str) -> bool:
    """Returns whether an op writes to a variable."""
    if op_type == "MakeIterator":
        return False
    return bool(WRITER.fullmatch(op_type) or REFERENCE_WRITER.fullmatch(op_type))


def _rejects_proposals(graph: Graph, comparison: Op) -> bool:
    """Returns whether a comparison with NaN makes the program keep a state, in place of a proposal that led to the NaN.

    An example is a sampler: `tf.where(log(u) < density(proposal) - density(state), proposal, state)`. A comparison with
    NaN is false. So the program drops the proposal, if the comparison only selects between a proposal from which the
    NaN may come, and the state from which the proposal was made. If the program also tests whether the numbers are
    finite, before it selects, the choice needs no such form.
    """
    if comparison.op_type not in _ORDERS:
        return False
    selects: list[Op] = []
    tested: set[tuple[str, int]] = set()
    to_follow = [comparison.op_name]
    while to_follow:
        name = to_follow.pop()
        users = [graph.ops[user] for user in graph.users.get(name, ())]
        if not users or len(selects) > _MAX_KEPT:
            return False  # the function returns it, or uses it very often
        for user in users:
            if user.op_type == "LogicalAnd":
                to_follow.append(user.op_name)
                others = (graph.ops.get(source) for source, _ in user.inputs if source != name)
                tested.update(
                    edge for other in others if other and other.op_type == "IsFinite" for edge in other.inputs
                )
            elif user.op_type in SELECTS and user.inputs[0][0] == name and (name, 0) not in user.inputs[1:]:
                selects.append(user)
            else:
                return False
    if not tested.isdisjoint(comparison.inputs):
        return True
    behind = _behind(graph, comparison)
    return all(
        kept[0] != proposal[0]
        and proposal not in comparison.inputs
        and proposal[0] in behind
        and (kept[0] in _behind(graph, graph.ops[proposal[0]]) or graph.ops[kept[0]].op_type == "Placeholder")
        for select in selects
        for proposal, kept in [select.inputs[1:3]]
        if proposal[0] in graph.ops and kept[0] in graph.ops
    )


def _behind(graph: Graph, op: Op) -> Collection[str]:
    """Returns the ops of a graph from which an op is computed, including itself."""

    def sources(name: str) -> Iterator[str]:
        return (source for source, _ in graph.ops[name].inputs if source in graph.ops)

    return reachable([op.op_name], sources)


def _taken_by(graph: Graph, op: Op) -> Iterator[tuple[str, int]]:
    """Yields each tensor that an op takes, and the same tensor before it passed through other ops."""
    for source in op.inputs:
        at: tuple[str, int] | None = source
        while at is not None:
            yield at
            maker = graph.ops.get(at[0])
            is_passing = maker is not None and maker.op_type in PASSING_OPS and maker.inputs
            at = maker.inputs[at[1] if maker.op_type == "IdentityN" else 0] if is_passing and maker else None
