"""The health backends that can stop a program."""

from __future__ import annotations

import pytest

from tfdbg_arrow.writer import backend

from .stops import NATIVE, NATIVE_CORE, WITH_CORE, WITHOUT_CORE, needs_core

LONG = () if NATIVE_CORE() is None else pytest.mark.exhaustive
WITH = [pytest.param(NATIVE, marks=needs_core), pytest.param(WITH_CORE, marks=needs_core)]


@pytest.fixture(params=[*WITH, WITHOUT_CORE])
def every_variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A health backend."""
    return use(request.param, monkeypatch)


@pytest.fixture(params=[*WITH, pytest.param(WITHOUT_CORE, marks=LONG)])
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A health backend; the one without the core is left to the exhaustive run, if the core is there."""
    return use(request.param, monkeypatch)


def use(variant: str, monkeypatch: pytest.MonkeyPatch) -> str:
    if variant == WITHOUT_CORE:
        monkeypatch.setattr(backend, "native_core", lambda: None)
    return "native" if variant == NATIVE else "tensorflow"
