"""Test that an upgraded logdir has the present layout and the same rows, whatever interrupts the upgrade."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tfdbg_arrow
from tests.sampling import mostly_slow
from tfdbg_arrow.errors import BrokenPartError, FormatVersionError, LogdirError
from tfdbg_arrow.query import public_views
from tfdbg_arrow.schema import FORMAT_VERSION, TABLES
from tfdbg_arrow.spool.journal import held_if_dead
from tfdbg_arrow.storage.layout import MARKER_NAME, spool_paths
from tfdbg_arrow.storage.manifest import CHECKSUM_KEY, checksummed, run_ids, with_checksum
from tfdbg_arrow.storage.marker import FORMAT_NAME
from tfdbg_arrow.writer import upgrade as upgrading
from tfdbg_arrow.writer.sink.parts import PartWriter

from ..verification.logdirs import KILLED_RUN, write_all
from .make_golden import GOLDEN
from .test_golden import LOGDIRS

QUICK = {"1.0-full_tensor", "1.3-full_numerics", "1.3-imported"}
OLD = [
    pytest.param(path, id=name, marks=() if name in QUICK else pytest.mark.slow)
    for path in LOGDIRS
    if (name := f"{path.parent.name}-{path.name}").startswith("1.")
]
COMPUTED = {"op_digest"}
"""Tables that the upgrade computes again."""


def rows_of(logdir: Path) -> dict[str, Counter[str]]:
    """Returns the rows of each table and public view, in any order."""
    with tfdbg_arrow.open_logdir(logdir) as opened:
        names = [table.name for table in TABLES if table.name not in COMPUTED] + [view.name for view in public_views()]
        return {name: Counter(map(repr, opened.rows(f'SELECT * FROM "{name}"'))) for name in names}


@pytest.fixture(params=OLD)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Returns a copy of a logdir of format 1."""
    return Path(shutil.copytree(request.param, tmp_path / "logdir"))


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """Returns a copy of one logdir of format 1."""
    return Path(shutil.copytree(GOLDEN / "1.3" / "full_numerics", tmp_path / "logdir"))


def test_rows_and_the_answer_stay(old: Path) -> None:
    before, answer = rows_of(old), tfdbg_arrow.first_nonfinite(old)
    (run,) = tfdbg_arrow.upgrade(old)
    assert rows_of(old) == before
    assert tfdbg_arrow.first_nonfinite(old) == answer
    assert run_ids(old) == (run.run_id,)


def test_the_layout_is_the_present_one(old: Path) -> None:
    (run,) = tfdbg_arrow.upgrade(old)
    assert json.loads((old / MARKER_NAME).read_text())["format_version"] == FORMAT_VERSION
    assert {path.name for table in TABLES for path in (old / table.name).iterdir()} == {f"run={run.run_id}"}
    assert tfdbg_arrow.verify(old).deviations == ()
    for table in TABLES:
        # By path alone, with default arguments.
        assert pq.read_table(old / table.name).column_names == [*(each.name for each in table.columns), "run"]
    assert tfdbg_arrow.upgrade(old) == ()


@pytest.mark.parametrize(
    ("method", "number"),
    mostly_slow(
        [(method, number) for method in ("write", "merge", "drop", "compact", "digest") for number in (1, 2, 20)],
        fast=[("write", 20), ("merge", 1), ("drop", 2), ("compact", 1), ("digest", 1)],
    ),
)
def test_an_interrupted_upgrade_can_be_repeated(
    one: Path, monkeypatch: pytest.MonkeyPatch, method: str, number: int
) -> None:
    before = rows_of(one)
    calls = 0
    original = getattr(PartWriter, method)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(PartWriter, method, interrupted)
        try:
            tfdbg_arrow.upgrade(one)
        except KeyboardInterrupt:
            assert json.loads((one / MARKER_NAME).read_text())["format_version"] == "1.3"
    assert calls > 0
    assert rows_of(one) == before
    tfdbg_arrow.upgrade(one)
    assert rows_of(one) == before
    assert tfdbg_arrow.verify(one).deviations == ()


def test_a_run_that_is_being_recorded_is_refused(one: Path) -> None:
    (run_id,) = run_ids(one)
    journal = spool_paths(one, run_id=run_id).journal
    journal.parent.mkdir(exist_ok=True)
    journal.write_bytes(b"")
    with held_if_dead(journal, to_change=True, other_machines=True) as is_held:
        assert is_held
        with pytest.raises(LogdirError, match=f"the run {run_id} of .* is being recorded"):
            tfdbg_arrow.upgrade(one)
    assert json.loads((one / MARKER_NAME).read_text())["format_version"] == "1.3"


def as_format_1(logdir: Path) -> Path:
    """Gives a logdir the layout of format 1."""
    for directory in list(logdir.glob("*/run=*")):
        directory.rename(directory.with_name(directory.name.replace("run=", "run_id=", 1)))
    for manifest in (logdir / "manifest").iterdir():
        lines = [json.loads(line) for line in manifest.read_text().replace("/run=", "/run_id=").splitlines()]
        for line in lines:
            del line[CHECKSUM_KEY]
        manifest.write_text(checksummed(json.dumps(line) + "\n" for line in lines))
    marker = json.dumps({"format": FORMAT_NAME, "format_version": "1.3"})
    (logdir / MARKER_NAME).write_text(with_checksum(marker + "\n"))
    return logdir


def test_the_spool_of_a_killed_run_can_be_recovered_afterwards(tmp_path: Path) -> None:
    logdir = as_format_1(write_all(tmp_path / "logdir", tmp_path))
    before = rows_of(logdir)  # with the rows in the spool
    assert len(tfdbg_arrow.upgrade(logdir)) == 2
    assert rows_of(logdir) == before
    (run,) = tfdbg_arrow.recover(logdir)
    assert (run.run_id, run.state) == (KILLED_RUN, "recovered")
    assert rows_of(logdir) == before
    assert tfdbg_arrow.verify(logdir).is_intact


def test_a_changed_part_stops_the_upgrade(one: Path) -> None:
    part = max((one / "tensor_health").rglob("*.parquet"), key=lambda path: path.stat().st_size)
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(BrokenPartError, match="restore it"):
        tfdbg_arrow.upgrade(one)
    assert part.exists()
    assert json.loads((one / MARKER_NAME).read_text())["format_version"] == "1.3"


def test_parts_without_a_manifest_are_refused(one: Path) -> None:
    (run_id,) = run_ids(one)
    shutil.copytree(one / "mark" / f"run_id={run_id}", one / "mark" / "run_id=other")
    with pytest.raises(LogdirError, match=r"run_id=other has parts, but its run has no manifest"):
        tfdbg_arrow.upgrade(one)


def test_files_of_others_stay(one: Path) -> None:
    (run_id,) = run_ids(one)
    note = one / "mark" / f"run_id={run_id}" / "note.txt"
    note.write_text("mine")
    tfdbg_arrow.upgrade(one)
    assert note.read_text() == "mine"


def test_a_url_is_refused() -> None:
    with pytest.raises(LogdirError, match="is a URL, expected a directory"):
        upgrading.upgrade("s3://bucket/logdir")


@pytest.mark.parametrize("add", [tfdbg_arrow.recover, lambda logdir: tfdbg_arrow.enable(str(logdir))])
def test_nothing_is_added_to_an_old_logdir(one: Path, add: Any) -> None:
    before = sorted(one.rglob("*"))
    with pytest.raises(FormatVersionError, match=f"run `tfdbg-arrow upgrade {one}`, or choose another directory"):
        add(one)
    assert sorted(one.rglob("*")) == before
