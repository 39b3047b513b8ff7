"""A recording of sessions changes nothing that the program sees."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.writer.hooks import runtime
from tfdbg_arrow.writer.recording.session_runs import SessionRuns

from .tables import rows
from .tf1_programs import Program, behaviour, unoptimized

tf1 = tf.compat.v1
X = np.float32([[1.0, 2.0], [3.0, 4.0]])


def graph_rows(logdir: Path) -> Counter[tuple[int | None, str]]:
    """Returns the number of rows of each op in each execution."""
    return Counter(
        (row["execution_index"], row["op_name"]) for row in rows(logdir, "tensor_health") if row["scope"] == "graph"
    )


def own_ops(graph_def: Any) -> list[str]:
    return [node.name for node in graph_def.node if "tfdbg" in node.op.lower() or "tfdbg" in node.name]


def small_graph() -> tuple[Any, Any]:
    x = tf1.placeholder(tf.float32, [None, 2], name="x")
    return x, tf.reduce_sum(tf.square(x, name="square"), name="total")


def test_a_run_is_an_execution_with_its_feeds_and_fetches(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path), tf.Graph().as_default():
        x, total = small_graph()
        with tf1.Session() as session:
            for scale in (1.0, 2.0):
                tfdbg_arrow.mark(step=int(scale))
                session.run([total, {"same": total, "x": x}, total.op], {x: X * scale})

    executions = rows(tmp_path, "execution")
    assert [(row["op_type"], row["num_inputs"], row["num_outputs"], row["step"]) for row in executions] == [
        ("Session.run_0", 1, 1, 1),
        ("Session.run_0", 1, 1, 2),
    ]
    assert len({row["graph_id"] for row in executions}) == 1
    (function,) = rows(tmp_path, "graph_function")
    assert (function["session_index"], function["session_targets"]) == (0, '["total"]')
    (fed,) = rows(tmp_path, "graph_function_input")
    assert (fed["op_name"], fed["output_slot"], fed["is_capture"]) == ("x", 0, False)
    (fetched,) = rows(tmp_path, "graph_function_output")
    assert (fetched["op_name"], fetched["output_slot"]) == ("total", 0)
    health = rows(tmp_path, "tensor_health")
    assert Counter((row["scope"], row["execution_index"]) for row in health if row["op_name"] != "Const") == {
        ("external", 0): 1,
        ("graph", 0): 3,
        ("execution", 0): 1,
        ("external", 1): 1,
        ("graph", 1): 3,
        ("execution", 1): 1,
    }
    ids = [row["tensor_id"] for row in rows(tmp_path, "execution_input") + rows(tmp_path, "execution_output")]
    assert len(set(ids)) == 4
    assert {tuple(row["shape"]) for row in health if row["op_name"] == "x"} == {(2, 2)}


def test_every_way_to_run(tmp_path: Path) -> None:
    def ways(session: Any, x: Any, total: Any, fixed: Any) -> list[Any]:
        metadata = tf1.RunMetadata()
        options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        found = [
            session.run(total, {x: X}, options=options, run_metadata=metadata),
            total.eval({x: X}, session),
            session.run((), {}),
            session.run([[], {"a": (fixed,), "b": "fixed:0"}]),
            session.make_callable(total, [x])(X),
            session.make_callable(fixed)(),
            session.make_callable(fixed.op)(),
            session.make_callable([fixed, {"y": fixed}])(),
            session.make_callable(fixed, accept_options=True)(options=options, run_metadata=tf1.RunMetadata()),
        ]
        callable_options = _callable_options(["x:0"], ["total:0"], ["fixed"])
        prepared = session._make_callable_from_options(callable_options)
        found += [prepared(X), prepared(X * 2.0)]
        assert len(metadata.step_stats.dev_stats) > 0
        return found

    def program() -> list[Any]:
        with tf.Graph().as_default(), tf1.Session() as session:
            x, total = small_graph()
            return ways(session, x, total, tf.constant([1.5, 2.5], name="fixed"))

    bare = program()
    with tfdbg_arrow.capture(tmp_path):
        recorded = program()
    assert str(recorded) == str(bare)
    assert rows(tmp_path, "capture_stat") == []
    assert len(rows(tmp_path, "execution")) == 10
    counts = graph_rows(tmp_path)
    assert sum(times for (_, name), times in counts.items() if name == "total") == 5
    assert sum(times for (_, name), times in counts.items() if name == "fixed") == 7
    assert set(counts.values()) == {1}


def _callable_options(feeds: list[str], fetches: list[str], targets: list[str]) -> Any:
    from tensorflow.core.protobuf import config_pb2

    return config_pb2.CallableOptions(feed=feeds, fetch=fetches, target=targets)


def test_errors_of_the_program_do_not_change(tmp_path: Path) -> None:
    def errors() -> list[tuple[str, str]]:
        found = []
        with tf.Graph().as_default(), tf1.Session() as session:
            x, total = small_graph()
            variable = tf1.get_variable("variable", [], use_resource=False)
            checked = tf1.check_numerics(x, "checked")
            queue = tf.queue.FIFOQueue(1, tf.float32)
            close = queue.close()
            requests: list[tuple[Any, Any]] = [
                (total, {}),
                (variable + 1.0, {}),
                (checked, {x: np.float32([[np.nan, 1.0]])}),
                (total, {x: np.float32([1.0])}),
                ("nothing:0", {}),
                (tf.gather([1.0], 5), {}),
            ]
            for fetches, feeds in requests:
                with pytest.raises(Exception) as caught:  # noqa: PT011
                    session.run(fetches, feeds)
                found.append((caught.type.__name__, str(caught.value).partition("\n")[0]))
            session.run(close)
            with pytest.raises(tf.errors.OutOfRangeError) as closed:
                session.run(queue.dequeue())
            found.append((closed.type.__name__, str(closed.value).partition("\n")[0].partition("' is closed")[0]))
            session.run(total, {x: X})
        with pytest.raises(RuntimeError, match="closed Session"):
            session.run(total, {x: X})
        return found

    bare = errors()
    with tfdbg_arrow.capture(tmp_path):
        recorded = errors()
    assert recorded == bare
    assert rows(tmp_path, "capture_stat") == []


def test_saved_graphs_hold_no_record_ops(tmp_path: Path) -> None:
    logdir = tmp_path / "logdir"
    with tfdbg_arrow.capture(logdir), tf.Graph().as_default() as graph:
        x, total = small_graph()
        variable = tf1.get_variable("variable", [2])
        output = total + variable
        saver = tf1.train.Saver()
        before = graph.as_graph_def(add_shapes=True)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            expected = session.run(output, {x: X})
            after = graph.as_graph_def(add_shapes=True)
            path = saver.save(session, str(tmp_path / "model"))
            meta = tf1.train.export_meta_graph(str(tmp_path / "exported.meta"))
            tf1.saved_model.simple_save(session, str(tmp_path / "saved"), {"x": x}, {"output": output})
            frozen = tf1.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), ["add"])
            (imported,) = tf.import_graph_def(frozen, {"x": x}, ["add:0"], name="imported")
            np.testing.assert_array_equal(session.run(imported, {x: X}), expected)
    assert len(before.node) < len(after.node)  # the initializer was added
    for graph_def in (before, after, meta.graph_def, frozen, graph.as_graph_def()):
        assert own_ops(graph_def) == []
    files = [path for path in tmp_path.rglob("*") if path.is_file() and logdir not in path.parents]
    assert len(files) > 6
    for file in files:
        assert b"tfdbg" not in file.read_bytes().lower(), file
    with tf.Graph().as_default(), tf1.Session() as session:
        restored = tf1.train.import_meta_graph(path + ".meta")
        restored.restore(session, path)
        np.testing.assert_array_equal(session.run("add:0", {"x:0": X}), expected)
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.saved_model.load(session, ["serve"], str(tmp_path / "saved"))
        np.testing.assert_array_equal(session.run("add:0", {"x:0": X}), expected)
    assert rows(logdir, "capture_stat") == []


def test_a_monitored_session_with_its_hooks(tmp_path: Path) -> None:
    def train(directory: Path) -> list[Any]:
        seen: list[Any] = []

        class Seeing(tf1.train.SessionRunHook):  # type: ignore[misc, name-defined]
            def before_run(self, run_context: Any) -> Any:
                return tf1.train.SessionRunArgs({"loss": loss})

            def after_run(self, run_context: Any, run_values: Any) -> None:
                seen.append(run_values.results["loss"].tobytes())

        with behaviour(Program(build=list)), tf.Graph().as_default() as graph:
            tf1.set_random_seed(1)
            x = tf1.placeholder(tf.float32, [None, 2], name="x")
            weights = tf1.get_variable("weights", [2, 1])
            loss = tf.reduce_mean(tf.square(x @ weights - 1.0), name="loss")
            step = tf1.train.get_or_create_global_step()
            train_op = tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=step)
            hooks = [tf1.train.StopAtStepHook(last_step=5), Seeing(), tf1.train.NanTensorHook(loss)]
            with tf1.train.MonitoredTrainingSession(
                checkpoint_dir=str(directory), hooks=hooks, save_checkpoint_steps=2, config=unoptimized()
            ) as session:
                assert graph.finalized
                while not session.should_stop():
                    seen.append(session.run([train_op, loss], {x: X})[1].tobytes())
        assert tf.train.latest_checkpoint(str(directory)) is not None
        return seen

    bare = train(tmp_path / "bare")
    with tfdbg_arrow.capture(tmp_path / "logdir"):
        recorded = train(tmp_path / "recorded")
    assert recorded == bare
    assert rows(tmp_path / "logdir", "capture_stat") == []
    counts = graph_rows(tmp_path / "logdir")
    assert [times for (_, name), times in counts.items() if name == "loss"] == [1] * 5
    for file in (tmp_path / "recorded").rglob("*"):
        assert b"tfdbg" not in file.read_bytes().lower(), file


def test_a_graph_that_grows_between_runs(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path), tf.Graph().as_default() as graph, tf1.Session() as session:
        x, total = small_graph()
        first = session.run(total, {x: X})
        with graph.name_scope("later"), tf.control_dependencies([tf.no_op()]):
            more = tf.multiply(total, 2.0, name="more")
            (gradient,) = tf.gradients(more, x)
            assert session.run(more, {x: X}) == 2 * first
        np.testing.assert_array_equal(session.run(gradient, {x: X}), 4.0 * X)
        assert {op.type for op in total.consumers()} >= {"Mul"}
    names = {row["op_name"] for row in rows(tmp_path, "graph_op")}
    assert {"x", "square", "total", "later/more"} <= names
    assert not any("tfdbg" in name for name in names)
    counts = graph_rows(tmp_path)
    assert [counts[execution, "total"] for execution in range(3)] == [1, 1, 0]
    assert counts[1, "later/more"] == 1


def test_threads_and_sessions_with_one_graph_are_distinguished(tmp_path: Path) -> None:
    """Each thread feeds its own number of zeros, so a row that is joined to the wrong run has a wrong count."""
    num_threads, num_runs, size = 4, 25, 32
    fed: dict[int, int] = {}
    with tfdbg_arrow.capture(tmp_path), tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [size], name="x")
        _, result = tf1.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, tf.reverse(a * 2.0, [0])), [0, x])
        sessions = [tf1.Session(graph=graph), tf1.Session(graph=graph)]
        barrier = threading.Barrier(num_threads)

        def work(index: int) -> None:
            fed[threading.get_ident()] = index
            barrier.wait()
            for _ in range(num_runs):
                value = sessions[index % 2].run(result, {x: np.float32(np.arange(size) >= index)})
                assert int((value == 0).sum()) == index

        threads = [threading.Thread(target=work, args=(index,)) for index in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    executions = {row["execution_index"]: fed[row["thread_id"]] for row in rows(tmp_path, "execution")}
    assert len(executions) == num_threads * num_runs
    products = [row for row in rows(tmp_path, "tensor_health") if row["op_type"] in ("Mul", "ReverseV2")]
    assert len(products) == num_threads * num_runs * 6
    joined = [row for row in products if row["execution_index"] is not None]
    assert all(row["num_zero"] == executions[row["execution_index"]] for row in joined)
    assert len(joined) > 0.95 * len(products)


def test_sessions_work_after_the_recording(tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        x, total = small_graph()
        variable = tf1.get_variable("variable", [], initializer=tf.zeros_initializer())
        bump = variable.assign_add(1.0)
        session.run(variable.initializer)
        for logdir in ("one", "two"):
            with tfdbg_arrow.capture(tmp_path / logdir):
                session.run([total, bump], {x: X})
                prepared = session.make_callable(total, [x])
                raw = session._make_callable_from_options(_callable_options(["x:0"], ["total:0"], []))
                assert prepared(X) == raw(X)[0] == 30.0
            assert prepared(X) == raw(X)[0] == 30.0
            assert session.run(total, {x: X}) == 30.0
        assert session.run(variable) == 2.0
    for logdir in ("one", "two"):
        counts = graph_rows(tmp_path / logdir)
        assert [counts[execution, "total"] for execution in range(4)] == [1, 1, 1, 0]
        assert set(counts.values()) == {1}
        assert rows(tmp_path / logdir, "capture_stat") == []


def test_a_recording_that_ends_during_a_run(tmp_path: Path) -> None:
    begun, may_go = threading.Event(), threading.Event()

    def wait(value: Any) -> Any:
        begun.set()
        assert may_go.wait(30)
        return value

    results: list[Any] = []
    with tf.Graph().as_default(), tf1.Session() as session:
        x, total = small_graph()
        slow = tf.numpy_function(wait, [total], tf.float32)
        result = slow + 1.0
        tfdbg_arrow.enable(tmp_path)
        thread = threading.Thread(target=lambda: results.append(session.run(result, {x: X})))
        thread.start()
        assert begun.wait(30)
        tfdbg_arrow.disable()
        may_go.set()
        thread.join()
        assert results == [31.0]
        assert session.run(result, {x: X}) == 31.0
    assert len(rows(tmp_path, "execution")) == 1
    assert [row["is_clean_end"] for row in rows(tmp_path, "run")] == [True]


def test_a_session_that_cannot_be_recorded_is_reported(tmp_path: Path) -> None:
    server = tf1.train.Server.create_local_server()
    with tfdbg_arrow.capture(tmp_path), tf.Graph().as_default():
        x, total = small_graph()
        with tf1.Session() as session:
            with pytest.warns(RuntimeWarning, match="partial_run"):
                handle = session.partial_run_setup([total], [x])
            assert session.partial_run(handle, total, {x: X}) == 30.0
        with tf1.Session(server.target) as remote:
            with pytest.warns(RuntimeWarning, match="server"):
                assert remote.run(total, {x: X}) == 30.0
            assert remote.run(total, {x: X}) == 30.0
    stats = [(row["stat"], row["subject"].split("(")[0]) for row in rows(tmp_path, "capture_stat")]
    assert stats == [("unobservable", "Session.partial_run"), ("unobservable", "Session")]
    assert rows(tmp_path, "execution") == []


def test_a_failure_of_the_recorder_does_not_affect_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(SessionRuns, "_make_plan", fail)
    with tfdbg_arrow.capture(tmp_path), tf.Graph().as_default(), tf1.Session() as session:
        x, total = small_graph()
        with pytest.warns(RuntimeWarning, match="could not be instrumented: ValueError: broken") as warned:
            results = [session.run(total, {x: X}), session.run(total, {x: X})]
    assert results == [30.0] * 2
    assert len([warning for warning in warned if "broken" in str(warning.message)]) == 1
    assert [row["stat"] for row in rows(tmp_path, "capture_stat")] == ["failed"]


@pytest.mark.parametrize("is_in_a_loop", [False, True])
def test_tensors_on_a_gpu_inside_loops_are_listed(
    is_in_a_loop: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tfdbg_arrow.capture(tmp_path), tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [])
        y = tf.while_loop(lambda x: x < 9.0, lambda x: (x * 2.0,), [x])[0] if is_in_a_loop else x * 2.0
        monkeypatch.setattr(runtime, "has_accelerator", lambda: True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            session.run(y, {x: 1.0})
    found = [
        (row["stat"], row["subject"], "on the GPU inside" in row["reason"]) for row in rows(tmp_path, "capture_stat")
    ]
    assert found == [("unobservable", "Session", True)] * is_in_a_loop
