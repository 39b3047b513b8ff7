"""The answers of layer_health, training_curves and layer_differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfdbg_arrow.query.displayed import Displayed


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One quantity that a map of layers shows.

    Attributes:
        name: The name, as in `LayerHealth.values`: `bad_share`, `max_abs`, `mean`, `stddev`, `zero_share`, `norm` or
            `update_ratio`.
        title: The title for people, such as "Largest magnitude".
        scale: How to colour the numbers:
            * `share`: numbers from 0 to 1.
            * `log`: 0 and positive numbers over many powers of ten.
            * `signed`: numbers around 0.
            * `relative`: relative differences.
            * `share_difference`: differences of two shares.
            * `difference`: the largest difference of all measures, without its sign.
    """

    name: str
    title: str
    scale: str


MEASURES = (
    Measure(name="bad_share", title="Share of bad tensors", scale="share"),
    Measure(name="max_abs", title="Largest magnitude", scale="log"),
    Measure(name="mean", title="Mean", scale="signed"),
    Measure(name="stddev", title="Standard deviation", scale="log"),
    Measure(name="zero_share", title="Share of zeros", scale="share"),
    Measure(name="norm", title="Norm", scale="log"),
    Measure(name="update_ratio", title="Update relative to weights", scale="log"),
)
"""The measures of a map of one run, in display order."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: a range of positions, see `LayerHealth.axis`.

    Attributes:
        first: The first position.
        last: The last position, inclusive.
        first_event_index: The event_index of the first tensor of the column; None if the column has no tensors.
        last_event_index: The event_index of the last tensor of the column; None if the column has no tensors.
    """

    first: int
    last: int
    first_event_index: int | None
    last_event_index: int | None


@dataclass(frozen=True, kw_only=True)
class ColumnCalls:
    """The calls of a function that began in each column. The calls name the columns of a program without steps.

    Attributes:
        function: The function in which the first bad value arose.
        ranges: For each column, the numbers of the first and the last call that began in the column, counted from 1. If
            no call began in the column, both are the number of the last call before the column; 0 before the first
            call.
    """

    function: str
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One row of a map: a layer, with everything inside the layer.

    In a program with layers, an op outside all layers belongs to a row for its role, such as `loss` or `optimizer`. In
    a program without layers, an op belongs to a row for the line of the user's code that created the op, or to a row
    for its role if no such line is known. Eager tensors that came from outside the program belong to the row of the
    role `input`. A gradient op belongs to the layer, line or role of its forward op.

    Attributes:
        layer: The path of the layer, as in `graph_op.layer`; the line as `file_path:lineno`; or the role, which is
            `other` if it is unknown. See `kind`.
        kind: `layer`, `line` or `role`.
        name: The last part of the path; for a line, the name of the file and the line number.
        depth: Number of layers that contain the layer; 0 for other kinds.
        side: `forward`, or `gradient` for the gradients of the ops of the layer.
        role: `gradient` if `side` is `gradient`. Otherwise, the role of most tensors in the row: `forward`, `loss`,
            `metric`, `optimizer` or `input`.
        has_children: Whether other rows of the same side are inside the layer.
        num_outputs: Number of op outputs with tensors in the row.
        num_bad: Number of bad tensors in the row.
    """

    layer: str
    kind: str
    name: str
    depth: int
    side: str
    role: str
    has_children: bool
    num_outputs: int
    num_bad: int


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The position of a cell: the index of its row and of its column."""

    row: int
    column: int


@dataclass(frozen=True, kw_only=True, repr=False)
class LayerMap:
    """The attributes shared by all maps that have layers as rows and training steps (or executions) as columns.

    Attributes:
        axis: The kind of position: `step` (training steps that the program marked) or `execution` (`execution_index`).
            Tensors without a position are in no column.
        columns: The columns, in order. Columns without tensors are left out at the two ends, but not in between.
        calls: The calls that began in the columns. The calls are given if the columns are executions of one run, and
            the first bad value that did harm arose in a call whose number is known; otherwise None.
        rows: The rows, in the order in which the program made the layers. A layer comes before the layers inside it.
            The forward side of a layer comes before its gradient side. There are at most about 2,000 rows.
        measures: The measures that are known.
        values: The numbers of each measure, by name of the measure: one tuple for each row, with one number for each
            column. A number is None where the measure is not known.
        bad: For each row and column, the number of bad tensors that mark the cell.
        origin: The outlined cell; None if no cell is outlined.
        path: The rows that a line connects with the outlined cell, in the order in which the bad value went through
            them.
        sentence: What happened, in one sentence.
    """

    axis: str
    columns: tuple[Column, ...]
    calls: ColumnCalls | None
    rows: tuple[LayerRow, ...]
    measures: tuple[Measure, ...]
    values: Mapping[str, tuple[tuple[float | None, ...], ...]]
    bad: tuple[tuple[int, ...], ...]
    origin: Cell | None
    path: tuple[int, ...]
    sentence: str


