"""Test that DuckDB, Polars and pyarrow read the same rows of a real recording and that all references resolve."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from tfdbg_arrow.query import Logdir, open_logdir
from tfdbg_arrow.schema import TABLES, Column, Table, arrow_schema, parquet_options, table

from .programs.running import run_to_end

pytestmark = pytest.mark.slow

PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np
import tensorflow as tf
import tfdbg_arrow

every, realistic = sys.argv[1:]


@tf.function
def inner(x):
    return tf.nn.softmax(x)


@tf.function
def step(x, w):
    with tf.GradientTape() as tape:
        tape.watch(w)
        probs = inner(x @ w)
        total = tf.reduce_sum(tf.math.log(probs))
        for i in tf.range(3):
            total += tf.cast(i, tf.float32)
        if total > 0.0:
            total = total * 2.0
    return tape.gradient(total, w)


@tf.function(jit_compile=True)
def compiled(x):
    return x * 1e30


def program():
    w = tf.Variable([[3.0, -2000.0], [250.0, 1000.0]])
    for number in range(3):
        tfdbg_arrow.mark(step=number, phase="test")
        w.assign_sub(0.1 * step(tf.constant([[1.0, 2.0], [1.5, -0.5]]), w))
    compiled(tf.constant([1.0, 2.0]))
    tf.function(lambda x: tf.reduce_sum(tf.math.log(tf.abs(x))))(tf.constant([1.0, 2.0]))  # runs as one op
    for _ in tf.data.Dataset.from_tensor_slices({"age": [1.0, 2.0], "wage": [3.0, 4.0]}):
        pass
    tf.data.Dataset.range(4).map(lambda i: tf.sqrt(tf.cast(i, tf.float32) - 1.0)).reduce(0.0, lambda a, b: a + b)
    tf.math.log(tf.constant([[-1.0, 0.0, np.nan, np.inf, -np.inf, 1e-40, -1e38]]))
    with tf.GradientTape() as tape:
        tape.watch(w.value())
        loss = tf.reduce_sum(tf.square(w))
    tape.gradient(loss, w)
    layer = tf.keras.layers.Dense(2)
    layer(tf.constant([[1.0, 2.0]]))
    tf.function(layer)(tf.constant([[1.0, 2.0]]))
    elements = iter(tf.data.Dataset.from_tensor_slices([1.0, 0.0]).batch(2))
    tf.function(lambda elements: tf.math.log(next(elements)))(elements)
    try:
        tf.debugging.assert_all_finite(tf.math.log(tf.constant([-1.0])), "not finite")
    except tf.errors.InvalidArgumentError:
        pass


for mode, graphs in (("FULL_TENSOR", "traced"), ("FULL_NUMERICS", "executed")):
    with tfdbg_arrow.capture(every, mode, graphs=graphs, on_nonfinite="keep", histograms=mode == "FULL_TENSOR"):
        program()

tf.keras.utils.set_random_seed(1)
model = tf.keras.Sequential([
    tf.keras.layers.Input([20]),
    tf.keras.layers.Dense(32, activation="relu"),
    tf.keras.layers.BatchNormalization(),
    tf.keras.layers.Dense(32, activation="tanh"),
    tf.keras.layers.Dropout(0.2),
    tf.keras.layers.Dense(5, activation="softmax"),
])
model.compile("adam", "sparse_categorical_crossentropy")
x, y = np.random.normal(size=[800, 20]).astype("float32"), np.random.randint(5, size=800)
with tfdbg_arrow.capture(realistic):
    model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[tfdbg_arrow.MarkCallback()])
"""

Reader = Callable[[Path], pa.Table]


def read_with_duckdb(directory: Path) -> pa.Table:
    with duckdb.connect(":memory:") as connection:
        return connection.sql(f"SELECT * FROM read_parquet('{directory}/*/*.parquet')").to_arrow_table()


def read_with_polars(directory: Path) -> pa.Table:
    return pl.scan_parquet(directory).collect().to_arrow()


def read_with_pyarrow(directory: Path) -> pa.Table:
    return pyarrow.dataset.dataset(directory).to_table()


READERS = {"duckdb": read_with_duckdb, "polars": read_with_polars, "pyarrow": read_with_pyarrow}


