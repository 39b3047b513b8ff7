"""`enable_dump_debug_info` and `disable_dump_debug_info` have TensorFlow's signatures and meaning."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.errors import RecordingError, SettingError

from .tables import rows


@pytest.fixture(autouse=True)
def nothing_left_on() -> Iterator[None]:
    yield
    tfdbg_arrow.disable_dump_debug_info()
    tfdbg_arrow.disable()


def op_types(logdir: Path) -> list[str]:
    return [row["op_type"] for row in rows(logdir, "execution")]


def test_the_signatures_are_tensorflows() -> None:
    experimental = tf.debugging.experimental
    for ours, theirs in (
        (tfdbg_arrow.enable_dump_debug_info, experimental.enable_dump_debug_info),
        (tfdbg_arrow.disable_dump_debug_info, experimental.disable_dump_debug_info),
    ):
        parameters = inspect.signature(theirs).parameters.values()
        assert [(p.name, p.default) for p in inspect.signature(ours).parameters.values()] == [
            (p.name, p.default) for p in parameters
        ]


def test_the_defaults_are_tensorflows(tmp_path: Path) -> None:
    writer = tfdbg_arrow.enable_dump_debug_info(str(tmp_path))
    tf.exp(1.0)
    tfdbg_arrow.disable_dump_debug_info()
    (run,) = rows(tmp_path, "run")
    assert (run["tensor_debug_mode"], run["circular_buffer_size"], run["is_clean_end"]) == ("NO_TENSOR", 1000, True)
    assert (rows(tmp_path, "tensor_health"), op_types(tmp_path)) == ([], ["Exp"])
    assert writer.dump_root == str(tmp_path)
    assert not tfdbg_arrow.is_recording()


def test_the_buffers_hold_the_last_executions_and_the_last_graph_tensors_until_flushed(tmp_path: Path) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.exp(x)

    writer = tfdbg_arrow.enable_dump_debug_info(str(tmp_path), "FULL_HEALTH", circular_buffer_size=3)
    for number in range(10):
        f(tf.constant(float(number)))
    assert op_types(tmp_path) == []
    writer.FlushExecutionFiles()
    assert [row["execution_index"] for row in rows(tmp_path, "execution")] == [7, 8, 9]
    graph = [(row["op_type"], row["execution_index"]) for row in rows(tmp_path, "tensor_health") if row["op_name"]]
    assert len(graph) == 3
    assert {execution for _, execution in graph} <= {8, 9}
    tf.exp(1.0)
    writer.FlushNonExecutionFiles()
    assert [row["execution_index"] for row in rows(tmp_path, "execution")] == [7, 8, 9, 10]


def test_the_same_call_again_is_idempotent_and_other_settings_raise(tmp_path: Path) -> None:
    root = str(tmp_path)
    same: dict[str, Any] = {"op_regex": "Exp|Log", "tensor_dtypes": [tf.float32, "float16"]}
    tfdbg_arrow.enable_dump_debug_info(root, "FULL_HEALTH", -1, **same)
    tf.exp(1.0)
    for dtypes in (["float16", tf.float32], lambda dtype: dtype in (tf.float32, tf.float16)):
        writer = tfdbg_arrow.enable_dump_debug_info(root, "FULL_HEALTH", -1, **{**same, "tensor_dtypes": dtypes})
    for settings, name in (
        (("SHAPE", -1, "Exp|Log", ["float32", "float16"]), "tensor_debug_mode is 'SHAPE'"),
        (("FULL_HEALTH", 10, "Exp|Log", ["float32", "float16"]), "circular_buffer_size is 10"),
        (("FULL_HEALTH", -1, "Exp", ["float32", "float16"]), "op_regex is 'Exp'"),
        (("FULL_HEALTH", -1, None, ["float32", "float16"]), "op_regex is None"),
        (("FULL_HEALTH", -1, "Exp|Log", ["float32"]), "tensor_dtypes is"),
        (("FULL_HEALTH", -1, "Exp|Log"), "tensor_dtypes is None"),
    ):
        with pytest.raises(ValueError, match="call disable_dump_debug_info") as caught:
            tfdbg_arrow.enable_dump_debug_info(root, *settings)
        assert isinstance(caught.value, SettingError)
        assert name in str(caught.value)
    with pytest.raises(ValueError, match="'NO_SUCH'"):
        tfdbg_arrow.enable_dump_debug_info(root, "NO_SUCH")
    tf.math.log(1.0)
    writer.FlushExecutionFiles()
    assert op_types(tmp_path) == ["Exp", "Log"]
    assert len(rows(tmp_path, "run")) == 1


@pytest.mark.parametrize("mode", ["NO_TENSOR", "FULL_HEALTH"])
@pytest.mark.parametrize(
    "dtypes",
    [
        "float32", "", 1, 0, {}, set(), {tf.float32}, {"float32": True}, frozenset(), b"float32", tf.float32,
        np.array(["float32"]), range(1), ["nothing"], [None], [[tf.float32]], (tf.float32, "nothing"), [-1],
    ],
    ids=repr,
)  # fmt: skip
def test_bad_dtypes_raise_what_tensorflow_raises(dtypes: Any, mode: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError)) as theirs:
        tf.debugging.experimental.enable_dump_debug_info(str(tmp_path / "theirs"), mode, tensor_dtypes=dtypes)
    with pytest.raises(theirs.type, match=r"tensor_dtypes (is|has) .*(expected|give)") as ours:
        tfdbg_arrow.enable_dump_debug_info(str(tmp_path / "ours"), mode, tensor_dtypes=dtypes)
    assert isinstance(ours.value, SettingError)
    assert not tfdbg_arrow.is_recording()
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    "dtypes",
    [[], (), None, (tf.float32,), ["float32", np.float16], [np.dtype("float64"), 1], lambda dtype: dtype.is_floating],
)
def test_good_dtypes_are_taken_as_by_tensorflow(dtypes: Any, tmp_path: Path) -> None:
    tf.debugging.experimental.enable_dump_debug_info(str(tmp_path / "theirs"), "FULL_HEALTH", tensor_dtypes=dtypes)
    tf.debugging.experimental.disable_dump_debug_info()
    tfdbg_arrow.enable_dump_debug_info(str(tmp_path / "ours"), "FULL_HEALTH", tensor_dtypes=dtypes)
    assert tfdbg_arrow.is_recording()


def test_another_dump_root_replaces_the_first(tmp_path: Path) -> None:
    tfdbg_arrow.enable_dump_debug_info(str(tmp_path / "a"))
    tf.exp(1.0)
    tfdbg_arrow.enable_dump_debug_info(str(tmp_path / "b"))
    tf.math.log(1.0)
    tfdbg_arrow.disable_dump_debug_info()
    tf.sin(1.0)
    assert (op_types(tmp_path / "a"), op_types(tmp_path / "b")) == (["Exp"], ["Log"])
    assert [row["is_clean_end"] for name in "ab" for row in rows(tmp_path / name, "run")] == [True, True]


def test_disable_ends_only_its_own_recording(tmp_path: Path) -> None:
    tfdbg_arrow.disable_dump_debug_info()
    tfdbg_arrow.enable(tmp_path / "own")
    tfdbg_arrow.disable_dump_debug_info()
    assert tfdbg_arrow.is_recording()
    with pytest.raises(RecordingError, match="is active"):
        tfdbg_arrow.enable_dump_debug_info(str(tmp_path / "dump"))
    tfdbg_arrow.disable()
    # After disable(), other settings are allowed.
    tfdbg_arrow.enable_dump_debug_info(str(tmp_path / "dump"), "FULL_HEALTH")
    tfdbg_arrow.disable()
    tfdbg_arrow.enable_dump_debug_info(str(tmp_path / "dump"), "SHAPE")
    tfdbg_arrow.disable_dump_debug_info()
    tfdbg_arrow.disable_dump_debug_info()
    assert sorted(row["tensor_debug_mode"] for row in rows(tmp_path / "dump", "run")) == ["FULL_HEALTH", "SHAPE"]


def test_turned_off_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFDBG_ARROW", "0")
    writer = tfdbg_arrow.enable_dump_debug_info(str(tmp_path / "dump"))
    writer.FlushExecutionFiles()
    tfdbg_arrow.disable_dump_debug_info()
    assert not (tmp_path / "dump").exists()
