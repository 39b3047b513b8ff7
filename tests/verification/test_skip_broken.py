"""Test reading a broken logdir with skip_broken: rows of broken files are left out, and these files are named."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.query.manifests import resealed
from tfdbg_arrow import open_logdir
from tfdbg_arrow.errors import BrokenPartError, LogdirError
from tfdbg_arrow.query.bad_runs import BadRuns
from tfdbg_arrow.schema import arrow_schema, parquet_options

from .logdirs import CLEAN_RUN, KILLED_RUN, clean_run, write_all

MANIFEST = f"manifest/{CLEAN_RUN}.jsonl"
PART = f"tensor_health/run={CLEAN_RUN}/part-000000.parquet"
COUNT = "SELECT count(*) FROM tensor_health"


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    return clean_run().write(tmp_path / "logdir", parts=2)


def change(path: Path, damage: str) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    if damage != "missing":
        path.write_bytes(bytes(content) if damage == "changed" else bytes(content[:-9]))


@pytest.mark.parametrize(
    ("damage", "reason"), [("missing", "is missing"), ("cut", "bytes, not"), ("changed", "does not match its SHA-256")]
)
def test_a_broken_part_is_left_out_and_named(logdir: Path, damage: str, reason: str) -> None:
    change(logdir / PART, damage)
    with open_logdir(logdir, skip_broken=True) as opened:
        assert opened.rows(COUNT) == [(3,)]
        assert opened.of_run(CLEAN_RUN).rows(COUNT) == [(3,)]
        (broken,) = opened.broken_parts
        tensor = opened.first_nonfinite()
        assert tensor is not None
        assert tensor.event_index == 3
    assert (broken.path, broken.run_id, broken.table) == (str(logdir / PART), CLEAN_RUN, "tensor_health")
    assert broken.rows == 3
    assert reason in broken.reason


def test_nothing_is_left_out_of_an_intact_logdir_or_without_skip_broken(logdir: Path) -> None:
    with open_logdir(logdir, skip_broken=True) as opened:
        assert (opened.rows(COUNT), opened.broken_parts) == ([(6,)], ())
    (logdir / PART).write_bytes(b"PAR1")
    with open_logdir(logdir) as opened:
        assert opened.broken_parts == ()
        with pytest.raises(BrokenPartError, match=r"part-000000\.parquet cannot be read .* skip_broken=True"):
            opened.rows(COUNT)


@pytest.mark.slow
def test_a_part_that_is_left_out_is_not_used(logdir: Path) -> None:
    expected = clean_run().write(logdir.parent / "expected", parts=2)
    lines = (expected / MANIFEST).read_text().splitlines()
    (expected / MANIFEST).write_text(resealed("\n".join(line for line in lines if PART not in line)))
    change(logdir / PART, "changed")
    with open_logdir(logdir, skip_broken=True) as opened, open_logdir(expected) as other:
        assert opened.alerts() == other.alerts()
        run_ids = other.run_ids()
        assert opened.lasting(BadRuns).by_first(("nan",), run_ids) == other.lasting(BadRuns).by_first(("nan",), run_ids)


def test_a_refresh_notices_broken_and_restored_parts(logdir: Path) -> None:
    with open_logdir(logdir, skip_broken=True) as opened:
        content = (logdir / PART).read_bytes()
        change(logdir / PART, "changed")
        opened.refresh()
        assert (opened.rows(COUNT), len(opened.broken_parts)) == ([(3,)], 1)
        (logdir / PART).write_bytes(content)
        opened.refresh()
        assert (opened.rows(COUNT), opened.broken_parts) == ([(6,)], ())


def seal(logdir: Path) -> None:
    """Makes the manifest fit the changed part."""
    data = (logdir / PART).read_bytes()
    lines = (logdir / MANIFEST).read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines) if PART in line)
    entry = json.loads(lines[number])
    entry |= {"bytes": len(data), "sha256": sha256(data).hexdigest()}
    lines[number] = json.dumps(entry)
    (logdir / MANIFEST).write_text(resealed("\n".join(lines)))


def test_an_unreadable_part_is_left_out_even_if_no_manifest_contradicts_it(logdir: Path) -> None:
    """Such a part comes from a writer with an error."""
    content = bytearray((logdir / PART).read_bytes())
    content[10:200] = bytes(190)
    (logdir / PART).write_bytes(content)
    seal(logdir)
    with open_logdir(logdir, skip_broken=True) as opened:
        assert opened.rows("SELECT count(*), max(event_index) FROM tensor_health WHERE size > 0") == [(3, 5)]
        (broken,) = opened.broken_parts
    assert (broken.path, broken.rows) == (str(logdir / PART), None)
    assert broken.reason.startswith("cannot be read as Parquet")


def test_a_part_of_another_schema_is_left_out(logdir: Path) -> None:
    table = pq.read_table(logdir / PART, partitioning=None).drop_columns(["event_index"])
    pq.write_table(table, logdir / PART)
    seal(logdir)
    with open_logdir(logdir, skip_broken=True) as opened:
        assert opened.rows(COUNT) == [(3,)]
        assert [part.reason for part in opened.broken_parts] == ["lacks the column event_index"]


def test_nothing_is_read_of_a_run_with_a_damaged_manifest(tmp_path: Path) -> None:
    logdir = write_all(tmp_path / "logdir", tmp_path)
    with open_logdir(logdir) as opened:
        assert opened.run_ids() == (KILLED_RUN, CLEAN_RUN)
    for run_id, other in ((KILLED_RUN, CLEAN_RUN), (CLEAN_RUN, KILLED_RUN)):
        manifest = logdir / f"manifest/{run_id}.jsonl"
        content = manifest.read_bytes()
        manifest.write_bytes(content.replace(b'"rows": ', b'"rows": 1', 1))
        with pytest.raises(LogdirError, match="does not match its checksum"):
            open_logdir(logdir)
        with open_logdir(logdir, skip_broken=True) as opened:
            assert opened.run_ids() == (other,)
            (broken,) = opened.broken_parts
            assert (broken.path, broken.run_id, broken.table) == (str(manifest), run_id, None)
            assert "does not match its checksum" in broken.reason
        manifest.write_bytes(content)


def test_no_part_is_read_if_the_only_manifest_is_damaged(logdir: Path) -> None:
    (logdir / MANIFEST).write_text("x\n")
    with open_logdir(logdir, skip_broken=True) as opened:
        assert opened.rows(COUNT) == [(0,)]
        assert len(opened.broken_parts) == 1


def test_broken_parts_of_a_killed_run_do_not_affect_other_rows(tmp_path: Path) -> None:
    logdir = write_all(tmp_path / "logdir", tmp_path)
    part = max((logdir / f"run/run={KILLED_RUN}").iterdir())
    change(part, "changed")
    with open_logdir(logdir, skip_broken=True) as opened:
        assert [broken.path for broken in opened.broken_parts] == [str(part)]
        assert [run.run_id for run in opened.runs()] == [CLEAN_RUN]
        ((events,),) = opened.of_run(KILLED_RUN).rows(COUNT)
    assert events > 0


def test_an_empty_part_has_the_columns_of_its_table(tmp_path: Path) -> None:
    """An empty part with the right columns stands in when every part of a table is broken."""
    logdir = clean_run().write(tmp_path / "logdir")
    pq.write_table(pa.table({"x": [1]}), logdir / PART)
    with open_logdir(logdir, skip_broken=True) as opened:
        assert opened.rows(COUNT) == [(0,)]
        assert opened.first_nonfinite() is None
    pq.write_table(arrow_schema("tensor_health").empty_table(), logdir / PART, **parquet_options("tensor_health"))
    with open_logdir(logdir, skip_broken=True) as opened:
        assert opened.rows(COUNT) == [(0,)]
