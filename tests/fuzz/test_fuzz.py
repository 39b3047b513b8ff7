"""Test mutated inputs: no process dies, hangs or takes much memory, and each error is an error of tfdbg_arrow.

A finding has a number. To test that input again, run `python -m tests.fuzz.pool --first NUMBER --number 1`.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from .pool import findings

NUM_ALWAYS = 60
NUM_EXHAUSTIVE = 100_000


def test_mutated_inputs_are_handled_safely(tmp_path: Path) -> None:
    assert list(findings(range(NUM_ALWAYS), tmp_path, workers=2)) == []


def test_a_worker_that_dies_is_reported_and_replaced(tmp_path: Path) -> None:
    found = list(findings(range(2), tmp_path, kinds=("no such kind",)))
    assert [each.number for each in found] == [0, 1]
    assert all(each.text.startswith("died with 1: ") and "_spoil_no such kind" in each.text for each in found)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_many_more_mutated_inputs_are_handled_safely(tmp_path: Path) -> None:
    first = secrets.randbelow(2**40)
    print(f"inputs from {first} on")
    assert list(findings(range(first, first + NUM_EXHAUSTIVE), tmp_path, workers=2)) == []
