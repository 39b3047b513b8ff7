"""Recording starts, stops and starts again without disturbing the program."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow.dataset as ds
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute
from tensorflow.python.eager.polymorphic_function import atomic_function, function_context
from tensorflow.python.framework import op_callbacks
from tensorflow.python.ops import script_ops

import tfdbg_arrow
from tfdbg_arrow.errors import LogdirError, RecordingError
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.writer.graphs.instrument import GraphInstrumenter
from tfdbg_arrow.writer.sink.sink import Sink

from .counting import plain
from .subprocesses import run_python

Rows = list[dict[str, Any]]
X = np.array([1.0, -1.0], np.float32)


def rows(logdir: Path, table: str = "tensor_health") -> Rows:
    return ds.dataset(logdir / table).to_table().to_pylist()


def stats(logdir: Path) -> list[tuple[str, str]]:
    return [(row["stat"], row["subject"]) for row in rows(logdir, "capture_stat")]


def num_graph_rows(logdir: Path, run_id: str | None = None) -> int:
    return sum(row["scope"] == "graph" and run_id in (None, row["run_id"]) for row in rows(logdir))


def doubling() -> Any:
    """Returns a new function with a loop and a call in it."""

    @tf.function
    def relu(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x)

    @tf.function
    def double(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(2):
            x = relu(x) * 2.0
        return x

    return double


def fail_in_gather(x: tf.Tensor) -> tf.Tensor:
    return tf.gather(x, 5)


def fail_in_assertion(x: tf.Tensor) -> tf.Tensor:
    tf.debugging.assert_less(x, 1.0, message="too large")
    return x


def fail_in_loop(x: tf.Tensor) -> tf.Tensor:
    for i in tf.range(4):
        x = tf.reshape(tf.gather(x, [i, i]), [2])
    return x


def fail_in_python(x: tf.Tensor) -> tf.Tensor:
    return tf.py_function(lambda y: 1 / 0, [x], tf.float32)


def fail_in_trace(x: tf.Tensor) -> tf.Tensor:
    raise KeyError("of the program")


FAILING = {
    "function": fail_in_gather,
    "assertion": fail_in_assertion,
    "loop": fail_in_loop,
    "python": fail_in_python,
    "trace": fail_in_trace,
}


@pytest.fixture(autouse=True)
def _not_recording() -> Iterator[None]:
    assert not tfdbg_arrow.is_recording()
    yield
    tfdbg_arrow.disable()


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

    def test_nothing_of_ours_stays_in_tensorflow(self, tmp_path: Path) -> None:
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
        assert threading.enumerate() == threads
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

    def test_a_function_held_from_before_is_said_to_be_unobserved(self, tmp_path: Path) -> None:
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

        assert len(warned) == 1
        assert stats(tmp_path / "b") == [("unobservable", name) for name in names]
        calls = [row for row in rows(tmp_path / "b", "execution") if row["op_type"] in names]
        assert [row["graph_id"] for row in calls] == [None] * 3
        # Outside them all is recorded: the calls' results, and the last function's own tensors.
        health = rows(tmp_path / "b")
        assert sum(row["op_type"] in names for row in health) == 3
        assert "AddV2" in [row["op_type"] for row in health if row["scope"] == "graph"]

    def test_twice_is_refused_and_the_first_goes_on(self, tmp_path: Path) -> None:
        tfdbg_arrow.enable(tmp_path / "a")
        with pytest.raises(RecordingError, match=r"a recording to .*a is in force; call tfdbg_arrow.disable\(\)"):
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

    def test_a_start_that_fails_leaves_nothing_behind(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_: Any) -> None:
            raise OSError(28, "No space left on device")

        threads = threading.enumerate()
        monkeypatch.setattr(Sink, "start", refuse)
        with pytest.raises(LogdirError, match="No space left on device"):
            tfdbg_arrow.enable(tmp_path)
        monkeypatch.undo()
        assert threading.enumerate() == threads
        assert list((tmp_path / "spool").iterdir()) == []
        with tfdbg_arrow.capture(tmp_path):
            doubling()(X)
        assert num_graph_rows(tmp_path) > 0


class TestFailures:
    def errors_of(self, run: Any) -> list[tuple[type, str]]:
        """What a program raises at its first and second run: the texts without line numbers and function numbers."""
        found = []
        for _ in range(2):
            with pytest.raises(Exception) as caught:  # noqa: PT011
                run()
            text = str(caught.value).partition("[Op:")[0]
            # TensorFlow's text of an error in Python holds the traceback, and so our frame.
            text = "\n\n".join(paragraph for paragraph in text.split("\n\n") if "writer/hooks/" not in paragraph)
            found.append((caught.type, re.sub(r", line \d+|_\d+\b|generated_file\w+", "", text)))
        return found

    @pytest.mark.parametrize("place", ["eager", "function", "assertion", "loop", "python", "trace"])
    def test_the_programs_exceptions_are_its_own(self, place: str, tmp_path: Path) -> None:
        def program() -> Any:
            if place == "eager":
                return tf.gather(X, 5)
            return tf.function(FAILING[place])(tf.constant(X))

        bare = self.errors_of(program)
        with tfdbg_arrow.capture(tmp_path):
            recorded = self.errors_of(program)
            result = doubling()(X).numpy()
        assert recorded == bare
        assert result.tolist() == [4.0, 0.0]
        assert stats(tmp_path) == []
        last = max(row["execution_index"] for row in rows(tmp_path, "execution"))
        assert (last, "graph") in {(row["execution_index"], row["scope"]) for row in rows(tmp_path)}

    def test_a_failure_of_ours_is_one_warning_and_a_row(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise ValueError("broken")

        monkeypatch.setattr(GraphInstrumenter, "prepare", fail)
        match = "could not be instrumented: ValueError: broken"
        with pytest.warns(RuntimeWarning, match=match) as warned, tfdbg_arrow.capture(tmp_path):
            results = [doubling()(X).numpy().tolist() for _ in range(2)]
        assert results == [[4.0, 0.0]] * 2
        assert len([w for w in warned if "broken" in str(w.message)]) == 1
        assert {stat for stat, _ in stats(tmp_path)} == {"failed"}

    def test_warnings_that_are_errors_do_not_break_the_training(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise ValueError("broken")

        monkeypatch.setattr(GraphInstrumenter, "prepare", fail)
        with warnings.catch_warnings(), tfdbg_arrow.capture(tmp_path):
            warnings.simplefilter("error")
            assert doubling()(X).numpy().tolist() == [4.0, 0.0]
        assert "could not be instrumented: ValueError: broken" in capsys.readouterr().err

    def test_nor_do_they_where_something_is_changed_or_left_out(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        f = doubling()
        held = f.get_concrete_function(tf.TensorSpec([2]))
        compiled = tf.function(lambda x: tf.reduce_sum(f(x)), jit_compile=True)
        with warnings.catch_warnings(), tfdbg_arrow.capture(tmp_path):
            warnings.simplefilter("error")
            results = compiled(X).numpy(), held(tf.constant(X)).numpy()
        assert [value.tolist() for value in results] == [4.0, [4.0, 0.0]]
        assert {stat for stat, _ in stats(tmp_path)} == {"changed", "unobservable"}
        assert "without XLA" in capsys.readouterr().err

    def test_an_interrupt_while_tracing(self, tmp_path: Path) -> None:
        interrupts = [KeyboardInterrupt]

        @tf.function
        def f(x: tf.Tensor) -> tf.Tensor:
            y = x * 2.0
            if interrupts:
                raise interrupts.pop()
            return y

        with tfdbg_arrow.capture(tmp_path):
            with pytest.raises(KeyboardInterrupt):
                f(X)
            assert f(X).numpy().tolist() == [2.0, -2.0]
        assert sum(row["op_type"] == "Mul" for row in rows(tmp_path)) == 1


class TestXla:
    def test_a_compiled_function_runs_without_xla_and_that_is_said(self, tmp_path: Path) -> None:
        @tf.function(jit_compile=True)
        def compiled(x: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(x * x)

        @tf.function
        def outer(x: tf.Tensor) -> tf.Tensor:
            return compiled(x) + 1.0

        with pytest.warns(RuntimeWarning, match="runs without XLA while recording"), tfdbg_arrow.capture(tmp_path):
            during = [compiled(X), compiled(X), outer(X)]
        after = [compiled(X), compiled(X), outer(X)]
        assert [float(x) for x in (*during, *after)] == [2.0, 2.0, 3.0] * 2
        assert [stat for stat, _ in stats(tmp_path)] == ["changed"]
        assert sum(row["op_type"] == "Sum" for row in rows(tmp_path)) == 3

    def test_its_gradient(self, tmp_path: Path) -> None:
        @tf.function(jit_compile=True)
        def compiled(x: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(x * x)

        def gradient(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = compiled(x)
            return tape.gradient(y, x).numpy().tolist()

        with pytest.warns(RuntimeWarning, match="without XLA"), tfdbg_arrow.capture(tmp_path):
            during = gradient(tf.constant(X))
        assert during == gradient(tf.constant(X)) == [2.0, -2.0]


class TestOthersCallbacks:
    def test_the_users_callback_sees_its_ops_and_stays(self, tmp_path: Path) -> None:
        def program() -> None:
            doubling()(X)
            tf.constant(1.0) + 2.0

        def seen_while(record: bool) -> list[str]:
            seen: list[str] = []

            def callback(op_type: Any, *_: Any, **__: Any) -> None:
                text = op_type.decode() if isinstance(op_type, bytes) else op_type
                seen.append("call" if text.startswith("__") else plain(text))

            op_callbacks.add_op_callback(callback)
            try:
                if record:
                    with tfdbg_arrow.capture(tmp_path):
                        program()
                    seen.append("recording ends")
                else:
                    program()
                    seen.append("recording ends")
                tf.constant(1.0) + 2.0
            finally:
                op_callbacks.remove_op_callback(callback)
            return seen

        recorded, bare = seen_while(record=True), seen_while(record=False)
        # TensorFlow itself adds a NoOp to a function that holds a stateful op.
        assert [kind for kind in recorded if kind != "NoOp"] == bare

    def test_recording_outlives_the_users_callback(self, tmp_path: Path) -> None:
        def callback(*_: Any, **__: Any) -> None:
            return None

        op_callbacks.add_op_callback(callback)
        with tfdbg_arrow.capture(tmp_path):
            op_callbacks.remove_op_callback(callback)
            tf.constant(1.0) + 2.0
        assert [row["op_type"] for row in rows(tmp_path, "execution")] == ["AddV2"]


class TestSavedModels:
    def test_hold_no_op_of_ours_and_load_where_we_are_not(self, tmp_path: Path) -> None:
        class Model(tf.Module):
            def __init__(self) -> None:
                self.w = tf.Variable([2.0, 3.0])

            @tf.function(input_signature=[tf.TensorSpec([2])])
            def run(self, x: tf.Tensor) -> tf.Tensor:
                for i in tf.range(3):
                    if tf.reduce_sum(x) > 0.0:  # noqa: SIM108
                        x = self.inner(x) - tf.cast(i, tf.float32)
                    else:
                        x = self.inner(x * x)
                return x

            @tf.function
            def inner(self, x: tf.Tensor) -> tf.Tensor:
                return tf.nn.relu(x) * self.w

            @tf.function(input_signature=[tf.TensorSpec([2])])
            def gradient(self, x: tf.Tensor) -> tf.Tensor:
                with tf.GradientTape() as tape:
                    y = self.run(x)
                return tape.gradient(y, self.w)

        def save(path: Path) -> None:
            tf.saved_model.save(module, path, signatures={"run": module.run, "gradient": module.gradient})

        keras.utils.set_random_seed(1)
        network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, "relu"), keras.layers.Dense(1)])
        network.compile("sgd", "mse")
        module = Model()
        x = tf.constant(X)
        expected = [module.run(x), module.gradient(x), network(x[None])]
        with tfdbg_arrow.capture(tmp_path / "logdir"):
            module.run(x)
            module.gradient(x)
            save(tmp_path / "during")
            network.export(tmp_path / "exported", verbose=False)
            loaded = tf.saved_model.load(tmp_path / "during")
            reloaded = loaded.run(x)
        save(tmp_path / "after")

        assert reloaded.numpy().tolist() == expected[0].numpy().tolist()
        for name in ("during", "after", "exported"):
            protobuf = (tmp_path / name / "saved_model.pb").read_bytes()
            assert b"Tfdbg" not in protobuf
            assert b"tfdbg" not in protobuf
        text = """
            import sys, numpy as np, tensorflow as tf
            x = tf.constant([1.0, -1.0])
            for name in ("during", "after"):
                loaded = tf.saved_model.load(f"{sys.argv[1]}/{name}")
                print(loaded.run(x).numpy().tolist(), loaded.signatures["gradient"](x)["output_0"].numpy().tolist())
            exported = tf.saved_model.load(f"{sys.argv[1]}/exported")
            print(exported.serve(x[None]).numpy().tolist())
            assert not [name for name in sys.modules if name.startswith("tfdbg_arrow")]
        """
        run, gradient, prediction = (value.numpy().tolist() for value in expected)
        lines = run_python(tmp_path / "load.py", text, tmp_path).splitlines()
        assert lines == [f"{run} {gradient}"] * 2 + [str(prediction)]

    def test_a_loaded_model_is_recorded(self, tmp_path: Path) -> None:
        module = tf.Module()
        module.f = tf.function(lambda x: tf.exp(x) + 1.0, input_signature=[tf.TensorSpec([2])])
        tf.saved_model.save(module, tmp_path / "model")
        with tfdbg_arrow.capture(tmp_path / "logdir"):
            tf.saved_model.load(tmp_path / "model").f(X)
        assert [row["op_type"] for row in rows(tmp_path / "logdir") if row["scope"] == "graph"].count("Exp") == 1


def test_threads_that_started_before(tmp_path: Path) -> None:
    """A thread that runs already is observed from its first call of a function on."""
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
