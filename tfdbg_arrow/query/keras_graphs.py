"""The user's names for the graphs that Keras makes from a model's steps."""

from __future__ import annotations

from tfdbg_arrow.query.engine import Engine

_CALLS = {
    "fit": "train",
    "train_on_batch": "train",
    "evaluate": "test",
    "test_on_batch": "test",
    "predict": "predict",
    "predict_on_batch": "predict",
}
"""For each Keras method that users call: the first word of the name of the model's attribute, such as `train_step`."""
_GRAPHS = {
    "one_step_on_data": "step",
    "one_step_on_data_distributed": "function",
    "multi_step_on_data": "function",
    "one_step_on_iterator": "function",
    "multi_step_on_iterator": "function",
}
"""For each function that Keras makes: the last word of the name of the model's attribute, such as `train_step`."""


def user_names(logdir: Engine, *, run_id: str) -> dict[int, str]:
    """Returns the user's names for the graphs that Keras made from a model's steps, by graph_id.

    A name is the name of the model's attribute, such as `train_step` or `train_function`. If all layers of the graph
    belong to one model, the name also contains the model's name, as in `train_step of digits`.
    """
    rows = logdir.kept_rows(
        "SELECT graph_id, graph_name, min_by(method, depth) FROM (SELECT g.graph_id, g.graph_name, s.depth, "
        "regexp_extract(s.func, '[^.]*$') AS method FROM graph AS g "
        "JOIN stack AS s ON s.run_id = g.run_id AND s.stack_trace_id = g.stack_trace_id "
        f"WHERE g.run_id = ? AND g.graph_name IN ({', '.join('?' * len(_GRAPHS))}) "
        "AND contains(s.file_path, 'keras')) AS called "
        f"WHERE method IN ({', '.join('?' * len(_CALLS))}) GROUP BY graph_id, graph_name",
        [run_id, *_GRAPHS, *_CALLS],
    )
    if not rows:
        return {}
    models = dict(
        logdir.kept_rows(
            "SELECT graph_id, min(model) FROM (SELECT DISTINCT graph_id, split_part(layer, '/', 1) AS model "
            "FROM graph_op WHERE run_id = ? AND contains(layer, '/') AND role = 'forward') AS m "
            "GROUP BY graph_id HAVING count(*) = 1",
            [run_id],
        )
    )
    return {
        graph_id: f"{_CALLS[method]}_{_GRAPHS[graph_name]}" + (f" of {models[graph_id]}" if graph_id in models else "")
        for graph_id, graph_name, method in rows
    }
