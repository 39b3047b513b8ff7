"""Test the settings of a recording to a URL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.errors import LogdirError, MissingDependencyError, SettingError
from tfdbg_arrow.writer.settings import Request

from .stores import Store, store

URL = "oss://place/log"


@pytest.fixture(autouse=True)
def place() -> Iterator[Store]:
    with store("place") as made:
        yield made


def test_each_recording_gets_its_own_directory_below_the_chosen_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFDBG_ARROW_LOCAL_DIR", str(tmp_path / "by-variable"))
    first, second = Request(logdir=URL).check(), Request(logdir=URL).check()
    assert first.logdir.parent == second.logdir.parent == tmp_path / "by-variable"
    assert first.logdir != second.logdir
    chosen = Request(logdir=URL, local_dir=tmp_path / "by-argument").check()
    assert chosen.logdir.parent == tmp_path / "by-argument"
    assert not chosen.logdir.exists()
    assert chosen.shown_logdir == URL


def test_checking_the_settings_sends_no_request(tmp_path: Path, place: Store) -> None:
    Request(logdir=URL, local_dir=tmp_path).check()
    assert place.num_requests == 0


def test_storage_options_reach_the_file_system_and_are_not_shown(tmp_path: Path) -> None:
    request = Request(logdir=URL, local_dir=tmp_path, storage_options={"secret": "hidden"})
    settings = request.check()
    assert settings.remote is not None
    assert settings.remote.directory._fs.storage_options["secret"] == "hidden"
    assert "hidden" not in repr(request) + repr(settings)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"upload_timeout_s": -1}, "upload_timeout_s is -1; expected seconds, 0 or more"),
        ({"upload_timeout_s": float("inf")}, "upload_timeout_s is inf; expected seconds"),
        ({"upload_timeout_s": "60"}, "upload_timeout_s is '60'; expected seconds"),
        ({"max_local_bytes": 1000}, "max_local_bytes is 1000; expected at least 1048576 (1 MiB)"),
        ({"max_local_bytes": True}, "max_local_bytes is True; expected"),
        ({"storage_options": [1]}, "storage_options is a list; expected a dict of fsspec's arguments"),
    ],
)
def test_errors_for_invalid_values(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError) as caught:
        Request(logdir=URL, **changes).check()
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("changes", [{"storage_options": {}}, {"local_dir": "x"}])
def test_the_error_for_a_setting_for_urls_with_a_local_path(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="is a local directory; expected a URL"):
        Request(logdir=tmp_path / "log", **changes).check()
    assert not (tmp_path / "log").exists()


def test_the_error_for_a_local_directory_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(LogdirError, match=r"cannot be created: .*; choose another one with local_dir= or"):
        Request(logdir=URL, local_dir=tmp_path / "file").check()


def test_a_url_as_a_path_object_is_refused_and_creates_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LogdirError, match="pass it as a string: 'oss://place/log'"):
        Request(logdir=Path(URL)).check()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_an_error_before_the_program_runs() -> None:
    with pytest.raises(MissingDependencyError, match="pip install gcsfs"):
        Request(logdir="gs://bucket/x").check()
