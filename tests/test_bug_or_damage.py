"""Test that a question that fails blames the logdir if its rows are damaged, and otherwise tfdbg_arrow itself."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tfdbg_arrow import first_nonfinite, open_logdir
from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.query.flow.culprits import Culprits
from tfdbg_arrow.query.integrity.damage import damage_of, damage_told
from tfdbg_arrow.viewer.reading import Reader
from tfdbg_arrow.viewer.site import Site

from .cli.commands import run_cli
from .query.manifests import resealed
from .viewer import logdirs

GOLDEN = Path(__file__).parent / "compat" / "golden" / "2.3"
PLANTED = "'NoneType' object is not callable"


def rewritten(logdir: Path, table_name: str, change: Callable[[pa.Table], pa.Table], *, reseals: bool = True) -> Path:
    """Changes the rows of a part, and its line in the manifest, as somebody can who means harm."""
    (path,) = (logdir / table_name).glob("*/*.parquet")
    table = change(pq.read_table(path, partitioning=None))
    pq.write_table(table, path)
    (manifest,) = (logdir / "manifest").iterdir()
    lines = [json.loads(line) for line in manifest.read_text().splitlines()]
    for line in lines if reseals else ():
        if line["path"] == path.relative_to(logdir).as_posix():
            data = path.read_bytes()
            line |= {"rows": table.num_rows, "bytes": len(data), "sha256": sha256(data).hexdigest()}
    manifest.write_text(resealed("".join(json.dumps(line) + "\n" for line in lines)))
    return logdir


def with_column(name: str, value: object) -> Callable[[pa.Table], pa.Table]:
    """Sets a column of all rows to a value."""

    def change(table: pa.Table) -> pa.Table:
        at = table.schema.names.index(name)
        return table.set_column(at, table.field(at), pa.array([value] * table.num_rows, table.field(at).type))

    return change


def nullable(change: Callable[[pa.Table], pa.Table], name: str) -> Callable[[pa.Table], pa.Table]:
    """Allows NULL in a column before it is changed."""

    def changed(table: pa.Table) -> pa.Table:
        at = table.schema.names.index(name)
        return change(table.cast(table.schema.set(at, table.field(at).with_nullable(True))))

    return changed


def twice(table: pa.Table) -> pa.Table:
    """Repeats all rows."""
    return pa.concat_tables([table, table])


NO_TYPES = nullable(with_column("op_type", None), "op_type")
DAMAGE = {
    "a NULL": ("graph_op", NO_TYPES, "graph_op.op_type is NULL in the row (run_id 'run-a', graph_id 0, op_name "),
    "a row twice": ("graph_op", twice, "graph_op has 2 rows (run_id 'run-a', graph_id 0, op_name "),
    "a lost row": (
        "graph_op_input",
        with_column("source_op_name", "nowhere"),
        "graph_op_input.source_op_name is 'nowhere' in the row (run_id 'run-a', ",
    ),
}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return logdirs.log_of_zero(tmp_path / "logdir")


@pytest.fixture
def bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plants a bug into the search for the first bad tensor."""
    monkeypatch.setattr(Culprits, "harmful", None)


def viewed(logdir: Path) -> Any:
    reader = Reader(logdir, timeout_s=60)
    try:
        return json.loads(Site(reader).answer("/overview.json", {"wait": "1"}).content)["error"]
    finally:
        reader.close()


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_of_rows_is_named(good: Path, name: str) -> None:
    table_name, change, what = DAMAGE[name]
    with open_logdir(good) as opened:
        assert damage_of(opened) is None
    with open_logdir(rewritten(good, table_name, change)) as opened:
        assert (damage_of(opened) or "").startswith(what)


@pytest.mark.parametrize("path", sorted(path for path in GOLDEN.iterdir() if path.is_dir()), ids=lambda path: path.name)
def test_recorded_and_imported_logdirs_have_no_damage(path: Path) -> None:
    with open_logdir(path) as opened:
        assert damage_of(opened) is None


def test_a_failure_over_damaged_rows_blames_the_logdir(good: Path) -> None:
    logdir = rewritten(good, "graph_op", NO_TYPES)
    with open_logdir(logdir) as opened, pytest.raises(LogdirError) as caught:
        opened.spread(3, run_id="run-a")
    what = f"the rows of {logdir} do not fit together: {DAMAGE['a NULL'][2]}"
    assert str(caught.value).startswith(what)
    assert isinstance(caught.value.__cause__, TypeError)


def test_a_failure_over_a_part_that_is_not_as_it_was_written_blames_the_logdir(good: Path) -> None:
    logdir = rewritten(good, "graph_op", NO_TYPES, reseals=False)
    with open_logdir(logdir) as opened, pytest.raises(LogdirError, match=r"graph_op/run=run-a/part-\d+.parquet has "):
        opened.spread(3, run_id="run-a")


