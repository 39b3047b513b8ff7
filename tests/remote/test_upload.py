"""Test recording to a URL: uploaded files, outages of the store, and uploading a logdir."""

from __future__ import annotations

import os
import random
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.durability.parts_on_disk import marks
from tfdbg_arrow.errors import BrokenPartError, FormatVersionError, LogdirError
from tfdbg_arrow.spool.circular_buffer import Retention
from tfdbg_arrow.storage.layout import manifest_path
from tfdbg_arrow.storage.location import RemoteDirectory, RemoteLocation, parse_location
from tfdbg_arrow.storage.manifest import read_live_parts
from tfdbg_arrow.storage.marker import marker_text
from tfdbg_arrow.writer.remote.upload_logdir import upload_logdir
from tfdbg_arrow.writer.remote.uploader import RemoteSettings, Uploader
from tfdbg_arrow.writer.sink.parts import PartWriter

from ..writer.test_sink import RUN_ID, Recording
from .stores import Store, events_in, live_in, store


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdbg_arrow.writer.remote.uploader._GATHER_S", 0.005)
    monkeypatch.setattr("tfdbg_arrow.writer.remote.transfer._PUBLISH_S", 0.05)
    monkeypatch.setattr("tfdbg_arrow.writer.remote.uploader._BACKOFF_S", (0.005, 0.02))
    monkeypatch.setattr("tfdbg_arrow.writer.remote.uploader.START_TIMEOUT_S", 0.2)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def place() -> Iterator[Store]:
    with store("place") as made:
        yield made


def directory(url: str = "oss://place/log") -> RemoteDirectory:
    location = parse_location(url)
    assert isinstance(location, RemoteLocation)
    return location.open()


class RemoteRecording(Recording):
    """A recording that is uploaded to a store."""

    def __init__(
        self,
        local: Path,
        *,
        url: str = "oss://place/log",
        max_local_bytes: int = 1 << 30,
        timeout_s: float = 20.0,
        **options: Any,
    ) -> None:
        settings = RemoteSettings(directory=directory(url), upload_timeout_s=timeout_s, max_local_bytes=max_local_bytes)
        self.troubles: list[str] = []
        self.uploader = Uploader(settings, local=local, run_id=RUN_ID, on_trouble=self.troubles.append)
        super().__init__(local, uploader=self.uploader, flush_interval_s=0.01, **options)

    def start(self) -> RemoteRecording:
        self.uploader.start()
        super().start()
        return self

    def events(self, first: int, number: int) -> None:
        for index in range(first, first + number):
            self.call(index, step_id=index, tensors=3)


