"""What all tests share: TensorFlow without its log, and temporary files in memory where there is room for them."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

# Every recording syncs some fifty files to the disk, which in hundreds of tests is a good part of their time.
_MEMORY = "/dev/shm"
_NEEDED_BYTES = 4 << 30
if "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _NEEDED_BYTES:
    tempfile.tempdir = os.environ["TMPDIR"] = _MEMORY


@pytest.fixture(autouse=True, scope="module")
def _little_to_collect() -> Iterator[None]:
    """Lets the collector forget what a file of tests leaves: to look through the graphs of all takes seconds."""
    yield
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Has all of it collected as it always is in the end; else libraries report what is left as leaks."""
    gc.unfreeze()
