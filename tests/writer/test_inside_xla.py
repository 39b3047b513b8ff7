"""Functions that XLA compiles keep their numbers, and every tensor inside is recorded."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.platform import tf_logging

import tfdbg_arrow
from tests.sampling import mostly_slow
from tfdbg_arrow.errors import NonFiniteError, SettingError
from tfdbg_arrow.writer.recording import recording as recording_module
from tfdbg_arrow.writer.tensorflow_backend.compiled import CompiledSummaries

from .compiled import PROGRAMS
from .counting import UNSEEN, plain
from .tables import rows
from .test_xla import X, flat, is_compiled, record, stats

MODES = ("CURT_HEALTH", "CONCISE_HEALTH", "FULL_HEALTH", "FULL_NUMERICS", "SHAPE")
WAYS = ("native call", "XLA ops")
"""The ways to summarize tensors: with the native core, or with ops of XLA, as on an accelerator."""
COUNTS = ("num_neg_inf", "num_pos_inf", "num_nan", "num_neg_finite", "num_zero", "num_pos_finite", "num_subnormal")
MAGNITUDES = ("min_finite", "max_finite", "mean_finite", "stddev_finite", "max_abs_finite")
FACTS = ("size", "shape", "has_inf_or_nan", *COUNTS)


@pytest.fixture(params=mostly_slow(WAYS, fast=["native call"]))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "XLA ops":
        monkeypatch.setattr(recording_module, "compiled_calls", lambda: None)
    return name


def in_both_ways(values: Iterable[Any], *, always: Any) -> list[Any]:
    """Returns values with each way. With ops of XLA, only `make exhaustive` takes other values than `always`."""
    return [
        pytest.param(value, way, marks=pytest.mark.exhaustive if way == "XLA ops" and value != always else ())
        for value in values
        for way in WAYS
    ]


def in_graphs(logdir: Path) -> list[dict[str, Any]]:
    return [row for row in rows(logdir, "tensor_health") if row["graph_id"] is not None]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), in_both_ways(PROGRAMS, always="gradients"), indirect=["way"])
def test_a_program_keeps_its_numbers_and_is_recorded(name: str, way: str, tmp_path: Path) -> None:
    wanted = flat(PROGRAMS[name]())
    results, warned = record(tmp_path, PROGRAMS[name], xla="inside")
    assert results == wanted
    assert warned == []
    assert stats(tmp_path) == []
    assert {row["not_recorded_reason"] for row in rows(tmp_path, "graph_op_output")} <= {None, "dtype"}
    optimized = {row["graph_id"] for row in rows(tmp_path, "executed_op")}
    seen = {(row["graph_id"], row["op_name"], row["output_slot"]) for row in in_graphs(tmp_path)}
    missing: dict[int, list[str]] = {}
    for row in rows(tmp_path, "graph_op_output"):
        if row["is_recorded"] and (row["graph_id"], row["op_name"], row["output_slot"]) not in seen:
            missing.setdefault(row["graph_id"], []).append(row["op_name"])
    # A graph that never ran has no rows. Examples are a branch, or a function of which only the gradient was called.
    have_rows = {graph_id for graph_id, _, _ in seen}
    assert {graph_id: names for graph_id, names in missing.items() if graph_id in have_rows - optimized} == {}


def special(dtype: str) -> Any:
    if dtype.startswith("complex"):
        values = [0, -0.0, 1, -1, 1j, -1j, complex(np.inf, 0), complex(0, -np.inf), complex(np.nan, np.inf), 1e-42]
    elif dtype == "bool":
        values = [True, False, True]
    elif dtype.startswith("uint"):
        values = [0, 1, 5]
    elif dtype.startswith("int"):
        values = [0, -1, 5, 7]
    else:
        values = [0.0, -0.0, 1.0, -2.0, 3.5, np.inf, -np.inf, np.nan, -np.nan, 1e-6, 1e-40, -1e-40, 5e-324]
    return np.array(values).astype(getattr(ml_dtypes, dtype, dtype))


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "way"), in_both_ways(MODES, always="FULL_NUMERICS"), indirect=["way"])
def test_a_tensor_has_the_same_row_inside_and_outside_of_xla(mode: str, way: str, tmp_path: Path) -> None:
    dtypes = ("float64", "float32", "float16", "bfloat16", "float8_e5m2", "complex64", "complex128", "int8", "uint32")
    inputs = [tf.constant(special(dtype)) for dtype in (*dtypes, "int64", "bool")]

    @tf.function(jit_compile=True)
    def same(*tensors: tf.Tensor) -> Any:
        return [(tf.reshape(t, [-1, 1]), tf.tile(t, [3]), t[:0], tf.tile(t, [0]), tf.roll(t, 1, 0)) for t in tensors]

    with tfdbg_arrow.capture(tmp_path, mode, tensor_dtypes=lambda dtype: True):
        same(*inputs)
    facts = [*FACTS, *MAGNITUDES]
    outside: dict[tuple[str, int, str], list[Any]] = {}
    for row in rows(tmp_path, "tensor_health"):
        if row["graph_id"] is None:
            outside.setdefault((row["dtype"], row["size"], str(row["shape"])), [row[fact] for fact in facts])
    inside = [row for row in in_graphs(tmp_path) if row["op_type"] in ("Reshape", "Tile", "Roll", "Placeholder")]
    assert {row["dtype"] for row in inside} == {row[0] for row in outside}
    for row in inside:
        wanted = outside[row["dtype"], row["size"], str(row["shape"])]
        got = [row[fact] for fact in facts]
        assert got[: len(FACTS)] == wanted[: len(FACTS)], (row["dtype"], row["op_type"], got, wanted)
        for one, other in zip(got[len(FACTS) :], wanted[len(FACTS) :], strict=True):
            # The tolerance of mean and stddev in spec/README.md.
            assert one == other or one == pytest.approx(other, rel=1e-13), row


def test_the_native_core_places_bad_elements_inside_of_xla(tmp_path: Path) -> None:
    values = np.ones((6, 5), np.float32)
    values[2, 3] = values[4, 0] = values[4, 1] = 0

    @tf.function(jit_compile=True)
    def f(x: tf.Tensor) -> Any:
        y = tf.math.log(x)
        for _ in tf.range(2):
            y = y * 2.0
        return y, tf.tile(y, [2, 1]), tf.transpose(y), tf.reduce_sum(y)

    with tfdbg_arrow.capture(tmp_path, xla="inside"):
        f(tf.constant(values))
    places: dict[str, set[tuple[int | None, int | None]]] = {}
    for row in in_graphs(tmp_path):
        if row["has_inf_or_nan"]:
            places.setdefault(row["op_type"], set()).add((row["first_bad_index"], row["num_bad_slices"]))
    assert (places["Log"], places["Mul"], places["Sum"]) == ({(13, 2)}, {(13, 2)}, {(0, None)})
    # The rows of these ops are made from the rows of their inputs.
    assert (places["Tile"], places["Transpose"]) == ({(None, None)}, {(None, None)})


def loop(x: tf.Tensor) -> tf.Tensor:
    for i in tf.range(6):
        x = tf.math.log(x - 8.0) if tf.equal(i, 3) else x + 1.0
    return x * 2.0


def loop_in_a_loop(x: tf.Tensor) -> tf.Tensor:
    total = tf.zeros_like(x)
    for i in tf.range(3):
        for k in tf.range(4):
            total += tf.math.sqrt(x - tf.cast(i * k, tf.float32))
        x = x * 1.5
    return total


def calls_in_a_loop(x: tf.Tensor) -> tf.Tensor:
    @tf.function
    def root(y: tf.Tensor) -> tf.Tensor:
        return tf.math.sqrt(y - 1.0)

    times = 0
    while tf.reduce_sum(root(x)) < 9.0 and times < 5:
        x = root(x + 3.0) + root(x * 4.0)
        times += 1
    return root(x)


def never_entered(x: tf.Tensor) -> tf.Tensor:
    while tf.reduce_sum(x) < 0.0:
        x = x * 2.0
    return x


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "way"),
    in_both_ways([loop, loop_in_a_loop, calls_in_a_loop, never_entered], always=calls_in_a_loop),
    indirect=["way"],
)
def test_the_first_bad_and_the_last_iteration_of_a_loop_are_recorded(
    program: Callable[[tf.Tensor], tf.Tensor], way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[object] = []
    monkeypatch.setattr(tf_logging, "warning", lambda message, *arguments: messages.append(message))
    x = tf.constant([2.0, 5.0])
    whole, inside = tmp_path / "observe", tmp_path / "inside"
    for logdir in (whole, inside):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with tfdbg_arrow.capture(logdir, xla=logdir.name, graphs="traced"):
                tf.function(program, jit_compile=True)(x)
    assert not messages, "TensorFlow warns of nothing in the recorder's own functions"
    of_whole, of_inside = (computed(logdir) for logdir in (whole, inside))
    keys = {key(row) for row in of_inside}
    assert keys <= {key(row) for row in of_whole}
    if program is not loop_in_a_loop:
        assert keys == {key(row) for row in of_whole if is_kept(row, of_whole)}
    found, wanted = tfdbg_arrow.first_nonfinite(inside), tfdbg_arrow.first_nonfinite(whole)
    assert (found is None) == (wanted is None)
    if found is not None and wanted is not None:
        assert (found.op_type, found.source, found.iteration) == (wanted.op_type, wanted.source, wanted.iteration)
        assert found.is_origin


@pytest.mark.parametrize("is_carried", [True, False])
def test_an_overflow_of_the_state_of_a_loop_is_explained_although_earlier_iterations_are_not_recorded(
    is_carried: bool, tmp_path: Path
) -> None:
    @tf.function(jit_compile=True)
    def grow(x: tf.Tensor) -> tf.Tensor:
        total = tf.zeros_like(x)
        for i in tf.range(12):
            scale = tf.pow(10.0, tf.cast(6 * i, tf.float32))
            x = (x + 1.0) * 1e6 if is_carried else x + 1.0
            total += 0.0 if is_carried else x * scale
        return x + total

    with tfdbg_arrow.capture(tmp_path, xla="inside"):
        grow(tf.constant([1.0, 2.0]))
    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    assert (first.op_type, first.iteration) == (("Mul", 6) if is_carried else ("Pow", 7))
    growth = "The loop computes each result from the one before, and stayed finite for 6 iterations."
    with tfdbg_arrow.open_logdir(tmp_path) as opened:
        (origin,) = (hop for hop in opened.provenance(first).hops if hop.event_index == first.event_index)
    assert origin.why is not None
    assert origin.why.endswith(growth) == is_carried
    assert str(origin.repair).startswith("Keep the state of the loop from growing") == is_carried


def computed(logdir: Path) -> list[dict[str, Any]]:
    """Returns the rows of ops that compute. Other ops have rows only inside XLA."""
    return [row for row in in_graphs(logdir) if plain(row["op_type"]) not in {*UNSEEN, "Placeholder"}]


def is_kept(row: dict[str, Any], all_rows: list[dict[str, Any]]) -> bool:
    """Returns True outside loops, and in a loop for its first bad iteration, last iteration and last condition."""
    if not row["frame_id"]:
        return True
    loop_rows = [each for each in all_rows if each["frame_id"] == row["frame_id"]]
    of_body = {each["iteration"] for each in loop_rows if "/body" in each["call_site"]}
    bad = {each["iteration"] for each in loop_rows if each["has_inf_or_nan"]}
    return row["iteration"] in {min(bad & of_body, default=-1), max(of_body, default=-1)} or (
        row["iteration"] == max(of_body, default=-1) + 1
    )


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the values of a row without numbers that differ between recordings, such as those of inlined calls."""
    site = "/".join(part for part in row["call_site"].split("/") if not part.startswith("_"))
    names = [re.sub(r"_\d+(?=_|$)|Stateful", "", name) for name in (row["op_name"], site)]
    return (*names, row["iteration"], row["output_slot"], *(str(row[fact]) for fact in FACTS))


