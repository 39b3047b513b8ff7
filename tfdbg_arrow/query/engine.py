"""Engine: what the queries of this package need of whatever runs their SQL.

`Logdir` is the engine on DuckDB, `tfdbg_arrow.query.spark.SparkLogdir` the one on Spark. Both run one SQL text, so
the views, the rules and every query of this package keep to what DuckDB 2.0 and Spark 4 run as written, and with
equal rows:

* parameters are `?` in order, each a number, a text, a truth value or None;
* `ORDER BY` says `NULLS FIRST` or `NULLS LAST` wherever there can be a NULL;
* a sum is cast to BIGINT, and `LIMIT` is at most MAX_ROWS;
* `blob_prefix(value, n)`, the first n bytes of a BLOB, is a function that each engine defines: the only thing asked
  for that the two have no common words for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from tfdbg_arrow.query.strange_rows import strange_rows_told
from tfdbg_arrow.schema.location import RemoteLocation

if TYPE_CHECKING:
    from tfdbg_arrow.query.alert_rules.answer import Alerts
    from tfdbg_arrow.query.bad_tensor import NonFinite
    from tfdbg_arrow.query.coverage import Coverage
    from tfdbg_arrow.query.history import HistoryRow
    from tfdbg_arrow.query.info import LogdirInfo, Run
    from tfdbg_arrow.query.provenance import Provenance
    from tfdbg_arrow.query.spread import Spread

_Kept = TypeVar("_Kept")

MAX_ROWS = 2**31 - 1
"""The greatest LIMIT: Spark's is an INTEGER."""


@runtime_checkable
class Engine(Protocol):
    """A logdir whose tables and public views can be asked in SQL.

    Attributes:
        path: The logdir.
    """

    path: Path | RemoteLocation

    def rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Runs SQL over the tables and public views and returns every row.

        Values are Python's own: lists for BIGINT[], bytes for BLOB, naive datetimes for TIMESTAMP, None for NULL.

        Args:
            query: One SELECT.
            parameters: Values for `?`, in order.

        Raises:
            QueryError: The statement or a parameter is refused.
            BrokenPartError: A part cannot be read.
        """

    def of_run(self, run_id: str) -> Engine:
        """Returns an engine for questions about one run, which may show no other; queries name the run all the same."""

    def kept(self, _: Hashable, make: Callable[[], _Kept]) -> _Kept:
        """Returns what a reader made of the rows; an engine may keep it for the next one, until the parts change.

        Args:
            _: What it is.
            make: Makes it.
        """
        return make()

    def kept_rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Returns what `rows` does; an engine may keep it for whoever asks the same again, until the parts change.

        It is for answers of at most some thousand rows.
        """
        return self.rows(query, parameters)

    def check_time(self) -> None:
        """Raises TimeLimitError if the time for the queries is over; loops that ask no query call it."""

    def extent(self, table_name: str) -> tuple[int, int, int]:
        """Returns how much a table is: rows, parts and their bytes."""


class Answers(Engine, Protocol):
    """The questions that every engine answers, as methods."""

    def of_run(self, run_id: str) -> Engine:
        """Returns an engine for questions about one run: this one, where reading one run alone brings nothing."""
        return self

    def runs(self) -> tuple[Run, ...]:
        """Returns the runs in the logdir, oldest first."""
        from tfdbg_arrow.query.info import read_runs

        with strange_rows_told(self.path):
            return read_runs(self)

    def info(self) -> LogdirInfo:
        """Returns what the logdir holds: runs, rows and bytes of each table, the range of time, the bad tensors."""
        from tfdbg_arrow.query.info import read_info

        with strange_rows_told(self.path):
            return read_info(self)

    def coverage(self, *, run_id: str | None = None) -> Coverage:
        """Returns what the recording did not look at, and why; see `tfdbg_arrow.query.coverage`."""
        from tfdbg_arrow.query.coverage import coverage

        return coverage(self, run_id=run_id)

    def nonfinite(
        self, *, kinds: Iterable[str] = ("nan", "inf"), run_id: str | None = None, limit: int | None = 1000
    ) -> list[NonFinite]:
        """Returns the bad tensors by arrival; see `tfdbg_arrow.nonfinite`."""
        from tfdbg_arrow.query.nonfinite import nonfinite

        return nonfinite(self, kinds=kinds, run_id=run_id, limit=limit)

    def first_nonfinite(self, *, kinds: Iterable[str] = ("nan", "inf"), run_id: str | None = None) -> NonFinite | None:
        """Returns the earliest origin of a bad value; see `tfdbg_arrow.first_nonfinite`."""
        from tfdbg_arrow.query.nonfinite import first_nonfinite

        return first_nonfinite(self, kinds=kinds, run_id=run_id)

    def provenance(self, event_index: int, *, run_id: str | None = None, limit: int = 1000) -> Provenance:
        """Returns how a bad tensor came about; see `tfdbg_arrow.query.provenance`."""
        from tfdbg_arrow.query.provenance import provenance

        return provenance(self, event_index, run_id=run_id, limit=limit)

    def spread(self, event_index: int, *, run_id: str | None = None, limit: int = 1000) -> Spread:
        """Returns what a bad tensor spoilt; see `tfdbg_arrow.query.spread`."""
        from tfdbg_arrow.query.spread import spread

        return spread(self, event_index, run_id=run_id, limit=limit)

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
        """Returns what chosen tensors held, over time; see `tfdbg_arrow.query.history`."""
        from tfdbg_arrow.query.history import history

        return history(self, pattern, steps=steps, run_id=run_id, after=after, limit=limit, num_values=num_values)

    def alerts(
        self,
        *,
        kinds: Iterable[str] | None = None,
        parameters: Mapping[str, Mapping[str, float]] | None = None,
        rules_directory: str | Path | None = None,
        run_id: str | None = None,
        limit: int = 100,
    ) -> Alerts:
        """Returns what alert rules find; see `tfdbg_arrow.query.alerts`."""
        from tfdbg_arrow.query.alert_rules.answer import alerts

        return alerts(
            self, kinds=kinds, parameters=parameters, rules_directory=rules_directory, run_id=run_id, limit=limit
        )
