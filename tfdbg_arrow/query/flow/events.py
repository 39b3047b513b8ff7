"""Reads the recorded tensors and executions of one run in blocks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any

from tfdbg_arrow.query.engine import MAX_ROWS, Engine
from tfdbg_arrow.query.flow.graph_rows import CallReader
from tfdbg_arrow.query.recorded import (
    KINDS,
    EagerTensor,
    Execution,
    TensorEvent,
    Use,
    bad_condition,
    read_events,
)
from tfdbg_arrow.schema.op_traits import READER

_BLOCK = 128
"""Number of executions in the first read. The number doubles with each further read that continues shortly before or
right after the executions that were already read."""
_MIN_GAP = 10_000
"""Neighbouring tensor IDs are in one range if their difference is smaller than this. A Parquet row group has more
IDs."""
_MAX_RANGES = 100
"""Approximate maximum number of ranges. If the ids are far apart, a range has wider gaps. Bounds the query's length."""
_USES_BLOCK = 1024
"""The uses of the tensors of this many executions are read at a time."""
_MAX_BLOCKS_AT_ONCE = 32
"""Maximum number of blocks in one read, where the doubling ends. Bounds the memory."""
_MAX_KEPT = 100_000
"""Maximum number of executions and tensors in the cache. A larger cache is cleared."""
_MAX_USES = 20_000
"""Maximum number of uses of one tensor that are read at once. A variable with more uses is queried piece by piece."""

_FIRST_USES = 16
"""Number of uses that are read first, if a tensor has too many uses to read all of them."""

_MAKERS = (
    "SELECT o.tensor_id, o.execution_index, e.op_type, e.graph_id, o.output_slot, o.dtype "
    "FROM execution_output AS o JOIN execution AS e "
    "ON e.run_id = o.run_id AND e.execution_index = o.execution_index WHERE o.run_id = ? AND "
)
# These joins leave out run_id, because engines would store and compare its text for each row.
_USES = (
    "SELECT i.tensor_id, e.execution_index, e.event_index, e.op_type, e.graph_id, e.stack_trace_id, i.input_index "
    "FROM execution_input AS i JOIN execution AS e ON e.execution_index = i.execution_index "
    "WHERE i.run_id = ? AND e.run_id = ? AND i.execution_index >= ? "
)
_MADE_IN_BLOCK = (
    "(SELECT tensor_id FROM execution_output WHERE run_id = ? AND execution_index BETWEEN ? AND ? "
    "AND dtype <> 'resource')"
)
_OF_BLOCK = (
    "(SELECT tensor_id FROM execution_input WHERE run_id = ? AND execution_index BETWEEN ? AND ? UNION "
    "SELECT tensor_id FROM execution_output WHERE run_id = ? AND execution_index BETWEEN ? AND ?)"
)


@dataclass(frozen=True, slots=True)
class EagerOp:
    """An eager op, with the IDs of the tensors that it took, and of its first output (None if it has no output)."""

    execution_index: int
    op_type: str
    inputs: tuple[int, ...]
    output: int | None