def masked(x: tf.Tensor) -> tf.Tensor:
    return tf.math.log(tf.boolean_mask(x, x > 1.0))


def cut(x: tf.Tensor) -> tf.Tensor:
    return x[: tf.math.count_nonzero(x > 1.0)] * 2.0


@pytest.mark.slow
@pytest.mark.parametrize("program", [masked, cut])
def test_a_tensor_whose_shape_depends_on_values_is_recorded(
    program: Callable[[tf.Tensor], tf.Tensor], tmp_path: Path
) -> None:
    compiled = tf.function(program, jit_compile=True)
    around = tf.function(lambda x: compiled(x) + 1.0)
    wanted = flat((compiled(X), around(X)))
    results, warned = record(tmp_path, lambda: (compiled(X), around(X)))
    assert (results, warned) == (wanted, [])
    sizes = {row["size"] for row in in_graphs(tmp_path) if row["op_type"] in ("Log", "Mul")}
    assert sizes == {1}


@pytest.mark.slow
def test_a_function_that_xla_rejects_fails_as_without_a_recording(tmp_path: Path) -> None:
    compiled = tf.function(lambda x: tf.strings.length(tf.strings.as_string(x)), jit_compile=True)
    around = tf.function(lambda x: compiled(x) + 1)
    for function in (compiled, around):
        with pytest.raises(tf.errors.InvalidArgumentError) as wanted:
            function(X)
        with tfdbg_arrow.capture(tmp_path), pytest.raises(tf.errors.InvalidArgumentError) as error:
            function(X)
        assert (
            error.value.message.splitlines()[0].partition("__inference")[0]
            == (wanted.value.message.splitlines()[0].partition("__inference")[0])
        )
        assert "tfdbg_arrow" not in error.value.message
    assert stats(tmp_path) == []


