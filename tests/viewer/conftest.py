"""Fixtures for the tests of the viewer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from . import logdirs
from .serving import Served, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser that the tests of a module share."""
    from .browser import chromium  # only here: `make matrix` runs the other tests without playwright

    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A logdir of a model that takes the logarithm of 0. Modules about other logdirs replace this fixture."""
    return logdirs.log_of_zero(tmp_path_factory.mktemp("logdir"))


@pytest.fixture(scope="module")
def served(path: Path) -> Iterator[Served]:
    """A viewer of `path`, which the tests of a module share."""
    with serving(path) as server:
        yield server
