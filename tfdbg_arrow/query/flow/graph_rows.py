"""Reads tensors of graphs one call at a time. Reads a very large call in blocks of iterations of one call site."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.recorded import Context, GraphTensor, SiteVisit, TensorEvent, read_events

_MAX_CALL_ROWS = 20_000
"""A call with at most this many rows is read at once. Of a larger call, only the requested rows are read."""
_BLOCK_ROWS = 4_000
"""Approximate number of rows of a larger call that are read at once."""
_MAX_KEPT_ROWS = 200_000
"""Maximum number of rows in the cache, at about 700 bytes each."""
_WINDOW_EVENTS = 8_192
"""Number of events of a window of rows without a known context. Imported runs have such rows."""
_MAX_LOOKUPS = 64
"""After this many lookups in a window, the window is read at once, which takes as long as 50 to 100 lookups."""
_MAX_WINDOWS = 16
"""Maximum number of windows in the cache, with at most 131,072 rows."""

_Key = tuple[int, str, int]
"""Graph, op and output slot."""
_Pass = dict[_Key, list[TensorEvent]]
"""Rows of one call site in one iteration, by event_index. Only a loop that was not lowered has several rows per key."""
_CallId = tuple[int | None, int | None]
"""execution_index, and step_id if execution_index is None."""


@dataclass
class _Call:
    """The rows of one call, as far as they were read.

    Attributes:
        num_rows: Number of rows read.
        is_whole: Whether these are all rows of the call.
        passes: The rows by (step_id, call site), then by (frame, iteration).
        visits: The visits by step_id.
        executed_graph_ids: The optimized graphs by step_id.
        root_steps: The steps of outermost graphs.
    """

    num_rows: int = 0
    is_whole: bool = True
    passes: dict[tuple[int, str], dict[tuple[int, int], _Pass]] = field(default_factory=dict)
    visits: dict[int, tuple[SiteVisit, ...]] = field(default_factory=dict)
    executed_graph_ids: dict[int, set[int]] = field(default_factory=dict)
    root_steps: dict[int, int | None] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether no tensor of a graph was recorded in the call."""
        return self.is_whole and self.num_rows == 0

    def add(self, rows: Iterable[TensorEvent]) -> None:
        for row in rows:
            self.num_rows += 1
            if row.step_id is None or row.call_site is None or row.graph_id is None:
                continue
            if row.executed_graph_id is not None:
                self.executed_graph_ids.setdefault(row.step_id, set()).add(row.executed_graph_id)
            if row.op_name is None or row.output_slot is None:
                continue
            site = self.passes.setdefault((row.step_id, row.call_site), {})
            one = site.setdefault((row.frame_id or 0, row.iteration or 0), {})
            one.setdefault((row.graph_id, row.op_name, row.output_slot), []).append(row)


