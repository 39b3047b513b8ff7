"""The answers of layer_health and training_curves."""

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
        scale: How to colour it: `share` (0 to 1), `log` (0 and positive numbers over many powers of ten) or
            `signed` (numbers around 0).
    """

    name: str
    title: str
    scale: str


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
class LayerHealth(Displayed):
    """The health of each layer of one run over the training.

    Attributes:
        run_id: The run.
        axis: What the positions of the columns are: `step` (training steps, as marked) or `execution`
            (`execution_index`, if the run has no steps). Tensors without a position are in no column.
        columns: The columns, in order. A column without tensors is left out only at the ends.
        rows: The rows: layers in the order in which the program made them, each before what is inside it, and the
            forward side before the gradient side of the same layer. There are at most about 2,000.
        num_folded: Number of layers or lines that have no row of their own, because there are too many. The tensors of
            a deep layer then count in the row of the layer around it, and those of lines in rows of their roles.
        measures: The measures that the recording's mode provides.
        values: By name of the measure, one tuple for each row with one number for each column; None where there are
            no tensors or the measure is not known. See `layer_health` for the measures.
        bad: For each row, the number of bad tensors in each column.
        origin: The cell in which the first bad value began; None if none did harm.
        origin_event_index: The tensor with which it began, as `first_nonfinite` returns it; None if none did harm.
        path: The rows through which the bad value went to the variable, result or metric that it reached first, in the
            order of the flow, without repetitions; the first is the row of the origin.
        sentence: What happened, in one sentence: what went bad first and in which step, and what had grown until then;
            for a healthy run, that nothing is bad, and the layer that changed most, if one changed much.
    """

    run_id: str
    axis: str
    columns: tuple[Column, ...]
    rows: tuple[LayerRow, ...]
    num_folded: int
    measures: tuple[Measure, ...]
    values: Mapping[str, tuple[tuple[float | None, ...], ...]]
    bad: tuple[tuple[int, ...], ...]
    origin: Cell | None
    origin_event_index: int | None
    path: tuple[int, ...]
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One quantity over the training.

    Attributes:
        name: `loss`, `gradient_norm`, `weight_norm`, `update_ratio`, `max_activation`, `zero_share`,
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
        first_bad: Index of the column of the first bad tensor that did harm, as `first_nonfinite` returns it; None if
            there is none.
    """

    run_id: str
    axis: str
    columns: tuple[Column, ...]
    curves: tuple[Curve, ...]
    first_bad: int | None
