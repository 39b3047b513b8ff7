"""Rows that no recording writes are told of in one sentence, and nobody else's error is taken for them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tfdbg_arrow import first_nonfinite, open_logdir
from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.query.strange_rows import strange_rows_told

from .viewer import logdirs


def without_op_types(logdir: Path) -> Path:
    """Has every op of a logdir a NULL where each has its type."""
    (part,) = (logdir / "graph_op").glob("*/*.parquet")
    table = pq.read_table(part, partitioning=None)
    at = table.schema.names.index("op_type")
    pq.write_table(table.set_column(at, "op_type", pa.nulls(table.num_rows, pa.string())), part)
    return logdir


def test_a_question_says_that_the_rows_do_not_fit_together(tmp_path: Path) -> None:
    logdir = without_op_types(logdirs.log_of_zero(tmp_path))
    with open_logdir(logdir) as opened, pytest.raises(LogdirError) as caught:
        opened.spread(3, run_id="run-a")
    text = str(caught.value)
    assert text.startswith(f"the rows of {logdir} do not fit together (TypeError: ")
    assert "\n" not in text
    assert isinstance(caught.value.__cause__, TypeError)


def test_an_error_of_the_callers_own_code_stays_what_it_is(tmp_path: Path) -> None:
    def is_allowed(op_type: str | None, op_name: str | None) -> bool:
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        first_nonfinite(logdirs.log_of_zero(tmp_path), is_allowed=is_allowed)


def test_errors_of_ours_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(LogdirError, match=r"^so$"), strange_rows_told(tmp_path):
        raise LogdirError("so")
