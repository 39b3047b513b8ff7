"""Helpers of the tests of live stop: they run programs that stop or must not stop, and read the error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import tfdbg_arrow
from tfdbg_arrow.errors import NonFiniteError


def line_of(file_path: str, text: str) -> int:
    """Returns the number, from 1, of the line of a file that ends in a comment with this text."""
    lines = Path(file_path).read_text("utf-8").splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.endswith("# " + text))


def stopped(logdir: Path, program: Callable[[], Any], *, backend_name: str = "auto", **more: Any) -> NonFiniteError:
    """Runs a program that must stop, and returns the error."""
    with (
        pytest.raises(NonFiniteError) as caught,
        tfdbg_arrow.capture(logdir, health_backend=backend_name, on_nonfinite="raise", **more),
    ):
        program()
    assert not tfdbg_arrow.is_recording()
    assert caught.value.logdir == logdir
    return caught.value


def not_stopped(logdir: Path, program: Callable[[], Any], *, backend_name: str = "auto") -> list[tuple[str, str]]:
    """Runs a program that must not stop. Returns the subject and reason of each masked value."""
    with tfdbg_arrow.capture(logdir, health_backend=backend_name, on_nonfinite="raise"):
        program()
    rows = ds.dataset(logdir / "capture_stat").to_table().to_pylist()
    assert [row for row in rows if row["stat"] == "failed"] == []
    return [(row["subject"], row["reason"]) for row in rows if row["stat"] == "masked"]


def origin(error: NonFiniteError) -> tuple[str | None, str | None, bool]:
    """Returns the op type and the graph that an error names, and if the origin is proven."""
    assert error.nonfinite is not None
    return error.nonfinite.op_type, error.nonfinite.graph_name, error.nonfinite.is_origin
