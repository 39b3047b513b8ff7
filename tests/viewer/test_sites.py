"""Test the pages of several logdirs: when their readers are opened and closed."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.query import Logdir
from tfdbg_arrow.viewer.answer import Answer
from tfdbg_arrow.viewer.logdir_search import LogdirSearch, key_of
from tfdbg_arrow.viewer.pages import tensors
from tfdbg_arrow.viewer.reading import Reader
from tfdbg_arrow.viewer.sites import Sites, pair_of

from . import logdirs

NUM = 6


class Opened(Reader):
    """A reader that counts the open readers."""

    count = 0

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        Opened.count += 1

    def close(self) -> None:
        super().close()
        Opened.count -= 1


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [logdirs.healthy(tmp_path / f"logdir-{number}") for number in range(NUM)]


def test_a_reader_stays_open_while_a_request_uses_it(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    is_reading, may_end = threading.Event(), threading.Event()
    read = tensors.tensors

    def slow(logdir: Logdir, *arguments: object, **settings: object) -> object:
        if logdir.path == paths[0]:
            is_reading.set()
            assert may_end.wait(60)
        return read(logdir, *arguments, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(tensors, "tensors", slow)
    Opened.count = 0
    answers: list[Answer] = []
    with contextlib.closing(Sites(LogdirSearch(paths), open_reader=Opened)) as sites:  # type: ignore[arg-type]
        thread = threading.Thread(target=lambda: answers.append(sites.answer(f"/{key_of(paths[0])}/tensors.json", {})))
        thread.start()
        assert is_reading.wait(60)
        for path in paths[1:]:  # more readers than can be open at the same time
            assert sites.answer(f"/{key_of(path)}/state.json", {}).status == 200
        assert Opened.count == 5
        may_end.set()
        thread.join()
        assert answers[0].status == 200, answers[0].content
        assert Opened.count == 4
    assert Opened.count == 0


def test_the_last_request_closes_what_it_uses(paths: list[Path]) -> None:
    Opened.count = 0
    sites = Sites(LogdirSearch(paths), open_reader=Opened)  # type: ignore[arg-type]
    with sites._borrowed(paths[0]) as first, sites._borrowed(paths[0]) as second:
        sites.close()
        assert first is second
        assert Opened.count == 1
        assert first.read("runs", lambda logdir: len(logdir.runs())) == 1
    assert Opened.count == 0
    with sites._borrowed(paths[0]):
        assert Opened.count == 1
    assert Opened.count == 0


def test_a_pair_needs_two_directories(paths: list[Path], tmp_path: Path) -> None:
    with pytest.raises(LogdirError, match=r"s3://a/b is a URL; the viewer compares two logdirs only if both"):
        pair_of(str(paths[0]), "s3://a/b")
    with pytest.raises(LogdirError, match="nothing does not exist"):
        pair_of(str(tmp_path / "nothing"), str(paths[0]))
    with contextlib.closing(pair_of(*map(str, paths[:2]))) as sites:
        assert sites.answer("/", {}).headers["location"] == f"{key_of(paths[0])}/diff"
