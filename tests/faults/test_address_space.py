"""Test that a recording does not abort the program if the address space is limited."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfdbg_arrow import open_logdir

LIMIT = """
import os, resource, sys
import tensorflow as tf
import tfdbg_arrow

def limit(more):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))
"""


def run(text: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.slow
def test_a_recording_that_leaves_the_program_too_little_is_refused(tmp_path: Path) -> None:
    done = run(LIMIT + "limit(1 << 30)\ntfdbg_arrow.enable(sys.argv[1])\n", tmp_path)
    assert done.returncode == 1
    assert "tfdbg_arrow.errors.RecordingError: this process may use" in done.stderr
    assert "bytes of address space (ulimit -v)" in done.stderr
    assert "set the environment variable ARROW_DEFAULT_MEMORY_POOL=system" in done.stderr


@pytest.mark.slow
def test_a_training_passes_if_the_allocator_reserves_nothing(tmp_path: Path) -> None:
    text = LIMIT + (
        "limit(1600 << 20)\n"
        "with tfdbg_arrow.capture(sys.argv[1]):\n"
        "    model = tf.keras.Sequential([tf.keras.layers.Dense(4)])\n"
        "    model.compile('sgd', 'mse')\n"
        "    model.fit(tf.ones([64, 8]), tf.ones([64, 4]), verbose=0)\n"
    )
    done = run(text, tmp_path, ARROW_DEFAULT_MEMORY_POOL="system")
    assert done.returncode == 0, done.stderr
    with open_logdir(tmp_path) as opened:
        assert opened.rows("SELECT is_clean_end FROM run") == [(True,)]


@pytest.mark.parametrize(("chosen", "expected"), [(None, "system None"), ("mimalloc", "mimalloc mimalloc")])
def test_a_recorder_loads_pyarrow_with_the_allocator_of_the_c_library(chosen: str | None, expected: str) -> None:
    text = (
        "import os\n"
        "import tfdbg_arrow.writer\n"
        "import pyarrow as pa\n"
        "print(pa.default_memory_pool().backend_name, os.environ.get('ARROW_DEFAULT_MEMORY_POOL'))\n"
    )
    environment = {} if chosen is None else {"ARROW_DEFAULT_MEMORY_POOL": chosen}
    assert run(text, **environment).stdout == f"{expected}\n"
