"""Test recover(): data of dead processes is moved into parts exactly once, and live or damaged runs are not changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.durability.dead_process import RUN_ID, DeadProcess
from tests.durability.files_on_disk import failing
from tests.recovery.driver import RUN_ROW
from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.schema import TABLES, arrow_schema
from tfdbg_arrow.spool.convert import metadata_table
from tfdbg_arrow.spool.journal import held_if_dead
from tfdbg_arrow.storage.layout import SPOOL_DIRECTORY, manifest_path
from tfdbg_arrow.storage.manifest import read_live_parts
from tfdbg_arrow.storage.marker import mark_logdir
from tfdbg_arrow.writer.recover import RecoveredRun, recover


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    return tmp_path / "logdir"


def tree(logdir: Path) -> dict[str, bytes]:
    return {str(path.relative_to(logdir)): path.read_bytes() for path in logdir.rglob("*") if path.is_file()}


def spooled(logdir: Path) -> list[str]:
    return sorted(path.name for path in (logdir / SPOOL_DIRECTORY).iterdir())


def counts(logdir: Path, run_id: str = RUN_ID) -> dict[str, int]:
    """Returns the number of rows in the live parts of each table that has rows."""
    found: dict[str, int] = {}
    for entry in read_live_parts(logdir, run_id=run_id):
        table = pq.read_table(logdir / entry.path, partitioning=None)
        assert table.schema.equals(arrow_schema(entry.table))
        found[entry.table] = found.get(entry.table, 0) + len(table)
    return {table: number for table, number in found.items() if number}


def dead(logdir: Path, *, run_id: str = RUN_ID) -> DeadProcess:
    """Creates a process that died after two calls and a mark. The first call is in parts."""
    process = DeadProcess(logdir, run_id=run_id)
    process.parts.write("run", metadata_table("run", [RUN_ROW], run_id=run_id), spool_upto=0)
    process.call(0)
    process.call(1)
    process.mark(2)
    process.die()
    return process


class TestRecover:
    def test_data_of_a_dead_process_is_moved_from_the_spool_into_parts(self, logdir: Path) -> None:
        dead(logdir)
        (logdir / SPOOL_DIRECTORY / f"{RUN_ID}.mark.000000.tmp").touch()
        assert recover(logdir) == (RecoveredRun(run_id=RUN_ID, state="recovered", num_events=2),)
        assert spooled(logdir) == []
        assert counts(logdir) == {"run": 1, "execution": 2, "mark": 1, "capture_stat": 1}
        assert recover(logdir) == ()

    def test_every_table_has_a_part_afterwards(self, logdir: Path) -> None:
        dead(logdir)
        recover(logdir)
        tables = [entry.table for entry in read_live_parts(logdir, run_id=RUN_ID)]
        assert sorted(tables) == sorted(table.name for table in TABLES)

    def test_a_recovery_is_one_line_of_the_manifest(self, logdir: Path) -> None:
        dead(logdir)
        recover(logdir)
        lines = [json.loads(line) for line in (logdir / manifest_path(RUN_ID)).read_text().splitlines()]
        assert [(line["op"], line.get("is_recovery")) for line in lines] == [("add", None), ("replace", True)]
        assert lines[1]["removed"] == []

    def test_the_path_may_be_a_string(self, logdir: Path) -> None:
        dead(logdir)
        assert recover(str(logdir))[0].state == "recovered"

    def test_runs_are_recovered_oldest_first_and_independently(self, logdir: Path) -> None:
        dead(logdir, run_id="b")
        dead(logdir, run_id="a").paths.spool.write_bytes(b"nonsense")
        alive = DeadProcess(logdir, run_id="c")
        (logdir / SPOOL_DIRECTORY / "1.journal").touch()
        one, two, three = recover(logdir)
        assert (one.run_id, one.state, one.num_events) == ("a", "failed", 0)
        assert str(one.reason).startswith(f"{logdir}/spool/a.spool cannot be recovered: it is not an event spool")
        assert two == RecoveredRun(run_id="b", state="recovered", num_events=2)
        assert three == RecoveredRun(run_id="c", state="recording")
        alive.die()

    def test_nothing_is_done_twice(self, logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first recovery stops when everything is in parts and no spool file is removed yet."""
        dead(logdir)
        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", failing(100))
            (run,) = recover(logdir)
        assert run == RecoveredRun(run_id=RUN_ID, state="failed", reason="[Errno 28] No space left on device")
        before = counts(logdir)
        assert recover(logdir) == (RecoveredRun(run_id=RUN_ID, state="recovered"),)
        assert (counts(logdir), spooled(logdir)) == (before, [])

    def test_only_the_spool_of_a_run_that_had_ended_is_removed(self, logdir: Path) -> None:
        process = dead(logdir)
        row = metadata_table("run", [{**RUN_ROW, "is_clean_end": True}], run_id=RUN_ID)
        process.parts.replace([entry.path for entry in process.parts.parts("run")], {"run": [row]})
        manifest = (logdir / manifest_path(RUN_ID)).read_bytes()
        assert recover(logdir) == (RecoveredRun(run_id=RUN_ID, state="recovered"),)
        assert (logdir / manifest_path(RUN_ID)).read_bytes() == manifest
        assert spooled(logdir) == []

    def test_the_journals_of_a_run_without_events_are_removed(self, logdir: Path) -> None:
        process = dead(logdir)
        process.paths.spool.unlink()
        (logdir / manifest_path(RUN_ID)).unlink()
        assert recover(logdir) == (RecoveredRun(run_id=RUN_ID, state="recovered"),)
        assert spooled(logdir) == []
        assert not (logdir / manifest_path(RUN_ID)).exists()

    def test_a_run_that_died_before_its_manifest_gets_one(self, logdir: Path) -> None:
        process = DeadProcess(logdir)
        process.call(0)
        process.die()
        (logdir / manifest_path(RUN_ID)).unlink()
        assert recover(logdir) == (RecoveredRun(run_id=RUN_ID, state="recovered", num_events=1),)
        assert counts(logdir) == {"execution": 1, "capture_stat": 1}

    def test_events_that_are_in_parts_by_the_manifest_are_not_recovered(self, logdir: Path) -> None:
        process = dead(logdir)
        process.parts.write(
            "mark", arrow_schema("mark").empty_table(), spool_upto=process.files.rows.path.stat().st_size
        )
        process.parts.write("execution", arrow_schema("execution").empty_table(), spool_upto=1)
        assert recover(logdir)[0].num_events == 1
        assert counts(logdir) == {"run": 1, "execution": 1, "capture_stat": 1}

    def test_a_device_in_parts_is_not_written_again(self, logdir: Path) -> None:
        process = DeadProcess(logdir)
        device = process.spool.intern_string("/device:CPU:0")
        row = {"device_id": device, "device_name": "/device:CPU:0"}
        process.parts.write("device", metadata_table("device", [row], run_id=RUN_ID))
        process.tensor(0, device=device)
        process.die()
        recover(logdir)
        assert counts(logdir) == {"device": 1, "tensor_health": 1, "capture_stat": 1}


