"""What the tests of recording share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tfdbg_arrow


@pytest.fixture
def not_recording() -> Iterator[None]:
    """No recording is in force before the test, nor after it."""
    assert not tfdbg_arrow.is_recording()
    yield
    tfdbg_arrow.disable()
