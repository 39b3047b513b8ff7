"""Test `tfdbg-arrow first-nonfinite`: exit codes, JSON, and text that is safe for a terminal."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from tfdbg_arrow.query import NonFinite

from ..query.builder import RunBuilder
from ..viewer.logdirs import gradient
from .commands import run_cli

ROOT = "Before the root, add an epsilon such as 1e-7 (1e-4 in float16)."


class TestFirstNonfinite:
    def test_a_healthy_logdir_gives_exit_code_0(self, healthy: Path) -> None:
        result = run_cli("first-nonfinite", healthy)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout == "Nothing is bad: no recorded tensor contains nan or inf.\n"

    def test_a_bad_logdir_gives_exit_code_1_and_all_details(self, bad: Path) -> None:
        result = run_cli("first-nonfinite", bad)
        assert (result.exit_code, result.stderr) == (1, "")
        assert result.stdout.splitlines() == [
            "`return tf.math.log(clipped)` at [red]train\\x1b[0m.py:3 made -Inf.",
            "Log of 0: 2 of 6 elements are 0, and the logarithm of 0 is -Inf.",
            "To fix it: Use tf.nn.log_softmax in place of the softmax and the logarithm.",
            "  op      Log:0 (Log)",
            "  graph   loss\\x07",
            "  tensor  float32 [6]: 2 -Inf, 4 negative of 6 elements",
            "  device  /job:localhost/replica:0/task:0/device:CPU:0",
            "  event   1, 2023-11-14 22:13:20.000001 UTC, run run-a",
            "  origin  yes: this op created the value; its inputs do not contain it",
            "",
            "inputs",
            "  0  probs:0 (Softmax) in loss\\x07",
            "     float32 [6]: 2 zero, 4 positive of 6 elements",
            "",
            "stack, innermost first",
            "  /home/me/[red]train\\x1b[0m.py:3 in loss",
            "      return tf.math.log(clipped)",
            "  and 2 framework and 1 library frames",
            "",
            "source /home/me/[red]train\\x1b[0m.py:3",
            "  1 | def loss(probs):",
            "  2 |     clipped = probs",
            "> 3 |     return tf.math.log(clipped)  # [bold]x",
            "  4 | \\x1b[31mred",
            "  5 |",
        ]

    def test_a_gradient_shows_its_forward_op_layer_effect_and_calls(self, tmp_path: Path) -> None:
        result = run_cli("first-nonfinite", gradient(tmp_path))
        assert (result.exit_code, result.stderr) == (1, "")
        assert result.stdout.splitlines() == [
            "The gradient of `scaled = tf.sqrt(offset)` at train.py:8 is +Inf in step 2.",
            "The gradient of Sqrt at 0: 1 of 2 elements is 0 in its result, and the slope there is infinite.",
            f"To fix it: {ROOT}",
            "  op      Grad:0 (SqrtGrad), the gradient of Sqrt, line 8",
            "  graph   root",
            "  layer   model/norm",
            "  step    2",
            "  role    gradient",
            "  effect  reached a variable",
            "  tensor  float32 [2]: 1 +Inf, 1 positive of 2 elements",
            "  device  /job:localhost/replica:0/task:0/device:CPU:0",
            "  event   3, 2023-11-14 22:13:20.000003 UTC, run run-a",
            "  origin  yes: this op created the value; its inputs do not contain it",
            "",
            "inputs",
            "  0  Sqrt:0 (Sqrt) in root",
            "     float32 [2]: 1 zero, 1 positive of 2 elements",
            "  1  dy:0 (Const) in root",
            "     float32 [2]: 2 positive of 2 elements",
            "",
            "stack, innermost first",
            "  and 1 framework frame",
            "",
            "called from, innermost first",
            "  /home/me/train.py:4 in model: return tf.nn.softmax(dense(images))",
            "  /home/me/train.py:9 in loss: return -log_probs",
            "",
            "source /home/me/train.py:8",
            "   5 |",
            "   6 | def loss(probs):",
            "   7 |     log_probs = tf.math.log(probs)",
            ">  8 |     scaled = tf.sqrt(offset)",
            "   9 |     return -log_probs",
            "  10 |",
        ]

    def test_json_holds_the_fields_of_the_dataclass(self, bad: Path) -> None:
        result = run_cli("first-nonfinite", bad, "--json")
        assert result.exit_code == 1
        found = json.loads(result.stdout)
        assert list(found) == [
            "logdir",
            "kinds",
            "nonfinite",
            "reasons",
            "source_lines",
            "left_out",
            "unobserved",
            "about",
        ]
        assert found["reasons"]["explanation"]["sentence"].startswith("Log of 0: 2 of 6")
        assert found["reasons"]["growth"] is None
        assert list(found["nonfinite"]) == [field.name for field in dataclasses.fields(NonFinite)]
        assert found["nonfinite"]["shape"] == [6]
        assert found["nonfinite"]["source"]["lineno"] == 3
        assert found["nonfinite"]["inputs"] == [
            {
                "index": 0,
                "health": {
                    "event_index": 0,
                    "dtype": "float32",
                    "shape": [6],
                    "size": 6,
                    "has_inf_or_nan": False,
                    "num_neg_inf": 0,
                    "num_pos_inf": 0,
                    "num_nan": 0,
                    "num_neg_finite": 0,
                    "num_zero": 2,
                    "num_pos_finite": 4,
                    "num_subnormal": None,
                    "min_finite": None,
                    "max_finite": None,
                    "mean_finite": None,
                    "stddev_finite": None,
                    "max_abs_finite": None,
                    "first_bad_index": None,
                    "num_bad_slices": None,
                },
                "producer": {
                    "op_type": "Softmax",
                    "op_name": "probs",
                    "graph_name": "loss\x07",
                    "output_slot": 0,
                    "event_index": 0,
                    "execution_index": None,
                    "how": "graph",
                },
            }
        ]

    def test_json_of_a_healthy_logdir(self, healthy: Path) -> None:
        result = run_cli("first-nonfinite", healthy, "--json")
        assert result.exit_code == 0
        assert json.loads(result.stdout) == {
            "logdir": str(healthy),
            "kinds": ["nan", "inf"],
            "nonfinite": None,
            "reasons": None,
            "source_lines": [],
            "left_out": {},
            "unobserved": None,
            "about": {"run_ids": ["run-a"], "is_newest": True, "num_others": 0, "num_bad_others": None},
        }

    def test_kinds_and_run_are_options(self, bad: Path) -> None:
        assert run_cli("first-nonfinite", bad, "--kinds", "nan").exit_code == 0
        assert run_cli("first-nonfinite", bad, "--kinds", "inf", "--run", "run-a").exit_code == 1

    def test_a_run_in_a_mode_without_element_counts_is_not_called_healthy(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a", tensor_debug_mode="NO_TENSOR")
        result = run_cli("first-nonfinite", run.write(tmp_path))
        assert (result.exit_code, result.stdout) == (2, "")
        assert "run-a (NO_TENSOR)" in result.stderr

    def test_such_a_run_among_others_gives_a_warning(self, healthy: Path) -> None:
        RunBuilder("run-b", tensor_debug_mode="SHAPE").write(healthy)
        result = run_cli("first-nonfinite", healthy)
        assert result.exit_code == 0
        assert "warning" in result.stderr
        assert "run-b (SHAPE)" in result.stderr
