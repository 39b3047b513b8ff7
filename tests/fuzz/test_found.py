"""What fuzzing found, kept as bytes: files that harmed a reader once."""

from __future__ import annotations

from pathlib import Path

from tfdbg_arrow.query.logdir.reading_errors import unreadable_parts

from ..viewer import logdirs

FOUND = Path(__file__).parent / "found"


def test_a_part_at_which_duckdb_fails_within_does_not_make_others_unreadable(tmp_path: Path) -> None:
    whole = [str(path) for path in sorted(logdirs.log_of_zero(tmp_path).glob("*/run_id=*/*.parquet"))]
    broken = str(FOUND / "duckdb_internal_error.parquet")
    assert [path for path, _ in unreadable_parts([whole[0], broken, *whole[1:], broken])] == [broken, broken]