@dataclass(frozen=True, kw_only=True, repr=False)
class LayerHealth(LayerMap, Displayed):
    """The health of each layer of one run over the training.

    It also has the attributes of LayerMap. If the run has no steps, the columns are executions. See `layer_health` for
    the measures. `bad` counts the bad tensors in each cell. `origin` is the cell of the first bad tensor that did harm;
    None if no bad tensor did harm. `path` has the rows that the bad value went through until it reached a variable,
    result or metric. No row is repeated. The first row is the row of the origin. `sentence` is the headline of that
    tensor, followed by a sentence about the tensor that had grown before. For a healthy run, `sentence` says that
    nothing is bad, and names the layer that changed most, if a layer changed much.

    Attributes:
        run_id: The run.
        num_folded: Number of layers or lines that have no row of their own, because there are too many. The tensors of
            a deep layer then count in the row of the layer that contains it, and the tensors of lines count in the rows
            of their roles.
        origin_event_index: The event_index of the first bad tensor that did harm, as `first_nonfinite` returns it; None
            if no bad tensor did harm.
    """

    run_id: str
    num_folded: int
    origin_event_index: int | None

    @property
    def is_harmless(self) -> bool:
        """Whether no bad tensor of the run is known to have done harm. The run may have no bad tensors."""
        return self.origin_event_index is None


@dataclass(frozen=True, kw_only=True)
class Parting:
    """The first place where a row differs between two runs.

    Attributes:
        row: Index of the row.
        column: Index of the column.
        first: The first position of the place. The position is exact for `first_parting` and `large_parting`, unless
            the runs recorded different positions within the column.
        last: The last position, inclusive.
        measure: The measure that differs: the name of a Measure, or `bad` if only one run has a bad tensor.
        a: The value of the measure in A; None for `bad`.
        b: The value of the measure in B; None for `bad`.
        num_bad_a: Number of bad tensors in A.
        num_bad_b: Number of bad tensors in B.
    """

    row: int
    column: int
    first: int
    last: int
    measure: str
    a: float | None
    b: float | None
    num_bad_a: int
    num_bad_b: int


@dataclass(frozen=True, kw_only=True, repr=False)
class LayerDifferences(LayerMap, Displayed):
    """The differences of two runs, layer by layer, over the training.

    It also has the attributes of LayerMap. The columns are the positions that both runs have, with the event indexes of
    A. The rows are the layers or lines that both runs have, with the counts of A. See `layer_differences` for `values`.
    `bad` counts the bad tensors in cells that are bad in only one run. `origin` is the cell of `outlined_parting`.
    `path` is empty. `sentence` says which layer parted first, and in which step. `measures` begins with `difference`,
    the largest difference of all measures, without its sign.

    Attributes:
        run_a: Run A.
        run_b: Run B.
        range_a: The first and the last position of A; None if A has no positions.
        range_b: The first and the last position of B; None if B has no positions.
        values_a: The measures of A, as in `LayerHealth.values`.
        values_b: The measures of B.
        bad_a: The number of bad tensors of A in each cell.
        bad_b: The number of bad tensors of B in each cell.
        only_a: The rows that only A has.
        only_b: The rows that only B has.
        rtol: The tolerance.
        notes: Further sentences: where the runs are far apart, and which rows outside all layers differed before.
        first_parting: The first place in a layer or line where the runs are apart. If there is no such place, it is the
            first place in another row; None if the runs are never apart.
        large_parting: The first place where the runs are far apart. The runs are far apart if a largest magnitude, a
            norm or an update ratio differs by a factor of 10 or more, if a share of zeros differs by a half or more, or
            if only one run has bad tensors.
        outlined_parting: `first_parting`; or `large_parting`, if the runs are already apart at the first position.
        partings: The first place of each row that is apart, sorted by column, and then in the order in which the ops of
            a step run. A row is left out if a row inside it is apart equally early.
    """

    run_a: str
    run_b: str
    range_a: tuple[int, int] | None
    range_b: tuple[int, int] | None
    values_a: Mapping[str, tuple[tuple[float | None, ...], ...]]
    values_b: Mapping[str, tuple[tuple[float | None, ...], ...]]
    bad_a: tuple[tuple[int, ...], ...]
    bad_b: tuple[tuple[int, ...], ...]
    only_a: tuple[LayerRow, ...]
    only_b: tuple[LayerRow, ...]
    rtol: float
    notes: tuple[str, ...]
    first_parting: Parting | None
    large_parting: Parting | None
    outlined_parting: Parting | None
    partings: tuple[Parting, ...]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One quantity over the training.

    Attributes:
        name: `loss`, `learning_rate`, `loss_scale`, `global_norm`, the label of a mark, `logs/` followed by a key of
            Keras's logs, `gradient_norm`, `weight_norm`, `update_ratio`, `max_activation`, `zero_share`,
            `saturated_share` or `bad_share`.
        title: The title for people.
        scale: As in Measure.
        values: One number for each column; None where the number is not known, NaN or an infinity where it is bad.
        first_bad: Index of the first column whose value is not finite; None if all known values are finite.
        source: The source of the numbers, such as `mark(loss=…)`, or the output of an op, such as `loss/Mean:0`.
    """

    name: str
    title: str
    scale: str
    values: tuple[float | None, ...]
    first_bad: int | None
    source: str


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingCurves(Displayed):
    """Curves of one run over the training.

    Attributes:
        run_id: The run.
        axis: As in LayerHealth.
        columns: As in LayerHealth.
        calls: As in LayerHealth.
        curves: The curves that the recording provides.
        notes: Sentences about missing curves: why there is no curve of the loss and how to get it, and how many labels
            have no curve because there are too many.
        first_bad: Index of the column of the first bad tensor that did harm, as `first_nonfinite` returns it; None if
            no column contains that tensor.
    """

    run_id: str
    axis: str
    columns: tuple[Column, ...]
    calls: ColumnCalls | None
    curves: tuple[Curve, ...]
    notes: tuple[str, ...]
    first_bad: int | None
