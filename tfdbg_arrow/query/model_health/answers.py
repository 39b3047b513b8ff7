"""The answers of layer_health, training_curves and layer_differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfdbg_arrow.query.displayed import Displayed


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One quantity of a map or a set of curves.

    Attributes:
        name: Its name, as in `LayerHealth.values`: `bad_share`, `max_abs`, `mean`, `stddev`, `zero_share`, `norm`
            or `update_ratio`.
        title: What people call it, such as "Largest magnitude".
        scale: How to colour it: `share` (0 to 1), `log` (0 and positive numbers over many powers of ten), `signed`
            (numbers around 0), `relative` (relative differences), `share_difference` (differences of two
            shares) or `difference` (the largest of these, without its sign).
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
"""The measures of a map of one run, in the order in which they are shown."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: a range of positions, see `LayerHealth.axis`.

    Attributes:
        first: The first position.
        last: The last position, inclusive.
        first_event_index: The first tensor of the column; None if it has none.
        last_event_index: The last tensor of the column; None if it has none.
    """

    first: int
    last: int
    first_event_index: int | None
    last_event_index: int | None


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One row of a map: a layer, with all that is inside it.

    In a program with layers, an op outside all layers belongs to a row for its role, such as `loss` or `optimizer`.
    In a program without layers, an op belongs to a row for the line of the user's code that created it, or to one for
    its role if no such line is known. Eager tensors that came from outside belong to the row of the role `input`. A
    gradient has the layer, line or role of its forward op.

    Attributes:
        layer: The path of the layer, as in `graph_op.layer`; or the line as `file_path:lineno`; or the role, `other` if
            it is unknown. See `kind`.
        kind: `layer`, `line` or `role`.
        name: The last part of the path; for a line, the name of the file and the line number.
        depth: Number of layers around it; 0 for other kinds.
        side: `forward`, or `gradient` for the gradients of the ops of the layer.
        role: `forward`, `loss`, `metric`, `optimizer` or `input`; the role of most of its tensors if `side` is
            `forward`, else `gradient`.
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
    """What maps of layers over the training have in common.

    Attributes:
        axis: What the positions of the columns are: `step` (training steps, as marked) or `execution`
            (`execution_index`). Tensors without a position are in no column.
        columns: The columns, in order. A column without tensors is left out only at the ends.
        rows: The rows: layers in the order in which the program made them, each before what is inside it, and the
            forward side before the gradient side of the same layer. There are at most about 2,000.
        measures: The measures that are known.
        values: By name of the measure, one tuple for each row with one number for each column; None where it is not
            known.
        bad: For each row and column, the number of bad tensors that mark the cell.
        origin: The outlined cell; None if there is none.
        path: Rows that a line joins with the outlined cell, in the order of the flow.
        sentence: What happened, in one sentence.
    """

    axis: str
    columns: tuple[Column, ...]
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
    the measures. `bad` counts the bad tensors in each cell. `origin` is the cell in which the first bad value began;
    None if none did harm. `path` has the rows through which the bad value went to the variable, result or metric that
    it reached first, without repetitions; the first is the row of the origin. `sentence` is the headline of the first
    bad tensor that did harm, and what had grown until then; for a healthy run, it says that nothing is bad, and names
    the layer that changed most, if one changed much.

    Attributes:
        run_id: The run.
        num_folded: Number of layers or lines that have no row of their own, because there are too many. The tensors of
            a deep layer then count in the row of the layer around it, and those of lines in rows of their roles.
        origin_event_index: The tensor with which it began, as `first_nonfinite` returns it; None if none did harm.
    """

    run_id: str
    num_folded: int
    origin_event_index: int | None


@dataclass(frozen=True, kw_only=True)
class Parting:
    """The first place at which a row of two runs is apart.

    Attributes:
        row: Index of the row.
        column: Index of the column.
        first: The first position of the place. It is exact for `first_parting` and `large_parting`, unless the runs
            recorded different positions of the column.
        last: The last position, inclusive.
        measure: The measure that is apart: the name of a Measure, or `bad` if only one run has a bad tensor.
        a: The measure in A; None for `bad`.
        b: The measure in B; None for `bad`.
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

    It also has the attributes of LayerMap. The columns are positions that both runs have, and their events are those of
    A. The rows are the layers or lines that both runs have, with the numbers of A. See `layer_differences` for
    `values`. `bad` counts the bad tensors in cells that are bad in only one run. `origin` is the cell of
    `outlined_parting`. `path` is empty. `sentence` says which layer parted first, and in which step.
    `measures` begins with `difference`, the largest difference of all measures, without its sign.

    Attributes:
        run_a: Run A.
        run_b: Run B.
        range_a: The first and the last position of A; None if it has none.
        range_b: The same of B.
        values_a: The measures of A, as in `LayerHealth.values`.
        values_b: The measures of B.
        bad_a: The number of bad tensors of A in each cell.
        bad_b: The number of bad tensors of B in each cell.
        only_a: The rows that only A has.
        only_b: The rows that only B has.
        rtol: The tolerance.
        notes: Further sentences: where the runs are far apart, and what was apart before outside all layers.
        first_parting: The first place in a layer or line at which the runs are apart. If there is none, the first place
            in another row; None if they are never apart.
        large_parting: The same for being far apart: a largest magnitude, a norm or an update ratio by a factor of 10 or
            more, a share of zeros by a half or more, or only one run has bad tensors.
        outlined_parting: `first_parting`; or `large_parting`, if the runs are apart from the first column on.
        partings: The first place of each row that is apart, without rows that contain another one that is apart as
            early; by column, and then in the order in which the ops of a step run.
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
        name: `loss`, `learning_rate`, `loss_scale`, `global_norm`, the label of a mark, `logs/` and a key of Keras's
            logs, `gradient_norm`, `weight_norm`, `update_ratio`, `max_activation`, `zero_share`,
            `saturated_share` or `bad_share`.
        title: What people call it.
        scale: As in Measure.
        values: One number for each column; None where it is not known, NaN or an infinity where it is bad.
        first_bad: Index of the first column in which it is not finite; None if there is none.
        source: What it was computed from, such as `mark(loss=…)`, or the output of an op, such as `loss/Mean:0`.
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
        curves: The curves that the recording provides.
        notes: Sentences: why there is no curve of the loss, and how to get one; and which labels have no curve because
            there are too many.
        first_bad: Index of the column of the first bad tensor that did harm, as `first_nonfinite` returns it; None if
            there is none.
    """

    run_id: str
    axis: str
    columns: tuple[Column, ...]
    curves: tuple[Curve, ...]
    notes: tuple[str, ...]
    first_bad: int | None
