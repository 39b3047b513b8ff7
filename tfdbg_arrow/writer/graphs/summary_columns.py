"""The columns of summary rows: one row of float64 numbers describes one tensor.

The order is that of `SummaryColumn` in `native/record_op.h`: rank, size, dimensions, the counts and the magnitudes of
spool/records.py, and the number of finite elements. The last two columns hold the first bad element and the number of
bad slices. Only the native core fills these two columns.
"""

from __future__ import annotations

import math

from tfdbg_arrow.spool.records import COUNTS, MAGNITUDES, NO_VALUE

DIM_COLUMNS = slice(2, 8)
"""The last six dimensions."""
COUNT_COLUMNS = slice(DIM_COLUMNS.stop, DIM_COLUMNS.stop + len(COUNTS))
MAGNITUDE_COLUMNS = slice(COUNT_COLUMNS.stop, COUNT_COLUMNS.stop + len(MAGNITUDES))
MAX_COLUMN = MAGNITUDE_COLUMNS.start + [measure.field for measure in MAGNITUDES].index("max")
NUM_FINITE_COLUMN = MAGNITUDE_COLUMNS.stop
NUM_COLUMNS = NUM_FINITE_COLUMN + 3

NUM_DEVICE_COUNTS = NUM_DEVICE_MAGNITUDES = 6
"""TensorFlow's ops measure only this many of the counts, and this many of the magnitudes: the first ones."""
_NOT_MEASURED = [float(NO_VALUE) if measure.format == "<i8" else math.nan for measure in (*COUNTS, *MAGNITUDES)]
OTHER_COUNTS = _NOT_MEASURED[NUM_DEVICE_COUNTS : len(COUNTS)]
"""The values of the other counts in a row that TensorFlow's ops make."""
OTHER_MAGNITUDES = _NOT_MEASURED[len(COUNTS) + NUM_DEVICE_MAGNITUDES :]
"""The values of the other magnitudes in a row that TensorFlow's ops make."""

MAX_LOOPS = 6
"""Maximum number of nested loops of functions that XLA compiles; tensors inside more loops are not recorded."""
NUM_COMPILED_COLUMNS = NUM_COLUMNS + MAX_LOOPS
"""Columns of a row that a compiled function returns. The last columns hold the iteration of each loop, or -1."""
NOT_RUN = -2.0
"""The value of each column in the row of a tensor that was not computed."""