def eventually(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end, "the expected condition did not occur within 30 seconds"
        time.sleep(0.01)


def executions(files: dict[str, bytes]) -> list[int]:
    return events_in(files, RUN_ID, "execution")


def test_the_whole_run_is_uploaded_and_local_files_are_removed(tmp_path: Path, place: Store) -> None:
    local = tmp_path / "work"
    recording = RemoteRecording(local).start()
    assert stat.S_IMODE(local.stat().st_mode) == 0o700
    recording.events(0, 20)
    eventually(lambda: len(executions(place.files)) == 20)
    recording.events(20, 20)
    recording.close()
    live = read_live_parts(local, run_id=RUN_ID)
    assert recording.uploader.close() is None
    assert set(live_in(place.files, RUN_ID)) == set(live)
    assert len(executions(place.files)) == 40
    assert len(place.files) == len(live) + 2
    assert not local.exists()
    assert (recording.troubles, recording.told) == ([], [])


def test_the_manifest_is_uploaded_before_the_first_parts(tmp_path: Path, place: Store) -> None:
    orders: list[str] = []
    place.after = lambda: orders.extend(name for name in place.files if name not in orders)
    recording = RemoteRecording(tmp_path / "work").start()
    recording.close()
    recording.uploader.close()
    assert orders[:2] == ["log/tfdbg_arrow.json", f"log/manifest/{RUN_ID}.jsonl"]


@pytest.mark.parametrize("number", range(0, 40, 3))
def test_a_request_that_hangs_blocks_neither_the_recording_nor_its_end(
    tmp_path: Path, place: Store, number: int
) -> None:
    local = tmp_path / "work"
    release = threading.Event()
    place.fault = lambda request, name: release.wait(30) and None if request == number else None
    recording = RemoteRecording(local, timeout_s=0.3).start()
    for first in range(0, 40, 10):
        recording.events(first, 10)
        recording.sink.flush()
    recording.close()  # closes the sink, which does not wait for requests
    unsent = recording.uploader.close()
    release.set()
    eventually(lambda: not recording.uploader._thread.is_alive())
    if unsent is not None:
        assert unsent.directory == local
        assert local.is_dir()
        upload_logdir(local, directory(), remove=True)
    assert len(executions(place.files)) == 40
    assert not local.exists()
    assert not [name for name in place.files if name.endswith(".tmp")]
    assert len(place.files) == len(live_in(place.files, RUN_ID)) + 2


@contextmanager
def outage(place: Store) -> Iterator[None]:
    def fault(request: int, name: str) -> None:
        raise ConnectionError("no route to the store")

    place.fault = fault
    yield
    place.fault = lambda request, name: None


def test_an_outage_is_reported_once_and_loses_nothing(tmp_path: Path, place: Store) -> None:
    recording = RemoteRecording(tmp_path / "work").start()
    recording.events(0, 10)
    eventually(lambda: len(executions(place.files)) == 10)
    before = random.getstate()
    with outage(place):
        recording.events(10, 10)
        eventually(lambda: bool(recording.troubles))
        time.sleep(0.2)  # the uploader keeps trying
        assert len(executions(place.files)) == 10
    assert random.getstate() == before, "a seeded training would draw different numbers"
    recording.events(20, 10)
    eventually(lambda: len(executions(place.files)) == 30)
    recording.close()
    assert recording.uploader.close() is None
    assert recording.troubles == ["ConnectionError: no route to the store"]


def test_beyond_the_size_limit_the_oldest_unsent_events_are_dropped_and_counted(tmp_path: Path, place: Store) -> None:
    local, bound = tmp_path / "work", 300_000
    recording = RemoteRecording(local, max_local_bytes=bound).start()
    recording.events(0, 10)
    eventually(lambda: len(executions(place.files)) == 10)
    most = 0
    with outage(place):
        for first in range(10, 610, 10):
            recording.events(first, 10)
            recording.sink.flush()
            parts = [path.stat().st_size for path in local.rglob("*.parquet")]
            most = max(most, sum(parts))
    # Metadata parts are not dropped, and a flush writes its parts before it drops others.
    assert most < bound * 1.3
    recording.close()
    live_here = read_live_parts(local, run_id=RUN_ID)
    assert recording.uploader.close() is None
    live = live_in(place.files, RUN_ID)
    assert set(live) == set(live_here)
    stats = rows_in(place.files, "capture_stat")
    dropped = {row["subject"]: row["num_events"] for row in stats if row["stat"] == "dropped"}
    assert dropped["table execution"] > 50
    kept = {
        table: sum(entry.rows for entry in live if entry.table == table) for table in ("execution", "tensor_health")
    }
    assert kept["execution"] + dropped["table execution"] == 610
    assert kept["tensor_health"] + dropped["table tensor_health"] == 610 * 4
    # The events sent before the outage and the newest other events are kept.
    indexes = sorted(row["execution_index"] for row in rows_in(place.files, "execution"))
    assert indexes[:10] == list(range(10))
    assert indexes[10] > 10
    assert indexes[-1] == 609
    assert len(set(indexes)) == len(indexes)
    (run,) = rows_in(place.files, "run")
    assert run["is_clean_end"] is False


def rows_in(files: dict[str, bytes], table: str) -> list[dict[str, Any]]:
    import io

    import pyarrow.parquet as pq

    parts = [entry for entry in live_in(files, RUN_ID) if entry.table == table]
    return [row for entry in parts for row in pq.read_table(io.BytesIO(files[f"log/{entry.path}"])).to_pylist()]


def test_uploaded_parts_are_removed_first_at_the_size_limit(tmp_path: Path, place: Store) -> None:
    local = tmp_path / "work"
    recording = RemoteRecording(local, max_local_bytes=100_000).start()
    for first in range(0, 400, 10):
        recording.events(first, 10)
        recording.sink.flush()
        eventually(lambda upto=first: len(executions(place.files)) == upto + 10)
    held = sum(path.stat().st_size for path in local.rglob("*.parquet"))
    assert held < 150_000 < sum(entry.bytes for entry in live_in(place.files, RUN_ID))
    recording.close()
    assert recording.uploader.close() is None
    assert len(executions(place.files)) == 400
    assert rows_in(place.files, "capture_stat") == []
    assert rows_in(place.files, "run")[0]["is_clean_end"] is True


def test_only_what_a_circular_buffer_keeps_is_uploaded(tmp_path: Path, place: Store) -> None:
    retention = Retention(size=5, num_after=5, only_bad=False)
    recording = RemoteRecording(tmp_path / "work", retention=retention).start()
    for first in range(0, 40, 10):
        recording.events(first, 10)
    recording.close()
    assert recording.uploader.close() is None
    assert [row["execution_index"] for row in rows_in(place.files, "execution")] == [35, 36, 37, 38, 39]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError("Forbidden"), "credentials"),
        (FileNotFoundError("The specified bucket does not exist"), "bucket and the path exist"),
    ],
)
def test_a_store_that_refuses_requests_is_an_error_at_the_start(
    tmp_path: Path, place: Store, error: OSError, said: str
) -> None:
    def fault(request: int, name: str) -> None:
        raise error

    place.fault = fault
    recording = RemoteRecording(tmp_path / "work")
    with pytest.raises(LogdirError, match=said) as caught:
        recording.uploader.start()
    assert str(caught.value).startswith(f"oss://place/log cannot be written ({type(error).__name__}: {error})")
    assert not (tmp_path / "work").exists()
    assert recording.troubles == []