def test_the_command_line_and_the_viewer_blame_damaged_rows(good: Path) -> None:
    def without_times(table: pa.Table) -> pa.Table:  # two, because the runs of a logdir are sorted by their times
        return with_column("wall_time_ns", None)(twice(table))

    logdir = rewritten(good, "run", nullable(without_times, "wall_time_ns"))
    what = f"the rows of {logdir} do not fit together: run.wall_time_ns is NULL in the row (run_id 'run-a')"
    done = run_cli("first-nonfinite", logdir)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"tfdbg-arrow: {what}")
    assert viewed(logdir)["message"].startswith(what)


@pytest.mark.usefixtures("bug")
def test_a_bug_is_raised_as_it_is(good: Path) -> None:
    note = f"tfdbg_arrow found no damage in {good}, so this is a bug of tfdbg_arrow."
    with open_logdir(good) as opened:
        for ask in (opened.first_nonfinite, lambda: first_nonfinite(good)):
            with pytest.raises(TypeError, match=f"^{PLANTED}") as caught:
                ask()
            assert caught.traceback[-1].path.name == "nonfinite_search.py"
            assert caught.value.__notes__ == [note]


def test_a_search_for_damage_that_is_cut_off_proves_nothing(good: Path) -> None:
    raises = pytest.raises(json.JSONDecodeError)
    with open_logdir(good) as opened, raises as caught, opened.within(1e-6), damage_told(opened):
        json.loads("{")
    (note,) = caught.value.__notes__
    assert note.startswith(f"tfdbg_arrow could not look for damage in {good}: ")


@pytest.mark.usefixtures("bug")
def test_the_command_line_says_that_it_has_a_bug(good: Path) -> None:
    done = run_cli("first-nonfinite", good)
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr.startswith(f"tfdbg-arrow has a bug: TypeError: {PLANTED} in tfdbg_arrow.query.nonfinite_search:")
    assert done.stderr.endswith("; please report it with the output of --debug.\n")
    assert done.stderr.count("\n") == 1
    as_json = run_cli("first-nonfinite", good, "--json")
    assert as_json.exit_code == 3
    assert json.loads(as_json.stdout)["error"] == {"type": "TypeError", "message": done.stderr.rstrip("\n")}


@pytest.mark.slow
@pytest.mark.parametrize(("program_exit_code", "exit_code"), [(0, 3), (7, 7)])
def test_a_program_that_failed_keeps_its_exit_code(tmp_path: Path, program_exit_code: int, exit_code: int) -> None:
    program, buggy = tmp_path / "program.py", tmp_path / "buggy.py"
    program.write_text(
        f"import sys, tensorflow as tf\ntf.math.log(tf.constant([0.0, 1.0]))\nsys.exit({program_exit_code})\n"
    )
    buggy.write_text(
        "import tfdbg_arrow.query.nonfinite_search as search\n"
        "def bug(*args, **options): raise TypeError('planted')\n"
        "search.first_nonfinite = bug\n"
        "from tfdbg_arrow.cli.app import main\n"
        "main()\n"
    )
    command = [sys.executable, str(buggy), "run", "-o", str(tmp_path / "logdir"), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == exit_code
    assert "tfdbg-arrow has a bug: TypeError: planted" in done.stderr.splitlines()[-1]


@pytest.mark.usefixtures("bug")
def test_debug_prints_the_traceback_above_the_sentence(good: Path) -> None:
    done = run_cli("--debug", "first-nonfinite", good)
    first, *lines = done.stderr.splitlines()
    assert done.exit_code == 3
    assert first == "Traceback (most recent call last):"
    assert f"TypeError: {PLANTED}" in lines
    assert lines[-1] + "\n" == run_cli("first-nonfinite", good).stderr


@pytest.mark.usefixtures("bug")
def test_the_viewer_says_that_it_has_a_bug_and_logs_the_traceback(good: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        error = viewed(good)
    assert error["status"] == 500
    assert error["message"].startswith(f"tfdbg-arrow has a bug: TypeError: {PLANTED} in tfdbg_arrow.query.nonfinite_")
    assert any(record.exc_info is not None and isinstance(record.exc_info[1], TypeError) for record in caplog.records)


def test_errors_in_words_and_of_the_package_are_no_bugs(tmp_path: Path) -> None:
    commands = (("sql",), ("info", tmp_path), ("nothing",), ("--help",))
    assert [run_cli(*words).exit_code for words in commands] == [2, 2, 2, 0]


def test_an_error_in_the_callers_code_is_unchanged(good: Path) -> None:
    def is_allowed(op_type: str | None, op_name: str | None) -> bool:
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$") as caught:
        first_nonfinite(good, is_allowed=is_allowed)
    assert not hasattr(caught.value, "__notes__")


def test_errors_of_this_package_are_unchanged(good: Path) -> None:
    with open_logdir(good) as opened, pytest.raises(LogdirError, match=r"^so$"), damage_told(opened):
        raise LogdirError("so")
