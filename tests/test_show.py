"""Test history and the show command on real programs, also while they run."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner, Result

import tfdbg_arrow
from tfdbg_arrow.cli import app
from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import history


def run_cli(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records all values of three training steps, each with a function and an eager op."""
    path = tmp_path_factory.mktemp("show")

    @tf.function
    def train(x: tf.Tensor) -> tf.Tensor:
        return tf.sqrt(x, name="root") - 1.0

    with tfdbg_arrow.capture(path, "FULL_TENSOR"):
        for step in range(3):
            tfdbg_arrow.mark(step=step)
            train(tf.constant([1.0, 4.0, -1.0 * step]))
            tf.cast(tf.constant([1.5, 2.5]), tf.bfloat16)
    return path


def test_rows_in_order_with_their_first_values(logdir: Path) -> None:
    rows = history(logdir, "root", num_values=2)
    assert [(row.step, row.op_name, row.op_type, row.graph_name, row.shape) for row in rows] == [
        (step, "root", "Sqrt", "train", (3,)) for step in range(3)
    ]
    assert [row.values for row in rows] == [(1.0, 2.0)] * 3
    assert [row.num_nan for row in rows] == [0, 1, 1]


def test_all_values_of_a_tensor(logdir: Path) -> None:
    (row,) = history(logdir, "root", steps=(2, 3), num_values=100)
    assert row.values is not None
    np.testing.assert_array_equal(np.array(row.values), [1.0, 2.0, math.nan])


def test_a_name_with_its_slot_and_a_type(logdir: Path) -> None:
    assert [row.op_type for row in history(logdir, "root:0", limit=1)] == ["Sqrt"]
    assert {row.op_name for row in history(logdir, "Sqrt")} == {"root"}
    assert history(logdir, "roo") == []


def test_a_dtype_that_numpy_does_not_support_has_no_values(logdir: Path) -> None:
    rows = history(logdir, "Cast", num_values=2)
    assert [(row.dtype, row.values, row.graph_name) for row in rows] == [("bfloat16", None, None)] * 3


@pytest.mark.parametrize(
    ("steps", "found"), [((None, None), [0, 1, 2]), ((1, None), [1, 2]), ((None, 1), [0]), ((1, 1), [])]
)
def test_steps(logdir: Path, steps: tuple[int | None, int | None], found: list[int]) -> None:
    assert [row.step for row in history(logdir, "root", steps=steps)] == found


def test_tensors_after_an_event(logdir: Path) -> None:
    first, *rest = history(logdir, "root")
    assert history(logdir, "root", after=first.event_index) == rest


def test_errors_for_invalid_arguments(logdir: Path) -> None:
    with pytest.raises(QueryError, match="is not a valid regular expression"):
        history(logdir, "(")
    with pytest.raises(QueryError, match="expected 0 or more"):
        history(logdir, "x", limit=-1)


class TestCommand:
    def test_lines(self, logdir: Path) -> None:
        result = run_cli("show", logdir, "root", "--step", "1:", "--values", "2")
        assert result.exit_code == 0
        lines = result.stdout.splitlines()
        assert [line.split("  ")[-1] for line in lines] == [
            "float32 [3]: 1 NaN, 2 positive of 3 elements, the first NaN at [2]",
            "1, 2, …",
        ] * 2
        assert ["root:0 step 1 in train" in lines[0], "root:0 step 2 in train" in lines[2]] == [True, True]

    def test_a_limited_list_is_reported_as_cut(self, logdir: Path) -> None:
        assert run_cli("show", logdir, "root", "--limit", "2").stdout.endswith(
            "There are more than 2; --limit raises the limit.\n"
        )
        assert "more than" not in run_cli("show", logdir, "root", "--limit", "3").stdout

    def test_json(self, logdir: Path) -> None:
        content = json.loads(run_cli("show", logdir, "root", "--values", "3", "--json").stdout)
        assert [row["values"] for row in content["tensors"]] == [[1.0, 2.0, 0.0]] + [[1.0, 2.0, "NaN"]] * 2
        assert content["is_cut"] is False

    def test_nothing_and_errors(self, logdir: Path) -> None:
        assert run_cli("show", logdir, "nope").stdout == "No recorded tensor matches nope.\n"
        assert run_cli("show", logdir, "root", "--step", "x").exit_code == 2
        assert run_cli("show", logdir, "root", "--follow", "--json").exit_code == 2

    @pytest.mark.slow
    def test_follow_shows_new_tensors_and_ends_with_the_recording(self, tmp_path: Path) -> None:
        with tfdbg_arrow.capture(tmp_path):
            tf.sin(tf.constant([1.0, 2.0]))
            tfdbg_arrow.flush()
            command = [sys.executable, "-m", "tfdbg_arrow", "show", str(tmp_path), "Sin|Cos", "--follow"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                assert "Sin:0" in process.stdout.readline()
                tf.cos(tf.constant([1.0, 2.0]))
                tfdbg_arrow.flush()
                assert "Cos:0" in process.stdout.readline()
                assert process.poll() is None
                tfdbg_arrow.disable()
                rest, _ = process.communicate(timeout=60)
        assert (rest, process.returncode) == ("", 0)
