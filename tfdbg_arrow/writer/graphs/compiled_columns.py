"""The columns of the rows that are returned by functions that XLA compiles."""

from __future__ import annotations

MAX_LOOPS = 6
"""Maximum number of nested loops; tensors inside more loops are not recorded."""

NUM_COLUMNS = 23 + MAX_LOOPS
"""Columns of a row, in the order of `SummaryColumn` in `native/record_op.h`."""

NOT_RUN = -2.0
"""The value of each column in the row of a tensor that was not computed."""
