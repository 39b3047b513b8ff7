"""Chooses the allocator of pyarrow in the recorded process, and returns memory that the allocator keeps."""

from __future__ import annotations

import os

POOL_VARIABLE = "ARROW_DEFAULT_MEMORY_POOL"
"""pyarrow's environment variable that chooses the allocator. pyarrow reads it once."""
_C_LIBRARY = "system"
"""pyarrow's name for the allocator of the C library."""


def load_pyarrow() -> None:
    """Loads pyarrow with the allocator of the C library, unless the program has loaded it or chosen an allocator.

    pyarrow's default allocator reserves address space. It also takes huge pages from the system, and a short recording
    fills them only in part: it takes 30 MiB more.
    """
    if POOL_VARIABLE in os.environ:
        return
    os.environ[POOL_VARIABLE] = _C_LIBRARY
    try:
        import pyarrow as pa

        pa.default_memory_pool()  # reads the variable
    finally:
        del os.environ[POOL_VARIABLE]  # the program and its children must not see the variable


def release_unused() -> None:
    """Returns memory that the recording no longer uses to the system.

    pyarrow's default allocator keeps tens of MiB after a write, and more after a merge. The allocator of the C library
    returns large buffers by itself; to return the rest, it would search the heaps of the whole program.
    """
    import pyarrow as pa

    pool = pa.default_memory_pool()
    if pool.backend_name != _C_LIBRARY:
        pool.release_unused()
