"""A recording starts, stops and starts again without disturbing the program."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute
from tensorflow.python.eager.polymorphic_function import atomic_function, function_context
from tensorflow.python.ops import script_ops

import tfdbg_arrow
from tfdbg_arrow.errors import LogdirError, RecordingError
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.writer.hooks import runtime
from tfdbg_arrow.writer.sink.sink import Sink

from .lifecycle import X, doubling, num_graph_rows, stats
from .subprocesses import run_python
from .tables import rows

FINALIZER_WHILE_ROWS_ARE_ADDED = """
    import queue
    import sys
    import threading

    import tensorflow as tf

    import tfdbg_arrow
    from tfdbg_arrow.spool.journal import Journal

    append = Journal.append
    in_other_thread, in_finalizer = tf.negative, tf.abs
    is_tracing = has_run = False
    to_run, have_run = queue.Queue(), queue.Queue()

    def run():
        for function in iter(to_run.get, None):
            have_run.put(function(1.0))

    def append_while_another_thread_adds_rows(self, *entry, **text):
        global has_run
        if is_tracing and not has_run and entry[:2] == ("columns", "graph_op"):
            has_run = True
            to_run.put(in_other_thread)
            try:
                have_run.get(timeout=0.5)
            except queue.Empty:  # the other thread waits for the lock that this thread holds
                pass
            in_finalizer(1.0)
        return append(self, *entry, **text)

    Journal.append = append_while_another_thread_adds_rows
    with tfdbg_arrow.capture(sys.argv[1]):
        thread = threading.Thread(target=run)
        thread.start()
        if sys.argv[2] == "functions":
            traced = tf.function(input_signature=[tf.TensorSpec([])])
            in_other_thread, in_finalizer = traced(in_other_thread), traced(in_finalizer)
            in_other_thread.get_concrete_function()
            in_finalizer.get_concrete_function()
            known = traced(tf.exp)
            for _ in range(2):  # the third call has the stack of the second one, and adds only rows of a graph
                to_run.put(known)
                have_run.get()
        is_tracing = True
        tf.function(lambda: tf.exp(1.0))()
        to_run.put(None)
        thread.join()
