"""What all tests share: TensorFlow without its log, and temporary files in memory where there is room for them."""

from __future__ import annotations

import os
import shutil
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

# Every recording syncs some fifty files to the disk, which in hundreds of tests is a good part of their time.
_MEMORY = "/dev/shm"
_NEEDED_BYTES = 4 << 30
if "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _NEEDED_BYTES:
    tempfile.tempdir = os.environ["TMPDIR"] = _MEMORY
