"""The schedule `steps=`: the recorded steps, how queries treat skipped steps, and that the program does not change."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tests.sampling import mostly_slow
from tfdbg_arrow.errors import SettingError
from tfdbg_arrow.writer.recording.marks import StepGate
from tfdbg_arrow.writer.selection import parse_schedule

from .tables import rows

BACKENDS = ("native", "tensorflow")
# Columns that differ between two recordings of one program, or that count events.
VOLATILE = frozenset(("run_id", "event_index", "wall_time_ns", "wall_time", "step_id", "thread_id", "device_id"))
OF_THE_PROCESS = VOLATILE | {"tensor_id", "execution_index", "stack_trace_id", "frame_id"}


def facts(logdir: Path, *, steps: set[int | None] | None = None) -> Counter[str]:
    """Counts the rows of tensor_health for the given steps, by the columns that two recordings of one program share."""
    graphs = {row["graph_id"]: row["graph_name"] for row in rows(logdir, "graph")}
    found = Counter[str]()
    for row in rows(logdir, "tensor_health"):
        if row["scope"] == "external" or (steps is not None and row["step"] not in steps):
            continue
        fact = {key: value for key, value in row.items() if key not in OF_THE_PROCESS}
        fact["graph_id"] = re.sub(r"\d+", "", graphs.get(row["graph_id"], ""))  # TensorFlow numbers graphs
        if row["op_type"].startswith("__"):
            fact["op_type"] = re.sub(r"\d+", "", row["op_type"])
        found[repr(sorted(fact.items()))] += 1
    return found


def executions(logdir: Path) -> Counter[tuple[str, int | None]]:
    return Counter((re.sub(r"\d+", "", row["op_type"]), row["step"]) for row in rows(logdir, "execution"))


def train(num_steps: int, *, mark: Callable[[int], None] = lambda step: tfdbg_arrow.mark(step=step)) -> list[float]:
    """Runs a training whose weights change in every step and are read eagerly and in functions. Returns its losses."""
    keras.utils.set_random_seed(7)
    generator = np.random.default_rng(7)
    kernel = tf.Variable(generator.normal(size=(4, 3)).astype(np.float32))
    data = tf.constant(generator.normal(size=(num_steps, 5, 4)).astype(np.float32))

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(2):
            x = tf.tanh(x)
        return tf.reduce_sum(x)

    @tf.function
    def loss(x: tf.Tensor) -> tf.Tensor:
        return inner(tf.matmul(x, kernel)) if tf.reduce_sum(x) < 1000.0 else tf.constant(0.0)

    losses = []
    for step in range(num_steps):
        mark(step)
        with tf.GradientTape() as tape:
            value = loss(data[step])
        kernel.assign_sub(0.1 * tape.gradient(value, kernel))
        losses.append(float(value))
    return losses


class TestText:
    @pytest.mark.parametrize(
        ("steps", "text", "covered"),
        [
            (3, "::3", {-3, 0, 3, 6, 9}),
            (1, ":", set(range(-3, 10))),
            ("3", "3:4", {3}),
            ("-2", "-2:-1", {-2}),
            ("0:2,7:,::5", "0:2,7:,::5", {0, 1, 5, 7, 8, 9}),
            (" 1:8:3 , :-1", "1:8:3,:-1", {-3, -2, 1, 4, 7}),
            (range(2, 9, 3), "2:9:3", {2, 5, 8}),
            (range(8, 1, -3), "2:11:3", {2, 5, 8}),
            (slice(None, 2), ":2", {-3, -2, -1, 0, 1}),
            (slice(1, None, 4), "1::4", {1, 5, 9}),
            ([range(2), 5, "8:"], "0:2,5:6,8:", {0, 1, 5, 8, 9}),
        ],
    )
    def test_covered_steps(self, steps: object, text: str, covered: set[int]) -> None:
        schedule = parse_schedule(steps)
        assert {step for step in range(-3, 10) if schedule.covers(step)} == covered
        assert schedule.covers(None)
        assert str(schedule) == text
        assert parse_schedule(text) == schedule

    @pytest.mark.parametrize(
        "steps",
        [
            *(0, -1, True, 2.0, "", "a", "1:2:0", "1:2:-1", "5:5", ":::", "1;2", "0:10,", [], [[1]], [None]),
            *({}, slice(1, 2, 0), slice("a"), range(0), range(3, 3), object()),
        ],
    )
    def test_invalid_schedules(self, steps: object, tmp_path: Path) -> None:
        with pytest.raises(SettingError, match="steps is "):
            tfdbg_arrow.enable(tmp_path, steps=steps)
        assert not tfdbg_arrow.is_recording()

    def test_the_gate_counts_steps_and_not_marks(self) -> None:
        gate = StepGate(parse_schedule("::2"))
        assert [gate.enter(step) for step in (0, 1, 1, 2, 3)] == [True, False, False, True, False]
        assert (gate.num_steps, gate.num_skipped) == (4, 2)


@pytest.mark.slow
@pytest.mark.parametrize("backend", mostly_slow(BACKENDS, fast=["native"]))
def test_the_rows_equal_those_steps_of_a_full_recording(backend: str, tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path / "full", health_backend=backend):
        losses = train(6)
    with tfdbg_arrow.capture(tmp_path / "some", health_backend=backend, steps="1,4:"):
        assert train(6) == pytest.approx(losses, rel=1e-6)
    assert facts(tmp_path / "some") == facts(tmp_path / "full", steps={None, 1, 4, 5})
    full = executions(tmp_path / "full")
    assert executions(tmp_path / "some") == Counter({key: n for key, n in full.items() if key[1] in {None, 1, 4, 5}})
    # All graphs and marks are recorded.
    for name in ("graph", "graph_op", "graph_op_output", "graph_call", "mark"):
        assert len(rows(tmp_path / "some", name)) == len(rows(tmp_path / "full", name)), name
    stats = sorted((row["stat"], row["subject"], row["reason"]) for row in rows(tmp_path / "some", "capture_stat"))
    assert stats == [
        ("disabled", "step 0", "The steps outside of the schedule 1:2,4: were not recorded, as requested."),
        ("disabled", "steps", "3 of 6 steps were outside of the schedule 1:2,4: and were not recorded, as requested."),
    ]
    assert rows(tmp_path / "full", "capture_stat") == []


def test_a_schedule_causes_no_retracing_and_is_not_reported_if_it_skips_nothing(tmp_path: Path) -> None:
    traces = []

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        traces.append(x)
        return tf.exp(x)

    with tfdbg_arrow.capture(tmp_path, steps=":100"):
        for step in range(4):
            tfdbg_arrow.mark(step=step)
            f(tf.constant(1.0))
    assert rows(tmp_path, "capture_stat") == []
    assert len(traces) == 1
    with tfdbg_arrow.capture(tmp_path, steps="::2"):
        for step in range(6):
            tfdbg_arrow.mark(step=step)
            f(tf.constant(1.0))
    assert len(traces) == 2


@pytest.mark.parametrize("backend", mostly_slow(BACKENDS, fast=["native"]))
def test_random_numbers_equal_those_of_an_unrecorded_program(backend: str, tmp_path: Path) -> None:
    """Kernels with a state, such as the kernels of random ops, must not run in two copies of a function."""

    def draw() -> list[float]:
        tf.random.set_seed(3)

        @tf.function
        def inner(x: tf.Tensor) -> tf.Tensor:
            return x + tf.random.normal([], seed=5)

        @tf.function
        def f(x: tf.Tensor) -> tf.Tensor:
            return inner(x) * 2.0

        found = []
        for step in range(6):
            tfdbg_arrow.mark(step=step)
            found.append(float(f(tf.constant(1.0))))
        return found

    unrecorded = draw()
    with tfdbg_arrow.capture(tmp_path, health_backend=backend, steps="::2"):
        assert draw() == unrecorded
    steps = {row["step"] for row in rows(tmp_path, "tensor_health") if row["op_type"] == "RandomStandardNormal"}
    assert steps == {0, 2, 4}


def test_errors_in_skipped_steps_are_tensorflows_own(tmp_path: Path) -> None:
    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_positive(x, message="told so")
        return x + 1.0

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return inner(x)

    def message() -> str:
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            f(tf.constant(-1.0))
        return "\n".join(line for line in str(caught.value).splitlines() if "__" not in line)

    with tfdbg_arrow.capture(tmp_path, steps="::2"):
        tfdbg_arrow.mark(step=0)
        recorded = message()
        tfdbg_arrow.mark(step=1)
        assert message() == recorded
        assert "TfdbgArrow" not in recorded
        assert "tfdbg_arrow_" not in recorded
        assert "told so" in recorded
        assert "Detected at node" in recorded
        assert "stack traces unavailable" not in recorded


def test_functions_work_after_a_recording_ends_in_a_skipped_step(tmp_path: Path) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.exp(x)

    with tfdbg_arrow.capture(tmp_path / "a", steps="5:"):
        tfdbg_arrow.mark(step=0)
        f(tf.constant(0.0))
    assert float(f(tf.constant(0.0))) == 1.0
    # The next recording does not continue the schedule of this recording.
    with tfdbg_arrow.capture(tmp_path / "b"):
        f(tf.constant(0.0))
    assert [row["op_type"] for row in rows(tmp_path / "a", "tensor_health")] == []
    assert "Exp" in [row["op_type"] for row in rows(tmp_path / "b", "tensor_health")]


class TestQueries:
    def test_an_origin_in_a_skipped_step_is_not_attributed_to_another_op(self, tmp_path: Path) -> None:
        """The variable becomes NaN in the skipped step 1, and step 2 reads it."""
        variable = tf.Variable([1.0, 2.0])

        @tf.function
        def step_function(scale: tf.Tensor) -> tf.Tensor:
            variable.assign(tf.math.log(variable * scale))
            return tf.reduce_sum(variable.read_value())

        with tfdbg_arrow.capture(tmp_path, steps="::2"):
            for step, scale in enumerate((3.0, -1.0, 1.0)):
                tfdbg_arrow.mark(step=step)
                step_function(tf.constant(scale))
        found = tfdbg_arrow.first_nonfinite(tmp_path)
        assert found is not None
        (row,) = [row for row in rows(tmp_path, "tensor_health") if row["event_index"] == found.event_index]
        assert (row["step"], found.op_type, found.is_origin) == (2, "ReadVariableOp", False)
        assert {row["step"] for row in rows(tmp_path, "tensor_health") if row["has_inf_or_nan"]} == {2}
        assert any("1 of 3 steps" in reason for reason in found.left_out)

    def test_an_eager_tensor_of_a_skipped_step_is_not_an_origin(self, tmp_path: Path) -> None:
        with tfdbg_arrow.capture(tmp_path, steps="::2"):
            tfdbg_arrow.mark(step=1)
            bad = tf.math.log(tf.constant(-1.0))
            tfdbg_arrow.mark(step=2)
            tf.exp(bad)
        found = tfdbg_arrow.first_nonfinite(tmp_path)
        assert found is not None
        assert (found.op_type, found.is_origin) == (None, False)
        # A tensor from before the first skipped step is an origin.
        with tfdbg_arrow.capture(tmp_path / "b", steps="::2"):
            tf.exp(tf.constant(np.nan))
            tfdbg_arrow.mark(step=1)
        found = tfdbg_arrow.first_nonfinite(tmp_path / "b")
        assert found is not None
        assert (found.op_type, found.is_origin) == (None, True)

    def test_an_origin_in_a_recorded_step_is_proven(self, tmp_path: Path) -> None:
        variable = tf.Variable([1.0, 2.0])
        with tfdbg_arrow.capture(tmp_path, steps="::2"):
            for step in range(3):
                tfdbg_arrow.mark(step=step)
                variable.assign_add([1.0, 1.0])
                tf.math.log(variable * (-1.0 if step == 2 else 1.0))
        found = tfdbg_arrow.first_nonfinite(tmp_path)
        assert found is not None
        assert (found.op_type, found.is_origin) == ("Log", True)
