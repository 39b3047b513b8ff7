"""Settings for all tests: no TensorFlow log, and temporary files in memory if there is enough room."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfdbg_arrow.writer.memory import MemoryShares

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

# Every recording syncs about fifty files to disk. In hundreds of tests, that takes a large part of the time.
_MEMORY = "/dev/shm"
_NEEDED_BYTES = 4 << 30
if "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _NEEDED_BYTES:
    tempfile.tempdir = os.environ["TMPDIR"] = _MEMORY

_SPOOL_RECORDS = 1 << 14
"""Number of records in the spools of tests: 4 MiB. In memory, the default of 64 MiB takes a tenth of the time of a
short recording."""

# Each of these tests may be quick, but all of them together take minutes, and few changes concern them.
_SLOW_DIRECTORIES = ("faults", "fuzz", "parity", "recovery", "remote", "writer/debugger_v2")


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of the slow directories."""
    slow = [Path(__file__).parent / directory for directory in _SLOW_DIRECTORIES]
    for item in items:
        if any(item.path.is_relative_to(directory) for directory in slow):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="module")
def _small_spools(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.module.__name__.rpartition(".")[2] != "test_memory":
            patch.setattr(MemoryShares, "spool_records", _SPOOL_RECORDS)
        yield


def pytest_collection_finish() -> None:
    """Takes all that was imported out of the garbage collection, which took a fifth of the time of recordings."""
    gc.collect()
    gc.freeze()
