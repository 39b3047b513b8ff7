"""Engine: the interface that the queries of this package need from a SQL engine.

`Logdir` is the engine on DuckDB, `tfdbg_arrow.query.spark.SparkLogdir` the one on Spark. Both run the same SQL text.
Therefore the views, the rules and every query of this package only use SQL that DuckDB 2.0 and Spark 4 both run as
written, with equal rows:

* parameters are `?` in order, each a number, a text, a boolean or None;
* `ORDER BY` says `NULLS FIRST` or `NULLS LAST` wherever there can be a NULL;
* a sum is cast to BIGINT, and `LIMIT` is at most MAX_ROWS;
* each engine defines a few functions, because the two have no common syntax for them: `blob_prefix(value, n)` returns
  the first n bytes of a BLOB, `list_places(list)` a list of the places of a list's elements, from 0,
  `list_at(list, place)` the element at a place, and `explode(list)` makes one row for each element.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from tfdbg_arrow.errors import LogdirError, TfdbgArrowError
from tfdbg_arrow.safe_text import is_stack_used_up
from tfdbg_arrow.storage.location import RemoteLocation

if TYPE_CHECKING:
    from tfdbg_arrow.query.alert_rules.answer import Alerts
    from tfdbg_arrow.query.asked_runs import AboutRuns
    from tfdbg_arrow.query.bad_tensor import NonFinite
    from tfdbg_arrow.query.coverage import Coverage
    from tfdbg_arrow.query.info import LogdirInfo, Run
    from tfdbg_arrow.query.model_health import Distributions, LayerDifferences, LayerHealth, TrainingCurves
    from tfdbg_arrow.query.tensor_history import HistoryRow
    from tfdbg_arrow.query.trace_back import Provenance
    from tfdbg_arrow.query.trace_forward import Spread

_Kept = TypeVar("_Kept")
MAX_ROWS = 2**31 - 1
"""The greatest LIMIT. In Spark it is an INTEGER."""
_STUMBLES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError)
_READERS = frozenset(("tfdbg_arrow", "json", "re", "numpy", "pyarrow", "duckdb"))
"""Packages in which strange rows can raise errors. An error from a callback of the caller is passed on unchanged."""


@runtime_checkable
class Engine(Protocol):
    """A logdir whose tables and public views can be queried in SQL.

    Attributes:
        path: The logdir.
    """

    path: Path | RemoteLocation

    def rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Runs SQL over the tables and public views and returns every row.

        Values are native Python values: lists for BIGINT[], bytes for BLOB, naive datetimes for TIMESTAMP, None for
        NULL.

        Args:
            query: One SELECT.
            parameters: Values for `?`, in order.

        Raises:
            QueryError: The statement or a parameter is refused.
            BrokenPartError: A part cannot be read.
        """

    def of_run(self, run_id: str) -> Engine:
        """Returns an engine for queries about one run. It may only show this run, but queries still name the run."""

    def kept(self, _: Hashable, make: Callable[[], _Kept]) -> _Kept:
        """Returns what a reader made from the rows. An engine may cache it until the parts change.

        Args:
            _: The cache key.
            make: Makes the value.
        """
        return make()

    def kept_rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Returns the same as `rows`. An engine may cache the result until the parts change.

        Use it for results of at most some thousand rows.
        """
        return self.rows(query, parameters)

    def check_time(self) -> None:
        """Raises TimeLimitError if the time for queries is over. Long loops without queries call it."""

    def extent(self, table_name: str) -> tuple[int, int, int]:
        """Returns the size of a table: number of rows, number of parts, bytes of the parts."""


class Answers(Engine, Protocol):
    """The queries that every engine answers, as methods."""

    def of_run(self, run_id: str) -> Engine:
        """Returns an engine for queries about one run: this one, unless reading only one run has a benefit."""
        return self

    def runs(self) -> tuple[Run, ...]:
        """Returns the runs in the logdir, oldest first."""
        from tfdbg_arrow.query.info import read_runs

        with strange_rows_told(self.path):
            return read_runs(self)

    def about_runs(self, *, run_id: str | None = None) -> AboutRuns:
        """Returns which runs the answers are about, and what the other runs hold.

        Args:
            run_id: As for the other methods: the run, or "all". None means the newest run, with the other processes of
                its program.
        """
        from tfdbg_arrow.query.asked_runs import about_runs

        with strange_rows_told(self.path):
            return about_runs(self, run_id)

    def info(self) -> LogdirInfo:
        """Returns a summary: runs, rows and bytes of each table, the range of time, the number of bad tensors."""
        from tfdbg_arrow.query.info import read_info

        with strange_rows_told(self.path):
            return read_info(self)

    def coverage(self, *, run_id: str | None = None) -> Coverage:
        """Returns what the recording did not examine, and why; see `tfdbg_arrow.query.coverage`."""
        from tfdbg_arrow.query.coverage import coverage

        return coverage(self, run_id=run_id)

    def nonfinite(
        self, *, kinds: Iterable[str] = ("nan", "inf"), run_id: str | None = None, limit: int | None = 1000
    ) -> list[NonFinite]:
        """Returns the bad tensors in order of arrival; see `tfdbg_arrow.nonfinite`."""
        from tfdbg_arrow.query.nonfinite_search import nonfinite

        return nonfinite(self, kinds=kinds, run_id=run_id, limit=limit)

    def first_nonfinite(self, *, kinds: Iterable[str] = ("nan", "inf"), run_id: str | None = None) -> NonFinite | None:
        """Returns the earliest origin of a bad value; see `tfdbg_arrow.first_nonfinite`."""
        from tfdbg_arrow.query.nonfinite_search import first_nonfinite

        return first_nonfinite(self, kinds=kinds, run_id=run_id)

    def provenance(self, tensor: NonFinite | int, *, run_id: str | None = None, limit: int = 1000) -> Provenance:
        """Returns the path of a bad tensor back to its origins; see `tfdbg_arrow.query.provenance`."""
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
    ) -> list[HistoryRow]:
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
        """Returns how the elements of tensors are distributed; see `tfdbg_arrow.query.distributions`."""
        from tfdbg_arrow.query.model_health import distributions

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
        """Compares the layers of a run with those of a run of this or another logdir.

        See `tfdbg_arrow.query.layer_differences`.
        """
        from tfdbg_arrow.query.model_health import layer_differences

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


def sql_literal(value: object) -> str:
    """Returns a Python value as a literal in DuckDB's SQL. Values of other types than SQL has become text."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return f"from_hex('{value.hex()}')"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(sql_literal, value))}]"
    return "'" + str(value).replace("'", "''") + "'"


@contextlib.contextmanager
def strange_rows_told(path: Path | RemoteLocation) -> Iterator[None]:
    """Turns errors of the block that strange rows cause into one LogdirError.

    The tables guarantee much (no NULL in most columns, references that lead to existing rows), and the code of the
    queries relies on it. A logdir from an untrusted source need not follow these guarantees.

    Raises:
        LogdirError: Code of this package failed on a value.
    """
    try:
        yield
    except TfdbgArrowError:
        raise
    except _STUMBLES as error:
        if isinstance(error, RecursionError) and is_stack_used_up():
            raise
        *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
        if str(innermost.f_globals.get("__name__")).partition(".")[0] not in _READERS:
            raise
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise LogdirError(
            f"the rows of {path} do not fit together ({what[:200]}): tfdbg_arrow does not write such rows, unless it "
            "has a bug; `tfdbg-arrow verify` compares the parts with their checksums."
        ) from error
