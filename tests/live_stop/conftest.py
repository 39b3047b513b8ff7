"""The health backends that can stop a program."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["native", "tensorflow"])
def health_backend(request: pytest.FixtureRequest) -> str:
    """Returns each health backend."""
    return str(request.param)