class TestOtherMachines:
    def test_a_recent_run_of_another_machine_is_recovered_only_on_request(
        self, logdir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patched:
            patched.setattr("tfdbg_arrow.spool.journal._machine", lambda: "another")
            dead(logdir)
        before = tree(logdir)
        assert recover(logdir) == (RecoveredRun(run_id=RUN_ID, state="recording"),)
        assert tree(logdir) == before
        assert recover(logdir, other_machines=True)[0].state == "recovered"


class TestErrors:
    def test_a_url_is_refused(self) -> None:
        with pytest.raises(LogdirError) as error:
            recover("s3://bucket/logdir")
        assert str(error.value) == (
            "s3://bucket/logdir is a URL, expected a directory: a recording to a URL leaves its spool on the "
            "machine where it ran."
        )

    def test_a_directory_that_is_not_a_logdir_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(LogdirError, match="is an empty directory"):
            recover(tmp_path)

    def test_a_logdir_without_a_spool_has_nothing_to_recover(self, logdir: Path) -> None:
        mark_logdir(logdir)
        assert recover(logdir) == ()

    def test_a_full_disk_leaves_the_files_as_they_were(self, logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        dead(logdir)
        before = tree(logdir)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", failing(1_000))
            (run,) = recover(logdir)
        assert run == RecoveredRun(run_id=RUN_ID, state="failed", reason="[Errno 28] No space left on device")
        assert tree(logdir) == before
        assert recover(logdir)[0].num_events == 2

    def test_a_missing_manifest_is_not_created_again(self, logdir: Path) -> None:
        dead(logdir)
        path = (logdir / manifest_path(RUN_ID)).rename(logdir / "kept")
        before = tree(logdir)
        assert recover(logdir) == (
            RecoveredRun(
                run_id=RUN_ID,
                state="failed",
                reason=(
                    f"{logdir / manifest_path(RUN_ID)} is missing, but the run {RUN_ID} has parts: restore it from "
                    "the place where the recording was made"
                ),
            ),
        )
        assert tree(logdir) == before
        path.rename(logdir / manifest_path(RUN_ID))
        assert recover(logdir)[0].state == "recovered"

    def test_a_manifest_that_links_outside_the_logdir_is_not_changed(self, logdir: Path) -> None:
        dead(logdir)
        manifest = logdir / manifest_path(RUN_ID)
        elsewhere = manifest.rename(logdir.with_name("elsewhere"))
        manifest.symlink_to(elsewhere)
        content = elsewhere.read_bytes()
        (run,) = recover(logdir)
        assert (run.state, run.num_events) == ("failed", 0)
        assert str(run.reason).startswith(f"{manifest} leads through a symbolic link to {elsewhere}")
        assert elsewhere.read_bytes() == content

    def test_a_run_that_is_being_read_is_not_recovered(self, logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        process = dead(logdir)
        before = tree(logdir)
        monkeypatch.setattr("tfdbg_arrow.spool.journal._LOCK_PATIENCE_S", 0.1)
        with held_if_dead(process.paths.journal, to_change=False) as is_dead:
            assert is_dead
            assert recover(logdir) == (RecoveredRun(run_id=RUN_ID, state="recording"),)
            assert tree(logdir) == before
        assert recover(logdir)[0].state == "recovered"

    def test_a_damaged_manifest_is_not_changed(self, logdir: Path) -> None:
        dead(logdir)
        (logdir / manifest_path(RUN_ID)).write_bytes(b'{"op": "\xff"}\n')
        before = tree(logdir)
        (run,) = recover(logdir)
        assert (run.state, run.num_events) == ("failed", 0)
        assert str(run.reason).startswith(f"{logdir / manifest_path(RUN_ID)}, line 1, does not match its checksum")
        assert tree(logdir) == before