class CallReader:
    """Reads the tensors of graphs of one run and caches the most recent calls."""

    def __init__(self, logdir: Engine, *, run_id: str) -> None:
        self._logdir = logdir
        self._run_id = run_id
        self._calls: OrderedDict[_CallId, _Call] = OrderedDict()
        self._num_rows = 0
        self._nearest = lru_cache(maxsize=10_000)(self._find_nearest)
        self._window = lru_cache(maxsize=_MAX_WINDOWS)(self._read_window)
        self._num_lookups: Counter[int] = Counter()
        """The number of lookups in each window."""

    def graph_tensor(self, place: GraphTensor) -> TensorEvent | None:
        """Returns the row of a graph's tensor, or None. If the tensor's context is unknown, returns the nearest row."""
        self._logdir.check_time()
        context, near = place.context, place.near
        key = (place.graph_id, place.op_name, place.output_slot)
        if context.step_id is None or context.call_site is None:
            if context.execution_index is not None and self._call(None, context.execution_index).is_empty:
                return None
            return self._nearest(key, context.execution_index, near)
        rows = [row for one in self._passes(context) for row in one.get(key, ())]
        if len(rows) <= 1:
            return rows[0] if rows else None
        # A loop that was not lowered runs its iterations in one context.
        rows.sort(key=lambda row: row.event_index)
        return next((row for row in reversed(rows) if row.event_index < near), rows[0])

    def read_steps(self, step_ids: Iterable[int]) -> None:
        """Reads the rows of several steps that belong to no execution at once, unless they have too many rows."""
        missing = [step_id for step_id in dict.fromkeys(step_ids) if (None, step_id) not in self._calls]
        rows = read_events(
            self._logdir,
            f"execution_index IS NULL AND step_id IN ({', '.join('?' * len(missing)) or 'NULL'}) AND scope = 'graph' "
            f"ORDER BY event_index LIMIT {_MAX_CALL_ROWS + 1}",
            [self._run_id, *missing],
        )
        if len(rows) > _MAX_CALL_ROWS:
            return
        calls = {step_id: _Call() for step_id in missing}
        for row in rows:
            calls[row.step_id or 0].add([row])
        for step_id, call in calls.items():
            self._keep((None, step_id), call)

    def executed_graph_ids(self, step_id: int, execution_index: int | None) -> frozenset[int]:
        """Returns the optimized graphs that ran in a step; empty if the recording does not show them."""
        call = self._call(step_id, execution_index)
        if step_id not in call.executed_graph_ids and not call.is_whole:
            call.executed_graph_ids[step_id] = self._read_executed_graph_ids(step_id, execution_index)
        return frozenset(call.executed_graph_ids.get(step_id, ()))

    def site_visits(self, step_id: int, execution_index: int | None) -> tuple[SiteVisit, ...]:
        """Returns the visits of the graphs of a step, in the order of their first rows."""
        call = self._call(step_id, execution_index)
        if step_id not in call.visits:
            call.visits[step_id] = (
                _visits(call, step_id) if call.is_whole else self._read_visits(step_id, execution_index)
            )
        return call.visits[step_id]

    def root_context(self, execution_index: int, graph_id: int) -> Context:
        """Returns the context in which the outermost graph of a call ran. The context may have no step.

        Args:
            execution_index: The call.
            graph_id: The outermost graph.
        """
        call = self._call(None, execution_index)
        if graph_id not in call.root_steps:
            call.root_steps[graph_id] = (
                _root_step(call, graph_id) if call.is_whole else self._read_root_step(execution_index, graph_id)
            )
        step_id = call.root_steps[graph_id]
        if step_id is None:
            return Context(None, execution_index, None, None, None)
        return Context(step_id, execution_index, "", 0, 0)

    def _passes(self, context: Context) -> list[_Pass]:
        """Returns the rows of a context. An unknown frame or iteration matches all frames or iterations."""
        assert context.step_id is not None
        assert context.call_site is not None
        call = self._call(context.step_id, context.execution_index)
        if not call.is_whole:
            self._read_block(call, context)
        passes = call.passes.get((context.step_id, context.call_site), {})
        if context.frame_id is not None and context.iteration is not None:
            one = passes.get((context.frame_id, context.iteration))
            return [] if one is None else [one]
        return [
            one
            for (frame_id, iteration), one in passes.items()
            if context.frame_id in (None, frame_id) and context.iteration in (None, iteration)
        ]

    def _call(self, step_id: int | None, execution_index: int | None) -> _Call:
        key = (execution_index, step_id if execution_index is None else None)
        call = self._calls.get(key)
        if call is not None:
            self._calls.move_to_end(key)
            return call
        condition, parameters = ("execution_index = ?", [execution_index])
        if execution_index is None:
            condition, parameters = ("execution_index IS NULL AND step_id = ?", [step_id])
        rows = read_events(
            self._logdir,
            f"{condition} AND scope = 'graph' ORDER BY event_index LIMIT {_MAX_CALL_ROWS + 1}",
            [self._run_id, *parameters],
        )
        call = _Call(is_whole=len(rows) <= _MAX_CALL_ROWS)
        if call.is_whole:
            call.add(rows)
        self._keep(key, call)
        return call

    def _keep(self, key: _CallId, call: _Call) -> None:
        self._calls[key] = call
        self._num_rows += call.num_rows
        self._forget()

    def _forget(self) -> None:
        while self._num_rows > _MAX_KEPT_ROWS and len(self._calls) > 1:
            _, call = self._calls.popitem(last=False)
            self._num_rows -= call.num_rows

    def _read_block(self, call: _Call, context: Context) -> None:
        """Reads the iterations of a call site around the iteration of a context, unless they were already read."""
        assert context.step_id is not None
        passes = call.passes.setdefault((context.step_id, context.call_site or ""), {})
        if (context.frame_id, context.iteration) in passes:
            return
        of_site = [
            visit
            for visit in self.site_visits(context.step_id, context.execution_index)
            if visit.call_site == context.call_site
        ]
        visits = [visit for visit in of_site if context.frame_id in (None, visit.frame_id)]
        if context.frame_id is not None and sum(visit.num_rows for visit in visits) < _BLOCK_ROWS:
            visits, context = _with_frames_beside(visits, of_site), replace(context, iteration=None)
        wanted = [
            (visit.frame_id, iteration)
            for visit in visits
            for iteration in visit.iterations
            if context.iteration in (None, iteration) and (visit.frame_id, iteration) not in passes
        ]
        if not wanted:
            return
        num_iterations = max(1, _BLOCK_ROWS // max(1, sum(visit.num_rows // len(visit.iterations) for visit in visits)))
        frames = sorted({frame for frame, _ in wanted})
        least, most = min(iteration for _, iteration in wanted), max(iteration for _, iteration in wanted)
        if context.iteration is not None:
            # A caller that walks back through a loop asks for the preceding iterations next.
            least = max(0, least - num_iterations + 1)
        rows = read_events(
            self._logdir,
            "execution_index IS NOT DISTINCT FROM ? AND step_id = ? AND call_site = ? AND iteration BETWEEN ? AND ? "
            f"AND frame_id IN ({', '.join('?' * len(frames))}) AND scope = 'graph' ORDER BY event_index",
            [self._run_id, context.execution_index, context.step_id, context.call_site, least, most, *frames],
        )
        before = call.num_rows
        there = frozenset(passes)
        call.add(row for row in rows if (row.frame_id or 0, row.iteration or 0) not in there)
        self._num_rows += call.num_rows - before
        self._forget()

    def _read_visits(self, step_id: int, execution_index: int | None) -> tuple[SiteVisit, ...]:
        rows = self._logdir.rows(
            "SELECT graph_id, call_site, coalesce(frame_id, 0), coalesce(iteration, 0), min(event_index), count(*) "
            "FROM tensor_health WHERE run_id = ? AND step_id = ? AND execution_index IS NOT DISTINCT FROM ? "
            "AND graph_id IS NOT NULL AND call_site IS NOT NULL "
            "GROUP BY graph_id, call_site, coalesce(frame_id, 0), coalesce(iteration, 0)",
            [self._run_id, step_id, execution_index],
        )
        iterations_of: dict[tuple[int, str, int], dict[int, tuple[int, int]]] = {}
        for graph_id, call_site, frame_id, iteration, event_index, num_rows in rows:
            iterations_of.setdefault((graph_id, call_site, frame_id), {})[iteration] = (event_index, num_rows)
        return _sorted_visits(iterations_of)

    def _read_executed_graph_ids(self, step_id: int, execution_index: int | None) -> set[int]:
        rows = self._logdir.rows(
            "SELECT DISTINCT executed_graph_id FROM tensor_health WHERE run_id = ? AND step_id = ? "
            "AND execution_index IS NOT DISTINCT FROM ? AND executed_graph_id IS NOT NULL",
            [self._run_id, step_id, execution_index],
        )
        return {executed_graph_id for (executed_graph_id,) in rows}

    def _read_root_step(self, execution_index: int, graph_id: int) -> int | None:
        rows = self._logdir.rows(
            "SELECT step_id FROM tensor_health WHERE run_id = ? AND execution_index = ? AND scope = 'graph' "
            "AND step_id IS NOT NULL AND call_site IS NOT NULL "
            "ORDER BY CASE WHEN graph_id = ? THEN 0 ELSE 1 END, CASE WHEN call_site = '' THEN 0 ELSE 1 END, "
            "event_index LIMIT 1",
            [self._run_id, execution_index, graph_id],
        )
        return rows[0][0] if rows else None

    def _find_nearest(self, key: _Key, execution_index: int | None, near: int) -> TensorEvent | None:
        """Returns the last row of a tensor before an event, in one call if `execution_index` is given."""
        window = (near - 1) // _WINDOW_EVENTS
        self._num_lookups[window] += 1
        if self._num_lookups[window] > _MAX_LOOKUPS:
            if key not in self._recorded:
                return None
            for row in reversed(self._window(window).get(key, ())):
                if row.event_index < near and execution_index in (None, row.execution_index):
                    return row
        return self._read_nearest(key, execution_index, near)

    @cached_property
    def _recorded(self) -> frozenset[_Key]:
        """The tensors of graphs that were recorded at least once."""
        rows = self._logdir.rows(
            "SELECT DISTINCT graph_id, op_name, output_slot FROM tensor_health WHERE run_id = ? AND scope = 'graph'",
            [self._run_id],
        )
        return frozenset((graph_id, op_name, output_slot) for graph_id, op_name, output_slot in rows)

    def _read_window(self, window: int) -> _Pass:
        first = window * _WINDOW_EVENTS
        rows = read_events(
            self._logdir,
            "scope = 'graph' AND event_index BETWEEN ? AND ? ORDER BY event_index",
            [self._run_id, first, first + _WINDOW_EVENTS - 1],
        )
        rows_of: _Pass = {}
        for row in rows:
            if row.graph_id is not None and row.op_name is not None and row.output_slot is not None:
                rows_of.setdefault((row.graph_id, row.op_name, row.output_slot), []).append(row)
        return rows_of

    def _read_nearest(self, key: _Key, execution_index: int | None, near: int) -> TensorEvent | None:
        condition = "graph_id = ? AND op_name = ? AND output_slot = ? AND event_index < ?"
        parameters: list[object] = [self._run_id, *key, near]
        if execution_index is not None:
            condition += " AND execution_index = ?"
            parameters.append(execution_index)
        rows = read_events(self._logdir, condition + " ORDER BY event_index DESC LIMIT 1", parameters)
        return rows[0] if rows else None


def _with_frames_beside(visits: list[SiteVisit], of_site: list[SiteVisit]) -> list[SiteVisit]:
    """Returns the visits of one frame and the nearest other visits at the call site, as many as fit into a block.

    A caller that walks through an outer loop asks for the neighbouring frames of its inner loop next.
    """
    first = min((visit.first_event_index for visit in visits), default=0)
    chosen, num_rows = list(visits), sum(visit.num_rows for visit in visits)
    others = (visit for visit in of_site if visit not in visits)
    for visit in sorted(others, key=lambda visit: abs(visit.first_event_index - first)):
        num_rows += visit.num_rows
        if num_rows > _BLOCK_ROWS:
            break
        chosen.append(visit)
    return chosen


def _root_step(call: _Call, graph_id: int) -> int | None:
    """Returns the step of an outermost graph. Functions of tf.data also run during a call, in steps of their own."""
    firsts = (
        (key[0] != graph_id, site != "", rows[0].event_index, step)
        for (step, site), passes in call.passes.items()
        for one in passes.values()
        for key, rows in one.items()
    )
    return min(firsts, default=(True, True, 0, None))[3]


def _visits(call: _Call, step_id: int) -> tuple[SiteVisit, ...]:
    iterations_of: dict[tuple[int, str, int], dict[int, tuple[int, int]]] = {}
    for (step, site), passes in call.passes.items():
        if step != step_id:
            continue
        for (frame_id, iteration), one in passes.items():
            for (graph_id, _, _), rows in one.items():
                iterations = iterations_of.setdefault((graph_id, site, frame_id), {})
                first, number = iterations.get(iteration, (rows[0].event_index, 0))
                iterations[iteration] = (min(first, rows[0].event_index), number + len(rows))
    return _sorted_visits(iterations_of)


def _sorted_visits(iterations_of: dict[tuple[int, str, int], dict[int, tuple[int, int]]]) -> tuple[SiteVisit, ...]:
    """Builds visits from (least event_index, number of rows) by iteration."""
    visits = [
        SiteVisit(
            *key,
            tuple(sorted(iterations)),
            min(first for first, _ in iterations.values()),
            sum(number for _, number in iterations.values()),
        )
        for key, iterations in iterations_of.items()
    ]
    return tuple(sorted(visits, key=lambda visit: visit.first_event_index))
