"""Test some random trainings with disturbances, and that differences are found. `make chaos` runs many more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos import run as chaos

SEED = 20


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> str:
    return chaos.compile_preload(tmp_path_factory.mktemp("preload"))


def test_the_cases_of_a_seed_are_always_the_same_and_cover_everything() -> None:
    cases = [chaos.make_case(SEED, number) for number in range(300)]
    assert cases == [chaos.make_case(SEED, number) for number in range(300)]
    assert {case["training"] for case in cases} == set(chaos.TRAININGS)
    names = {name for case in cases for name in chaos.names_in(case)}
    assert names == {*chaos.HARMLESS, *chaos.DISKS, *chaos.ENDS}


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(6))
def test_a_recorded_training_differs_in_nothing(number: int, tmp_path: Path, preload: str) -> None:
    assert chaos.check(chaos.make_case(SEED, number), tmp_path, preload) == []


ALONE = chaos.Ended(0, "0 0x1p+0\n", "", 5.0)


@pytest.mark.parametrize(
    ("recorded", "found"),
    [
        (ALONE, []),
        (replace(ALONE, status=-9), ["the status without a recording is 0, and with one -9"]),
        (replace(ALONE, status=None, seconds=180.0), ["the status without", "it took 180 s instead of 5 s"]),
        (replace(ALONE, output="0 0x1p+1\n"), ["the output without a recording is '0 0x1p+0"]),
        (replace(ALONE, errors="Traceback:\nValueError: x\n"), ["the error without a recording is ''"]),
    ],
)
def test_differences_are_found(
    recorded: chaos.Ended, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos, "run", lambda case, logdir, preload: ALONE if logdir is None else recorded)
    monkeypatch.setattr(chaos, "missing_steps", lambda case, logdirs, recorded: [])
    texts = chaos.check(chaos.make_case(SEED, 0), tmp_path, "")
    assert len(texts) == len(found)
    assert all(text.startswith(start) for text, start in zip(texts, found, strict=True))


def test_missing_steps_are_found(tmp_path: Path) -> None:
    case = {"training": "eager", "steps": 3, "disturbances": {}, "settings": {}}
    recorded = replace(ALONE, output="0 0x1p+0\n1 0x1p+0\nthe end\n")
    assert chaos.missing_steps(case, tmp_path, recorded) == ["the marks of the steps [1, 2] are missing"]
    killed = case | {"disturbances": {"1": [["kill"]]}}
    assert chaos.missing_steps(killed, tmp_path, recorded) == ["the marks of the steps [1] are missing"]
