"""The public views and the alert rules give the same rows on Spark as on DuckDB."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.query import builtin_rules, open_logdir, public_views
from tfdbg_arrow.query.spark import register
from tfdbg_arrow.schema import TABLES

from .builder import RunBuilder
from .test_alerts import CASES

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java"),
]


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run for each alert rule that it is for, and for each that it nearly is."""
    path = tmp_path_factory.mktemp("spark") / "logdir"
    for index, (_, build, _, nearly) in enumerate(CASES):
        for name, program in (("bad", build), ("nearly", nearly)):
            run = RunBuilder(f"run-{index:02}-{name}")
            stack = run.stack(
                ("/site/tensorflow/ops.py", 1, "log", None, "framework"), ("/home/me/train.py", 3, "f", "x", "user")
            )
            execution = run.execution("Log", inputs=[7], outputs={8: "float32"}, stack=stack)
            program(run)
            run.add("mark", event_index=execution, label="step", value="1")
            run.write(path)
    return path


@pytest.fixture(scope="module")
def spark(logdir: Path) -> Iterator[Any]:
    pyspark_sql = pytest.importorskip("pyspark.sql")  # installed for these tests alone
    session = (
        pyspark_sql.SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    register(session, logdir)
    yield session
    session.stop()


def _comparable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row that sorts: NULL as text, lists as tuples; floats to twelve digits, which sums may differ behind."""
    cells: list[Any] = []
    for cell in row:
        if isinstance(cell, float):
            cells.append(f"{cell:.12g}")
        elif isinstance(cell, (list, datetime.datetime, bytes, bytearray)):
            cells.append(str(bytes(cell) if isinstance(cell, bytearray) else cell))
        else:
            cells.append(cell)
    return tuple(str(cell) for cell in cells)


def _assert_same(spark: Any, logdir: Path, query: str) -> int:
    with open_logdir(logdir) as opened:
        columns, rows = opened.table(query)
    frame = spark.sql(query)
    assert tuple(frame.columns) == columns
    assert sorted(map(_comparable, (tuple(row) for row in frame.collect()))) == sorted(map(_comparable, rows))
    return len(rows)


@pytest.mark.parametrize("name", [table.name for table in TABLES])
def test_tables(spark: Any, logdir: Path, name: str) -> None:
    _assert_same(spark, logdir, f"SELECT * FROM {name}")


@pytest.mark.parametrize("name", [view.name for view in public_views()])
def test_views(spark: Any, logdir: Path, name: str) -> None:
    num_rows = _assert_same(spark, logdir, f"SELECT * FROM {name}")
    assert num_rows > 0 or name == "unobserved_output"


@pytest.mark.parametrize("rule", builtin_rules(), ids=lambda rule: rule.kind)
def test_rules(spark: Any, logdir: Path, rule: Any) -> None:
    assert _assert_same(spark, logdir, rule.sql()) > 0
