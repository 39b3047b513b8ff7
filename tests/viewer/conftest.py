"""Fixtures for the tests of the viewer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser that the tests of a module share."""
    from .browser import chromium  # only here: `make matrix` runs the other tests without playwright

    with chromium() as opened:
        yield opened
