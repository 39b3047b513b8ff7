"""Fixtures of the tests of recording."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tfdbg_arrow


@pytest.fixture
def not_recording() -> Iterator[None]:
    """Checks that no recording is active before and after the test."""
    assert not tfdbg_arrow.is_recording()
    yield
    tfdbg_arrow.disable()
