"""Test that a repro script makes the recorded bad value again, in a process that knows nothing else of the program."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tests.reproduction.programs import OWN
from tfdbg_arrow.errors import ReproError

pytestmark = pytest.mark.slow

FAST = {
    "losses.log1p_of_minus_one": ("Log1p",),
    "losses.cosine_loss_of_zero_vectors": ("RealDiv",),
    "control_flow.branch_in_a_loop": ("Log",),
    "zero_gradients.norm_at_zero": ("SqrtGrad",),
    "precision.squares_of_float16_activations": ("Square",),
}
"""Some programs of the corpus, and the ops of their scripts."""
NUM_PROGRAMS = 5
NUM_KEPT = 3
LAST_LINE = "The bad value came up again."


def _start(*words: str) -> str:
    command = [sys.executable, "-m", "tests.reproduction.programs", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def _write(logdirs: Path, names: Iterable[str], scripts: Path, *, label: str = "") -> dict[str, tfdbg_arrow.Repro]:
    return {f"{label}{name}": tfdbg_arrow.write_repro(logdirs / name, scripts / f"{label}{name}.py") for name in names}


def _run(written: dict[str, tfdbg_arrow.Repro]) -> dict[str, dict[str, Any]]:
    lines = _start("run", *(repro.path for repro in written.values())).splitlines()
    return {Path(told["path"]).stem: told for told in map(json.loads, lines)}


def _check(outcomes: Outcomes, names: Iterable[str]) -> None:
    """Asserts that each script goes bad in the op that was the culprit, with the same kinds."""
    for name in names:
        told = outcomes.told[name]
        first = outcomes.written[name].nonfinite
        assert (name, told["error"]) == (name, None)
        assert told["printed"].splitlines()[-1] == LAST_LINE
        # A script runs what TensorFlow ran. The answer has the health of the program's op, which can be another one.
        ran = first.op_type if first.ran_as is None else first.ran_as.partition(" in place of")[0]
        assert outcomes.written[name].op_types[-1] == ran
        counts = (first.num_nan, first.num_neg_inf, first.num_pos_inf)
        shown = f"{ran}: {first.dtype} {first.shape}, NaN, -Inf, +Inf: {counts}"
        assert (shown if first.ran_as is None else f"{ran}: {first.dtype}") in told["printed"]


@dataclass(frozen=True)
class Outcomes:
    """Scripts by name, and what became of each."""

    written: dict[str, tfdbg_arrow.Repro]
    told: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Records all programs in one process, and runs all scripts in another one, because starting TensorFlow is slow."""
    logdirs, scripts = tmp_path_factory.mktemp("logdirs"), tmp_path_factory.mktemp("scripts")
    _start("record", "tensors", str(logdirs), *OWN, *FAST)
    written = _write(logdirs, [*OWN, *FAST], scripts)
    _start("record", "inputs", str(logdirs / "kept"), *OWN)
    written |= _write(logdirs / "kept", OWN, scripts, label="kept_")
    function = logdirs / "function"
    written["deeper"] = tfdbg_arrow.write_repro(function, scripts / "deeper.py", depth=1)
    written["smaller"] = tfdbg_arrow.write_repro(function, scripts / "smaller.py", fix=True, minimise=True)
    fused = logdirs / "kept" / "log_of_sigmoid"
    written["fixed"] = tfdbg_arrow.write_repro(fused, scripts / "fixed.py", fix=True)
    return Outcomes(written=written, told=_run(written))


def test_scripts_of_all_kinds_of_op_go_bad_as_recorded(outcomes: Outcomes) -> None:
    _check(outcomes, outcomes.written.keys() - {"deeper", "smaller", "fixed"})
    written = outcomes.written
    expected = FAST | {
        "eager_op": ("MatMul",),
        "function": ("Log",),
        "loop": ("Square",),
        "gradient": ("SqrtGrad",),
        "strings": ("StringToNumber",),
        "bfloat16": ("Mul",),
        "empty": ("Mean",),
        "fused": ("_FusedMatMul",),
        "fused_convolution": ("_FusedConv2D",),
        "fused_batch_norm": ("_FusedConv2D",),
        "fused_unary_ops": ("_UnaryOpsComposition",),
        "log_of_sigmoid": ("_UnaryOpsComposition",),
        "loop_executed": ("Square",),
    }
    assert {name: written[name].op_types for name in (*OWN, *FAST)} == expected
    assert all(written[f"kept_{name}"].op_types == expected[name] for name in OWN)
    assert [input_.dtype for input_ in written["strings"].inputs] == ["string"]
    assert {input_.dtype for input_ in written["bfloat16"].inputs} == {"bfloat16"}
    assert written["empty"].inputs[0].shape == (0, 3)