@pytest.mark.parametrize("failing", ["row_node", "add_function_def", "refused"])
def test_a_function_that_cannot_be_recorded_runs_and_is_reported(
    failing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*args: Any) -> Any:
        raise ValueError("not today")

    def unknown_call(self: CompiledSummaries, *args: Any) -> Any:
        return self._host_call_node(0, "no numbers", (1, 1))  # an operand of a wrong type

    if failing == "refused":
        monkeypatch.setattr(CompiledSummaries, "row_node", unknown_call)
    else:
        monkeypatch.setattr(CompiledSummaries, failing, fail)
    compiled = tf.function(lambda x: tf.math.log(x), jit_compile=True)
    results, warned = record(tmp_path, lambda: [compiled(X) for _ in range(3)])
    assert results == flat([compiled(X)] * 3)
    assert len(warned) == 1
    assert len(stats(tmp_path)) == 1
    assert in_graphs(tmp_path) == []
    calls = [row["op_type"] for row in rows(tmp_path, "execution")]
    assert len(calls) == 3
    assert len(set(calls)) == 1


@pytest.mark.slow
def test_a_bad_value_stops_the_program_after_the_compiled_function(way: str, tmp_path: Path) -> None:
    compiled = tf.function(lambda x: tf.math.log(x) * 2.0, jit_compile=True)
    around = tf.function(lambda x: compiled(x) + 1.0)
    for number, function in enumerate((compiled, around)):
        logdir = tmp_path / str(number)
        with tfdbg_arrow.capture(logdir, on_nonfinite="raise"):
            assert function(X).shape == (2,)
            with pytest.raises(NonFiniteError) as error:
                function(X - X)
        assert error.value.nonfinite is not None
        assert (error.value.nonfinite.op_type, error.value.nonfinite.is_origin) == ("Log", True)


