"""Axis: the positions of a run's tensors, divided into the columns of a map or of curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.model_health.answers import Column
from tfdbg_arrow.schema.declaration import MAX_INT64

_POSITION_OF = {"step": "step", "execution": "execution_index", "event": "event_index"}
"""The column of tensor_health that holds the position, by axis."""

Selection = tuple[str, Sequence[object]]
"""Selects tensors of one run: an SQL condition on tensor_health AS h, and its parameters. The condition names the
run."""


@dataclass(frozen=True)
class Axis:
    """The positions that are shown, in columns of equal width.

    Attributes:
        name: `step`, `execution` or `event`.
        first: The first position.
        last: The last position; less than `first` if there are no positions.
        width: Number of positions in a column; the last column can have fewer.
    """

    name: str
    first: int
    last: int
    width: int = 1

    def divided(self, max_columns: int) -> Axis:
        """Returns the same positions in columns of equal width."""
        return replace(self, width=max(1, -(-(self.last - self.first + 1) // max_columns)))

    @property
    def ends(self) -> tuple[int, int] | None:
        """The first and the last position; None if there are no positions."""
        return None if self.first > self.last else (self.first, self.last)

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return 0 if self.ends is None else (self.last - self.first) // self.width + 1

    def bounds(self, column: int) -> tuple[int, int]:
        """Returns the first and the last position of a column."""
        first = self.first + column * self.width
        return first, min(first + self.width - 1, self.last)

    @property
    def position(self) -> str:
        """The SQL expression for the position of a row h of tensor_health."""
        return f"h.{_POSITION_OF[self.name]}"

    @property
    def condition(self) -> str:
        """The SQL condition that selects the rows h of tensor_health with a position on the axis."""
        return f"{self.position} >= {self.first} AND {self.position} <= {self.last}"

    @property
    def place(self) -> str:
        """The SQL expression for the column index of a row h that meets the condition."""
        position = self.position
        if self.last - self.first > MAX_INT64:  # a difference of two positions can overflow
            starts = (self.first + index * self.width for index in range(1, self.num_columns))
            branches = " ".join(f"WHEN {position} < {start} THEN {index}" for index, start in enumerate(starts))
            return f"CASE {branches} ELSE {self.num_columns - 1} END" if branches else "CAST(0 AS INTEGER)"
        offset = f"({position} - ({self.first}))"
        # The quotient of a multiple of the width is exact. The quotient of another large number may be inexact.
        return f"CAST(round(({offset} - {offset} % {self.width}) / {self.width}) AS INTEGER)"

    def column_of(self, position: int | None) -> int | None:
        """Returns the index of the column that contains a position; None if the position is not on the axis."""
        if position is None or not self.first <= position <= self.last:
            return None
        return (position - self.first) // self.width


def of_run(run_id: str) -> Selection:
    """Selects all tensors of a run."""
    return "h.run_id = ?", [run_id]


def read_axis(
    logdir: Engine,
    selection: Selection,
    *,
    positions: tuple[int | None, int | None] = (None, None),
    name: str | None = None,
) -> Axis | None:
    """Returns the positions of tensors in a range, one position in a column; None if there are no tensors at all.

    Args:
        logdir: The logdir.
        selection: The tensors.
        positions: The first position, and the position after the last. If the first is None, the range begins at the
            start. If the second is None, the range goes to the end.
        name: The name of the axis; None means steps if any of the tensors has a step, otherwise executions.
    """
    condition, parameters = selection
    source = f"FROM tensor_health AS h WHERE {condition}"
    ((num_rows, num_steps),) = logdir.rows(f"SELECT count(*), count(h.step) {source}", parameters)
    if not num_rows:
        return None
    name = name or ("step" if num_steps else "execution")
    position = f"h.{_POSITION_OF[name]}"
    first, end = positions
    for bound, operator in ((first, ">="), (end, "<")):
        if bound is not None:
            source += f" AND {position} {operator} {int(bound)}"
    ((least, greatest),) = logdir.rows(f"SELECT min({position}), max({position}) {source}", parameters)
    return Axis(name, 0, -1) if least is None else Axis(name, least, greatest)


def read_columns(logdir: Engine, axis: Axis, selection: Selection) -> tuple[Column, ...]:
    """Returns the columns of an axis, with the first and the last selected tensor of each column."""
    condition, parameters = selection
    rows = logdir.rows(
        f"SELECT {axis.place} AS place, min(h.event_index), max(h.event_index) FROM tensor_health AS h "
        f"WHERE {condition} AND {axis.condition} GROUP BY {axis.place}",
        parameters,
    )
    events = {index: (first, last) for index, first, last in rows}
    return tuple(
        Column(first=first, last=last, first_event_index=first_event, last_event_index=last_event)
        for index in range(axis.num_columns)
        for first, last in [axis.bounds(index)]
        for first_event, last_event in [events.get(index, (None, None))]
    )


def read_position(logdir: Engine, event_index: int, *, axis: str, run_id: str) -> int | None:
    """Returns the position of a tensor; None if the tensor has no position."""
    rows = logdir.rows(
        f"SELECT {_POSITION_OF[axis]} FROM tensor_health WHERE run_id = ? AND event_index = ? LIMIT 1",
        [run_id, event_index],
    )
    return None if not rows or rows[0][0] is None else int(rows[0][0])


def place_of_event(columns: tuple[Column, ...]) -> str:
    """Returns the SQL expression for the index of the last column that began at or before the event of a row h."""
    begun = sorted(
        (column.first_event_index, index)
        for index, column in enumerate(columns)
        if column.first_event_index is not None
    )
    branches = " ".join(f"WHEN h.event_index >= {event_index} THEN {index}" for event_index, index in reversed(begun))
    return f"CASE {branches} END" if branches else "CAST(NULL AS INTEGER)"
