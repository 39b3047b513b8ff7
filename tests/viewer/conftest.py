"""Fixtures for the tests of the viewer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from .browser import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser that the tests of a module share."""
    with chromium() as opened:
        yield opened
