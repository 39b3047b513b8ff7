"""The frames of the recorder change neither the program's tracebacks nor its maximum recursion depth."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute

import tfdbg_arrow
from tfdbg_arrow.writer.own_frames import PACKAGE_DIRECTORY, RecursionRoom

from .tables import rows

X = tf.constant([0.25, 0.5])
Failing = Callable[[], object]


def fail(*args: object, **kwargs: object) -> Any:
    raise ValueError("of the program")


class Nested(keras.layers.Layer):  # type: ignore[misc]
    """A layer in a layer, which does some work in the innermost layer."""

    def __init__(self, depth: int, work: Callable[[Any], Any]) -> None:
        super().__init__()
        self.inner = Nested(depth - 1, work) if depth else None
        self.work = work
        self.built = True  # to find the shape, Keras would call each inner layer twice as often as the outer one

    def call(self, x: Any) -> Any:
        return self.work(x) if self.inner is None else self.inner(x)


class Module(tf.Module):  # type: ignore[misc]
    @tf.Module.with_name_scope  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        return fail(x)


class Callback(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        fail()


def fail_in_run(x: Any) -> Any:
    """Makes an op that fails when its function runs: TensorFlow's error shows the stack that made it."""
    with tf.control_dependencies([tf.debugging.assert_greater(x, 5.0)]):
        return x * 2.0


@tf.custom_gradient  # type: ignore[untyped-decorator]
def bad_gradient(x: Any) -> Any:
    return x * 1.0, fail


def gradient(of: Callable[[Any], Any], *, is_jacobian: bool = False) -> Any:
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(X)
        y = of(X)
    return tape.jacobian(y, X) if is_jacobian else tape.gradient(y, X)


def fit(*layers: Any, **arguments: Any) -> None:
    model = keras.Sequential(layers)
    model.compile(loss="mse")
    model.fit(tf.ones([2, 1]), tf.ones([2, 2]), verbose=0, **arguments)


def in_session(run: Callable[[Any, Any, Any], object]) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32)
        run(session, x, tf.debugging.assert_greater(x, 5.0))


def save() -> None:
    module = tf.Module()
    module.function = tf.function(fail, input_signature=[tf.TensorSpec([])])
    tf.saved_model.save(module, "/nonexistent")


