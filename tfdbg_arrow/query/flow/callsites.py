"""Call sites: which op of which graph called the graph that a tensor belongs to.

TensorFlow inlines nested functions and names an inlined op `<calling op>/<op>`. For control flow it adds components of
its own: `while/body/_9/…`, `cond/then/_174/…`, `indexed_case/branch1/_74/…`. A call site is that path without the op.
Op names may contain slashes, so a path alone does not show where one name ends. The recorded calls do.

Source: tensorflow/core/common_runtime/{inline_function_utils,lower_while_op,lower_if_op,lower_case_op}.cc.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tfdbg_arrow.query.flow.events import EventReader
from tfdbg_arrow.query.flow.frames import find_entries
from tfdbg_arrow.query.flow.graphs import Call, GraphReader
from tfdbg_arrow.query.recorded import Context, SiteVisit

_SUFFIXES = {
    "body": r"/body(/_\d+)?",
    "cond": r"/cond(/_\d+)?",
    "then_branch": r"/then(/_\d+)?",
    "else_branch": r"/else(/_\d+)?",
    "branches": r"/branch{index}(/_\d+)?",
}
_ANY_SUFFIX = r"(/_\d+)?"
_NAMES = ("", r"_\d+")
"""Suffix of the calling op's name: none, or a number for a loop that TensorFlow rebuilt for its gradient."""
_MAX_DEPTH = 64
_MAX_RENAMED = 4
"""Maximum number of renamed loops within each other."""
_MAX_STEPS = 64
"""Number of steps whose visits are cached by graph."""
_MAX_KEPT = 1024
"""Number of cached answers of each kind."""


@dataclass(frozen=True)
class Level:
    """One step down a call site.

    Attributes:
        call: The calling op and the called graph.
        site: Call site of the calling op's graph.
        callee_site: Call site of the called graph.
    """

    call: Call
    site: str
    callee_site: str

    @property
    def is_loop(self) -> bool:
        """Whether the called graph is a loop's body or condition."""
        return self.call.attribute in ("body", "cond")

    def is_of(self, other: Level) -> bool:
        """Returns whether both are calls of the same op at the same call site, of any of its functions."""
        one = (self.call.graph_id, self.call.op_name, self.site)
        return one == (other.call.graph_id, other.call.op_name, other.site)


