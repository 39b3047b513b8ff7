"""Functions that XLA compiles run without XLA, or stay compiled and are listed as not observed. No function fails."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.errors import SettingError

from .compiled import PROGRAMS
from .subprocesses import run_python
from .tables import rows

BACKENDS = ("native", "tensorflow")
FAST = ("compiled_in_plain", "control_flow")
"""Programs that `make test` records; `make slow` also records them with the second backend."""
X = tf.constant([1.0, 4.0])


def flat(value: Any) -> list[bytes]:
    return [np.asarray(tensor).tobytes() for tensor in tf.nest.flatten(value)]


def stats(logdir: Path) -> list[tuple[str, str]]:
    return [(row["stat"], row["reason"].partition(":")[0]) for row in rows(logdir, "capture_stat")]


CHANGED = ("changed", "runs without XLA while recording")
KEPT = ("unobservable", "is compiled by XLA, as xla='keep' asks")


def record(logdir: Path, program: Callable[[], Any], **settings: Any) -> tuple[list[bytes], list[str]]:
    """Returns the results of the program and the warnings of the recorder."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with tfdbg_arrow.capture(logdir, **settings):
            results = flat(program())
    return results, [str(warning.message) for warning in caught if "tfdbg_arrow" in str(warning.message)]


def is_compiled(function: Any, *args: Any) -> bool:
    return bool(function.get_concrete_function(*args).function_def.attr["_XlaMustCompile"].b)


@pytest.fixture(scope="module")
def unrecorded() -> dict[str, list[bytes]]:
    return {name: flat(run()) for name, run in PROGRAMS.items()}


def graph_ids_within_xla(logdir: Path) -> set[int]:
    """Returns the graphs of functions with the XLA attribute, and of the functions that these functions call."""
    functions = {row["function_name"]: row["graph_id"] for row in rows(logdir, "graph_function")}
    kept = {row["subject"] for row in rows(logdir, "capture_stat") if row["stat"] == "unobservable"}
    found, waiting = set(), [functions[name] for name in kept]
    callees: dict[int, list[int]] = {}
    for row in rows(logdir, "graph_call"):
        callees.setdefault(row["graph_id"], []).append(row["callee_graph_id"])
    while waiting:
        graph_id = waiting.pop()
        if graph_id not in found:
            found.add(graph_id)
            waiting += callees.get(graph_id, [])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["native", pytest.param("tensorflow", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_kept_function_keeps_its_numbers_and_is_listed_as_not_observed(
    name: str, backend: str, tmp_path: Path, unrecorded: dict[str, list[bytes]]
) -> None:
    results, warned = record(tmp_path, PROGRAMS[name], xla="keep", health_backend=backend)
    assert results == unrecorded[name]
    assert warned == []
    assert set(stats(tmp_path)) == {KEPT}
    within = graph_ids_within_xla(tmp_path)
    outputs = rows(tmp_path, "graph_op_output")
    assert {row["not_recorded_reason"] for row in outputs if row["graph_id"] in within} <= {"xla", "dtype"}
    assert {row["graph_id"] for row in outputs if row["not_recorded_reason"] == "xla"} == within
    assert not within & {row["graph_id"] for row in rows(tmp_path, "tensor_health")}
    coverage = tfdbg_arrow.open_logdir(tmp_path).coverage()
    assert sum(group.num_outputs for group in coverage.unobserved if group.reason == "xla") == sum(
        row["not_recorded_reason"] == "xla" for row in outputs
    )
    assert not coverage.is_complete
    assert "(xla)" in str(coverage.summary)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *(pytest.param(name, "native", marks=() if name in FAST else pytest.mark.slow) for name in PROGRAMS),
        *(
            pytest.param(name, "tensorflow", marks=pytest.mark.slow if name in FAST else pytest.mark.exhaustive)
            for name in PROGRAMS
        ),
    ],
)
def test_an_observed_function_runs_without_xla_and_all_of_it_is_recorded(
    name: str, backend: str, tmp_path: Path
) -> None:
    _, warned = record(tmp_path, PROGRAMS[name], xla="observe", health_backend=backend)
    assert len(warned) == 1
    found = stats(tmp_path)
    assert set(found) == {CHANGED}
    subjects = [row["subject"] for row in rows(tmp_path, "capture_stat")]
    assert len(set(subjects)) == len(subjects)
    assert {row["not_recorded_reason"] for row in rows(tmp_path, "graph_op_output")} <= {None, "dtype"}
    assert tfdbg_arrow.open_logdir(tmp_path).coverage().is_complete


def test_a_function_called_by_compiled_and_plain_code_is_recorded_in_plain_code(tmp_path: Path) -> None:
    @tf.function
    def plain(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x)

    @tf.function(jit_compile=True)
    def compiled(x: tf.Tensor) -> tf.Tensor:
        return plain(x) + 1.0

    def program() -> Any:
        return compiled(X), plain(X), is_compiled(compiled, X), compiled.experimental_get_tracing_count()

    results, _ = record(tmp_path, program, xla="keep")
    assert results[2:] == flat((True, 1))
    logs = [row for row in rows(tmp_path, "tensor_health") if row["op_type"] == "Log"]
    assert [(row["scope"], row["size"]) for row in logs] == [("graph", 2)]
    reasons = [row["not_recorded_reason"] for row in rows(tmp_path, "graph_op_output") if row["op_name"] == "Log"]
    assert sorted(reasons, key=str) == [None, "xla"]


