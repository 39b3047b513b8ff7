"""The black box: `circular_buffer_size=N, dump_on="nonfinite", dump_after=M`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tests.sampling import mostly_slow
from tfdbg_arrow.spool.convert import EVENT_TABLES

from .subprocesses import run_python
from .tables import Rows, rows

KEPT_BACK = "The circular buffer kept only the events around bad values, as requested."


@tf.function
def logarithm(x: tf.Tensor) -> tf.Tensor:
    return tf.math.log(x)


def calls(values: list[float]) -> None:
    """Calls the function once for each value: each call has one execution and two graph tensors."""
    for step, value in enumerate(tf.constant(values)):
        tfdbg_arrow.mark(step=step)
        logarithm(value)


def comparable(found: Rows) -> list[str]:
    """Returns rows without the columns that differ between two recordings of one program. Steps identify the rows.

    The rows are texts, because a NaN does not equal itself.
    """
    volatile = {"run_id", "event_index", "wall_time_ns", "wall_time", "step_id", "frame_id", "device_id", "graph_id"}
    volatile |= {"execution_index", "tensor_id", "stack_trace_id", "thread_id", "op_type"}
    return sorted(repr({key: value for key, value in row.items() if key not in volatile}) for row in found)


def of_calls(logdir: Path, name: str, steps: set[int]) -> Rows:
    executions = {row["execution_index"] for row in rows(logdir, "execution") if "logarithm" in row["op_type"]}
    found = [row for row in rows(logdir, name) if row["execution_index"] in executions]
    return [row for row in found if row["step"] in steps and row.get("scope") != "external"]


def steps_of(logdir: Path) -> list[int]:
    return sorted(row["step"] for row in rows(logdir, "execution") if "logarithm" in row["op_type"])


def dump(logdir: Path, *, size: int = 3, after: int | None = None, **settings: Any) -> Any:
    return tfdbg_arrow.capture(logdir, circular_buffer_size=size, dump_on="nonfinite", dump_after=after, **settings)


@pytest.mark.parametrize("backend", mostly_slow(["native", "tensorflow"], fast=["native"]))
def test_no_event_of_a_healthy_run_is_written(backend: str, tmp_path: Path) -> None:
    with dump(tmp_path, health_backend=backend, tensor_debug_mode="FULL_TENSOR"):
        calls([1.0] * 20)
        tfdbg_arrow.flush()
        for name in EVENT_TABLES:
            assert rows(tmp_path, name) == [], name
    for name in EVENT_TABLES:
        assert rows(tmp_path, name) == [], name
    assert [row["op_type"] for row in rows(tmp_path, "graph_op")].count("Log") == 1
    assert len(rows(tmp_path, "mark")) == 20
    (run,) = rows(tmp_path, "run")
    assert (run["is_clean_end"], '"dump_on":"nonfinite"' in run["settings"].replace(" ", "")) == (True, True)
    (stat,) = rows(tmp_path, "capture_stat")
    assert (stat["stat"], stat["reason"]) == ("dropped", KEPT_BACK)
    assert stat["num_events"] > 20
    assert tfdbg_arrow.first_nonfinite(tmp_path) is None
    # All parts of the tables of events are empty.
    assert sum(len(list((tmp_path / name).rglob("*.parquet"))) for name in EVENT_TABLES) == len(EVENT_TABLES)


def test_a_bad_value_writes_the_events_before_and_after_it(tmp_path: Path) -> None:
    values = [1.0] * 10 + [-1.0] + [1.0] * 10
    with tfdbg_arrow.capture(tmp_path / "full"):
        calls(values)
    with dump(tmp_path / "box", size=4, after=6):
        calls(values)
    # Six more events follow. The events of a call are an execution, an argument, a Log, and a slice of the constant in
    # the loop.
    found = steps_of(tmp_path / "box")
    assert found == list(range(found[0], found[-1] + 1))
    assert 7 <= found[0] <= 9
    assert 11 <= found[-1] <= 13
    whole = set(found[1:-1])
    for name in ("execution", "tensor_health"):
        assert comparable(of_calls(tmp_path / "box", name, whole)) == comparable(
            of_calls(tmp_path / "full", name, whole)
        )
    first = tfdbg_arrow.first_nonfinite(tmp_path / "box")
    assert first is not None
    assert (first.op_type, first.num_nan) == ("Log", 1)
    assert any(KEPT_BACK in text for text in first.left_out)


def test_a_bad_value_is_written_at_once_and_survives_a_kill(tmp_path: Path) -> None:
    program = """
        import os, signal, sys, time
        import numpy as np, pyarrow.dataset as ds, tensorflow as tf, tfdbg_arrow
        logdir = sys.argv[1]
        tfdbg_arrow.enable(logdir, circular_buffer_size=5, dump_on="nonfinite", dump_after=2)
        for number in range(30):
            tf.exp(np.float32(number))
        tf.math.log(np.float32(-1.0))
        end = time.monotonic() + 20
        while not ds.dataset(logdir + "/tensor_health").count_rows() and time.monotonic() < end:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    run_python(tmp_path / "program.py", program, tmp_path / "logdir", returncode=-signal.SIGKILL)
    assert [row["op_type"] for row in rows(tmp_path / "logdir", "execution")] == [*["Exp"] * 4, "Log"]
    found = tfdbg_arrow.first_nonfinite(tmp_path / "logdir")
    assert found is not None
    assert (found.op_type, found.source is not None) == ("Log", True)


def executed(numbers: list[float]) -> None:
    """Runs an eager op for each number: one execution and one tensor each."""
    for number in numbers:
        tf.raw_ops.Neg(x=np.float32(number))


def outputs(logdir: Path) -> list[float]:
    values = {row["event_index"]: row["value"] for row in rows(logdir, "tensor_value")}
    found = [row["event_index"] for row in rows(logdir, "tensor_health") if row["scope"] == "execution"]
    return [-float(np.frombuffer(values[event], np.float32)[0]) for event in sorted(found)]


def test_it_fills_again_and_ignores_a_value_that_stays_bad(tmp_path: Path) -> None:
    inf, nan = float("inf"), float("nan")
    with dump(tmp_path, size=3, after=1, tensor_debug_mode="FULL_TENSOR"):
        executed([1, 2, 3, 4, inf, 5, 6, 7, inf, 8, 9, 10, 11, 12, inf, 13, 14])
        tfdbg_arrow.flush()
        executed([15, nan, 16, 17, 18])
    # The second inf is not written: only three healthy events come before it, and the box holds three events.
    expected = [3.0, 4.0, inf, 5.0, 11.0, 12.0, inf, 13.0, 14.0, 15.0, nan, 16.0]
    assert np.array_equal(outputs(tmp_path), expected, equal_nan=True)
