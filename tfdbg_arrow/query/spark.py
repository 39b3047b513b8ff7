"""Spark: the tables and public views of a logdir in a Spark session, for runs that one machine cannot hold.

spark = SparkSession.builder.getOrCreate()
tfdbg_arrow.query.spark.register(spark, "/shared/logdir")
spark.sql("SELECT kind, count(*) FROM alert GROUP BY kind").show()
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfdbg_arrow.errors import MissingDependencyError
from tfdbg_arrow.query.opening import list_parts
from tfdbg_arrow.query.public_views import public_views
from tfdbg_arrow.schema import TABLES, Table, Type

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


def register(spark: Any, logdir: str | Path) -> None:
    """Makes a temporary view of every table, and of every public view, in a Spark session.

    They hold the parts that are live now; register again to see what came since.

    Args:
        spark: A `pyspark.sql.SparkSession`, of Spark 4.
        logdir: The logdir, at a path that Spark's workers see too.

    Raises:
        LogdirError: The path is not a logdir that can be read.
        MissingDependencyError: PySpark is not installed.
    """
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("PySpark is not installed; run: pip install 'tfdbg-arrow[spark]'") from error
    parts = list_parts(Path(logdir).absolute())
    for table in TABLES:
        _register_table(spark, table, parts.get(table.name, ()))
    for view in public_views():
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {view.name} AS\n{view.select}")


def _register_table(spark: Any, table: Table, parts: tuple[str, ...]) -> None:
    # Given whole, so that parts of an older MINOR version have NULL in the columns that they lack.
    schema = ", ".join(f"`{column.name}` {_TYPES[column.type]}" for column in table.columns)
    frame = spark.read.schema(schema).parquet(*parts) if parts else spark.createDataFrame([], schema)
    frame.createOrReplaceTempView(table.name)
