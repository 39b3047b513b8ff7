"""Respects a limit of the address space (`ulimit -v`): a recording leaves room for the program.

The process aborts if TensorFlow cannot create a thread or a memory mapping. So a recording must not use up the space.
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

from tfdbg_arrow.errors import RecordingError
from tfdbg_arrow.writer.arrow_allocator import POOL_VARIABLE

_RESERVED_BYTES = 1 << 30
"""Address space that pyarrow's default allocator reserves when it is first used."""
_FIXED_BYTES = 240 << 20
"""Address space that a recording uses in addition to the spool: libraries, and the stacks and heaps of two threads."""


_PROGRAM_BYTES = 1 << 30
"""Address space that must be left to the program, which maps the stacks and heaps of TensorFlow's threads later."""
_has_had_room = False
"""Whether an earlier recording fitted into this process. If so, TensorFlow's threads already exist."""


def limit_bytes() -> int | None:
    """Returns the limit of the address space of this process; None if there is none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def check_room(*, spool_bytes: int) -> None:
    """Checks that a recording fits into the address space.

    Args:
        spool_bytes: The size of the spool.

    Raises:
        RecordingError: The recording does not fit. Without this error, the process would be aborted later.
    """
    global _has_had_room
    limit = limit_bytes()
    if limit is None:
        return
    import pyarrow as pa

    used = _used_bytes()
    pool = pa.default_memory_pool()
    reserved = _RESERVED_BYTES if pool.backend_name == "mimalloc" and pool.max_memory() in (0, None) else 0
    needed = spool_bytes + _FIXED_BYTES + (0 if _has_had_room else reserved + _PROGRAM_BYTES)
    if used is None or limit - used >= needed:
        _has_had_room = True
        return
    cure = f" set the environment variable {POOL_VARIABLE}=system," if reserved else ""
    raise RecordingError(
        f"this process may use {limit:,} bytes of address space (ulimit -v) and has used {used:,}; the program and its "
        f"recording may need {needed:,} more. Raise the limit,{cure} or set a lower max_memory_bytes."
    )


def _used_bytes() -> int | None:
    """Returns the size of the address space in use; None if it is unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    return None
