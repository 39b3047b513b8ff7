"""Sinks: bad tensors that were written to a variable, returned to the program, or counted by a metric.

An integer or a boolean that was made from a NaN is arbitrary. Examples are the class that ArgMax picks, an index, and a
comparison. If such a value is used or returned, the NaN counts as returned.

A search that starts at the sinks finds a bug quickly, even if many harmless infinities came before it.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.borders import PASSING_OPS, is_in
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.decisions import Decisions, effect_of_decision, is_writer
from tfdbg_arrow.query.flow.executed_edges import TakenTensor
from tfdbg_arrow.query.flow.failed_calls import FailedCalls
from tfdbg_arrow.query.flow.graphs import Graph
from tfdbg_arrow.query.flow.moved import MovedTensors
from tfdbg_arrow.query.flow.results import Results
from tfdbg_arrow.query.flow.skipped import SkippedUses
from tfdbg_arrow.query.recorded import EFFECTS, GraphTensor, Op, TensorEvent, bad_condition, read_events
from tfdbg_arrow.schema.declaration import MAX_INT64
from tfdbg_arrow.schema.op_traits import (
    UPDATER,
)

_MAX_UNITS = 256
"""Maximum number of executions or steps whose sinks are read at once."""
LAST_EXECUTION = MAX_INT64
"""An index after all executions."""
_MAX_FAILED = 100
"""Maximum number of executions with an error that are examined."""
_FIRST_TENSORS = 16
"""Number of bad tensors that are read first. The first bad tensors answer most questions."""
_MAX_TENSORS = 2048
"""Number of bad tensors that are read at a time. For a call that raised an error, no more bad tensors are examined."""

Site = tuple[int, str, int]
"""Graph, op and output slot."""
Taker = tuple[int, Op, TakenTensor]
"""The graph of an op that writes to a variable or makes a decision, the op, and the tensor that it takes."""
_Start = tuple[int, int]
"""The sort key of a batch. An execution has the key (execution_index, -1). A step outside of executions has the key
(index of the last execution that started before the step, event_index of the first sink)."""
_Batch = tuple[_Start, list[TensorEvent]]


@dataclass(frozen=True, slots=True)
class _Unit:
    """A unit by which sinks in graphs are grouped. The attributes are SQL.

    Attributes:
        column: The execution or step of a row of tensor_health.
        condition: Selects the rows of tensor_health.
        firsts: A SELECT of the first units after a parameter, in order. `{condition}` selects the sinks, and `{number}`
            is the maximum number of units.
    """

    column: str
    condition: str
    firsts: str


_EXECUTIONS = _Unit(
    column="execution_index",
    condition="execution_index IS NOT NULL",
    # The inner LIMIT makes DuckDB stop after the first row groups. One execution or more is among these rows.
    firsts="SELECT DISTINCT execution_index FROM (SELECT execution_index FROM tensor_health WHERE run_id = ? "
    "AND {condition} AND execution_index > ? ORDER BY execution_index LIMIT 64 * {number}) AS s "
    "ORDER BY execution_index LIMIT {number}",
)
_STEPS = _Unit(
    column="coalesce(step_id, 0)",
    condition="execution_index IS NULL",
    firsts="SELECT coalesce(step_id, 0) FROM tensor_health WHERE run_id = ? AND {condition} GROUP BY 1 "
    "HAVING min(event_index) > ? ORDER BY min(event_index) LIMIT {number}",
)


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
        self._kinds = kinds
        self.decisions = Decisions(flow)
        self.moved = MovedTensors(flow)

    def batches(self, effect: str, *, upto: int = LAST_EXECUTION) -> Iterator[list[TensorEvent]]:
        """Yields the sinks of an effect by execution, in the order in which the executions started.

        The sinks outside of executions, such as those of a function of tf.data, are in one batch for each step.

        Args:
            effect: `variable`, `result` or `metric`.
            upto: The last execution in which to look for sinks. Steps outside of executions are always included.
        """
        eager = itertools.takewhile(lambda row: (row.execution_index or 0) <= upto, self._written_eagerly())
        written = (row for row in eager if self._variable_effect(row) == effect)
        streams = [self._in_graphs(effect, unit) for unit in (_EXECUTIONS, _STEPS)]
        streams.append(_by_execution(written))
        if effect == "result":
            streams.append(_by_execution(self._cut_off()))
        if effect != "variable":
            streams.append(_by_execution(self.results.of_effect(effect, 0, upto)))
        in_order = heapq.merge(*streams, key=itemgetter(0))
        for _, of_same_start in itertools.groupby(in_order, key=itemgetter(0)):
            yield [row for _, batch in of_same_start for row in batch]

    @cached_property
    def skipped_uses(self) -> SkippedUses:
        """Finds the results that the program usually uses, but skipped once."""
        return SkippedUses(self._logdir, self._flow, eager_writers=self._eager_writers, run_id=self._run_id)

    @cached_property
    def results(self) -> Results:
        """Finds the bad tensors that the program received."""
        return Results(
            self._logdir,
            self._flow,
            moved=self.moved,
            skipped_uses=self.skipped_uses,
            run_id=self._run_id,
            kinds=self._kinds,
        )

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
        return self.results.of_effect("skipped", first, last)

    # Variables.

    def _in_graphs(self, effect: str, unit: _Unit) -> Iterator[_Batch]:
        """Yields the sinks of an effect in graphs: those in executions, or those in steps outside of executions."""
        sites = self._taken_sites.get(effect, {})
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
            units = unit.firsts.format(condition=condition, number=num_units)
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
            batches: Each batch holds the sinks of one execution, or of one step outside of executions.
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
        """Returns whether a bad tensor does harm when an op writes it to a variable."""
        return not self.moved.is_moved(row) and not self.failed_calls.is_undone(row.execution_index)

    def updates(self, row: TensorEvent) -> bool:
        """Returns whether an op uses a tensor to update a variable.

        A program does not intend to update a variable with an infinity.
        """
        if row.scope == "graph":
            site = (row.graph_id or 0, row.op_name or "", row.output_slot or 0)
            takers = self._taken_sites.get("variable", {}).get(site, ())
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

    @cached_property
    def _taken_sites(self) -> dict[str, dict[Site, list[Taker]]]:
        """The bad tensors of graphs that writing or deciding ops take, and these ops, by effect."""
        return self._logdir.kept("taken sites", (self._run_id, self._kinds), self._find_taken_sites)

    def _find_taken_sites(self) -> dict[str, dict[Site, list[Taker]]]:
        bad: dict[int, set[tuple[str, int]]] = {}
        for graph_id, op_name, slot in self._logdir.rows(
            "SELECT DISTINCT graph_id, op_name, output_slot FROM tensor_health "
            f"WHERE run_id = ? AND {self._bad} AND scope = 'graph' AND graph_id IS NOT NULL",
            [self._run_id],
        ):
            bad.setdefault(graph_id, set()).add((op_name, slot))
        sites: dict[str, dict[Site, list[Taker]]] = {}
        for graph_id in self._taking_graphs(bad):
            graph = self._flow.graphs.graph(graph_id)
            for op in graph.ops.values():
                is_writing = is_writer(op.op_type)
                if not is_writing and not self.decisions.decides(graph_id, op):
                    continue
                role = self._labels.op(graph_id, op.op_name).role
                effect = effect_of_write(role) if is_writing else effect_of_decision(role)
                sources = [*self._flow.borders.executed.taken_from(graph_id, op.op_name)]
                sources += [TakenTensor((graph_id, *source)) for source in _taken_by(graph, op)]
                for taken in dict.fromkeys(sources):
                    site = taken.site
                    if site[1:] in bad.get(site[0], ()) and not self._is_constant(site):
                        sites.setdefault(effect, {}).setdefault(site, []).append((graph_id, op, taken))
        return sites

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

        Tensors that ops only moved, as in `MovedTensors.is_moved`, are left out.
        """
        if not self._eager_writers:
            return
        # Only indexes are read here: for whole rows, DuckDB would read all columns of all bad rows.
        written = self._logdir.rows(
            "SELECT event_index FROM tensor_health "
            f"WHERE run_id = ? AND {self._bad} AND scope = 'execution' AND tensor_id IN "
            "(SELECT i.tensor_id FROM execution AS e "
            "JOIN execution_input AS i ON i.run_id = e.run_id AND i.execution_index = e.execution_index "
            f"WHERE e.run_id = ? AND e.op_type IN ({', '.join('?' * len(self._eager_writers))})) "
            "ORDER BY execution_index, event_index",
            [self._run_id, self._run_id, *self._eager_writers],
        )
        start, num_rows = 0, _FIRST_TENSORS
        while start < len(written):
            indexes = [index for (index,) in written[start : start + num_rows]]
            start, num_rows = start + num_rows, min(4 * num_rows, _MAX_TENSORS)
            rows = read_events(
                self._logdir,
                f"event_index IN ({', '.join('?' * len(indexes))}) ORDER BY execution_index, event_index",
                [self._run_id, *indexes],
            )
            yield from (row for row in rows if not self.moved.is_moved(row))

    def _variable_effect(self, row: TensorEvent) -> str:
        assert row.tensor_id is not None
        writers = [use.execution for use in self._flow.events.uses(row.tensor_id) if is_writer(use.execution.op_type)]
        effects = {effect_of_write(self._labels.execution(writer.execution_index).role) for writer in writers}
        return min(effects, key=EFFECTS.index)

    # Errors.

    def _cut_off(self) -> Iterator[TensorEvent]:
        """Yields the bad tensors that an op did not take because their call raised a harmful error."""
        harmful = itertools.filterfalse(self.failed_calls.is_caught, sorted(self.failed_calls.executions))
        for execution_index in itertools.islice(harmful, _MAX_FAILED):
            rows = read_events(
                self._logdir,
                f"{self._bad} AND scope = 'graph' AND execution_index = ? ORDER BY event_index LIMIT {_MAX_TENSORS}",
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
    """Groups eager tensors, or tensors of calls, by execution. The tensors must be sorted by execution."""
    for execution_index, batch in itertools.groupby(rows, key=lambda row: row.execution_index or 0):
        yield (execution_index, -1), list(batch)


def effect_of_write(role: str | None) -> str:
    """Returns the effect of a bad tensor that an op with this role writes to a variable."""
    return {"metric": "metric", "loss": "result"}.get(role or "", "variable")


def _taken_by(graph: Graph, op: Op) -> Iterator[tuple[str, int]]:
    """Yields each tensor that an op takes, and the same tensor before it passed through other ops."""
    for source in op.inputs:
        at: tuple[str, int] | None = source
        while at is not None:
            yield at
            maker = graph.ops.get(at[0])
            is_passing = maker is not None and maker.op_type in PASSING_OPS and maker.inputs
            at = maker.inputs[at[1] if maker.op_type == "IdentityN" else 0] if is_passing and maker else None
