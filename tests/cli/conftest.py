"""Fixtures for the tests of commands: a directory to run in, and logdirs to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..query.builder import CLEAN, RunBuilder, counts

SOURCE = "def loss(probs):\n    clipped = probs\n\treturn tf.math.log(clipped)  # [bold]x\n\x1b[31mred\n"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory to run programs in."""
    return tmp_path


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    run = RunBuilder("run-a")
    run.tensor(run.graph("f").op("x", "Mul"), "x", CLEAN)
    return run.write(tmp_path / "healthy")


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    run = RunBuilder("run-a")
    stack = run.stack(
        ("/site/tensorflow/ops.py", 1, "apply", None, "framework"),
        ("/home/me/[red]train\x1b[0m.py", 3, "loss", "return tf.math.log(clipped)", "user"),
        ("/site/tensorflow/call.py", 2, "call", None, "framework"),
        ("/usr/lib/python3/runpy.py", 2, "run", None, "library"),
    )
    run.add("source_file", source_file_id=0, file_path="/home/me/[red]train\x1b[0m.py", source_text=SOURCE)
    graph = run.graph("loss\x07").op("probs", "Softmax").op("Log", inputs=["probs"], stack=stack)
    run.tensor(graph, "probs", counts(zero=2, pos=4))
    run.tensor(graph, "Log", counts(neg_inf=2, neg=4))
    return run.write(tmp_path / "bad")
