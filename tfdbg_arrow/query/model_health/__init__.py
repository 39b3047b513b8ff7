"""The state of the layers over the training: layer_health, training_curves, distributions and layer_differences.

* `answers.py`: the classes of the answers.
* `reading.py`: reads the data for the answers.
* `differences.py`: layer_differences, which compares two runs.
* `histograms.py`: distributions.
* `columns.py`: the positions of a run, divided into columns.
* `cells.py`: sums up the tensors of each layer or source line in each column, in one SQL statement.
* `sums.py`: the sums over tensors, and their arithmetic.
* `layer_rows.py`: the tree of layers.
* `series.py`: quantities that need single tensors: the loss and other scalars, update ratios, saturated activations.
* `origin.py`: where the first bad value began, and which layers it went through.
* `sentences.py`: the sentence that says what happened.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.logdir.opening import opened
from tfdbg_arrow.query.model_health.answers import MEASURES, Cell, Curve, LayerHealth, TrainingCurves
from tfdbg_arrow.query.model_health.columns import Axis, of_run, read_axis, read_columns
from tfdbg_arrow.query.model_health.layer_rows import bad_numbers, make_nodes, measured
from tfdbg_arrow.query.model_health.origin import read_origin
from tfdbg_arrow.query.model_health.reading import MAX_COLUMNS, Recorded, read_on_axis, read_recorded
from tfdbg_arrow.query.model_health.sentences import bad_sentence, healthy_sentence, missing_loss_sentence
from tfdbg_arrow.query.model_health.series import KERAS_LOGS, MAX_LABELS, read_loss, read_saturated, read_series
from tfdbg_arrow.query.model_health.sums import Sums, numbers, root, share
from tfdbg_arrow.safe_text import number_of, printable, shortened

_CURVES = {
    "loss": ("Loss", "signed"),
    "learning_rate": ("Learning rate", "log"),
    "loss_scale": ("Loss scale", "log"),
    "global_norm": ("Global norm before clipping", "log"),
    "gradient_norm": ("Norm of all gradients", "log"),
    "weight_norm": ("Norm of all weights", "log"),
    "update_ratio": ("Largest update relative to its weights", "log"),
    "max_activation": ("Largest activation", "log"),
    "zero_share": ("Share of zeros in activations", "share"),
    "saturated_share": ("Share of saturated activations", "share"),
    "bad_share": ("Share of bad tensors", "share"),
}
"""The title and the scale of each curve, by name."""
_LAST_POSITIONS = 50
"""last_loss looks for a loss in this many positions at the end of a run."""
_MAX_TITLE = 60
"""The maximum number of characters of a title that is the name of a label."""


def layer_health(
    logdir: Engine | str | Path,
    *,
    run_id: str | None = None,
    positions: tuple[int | None, int | None] = (None, None),
    max_columns: int = MAX_COLUMNS,
) -> LayerHealth | None:
    """Returns the health of each layer over the training; None if the run has no tensors.

    Each tensor counts in its row (see LayerRow) and in the rows of the layers that contain it. The measures of a cell
    are:

    * `bad_share`: the share of bad tensors among the tensors that are known to be bad or not bad;
    * `max_abs`: the largest magnitude of a finite element;
    * `mean`, `stddev`: the mean and the standard deviation of all finite elements together;
    * `zero_share`: the share of zeros among all elements;
    * `norm`: the Euclidean norm of the finite elements. For each op output, the sums of squares of its tensors in the
      column are averaged, so the norm does not depend on the number of steps in a column. If several graphs were traced
      from one function, equal outputs of these graphs count as one output. On the gradient side, only the gradients of
      variables count, and bad ones are left out; if the row has no such gradient, all tensors of the row count. The
      gradients of variables are the outputs of gradient ops that an op of the optimizer takes. If no optimizer takes
      such an output, they are the outputs that another op outside the gradient takes, or that a function returns to
      eager code;
    * `update_ratio`: the greatest ratio of an update to its variable, by their root mean squares, as in the alert rule
      `weight_update_ratio`. The ratio belongs to the row of the op that reads the variable. If an op such as
      ResourceApplyAdam computes the update from a state of its own, the measure is the smallest ratio that the next
      read of the variable proves; see the view `variable_update`.

    `max_abs`, `mean`, `stddev`, `norm` and `update_ratio` need the mode FULL_NUMERICS; `zero_share` needs FULL_HEALTH.

    Args:
        logdir: An open logdir or its path.
        run_id: The run, or "all". None means the newest run and the runs of the other processes of its program. Of
            several runs, the answer is about the first run that went bad, or about the last run if no run did.
        positions: The range to show: the first position, and the position after the last. If the first is None, the
            range begins at the start. If the second is None, the range goes to the end.
        max_columns: Maximum number of columns. If there are more positions, each column is a range of equal length.

    Raises:
        LogdirError: The path is not a readable logdir.
        QueryError: There is no such run, or a number is below 1.
        BrokenPartError: A part cannot be read.
    """
    with opened(logdir) as open_:
        recorded = read_recorded(open_, run_id=run_id, positions=positions, max_columns=max_columns)
        return None if recorded is None else _layer_health(recorded)


def training_curves(
    logdir: Engine | str | Path,
    *,
    run_id: str | None = None,
    positions: tuple[int | None, int | None] = (None, None),
    max_columns: int = MAX_COLUMNS,
) -> TrainingCurves | None:
    """Returns curves over the training; None if the run has no tensors.

    The curves of a column are:

    * `loss`: the mean of the loss. The loss is the label that the program set with `mark(loss=…)`. Without such a
      label, the loss is a scalar output of a graph op. The op is of the first kind that exists: an op with the role
      `loss` and a gradient, an op with the role `loss`, or an op with a gradient. If there are several such outputs,
      the output that was computed most often counts. If several were computed equally often, the output that was made
      last counts. If no graph has such an output, the loss is the last scalar of each position from an eager op with
      the role `loss`. If there is no such op, the scalar is from an eager op with a gradient;
    * `learning_rate`, `loss_scale`, `global_norm`: the values that the optimizers and the loss scale of Keras, and
      `clip_by_global_norm` of Keras or TensorFlow, use in graphs. If the program set labels with these names, the
      labels count instead;
    * the means of other numbers, by name: labels that the program set with marks, and metrics in the logs of Keras's
      fit, such as `logs/accuracy`. At most MAX_LABELS labels have a curve;
    * `gradient_norm`: the norm of all gradients of variables, see `layer_health`; NaN if any of these gradients is bad;
    * `weight_norm`: the norm of all variables that a graph trains and reads for a forward op or the loss; NaN if any of
      these variables is bad. Only the first read of each variable in a graph counts;
    * `update_ratio`: the greatest ratio of an update to one of these variables;
    * `max_activation`, `zero_share`: the largest magnitude, and the share of zeros, in the outputs of forward ops. The
      largest magnitude leaves out outputs with the same magnitude of 10,000 or more in all columns, because such
      numbers are constants of masks.
      Constants and reads of variables do not count;
    * `saturated_share`: the share of saturated outputs among the outputs of Sigmoid and Tanh in graphs, as in the alert
      rule `saturated_activation`;
    * `bad_share`: the share of bad tensors, as in `layer_health`.

    Curves that the recording does not provide are omitted. The values of scalars come from
    `tensor_health.scalar_value`. The modes SHAPE and NO_TENSOR record no such values.

    The arguments and errors are the same as for layer_health.
    """
    with opened(logdir) as open_:
        recorded = read_recorded(open_, run_id=run_id, positions=positions, max_columns=max_columns)
        return None if recorded is None else _training_curves(recorded)


def layers_and_curves(logdir: Engine, *, run_id: str) -> tuple[LayerHealth, TrainingCurves] | None:
    """Returns layer_health and training_curves, in less time than both calls; None if the run has no tensors.

    The arguments and errors are the same as for layer_health.
    """
    recorded = read_recorded(logdir, run_id=run_id, positions=(None, None), max_columns=MAX_COLUMNS)
    return None if recorded is None else (_layer_health(recorded), _training_curves(recorded))


def layers_and_curves_on(
    logdir: Engine, axis: Axis, *, run_id: str, max_labels: int = MAX_LABELS
) -> tuple[LayerHealth, TrainingCurves]:
    """Returns layer_health and training_curves on a given axis, without the parts about the first bad tensor.

    The axis may have positions without tensors: marks have curves there too.

    Args:
        logdir: The engine of the run, see `Engine.of_run`.
        axis: The axis.
        run_id: The run.
        max_labels: Maximum number of labels of marks that get a curve.

    Raises:
        BrokenPartError: A part cannot be read.
    """
    recorded = read_on_axis(logdir, axis, run_id=run_id)
    return _layer_health(recorded), _training_curves(recorded, max_labels=max_labels)


def last_loss(logdir: Engine | str | Path, *, run_id: str) -> tuple[int, float] | None:
    """Returns the last known loss of a run, and its position on the axis of training_curves.

    Reads only the last positions; returns None if they have no known loss.

    Args:
        logdir: An open logdir or its path.
        run_id: The ID of the run.

    Raises:
        LogdirError: The path is not a readable logdir.
        BrokenPartError: A part cannot be read.
    """
    with opened(logdir) as open_:
        scope, selection = open_.of_run(run_id), of_run(run_id)
        axis = read_axis(scope, selection)
        if axis is None or axis.ends is None:
            return None
        axis = replace(axis, first=max(axis.first, axis.last - _LAST_POSITIONS + 1))
        loss = read_loss(scope, axis, read_columns(scope, axis, selection), run_id=run_id)
    values = () if loss is None else loss.values
    losses = [(axis.first + index, value) for index, value in enumerate(values) if value is not None]
    return losses[-1] if losses else None


def _layer_health(recorded: Recorded) -> LayerHealth:
    nodes = make_nodes(recorded.groups, recorded.ratios, len(recorded.columns))
    rows = tuple(node.row() for node in nodes)
    values = {measure.name: tuple(numbers(measured(node, measure.name)) for node in nodes) for measure in MEASURES}
    given = tuple(measure for measure in MEASURES if any(_has_any(of_row) for of_row in values[measure.name]))
    row_of = {node.key: index for index, node in enumerate(nodes)}
    bad_tensor = recorded.bad_tensor
    origin = None if bad_tensor is None else read_origin(recorded.logdir, bad_tensor, recorded.labels, row_of)
    path = () if origin is None else tuple(row_of[key] for key in origin.path if key in row_of)
    first_row = None if origin is None or not origin.path else row_of.get(origin.path[0])
    first_bad = recorded.first_bad
    if origin is None:
        total = _total(recorded)
        text = healthy_sentence(
            nodes,
            values["max_abs"],
            values["zero_share"],
            num_measured=int(np.nansum(total["num_measured"])),
            num_bad=int(np.nansum(total["num_bad"])),
        )
    else:
        text = bad_sentence(origin)
    return LayerHealth(
        run_id=recorded.run_id,
        axis=recorded.axis.name,
        columns=recorded.columns,
        calls=recorded.calls,
        rows=rows,
        num_folded=recorded.labels.num_folded,
        measures=given,
        values={measure.name: values[measure.name] for measure in given},
        bad=tuple(bad_numbers(node) for node in nodes),
        origin=None if first_row is None or first_bad is None else Cell(row=first_row, column=first_bad),
        origin_event_index=None if bad_tensor is None else bad_tensor.event_index,
        path=path,
        sentence=text,
    )


def _training_curves(recorded: Recorded, *, max_labels: int = MAX_LABELS) -> TrainingCurves:
    curves: list[Curve] = []
    notes: tuple[str, ...] = ()
    if recorded.columns:
        all_series, num_without = read_series(
            recorded.logdir, recorded.axis, recorded.columns, run_id=recorded.run_id, max_labels=max_labels
        )
        curves += [_curve(series.name, series.values, series.source) for series in all_series]
        if num_without:
            notes = (
                f"{number_of(num_without, 'label')} of marks have no curve, because there are more than {max_labels}.",
            )
        if "loss" not in [series.name for series in all_series]:
            notes = (_missing_loss(recorded), *notes)
        curves += _curves(recorded, read_saturated(recorded.logdir, recorded.axis, run_id=recorded.run_id))
    return TrainingCurves(
        run_id=recorded.run_id,
        axis=recorded.axis.name,
        columns=recorded.columns,
        calls=recorded.calls,
        curves=tuple(curves),
        notes=notes,
        first_bad=recorded.first_bad,
    )


def _missing_loss(recorded: Recorded) -> str:
    ((mode, backend),) = recorded.logdir.rows(
        "SELECT tensor_debug_mode, health_backend FROM run WHERE run_id = ?", [recorded.run_id]
    ) or [(None, None)]
    return missing_loss_sentence(mode=mode, is_imported=backend == "debugger_v2")


def _total(recorded: Recorded) -> Sums:
    total = Sums(len(recorded.columns))
    for group in recorded.groups:
        total.add(group.sums)
    return total


def _curves(recorded: Recorded, saturated: list[tuple[int, int, int]]) -> list[Curve]:
    """Returns the curves that have a number in any column, without the loss."""
    total = _total(recorded)
    for ratio in recorded.ratios:
        total.add_ratio(ratio.column, ratio.ratio, is_weight=ratio.is_weight)
    saturable, flat = np.zeros(len(recorded.columns)), np.zeros(len(recorded.columns))
    for column, number, number_flat in saturated:
        saturable[column], flat[column] = number, number_flat
    curve_inputs = (
        ("gradient_norm", root(total["gradient_square"]), total["num_bad_gradients"], "gradients of variables"),
        ("weight_norm", root(total["weight_square"]), total["num_bad_weights"], "variables that are trained"),
        ("update_ratio", total["weight_update_ratio"], None, "variables that are trained"),
        ("max_activation", total["activation_max_abs"], None, "outputs of forward ops"),
        (
            "zero_share",
            share(total["num_activation_zero"], total["num_activation_sized"]),
            None,
            "outputs of forward ops",
        ),
        ("saturated_share", share(flat, saturable), None, "outputs of Sigmoid and Tanh"),
        ("bad_share", share(total["num_bad"], total["num_measured"]), None, "all tensors"),
    )
    curves = []
    for name, of_columns, num_bad, source in curve_inputs:
        values = numbers(of_columns)
        if _has_any(values):
            is_bad = np.zeros(len(values)) if num_bad is None else np.nan_to_num(num_bad)
            bad = tuple(math.nan if bad else value for bad, value in zip(is_bad, values, strict=True))
            curves.append(_curve(name, bad, source))
    return curves


def _curve(name: str, values: tuple[float | None, ...], source: str) -> Curve:
    title, scale = _CURVES.get(name) or (_label_title(name), "signed")
    first_bad = next((i for i, value in enumerate(values) if value is not None and not math.isfinite(value)), None)
    return Curve(name=name, title=title, scale=scale, values=values, first_bad=first_bad, source=source)


def _label_title(label: str) -> str:
    text = f"{label.removeprefix(KERAS_LOGS)} in Keras's logs" if label.startswith(KERAS_LOGS) else label
    return printable(shortened(text, _MAX_TITLE))


def _has_any(values: Iterable[float | None]) -> bool:
    return any(value is not None for value in values)
