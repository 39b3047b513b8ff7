"""Fixtures for processes whose file operations can be made to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.server import Server
from tests.faults.shim import compile_shim


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="module")
def server(shim: Path) -> Iterator[Server]:
    """A process that records, reads and recovers without TensorFlow."""
    made = Server("tests.faults.program", shim=shim)
    yield made
    made.close()