class CallSites:
    """Finds callers and callees of graphs within one run.

    Args:
        graphs: The run's graphs.
        events: The run's recorded tensors.
    """

    def __init__(self, graphs: GraphReader, events: EventReader) -> None:
        self._graphs = graphs
        self._events = events
        self._known: dict[tuple[int, str, int | None], tuple[Level, ...] | None] = {}
        # These are needed for each tensor. Computing them anew each time would take quadratic time in the visits.
        kept = lru_cache(maxsize=_MAX_KEPT)
        self._visits_by_graph = lru_cache(maxsize=_MAX_STEPS)(self._find_visits_by_graph)
        self._visits_of_graph = kept(self._find_visits_of_graph)
        self._sites_of_graph = kept(self._find_sites_of_graph)
        self._visits_of_callee = kept(self._find_visits_of_callee)
        self._entries = kept(self._find_entries)
        self._visits_by_entry = kept(self._find_visits_by_entry)

    def levels(self, graph_id: int, call_site: str, *, root_graph_id: int | None) -> tuple[Level, ...] | None:
        """Returns the calls from the outermost graph to a graph.

        Args:
            graph_id: The graph at the call site.
            call_site: The call site.
            root_graph_id: The outermost graph; None if it is unknown.

        Returns:
            The levels, outermost first; an empty tuple for the outermost graph itself; None if the calls were not
            recorded.
        """
        key = (graph_id, call_site, root_graph_id)
        if key not in self._known:
            self._known[key] = self._find(graph_id, call_site, root_graph_id)
        return self._known[key]

    def callee_visits(self, context: Context, call: Call) -> Sequence[SiteVisit]:
        """Returns where the callee of an op that runs in `context` left rows in the same step."""
        if context.step_id is None or context.call_site is None or call.callee_graph_id is None:
            return ()
        return self._visits_of_callee(context.step_id, context.execution_index, context.call_site, call)

    def entered_visit(self, context: Context, call: Call) -> SiteVisit | None:
        """Returns where the body or condition of an inner loop left rows when the loop was entered in `context`.

        Args:
            context: A frame and iteration of the outer loop.
            call: The inner loop's call.
        """
        if context.step_id is None or context.call_site is None or call.callee_graph_id is None:
            return None
        by_entry = self._visits_by_entry(context.step_id, context.execution_index, context.call_site, call)
        return by_entry.get((context.frame_id, context.iteration))

    def body_site(self, context: Context, body: Call) -> str | None:
        """Returns the call site of a loop's body in the frame of a context, or None if it left no row there."""
        assert context.step_id is not None
        sites = self._sites_of_graph(context.step_id, context.execution_index, body.callee_graph_id)
        return sites.get(context.frame_id)

    def last_iteration_until(self, context: Context, graph_id: int) -> int | None:
        """Returns the last iteration, at most that of a context, in which a loop's body left rows, or None."""
        if context.step_id is None or context.call_site is None or context.iteration is None:
            return None
        visits = self._visits_of_graph(context.step_id, context.execution_index, graph_id).get(context.call_site, ())
        iterations = next((visit.iterations for visit in visits if visit.frame_id == context.frame_id), ())
        place = bisect_right(iterations, context.iteration)
        return iterations[place - 1] if place else None

    def outer_context(self, context: Context, level: Level, *, loops_above: bool) -> Context:
        """Returns where the calling op ran, given where the called graph ran.

        Args:
            context: Where the called graph ran.
            level: The call.
            loops_above: Whether the calling op's graph itself runs in a loop.
        """
        if not level.is_loop:
            frame_id, iteration = context.frame_id, context.iteration
        elif not loops_above:
            frame_id, iteration = 0, 0
        else:
            frame_id, iteration = self._outer_iteration(context, level)
        return Context(context.step_id, context.execution_index, level.site, frame_id, iteration)

    def _outer_iteration(self, context: Context, level: Level) -> tuple[int | None, int | None]:
        """Returns (frame, iteration) of the outer loop in which an inner loop's frame was entered."""
        assert context.step_id is not None
        call = level.call
        entries = self._entries(context.step_id, context.execution_index, level.site, call.graph_id, call.op_name)
        return entries.get(context.frame_id or 0, (None, None))

    def _find_entries(
        self, step_id: int, execution_index: int | None, site: str, graph_id: int, op_name: str
    ) -> Mapping[int, tuple[int | None, int]]:
        """Returns, for each frame of a loop, the frame and iteration of the calling graph that entered it."""
        frames: dict[int, int] = {}
        for part in self._graphs.calls(graph_id, op_name):
            if part.attribute not in ("body", "cond") or part.callee_graph_id is None:
                continue
            for visit in self._visits_of_callee(step_id, execution_index, site, part):
                first = frames.get(visit.frame_id, visit.first_event_index)
                frames[visit.frame_id] = min(first, visit.first_event_index)
        outer = self._visits_of_graph(step_id, execution_index, graph_id).get(site, ())
        in_order = sorted(frames, key=frames.__getitem__)
        if not outer:
            return self._entries_without_rows(step_id, execution_index, site, graph_id, in_order)
        entries = [(visit.frame_id, iteration) for visit in outer for iteration in visit.iterations]
        return find_entries(in_order, entries)

    def _entries_without_rows(
        self, step_id: int, execution_index: int | None, site: str, graph_id: int, frames: Sequence[int]
    ) -> Mapping[int, tuple[int | None, int]]:
        """Returns where the frames of an inner loop were entered, if the body of the outer loop itself left no row.

        Args:
            step_id: The step.
            execution_index: The execution of the step.
            site: The call site of the body of the outer loop.
            graph_id: The body of the outer loop.
            frames: The frames of the inner loop, in the order in which their first tensors were recorded.
        """
        levels = self.levels(graph_id, site, root_graph_id=None)
        if not levels or not levels[-1].is_loop:
            return {}
        last: dict[int, int] = {}
        for visit in self.visits_inside(step_id, execution_index, levels[-1]):
            last[visit.frame_id] = max(visit.last_iteration, last.get(visit.frame_id, len(frames) - 1))
        if last:
            # An iteration in which the other graphs left no row may also have entered the inner loop.
            return find_entries(frames, [(frame, k) for frame in sorted(last) for k in range(last[frame] + 1)])
        if any(level.is_loop for level in levels[:-1]):
            return {}
        # One frame of the outer loop, with an unknown id, enters the inner loop in each iteration.
        return {frame: (None, iteration) for iteration, frame in enumerate(frames)}

    def visits_inside(self, step_id: int, execution_index: int | None, loop: Level) -> list[SiteVisit]:
        """Returns where graphs left rows in the frames of a loop: its body, its condition, and their branches."""
        found = []
        for visit in self._events.site_visits(step_id, execution_index):
            levels = self.levels(visit.graph_id, visit.call_site, root_graph_id=None) or ()
            innermost = next((level for level in reversed(levels) if level.is_loop), None)
            if innermost is not None and innermost.is_of(loop):
                found.append(visit)
        return found

    def _find_visits_by_entry(
        self, step_id: int, execution_index: int | None, site: str, call: Call
    ) -> dict[tuple[int | None, int | None], SiteVisit]:
        """Returns the visits of an inner loop's body or condition, by where the loop was entered."""
        entries = self._entries(step_id, execution_index, site, call.graph_id, call.op_name)
        found: dict[tuple[int | None, int | None], SiteVisit] = {}
        for visit in self._visits_of_callee(step_id, execution_index, site, call):
            entry: tuple[int | None, int | None] | None = entries.get(visit.frame_id)
            if entry is not None:
                found.setdefault(entry, visit)
        return found

    def _find_visits_of_callee(
        self, step_id: int, execution_index: int | None, site: str, call: Call
    ) -> tuple[SiteVisit, ...]:
        """Returns where the callee of an op at a call site left rows in a step, in order of the first rows."""
        assert call.callee_graph_id is not None
        start = join_site(site, call.op_name)
        by_site = self._visits_of_graph(step_id, execution_index, call.callee_graph_id)
        for renamed in _NAMES:
            pattern = re.compile(re.escape(start) + renamed + _suffix(call))
            found = [visit for name, visits in by_site.items() if pattern.fullmatch(name) for visit in visits]
            if found:
                return tuple(sorted(found, key=lambda visit: visit.first_event_index))
        return ()

    def _find_visits_of_graph(
        self, step_id: int, execution_index: int | None, graph_id: int
    ) -> dict[str, list[SiteVisit]]:
        """Returns where a graph left rows in a step, by call site."""
        found: dict[str, list[SiteVisit]] = {}
        for visit in self._visits_by_graph(step_id, execution_index).get(graph_id, ()):
            found.setdefault(visit.call_site, []).append(visit)
        return found

    def _find_sites_of_graph(
        self, step_id: int, execution_index: int | None, graph_id: int | None
    ) -> dict[int | None, str]:
        """Returns the call site at which a graph left its first row in each frame of a step."""
        found: dict[int | None, str] = {}
        if graph_id is not None:
            for visit in self._visits_by_graph(step_id, execution_index).get(graph_id, ()):
                found.setdefault(visit.frame_id, visit.call_site)
        return found

    def _find_visits_by_graph(self, step_id: int, execution_index: int | None) -> dict[int, list[SiteVisit]]:
        found: dict[int, list[SiteVisit]] = {}
        for visit in self._events.site_visits(step_id, execution_index):
            found.setdefault(visit.graph_id, []).append(visit)
        return found

    def _find(self, graph_id: int, site: str, root: int | None) -> tuple[Level, ...] | None:
        """Returns the levels of a call site with as few renamed ops as possible, or None.

        `while_1` may be the op of that name or `while` renamed, and the ops inside fit both.
        """
        return next(
            (
                levels
                for num_renamed in range(_MAX_RENAMED + 1)
                if (levels := self._descend(graph_id, site, root, num_renamed, _MAX_DEPTH)) is not None
            ),
            None,
        )

    def _descend(
        self, graph_id: int, site: str, root: int | None, num_renamed: int, depth: int
    ) -> tuple[Level, ...] | None:
        """Returns the levels of a call site with exactly `num_renamed` renamed ops, or None."""
        if site == "":
            return () if num_renamed == 0 and (root is None or root == graph_id) else None
        if depth == 0:
            return None
        for is_renamed, name_suffix in enumerate(_NAMES[: num_renamed + 1]):
            for call in self._graphs.callers(graph_id):
                pattern = f"(?:(.*)/)?{re.escape(call.op_name)}{name_suffix}{_suffix(call)}"
                match = re.fullmatch(pattern, site, re.DOTALL)
                if match is None:
                    continue
                outer_site = match[1] or ""
                above = self._descend(call.graph_id, outer_site, root, num_renamed - is_renamed, depth - 1)
                if above is not None:
                    return (*above, Level(call, outer_site, site))
        return None


def _suffix(call: Call) -> str:
    return _SUFFIXES.get(call.attribute, _ANY_SUFFIX).format(index=call.branch_index)


def join_site(site: str, op_name: str) -> str:
    """Returns the call site of the graph that an op calls, as far as the op's name determines it."""
    return f"{site}/{op_name}" if site else op_name
