"""Test the findings of fuzzing: files that once broke a reader, and directory entries that are not files."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tfdbg_arrow import open_logdir, recover, verify
from tfdbg_arrow.debugger_v2.importer import import_dump
from tfdbg_arrow.errors import BrokenPartError, LogdirError
from tfdbg_arrow.query import Logdir
from tfdbg_arrow.query.integrity.broken_parts import unreadable_parts
from tfdbg_arrow.query.logdir.local_parts import no_check
from tfdbg_arrow.storage.layout import manifest_path, part_path, spool_paths

from ..recovery.checking import left_by_a_kill
from ..recovery.driver import RUN_ID
from ..viewer import logdirs
from ..writer.debugger_v2.building import small_dump, write_dump
from .asking import failures
from .cheaper import SharedDatabase
from .inputs import Inputs

FOUND = Path(__file__).parent / "found"


def test_a_part_with_an_internal_duckdb_error_does_not_make_others_unreadable(tmp_path: Path) -> None:
    whole = [str(path) for path in sorted(logdirs.log_of_zero(tmp_path).glob("*/run=*/*.parquet"))]
    broken = str(FOUND / "duckdb_internal_error.parquet")
    parts = [whole[0], broken, *whole[1:], broken]
    assert [path for path, _ in unreadable_parts(parts, check=no_check)] == [broken, broken]


@pytest.mark.parametrize("skip_broken", [False, True])
def test_a_logdir_can_be_queried_after_an_internal_duckdb_error(tmp_path: Path, skip_broken: bool) -> None:
    path = logdirs.log_of_zero(tmp_path)
    with open_logdir(path) as whole:
        expected = whole.rows("SELECT * FROM tensor_health ORDER BY event_index")
        (run_id,) = whole.run_ids()
    part = next(path.glob("graph_function/run=*/*.parquet"))
    with open_logdir(path, skip_broken=skip_broken) as whole:
        one = whole.of_run(run_id)
        # With skip_broken, opening the logdir has already checked all parts.
        shutil.copy(FOUND / "duckdb_internal_error.parquet", part)
        for _ in range(2):
            for asked in (one, whole, one):
                ask_for_functions(asked, part, skip_broken=skip_broken)
                assert asked.rows("SELECT * FROM tensor_health ORDER BY event_index") == expected
        ask_for_functions(whole, part, skip_broken=skip_broken)
        assert one.rows("SELECT * FROM tensor_health ORDER BY event_index") == expected
        assert whole.connection.sql("SELECT count(*) FROM tensor_health").fetchall() == [(len(expected),)]


def test_replaced_rows_are_not_replaced_by_others_after_an_internal_duckdb_error(tmp_path: Path) -> None:
    path = logdirs.log_of_zero(tmp_path)
    with open_logdir(path) as whole, contextlib.closing(whole.of_runs(whole.run_ids())) as some:
        some.replace("tensor_health", "SELECT * FROM tensor_health WHERE num_nan > 0")
        shutil.copy(FOUND / "duckdb_internal_error.parquet", next(path.glob("graph_function/run=*/*.parquet")))
        ask_for_functions(some, next(path.glob("graph_function/run=*/*.parquet")), skip_broken=False)
        with pytest.raises(BrokenPartError, match="part-"):
            some.rows("SELECT count(*) FROM tensor_health")


def ask_for_functions(asked: Logdir, part: Path, *, skip_broken: bool) -> None:
    if skip_broken:
        asked.rows("SELECT * FROM graph_function")
        assert str(part) in [broken.path for broken in asked.broken_parts]
    else:
        with pytest.raises(BrokenPartError, match=part.name):
            asked.rows("SELECT * FROM graph_function")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def pipe_by_a_link(path: Path) -> None:
    os.mkfifo(path.parent / "pipe")
    path.symlink_to("pipe")


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def circle(path: Path) -> None:
    path.symlink_to(path)


def file_outside(path: Path) -> None:
    path.symlink_to(next(parent for parent in path.parents if (parent / "outside").exists()) / "outside")


PART = part_path("tensor_health", run_id=RUN_ID, number=0)
SPOOL = [str(path) for path in spool_paths(Path(), run_id=RUN_ID).all()]


STRANGE = [
    *((put, name) for put in (pipe, file_outside) for name in (PART, *SPOOL)),
    *((put, manifest_path(RUN_ID)) for put in (pipe, pipe_by_a_link, device, circle, file_outside)),
]


@pytest.mark.parametrize(("put", "name"), STRANGE)
def test_pipes_devices_and_outside_files_are_not_opened(tmp_path: Path, put: Callable[[Path], None], name: str) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"of somebody else")
    logdir = left_by_a_kill(tmp_path / "left", num_calls=3, flushed_after=1, capacity=64)
    (logdir / name).unlink()
    put(logdir / name)
    with pytest.raises(LogdirError, match=Path(name).name), open_logdir(logdir) as opened:
        opened.rows("SELECT * FROM tensor_health")
    with open_logdir(logdir, skip_broken=True) as opened:
        assert len(opened.rows("SELECT * FROM run")) <= 1
        opened.rows("SELECT * FROM tensor_health")
        assert opened.broken_parts
    assert not verify(logdir).is_intact
    if name != PART:
        (run,) = recover(logdir)
        assert run.state == "failed"
    assert outside.read_bytes() == b"of somebody else"


def test_an_import_does_not_wait_for_a_pipe_in_a_dump(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump", small_dump())
    path = next(dump.glob("*.execution"))
    path.unlink()
    os.mkfifo(path)
    (run,) = import_dump(dump, tmp_path / "logdir").runs
    assert [stat["subject"] for stat in run.dropped if stat["reason"] == "is missing in the dump"] == ["file execution"]


@pytest.mark.parametrize("number", [8019118], ids=["a device whose number is a list"])
def test_inputs_that_once_caused_a_traceback(tmp_path: Path, number: int) -> None:
    given = Inputs(tmp_path / "inputs").make(number)
    assert list(failures(given, tmp_path, SharedDatabase())) == []
