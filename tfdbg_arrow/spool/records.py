"""The spool's fixed-size records: layout, kinds and flags.

The C++ core (`native/record.h`) and the Python recorder write the same layout; the sink
reads it as a NumPy structured array. A record is 256 bytes, little-endian. All fields up to
`size` have the same meaning in every kind that uses them; the rest is either tensor facts or a
payload of 19 integers (`PAYLOAD_DTYPE`).

The fields that each kind uses:

* GRAPH_TENSOR: all fields except `tensor_id`. `execution_index` is set if the tensor is known to be an argument of that
  call, and -1 otherwise. `node` is the key that `GraphRegistry` assigned to the tensor.
* EXECUTION_TENSOR, EXTERNAL_TENSOR: `node` is the interned op type (not for EXTERNAL),
  `execution_index`, `slot`, `tensor_id`.
* EXECUTION: `node` is the interned op type or function name, `size` the number of inputs, `slot`
  the number of outputs, `tensor_id` the stack trace id (-1 if none), `step_id` the Python thread's
  identifier, `frame_id` the execution whose gradient it computes (-1 if none), `call_site` the interned layer and
  `device` the interned role (both 0 if none); the payload holds the first 19 input tensor ids.
* INPUTS: further input tensor ids of the preceding execution; `slot` is the index of the first.
* EXECUTION_END: the call `execution_index` has returned or raised.
* EXECUTION_ERROR: the execution `execution_index` has raised; `node` is the interned class name of the error.
* DIMS: dimensions 6 and up of the preceding tensor, in the payload.

An `EXECUTION` and its `INPUTS` are adjacent, and so are a tensor and its `DIMS`.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np
import numpy.typing as npt

RECORD_SIZE = 256
NUM_INLINE_DIMS = 6
PAYLOAD_LENGTH = 19
NO_VALUE = -1
"""Marks an identifier or offset that does not apply."""
NO_STEP = -(2**63)
"""`step` before the first mark."""


class Kind(IntEnum):
    """The kind of a record."""

    GRAPH_TENSOR = 1
    EXECUTION_TENSOR = 2
    EXTERNAL_TENSOR = 3
    EXECUTION = 4
    EXECUTION_END = 5
    INPUTS = 6
    DIMS = 7
    EXECUTION_ERROR = 8


class Flag(IntFlag):
    """The measured facts of a tensor."""

    COVERED = 1
    """The tensor gets a row in tensor_health; without this flag it only gets one in execution_output."""
    SHAPE = 2
    """`rank`, `dims` and `size` are measured."""
    BAD = 4
    """An element is infinite or NaN."""
    COUNTS = 8
    """The three counts of bad elements are measured (CONCISE_HEALTH and up)."""
    SIGNS = 16
    """The three counts of finite elements are measured too (FULL_HEALTH and up)."""
    NUMERICS = 32
    """Magnitudes and subnormals are measured (FULL_NUMERICS)."""
    ORDERED = 64
    """min, max, mean and stddev exist: the dtype is real and an element is finite."""
    ANY_FINITE = 128
    """max_abs exists: an element is finite."""
    VALUE = 256
    """The elements are kept, as `value_bytes` bytes at `value_offset` of the value spool."""
    CHECKED = 512
    """It was measured whether an element is bad (CURT_HEALTH and up); BAD holds the result."""
    CONTEXT = 1024
    """step_id, frame_id, iteration and call_site are known."""


_FIELDS: tuple[tuple[str, object, int], ...] = (
    # name, format, offset
    ("commit", "<u8", 0),
    ("wall_time_ns", "<i8", 8),
    ("kind", "u1", 16),
    ("rank", "u1", 17),
    ("dtype", "<i2", 18),
    ("flags", "<i4", 20),
    ("node", "<i4", 24),
    ("call_site", "<i4", 28),
    ("device", "<i4", 32),
    ("slot", "<i4", 36),
    ("step_id", "<i8", 40),
    ("execution_index", "<i8", 48),
    ("frame_id", "<i8", 56),
    ("iteration", "<i8", 64),
    ("tensor_id", "<i8", 72),
    ("step", "<i8", 80),
    ("size", "<i8", 88),
    ("value_offset", "<i8", 96),
    ("dims", ("<i8", (NUM_INLINE_DIMS,)), 104),
    ("num_neg_inf", "<i8", 152),
    ("num_pos_inf", "<i8", 160),
    ("num_nan", "<i8", 168),
    ("num_neg_finite", "<i8", 176),
    ("num_zero", "<i8", 184),
    ("num_pos_finite", "<i8", 192),
    ("num_subnormal", "<i8", 200),
    ("min", "<f8", 208),
    ("max", "<f8", 216),
    ("mean", "<f8", 224),
    ("stddev", "<f8", 232),
    ("max_abs", "<f8", 240),
    ("value_bytes", "<i8", 248),
)

RECORD_DTYPE = np.dtype(
    {
        "names": [name for name, _, _ in _FIELDS],
        "formats": [format_ for _, format_, _ in _FIELDS],
        "offsets": [offset for _, _, offset in _FIELDS],
        "itemsize": RECORD_SIZE,
    }
)
"""Layout of a record. `commit` is event_index + 1 once the record is complete."""

PAYLOAD_DTYPE = np.dtype(
    {
        "names": ["payload"],
        "formats": [("<i8", (PAYLOAD_LENGTH,))],
        "offsets": [104],
        "itemsize": RECORD_SIZE,
    }
)
"""The same 256 bytes viewed as the payload of EXECUTION, INPUTS and DIMS: `array.view(PAYLOAD_DTYPE)`."""

Records = npt.NDArray[np.void]
"""An array of RECORD_DTYPE."""