def test_another_format_version_is_refused_at_the_start(tmp_path: Path, place: Store) -> None:
    place.files["log/tfdbg_arrow.json"] = b'{"format": "tfdbg_arrow", "format_version": "9.0"}'
    with pytest.raises(FormatVersionError, match=r"oss://place/log/tfdbg_arrow\.json"):
        RemoteRecording(tmp_path / "work").uploader.start()


def test_an_unreachable_store_at_the_start_is_not_an_error(tmp_path: Path, place: Store) -> None:
    with outage(place):
        recording = RemoteRecording(tmp_path / "work").start()
        recording.events(0, 10)
        recording.sink.flush()
    recording.close()
    assert recording.uploader.close() is None
    assert len(executions(place.files)) == 10


def test_a_missing_local_part_does_not_block_others(tmp_path: Path, place: Store) -> None:
    local = tmp_path / "work"
    with outage(place):
        recording = RemoteRecording(local, timeout_s=0.5).start()
        recording.events(0, 10)
        recording.sink.flush()
        (lost,) = [
            entry for entry in read_live_parts(local, run_id=RUN_ID) if entry.table == "execution" and entry.rows
        ]
        (local / lost.path).unlink()
    recording.events(10, 10)
    eventually(lambda: len(executions(place.files)) == 10)
    recording.close()
    unsent = recording.uploader.close()
    assert unsent is not None
    assert unsent.num_parts >= 1


def test_a_store_whose_rename_does_not_replace(tmp_path: Path, place: Store) -> None:
    place.rename_replaces = False
    recording = RemoteRecording(tmp_path / "work", url="renaming://place/log").start()
    for first in range(0, 30, 10):
        recording.events(first, 10)
        eventually(lambda upto=first: len(executions(place.files)) == upto + 10)
    recording.close()
    assert recording.uploader.close() is None
    assert recording.troubles == []
    assert len(place.files) == len(live_in(place.files, RUN_ID)) + 2


