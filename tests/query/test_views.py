"""Test the public views: their documentation, their dependency order and their rows."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest

from tfdbg_arrow.query import View, open_logdir, public_views, views_sql

from .builder import NAN, START_NS, RunBuilder, counts


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a logdir with a call of a graph and an eager op. The ops of the graph run in two iterations."""
    run = RunBuilder("run-a")
    user = ("/home/me/train.py", 3, "loss", "return tf.math.log(x)", "user")
    outer = ("/home/me/main.py", 9, "<module>", "loss(x)", "user")
    library = ("/site/tensorflow/ops.py", 1, "log", None, "framework")
    in_function, at_call, nobody = run.stack(library, user, outer), run.stack(outer), run.stack(library)
    graph = run.graph("loss").op("x", "Square", stack=nobody).op("Log", inputs=["x"], stack=in_function)
    call = run.execution("__inference_loss_1", graph=graph, inputs=[5], outputs={6: "float32"}, stack=at_call)
    for iteration, zeros in enumerate((0, 2)):
        run.tensors(
            graph,
            {"x": counts(zero=zeros, pos=3), "Log": counts(neg_inf=zeros, pos=3)},
            execution=call,
            frame=1,
            iteration=iteration,
        )
    run.execution("Neg", outputs={8: "float32"}, stack=nobody)
    return run.write(tmp_path_factory.mktemp("views") / "logdir")


def rows(logdir: Path, query: str) -> list[tuple[object, ...]]:
    with open_logdir(logdir) as opened:
        return opened.rows(query)


@pytest.mark.parametrize("view", public_views(), ids=lambda view: view.name)
def test_the_comment_names_every_column(view: View, logdir: Path) -> None:
    assert view.comment.startswith("One row is ")
    if "every column of" in view.comment:
        return
    with open_logdir(logdir) as opened:
        columns = opened.table(f"SELECT * FROM {view.name} LIMIT 0")[0]
    missing = [name for name in columns if not re.search(rf"\b{name}\b", view.comment)]
    assert [name for name in missing if not (name.startswith("num_") and "the six counts" in view.comment)] == []


@pytest.mark.parametrize("view", public_views(), ids=lambda view: view.name)
def test_views_use_no_sql_that_only_duckdb_supports(view: View) -> None:
    # Each of these exists only in DuckDB or means something else in Spark.
    words = ["EXCLUDE", "QUALIFY", "FILTER", "ASOF", "UNNEST", "PRINTF", "TRY_CAST", "LIST_VALUE", "STRUCT_PACK"]
    assert re.search(rf"::|//|[\[{{]|GROUP BY ALL|\b({'|'.join(words)})\b", view.select, re.IGNORECASE) is None


def test_views_come_after_the_views_that_they_read() -> None:
    names = [view.name for view in public_views()]
    assert names.index("stack") < names.index("user_frame") < names.index("op_source") < names.index("graph_tensor")


@pytest.mark.slow
def test_the_script_for_other_clients_creates_views_with_the_same_rows(logdir: Path) -> None:
    with duckdb.connect() as plain, open_logdir(logdir) as opened:
        plain.execute(views_sql(str(logdir)))
        for view in public_views():
            query = f"SELECT * FROM {view.name} ORDER BY ALL"
            if view.is_computed:
                continue
            assert plain.sql(query).fetchall() == opened.rows(query)


def test_user_frame_is_the_innermost_frame_of_user_code(logdir: Path) -> None:
    assert rows(logdir, "SELECT stack_trace_id, depth, file_path, lineno FROM user_frame ORDER BY 1") == [
        (0, 1, "/home/me/train.py", 3),
        (1, 0, "/home/me/main.py", 9),
    ]


def test_op_source(logdir: Path) -> None:
    assert rows(
        logdir, "SELECT graph_name, op_name, op_type, file_path, lineno, code FROM op_source ORDER BY op_index"
    ) == [
        ("loss", "x", "Square", None, None, None),
        ("loss", "Log", "Log", "/home/me/train.py", 3, "return tf.math.log(x)"),
    ]


def test_execution_source_counts_bad_tensors_inside_a_call(logdir: Path) -> None:
    columns = "execution_index, op_type, graph_name, num_inputs, num_outputs, num_bad, file_path, wall_time_ns"
    assert rows(logdir, f"SELECT {columns} FROM execution_source ORDER BY 1") == [
        (0, "__inference_loss_1", "loss", 1, 1, 1, "/home/me/main.py", START_NS),
        (1, "Neg", None, 0, 1, 0, None, START_NS + 5000),
    ]


def test_op_health_sums_the_tensors_of_a_step(logdir: Path) -> None:
    columns = "graph_name, op_name, output_slot, num_tensors, num_bad, size, num_neg_inf, num_zero, num_pos_finite"
    assert rows(logdir, f"SELECT {columns} FROM op_health ORDER BY op_name") == [
        ("loss", "Log", 0, 2, 1, 8, 2, 0, 6),
        ("loss", "x", 0, 2, 0, 8, 0, 2, 6),
    ]


def test_graph_tensor_has_the_columns_of_tensor_health_and_the_source_line(logdir: Path) -> None:
    with open_logdir(logdir) as opened:
        columns = set(opened.table("SELECT * FROM graph_tensor LIMIT 0")[0])
        health = set(opened.table("SELECT * FROM tensor_health LIMIT 0")[0])
        found = opened.rows("SELECT op_name, iteration, num_neg_inf, lineno FROM graph_tensor ORDER BY event_index")
    assert health - columns == {"wall_time", "scope", "tensor_id", "device_id", "rank"}
    assert found == [("x", 0, 0, None), ("Log", 0, 0, 3), ("x", 1, 0, None), ("Log", 1, 2, 3)]


def test_layer_role_and_forward_op_are_in_the_views(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("root").op("x", "Sqrt").op("Grad", "SqrtGrad", inputs=["x"])
    label_of_gradient = {"layer": "model/norm", "role": "gradient", "forward_graph_id": 0, "forward_op_name": "x"}
    run.rows["graph_op"][-1].update(label_of_gradient)
    run.tensors(graph, {"x": counts(zero=1), "Grad": counts(pos_inf=1)})
    logdir = run.write(tmp_path)
    label = ("model/norm", "gradient")
    of_gradient = "layer, role, forward_graph_id, forward_op_name"
    for view in ("op_source", "graph_tensor", "gradient_op", "gradient_tensor", "nonfinite_tensor"):
        found = rows(logdir, f"SELECT {of_gradient} FROM {view} WHERE op_name = 'Grad'")
        assert found == [(*label, 0, "x")], view
    assert rows(logdir, "SELECT layer, role, num_bad FROM op_health WHERE op_name = 'Grad'") == [(*label, 1)]


def test_layer_and_role_of_an_eager_op_are_in_the_views(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    forward = run.execution("Sqrt", outputs={1: "float32"})
    back = run.execution("SqrtGrad", inputs=[1], outputs={2: "float32"})
    run.rows["execution"][back].update(layer="norm", role="gradient", forward_execution_index=forward)
    run.eager(back, NAN, tensor_id=2)
    logdir = run.write(tmp_path)
    labels = "layer, role, forward_execution_index"
    for view in ("nonfinite_tensor", "execution_source"):
        assert rows(logdir, f"SELECT {labels} FROM {view} WHERE op_type = 'SqrtGrad'") == [("norm", "gradient", 0)]
    assert rows(logdir, "SELECT layer, role FROM op_health") == [("norm", "gradient")]
