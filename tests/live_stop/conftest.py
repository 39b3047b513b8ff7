"""The health backends that can stop a program."""

from __future__ import annotations

import pytest

from tfdbg_arrow.writer import backend

from .stops import NATIVE, WITH_CORE, WITHOUT_CORE, needs_core


@pytest.fixture(
    params=[pytest.param(NATIVE, marks=needs_core), pytest.param(WITH_CORE, marks=needs_core), WITHOUT_CORE]
)
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A health backend."""
    if request.param == WITHOUT_CORE:
        monkeypatch.setattr(backend, "native_core", lambda: None)
    return "native" if request.param == NATIVE else "tensorflow"