def traced(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return tf.function(function, **options)  # type: ignore[no-any-return]


FAILING: dict[str, Failing] = {
    "nested functions": lambda: traced(lambda x: traced(fail, autograph=False)(x), autograph=False)(X),
    "nested functions with autograph": lambda: traced(lambda x: traced(fail)(x))(X),
    "op of a graph": lambda: traced(lambda x: tf.matmul(x, x), autograph=False)(X),
    "op of a run": lambda: traced(lambda x: tf.debugging.assert_greater(x, 5.0), autograph=False)(X),
    "op of a layer of a run": lambda: traced(Nested(2, fail_in_run), autograph=False)(X),
    "compiled function": lambda: traced(lambda x: tf.reshape(x, [3]), jit_compile=True)(X),
    "eager op": lambda: tf.matmul(X, X),
    "eager op of Python": lambda: tf.raw_ops.Reshape(tensor=[1, 2, 3], shape=[2]),
    "executed op": lambda: execute.execute(b"Abs", 1, [X, X], ("T", 1), eager_context.context()),
    "layers": lambda: Nested(2, fail)(X),
    "layers in a function": lambda: traced(lambda x: Nested(2, fail)(x))(X),
    "fit": lambda: fit(keras.layers.Dense(3)),
    "callback of fit": lambda: fit(keras.layers.Dense(2), callbacks=[Callback()]),
    "module": lambda: Module()(X),
    "gradient": lambda: gradient(bad_gradient),
    "gradient of a function": lambda: gradient(traced(bad_gradient, autograph=False)),
    "gradient in a function": lambda: traced(lambda x: tf.gradients(bad_gradient(x), x), autograph=False)(X),
    "jacobian": lambda: gradient(bad_gradient, is_jacobian=True),
    "Python function": lambda: tf.numpy_function(fail, [X], tf.float32),
    "Python function in a function": lambda: traced(lambda x: tf.py_function(fail, [x], tf.float32))(X),
    "data": lambda: tf.data.Dataset.from_tensors(X).map(fail),
    "loop": lambda: traced(lambda x: tf.while_loop(lambda i: i < 1, fail, [x]))(tf.constant(0)),
    "optimizer": lambda: keras.optimizers.SGD().apply_gradients([(tf.ones([3]), tf.Variable([1.0]))]),
    "optimizer of TensorFlow 1": lambda: tf.compat.v1.train.GradientDescentOptimizer(0.1).apply_gradients([]),
    "loss": lambda: keras.losses.MeanSquaredError()(X, tf.ones([3, 4, 5])),
    "metric": lambda: keras.metrics.Mean().update_state("text"),
    "session": lambda: in_session(lambda session, x, op: session.run(op, {x: 1.0})),
    "callable of a session": lambda: in_session(lambda session, x, op: session.make_callable(op, [x])(1.0)),
    "SavedModel": save,
}


def seen(failing: Failing) -> list[object]:
    """Returns all that the program sees of an error and of its causes: class, message and frames."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 - of any kind
        failing()
    error: BaseException | None = raised.value
    found: list[object] = []
    while error is not None:
        frames = [(frame.filename, frame.name, frame.line) for frame in traceback.extract_tb(error.__traceback__)]
        found += [type(error), PACKAGE_DIRECTORY in str(error), frames]
        error = error.__cause__ or error.__context__
    return found


@pytest.fixture(params=[True, False], ids=["filtered", "unfiltered"])
def _filtering(request: pytest.FixtureRequest) -> Iterator[None]:
    for module in (tf.debugging, keras.config):
        (module.enable_traceback_filtering if request.param else module.disable_traceback_filtering)()
    yield
    for module in (tf.debugging, keras.config):
        module.enable_traceback_filtering()


@pytest.mark.slow
@pytest.mark.usefixtures("_filtering")
def test_tracebacks_are_those_without_a_recording(tmp_path: Path) -> None:
    # The first time, autograph converts functions, and the frames of the conversion are in the traceback.
    _, unrecorded = ({name: seen(failing) for name, failing in FAILING.items()} for _ in range(2))
    with tfdbg_arrow.capture(tmp_path):
        recorded = {name: seen(failing) for name, failing in FAILING.items()}
    assert recorded == unrecorded
    assert not any(True in found for found in recorded.values())


WORK: dict[str, Failing] = {
    "eager op": lambda: tf.sin(X),
    "functions": lambda: traced(lambda x: traced(lambda y: y + 1.0, autograph=False)(x), autograph=False)(X),
    "layers": lambda: Nested(30, tf.sin)(X),
    "layers in a function": lambda: traced(lambda x: Nested(30, tf.sin)(x), autograph=False)(X),
    "gradient": lambda: gradient(traced(lambda x: tf.sin(x) * x, autograph=False)),
}
_DEPTH = 700


def descend(depth: int, work: Failing) -> None:
    if depth:
        descend(depth - 1, work)
    else:
        work()


def passes(work: Failing, limit: int) -> bool:
    """Returns whether some work at a great recursion depth succeeds with a recursion limit."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        descend(_DEPTH, work)
    except RecursionError:
        return False
    finally:
        sys.setrecursionlimit(before)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", WORK)
def test_the_program_recurses_as_deep_as_without_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    work = WORK[name]
    work()  # imports the modules that the work needs
    too_low, enough = _DEPTH, 10 * _DEPTH
    while enough - too_low > 1:
        limit = (too_low + enough) // 2
        too_low, enough = (too_low, limit) if passes(work, limit) else (limit, enough)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(enough)
    try:
        with tfdbg_arrow.capture(tmp_path):
            descend(_DEPTH, work)
        assert sys.getrecursionlimit() == enough
    finally:
        sys.setrecursionlimit(limit)
    assert rows(tmp_path, "capture_stat") == []
    assert rows(tmp_path, "tensor_health")


def test_a_recursion_limit_that_the_program_sets_stays(tmp_path: Path) -> None:
    before = sys.getrecursionlimit()
    try:
        with tfdbg_arrow.capture(tmp_path):
            assert sys.getrecursionlimit() > before
            sys.setrecursionlimit(before + 7)
        assert sys.getrecursionlimit() == before + 7
    finally:
        sys.setrecursionlimit(before)


def test_a_recording_that_ends_deeper_than_the_limit_does_not_raise() -> None:
    before = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(_DEPTH)
        room = RecursionRoom()
        room.take()
        descend(_DEPTH, room.give_back)
        assert sys.getrecursionlimit() > _DEPTH
        sys.setrecursionlimit(2**31 - 1)
        RecursionRoom().take()
    finally:
        sys.setrecursionlimit(before)
