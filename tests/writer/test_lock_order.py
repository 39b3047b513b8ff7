"""Test that no two threads of a recorded program can wait for each other."""

from __future__ import annotations

import graphlib
import json
from itertools import chain
from pathlib import Path

import pytest

from tests.programs.running import run_to_end


@pytest.mark.slow
def test_locks_are_taken_in_one_order(tmp_path: Path) -> None:
    """Finalizers run ops and functions while a thread holds a lock. ARCHITECTURE.md has a table of the locks."""
    process = run_to_end("-m", "tests.writer.lock_order", tmp_path / "logdir")
    assert process.returncode == 0, process.stderr
    taken_while_held: dict[str, list[str]] = json.loads(process.stdout)
    assert any(name.startswith("spool/journal.py") for name in chain.from_iterable(taken_while_held.values()))
    list(graphlib.TopologicalSorter(taken_while_held).static_order())
