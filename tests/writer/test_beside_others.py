"""TensorFlow's own tools and op callbacks of other code work the same with and without a recording."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.debug.lib import debug_events_reader
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute
from tensorflow.python.framework import op_callbacks

import tfdbg_arrow
from tests.sampling import mostly_slow

from .tables import rows

pytestmark = pytest.mark.usefixtures("not_recording")

Program = Callable[[], Any]


@pytest.fixture(params=mostly_slow(["native", "tensorflow"], fast=["native"]))
def health_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def checking_numerics() -> Iterator[None]:
    tf.debugging.enable_check_numerics()
    try:
        yield
    finally:
        tf.debugging.disable_check_numerics()


def outcome(program: Program) -> Any:
    """Returns a program's result, or the type and text of its error. Numbers that differ between runs are left out."""
    try:
        return np.asarray(program()).tolist()
    except Exception as error:
        text = re.sub(r'File ".*test_beside_others.py", line \d+, in test_\w+\n', "", str(error))  # the caller's line
        return type(error), re.sub(r"(_\d+)+\b|0x[0-9a-f]+|node \S+", "", text)


def eager(x: float) -> Program:
    return lambda: tf.math.log(tf.constant([x])) * 2.0


def in_function(x: float) -> Program:
    def program() -> Any:
        @tf.function
        def inner(x: tf.Tensor) -> tf.Tensor:
            return tf.math.log(x)

        @tf.function
        def outer(x: tf.Tensor) -> tf.Tensor:
            for _ in tf.range(2):
                x = x * 1.0
            return inner(x) * 2.0

        return outer(tf.constant([x]))

    return program


def with_tape(x: float) -> Program:
    def program() -> Any:
        @tf.function
        def root(x: tf.Tensor) -> tf.Tensor:
            return tf.sqrt(x)

        value = tf.Variable([x])
        with tf.GradientTape() as tape:
            y = root(value)
        return tape.gradient(y, value)

    return program


PROGRAMS = [make(x) for make in (eager, in_function, with_tape) for x in (0.0, 4.0)]
IDS = [f"{name} {kind}" for name in ("eager", "function", "tape") for kind in ("bad", "healthy")]


@pytest.mark.parametrize("program", PROGRAMS, ids=IDS)
class TestCheckNumerics:
    @pytest.mark.slow
    def test_enabled_first(self, program: Program, health_backend: str, tmp_path: Path) -> None:
        with checking_numerics():
            bare = outcome(program)
            with tfdbg_arrow.capture(tmp_path, health_backend=health_backend):
                recorded = outcome(program)
            after = outcome(program)
        assert recorded == bare
        assert after == bare

    def test_enabled_while_recording(self, program: Program, health_backend: str, tmp_path: Path) -> None:
        with checking_numerics():
            bare = outcome(program)
        unchecked = outcome(program)
        with tfdbg_arrow.capture(tmp_path, health_backend=health_backend):
            with checking_numerics():
                recorded = outcome(program)
            assert outcome(program) == unchecked
        assert recorded == bare
        assert outcome(program) == unchecked
        assert eager_context.context().op_callbacks == []
        assert execute.execute is execute.quick_execute

    def test_stays_on_after_the_recording(self, program: Program, health_backend: str, tmp_path: Path) -> None:
        with checking_numerics():
            bare = outcome(program)
        tfdbg_arrow.enable(tmp_path, health_backend=health_backend)
        tf.debugging.enable_check_numerics()
        try:
            tfdbg_arrow.disable()
            assert outcome(program) == bare
        finally:
            tf.debugging.disable_check_numerics()


def test_the_tensor_that_check_numerics_stopped_at_is_recorded(health_backend: str, tmp_path: Path) -> None:
    with (
        checking_numerics(),
        tfdbg_arrow.capture(tmp_path, health_backend=health_backend),
        pytest.raises(tf.errors.InvalidArgumentError),
    ):
        tf.math.log(tf.constant([0.0]))
    [log] = [row for row in rows(tmp_path) if row["op_type"] == "Log"]
    assert log["num_neg_inf"] == 1