def test_xla_compiles_a_caller_of_a_recorded_function(tmp_path: Path) -> None:
    plain = tf.function(tf.math.sqrt)
    with tfdbg_arrow.capture(tmp_path, xla="keep"):
        recorded = plain.get_concrete_function(X)
        meeting = tf.function(lambda x: recorded(x) + 1.0, jit_compile=True)
        assert meeting(X).numpy().tolist() == [2.0, 3.0]
        assert is_compiled(meeting, X)
    assert not [row for row in rows(tmp_path, "tensor_health") if row["op_type"] == "Sqrt"]


@pytest.mark.parametrize("xla", ["inside", "observe", "keep"])
def test_an_earlier_compiled_concrete_function_is_not_changed(xla: str, tmp_path: Path) -> None:
    plain = tf.function(tf.math.sqrt)
    before = tf.function(lambda x: plain(x) * x, jit_compile=True).get_concrete_function(X)

    def program() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(X)
            y = before(X)

        @tf.function
        def step(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                z = before(x)
            return tape.gradient(z, x)

        return y, tape.gradient(y, X), step(X), before(X)

    wanted = flat(program())
    results, _ = record(tmp_path, program, xla=xla)
    assert results == wanted
    assert ("unobservable", "was traced before recording began and is held as a concrete function") in stats(tmp_path)


def test_ops_of_a_concrete_function_are_observed(tmp_path: Path) -> None:
    compiled = tf.function(lambda x: tf.math.log(x) + 1.0, jit_compile=True)
    record(tmp_path, lambda: compiled.get_concrete_function(X)(X))
    assert "Log" in {row["op_type"] for row in rows(tmp_path, "tensor_health")}
    assert {row["not_recorded_reason"] for row in rows(tmp_path, "graph_op_output")} == {None}


def test_nested_compiled_calls_are_one_step_with_known_inputs(tmp_path: Path) -> None:
    inner = tf.function(lambda x: x * 2.0, jit_compile=True)
    outer = tf.function(lambda x: inner(tf.math.log(x)), jit_compile=True)
    record(tmp_path, lambda: outer(X - X))
    in_graphs = [row for row in rows(tmp_path, "tensor_health") if row["graph_id"] is not None]
    assert len({row["step_id"] for row in in_graphs}) == 1
    found = tfdbg_arrow.first_nonfinite(tmp_path)
    assert found is not None
    assert (found.op_type, found.is_origin) == ("Log", True)
    (product,) = [row for row in in_graphs if row["op_type"] == "Mul"]
    steps = tfdbg_arrow.open_logdir(tmp_path).provenance(product["event_index"]).rows()
    assert "Log" in {step["op_type"] for step in steps}


def test_a_bad_value_of_a_compiled_function_is_found_but_not_proven(tmp_path: Path) -> None:
    compiled = tf.function(lambda x: tf.math.log(x - 1.0) * 0.0, jit_compile=True)
    record(tmp_path, lambda: compiled(X) + 1.0, xla="keep")
    found = tfdbg_arrow.first_nonfinite(tmp_path)
    assert found is not None
    assert (found.op_type or "").startswith("__inference_")
    assert (found.num_nan, found.is_origin) == (1, False)


def test_an_invalid_value_of_xla_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="xla is 'off'; expected one of auto, inside, observe, keep"):
        tfdbg_arrow.enable(tmp_path, xla="off")


CLUSTERED = """
    import sys
    import numpy as np, tensorflow as tf, tfdbg_arrow

    weight = tf.Variable(np.linspace(-1.0, 1.0, 64, dtype=np.float32).reshape(8, 8))

    def program():
        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                y = tf.math.tanh(tf.matmul(x, weight)) * 2.0 - 1.0
                loss = tf.reduce_sum(tf.math.log(y * y + 1.0))
            return loss, tape.gradient(loss, weight)
        return [step(tf.ones([4, 8])) for _ in range(2)]

    wanted = tf.nest.flatten(program())
    for backend, graphs in (("native", "executed"), ("native", "traced"), ("tensorflow", "traced")):
        logdir = f"{sys.argv[1]}/{backend}-{graphs}"
        with tfdbg_arrow.capture(logdir, health_backend=backend, graphs=graphs):
            for got, want in zip(tf.nest.flatten(program()), wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5)
"""


@pytest.mark.slow
def test_record_ops_stay_outside_of_automatic_clusters(tmp_path: Path) -> None:
    flags = "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit --tf_xla_min_cluster_size=2"
    run_python(tmp_path / "clustered.py", CLUSTERED, tmp_path, TF_XLA_FLAGS=flags)
    executed = tmp_path / "native-executed"
    types = {row["op_type"] for row in rows(executed, "tensor_health") if row["scope"] == "graph"}
    assert {"MatMul", "Tanh", "Sum"} <= types
    assert stats(executed) == []
    for backend in BACKENDS:
        logdir = tmp_path / f"{backend}-traced"
        recorded = {row["op_name"] for row in rows(logdir, "graph_op_output") if row["is_recorded"]}
        seen = {row["op_name"] for row in rows(logdir, "tensor_health") if row["scope"] == "graph"}
        assert seen == recorded
        assert stats(logdir) == []
