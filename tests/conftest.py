"""Settings for all tests: no TensorFlow log, and temporary files in memory if there is enough room."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfdbg_arrow.writer.memory import MemoryShares

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

with contextlib.suppress(ModuleNotFoundError):  # the environment of tests/readers does not have Hypothesis
    from hypothesis import HealthCheck, settings

    # No test asserts a duration: how long an example takes depends on what else the machine does.
    settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("untimed")

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


# Each case of these tests records a program or writes a logdir.
_SAMPLED_DIRECTORIES = ("cli", "live_stop", "query", "viewer", "writer")
_CASES_IN_SAMPLE = 5
"""Number of cases of a parametrized test that `make test` runs. More cases rarely fail where these pass."""
_CASES_IN_SLOW_SAMPLE = 6
"""Number of cases of a parametrized test from which `make slow` runs those that `make test` does not run. For a test
that is marked as slow, these are all 6, unless it is also marked with `every_case`."""


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of the slow directories, and most cases of the tests of the sampled directories."""
    slow, sampled = (
        [Path(__file__).parent / directory for directory in directories]
        for directories in (_SLOW_DIRECTORIES, _SAMPLED_DIRECTORIES)
    )
    cases = defaultdict(list)
    for item in items:
        if any(item.path.is_relative_to(directory) for directory in slow):
            item.add_marker(pytest.mark.slow)
        elif any(item.path.is_relative_to(directory) for directory in sampled) and not any(
            map(item.get_closest_marker, ("exhaustive", "every_case"))
        ):
            is_slow = item.get_closest_marker("slow") is not None
            cases[item.nodeid.partition("[")[0], is_slow].append(item)
    for (_, is_slow), of_test in cases.items():
        in_test = set() if is_slow else _spread(_CASES_IN_SAMPLE, len(of_test))
        in_slow = _spread(_CASES_IN_SLOW_SAMPLE, len(of_test))
        for number, item in enumerate(of_test):
            if number not in in_test:
                item.add_marker(pytest.mark.slow if number in in_slow else pytest.mark.exhaustive)


def _spread(number: int, length: int) -> set[int]:
    """Returns evenly spread indices of a sequence, with the first and the last one."""
    return {(length - 1) * index // (number - 1) for index in range(number)}


@pytest.fixture(autouse=True, scope="module")
def _small_spools(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.module.__name__.rpartition(".")[2] != "test_memory":
            patch.setattr(MemoryShares, "spool_records", _SPOOL_RECORDS)
        yield


def pytest_collection_finish() -> None:
    """Excludes imported objects from garbage collection, which took a fifth of the time of recordings."""
    gc.collect()
    gc.freeze()
