"""The questions of the query layer, as methods of an engine or a logdir, and `open_logdir`.

This module imports the module of a question when the question is asked. The modules of the questions do not import this
module: they only need an `Engine`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tfdbg_arrow.errors import MissingDependencyError, install_command
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.integrity.damage import damage_told
from tfdbg_arrow.query.logdir.open_logdir import OpenLogdir, SubLogdir

if TYPE_CHECKING:
    from tfdbg_arrow.query.alert_rules.answer import Alerts
    from tfdbg_arrow.query.asked_runs import AboutRuns
    from tfdbg_arrow.query.coverage import Coverage
    from tfdbg_arrow.query.displayed import Rows
    from tfdbg_arrow.query.info import LogdirInfo, Run
    from tfdbg_arrow.query.integrity.verification import Verification
    from tfdbg_arrow.query.model_health.answers import LayerDifferences, LayerHealth, TrainingCurves
    from tfdbg_arrow.query.model_health.histograms import Distributions
    from tfdbg_arrow.query.nonfinite_tensor import NonFinite
    from tfdbg_arrow.query.run_diff.answer import Diff
    from tfdbg_arrow.query.tensor_history import HistoryRow
    from tfdbg_arrow.query.trace_back import Provenance
    from tfdbg_arrow.query.trace_forward import Spread


class Answers(Engine, Protocol):
    """The queries that every engine answers, as methods."""

    def of_run(self, run_id: str) -> Engine:
        """Returns an engine for queries about one run.

        The default is this engine, which also reads the other runs.
        """
        return self

    def runs(self) -> tuple[Run, ...]:
        """Returns the runs in the logdir, oldest first."""
        from tfdbg_arrow.query.info import read_runs

        with damage_told(self):
            return read_runs(self)

    def about_runs(self, *, run_id: str | None = None) -> AboutRuns:
        """Returns the runs that the answers are about, and whether the other runs have bad values.

        Args:
            run_id: The run, or "all", as in the other methods. None means the newest run and the runs of the other
                processes of its program.
        """
        from tfdbg_arrow.query.asked_runs import about_runs

        with damage_told(self):
            return about_runs(self, run_id)

    def info(self) -> LogdirInfo:
        """Returns a summary: the runs, the size of each table, the time range, and the number of bad tensors."""
        from tfdbg_arrow.query.info import read_info

        with damage_told(self):
            return read_info(self)

    def coverage(self, *, run_id: str | None = None) -> Coverage:
        """Returns the tensors that the recording did not examine, and the reasons; see `tfdbg_arrow.query.coverage`."""
        from tfdbg_arrow.query.coverage import coverage

        return coverage(self, run_id=run_id)

    def nonfinite(
        self, *, kinds: Iterable[str] = ("nan", "inf"), run_id: str | None = None, limit: int | None = 1000
    ) -> Rows[NonFinite]:
        """Returns the bad tensors in the order in which they were recorded; see `tfdbg_arrow.nonfinite`."""
        from tfdbg_arrow.query.nonfinite_search import nonfinite

        return nonfinite(self, kinds=kinds, run_id=run_id, limit=limit)

    def first_nonfinite(self, *, kinds: Iterable[str] = ("nan", "inf"), run_id: str | None = None) -> NonFinite | None:
        """Returns the earliest origin of a bad value; see `tfdbg_arrow.first_nonfinite`."""
        from tfdbg_arrow.query.nonfinite_search import first_nonfinite

        return first_nonfinite(self, kinds=kinds, run_id=run_id)

    def provenance(self, tensor: NonFinite | int, *, run_id: str | None = None, limit: int = 1000) -> Provenance:
        """Returns the path from a bad tensor back to its origins; see `tfdbg_arrow.query.provenance`."""
        from tfdbg_arrow.query.trace_back import provenance

        return provenance(self, tensor, run_id=run_id, limit=limit)

    def spread(self, tensor: NonFinite | int, *, run_id: str | None = None, limit: int = 1000) -> Spread:
        """Returns the tensors that a bad tensor made bad; see `tfdbg_arrow.query.spread`."""
        from tfdbg_arrow.query.trace_forward import spread

        return spread(self, tensor, run_id=run_id, limit=limit)

    def history(
        self,
        pattern: str,
        *,
        steps: tuple[int | None, int | None] = (None, None),
        run_id: str | None = None,
        after: int = -1,
        limit: int = 1000,
        num_values: int = 0,
    ) -> Rows[HistoryRow]:
        """Returns the health of selected tensors over time; see `tfdbg_arrow.query.history`."""
        from tfdbg_arrow.query.tensor_history import history

        return history(self, pattern, steps=steps, run_id=run_id, after=after, limit=limit, num_values=num_values)

    def layer_health(
        self,
        *,
        run_id: str | None = None,
        positions: tuple[int | None, int | None] = (None, None),
        max_columns: int = 200,
    ) -> LayerHealth | None:
        """Returns the health of each layer over the training; see `tfdbg_arrow.query.layer_health`."""
        from tfdbg_arrow.query.model_health import layer_health

        return layer_health(self, run_id=run_id, positions=positions, max_columns=max_columns)

    def distributions(
        self,
        pattern: str | None = None,
        *,
        layer: str | None = None,
        side: str | None = None,
        run_id: str | None = None,
        positions: tuple[int | None, int | None] = (None, None),
        max_columns: int = 200,
        max_buckets: int = 300,
    ) -> Distributions | None:
        """Returns the distributions of the elements of tensors; see `tfdbg_arrow.query.distributions`."""
        from tfdbg_arrow.query.model_health.histograms import distributions

        return distributions(
            self,
            pattern,
            layer=layer,
            side=side,
            run_id=run_id,
            positions=positions,
            max_columns=max_columns,
            max_buckets=max_buckets,
        )

    def layer_differences(
        self,
        other: Engine | str | Path | None = None,
        *,
        run_a: str | None = None,
        run_b: str | None = None,
        positions: tuple[int | None, int | None] = (None, None),
        max_columns: int = 200,
        rtol: float | None = None,
    ) -> LayerDifferences | None:
        """Compares the layers of two runs; see `tfdbg_arrow.query.layer_differences`.

        The second run is in this logdir or in another one.
        """
        from tfdbg_arrow.query.model_health.differences import layer_differences

        return layer_differences(
            self, other, run_a=run_a, run_b=run_b, positions=positions, max_columns=max_columns, rtol=rtol
        )

    def training_curves(
        self,
        *,
        run_id: str | None = None,
        positions: tuple[int | None, int | None] = (None, None),
        max_columns: int = 200,
    ) -> TrainingCurves | None:
        """Returns curves over the training; see `tfdbg_arrow.query.training_curves`."""
        from tfdbg_arrow.query.model_health import training_curves

        return training_curves(self, run_id=run_id, positions=positions, max_columns=max_columns)

    def alerts(
        self,
        *,
        kinds: Iterable[str] | None = None,
        parameters: Mapping[str, Mapping[str, float]] | None = None,
        rules_directory: str | Path | None = None,
        run_id: str | None = None,
        limit: int = 100,
    ) -> Alerts:
        """Returns the findings of alert rules; see `tfdbg_arrow.query.alerts`."""
        from tfdbg_arrow.query.alert_rules.answer import alerts

        return alerts(
            self, kinds=kinds, parameters=parameters, rules_directory=rules_directory, run_id=run_id, limit=limit
        )


class Logdir(OpenLogdir, Answers):
    """A logdir opened for reading.

    Each table of the format is a view of the same name. The view shows the parts that the manifests list as live, and
    the rows that dead processes left in the spool. Reading these rows does not change the logdir. A recording may write
    to the logdir while the logdir is open: `refresh` shows the added data.

    Attributes:
        path: The path of the logdir, or its location if it is at a URL.
        storage_options: The options passed to fsspec for a URL.
        memory_limit: Number of bytes of memory that the queries may use. The limit applies to the sum of DuckDB's
            memory and the rows that Python holds.
        questions: Records the SQL of the queries while a `noted` block is active.
    """

    def of_run(self, run_id: str) -> Logdir:
        """Returns the logdir restricted to one run, so that queries do not read the other runs.

        The result can be used as long as this logdir is open. A `refresh` of this logdir also refreshes the result. If
        there is no such run, the tables of the result are empty.
        """
        return _of_run(super().of_run(run_id))

    def _restricted(self, run_ids: Sequence[str], *, loads: bool = False) -> SubLogdir:
        return _RunsOfLogdir(self, run_ids, loads=loads)

    def _repr_html_(self) -> str | None:
        try:
            return str(_viewer().glance(self))
        except MissingDependencyError:
            return None  # a notebook then shows the text

    def show(self, *, run_id: str | None = None, height: int = 720) -> Shown:
        """Returns a report to display in a notebook.

        The report shows the first bad tensor with its cause and source line, the alerts, and the recorded source files.

        Args:
            run_id: The run, or "all". None means the newest run and the runs of the other processes of its program.
            height: Height of the frame in pixels.

        Raises:
            MissingDependencyError: The viewer's packages are not installed.
            QueryError: The run is unknown.
        """
        return Shown(html=str(_viewer().frame(self, run_id=run_id, height=height)), logdir=str(self.path))

    def verify(self) -> Verification:
        """Checks that every byte of data is unchanged since it was written; see `tfdbg_arrow.verify`."""
        from tfdbg_arrow.query.integrity.verification import verify

        return verify(str(self.path))

    def diff(
        self,
        other: Logdir | str | Path | None = None,
        *,
        run_a: str | None = None,
        run_b: str | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        growth: float = 10.0,
        known: str | None = None,
        last_step: int | None = None,
        limit: int = 20,
    ) -> Diff:
        """Compares a run of this logdir with another run; see `tfdbg_arrow.diff`.

        The other run is in this logdir or in another one.
        """
        from tfdbg_arrow.query.run_diff import diff

        return diff(
            self,
            other,
            run_a=run_a,
            run_b=run_b,
            rtol=rtol,
            atol=atol,
            growth=growth,
            known=known,
            last_step=last_step,
            limit=limit,
        )


class _RunsOfLogdir(SubLogdir, Logdir):
    """Some runs of a Logdir."""

    def of_run(self, run_id: str) -> Logdir:
        return _of_run(super().of_run(run_id))


def _of_run(logdir: OpenLogdir) -> Logdir:
    assert isinstance(logdir, Logdir)  # `_restricted` made it
    return logdir


def open_logdir(
    path: str | Path,
    *,
    storage_options: Mapping[str, Any] | None = None,
    skip_broken: bool = False,
    memory_limit: int | str | None = None,
) -> Logdir:
    """Opens a logdir for reading.

    Args:
        path: The directory that a recording wrote, or its URL, such as `s3://bucket/path`. If the logdir is at a URL,
            the tables that queries need are fetched into a cache directory: TFDBG_ARROW_CACHE_DIR, or `tfdbg_arrow` in
            the user's cache directory.
        storage_options: Options passed to fsspec for a URL. None means the options from the configuration of fsspec and
            of the store's client.
        skip_broken: Whether to leave out parts that do not match their manifest, and runs whose manifest is damaged.
            `Logdir.broken_parts` lists the parts that were left out. With this option, opening reads every part once.
        memory_limit: How much memory the queries may use: a number of bytes, or a size such as `500MB`. None means the
            value of the environment variable TFDBG_ARROW_MEMORY_LIMIT, or 2 GiB if the variable is not set. Queries
            that need more memory use temporary files. A query raises MemoryLimitError if temporary files do not help.

    Raises:
        LogdirError: The path does not exist, is a file, is empty, or is not a logdir, or the URL cannot be read.
        FormatVersionError: The logdir has a MAJOR format version that this package does not read.
        BrokenPartError: A part cannot be opened. The message names the part.
        MissingDependencyError: A package that is needed to open the URL is not installed.
        QueryError: The memory limit is not a size, or it is less than 32 MB.
    """
    return Logdir(path, storage_options=storage_options, skip_broken=skip_broken, memory_limit=memory_limit)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A report to display in a notebook.

    Attributes:
        html: The HTML element with the report.
        logdir: The logdir's path or URL.
    """

    html: str
    logdir: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"<report of {self.logdir}; display it in a notebook, or run `tfdbg-arrow report`>"


def _viewer() -> Any:
    try:
        return importlib.import_module("tfdbg_arrow.viewer.report")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"showing a logdir needs the package {error.name}; run: {install_command('viewer')}"
        ) from error
