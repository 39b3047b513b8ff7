"""Test reading a logdir at a URL: fetching, checks, the cache, and changes while it is open."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from tfdbg_arrow.errors import BrokenPartError, FormatVersionError, LogdirError, install_command
from tfdbg_arrow.query import doctor, export, first_nonfinite, open_logdir
from tfdbg_arrow.query.logdir import remote as remote_module
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.storage.layout import manifest_path
from tfdbg_arrow.storage.manifest import replace_line

from ..query.builder import CLEAN, NAN, RunBuilder
from ..query.manifests import resealed
from .stores import Store, live_in, store

URL = "oss://place/log"


def history(run_id: str = "run-a", *, rows: int = 4) -> RunBuilder:
    run = RunBuilder(run_id)
    graph = run.graph("f").op("x", "Log")
    for index in range(rows):
        run.tensor(graph, "x", NAN if index == 2 else CLEAN, step=index)
    return run


def put(place: Store, logdir: Path) -> None:
    for path in logdir.rglob("*"):
        if path.is_file():
            place.files[f"log/{path.relative_to(logdir)}"] = path.read_bytes()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TFDBG_ARROW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(remote_module, "_RETRY_S", 0.0)
    return tmp_path / "cache"


@pytest.fixture
def place(tmp_path: Path, cache: Path) -> Iterator[Store]:
    with store("place") as made:
        history().write(tmp_path / "here")
        put(made, tmp_path / "here")
        yield made


def requests(place: Store) -> list[str]:
    """Returns a list that collects the names of all further requests."""
    found: list[str] = []
    place.fault = lambda number, name: found.append(name)
    return found


def test_answers_equal_those_of_the_same_local_logdir(tmp_path: Path, place: Store) -> None:
    with open_logdir(tmp_path / "here") as here, open_logdir(URL) as there:
        assert first_nonfinite(there) == first_nonfinite(here) is not None
        for table in TABLES:
            query = f'SELECT * FROM "{table.name}" ORDER BY ALL'
            assert there.table(query) == here.table(query), table.name
        assert there.runs() == here.runs()
        assert there.info().tables == here.info().tables
        assert (there.info().path, repr(there)) == (URL, f"Logdir({URL!r})")


def test_only_the_tables_that_a_query_reads_are_fetched_and_only_once(place: Store) -> None:
    found = requests(place)
    with open_logdir(URL) as logdir:
        assert "get_file" not in found
        logdir.rows("SELECT count(*) FROM tensor_health AS h WHERE h.num_nan > 0")
        assert found.count("get_file") == 1
        logdir.rows("SELECT max(num_nan) FROM TENSOR_HEALTH")
        assert found.count("get_file") == 1
        logdir.rows("SELECT * FROM nonfinite_tensor")  # a view of other tables
        assert found.count("get_file") > 1
        found.clear()
        # The manifest already has these numbers.
        assert logdir.extent("tensor_value")[1] == len(
            [part for part in live_in(place.files, "run-a") if part.table == "tensor_value"]
        )
        assert found == []
    found.clear()
    with open_logdir(URL) as logdir:
        logdir.rows("SELECT count(*) FROM tensor_health")
    assert "get_file" not in found


def test_a_table_that_was_not_fetched_is_an_error_instead_of_empty(place: Store) -> None:
    with open_logdir(URL) as logdir:
        for query in (
            "SELECT * FROM graph_op",
            "SELECT count(*) FROM graph_op",
            "SELECT 1 FROM graph_op WHERE op_name = 'none'",
            "SELECT 1 FROM graph_op WHERE graph_id > 1 AND op_name IS NULL",
            "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM graph_op WHERE op_name = 'x')",
        ):
            with pytest.raises(duckdb.Error, match="the table graph_op was not fetched"):
                logdir.connection.sql(query).fetchall()
        logdir.fetch("graph_op")
        assert logdir.connection.sql("SELECT op_name FROM graph_op").fetchall() == [("x",)]


def test_refresh_shows_new_runs(tmp_path: Path, place: Store) -> None:
    with open_logdir(URL) as logdir:
        assert logdir.rows("SELECT count(*) FROM tensor_health") == [(4,)]
        history("run-b", rows=3).write(tmp_path / "more")
        put(place, tmp_path / "more")
        assert logdir.rows("SELECT count(*) FROM tensor_health") == [(4,)]
        logdir.refresh()
        assert logdir.rows("SELECT count(*) FROM tensor_health") == [(7,)]
        assert [run.run_id for run in logdir.runs()] == ["run-a", "run-b"]


def replaced(place: Store, table: str) -> None:
    """Replaces the parts of a table with others that have the same rows, like a merge."""
    old = [entry for entry in live_in(place.files, "run-a") if entry.table == table]
    import dataclasses

    made = []
    for entry in old:
        path = entry.path.replace("part-0", "part-1")
        place.files[f"log/{path}"] = place.files[f"log/{entry.path}"]
        made.append(dataclasses.replace(entry, path=path))
    name = f"log/{manifest_path('run-a')}"
    text = place.files[name].decode() + replace_line([e.path for e in old], added=made)
    place.files[name] = resealed(text).encode()
    for entry in old:
        del place.files[f"log/{entry.path}"]


def test_a_part_replaced_during_its_fetch_is_read_from_its_replacement(place: Store) -> None:
    with open_logdir(URL) as logdir:

        def fault(number: int, name: str) -> None:
            if name == "get_file":
                place.fault = lambda number, name: None
                replaced(place, "tensor_health")

        place.fault = fault
        assert logdir.rows("SELECT count(*) FROM tensor_health") == [(4,)]


def test_copies_of_replaced_parts_are_removed(place: Store, cache: Path) -> None:
    with open_logdir(URL) as logdir:
        logdir.rows("SELECT count(*) FROM tensor_health")
        (before,) = cache.rglob("*.parquet")
        replaced(place, "tensor_health")
        logdir.refresh()
        (after,) = cache.rglob("*.parquet")
        assert before != after
        assert logdir.rows("SELECT count(*) FROM tensor_health") == [(4,)]


def test_copies_removed_by_another_process_are_fetched_again(place: Store, cache: Path) -> None:
    with open_logdir(URL) as logdir:
        logdir.rows("SELECT count(*) FROM tensor_health")
        for path in cache.rglob("*.parquet"):
            path.unlink()
        assert logdir.rows("SELECT count(*) FROM tensor_health") == [(4,)]


def test_a_part_damaged_during_its_fetch_is_fetched_again(place: Store) -> None:
    name = next(name for name in place.files if name.startswith("log/tensor_health/"))
    whole = place.files[name]

    def fault(number: int, request: str) -> None:
        if request == "get_file":
            place.files[name] = whole[:-1] if place.files[name] == whole else whole

    place.fault = fault
    with open_logdir(URL) as logdir:
        assert logdir.rows("SELECT count(*) FROM tensor_health") == [(4,)]


def test_a_changed_part_is_refused_and_not_cached(place: Store, cache: Path) -> None:
    name = next(name for name in place.files if name.startswith("log/tensor_health/"))
    place.files[name] = place.files[name].replace(b"PAR1", b"PAR2")
    with open_logdir(URL) as logdir, pytest.raises(BrokenPartError, match="has the SHA-256") as caught:
        logdir.rows("SELECT count(*) FROM tensor_health")
    assert str(caught.value).startswith(f"oss://place/{name} has the SHA-256 ")
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_a_truncated_copy_is_fetched_again(place: Store, cache: Path) -> None:
    with open_logdir(URL) as logdir:
        logdir.rows("SELECT count(*) FROM tensor_health")
    (copy,) = cache.rglob("*.parquet")
    copy.write_bytes(copy.read_bytes()[:-10])
    with open_logdir(URL) as logdir:
        assert logdir.rows("SELECT count(*) FROM tensor_health") == [(4,)]


@pytest.mark.parametrize(("damage", "reason"), [("changed", "does not match its SHA-256"), ("missing", "is missing")])
def test_skip_broken_skips_broken_parts_and_lists_them(place: Store, damage: str, reason: str) -> None:
    (entry,) = (entry for entry in live_in(place.files, "run-a") if entry.table == "tensor_health")
    content = place.files.pop(f"log/{entry.path}")
    if damage == "changed":
        place.files[f"log/{entry.path}"] = content[:-20] + b"#" + content[-19:]
    with open_logdir(URL, skip_broken=True) as logdir:
        assert logdir.rows("SELECT count(*) FROM tensor_health") == [(0,)]
        assert [(part.path, part.rows, part.reason) for part in logdir.broken_parts] == [
            (f"{URL}/{entry.path}", 4, reason)
        ]
        assert [run.run_id for run in logdir.runs()] == ["run-a"]


def test_skip_broken_skips_runs_with_a_damaged_manifest(place: Store, tmp_path: Path) -> None:
    history("run-b").write(tmp_path / "other")
    put(place, tmp_path / "other")
    name = f"log/{manifest_path('run-a')}"
    place.files[name] = place.files[name].replace(b'"rows": 4', b'"rows": 5')
    with pytest.raises(LogdirError, match="does not match its checksum"):
        open_logdir(URL)
    with open_logdir(URL, skip_broken=True) as logdir:
        assert [run.run_id for run in logdir.runs()] == ["run-b"]
        assert [part.path for part in logdir.broken_parts] == [f"{URL}/{manifest_path('run-a')}"]


def test_a_run_has_no_rows_before_its_manifest_is_sent(place: Store) -> None:
    name = f"log/{manifest_path('run-a')}"
    manifest = place.files.pop(name)
    with open_logdir(URL) as logdir:
        assert logdir.rows("SELECT count(*) FROM tensor_health") == [(0,)]
        place.files[name] = manifest
        logdir.refresh()
        assert logdir.rows("SELECT count(*) FROM tensor_health") == [(4,)]


def test_a_path_out_of_the_logdir_in_a_manifest_is_refused(place: Store) -> None:
    name = f"log/{manifest_path('run-a')}"
    text = place.files[name].decode().replace("mark/run=run-a/part-0", "mark/run=../../part-0")
    place.files[name] = resealed(text).encode()
    with pytest.raises(LogdirError, match="the manifest is damaged"):
        open_logdir(URL)


@pytest.mark.parametrize(
    ("files", "error", "said"),
    [
        ({}, LogdirError, "oss://place/log does not exist or is empty"),
        ({"log/notes.txt": b"mine"}, LogdirError, "oss://place/log is not a logdir of tfdbg_arrow: it has no tfdbg"),
        ({"log/tfdbg_arrow.json": b"{}"}, LogdirError, "oss://place/log/tfdbg_arrow.json holds {}"),
        (
            {"log/tfdbg_arrow.json": b'{"format": "tfdbg_arrow", "format_version": "9.0"}'},
            FormatVersionError,
            "oss://place/log/tfdbg_arrow.json",
        ),
    ],
)
def test_errors_for_urls_that_are_not_logdirs(
    place: Store, files: dict[str, bytes], error: type[LogdirError], said: str
) -> None:
    place.files = files
    with pytest.raises(error) as caught:
        open_logdir(URL)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_the_error_for_an_unreachable_store(place: Store) -> None:
    def fault(number: int, name: str) -> None:
        raise ConnectionError("no route to the store")

    place.fault = fault
    with pytest.raises(LogdirError) as caught:
        open_logdir(URL)
    assert str(caught.value) == (
        "oss://place/log cannot be read (ConnectionError: no route to the store); "
        "check the URL, the network and the store's settings."
    )


def test_the_error_for_a_cache_that_cannot_be_written(
    tmp_path: Path, place: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("TFDBG_ARROW_CACHE_DIR", str(tmp_path / "file"))
    with open_logdir(URL) as logdir, pytest.raises(LogdirError, match="TFDBG_ARROW_CACHE_DIR"):
        logdir.rows("SELECT count(*) FROM tensor_health")


def test_the_size_limit_of_the_cache(place: Store, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = cache / "other-logdir"
    other.mkdir(parents=True)
    (other / "part").write_bytes(b"x" * 1000)
    monkeypatch.setattr(remote_module, "MAX_CACHE_BYTES", 999)
    with open_logdir(URL) as logdir:
        logdir.rows("SELECT count(*) FROM tensor_health")
        logdir.refresh()
        assert not other.exists()
        assert logdir.rows("SELECT count(*) FROM tensor_health") == [(4,)]


def test_a_local_logdir_can_be_read_without_fsspec(tmp_path: Path) -> None:
    history().write(tmp_path / "here")
    text = (
        "import sys\nsys.modules['fsspec'] = None\nimport tfdbg_arrow\n"
        f"assert tfdbg_arrow.first_nonfinite({str(tmp_path / 'here')!r}) is not None\n"
        "try:\n    tfdbg_arrow.open_logdir('s3://bucket/x')\nexcept ImportError as error:\n    print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert found.stdout == (
        f"s3://bucket/x needs fsspec, which is not installed; run: {install_command('remote', 's3fs')}\n"
    )


@pytest.mark.parametrize("name", ["parquet", "csv", "duckdb", "sqlite"])
def test_an_export_fetches_only_the_exported_tables(name: str, place: Store, tmp_path: Path) -> None:
    exported = export(URL, tmp_path / "out", format=name, tables=["tensor_health", "mark"])
    assert [(table.name, table.num_rows) for table in exported.tables] == [("tensor_health", 4), ("mark", 0)]
    assert sorted(path.name for path in (tmp_path / "cache").glob("*/*")) == ["mark", "tensor_health"]


def test_doctor_examines_a_url(place: Store) -> None:
    assert [(each.kind, each.run_id) for each in doctor(URL).findings] == []
    with pytest.raises(LogdirError, match="does not exist or is empty"):
        doctor("oss://place/nothing")