@dataclass(frozen=True)
class Recorded:
    """Two logdirs: one of two runs with rows in every table, and one of a longer Keras training."""

    every: Path
    realistic: Path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    here = tmp_path_factory.mktemp("readers")
    (here / "program.py").write_text(textwrap.dedent(PROGRAM))
    made = Recorded(here / "every", here / "realistic")
    process = run_to_end(here / "program.py", made.every, made.realistic)
    assert process.returncode == 0, process.stderr
    return made


@pytest.fixture(scope="module")
def logdir(recorded: Recorded) -> Logdir:
    return open_logdir(recorded.every)


def in_order(data: pa.Table, of: Table) -> pa.Table:
    """Returns the rows with the declared types, sorted by key. A NaN, which does not equal itself, becomes a number."""
    schema = arrow_schema(of.name).remove_metadata()
    fields = [pa.field(field.name, field.type) for field in schema]
    data = data.select(schema.names).cast(pa.schema(fields)).sort_by([(name, "ascending") for name in of.key])
    for index, field in enumerate(fields):
        if pa.types.is_floating(field.type):
            column = data.column(index)
            data = data.set_column(index, field, pc.if_else(pc.is_nan(column), -(2.0**77), column))
    return data


class TestEveryTable:
    @pytest.mark.parametrize("name", [table.name for table in TABLES])
    def test_the_three_readers_agree_row_by_row(self, recorded: Recorded, logdir: Logdir, name: str) -> None:
        read = {who: in_order(reader(recorded.every / name), table(name)) for who, reader in READERS.items()}
        ((count,),) = logdir.rows(f'SELECT count(*) FROM "{name}"')
        assert count > 0
        assert {who: data.num_rows for who, data in read.items()} == dict.fromkeys(READERS, count)
        assert read["duckdb"].equals(read["pyarrow"])
        assert read["polars"].equals(read["pyarrow"])

    @pytest.mark.parametrize("name", [table.name for table in TABLES])
    def test_keys_are_unique_and_null_is_only_in_nullable_columns(self, logdir: Logdir, name: str) -> None:
        of = table(name)
        keys = ", ".join(of.key)
        assert logdir.rows(f'SELECT {keys} FROM "{name}" GROUP BY ALL HAVING count(*) > 1') == []
        nulls = {
            column.name: logdir.rows(f'SELECT count(*) FROM "{name}" WHERE "{column.name}" IS NULL')[0][0]
            for column in of.columns
            if not column.nullable
        }
        assert nulls == dict.fromkeys(nulls, 0)

    def test_every_table_has_rows_of_both_runs(self, logdir: Logdir) -> None:
        assert len(logdir.runs()) == 2
        runs = {table.name: logdir.rows(f'SELECT count(DISTINCT run_id) FROM "{table.name}"')[0][0] for table in TABLES}
        of_one = {"tensor_value": 1, "capture_stat": 1}
        assert runs == dict.fromkeys(runs, 2) | of_one


REFERENCES = [
    pytest.param(of, column, id=f"{of.name}.{column.name}")
    for of in TABLES
    for column in of.columns
    if column.references is not None
]


@pytest.mark.parametrize(("of", "column"), REFERENCES)
def test_a_reference_resolves(logdir: Logdir, of: Table, column: Column) -> None:
    assert column.references is not None
    target, _, target_column = column.references.partition(".")
    # The name of an op is unique only within its graph.
    graph = "forward_graph_id" if column.name == "forward_op_name" else "graph_id"
    same_graph = f" AND target.graph_id = source.{graph}" if target == "graph_op" else ""
    lost = logdir.rows(
        f'SELECT DISTINCT run_id, "{column.name}" FROM "{of.name}" AS source WHERE "{column.name}" IS NOT NULL '
        f'AND NOT EXISTS (SELECT 1 FROM "{target}" AS target WHERE target.run_id = source.run_id '
        f'AND target."{target_column}" = source."{column.name}"{same_graph})'
    )
    if (of.name, column.name) == ("tensor_health", "op_name"):
        # Nodes that TensorFlow's optimizer made are not ops of a graph of the program.
        made = logdir.rows("SELECT run_id, node_name FROM executed_op WHERE op_name IS NULL")
        assert lost
        lost = [row for row in lost if row not in made]
    assert lost == []
    ((pointing,),) = logdir.rows(f'SELECT count("{column.name}") FROM "{of.name}"')
    assert pointing > 0


