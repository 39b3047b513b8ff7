"""Call sites and loop frames: which op of which graph called the graph that a tensor belongs to, and when.

TensorFlow inlines nested functions and names an inlined op `<calling op>/<op>`. For control flow it adds components of
its own: `while/body/_9/…`, `cond/then/_174/…`, `indexed_case/branch1/_74/…`. A call site is that path without the op.
Op names may contain slashes, so a path alone does not show where one name ends. The recorded calls do.

TensorFlow makes the id of a loop's frame by hashing the frame and iteration in which the loop is entered, and the
loop's name. The hash can be inverted step by step: a frame and a place where it may have been entered determine the
hash of the name, and this hash is the same for all frames of one loop.

Source: tensorflow/core/common_runtime/{inline_function_utils,lower_while_op,lower_if_op,lower_case_op}.cc;
propagator_state.cc, FindOrCreateChildFrame; tensorflow/core/lib/hash/hash.h.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from tfdbg_arrow.query.flow.events import EventReader
from tfdbg_arrow.query.flow.graphs import LOOPS, Call, GraphReader
from tfdbg_arrow.query.recorded import Context, SiteVisit

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

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
_WORD = 2**64
_SALT = 0x9E3779B97F4A7800

Entry = tuple[int, int]
"""Where a loop is entered: frame and iteration."""
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
        return self.call.attribute in LOOPS

    def is_of(self, other: Level) -> bool:
        """Returns whether both are calls of the same op at the same call site, of any of its functions."""
        one = (self.call.graph_id, self.call.op_name, self.site)
        return one == (other.call.graph_id, other.call.op_name, other.site)


class CallSites:
    """Finds callers and callees of graphs within one run."""

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

    def levels_in(self, context: Context, graph_id: int) -> tuple[Level, ...] | None:
        """Returns the calls from the outermost graph to a graph in a context, or None if they are unknown."""
        if context.call_site is None:
            return None
        execution = self._events.execution(context.execution_index)
        root = None if execution is None else execution.graph_id
        return self.levels(graph_id, context.call_site, root_graph_id=root)

    def outer_context(self, context: Context, levels: tuple[Level, ...]) -> Context:
        """Returns where the op of the last level ran, given where the graph that it called ran."""
        level = levels[-1]
        if not level.is_loop:
            frame_id, iteration = context.frame_id, context.iteration
        elif not any(above.is_loop for above in levels[:-1]):
            frame_id, iteration = 0, 0
        else:
            frame_id, iteration = self._outer_iteration(context, level)
        return Context(context.step_id, context.execution_index, level.site, frame_id, iteration)

    def outermost_loop(self, context: Context, graph_id: int) -> tuple[Level, int] | None:
        """Returns the outermost loop around a graph, and its iteration; None outside loops and if it is not known."""
        levels = self.levels_in(context, graph_id) or ()
        loop: tuple[Level, int] | None = None
        for depth in range(len(levels), 0, -1):
            if levels[depth - 1].is_loop:
                loop = None if context.iteration is None else (levels[depth - 1], context.iteration)
            context = self.outer_context(context, levels[:depth])
        return loop

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
            if part.attribute not in LOOPS or part.callee_graph_id is None:
                continue
            for visit in self._visits_of_callee(step_id, execution_index, site, part):
                first = frames.get(visit.frame_id, visit.first_event_index)
                frames[visit.frame_id] = min(first, visit.first_event_index)
        in_order = sorted(frames, key=frames.__getitem__)
        levels = self.levels(graph_id, site, root_graph_id=None) or ()
        outer = self._visits_of_graph(step_id, execution_index, graph_id).get(site, ())
        while not outer and levels and not levels[-1].is_loop:  # a function without rows ran in passes of its caller
            call, site, levels = levels[-1].call, levels[-1].site, levels[:-1]
            outer = self._visits_of_graph(step_id, execution_index, call.graph_id).get(site, ())
        if not outer:
            return self._entries_without_rows(step_id, execution_index, levels, in_order)
        entries = [(visit.frame_id, iteration) for visit in outer for iteration in visit.iterations]
        return find_entries(in_order, entries)

    def _entries_without_rows(
        self, step_id: int, execution_index: int | None, levels: tuple[Level, ...], frames: Sequence[int]
    ) -> Mapping[int, tuple[int | None, int]]:
        """Returns where the frames of an inner loop were entered, if the body of the outer loop itself left no row.

        Args:
            step_id: The step.
            execution_index: The execution of the step.
            levels: The calls that lead to the body of the outer loop.
            frames: The frames of the inner loop, in the order in which their first tensors were recorded.
        """
        if not levels:
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


def find_entries(frames: Sequence[int], entries: Sequence[Entry]) -> dict[int, Entry]:
    """Returns where each frame of one loop was entered; frames for which that is uncertain are left out.

    Args:
        frames: All frames of the loop in one step, in the order in which their first tensors were recorded.
        entries: All places where it can have been entered, in order of the iterations.
    """
    in_order = dict(zip(frames, entries, strict=True)) if len(frames) == len(entries) else {}
    # The usual case, in linear time. If other names explain the frames as well, the order still decides.
    if in_order and len({_name_hash(frame, entry) for frame, entry in in_order.items()}) == 1:
        return in_order
    by_frame = _entries_by_frame(frames, entries)
    # None may mean ids of another runtime. With as many entries as frames, they were most likely made in order.
    return in_order if by_frame is None else by_frame


def _entries_by_frame(frames: Sequence[int], entries: Sequence[Entry]) -> dict[int, Entry] | None:
    """Returns where each frame was entered if exactly one name of the loop explains all frames, or else None."""
    if not frames or not entries:
        return None
    import numpy as np  # here, because few logdirs have loops

    outer = np.array([frame % _WORD for frame, _ in entries], np.uint64)
    iteration = np.array([iteration % _WORD for _, iteration in entries], np.uint64)
    names = np.unique(_name_hashes(frames[0], outer, iteration))
    for frame in frames[1:]:
        if len(names) <= 1:
            break
        names = names[np.isin(names, _name_hashes(frame, outer, iteration))]
    if len(names) != 1:
        return None
    found = {_frame(int(names[0]), entry): entry for entry in entries}
    if not all(frame % _WORD in found for frame in frames):
        return None
    return {frame: found[frame % _WORD] for frame in frames}


def _name_hashes(
    frame: int, outer: npt.NDArray[np.uint64], iteration: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Returns `_name_hash` of a frame for many entries. Arithmetic of uint64 arrays is modulo 2**64."""
    import numpy as np

    combined = np.full_like(outer, frame % _WORD)
    for first in (outer, iteration):
        combined = (combined ^ first) - np.uint64(_SALT) - (first << np.uint64(10)) - (first >> np.uint64(4))
    return combined


def _frame(name_hash: int, entry: Entry) -> int:
    """Returns the id, as an unsigned number, of the frame of a loop that is entered at an entry."""
    outer, iteration = entry
    return _combine(outer, _combine(iteration, name_hash))


def _combine(first: int, second: int) -> int:
    """Returns Hash64Combine(first, second)."""
    first %= _WORD
    return (first ^ (second + _SALT + (first << 10) + (first >> 4))) % _WORD


def _name_hash(frame: int, entry: Entry) -> int:
    """Returns the hash of the name of a loop that got this frame when it was entered at an entry."""
    outer, iteration = entry
    return _second(iteration, _second(outer, frame))


def _second(first: int, combined: int) -> int:
    """Returns the value that was combined with `first` into a hash (the inverse of Hash64Combine)."""
    first %= _WORD
    return (((combined % _WORD) ^ first) - _SALT - (first << 10) - (first >> 4)) % _WORD