def test_a_script_of_a_gradient_runs_the_forward_op_under_a_tape(outcomes: Outcomes) -> None:
    repro = outcomes.written["gradient"]
    text = Path(repro.path).read_text(encoding="utf-8")
    assert repro.has_gradient
    assert "with tf.GradientTape() as tape:" in text
    assert "y = tf.sqrt(x) * 3.0" in text
    assert "gradient of input 0 of the forward op: NaN, -Inf, +Inf: (0, 0, 1)" in outcomes.told["gradient"]["printed"]


def test_depth_adds_the_ops_before(outcomes: Outcomes) -> None:
    repro = outcomes.written["deeper"]
    assert repro.op_types == ("Softmax", "Log")
    assert [(input_.dtype, input_.shape) for input_ in repro.inputs] == [("float32", (2, 2))]
    assert outcomes.told["deeper"]["error"] is None


def test_fixes_are_tried_and_inputs_are_shrunk(outcomes: Outcomes) -> None:
    repro = outcomes.written["smaller"]
    tried = {fix.label: fix for fix in repro.fixes}
    assert {label: fix.is_finite for label, fix in tried.items()} == {
        "log_softmax": True,
        "epsilon": True,
        "clip": True,
        "double where": True,
    }
    line = "return tf.reduce_sum(tf.math.log(tf.nn.softmax(logits)))"
    assert tried["log_softmax"].diff[-2:] == (f"-{line}", "+return tf.reduce_sum(tf.nn.log_softmax(logits))")
    assert tried["log_softmax"].is_users_line
    assert repro.shapes_before == {"x0": (2, 2)}
    assert [input_.shape for input_ in repro.inputs] == [(1, 1)]
    told = outcomes.told["smaller"]
    assert told["error"] is None
    assert "Log: float32 (1, 1), NaN, -Inf, +Inf: (0, 1, 0)" in told["printed"]


def test_fixes_of_fused_ops_are_those_of_the_ops_of_the_program(outcomes: Outcomes) -> None:
    repro = outcomes.written["fixed"]
    assert repro.op_types == ("_UnaryOpsComposition",)
    tried = {fix.label: fix for fix in repro.fixes}
    assert {label: fix.is_finite for label, fix in tried.items()} == {
        "log_sigmoid": True,
        "epsilon": True,
        "clip": True,
        "double where": True,
    }
    assert tried["epsilon"].diff[-1] == "+return tf.reduce_sum(tf.math.log(tf.sigmoid(-x) + 1e-6))"


@pytest.mark.parametrize(
    ("line", "edited"),
    [
        ("clicks / seconds", {"divide_no_nan": "keras.ops.divide_no_nan(clicks, seconds)"}),
        ("keras.ops.log(clicks / seconds)", {"epsilon": "keras.ops.log(clicks / (seconds + 1e-6))"}),
    ],
)
def test_repairs_name_the_functions_of_the_program_and_return_no_0_for_a_logarithm(
    line: str, edited: dict[str, str], tmp_path: Path
) -> None:
    program = tmp_path / "rate.py"
    program.write_text(f"import keras\n\n\ndef rate(clicks, seconds):\n    return {line}\n")
    clicks, seconds = np.ones(4, "float32"), np.array([1, 2, 0, 4], "float32")
    with tfdbg_arrow.capture(tmp_path / "logdir", on_nonfinite="keep"):
        tf.function(runpy.run_path(str(program))["rate"])(tf.constant(clicks), tf.constant(seconds))
    repro = tfdbg_arrow.write_repro(tmp_path / "logdir", tmp_path / "repro.py", fix=True)
    diffs = {fix.label: fix.diff[-1] for fix in repro.fixes}
    assert diffs.items() >= {label: f"+return {code}" for label, code in edited.items()}.items()
    assert ("divide_no_nan" in diffs) == ("log" not in line)


def test_scripts_of_some_programs_of_the_corpus_go_bad_as_recorded(tmp_path: Path) -> None:
    """Most scripts are made of kept inputs alone; the other programs are recorded again with all tensors."""
    from tests.culprit.corpus import programs

    outside = ("argument", "array", "batch_from", "constant", "feature", "generator_that", "targets", "checkpoint")
    names = [
        program.name
        for program in programs()
        if program.culprit is not None
        and program.culprit.op_type is not None
        and not program.name.partition(".")[2].startswith(outside)
        and program.name.partition(".")[0] != "data"
    ][::16][:NUM_PROGRAMS]
    assert len(names) == NUM_PROGRAMS
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    _start("record", "inputs", str(tmp_path / "inputs"), *names)
    written, missing = {}, []
    for name in names:
        try:
            written |= _write(tmp_path / "inputs", [name], scripts)
        except ReproError:
            missing.append(name)
    assert len(written) >= NUM_KEPT, missing
    _start("record", "tensors", str(tmp_path / "tensors"), *missing)
    written |= _write(tmp_path / "tensors", missing, scripts)
    _check(Outcomes(written=written, told=_run(written)), names)