class TestUploadOfLogdir:
    def write(self, logdir: Path, run_id: str = "r") -> PartWriter:
        (logdir).mkdir(exist_ok=True)
        (logdir / "tfdbg_arrow.json").write_text(marker_text())
        parts = PartWriter(logdir, run_id, kept_parts=1)
        parts.start()
        for event in range(3):
            parts.write("mark", marks(event))
        return parts

    def test_all_runs_are_uploaded_and_a_second_upload_sends_nothing(self, tmp_path: Path, place: Store) -> None:
        for run_id in ("r", "s"):
            self.write(tmp_path / "here", run_id)
        sent = upload_logdir(tmp_path / "here", directory())
        assert [(run.run_id, run.num_parts) for run in sent] == [("r", 3), ("s", 3)]
        assert events_in(place.files, "s") == [0, 1, 2]
        again = upload_logdir(tmp_path / "here", directory())
        assert [(run.run_id, run.num_parts, run.size_bytes) for run in again] == [("r", 0, 0), ("s", 0, 0)]
        assert (tmp_path / "here/tfdbg_arrow.json").exists()

    def test_a_run_that_has_grown_is_updated(self, tmp_path: Path, place: Store) -> None:
        parts = self.write(tmp_path / "here")
        upload_logdir(tmp_path / "here", directory())
        parts.write("mark", marks(7))
        parts.compact("mark")
        place.files["log/mark/run=r/part-000099.parquet"] = b"left by an interrupted upload"
        (sent,) = upload_logdir(tmp_path / "here", directory())
        assert sent.num_parts == 1
        assert events_in(place.files, "r") == [0, 1, 2, 7]
        assert len(place.files) == 3

    def test_an_interrupted_upload_can_be_continued(self, tmp_path: Path, place: Store) -> None:
        self.write(tmp_path / "here")
        numbers: list[str] = []

        def fault(request: int, name: str) -> None:
            numbers.append(name)
            if numbers.count("put_file") == 3 and name == "put_file":
                raise PermissionError("Forbidden")

        place.fault = fault
        with pytest.raises(LogdirError, match="credentials"):
            upload_logdir(tmp_path / "here", directory(), remove=True)
        assert (tmp_path / "here").exists()
        place.fault = lambda request, name: None
        upload_logdir(tmp_path / "here", directory(), remove=True)
        assert events_in(place.files, "r") == [0, 1, 2]
        assert not (tmp_path / "here").exists()

    def test_other_files_in_the_directory_are_kept(self, tmp_path: Path, place: Store) -> None:
        self.write(tmp_path / "here")
        (tmp_path / "here/notes.txt").write_text("mine")
        upload_logdir(tmp_path / "here", directory(), remove=True)
        assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["notes.txt", "tfdbg_arrow.json"]

    def test_a_changed_part_is_not_uploaded(self, tmp_path: Path, place: Store) -> None:
        self.write(tmp_path / "here")
        (tmp_path / "here/mark/run=r/part-000001.parquet").write_bytes(b"changed")
        with pytest.raises(BrokenPartError, match=r"part-000001\.parquet has the SHA-256"):
            upload_logdir(tmp_path / "here", directory())
        assert events_in(place.files, "r") == []

    def test_the_error_for_a_part_that_is_missing_everywhere(self, tmp_path: Path, place: Store) -> None:
        self.write(tmp_path / "here")
        (tmp_path / "here/mark/run=r/part-000001.parquet").unlink()
        with pytest.raises(BrokenPartError, match=r"neither in .* nor at oss://place/log"):
            upload_logdir(tmp_path / "here", directory())

    def test_an_older_state_does_not_replace_a_newer_one(self, tmp_path: Path, place: Store) -> None:
        parts = self.write(tmp_path / "here")
        old = (tmp_path / "here" / manifest_path("r")).read_text()
        parts.compact("mark")
        upload_logdir(tmp_path / "here", directory())
        before = dict(place.files)
        (tmp_path / "here" / manifest_path("r")).write_text(old)
        with pytest.raises(LogdirError, match="holds another state of the run r"):
            upload_logdir(tmp_path / "here", directory())
        assert place.files == before

    def test_the_error_for_a_directory_that_a_recording_uses(self, tmp_path: Path, place: Store) -> None:
        recording = RemoteRecording(tmp_path / "work").start()
        with pytest.raises(LogdirError, match="is in use"):
            upload_logdir(tmp_path / "work", directory())
        recording.close()
        recording.uploader.close()

    def test_the_error_for_a_path_that_is_not_a_logdir(self, tmp_path: Path) -> None:
        with pytest.raises(LogdirError, match="is an empty directory"):
            upload_logdir(tmp_path, directory())
