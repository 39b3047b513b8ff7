"""The health backends that can stop a program."""

from __future__ import annotations

import pytest

from tests.sampling import mostly_slow


@pytest.fixture(params=mostly_slow(["native", "tensorflow"], fast=["native"]))
def health_backend(request: pytest.FixtureRequest) -> str:
    """Returns each health backend."""
    return str(request.param)