FLOATING = [field.name for field in arrow_schema("tensor_health") if pa.types.is_floating(field.type)]
EVERY_7TH = slice(None, None, 7)


@pytest.fixture(scope="module")
def with_nan(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the recorded tensor_health with one NaN per row group in each floating-point column."""
    data = read_with_pyarrow(recorded.every / "tensor_health").select(arrow_schema("tensor_health").names)
    for name in FLOATING:
        values = data[name].to_pylist()
        values[EVERY_7TH] = [float("nan")] * len(values[EVERY_7TH])
        data = data.set_column(data.schema.get_field_index(name), name, [values])
    directory = tmp_path_factory.mktemp("with_nan") / "tensor_health"
    part = directory / "run=x" / "part-000000.parquet"
    part.parent.mkdir(parents=True)
    data = data.cast(arrow_schema("tensor_health"))
    pq.write_table(data, part, row_group_size=7, **parquet_options("tensor_health"))
    return directory


class TestNaN:
    """Queries for NaN. Floating-point columns have no min/max statistics, which omit NaN and which DuckDB prunes by."""

    @pytest.mark.parametrize("name", FLOATING)
    def test_is_nan(self, recorded: Recorded, with_nan: Path, name: str) -> None:
        for directory in (recorded.every / "tensor_health", with_nan):
            expected = int(np.isnan(read_with_pyarrow(directory)[name].drop_null().to_numpy()).sum())
            assert [ask(who, directory, name, "isnan") for who in READERS] == [expected] * 3
        assert expected >= len(range(num_health_rows(recorded))[EVERY_7TH])

    @pytest.mark.parametrize("name", FLOATING)
    def test_above_100(self, recorded: Recorded, with_nan: Path, name: str) -> None:
        for directory in (recorded.every / "tensor_health", with_nan):
            values = read_with_pyarrow(directory)[name].drop_null().to_numpy()
            expected = int((values > 100).sum())
            assert expected > 0
            assert [ask(who, directory, name, "above 100") for who in READERS] == [expected] * 3

    def test_the_counts_match_the_elements(self, logdir: Logdir) -> None:
        found = logdir.rows(
            "SELECT v.value, num_neg_inf, num_pos_inf, num_nan, num_neg_finite, num_zero, num_pos_finite "
            "FROM tensor_value AS v JOIN tensor_health USING (run_id, event_index) WHERE v.dtype = 'float32'"
        )
        assert sum(counts[2] for _, *counts in found) > 0
        for value, *counts in found:
            x = np.frombuffer(value, np.float32)
            finite = x[np.isfinite(x)]
            assert counts == [
                np.isneginf(x).sum(),
                np.isposinf(x).sum(),
                np.isnan(x).sum(),
                (finite < 0).sum(),
                (finite == 0).sum(),
                (finite > 0).sum(),
            ]


def num_health_rows(recorded: Recorded) -> int:
    return int(pyarrow.dataset.dataset(recorded.every / "tensor_health").count_rows())


def ask(who: str, directory: Path, name: str, what: str) -> int:
    """Returns how many values of a floating-point column are NaN, or above 100 and not NaN."""
    if who == "duckdb":
        condition = f"isnan({name})" if what == "isnan" else f"{name} > 100 AND NOT isnan({name})"
        with duckdb.connect(":memory:") as connection:
            query = f"SELECT count(*) FROM read_parquet('{directory}/*/*.parquet') WHERE {condition}"
            return int(connection.sql(query).fetchall()[0][0])
    if who == "polars":
        is_nan, above = pl.col(name).is_nan(), (pl.col(name) > 100) & ~pl.col(name).is_nan()
        return int(pl.scan_parquet(directory).filter(is_nan if what == "isnan" else above).collect().height)
    is_nan, above = pc.is_nan(pc.field(name)), pc.field(name) > 100
    return int(pyarrow.dataset.dataset(directory).to_table(filter=is_nan if what == "isnan" else above).num_rows)


def test_a_row_of_tensor_health_takes_at_most_16_bytes_on_disk(recorded: Recorded) -> None:
    directory = recorded.realistic / "tensor_health"
    num_rows = pyarrow.dataset.dataset(directory).count_rows()
    num_bytes = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    assert num_rows >= 20_000
    assert num_bytes / num_rows <= 16
