"""SparkLogdir: opens a logdir in Spark 4, for runs that are too large for one machine.

spark = SparkSession.builder.getOrCreate()
logdir = tfdbg_arrow.query.spark.SparkLogdir(spark, "/shared/logdir")
print(logdir.first_nonfinite())
logdir.session.sql("SELECT kind, count(*) FROM alert GROUP BY kind").show()
"""

from __future__ import annotations

import re
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tfdbg_arrow.errors import BrokenPartError, LogdirError, MissingDependencyError, QueryError, install_command
from tfdbg_arrow.query.answers import Answers
from tfdbg_arrow.query.logdir.local_parts import list_parts
from tfdbg_arrow.query.logdir.public_views import View, public_views
from tfdbg_arrow.schema import TABLES, Table, Type
from tfdbg_arrow.storage.location import RemoteLocation, parse_location
from tfdbg_arrow.storage.manifest import run_ids

if TYPE_CHECKING:
    import pyarrow as pa

_Result = TypeVar("_Result")

_TYPES = {
    Type.BIGINT: "BIGINT",
    Type.INTEGER: "INT",
    Type.DOUBLE: "DOUBLE",
    Type.VARCHAR: "STRING",
    Type.BOOLEAN: "BOOLEAN",
    Type.TIMESTAMP: "TIMESTAMP_NTZ",
    Type.BLOB: "BINARY",
    Type.BIGINT_LIST: "ARRAY<BIGINT>",
}
_SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # For more than 32 parts, Spark by default starts a job to list them, with one task for each part. Such a job is
    # several times slower.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
}
"""Settings of the session that runs the queries. Settings that affect the meaning of SQL have Spark's defaults."""
_FUNCTIONS = (
    "blob_prefix(value BINARY, n BIGINT) RETURNS BINARY RETURN substring(value, 1, CAST(n AS INT))",
    (
        "list_places(list ARRAY<BIGINT>) RETURNS ARRAY<INT> "
        "RETURN CASE WHEN size(list) > 0 THEN sequence(0, size(list) - 1) ELSE CAST(array() AS ARRAY<INT>) END"
    ),
    "list_at(list ARRAY<BIGINT>, place BIGINT) RETURNS BIGINT RETURN try_element_at(list, CAST(place + 1 AS INT))",
)
"""The functions that the queries need; see engine.py. `explode` is built into Spark."""
_MAX_ATTEMPTS = 20
"""Maximum number of attempts to run a query. Before a new attempt, the parts are listed again."""
_MAX_KEPT_ROWS = 100_000
"""Maximum number of cached rows. The cache saves a Spark job for each query that is repeated."""
_GLOB = re.compile(r"[]*?{}\\[]")


class SparkLogdir(Answers):
    """A logdir opened for reading in Spark. The query functions accept a `SparkLogdir` instead of a `Logdir`.

    Each table of the format and each public view is a temporary view over the parts that were live when the logdir was
    opened. `refresh` shows newer parts.

    Args:
        spark: A `pyspark.sql.SparkSession`, of Spark 4.
        logdir: The path of the logdir. Spark's workers must be able to read the same path.

    Attributes:
        path: The logdir.
        session: The Spark session that has the views: a new session on the cluster of the given session. Each session
            has its own views and SQL settings, so several logdirs can be open at the same time.

    Raises:
        LogdirError: The path is not a readable logdir.
        FormatVersionError: The logdir has a MAJOR format version that this package does not read.
        MissingDependencyError: PySpark is not installed.
    """

    def __init__(self, spark: Any, logdir: str | Path) -> None:
        self.path: Path | RemoteLocation = _local(logdir)
        self.session = spark.newSession()
        for name, value in _SETTINGS.items():
            self.session.conf.set(name, value)
        for function in _FUNCTIONS:
            self.session.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION {function}")
        self._parts: Mapping[str, tuple[str, ...]] = {}
        self._results: OrderedDict[tuple[object, ...], list[tuple[Any, ...]]] = OrderedDict()
        self._num_kept_rows = 0
        self.refresh()
        _register_views(self.session, self.path)

    def __repr__(self) -> str:
        return f"SparkLogdir({str(self.path)!r})"

    def refresh(self) -> None:
        """Reads the manifests again, so that the views show the parts that are live now.

        Raises:
            LogdirError: The path is no longer a logdir, or a manifest is damaged.
        """
        self._results.clear()
        self._num_kept_rows = 0
        self._parts = _register_tables(self.session, self.path)

    def rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Runs SQL over the views and returns every row; see `Engine.rows`.

        Results are cached until `refresh`. If the cache is full, the results that were not used for the longest time
        are removed.

        Raises:
            QueryError: Spark refuses the statement or a parameter.
            BrokenPartError: A part cannot be read.
        """
        # Include the types, because 1, 1.0 and True are equal as keys of a dict.
        key = (query, *((type(value), value) for value in parameters))
        rows = self._results.get(key)
        if rows is not None:
            self._results.move_to_end(key)
            return list(rows)
        rows = self.table(query, parameters)[1]
        self._results[key] = rows
        self._num_kept_rows += len(rows) + 1  # an empty result counts as one row, because it also takes space
        while self._num_kept_rows > _MAX_KEPT_ROWS:
            self._num_kept_rows -= len(self._results.popitem(last=False)[1]) + 1
        return list(rows)

    def table(self, query: str, parameters: Sequence[object] = ()) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Runs SQL over the views like `rows`, and returns (names of the columns, rows)."""

        def run() -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
            frame = self.session.sql(query, args=list(parameters))
            return tuple(frame.columns), [tuple(map(_plain, row)) for row in frame.collect()]

        return self._run(run)

    def extent(self, table_name: str) -> tuple[int, int, int]:
        """Returns the size of a table: (number of rows, number of parts, number of bytes of the parts)."""
        parts = [Path(part) for part in self._parts.get(table_name, ())]
        ((num_rows,),) = self.rows(f"SELECT count(*) FROM {table_name}")
        return num_rows, len(parts), sum(part.stat().st_size for part in parts if part.exists())

    def _run(self, action: Callable[[], _Result]) -> _Result:
        from py4j.protocol import Py4JError
        from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException

        for attempt in range(_MAX_ATTEMPTS):
            try:
                return action()
            except (PySparkException, Py4JError) as error:
                if isinstance(error, (AnalysisException, IllegalArgumentException)):
                    raise QueryError(_message(error)) from error
                # Compaction may remove a part after the parts were listed and before the part is read.
                if attempt < _MAX_ATTEMPTS - 1 and self._is_part_missing():
                    self.refresh()
                    continue
                raise self._reading_error(error) from error
        raise AssertionError("unreachable")

    def _is_part_missing(self) -> bool:
        return any(not Path(part).exists() for parts in self._parts.values() for part in parts)

    def _reading_error(self, error: Exception) -> QueryError | BrokenPartError:
        text = str(error)
        for part in (part for parts in self._parts.values() for part in parts):
            if "/".join(Path(part).parts[-3:]) in text:  # Spark escapes the first directories of the path as in a URL
                return BrokenPartError(
                    f"{part} cannot be read as Parquet ({_message(error)}); restore that file, or remove it and its "
                    f"line in {self.path}/manifest to read the rest."
                )
        return QueryError(_message(error))