class EventReader:
    """Reads the recorded tensors and executions of one run, and caches the most recent ones."""

    def __init__(self, logdir: Engine, *, run_id: str) -> None:
        self._logdir = logdir
        self._run_id = run_id
        self._calls = CallReader(logdir, run_id=run_id)
        self.graph_tensor = self._calls.graph_tensor
        self.read_steps = self._calls.read_steps
        self.executed_graph_ids = self._calls.executed_graph_ids
        self.site_visits = self._calls.site_visits
        self.root_context = self._calls.root_context
        self._blocks: set[int] = set()
        self._num_at_once = 1
        self._executions: dict[int, Execution] = {}
        self._inputs: dict[int, dict[int, int]] = {}
        self._outputs: dict[int, dict[int, tuple[int, str]]] = {}
        self._tensors: dict[int, EagerTensor] = {}
        self._some_uses = lru_cache(maxsize=1024)(self._read_some_uses)
        self._uses_of_block = lru_cache(maxsize=16)(self._read_uses_of_block)
        self._uses_before = lru_cache(maxsize=1024)(self._read_uses_before)
        self._ways_of_use = lru_cache(maxsize=4096)(self._read_ways_of_use)
        self._ways_of_handles = lru_cache(maxsize=16)(self._read_ways_of_handles)

    def event(self, event_index: int) -> TensorEvent | None:
        """Returns a row by its event_index, or None."""
        rows = read_events(self._logdir, "event_index = ?", [self._run_id, event_index])
        return rows[0] if rows else None

    def bad_events(
        self, kinds: Sequence[str], *, limit: int | None = None, after: int = -1, before: int | None = None
    ) -> list[TensorEvent]:
        """Returns the tensors that hold one of the kinds, by event_index.

        Args:
            kinds: `nan`, `inf` or both.
            limit: Maximum number of rows; None means all.
            after: Only tensors with a greater event_index.
            before: Only tensors with a smaller event_index; None means all.
        """
        return read_events(
            self._logdir,
            f"{bad_condition(kinds)} AND event_index > ? AND event_index < ? ORDER BY event_index"
            + ("" if limit is None else f" LIMIT {min(limit, MAX_ROWS)}"),
            [self._run_id, after, 2**63 - 1 if before is None else before],
        )

    def first_equally_bad_read(self, read: TensorEvent, handle: int) -> tuple[int, int] | None:
        """Returns (event_index, execution_index) of the first read with as many NaN and infinities as another read.

        Args:
            read: A bad read of a variable. The result was read by the same op, at the same call site.
            handle: The variable. If the read is eager, the result was read from the same variable.

        Returns:
            None if there is no read before `read`, or if the counts were not recorded.
        """
        op = (read.graph_id, read.op_name, read.call_site, handle if read.scope == "execution" else None)
        first = self._first_equally_bad_reads.get((*op, read.num_nan, read.num_neg_inf, read.num_pos_inf))
        return None if first is None or first[0] >= read.event_index else first

    @cached_property
    def _first_equally_bad_reads(self) -> dict[tuple[Any, ...], tuple[int, int]]:
        """The first read for each op or eager variable, and for each number of bad elements."""
        rows = self._logdir.rows(
            "SELECT t.graph_id, t.op_name, t.call_site, i.tensor_id, t.num_nan, t.num_neg_inf, t.num_pos_inf, "
            "min(t.event_index), min_by(t.execution_index, t.event_index) FROM tensor_health AS t "
            "LEFT JOIN execution_input AS i ON i.run_id = t.run_id AND i.execution_index = t.execution_index "
            "AND i.input_index = 0 AND t.scope = 'execution' WHERE t.run_id = ? AND t.has_inf_or_nan "
            "AND t.op_type = ? AND t.num_nan IS NOT NULL AND t.execution_index IS NOT NULL "
            "GROUP BY t.graph_id, t.op_name, t.call_site, i.tensor_id, t.num_nan, t.num_neg_inf, t.num_pos_inf "
            f"HAVING count(*) > 1 ORDER BY count(*) DESC LIMIT {_MAX_KEPT}",
            [self._run_id, READER],
        )
        return {tuple(key): (event_index, execution_index) for *key, event_index, execution_index in rows}

    def first_bad_execution(self) -> int:
        """Returns the least execution_index of a bad tensor: everything that earlier executions made is clean.

        Returns 0 if the least execution_index is not known because a bad tensor has no execution_index.
        """
        ((first, is_known),) = self._logdir.rows(
            "SELECT min(execution_index), count(*) = count(execution_index) FROM tensor_health "
            f"WHERE run_id = ? AND {bad_condition(KINDS)}",
            [self._run_id],
        )
        return int(first) if is_known and first is not None else 0

    def eager(self, tensor_id: int) -> EagerTensor:
        """Returns the recorded facts about an eager tensor."""
        self._logdir.check_time()
        event = self._tensors.get(tensor_id)
        if event is None:
            event = self._tensors[tensor_id] = self._read_single(tensor_id)
        return event

    def execution(self, execution_index: int | None) -> Execution | None:
        """Returns an execution, or None if it is unknown or was not recorded."""
        if execution_index is None:
            return None
        self._need(execution_index)
        return self._executions.get(execution_index)

    def execution_inputs(self, execution_index: int) -> dict[int, int]:
        """Returns the tensor ids of the inputs of an execution, by input index, in order."""
        self._need(execution_index)
        return self._inputs.get(execution_index, {})

    def execution_outputs(self, execution_index: int) -> dict[int, tuple[int, str]]:
        """Returns (tensor id, dtype) of the outputs of an execution, by output slot, in order."""
        self._need(execution_index)
        return self._outputs.get(execution_index, {})

    def uses(self, tensor_id: int) -> tuple[Use, ...]:
        """Returns every use of an eager tensor by an execution, in order."""
        uses = self._some_uses(tensor_id, 0)
        if uses is not None:
            return uses
        return tuple(map(_use, self._read_uses("i.tensor_id = ?", [tensor_id], since=0)))

    def iter_uses(self, tensor_id: int) -> Iterator[Use]:
        """Yields what `uses` returns. If the caller stops at one of the first uses, the others are not read."""
        uses = self._some_uses(tensor_id, 0)
        if uses is None:
            first = self._read_uses("i.tensor_id = ?", [tensor_id], since=0, limit=_FIRST_USES)
            yield from map(_use, first)
            uses = self.uses(tensor_id)[_FIRST_USES:]
        yield from uses

    def uses_before(
        self, tensor_id: int, *, op_types: Sequence[str], before: int, since: int = 0
    ) -> Iterator[Execution]:
        """Yields the executions that take an eager tensor and run one of some op types or functions, last one first.

        Args:
            tensor_id: The tensor.
            op_types: Op types, or names of functions.
            before: Only executions that start before this event_index.
            since: Only executions from this execution_index on.
        """
        if not op_types:
            return
        uses = self._some_uses(tensor_id, since)
        if uses is None:
            yield from self._ask_uses_before(tensor_id, tuple(op_types), before, since)
            return
        end = bisect_left(uses, before, key=lambda use: use.execution.event_index)
        last: Execution | None = None
        for place in range(end - 1, -1, -1):
            execution = uses[place].execution
            if execution.op_type in op_types and execution != last:
                last = execution
                yield execution

    def ways_of_use(self, tensor_id: int, *, since: int = 0) -> tuple[tuple[str, int | None, int], ...]:
        """Returns (op type, called graph, input index) for each distinct way in which executions use an eager tensor.

        Args:
            tensor_id: The tensor.
            since: Only executions from this execution_index on.
        """
        return self._ways_of_use(tensor_id, since)

    def op_types(self) -> list[tuple[str, int | None]]:
        """Returns the distinct (op type or function, called graph) of all executions."""
        rows = self._logdir.rows("SELECT DISTINCT op_type, graph_id FROM execution WHERE run_id = ?", [self._run_id])
        return [(op_type, graph_id) for op_type, graph_id in rows]

    def executions_of(self, op_types: Sequence[str]) -> list[Execution]:
        """Returns the executions of these op types or functions, by event_index."""
        if not op_types:
            return []
        rows = self._logdir.rows(
            "SELECT execution_index, event_index, op_type, graph_id, stack_trace_id FROM execution "
            f"WHERE run_id = ? AND op_type IN ({', '.join('?' * len(op_types))}) ORDER BY event_index",
            [self._run_id, *op_types],
        )
        return [Execution(*row) for row in rows]

    def eager_ops(self, op_types: Sequence[str], *, limit: int) -> list[EagerOp]:
        """Returns the eager ops of these types in order; an empty list if they have more than `limit` inputs."""
        of_types = f"e.run_id = ? AND e.graph_id IS NULL AND e.op_type IN ({', '.join('?' * len(op_types))})"
        parameters = [self._run_id, self._run_id, *op_types]
        inputs = self._logdir.rows(
            "SELECT e.execution_index, e.op_type, i.tensor_id FROM execution AS e "
            "JOIN execution_input AS i ON i.execution_index = e.execution_index "
            f"WHERE i.run_id = ? AND {of_types} ORDER BY e.execution_index, i.input_index LIMIT {limit + 1}",
            parameters,
        )
        if len(inputs) > limit:
            return []
        outputs = dict(
            self._logdir.rows(
                "SELECT o.execution_index, o.tensor_id FROM execution AS e "
                "JOIN execution_output AS o ON o.execution_index = e.execution_index "
                f"WHERE o.run_id = ? AND o.output_slot = 0 AND {of_types}",
                parameters,
            )
        )
        return [
            EagerOp(index, op_type, tuple(tensor_id for _, _, tensor_id in rows), outputs.get(index))
            for (index, op_type), rows in groupby(inputs, key=itemgetter(0, 1))
        ]

    def taken_together(self, op_types: Sequence[str]) -> list[tuple[int, int]]:
        """Returns (tensor id, tensor id of the handle) for each input of executions that write to resources.

        Args:
            op_types: Op types. The handle is the first input, or the second input of a MakeIterator.
        """
        if not op_types:
            return []
        rows = self._logdir.rows(
            "SELECT DISTINCT i.tensor_id, f.tensor_id FROM execution AS e "
            "JOIN execution_input AS i ON i.run_id = e.run_id AND i.execution_index = e.execution_index "
            "JOIN execution_input AS f ON f.run_id = e.run_id AND f.execution_index = e.execution_index "
            f"WHERE e.run_id = ? AND e.op_type IN ({', '.join('?' * len(op_types))}) "
            "AND i.input_index <> f.input_index "
            "AND f.input_index = CASE e.op_type WHEN 'MakeIterator' THEN 1 ELSE 0 END",
            [self._run_id, *op_types],
        )
        return [(tensor_id, first) for tensor_id, first in rows]

    def handed_on(self) -> dict[int, set[int]]:
        """Returns, for each eager tensor, the pipelines, lists and other handles that eager ops made from it."""
        made_of: dict[int, set[int]] = {}
        for tensor_id, made in self._logdir.rows(
            "SELECT DISTINCT i.tensor_id, o.tensor_id FROM execution_output AS o "
            "JOIN execution AS e ON e.run_id = o.run_id AND e.execution_index = o.execution_index "
            "JOIN execution_input AS i ON i.run_id = o.run_id AND i.execution_index = o.execution_index "
            "WHERE o.run_id = ? AND o.dtype IN ('variant', 'resource') AND e.graph_id IS NULL",
            [self._run_id],
        ):
            made_of.setdefault(tensor_id, set()).add(made)
        return made_of

    def _ask_uses_before(
        self, tensor_id: int, op_types: tuple[str, ...], before: int, since: int
    ) -> Iterator[Execution]:
        limit = 1
        while True:
            uses = self._uses_before(tensor_id, op_types, before, since, limit)
            yield from uses
            if len(uses) < limit:
                return
            before, limit = uses[-1].event_index, min(2 * limit, 256)

    def _need(self, execution_index: int) -> None:
        """Reads the block of an execution unless it is cached, and more blocks in the direction of earlier reads."""
        number = execution_index // _BLOCK
        if number in self._blocks:
            return
        if len(self._executions) + len(self._tensors) > _MAX_KEPT:
            for kept in (self._blocks, self._executions, self._inputs, self._outputs, self._tensors):
                kept.clear()
        goes_back = not self._blocks.isdisjoint(range(number + 1, number + 1 + _MAX_BLOCKS_AT_ONCE))
        goes_on = number - 1 in self._blocks
        if not goes_back and not goes_on:
            self._num_at_once = 1
        step = -1 if goes_back else 1
        end = number
        while end + step >= 0 and end + step not in self._blocks and abs(end - number) + 1 < self._num_at_once:
            end += step
        first, last = min(number, end), max(number, end)
        self._num_at_once = min(2 * self._num_at_once, _MAX_BLOCKS_AT_ONCE)
        self._read(first * _BLOCK, (last + 1) * _BLOCK - 1)
        self._blocks.update(range(first, last + 1))

    def _read(self, first: int, last: int) -> None:
        """Reads some executions, their inputs and outputs, and all eager tensors among them."""
        place = [self._run_id, first, last]
        condition = "WHERE run_id = ? AND execution_index BETWEEN ? AND ?"
        for row in self._logdir.rows(
            f"SELECT execution_index, event_index, op_type, graph_id, stack_trace_id FROM execution {condition}", place
        ):
            self._executions[row[0]] = Execution(*row)
        ids: set[int] = set()
        for index, input_index, tensor_id in self._logdir.rows(
            f"SELECT execution_index, input_index, tensor_id FROM execution_input {condition} "
            "ORDER BY execution_index, input_index",
            place,
        ):
            self._inputs.setdefault(index, {})[input_index] = tensor_id
            ids.add(tensor_id)
        for index, slot, tensor_id, dtype in self._logdir.rows(
            f"SELECT execution_index, output_slot, tensor_id, dtype FROM execution_output {condition} "
            "ORDER BY execution_index, output_slot",
            place,
        ):
            self._outputs.setdefault(index, {})[slot] = (tensor_id, dtype)
            ids.add(tensor_id)
        if not ids:
            return
        # The ranges let DuckDB skip most of the table. With the subquery alone, DuckDB reads all columns of all rows.
        of_block = f"{_in_ranges(ids)} AND tensor_id IN {_OF_BLOCK}"
        makers = self._logdir.rows(f"{_MAKERS} {of_block} ORDER BY o.execution_index", [self._run_id, *place, *place])
        events = read_events(
            self._logdir,
            f"scope <> 'graph' AND {of_block} ORDER BY event_index",
            [self._run_id, *place, *place],
        )
        self._tensors.update(_eager_tensors(ids, makers, events))

    def _read_single(self, tensor_id: int) -> EagerTensor:
        makers = self._logdir.rows(
            f"{_MAKERS} o.tensor_id = ? ORDER BY o.execution_index LIMIT 1", [self._run_id, tensor_id]
        )
        events = read_events(
            self._logdir,
            "scope <> 'graph' AND tensor_id = ? ORDER BY event_index LIMIT 1",
            [self._run_id, tensor_id],
        )
        return _eager_tensors({tensor_id}, makers, events)[tensor_id]

    def _read_some_uses(self, tensor_id: int, since: int) -> tuple[Use, ...] | None:
        """Returns the uses of a tensor from an execution on, or None if there are too many."""
        tensor = self._tensors.get(tensor_id)
        if tensor is not None and tensor.execution_index is not None and tensor.dtype != "resource":
            uses_of_block = self._uses_of_block(tensor.execution_index // _USES_BLOCK, since)
            if uses_of_block is not None:
                return tuple(uses_of_block.get(tensor_id, ()))
        is_handle = tensor is not None and tensor.dtype == "resource"
        if is_handle and sum(self._ways_of_handles(since).get(tensor_id, {}).values()) > _MAX_USES:
            return None
        rows = self._read_uses("i.tensor_id = ?", [tensor_id], since=since, limit=_MAX_USES + 1)
        return tuple(map(_use, rows)) if len(rows) <= _MAX_USES else None

    def _read_uses_of_block(self, number: int, since: int) -> dict[int, list[Use]] | None:
        """Returns the uses of the tensors, except handles, that a block of executions made; None if too many."""
        block = [self._run_id, number * _USES_BLOCK, (number + 1) * _USES_BLOCK - 1]
        rows = self._read_uses(f"i.tensor_id IN {_MADE_IN_BLOCK}", block, since=since, limit=_MAX_USES + 1)
        if len(rows) > _MAX_USES:
            return None
        uses: dict[int, list[Use]] = {}
        for row in rows:
            uses.setdefault(row[0], []).append(_use(row))
        return uses

    def _read_uses(
        self, condition: str, parameters: Sequence[object], *, since: int, limit: int | None = None
    ) -> list[tuple[Any, ...]]:
        """Returns (tensor ID, execution, input index) of the uses from an execution on, in order."""
        return self._logdir.rows(
            f"{_USES} AND {condition} ORDER BY e.event_index, i.input_index"
            + ("" if limit is None else f" LIMIT {limit}"),
            [self._run_id, self._run_id, since, *parameters],
        )

    def _read_ways_of_use(self, tensor_id: int, since: int) -> tuple[tuple[str, int | None, int], ...]:
        if self.eager(tensor_id).dtype == "resource":
            return tuple(self._ways_of_handles(since).get(tensor_id, ()))
        uses = self._some_uses(tensor_id, since)
        if uses is not None:
            ways = {(use.execution.op_type, use.execution.graph_id, use.input_index): None for use in uses}
            return tuple(ways)
        rows = self._logdir.rows(
            "SELECT DISTINCT e.op_type, e.graph_id, i.input_index FROM execution_input AS i JOIN execution AS e "
            "ON e.run_id = i.run_id AND e.execution_index = i.execution_index WHERE i.run_id = ? AND i.tensor_id = ? "
            "AND i.execution_index >= ?",
            [self._run_id, tensor_id, since],
        )
        return tuple((op_type, graph_id, index) for op_type, graph_id, index in rows)

    def _read_ways_of_handles(self, since: int) -> dict[int, dict[tuple[str, int | None, int], int]]:
        """Returns how often executions use each handle that an execution made, by the way of use."""
        ways: dict[int, dict[tuple[str, int | None, int], int]] = {}
        for tensor_id, op_type, graph_id, index, num_uses in self._logdir.rows(
            "SELECT i.tensor_id, e.op_type, e.graph_id, i.input_index, count(*) FROM execution_input AS i "
            "JOIN execution AS e ON e.execution_index = i.execution_index "
            "WHERE i.run_id = ? AND e.run_id = ? AND i.execution_index >= ? AND i.tensor_id IN "
            "(SELECT tensor_id FROM execution_output WHERE run_id = ? AND dtype = 'resource') "
            "GROUP BY i.tensor_id, e.op_type, e.graph_id, i.input_index ORDER BY min(e.event_index), i.input_index",
            [self._run_id, self._run_id, since, self._run_id],
        ):
            ways.setdefault(tensor_id, {})[op_type, graph_id, index] = num_uses
        return ways

    def _read_uses_before(
        self, tensor_id: int, op_types: tuple[str, ...], before: int, since: int, limit: int
    ) -> tuple[Execution, ...]:
        rows = self._logdir.rows(
            "SELECT DISTINCT e.execution_index, e.event_index, e.op_type, e.graph_id, e.stack_trace_id "
            "FROM execution_input AS i JOIN execution AS e ON e.execution_index = i.execution_index "
            "WHERE i.run_id = ? AND e.run_id = ? AND i.tensor_id = ? "
            f"AND e.op_type IN ({', '.join('?' * len(op_types))}) AND e.event_index < ? AND i.execution_index >= ? "
            f"ORDER BY e.event_index DESC LIMIT {int(limit)}",
            [self._run_id, self._run_id, tensor_id, *op_types, before, since],
        )
        return tuple(Execution(*row) for row in rows)


def _in_ranges(tensor_ids: Collection[int]) -> str:
    """Returns an SQL condition for tensor_id: it is in one of a few ranges that together hold the given IDs."""
    ids = sorted(tensor_ids)
    gap = max(_MIN_GAP, (ids[-1] - ids[0]) // _MAX_RANGES)
    ranges = [[ids[0], ids[0]]]
    for tensor_id in ids:
        if tensor_id - ranges[-1][1] > gap:
            ranges.append([tensor_id, tensor_id])
        ranges[-1][1] = tensor_id
    return f"({' OR '.join(f'tensor_id BETWEEN {first} AND {last}' for first, last in ranges)})"


def _use(row: tuple[Any, ...]) -> Use:
    _, *execution, input_index = row
    return Use(Execution(*execution), input_index)


def _eager_tensors(ids: set[int], makers: list[tuple[Any, ...]], events: list[TensorEvent]) -> dict[int, EagerTensor]:
    """Combines the facts about eager tensors. If a tensor has several makers or rows, the first one is used."""
    made: dict[int, tuple[Any, ...]] = {}
    for tensor_id, *maker in makers:
        made.setdefault(tensor_id, tuple(maker))
    rows: dict[int, TensorEvent] = {}
    for event in events:
        if event.tensor_id is not None:
            rows.setdefault(event.tensor_id, event)
    return {tensor_id: _eager_tensor(tensor_id, made.get(tensor_id), rows.get(tensor_id)) for tensor_id in ids}


def _eager_tensor(tensor_id: int, maker: tuple[Any, ...] | None, event: TensorEvent | None) -> EagerTensor:
    if maker is not None:
        return EagerTensor(tensor_id, event, *maker)
    if event is not None and event.scope == "execution":
        return EagerTensor(tensor_id, event, event.execution_index, event.op_type, None, event.output_slot, event.dtype)
    return EagerTensor(tensor_id, event, None, None, None, None, None if event is None else event.dtype)