"""

pytestmark = pytest.mark.usefixtures("not_recording")


def check_no_more_threads(before: list[threading.Thread]) -> None:
    """Waits for the threads of a recording to end, and checks that no other threads were started."""
    for thread in set(threading.enumerate()) - set(before):
        thread.join(timeout=20)
    assert set(threading.enumerate()) <= set(before)


class TestOff:
    def test_a_function_runs_on_after_disable(self, tmp_path: Path) -> None:
        f = doubling()
        expected = f(X).numpy()
        tfdbg_arrow.enable(tmp_path)
        during = f(X).numpy()
        held = f.get_concrete_function(tf.TensorSpec([2]))
        tfdbg_arrow.disable()
        num = len(rows(tmp_path))
        after = [f(X).numpy(), held(tf.constant(X)).numpy(), f(X).numpy()]

        assert [values.tolist() for values in (during, *after)] == [expected.tolist()] * 4
        assert len(rows(tmp_path)) == num
        assert num_graph_rows(tmp_path) > 0

    def test_disable_in_the_middle_of_a_call(self, tmp_path: Path) -> None:
        def stop(x: Any) -> Any:
            tfdbg_arrow.disable()
            return x

        @tf.function
        def f(x: tf.Tensor) -> tf.Tensor:
            y = tf.py_function(stop, [x * 2.0], tf.float32)
            return tf.reshape(y, [2]) + 1.0

        tfdbg_arrow.enable(tmp_path)
        x = tf.exp(tf.zeros([2]))
        assert f(x).numpy().tolist() == [3.0, 3.0]
        assert f(x).numpy().tolist() == [3.0, 3.0]
        assert [row["is_clean_end"] for row in rows(tmp_path, "run")] == [True]
        kinds = [row["op_type"].rstrip("0123456789") for row in rows(tmp_path, "execution")]
        assert kinds == ["Fill", "Exp", "__inference_f_"]

    @pytest.mark.slow
    def test_nothing_of_the_recorder_stays_in_tensorflow(self, tmp_path: Path) -> None:
        places = [
            (eager_context.Context, "call_function"),
            (atomic_function, "from_func_graph"),
            (function_context, "make_function_context"),
            (threading.Thread, "_bootstrap_inner"),
            (script_ops.FuncRegistry, "__call__"),
            (execute, "execute"),
        ]
        before = [getattr(*place) for place in places]
        threads = threading.enumerate()
        for _ in range(5):
            with tfdbg_arrow.capture(tmp_path):
                assert [getattr(*place) for place in places] != before
                doubling()(X)
            assert [getattr(*place) for place in places] == before
            assert eager_context.context().op_callbacks == []
        check_no_more_threads(threads)
        assert list((tmp_path / "spool").iterdir()) == []
        assert len({row["run_id"] for row in rows(tmp_path, "run")}) == 5

    def test_turned_off_by_the_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TFDBG_ARROW", "0")
        assert tfdbg_arrow.enable(tmp_path / "a") is None
        with tfdbg_arrow.capture(tmp_path / "b") as capture:
            assert not tfdbg_arrow.is_recording()
            tfdbg_arrow.mark(step=1)
        assert (capture.logdir, capture.run_id) == (None, None)
        assert list(tmp_path.iterdir()) == []


class TestAgain:
    def test_on_the_same_logdir_makes_a_second_run(self, tmp_path: Path) -> None:
        f = doubling()
        runs = []
        for _ in range(2):
            with tfdbg_arrow.capture(tmp_path) as capture:
                f(X)
            runs.append(capture.run_id)
            f(X)
        assert runs[0] != runs[1]
        assert {row["run_id"] for row in rows(tmp_path, "run")} == set(runs)
        assert num_graph_rows(tmp_path, runs[0]) == num_graph_rows(tmp_path, runs[1]) > 0
        for table in TABLES:
            assert {row["run_id"] for row in rows(tmp_path, table.name)} <= set(runs)

    def test_on_another_logdir(self, tmp_path: Path) -> None:
        f = doubling()
        for name in "ab":
            with tfdbg_arrow.capture(tmp_path / name):
                f(X)
        assert num_graph_rows(tmp_path / "a") == num_graph_rows(tmp_path / "b") > 0

    def test_a_function_of_the_older_kind_is_reported_without_a_warning(
        self, tmp_path: Path, recwarn: pytest.WarningsRecorder
    ) -> None:
        @tf.function
        def loss(logits: tf.Tensor) -> tf.Tensor:
            length = tf.constant([6])
            return tf.nn.ctc_loss(tf.constant([[1, 2, 1]]), logits, tf.constant([3]), length, blank_index=0)

        with tfdbg_arrow.capture(tmp_path):
            loss(tf.ones([6, 1, 4]))
        assert not [warning for warning in recwarn if "tfdbg_arrow" in str(warning.message)]
        found = rows(tmp_path, "capture_stat")
        assert {(row["stat"], row["reason_code"]) for row in found} == {("unobservable", None)}
        assert all("Defun" in row["reason"] and "tf.nn.ctc_loss" in row["reason"] for row in found)
        assert {row["subject"].partition("_")[0] for row in found} == {"cond", "body"}

    def test_a_concrete_function_from_before_is_reported_as_unobserved(self, tmp_path: Path) -> None:
        f = doubling()
        untouched = f.get_concrete_function(tf.TensorSpec([2]))
        with tfdbg_arrow.capture(tmp_path / "a"):
            f(X)
            instrumented = f.get_concrete_function(tf.TensorSpec([2]))

        def call() -> None:
            with tfdbg_arrow.capture(tmp_path / "b"):
                for held in (untouched, instrumented, untouched):
                    held(tf.constant(X))
                tf.function(lambda x: instrumented(x) + 1.0)(X)

        with pytest.warns(RuntimeWarning, match="traced before recording began") as warned:
            call()
        names = [held.name if isinstance(held.name, str) else held.name.decode() for held in (untouched, instrumented)]

        assert sum(each.category is RuntimeWarning for each in warned) == 1  # AutoGraph warns about Python 3.13
        assert stats(tmp_path / "b") == [("unobservable", name) for name in names]
        calls = [row for row in rows(tmp_path / "b", "execution") if row["op_type"] in names]
        assert [row["graph_id"] for row in calls] == [None] * 3
        # Other tensors are recorded: the results of the calls, and the tensors of the last function.
        health = rows(tmp_path / "b")
        assert sum(row["op_type"] in names for row in health) == 3
        assert "AddV2" in [row["op_type"] for row in health if row["scope"] == "graph"]

    def test_a_second_enable_raises_an_error_and_the_first_recording_continues(self, tmp_path: Path) -> None:
        tfdbg_arrow.enable(tmp_path / "a")
        with pytest.raises(RecordingError, match=r"a recording to .*a is active; call tfdbg_arrow.disable\(\)"):
            tfdbg_arrow.enable(tmp_path / "b")
        with pytest.raises(RecordingError), tfdbg_arrow.capture(tmp_path / "b"):
            pass
        doubling()(X)
        tfdbg_arrow.disable()
        tfdbg_arrow.disable()
        assert num_graph_rows(tmp_path / "a") > 0
        assert not (tmp_path / "b").exists()

    def test_capture_ends_when_its_body_raises(self, tmp_path: Path) -> None:
        def interrupt(x: Any) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), tfdbg_arrow.capture(tmp_path):
            interrupt(doubling()(X))
        assert not tfdbg_arrow.is_recording()
        assert [row["is_clean_end"] for row in rows(tmp_path, "run")] == [True]

    def test_a_failed_start_leaves_nothing_behind(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_: Any) -> None:
            raise OSError(28, "No space left on device")

        threads = threading.enumerate()
        monkeypatch.setattr(Sink, "start", refuse)
        with pytest.raises(LogdirError, match="No space left on device"):
            tfdbg_arrow.enable(tmp_path)
        monkeypatch.undo()
        check_no_more_threads(threads)
        assert list((tmp_path / "spool").iterdir()) == []
        with tfdbg_arrow.capture(tmp_path):
            doubling()(X)
        assert num_graph_rows(tmp_path) > 0


class TestXla:
    def test_a_compiled_function_runs_without_xla_and_is_reported(self, tmp_path: Path) -> None:
        @tf.function(jit_compile=True)
        def compiled(x: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(x * x)

        @tf.function
        def outer(x: tf.Tensor) -> tf.Tensor:
            return compiled(x) + 1.0

        warns = pytest.warns(RuntimeWarning, match="runs without XLA while recording")
        with warns, tfdbg_arrow.capture(tmp_path, xla="observe"):
            during = [compiled(X), compiled(X), outer(X)]
        after = [compiled(X), compiled(X), outer(X)]
        assert [float(x) for x in (*during, *after)] == [2.0, 2.0, 3.0] * 2
        assert [stat for stat, _ in stats(tmp_path)] == ["changed"]
        assert sum(row["op_type"] == "Sum" for row in rows(tmp_path)) == 3

    def test_it_runs_without_xla_by_default_if_there_is_a_gpu(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """For a GPU, XLA needs a long time to compile the ops that count tensors."""
        monkeypatch.setattr(runtime, "has_accelerator", lambda: True)

        @tf.function(jit_compile=True)
        def compiled(x: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(x * x)

        with pytest.warns(RuntimeWarning, match="runs without XLA"), tfdbg_arrow.capture(tmp_path):
            assert float(compiled(X)) == 2.0
        assert {row["op_type"] for row in rows(tmp_path) if row["graph_id"] is not None} >= {"Square", "Sum"}

    def test_its_gradient(self, tmp_path: Path) -> None:
        @tf.function(jit_compile=True)
        def compiled(x: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(x * x)

        def gradient(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = compiled(x)
            return tape.gradient(y, x).numpy().tolist()

        with pytest.warns(RuntimeWarning, match="without XLA"), tfdbg_arrow.capture(tmp_path, xla="observe"):
            during = gradient(tf.constant(X))
        assert during == gradient(tf.constant(X)) == [2.0, -2.0]


@pytest.mark.parametrize("graphs", ["auto", "traced"])
def test_a_function_without_ops_is_recorded_as_a_call_only(graphs: str, tmp_path: Path) -> None:
    @tf.function
    def empty() -> None:
        pass

    with tfdbg_arrow.capture(tmp_path, graphs=graphs):
        empty()
    assert [row["op_type"].rstrip("0123456789") for row in rows(tmp_path, "execution")] == ["__inference_empty_"]
    assert stats(tmp_path) == []


def test_threads_that_started_before(tmp_path: Path) -> None:
    """A thread that is already running is recorded from its first call of a function."""
    go, done = threading.Event(), threading.Event()
    f = doubling()

    def work() -> None:
        go.wait()
        f(X)
        tf.constant(1.0) + 2.0
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    with tfdbg_arrow.capture(tmp_path):
        go.set()
        done.wait()
        thread.join()
    executions = sorted(rows(tmp_path, "execution"), key=lambda row: row["execution_index"])
    assert [row["op_type"].startswith("__inference_double") for row in executions] == [True, False]
    assert {row["thread_id"] for row in executions} == {thread.ident}


@pytest.mark.parametrize("what", ["ops", "functions"])
def test_a_finalizer_runs_something_while_rows_are_added(tmp_path: Path, what: str) -> None:
    """Another thread adds rows at the same time. Neither thread waits for the other one forever."""
    run_python(tmp_path / "program.py", FINALIZER_WHILE_ROWS_ARE_ADDED, tmp_path / "logdir", what)
    table = "execution" if what == "ops" else "executed_op"
    executed = {row["op_type"] for row in rows(tmp_path / "logdir", table)}
    assert {"Abs", "Neg"} <= executed