def register(spark: Any, logdir: str | Path) -> None:
    """Creates a temporary view in a Spark session for every table and every public view.

    The views show the parts that are live now. To show newer parts or another logdir, call this function again.

    Args:
        spark: A `pyspark.sql.SparkSession`, of Spark 4.
        logdir: The path of the logdir. Spark's workers must be able to read the same path.

    Raises:
        LogdirError: The path is not a readable logdir.
        FormatVersionError: The logdir has a MAJOR format version that this package does not read.
        MissingDependencyError: PySpark is not installed.
    """
    path = _local(logdir)
    _register_tables(spark, path)
    _register_views(spark, path)


def _local(logdir: str | Path) -> Path:
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(f"PySpark is not installed; run: {install_command('spark')}") from error
    location = parse_location(logdir)
    if isinstance(location, RemoteLocation):
        raise LogdirError(
            f"logdir is {logdir}; expected a local path, because Spark and its workers read the parts as files. "
            "Mount the store, or copy the logdir."
        )
    return location.absolute()


def _register_tables(spark: Any, path: Path | RemoteLocation) -> Mapping[str, tuple[str, ...]]:
    assert isinstance(path, Path)
    parts = list_parts(path)
    for table in TABLES:
        _register_table(spark, table, path, parts.get(table.name, ()))
    return parts


def _register_views(spark: Any, path: Path | RemoteLocation) -> None:
    for view in public_views():
        if view.is_computed:
            _register_computed(spark, path, view)
        else:
            spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {view.name} AS\n{view.select}")


def _register_computed(spark: Any, path: Path | RemoteLocation, view: View) -> None:
    """Creates a computed view. When the view is read, each of Spark's workers computes the rows of some runs."""
    assert isinstance(path, Path)
    runs = [(run_id,) for run_id in run_ids(path)]
    frame = spark.createDataFrame(runs, "run_id STRING").repartition(max(len(runs), 1))
    schema = spark.sql(view.select).schema
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the warning is about pandas, which this package does not use
        rows = frame.mapInArrow(_Computed(str(path), view.name), schema)
    rows.createOrReplaceTempView(view.name)


class _Computed:
    """Computes the rows of a computed view, in a worker of Spark. Takes batches of run IDs."""

    def __init__(self, logdir: str, view: str) -> None:
        self._logdir, self._view = logdir, view

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from tfdbg_arrow.query.logdir.open_logdir import OpenLogdir

        with OpenLogdir(self._logdir) as logdir:
            for run_id in (run_id for batch in batches for run_id in batch.column(0).to_pylist()):
                yield from logdir.of_run(run_id).arrow(f"SELECT * FROM {self._view}").to_batches()


def _register_table(spark: Any, table: Table, path: Path, parts: Sequence[str]) -> None:
    # With an explicit schema, Spark opens no part before a query. Columns that parts of an older MINOR version do not
    # have are NULL.
    schema = ", ".join(f"`{column.name}` {_TYPES[column.type]}" for column in table.columns)
    if parts:
        # With the table's directory as base path, run_id is a partition column. A query about one run then opens only
        # the parts of that run.
        reader = spark.read.schema(schema).option("basePath", f"file://{path / table.name}")
        frame = reader.parquet(*(f"file://{_GLOB.sub(_escaped, part)}" for part in parts))
    else:
        frame = spark.createDataFrame([], schema)
    frame.select(*(column.name for column in table.columns)).createOrReplaceTempView(table.name)


def _escaped(character: re.Match[str]) -> str:
    return f"\\{character[0]}"


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def _message(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
