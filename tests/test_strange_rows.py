"""Test the error for rows that no recording writes, and that other errors are not replaced by it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tfdbg_arrow import first_nonfinite, open_logdir
from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.query.engine import strange_rows_told

from .viewer import logdirs


def without_op_types(logdir: Path) -> Path:
    """Sets the type of every op in a logdir to NULL."""
    (part,) = (logdir / "graph_op").glob("*/*.parquet")
    table = pq.read_table(part, partitioning=None)
    at = table.schema.names.index("op_type")
    pq.write_table(table.set_column(at, "op_type", pa.nulls(table.num_rows, pa.string())), part)
    return logdir


def test_the_error_for_rows_that_do_not_fit_together(tmp_path: Path) -> None:
    logdir = without_op_types(logdirs.log_of_zero(tmp_path))
    with open_logdir(logdir) as opened, pytest.raises(LogdirError) as caught:
        opened.spread(3, run_id="run-a")
    text = str(caught.value)
    assert text.startswith(f"the rows of {logdir} do not fit together (TypeError: ")
    assert "\n" not in text
    assert isinstance(caught.value.__cause__, TypeError)


def test_an_error_in_the_callers_code_is_unchanged(tmp_path: Path) -> None:
    def is_allowed(op_type: str | None, op_name: str | None) -> bool:
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        first_nonfinite(logdirs.log_of_zero(tmp_path), is_allowed=is_allowed)


def test_errors_of_this_package_are_unchanged(tmp_path: Path) -> None:
    with pytest.raises(LogdirError, match=r"^so$"), strange_rows_told(tmp_path):
        raise LogdirError("so")
