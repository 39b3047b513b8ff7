"""Test that the code blocks and commands of the documentation run, and what it says about TensorFlow.

tests/test_guide.py runs those of the guide, tests/test_bi_questions.py those of docs/bi.md, and
tests/link/test_documented_queries.py those about the view tensor_input.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import duckdb
import keras
import numpy as np
import polars
import pyarrow
import pyarrow.csv
import pytest
import tensorflow as tf
from click.testing import CliRunner

import tfdbg_arrow
from tfdbg_arrow.cli import app
from tfdbg_arrow.errors import NonFiniteError
from tfdbg_arrow.query import export, first_nonfinite

pytestmark = [pytest.mark.slow, pytest.mark.every_case]

ROOT = Path(__file__).resolve().parents[1]
FENCES = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = ("s3://", "deltalake", "pyiceberg", "SparkLogdir", "enable(")
"""Marks blocks that need a store, Java or packages, and that tests/remote, tests/readers and tests/query/test_spark.py
cover; and those that begin a recording that nothing ends."""


def blocks(language: str) -> list[tuple[str, str]]:
    """Returns (page, text) of the blocks of one language."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [
        (page.name, text)
        for page in pages
        if page.name not in ("guide.md", "bi.md")
        for found, text in FENCES.findall(page.read_text(encoding="utf-8"))
        if found == language
    ]


def train(path: Path, *, scale: float) -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.layers.Dense(4, name="dense"), keras.layers.Dense(2, activation="softmax", name="dense_1")],
        name="sequential",
    )
    model.compile("sgd", loss=lambda y, p: -tf.reduce_mean(y * tf.math.log(p)))
    x = scale * np.ones([8, 3], "float32")
    with tfdbg_arrow.capture(path, "FULL_TENSOR", histograms=True):
        model.fit(x, np.eye(2, dtype="float32")[[0, 1] * 4], epochs=3, batch_size=4, shuffle=False, verbose=0)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("documented")
    for name, scale in (("logdir", 1e4), ("bad", 1e4), ("good", 1.0), ("other", 1.0), ("other_logdir", 1.0)):
        train(directory / name, scale=scale)
    export(directory / "logdir", directory / "csv", format="csv")
    return directory


def placed(text: str, here: Path) -> str:
    """Returns a text with the directories of this test, and with a tensor that is bad there."""
    found = first_nonfinite(here / "logdir")
    assert found is not None
    text = text.replace("provenance(30)", f"provenance({found.event_index})").replace(
        "mark.csv", f"{here}/csv/mark.csv"
    )
    text = text.replace("logdir Softmax", f"logdir {found.op_name}")
    return text.replace("/tmp/", f"{here}/")


@pytest.mark.parametrize(("page", "text"), [b for b in blocks("python") if not any(s in b[1] for s in ELSEWHERE)])
def test_a_block_of_python_runs(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    is_recorded = "capture(" in text
    namespace: dict[str, Any] = {
        "batches": [tf.constant([0.0, 1.0])] * 3,
        "train_step": tf.function(lambda x: tf.reduce_sum(tf.math.log(x))),
        "train": lambda steps: None,
        "tfdbg_arrow": tfdbg_arrow,
        "duckdb": duckdb,
        "polars": polars,
        "pyarrow": pyarrow,
    }
    exec(text.replace("/tmp/", f"{tmp_path}/") if is_recorded else placed(text, here), namespace)
    if is_recorded:
        assert first_nonfinite(tmp_path / "logdir") is not None


@pytest.mark.parametrize(("page", "text"), [b for b in blocks("sql") if "tensor_input" not in b[1]])
def test_a_block_of_sql_runs(here: Path, page: str, text: str) -> None:
    with tfdbg_arrow.open_logdir(here / "logdir") as logdir:
        assert logdir.rows(text)


COMMANDS = [
    (page, line)
    for page, text in blocks("")
    for line in text.replace("\n         ", " ").splitlines()
    if line.startswith("tfdbg-arrow ")
]
NOT_RUN = (
    "run",
    "zoom",
    "view",
    "--follow",
    "s3://",
    "shared",
    "--install",
    "import",
    "--debugger-v2",
    "delta",
    "iceberg",
)
"""Commands that need a program, a store, a dump or packages, or that do not end; tests/cli has them."""


@pytest.mark.parametrize(("page", "command"), [c for c in COMMANDS if not any(w in c[1] for w in NOT_RUN)])
def test_a_command_runs(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, command: str) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(placed(command, here), comments=True)
    done = CliRunner().invoke(app, words[1:])
    assert done.exit_code in (0, 1), done.output


def gradient_of_masked(x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.where(x > 0, tf.math.log(x), 0.0)
    return tape.gradient(y, x)


def test_what_a_live_stop_says_about_masked_values(tmp_path: Path) -> None:
    assert np.isnan(gradient_of_masked(tf.constant(0.0)).numpy())
    page = " ".join((ROOT / "docs" / "live_stop.md").read_text(encoding="utf-8").split())
    assert "`tf.where(x > 0, tf.math.log(x), 0.0)` at zero" in page

    def masked(x: tf.Tensor) -> tf.Tensor:
        y = tf.math.log(x)
        return tf.where(tf.math.is_finite(y), y, 0.0)

    zero = tf.constant([0.0, 1.0])
    with tfdbg_arrow.capture(tmp_path / "masked", on_nonfinite="raise"):
        assert float(tf.reduce_sum(tf.function(masked)(zero))) == 0.0
        assert float(tf.reduce_sum(masked(zero))) == 0.0
    stopping = (
        lambda: tf.function(gradient_of_masked)(tf.constant(0.0)) + 1.0,
        lambda: tf.function(lambda x: tf.nn.softmax(x + tf.constant([0.0, -np.inf])))(zero),
    )
    for number, stops in enumerate(stopping):
        with (
            pytest.raises(NonFiniteError),
            tfdbg_arrow.capture(tmp_path / str(number), on_nonfinite="raise"),
        ):
            stops()
