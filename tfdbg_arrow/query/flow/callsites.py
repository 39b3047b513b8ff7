"""Call sites and loop frames: the op that called the graph of a tensor, and the frame and iteration of the call."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache

from tfdbg_arrow.link import call_chains
from tfdbg_arrow.link.call_chains import CallChains, callee_pattern
from tfdbg_arrow.link.frame_entries import Entry, find_entries, find_iterations
from tfdbg_arrow.query.flow.events import EventReader
from tfdbg_arrow.query.flow.graphs import LOOPS, Call, GraphReader
from tfdbg_arrow.query.recorded import Context, SiteVisit

_MAX_STEPS = 64
"""Maximum number of steps whose visits are cached."""
_MAX_KEPT = 1024
"""Maximum number of cached results of each method."""

Level = call_chains.Level[Call]
"""One call in the chain of calls that leads to a call site."""


class CallSites:
    """Finds callers and callees of graphs within one run.

    Attributes:
        levels: The method `CallChains.levels`.
    """

    def __init__(self, graphs: GraphReader, events: EventReader) -> None:
        self._graphs = graphs
        self._events = events
        self.levels = CallChains(graphs.callers).levels
        # The following methods are called for each tensor. Without the caches, the time would be quadratic in the
        # number of visits.
        kept = lru_cache(maxsize=_MAX_KEPT)
        self._visits_by_graph = lru_cache(maxsize=_MAX_STEPS)(self._find_visits_by_graph)
        self._visits_of_graph = kept(self._find_visits_of_graph)
        self._sites_of_graph = kept(self._find_sites_of_graph)
        self._visits_of_callee = kept(self._find_visits_of_callee)
        self._entries = kept(self._find_entries)
        self._visits_by_entry = kept(self._find_visits_by_entry)

    def callee_visits(self, context: Context, call: Call) -> Sequence[SiteVisit]:
        """Returns the visits of the graph that an op calls in `context`, within the step of the context."""
        if context.step_id is None or context.call_site is None or call.callee_graph_id is None:
            return ()
        return self._visits_of_callee(context.step_id, context.execution_index, context.call_site, call)

    def entered_visit(self, context: Context, call: Call) -> SiteVisit | None:
        """Returns the visit of the body or condition of an inner loop that was entered in `context`, or None.

        Args:
            context: The frame and iteration of the outer loop that entered the inner loop.
            call: The inner loop's call of its body or condition.
        """
        if context.step_id is None or context.call_site is None or call.callee_graph_id is None:
            return None
        by_entry = self._visits_by_entry(context.step_id, context.execution_index, context.call_site, call)
        return by_entry.get((context.frame_id, context.iteration))

    def body_site(self, context: Context, body: Call) -> str | None:
        """Returns the call site of a loop's body in the frame of a context, or None if the body left no row there."""
        assert context.step_id is not None
        sites = self._sites_of_graph(context.step_id, context.execution_index, body.callee_graph_id)
        return sites.get(context.frame_id)

    def last_iteration_until(self, context: Context, graph_id: int) -> int | None:
        """Returns the last iteration with rows of a loop's body, not later than the iteration of a context, or None."""
        if context.step_id is None or context.call_site is None or context.iteration is None:
            return None
        visits = self._visits_of_graph(context.step_id, context.execution_index, graph_id).get(context.call_site, ())
        iterations = next((visit.iterations for visit in visits if visit.frame_id == context.frame_id), ())
        place = bisect_right(iterations, context.iteration)
        return iterations[place - 1] if place else None

    def levels_in(self, context: Context, graph_id: int) -> tuple[Level, ...] | None:
        """Returns the chain of calls from the outermost graph to a graph in a context, or None if it is unknown."""
        if context.call_site is None:
            return None
        execution = self._events.execution(context.execution_index)
        root = None if execution is None else execution.graph_id
        return self.levels(graph_id, context.call_site, root=root)

    def outer_context(self, context: Context, levels: tuple[Level, ...]) -> Context:
        """Returns the context of the op that made the last call of `levels`, given the context of the called graph."""
        level = levels[-1]
        if not level.is_loop:
            frame_id, iteration = context.frame_id, context.iteration
        elif not any(above.is_loop for above in levels[:-1]):
            frame_id, iteration = 0, 0
        else:
            frame_id, iteration = self._outer_iteration(context, level)
        return Context(context.step_id, context.execution_index, level.site, frame_id, iteration)

    def loops_around(self, context: Context, graph_id: int) -> list[tuple[Level, int | None]]:
        """Returns the loops around a graph and their iterations, outermost loop first. Unknown iterations are None."""
        levels = self.levels_in(context, graph_id) or ()
        loops: list[tuple[Level, int | None]] = []
        for depth in range(len(levels), 0, -1):
            if levels[depth - 1].is_loop:
                loops.insert(0, (levels[depth - 1], context.iteration))
            context = self.outer_context(context, levels[:depth])
        return loops

    def _outer_iteration(self, context: Context, level: Level) -> tuple[int | None, int | None]:
        """Returns the (frame, iteration) of an outer loop that entered the frame of an inner loop."""
        if context.step_id is None:
            return None, None
        call = level.call
        entries = self._entries(context.step_id, context.execution_index, level.site, call.graph_id, call.op_name)
        return entries.get(context.frame_id or 0, (None, None))

    def _find_entries(
        self, step_id: int, execution_index: int | None, site: str, graph_id: int, op_name: str
    ) -> Mapping[int, tuple[int | None, int]]:
        """Returns, for each frame of a loop, the frame and iteration of the calling graph that entered this frame."""
        frames: dict[int, int] = {}
        inner_site = ""
        for part in self._graphs.calls(graph_id, op_name):
            if part.attribute not in LOOPS or part.callee_graph_id is None:
                continue
            for visit in self._visits_of_callee(step_id, execution_index, site, part):
                first = frames.get(visit.frame_id, visit.first_event_index)
                frames[visit.frame_id] = min(first, visit.first_event_index)
                inner_site = visit.call_site
        in_order = sorted(frames, key=frames.__getitem__)
        levels = self.levels(graph_id, site, root=None) or ()
        outer = self._visits_of_graph(step_id, execution_index, graph_id).get(site, ())
        while not outer and levels and not levels[-1].is_loop:  # a function without rows ran in passes of its caller
            call, site, levels = levels[-1].call, levels[-1].site, levels[:-1]
            outer = self._visits_of_graph(step_id, execution_index, call.graph_id).get(site, ())
        if not outer:
            return self._entries_without_rows(step_id, execution_index, levels, in_order, inner_site)
        entries = [(visit.frame_id, iteration) for visit in outer for iteration in visit.iterations]
        return _entry_of_frames(in_order, entries)

    def _entries_without_rows(
        self,
        step_id: int,
        execution_index: int | None,
        levels: tuple[Level, ...],
        frames: Sequence[int],
        inner_site: str,
    ) -> Mapping[int, tuple[int | None, int]]:
        """Returns the entries of an inner loop's frames, if the body of the outer loop itself left no row.

        Args:
            step_id: The step.
            execution_index: The execution of the step.
            levels: The calls that lead to the body of the outer loop.
            frames: The frames of the inner loop, in the order in which their first tensors were recorded.
            inner_site: A call site of the inner loop's condition or body.
        """
        if not levels or not frames:
            return {}
        last: dict[int, int] = {}
        for visit in self.visits_inside(step_id, execution_index, levels[-1]):
            last[visit.frame_id] = max(visit.last_iteration, last.get(visit.frame_id, len(frames) - 1))
        if last:
            # An iteration in which the other graphs left no row may also have entered the inner loop.
            return _entry_of_frames(frames, [(frame, k) for frame in sorted(last) for k in range(last[frame] + 1)])
        if any(level.is_loop for level in levels[:-1]):
            return {}
        iterations = find_iterations(frames, site=inner_site, outer_site=levels[-1].callee_site)
        return {frame: (None, iteration) for frame, iteration in iterations.items()}

    def visits_inside(self, step_id: int, execution_index: int | None, loop: Level) -> list[SiteVisit]:
        """Returns the visits of the graphs that ran in a loop's frames: its body, its condition, and their branches."""
        inside = []
        for visit in self._events.site_visits(step_id, execution_index):
            levels = self.levels(visit.graph_id, visit.call_site, root=None) or ()
            innermost = next((level for level in reversed(levels) if level.is_loop), None)
            if innermost is not None and innermost.is_of(loop):
                inside.append(visit)
        return inside

    def _find_visits_by_entry(
        self, step_id: int, execution_index: int | None, site: str, call: Call
    ) -> dict[tuple[int | None, int | None], SiteVisit]:
        """Returns the visits of an inner loop's body or condition, by the entry of the loop."""
        entries = self._entries(step_id, execution_index, site, call.graph_id, call.op_name)
        by_entry: dict[tuple[int | None, int | None], SiteVisit] = {}
        for visit in self._visits_of_callee(step_id, execution_index, site, call):
            entry: tuple[int | None, int | None] | None = entries.get(visit.frame_id)
            if entry is not None:
                by_entry.setdefault(entry, visit)
        return by_entry

    def _find_visits_of_callee(
        self, step_id: int, execution_index: int | None, site: str, call: Call
    ) -> tuple[SiteVisit, ...]:
        """Returns a step's visits of the graph that an op at a call site calls, in the order of their first rows."""
        assert call.callee_graph_id is not None
        by_site = self._visits_of_graph(step_id, execution_index, call.callee_graph_id)
        for is_renamed in (False, True):
            pattern = callee_pattern(site, call, is_renamed=is_renamed)
            of_callee = [visit for name, visits in by_site.items() if pattern.fullmatch(name) for visit in visits]
            if of_callee:
                return tuple(sorted(of_callee, key=lambda visit: visit.first_event_index))
        return ()

    def _find_visits_of_graph(
        self, step_id: int, execution_index: int | None, graph_id: int
    ) -> dict[str, list[SiteVisit]]:
        """Returns the visits of a graph in a step, by call site."""
        by_call_site: dict[str, list[SiteVisit]] = {}
        for visit in self._visits_by_graph(step_id, execution_index).get(graph_id, ()):
            by_call_site.setdefault(visit.call_site, []).append(visit)
        return by_call_site

    def _find_sites_of_graph(
        self, step_id: int, execution_index: int | None, graph_id: int | None
    ) -> dict[int | None, str]:
        """Returns, for each frame of a step, the call site at which a graph left its first row."""
        by_frame: dict[int | None, str] = {}
        if graph_id is not None:
            for visit in self._visits_by_graph(step_id, execution_index).get(graph_id, ()):
                by_frame.setdefault(visit.frame_id, visit.call_site)
        return by_frame

    def _find_visits_by_graph(self, step_id: int, execution_index: int | None) -> dict[int, list[SiteVisit]]:
        by_graph: dict[int, list[SiteVisit]] = {}
        for visit in self._events.site_visits(step_id, execution_index):
            by_graph.setdefault(visit.graph_id, []).append(visit)
        return by_graph


def _entry_of_frames(frames: Sequence[int], entries: Sequence[Entry]) -> dict[int, Entry]:
    return {frame: entries[index] for frame, index in find_entries(frames, entries).items()}
