"""Reads the tables of a logdir as rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

Rows = list[dict[str, Any]]


def rows(logdir: Path, table: str = "tensor_health") -> Rows:
    """Returns the rows of a table from all runs."""
    found: Rows = ds.dataset(logdir / table).to_table().to_pylist()
    return found