def test_a_callable_gets_a_bad_value_of_a_compiled_function(tmp_path: Path) -> None:
    heard: list[Any] = []
    compiled = tf.function(lambda x: tf.math.log(x) * 2.0, jit_compile=True)
    with tfdbg_arrow.capture(tmp_path, on_nonfinite=heard.append):
        compiled(X - X)
    assert [each.op_type for each in heard] == ["Log"]


def test_a_skipped_step_runs_the_original_function(tmp_path: Path) -> None:
    compiled = tf.function(lambda x: tf.math.log(x), jit_compile=True)
    with tfdbg_arrow.capture(tmp_path, steps=2):
        for step in range(6):
            tfdbg_arrow.mark(step=step)
            compiled(X)
    assert [row["step"] for row in in_graphs(tmp_path) if row["op_type"] == "Log"] == [0, 2, 4]


def test_random_numbers_stay_the_same_with_skipped_steps(tmp_path: Path) -> None:
    def numbers(mark: Callable[[int], object]) -> list[bytes]:
        tf.random.set_seed(7)
        compiled = tf.function(lambda x: tf.math.log(x), jit_compile=True)
        around = tf.function(lambda x: compiled(x) + tf.random.normal([2], seed=3))
        found = []
        for step in range(6):
            mark(step)
            found += flat(around(X))
        return found

    wanted = numbers(lambda step: None)
    with tfdbg_arrow.capture(tmp_path, steps=2):
        assert numbers(lambda step: tfdbg_arrow.mark(step=step)) == wanted
    assert [row["step"] for row in in_graphs(tmp_path) if row["op_type"] == "Log"] == [0, 2, 4]