class TestReplacedOutputs:
    """A callback that replaces the outputs of ops in graphs."""

    @pytest.mark.parametrize("is_first", [True, False])
    def test_the_replaced_output_is_used(self, is_first: bool, health_backend: str, tmp_path: Path) -> None:
        def lessen(op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None) -> Any:
            if graph is None or op_type != "Exp":
                return None
            return [outputs[0] - 2.0]

        @tf.function
        def program(x: tf.Tensor) -> tf.Tensor:
            return tf.maximum(tf.exp(x), -3.0)

        if is_first:
            op_callbacks.add_op_callback(lessen)
        with tfdbg_arrow.capture(tmp_path, health_backend=health_backend):
            if not is_first:
                op_callbacks.add_op_callback(lessen)
            try:
                result = program(tf.constant(0.0)).numpy()
            finally:
                op_callbacks.remove_op_callback(lessen)
        assert result == -1.0
        assert {row["op_type"] for row in rows(tmp_path) if row["scope"] == "graph"} >= {"Exp", "Sub", "Maximum"}

    def test_each_callback_gets_the_outputs_of_the_previous_one(self, health_backend: str, tmp_path: Path) -> None:
        got: list[tuple[Any, Any]] = []

        def first(op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None) -> Any:
            got.append((op_type, type(outputs)))

        def second(op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None) -> Any:
            got.append((op_type, type(outputs)))

        def trace() -> list[tuple[Any, Any]]:
            got.clear()
            tf.function(lambda x: tf.split(tf.exp(x), 2)[0])(tf.constant([1.0, 2.0]))
            return [each for each in got if not str(each[0]).startswith(("__", "b'__"))]

        op_callbacks.add_op_callback(first)
        op_callbacks.add_op_callback(second)
        try:
            bare = trace()
            with tfdbg_arrow.capture(tmp_path, health_backend=health_backend):
                recorded = trace()
        finally:
            op_callbacks.clear_op_callbacks()
            op_callbacks.remove_op_callback(second)
        assert recorded == bare

    @pytest.mark.parametrize("program", [eager(4.0), in_function(4.0)], ids=["eager", "function"])
    def test_an_error_of_a_callback_is_raised(self, program: Program, health_backend: str, tmp_path: Path) -> None:
        def fail(op_type: Any, *_: Any, **__: Any) -> None:
            if op_type in ("Log", b"Log"):
                raise ValueError("no logarithms")

        op_callbacks.add_op_callback(fail)
        try:
            with (
                tfdbg_arrow.capture(tmp_path, health_backend=health_backend),
                pytest.raises(ValueError, match="no logarithms"),
            ):
                program()
        finally:
            op_callbacks.remove_op_callback(fail)
        assert not [row for row in rows(tmp_path, "capture_stat") if row["stat"] == "failed"]

    def test_clearing_op_callbacks_keeps_the_recorder(self, health_backend: str, tmp_path: Path) -> None:
        with tfdbg_arrow.capture(tmp_path, health_backend=health_backend):
            op_callbacks.add_op_callback(lambda *_, **__: None)
            op_callbacks.clear_op_callbacks()
            tf.constant(1.0) + 2.0
        assert "AddV2" in [row["op_type"] for row in rows(tmp_path, "execution")]


def dumped(dump_root: Path, program: Program) -> dict[str, Any]:
    """Returns the data that Debugger V2 writes for a program, without the ops of the recorder."""
    tf.debugging.experimental.enable_dump_debug_info(str(dump_root), "FULL_HEALTH", circular_buffer_size=-1)
    try:
        program()
    finally:
        tf.debugging.experimental.disable_dump_debug_info()
    with debug_events_reader.DebugDataReader(str(dump_root)) as reader:
        reader.update()
        executions = [re.sub(r"_\d+$", "", each.op_type) for each in reader.executions()]
        traces = Counter(each.op_type for each in reader.graph_execution_traces())
    return {"executions": executions, "traces": traces}


@pytest.mark.slow
@pytest.mark.parametrize("is_first", [True, False])
def test_debugger_v2_writes_the_same(is_first: bool, health_backend: str, tmp_path: Path) -> None:
    program = in_function(4.0)
    bare = dumped(tmp_path / "bare", program)
    if is_first:

        def recorded_program() -> None:
            with tfdbg_arrow.capture(tmp_path / "logdir", health_backend=health_backend):
                program()

        recorded = dumped(tmp_path / "recorded", recorded_program)
    else:
        with tfdbg_arrow.capture(tmp_path / "logdir", health_backend=health_backend):
            recorded = dumped(tmp_path / "recorded", program)
    assert recorded == bare
    assert dumped(tmp_path / "after", program) == bare


def test_the_profiler_writes_its_trace(health_backend: str, tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path / "logdir", health_backend=health_backend):
        tf.profiler.experimental.start(str(tmp_path / "profile"))
        in_function(4.0)()
        tf.profiler.experimental.stop()
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


@pytest.mark.slow
def test_keras_profiles_a_batch(health_backend: str, tmp_path: Path) -> None:
    keras = tf.keras

    def weights(directory: Path) -> list[Any]:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
        board = keras.callbacks.TensorBoard(str(directory), profile_batch=(2, 3))
        x = np.linspace(0, 1, 48, dtype=np.float32).reshape(16, 3)
        model.fit(x, x[:, :2], batch_size=4, shuffle=False, verbose=0, callbacks=[board])
        return [each.tolist() for each in model.get_weights()]

    # The profiler names its files after the current second.
    boards = [tmp_path / "bare", tmp_path / "recorded"]
    bare = weights(boards[0])
    with tfdbg_arrow.capture(tmp_path / "logdir", health_backend=health_backend):
        assert weights(boards[1]) == bare
    assert [len(list(board.rglob("*.xplane.pb"))) for board in boards] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("is_first", [True, False])
def test_the_data_service_works(is_first: bool, health_backend: str, tmp_path: Path) -> None:
    def start() -> tuple[Any, Any]:
        dispatcher = tf.data.experimental.service.DispatchServer()
        address = dispatcher.target.split("://")[1]
        config = tf.data.experimental.service.WorkerConfig(dispatcher_address=address)
        return dispatcher, tf.data.experimental.service.WorkerServer(config)

    def serve(servers: tuple[Any, Any]) -> list[float]:
        data = tf.data.Dataset.range(6).map(lambda x: tf.cast(x, tf.float32) * 2.0)
        service = tf.data.experimental.service.distribute(
            processing_mode=tf.data.experimental.service.ShardingPolicy.OFF, service=servers[0].target
        )
        return sorted(float(x) for x in data.apply(service))

    servers = start() if is_first else None
    with tfdbg_arrow.capture(tmp_path, health_backend=health_backend):
        served = serve(servers or start())
    assert served == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert serve(servers or start()) == served
