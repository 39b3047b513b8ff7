"""What the tests of live stop share: programs that are stopped, and what their errors name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import tfdbg_arrow
from tfdbg_arrow.errors import NonFiniteError


def line_of(file_path: str, text: str) -> int:
    """The line of a file that ends in the comment, from 1."""
    lines = Path(file_path).read_text("utf-8").splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.endswith("# " + text))


def stopped(logdir: Path, program: Callable[[], Any], *, backend_name: str = "auto", **more: Any) -> NonFiniteError:
    """Runs a program that has to be stopped, and returns the error."""
    with (
        pytest.raises(NonFiniteError) as caught,
        tfdbg_arrow.capture(logdir, health_backend=backend_name, on_nonfinite="raise", **more),
    ):
        program()
    assert not tfdbg_arrow.is_recording()
    assert caught.value.logdir == logdir
    return caught.value


def not_stopped(logdir: Path, program: Callable[[], Any], *, backend_name: str = "auto") -> list[tuple[str, str]]:
    """Runs a program that must not be stopped, and returns subject and reason of what was masked."""
    with tfdbg_arrow.capture(logdir, health_backend=backend_name, on_nonfinite="raise"):
        program()
    rows = ds.dataset(logdir / "capture_stat").to_table().to_pylist()
    assert [row for row in rows if row["stat"] == "failed"] == []
    return [(row["subject"], row["reason"]) for row in rows if row["stat"] == "masked"]


def origin(error: NonFiniteError) -> tuple[str | None, str | None, bool]:
    """Op type, graph and proof of what an error names."""
    assert error.nonfinite is not None
    return error.nonfinite.op_type, error.nonfinite.graph_name, error.nonfinite.is_origin