def test_functions_of_a_pipeline_run_without_xla(tmp_path: Path) -> None:
    compiled = tf.function(lambda x: tf.math.log(x), jit_compile=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with tfdbg_arrow.capture(tmp_path):
            compiled(X)
            list(tf.data.Dataset.from_tensors(X).map(compiled))
            assert is_compiled(compiled, X)
    assert [stat for stat, _ in stats(tmp_path)] == ["changed"]
    assert len([row for row in in_graphs(tmp_path) if row["op_type"] == "Log"]) == 2


def test_elements_are_kept_only_without_xla(tmp_path: Path) -> None:
    compiled = tf.function(lambda x: tf.math.log(x), jit_compile=True)
    for settings in ({"tensor_debug_mode": "FULL_TENSOR"}, {"values": "Log"}):
        with pytest.raises(SettingError, match="cannot keep elements"):
            tfdbg_arrow.enable(tmp_path, xla="inside", **settings)
        logdir = tmp_path / next(iter(settings))
        _, warned = record(logdir, lambda: compiled(X), **settings)
        assert len(warned) == 1
        assert len(rows(logdir, "tensor_value")) >= 1


def test_a_saved_model_holds_the_original_functions(tmp_path: Path) -> None:
    module = tf.Module()
    module.compiled = tf.function(lambda x: tf.math.log(x), jit_compile=True)
    module.call = tf.function(lambda x: module.compiled(x) + 1.0)
    with tfdbg_arrow.capture(tmp_path / "log"):
        module.call(X)
        tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.call.get_concrete_function(X))
    assert b"fdbg" not in (tmp_path / "model" / "saved_model.pb").read_bytes()


def test_threads_with_simultaneous_first_calls_each_record_the_function(tmp_path: Path) -> None:
    compiled = tf.function(lambda x: tf.math.log(x), jit_compile=True)
    with tfdbg_arrow.capture(tmp_path):
        compiled.get_concrete_function(X)
        threads = [threading.Thread(target=compiled, args=(X + float(number),)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    logs = [row for row in in_graphs(tmp_path) if row["op_type"] == "Log"]
    assert len(logs) == 4
    assert len({row["execution_index"] for row in logs}) == 4


def test_branches_that_were_not_taken_have_no_rows(way: str, tmp_path: Path) -> None:
    @tf.function(jit_compile=True, autograph=False)
    def chosen(index: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        return tf.switch_case(index, [lambda: tf.math.exp(x), lambda: tf.math.log(x), lambda: x])

    with tfdbg_arrow.capture(tmp_path):
        for index in (0, 1, 2, 1):
            chosen(tf.constant(index), X)
    types = [row["op_type"] for row in in_graphs(tmp_path) if row["op_type"] in ("Exp", "Log")]
    assert types == ["Exp", "Log", "Log"]
