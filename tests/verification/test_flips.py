"""Test flipped bytes: verify finds each one, and with skip_broken a reader returns no wrong row."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow import open_logdir, verify
from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.schema import TABLES

from .logdirs import damage, write_all

pytestmark = pytest.mark.slow

Rows = dict[str, Counter[str]]
_WITHOUT_CHECKSUMS = (".spool", ".values")
"""Files of a killed run that verify reports as unchecked."""


def rows_of(logdir: Path, **options: Any) -> Rows:
    with open_logdir(logdir, **options) as opened:
        return {table.name: Counter(map(repr, opened.rows(f"SELECT * FROM {table.name}"))) for table in TABLES}


def flip(path: Path, offset: int, mask: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


@pytest.mark.parametrize(
    ("num_flips", "read_each"), [(120, 30), pytest.param(10_000, 100, marks=pytest.mark.exhaustive)]
)
def test_every_flipped_byte_is_found(tmp_path: Path, num_flips: int, read_each: int) -> None:
    logdir = write_all(tmp_path / "logdir", tmp_path)
    files = sorted(path for path in logdir.rglob("*") if path.is_file() and path.suffix not in _WITHOUT_CHECKSUMS)
    assert {path.suffix for path in files} == {".json", ".jsonl", ".parquet", ".journal", ".rows"}
    assert verify(logdir).is_intact
    expected = rows_of(logdir)
    chance = random.Random(20261121)
    for number in range(num_flips):
        path = files[number % len(files)]
        offset, mask = chance.randrange(path.stat().st_size), chance.randrange(1, 256)
        flip(path, offset, mask)
        verification = verify(logdir)
        assert path.relative_to(logdir).as_posix() in [name for _, name in damage(verification)], (path, offset, mask)
        if number % read_each == 0 and path.suffix in (".json", ".jsonl", ".parquet"):
            check_rows(logdir, path, expected)
        flip(path, offset, mask)
    assert verify(logdir).is_intact
    assert rows_of(logdir, skip_broken=True) == expected


def check_rows(logdir: Path, path: Path, expected: Rows) -> None:
    """Checks that a reader returns only rows that were there before, or that the logdir cannot be opened."""
    rows: Rows = {}
    # Without the marker, the directory is not a logdir.
    with contextlib.suppress(LogdirError) if path.suffix == ".json" else contextlib.nullcontext():
        rows = rows_of(logdir, skip_broken=True)
    for table, found in rows.items():
        # capture_stat may also report that a killed run could not be recovered without the part.
        assert found <= expected[table] or table == "capture_stat", path
