"""Contents: what variables, other resources and lists of tensors held when they were read.

Loops store in lists the tensors that their gradients need. The forward loop pushes one element per iteration, and the
backward loop pops the elements. A list has no row of its own, so the search follows the list back to the ops that
pushed and popped its elements.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.bad_variables import BadVariables
from tfdbg_arrow.query.flow.executed_edges import ExecutedEdges
from tfdbg_arrow.query.flow.graphs import GraphReader
from tfdbg_arrow.query.flow.resources import Resources, Write
from tfdbg_arrow.query.recorded import Context, GraphTensor, Place, TensorEvent, Trace
from tfdbg_arrow.schema.op_traits import POPS, PUSHES

ELEMENT = 1
"""The output slot of a pop that holds the element. Slot 0 is the rest of the list."""

_Key = tuple[Context, int, str, int]
_MAX_VALUES = 500
"""Maximum number of written values that are examined for one read."""


class Gaps:
    """Finds executions that ran but were not recorded. The indexes of such executions are missing."""

    def __init__(self, logdir: Engine, *, run_id: str) -> None:
        self._logdir = logdir
        self._run_id = run_id

    def between(self, after: int | None, before: int | None) -> bool:
        """Returns whether an execution is missing after one `execution_index` and before another.

        Args:
            after: The first index; -1 for the start of the run, None if the index is not known.
            before: The second index; None if the index is not known. If `after` or `before` is None, any gap in the run
                counts.
        """
        if not self._gaps:
            return False
        if after is None or before is None:
            return True
        place = bisect_right(self._gaps, (before,)) - 1
        return place >= 0 and self._gaps[place][1] > after

    @cached_property
    def _gaps(self) -> list[tuple[int, int]]:
        """First and last missing index of each gap, in order."""
        rows = self._logdir.rows(
            "SELECT before + 1, execution_index - 1 FROM (SELECT execution_index, "
            "coalesce(lag(execution_index) OVER (ORDER BY execution_index), -1) AS before FROM execution "
            "WHERE run_id = ?) WHERE execution_index > before + 1 "
            "AND EXISTS (SELECT 1 FROM capture_stat WHERE run_id = ? AND stat IN ('disabled', 'dropped')) "
            "ORDER BY 1",
            [self._run_id, self._run_id],
        )
        return [(first, last) for first, last in rows]


@dataclass(frozen=True)
class Content:
    """What a resource held at a read.

    Attributes:
        values: The written values that the resource still contained, latest first. Each value is a tuple of its place
            and of the code that wrote it, `eager` or `graph`.
        old_value: A recorded read of the value from before these writes; None if there is no such read, or if a write
            replaced the value.
        is_known: Whether `values` and `old_value` determine what the resource held. False also if the search stopped at
            _MAX_VALUES.
    """

    values: tuple[tuple[Place, str], ...]
    old_value: TensorEvent | None
    is_known: bool


class Contents:
    """Determines what resources held within one run, and caches the answers."""

    def __init__(self, resources: Resources, bad_variables: BadVariables, gaps: Gaps) -> None:
        self._resources = resources
        self._bad_variables = bad_variables
        self._gaps = gaps
        self._contents: dict[tuple[Place, int, str | None, int], Content] = {}

    def last_write(self, handle: Trace, reader: TensorEvent) -> tuple[Write | None, bool]:
        """Returns the last write to a resource before a read, and whether the answer is certain.

        Args:
            handle: Where the resource came from, seen from the reading op.
            reader: The row of the reading op's output.

        Returns:
            (the write, True); (None, True) if the resource held its initial value from outside; (None, False) if the
            last write is not known.
        """
        write = next(self._resources.writes(handle, reader=reader), None)
        if write is None:
            return None, not handle.is_lost and not self._gaps.between(-1, reader.execution_index)
        if not write.is_known or self._is_unrecorded_between(write, reader.execution_index):
            return None, False
        return write, True

    def content(self, handle: Trace, reader: TensorEvent, *, since: int = 0) -> Content:
        """Returns what a resource held when it was read.

        If a write only changes the value, the search goes back to a write that replaces the value, or to a recorded
        read of the old value. If the resource is a variable that was bad in the same way at an earlier read, the search
        goes back to the first such read.

        Args:
            handle: Where the resource came from, seen from the reading op.
            reader: The row of the reading op's output.
            since: Consider only writes and reads of executions from this execution_index on. If `since` is not 0,
                `is_known` is False.
        """
        key = (handle.place, reader.event_index, reader.op_type, since)
        if key not in self._contents:
            content = self._find(handle, reader, since)
            self._contents[key] = replace(content, is_known=False) if since else content
        return self._contents[key]

    def clear(self) -> None:
        """Clears the cache."""
        self._contents.clear()

    def _find(self, handle: Trace, reader: TensorEvent, since: int) -> Content:
        first = self._bad_variables.first_equally_bad_read(handle, reader)
        if first is not None and not self._gaps.between(first.execution_index, reader.execution_index):
            return Content((), first, is_known=True)
        later: Write | None = None
        values: list[tuple[Place, str]] = []
        until = reader.execution_index
        are_known = True
        for write in itertools.chain(self._resources.writes(handle, reader=reader, since=since), [None]):
            if write is not None and not write.is_known:
                are_known = False
                continue
            if later is not None:
                old = self._resources.read_between(handle, after=write, before=later, since=since)
                if old is not None:
                    is_known = are_known and not self._gaps.between(old.execution_index, later.execution_index)
                    return Content(tuple(values), old, is_known)
            if write is None:
                # Before the first write, the resource held its initial value. The initial value came from outside, and
                # is known.
                is_known = are_known and not handle.is_lost and not self._gaps.between(-1, until)
                return Content(tuple(values), None, is_known)
            if self._is_unrecorded_between(write, until):
                return Content(tuple(values), None, is_known=False)
            until = write.execution_index
            how = "eager" if write.graph_id is None else "graph"
            values += [(value, how) for value in write.values]
            if write.is_replacing or write.old_value is not None:
                return Content(tuple(values), write.old_value, is_known=are_known)
            if len(values) > _MAX_VALUES:
                break
            later = write
        return Content(tuple(values), None, is_known=False)

    def _is_unrecorded_between(self, write: Write, until: int | None) -> bool:
        """Returns whether the recording has a gap between a write and a later execution."""
        is_same = write.execution_index is not None and write.execution_index == until
        return not is_same and self._gaps.between(write.execution_index, until)


@dataclass(frozen=True)
class _List:
    """A list of tensors: the last element, and the rest of the list (None if the rest is empty or unknown)."""

    last: Place
    rest: _List | None


class TensorLists:
    """Follows the lists of tensors of one run.

    Args:
        resolve: Returns the place of the op that made a tensor, or None if that place is not known.
    """

    def __init__(
        self, graphs: GraphReader, executed: ExecutedEdges, resolve: Callable[[GraphTensor], Place | None]
    ) -> None:
        self._graphs = graphs
        self._executed = executed
        self._resolve = resolve
        self._contents: dict[_Key, _List | None] = {}
        """The lists by their places."""

    def popped(self, pop: GraphTensor) -> Place | None:
        """Returns the place of the element that a pop returns, or None if the element is not known."""
        op = self._graphs.op(pop.graph_id, pop.op_name)
        tensors = None if op is None or not op.inputs else self._list(self._executed.aligned_inputs(pop, op)[0])
        return None if tensors is None else tensors.last

    def _list(self, place: GraphTensor) -> _List | None:
        """Returns the list at a place, or None if the list is empty or unknown.

        Loops make long lists, so the search does not recurse and visits each place once.
        """
        to_follow: list[tuple[_Key, Place | None]] = []
        content: _List | None = None
        at = self._resolve(place)
        while isinstance(at, GraphTensor) and None not in (
            at.context.step_id,
            at.context.frame_id,
            at.context.iteration,
        ):
            key = (at.context, at.graph_id, at.op_name, at.output_slot)
            if key in self._contents:
                content = self._contents[key]
                break
            self._contents[key] = None  # ends a cycle
            op = self._graphs.op(at.graph_id, at.op_name)
            if op is None or not (op.op_type == PUSHES or (op.op_type == POPS and at.output_slot != ELEMENT)):
                break
            inputs = self._executed.aligned_inputs(at, op)
            to_follow.append((key, inputs[1] if op.op_type == PUSHES else None))
            at = self._resolve(inputs[0])
        for key, pushed in reversed(to_follow):
            if pushed is not None:
                content = _List(pushed, content)
            elif content is not None:
                content = content.rest
            self._contents[key] = content
        return content
