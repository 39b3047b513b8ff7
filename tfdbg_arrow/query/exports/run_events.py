"""RunExport: the curves, layers and distributions of one run, appended to its event file position by position.

The numbers come from `layer_health`, `training_curves` and `distributions`, with one column for each position. The
viewer shows the same numbers. Positions are read in windows, so that memory does not grow with the length of a
recording. The loss is identified in each window separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.exports.event_files import EventFile, Tags, histogram, scalar, text
from tfdbg_arrow.query.info import Run
from tfdbg_arrow.query.logdir.open_logdir import OpenLogdir
from tfdbg_arrow.query.model_health import layers_and_curves_on
from tfdbg_arrow.query.model_health.answers import Column, LayerRow
from tfdbg_arrow.query.model_health.cells import row_condition
from tfdbg_arrow.query.model_health.columns import Axis, Selection, of_run, read_axis, read_position
from tfdbg_arrow.query.model_health.histograms import distributions_on, no_distribution_sentence
from tfdbg_arrow.query.model_health.sentences import missing_loss_sentence
from tfdbg_arrow.query.nonfinite_search import first_nonfinite
from tfdbg_arrow.storage.layout import check_run_id

Progress = Callable[[str, str, int], None]
"""Called with a run, the name of its axis (`step` or `execution`), and the last position that was written."""
_WINDOW = 200
"""Maximum number of positions that are read at a time."""
_MAX_HISTOGRAMS = 20_000
"""Maximum number of histograms that are held at a time."""
_MAX_LABELS = 1000
"""Maximum number of mark labels that get a curve in a window."""
_TAG_OF_CURVE = {"bad_share": "nonfinite/share_of_tensors"}
"""The tags of curves whose tag is not `training/<name>`."""
_COUNTS = ("nonfinite/tensors", "nonfinite/nan_elements", "nonfinite/infinite_elements")
_MODES = (
    ("zero_share", "Shares of zeros need the mode FULL_HEALTH or FULL_NUMERICS"),
    ("max_abs", "Largest magnitudes, means, norms and update ratios need the mode FULL_NUMERICS"),
)
"""Pairs of a measure that only some modes record, and the note to show if the run has no such measure."""


@dataclass(frozen=True, kw_only=True)
class RunEvents:
    """The exported data of one run.

    Attributes:
        run_id: The run, and the name of its directory.
        run_name: The name that the program gave to the run; None if it gave none.
        axis: The meaning of TensorBoard's steps: `step` (training steps, as marked) or `execution` (`execution_index`);
            None if nothing was written.
        num_positions: Number of steps with numbers.
        num_scalars: Number of scalars.
        num_histograms: Number of histograms.
        notes: Sentences about missing data, and how to record this data.
    """

    run_id: str
    run_name: str | None
    axis: str | None
    num_positions: int
    num_scalars: int
    num_histograms: int
    notes: tuple[str, ...]


class RunExport:
    """The export of one run: its progress and its content.

    Args:
        run_id: The run.

    Raises:
        LogdirError: The run id is not safe to use in paths.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = check_run_id(run_id, where="the table run")
        self._run: Run | None = None
        self._tags = Tags()
        self._axis: str | None = None
        self._next: int | None = None  # the first position that is not yet written; None at the start
        self._seen_last: int | None = None  # the last position at the previous write()
        self._is_complete = False
        self._answer: tuple[int, int, Any] | None = None  # position, time and text of first_nonfinite
        self._has_answer = False
        self._measures: set[str] = set()
        self._notes: dict[str, None] = {}
        self._num_positions, self._num_scalars, self._num_histograms = 0, 0, 0

    def write(self, logdir: OpenLogdir, root: Path, run: Run, *, is_ended: bool, progress: Progress) -> None:
        """Appends the positions that are complete and not yet written.

        Args:
            logdir: The logdir.
            root: The directory of the export.
            run: The run.
            is_ended: Whether the recording of the run has ended. If not, a position is complete when a later position
                was already recorded at the previous call, because the rows of a step do not reach all tables at the
                same time.
            progress: Called for each window of positions.

        Raises:
            BrokenPartError: A part cannot be read.
            OSError: The event file cannot be written.
        """
        self._run = run
        scope = logdir.of_run(self._run_id)
        axis = None if self._is_complete else read_axis(scope, of_run(self._run_id))
        self._is_complete = is_ended
        # A run without steps may still get steps.
        if axis is None or axis.ends is None or not (is_ended or axis.name == "step"):
            return
        before, self._seen_last = self._seen_last, axis.last
        if not is_ended and before is None:
            return
        self._axis = axis.name
        with EventFile(root / self._run_id, run) as file:
            self._read_answer(logdir, axis.name, axis.last)
            for window in self._windows(scope, axis.name, last=None if is_ended or before is None else before - 1):
                self._write_window(scope, file, window, run)
                self._next = window.last + 1
                progress(self._run_id, window.name, window.last)
            if is_ended:
                self._write_answer(file, axis.last)

    def _windows(self, scope: Engine, axis: str, *, last: int | None) -> Iterator[Axis]:
        """Yields ranges of positions that together hold all positions from `_next` on."""
        tensors, parameters = self._rows(axis)
        while True:
            bounds = [(operator, bound) for operator, bound in ((">=", self._next), ("<=", last)) if bound is not None]
            ((first, end),) = scope.rows(
                f"SELECT min(position), max(position) FROM ({tensors}) AS h WHERE position IS NOT NULL"
                + "".join(f" AND position {operator} {bound}" for operator, bound in bounds),
                parameters,
            )
            if first is None:
                return
            yield Axis(axis, first, min(first + _WINDOW - 1, end))

    def _rows(self, axis: str) -> tuple[str, list[object]]:
        """Returns the SELECT of (position, wall_time_ns, is_bad, num_nan, num_inf) of tensors and of marks."""
        position = Axis(axis, 0, 0).position
        tensors = (
            f"SELECT {position} AS position, h.wall_time_ns, CASE WHEN h.has_inf_or_nan THEN 1.0 "
            "WHEN NOT h.has_inf_or_nan THEN 0.0 END AS is_bad, CAST(h.num_nan AS DOUBLE) AS num_nan, "
            "CAST(h.num_neg_inf AS DOUBLE) + h.num_pos_inf AS num_inf FROM tensor_health AS h WHERE h.run_id = ?"
        )
        if axis != "step":
            return tensors, [self._run_id]
        marks = "SELECT h.step, h.wall_time_ns, NULL, NULL, NULL FROM mark AS h WHERE h.run_id = ?"
        return f"{tensors} UNION ALL {marks}", [self._run_id, self._run_id]

    def _write_window(self, scope: Engine, file: EventFile, axis: Axis, run: Run) -> None:
        rows, parameters = self._rows(axis.name)
        counts = {
            position: (wall_time_ns, numbers)
            for position, wall_time_ns, *numbers in scope.rows(
                "SELECT position, max(wall_time_ns), sum(is_bad), sum(num_nan), sum(num_inf) "
                f"FROM ({rows}) AS h WHERE position >= {axis.first} AND position <= {axis.last} GROUP BY position",
                parameters,
            )
        }
        health, curves = layers_and_curves_on(scope, axis, run_id=self._run_id, max_labels=_MAX_LABELS)
        names = [curve.name for curve in curves.curves]
        self._notes.update(dict.fromkeys(curves.notes if "loss" in names else curves.notes[1:]))
        self._measures.update(names, (measure.name for measure in health.measures))
        series: list[tuple[str, Sequence[float | None]]] = [
            (self._tags.of(_TAG_OF_CURVE.get(curve.name, f"training/{curve.name}")), curve.values)
            for curve in curves.curves
        ]
        for measure in health.measures:
            for row, values in zip(health.rows, health.values[measure.name], strict=True):
                series.append((self._tag(measure.name, row), values))
        size = max(1, _MAX_HISTOGRAMS // max(1, len(health.rows)))
        for first in range(axis.first, axis.last + 1, size):
            part = Axis(axis.name, first, min(first + size - 1, axis.last))
            columns = health.columns[first - axis.first :][:size]
            histograms = self._histograms(scope, part, columns, health.rows)
            for position in range(part.first, part.last + 1):
                wall_time_ns, numbers = counts.get(position, (run.wall_time_ns, ()))
                tagged_numbers = [(tag, values[position - axis.first]) for tag, values in series]
                tagged_numbers += zip(_COUNTS, numbers, strict=False)
                scalars = [scalar(tag, number) for tag, number in tagged_numbers if number is not None]
                self._write_answer(file, position)
                if scalars or position in histograms:
                    is_first = run.run_name is not None and not self._num_positions
                    texts = [text("run_name", run.run_name or "")] if is_first else []
                    file.add(position, wall_time_ns, [*texts, *scalars, *histograms.get(position, ())])
                    self._num_positions += 1
                    self._num_scalars += len(scalars)
                    self._num_histograms += len(histograms.get(position, ()))

    def _histograms(
        self, scope: Engine, axis: Axis, columns: tuple[Column, ...], rows: Sequence[LayerRow]
    ) -> dict[int, list[Any]]:
        """Returns the histograms of each row, or of all tensors of a program without layers, by position."""
        if not scope.rows(
            f"SELECT 1 FROM tensor_health AS h WHERE h.run_id = ? AND {axis.condition} "
            "AND h.histogram_negative IS NOT NULL LIMIT 1",
            [self._run_id],
        ):
            return {}
        selections: dict[str, Selection] = {self._tags.of("distribution/all"): of_run(self._run_id)}
        if all(row.kind != "line" for row in rows):
            selections = {self._tag("distribution", row): self._selection(row) for row in rows}
        summaries: dict[int, list[Any]] = {}
        for tag, selection in selections.items():
            distributions = distributions_on(scope, selection, axis, columns, run_id=self._run_id)
            for index, column in enumerate(columns):
                summary = histogram(tag, distributions, index)
                if summary is not None:
                    summaries.setdefault(column.first, []).append(summary)
        return summaries

    def _tag(self, quantity: str, row: LayerRow) -> str:
        """Returns the tag of a quantity of a row: `norm/forward/enc/dense`, or `norm/gradient/role:loss`."""
        name = f"{quantity}/{row.side}/{'role:' if row.kind == 'role' else ''}{row.layer}"
        return self._tags.of(name, key=(quantity, row.side, row.kind, row.layer))

    def _selection(self, row: LayerRow) -> Selection:
        condition, parameters = row_condition(row.layer, row.side, run_id=self._run_id)
        return f"h.run_id = ? AND {condition}", [self._run_id, *parameters]

    def _read_answer(self, logdir: Engine, axis: str, last: int) -> None:
        """Looks for the first bad value that did harm, unless an earlier call found it."""
        bad_tensor = None if self._answer is not None else first_nonfinite(logdir, run_id=self._run_id)
        if bad_tensor is not None and not bad_tensor.is_expected:
            position = read_position(logdir, bad_tensor.event_index, axis=axis, run_id=self._run_id)
            summary = text("first_nonfinite", bad_tensor.headline)
            self._answer = last if position is None else position, bad_tensor.wall_time_ns, summary

    def _write_answer(self, file: EventFile, position: int) -> None:
        if self._answer is not None and not self._has_answer and self._answer[0] <= position:
            file.add(*self._answer[:2], self._answer[2:])
            self._has_answer = True

    def told(self, logdir: Engine) -> RunEvents:
        """Returns the exported data of the run."""
        assert self._run is not None
        return RunEvents(
            run_id=self._run_id,
            run_name=self._run.run_name,
            axis=self._axis,
            num_positions=self._num_positions,
            num_scalars=self._num_scalars,
            num_histograms=self._num_histograms,
            notes=tuple(self._told_notes(logdir, self._run)),
        )

    def _told_notes(self, logdir: Engine, run: Run) -> Iterator[str]:
        if not self._num_positions:
            yield "No tensor is recorded." if self._is_complete else "No step was complete."
            return
        yield from self._notes
        mode = run.tensor_debug_mode
        if "loss" not in self._measures:
            yield missing_loss_sentence(mode=mode, is_imported=run.health_backend == "debugger_v2")
        for measure, sentence in _MODES:
            if measure not in self._measures:
                yield f"{sentence}; the mode of this run is {mode}."
        if not self._num_histograms:
            yield no_distribution_sentence(logdir, self._run_id)
