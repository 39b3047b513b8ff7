"""How source files are read for stacks."""

from __future__ import annotations

import io
import linecache
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdbg_arrow.writer import source_text as source_text_module
from tfdbg_arrow.writer import stacks
from tfdbg_arrow.writer.source_text import SourceText, source_text
from tfdbg_arrow.writer.stacks import StackTable

TEXT = "x = 1\n\n\ny = '\x0c π'"


def test_the_lines_of_files_of_text_in_linecache_and_of_modules_in_zip_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain.py").write_text(TEXT, "utf-8")
    (tmp_path / "latin.py").write_bytes(b"# coding: latin-1\n# \xe9\n")
    (tmp_path / "broken.py").write_bytes(b"# \xe9\n")
    lines = ["x = 1\n", "\n", "\n", "y = '\x0c π'"]
    assert list(source_text(str(tmp_path / "plain.py"))) == lines
    assert list(source_text(str(tmp_path / "latin.py"))) == ["# coding: latin-1\n", "# é\n"]
    assert [list(source_text(str(tmp_path / name))) for name in ("broken.py", "missing.py", "", "a\0b")] == [[]] * 4
    monkeypatch.syspath_prepend(str(tmp_path))
    assert list(source_text("plain.py")) == lines
    monkeypatch.setitem(linecache.cache, "<cell>", (6, None, ["z = 2\n"], "<cell>"))
    assert list(source_text("<cell>")) == ["z = 2\n"]
    with zipfile.ZipFile(tmp_path / "modules.zip", "w") as archive:
        archive.writestr("zipped.py", "z = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path / "modules.zip"))
    zipped = __import__("zipped")
    assert list(source_text(zipped.__file__)) == []
    linecache.lazycache(zipped.__file__, vars(zipped))
    assert list(source_text(zipped.__file__)) == ["z = 3\n"]


@given(text=st.text(alphabet="ab \n\r\x0cπ", max_size=30), line=st.integers(-12, 12), end=st.integers(-12, 12))
def test_lines_are_those_of_a_list(text: str, line: int, end: int) -> None:
    lines, expected = SourceText(text), io.StringIO(text, newline="\n").readlines()
    assert list(lines) == expected
    assert lines[line:end] == expected[line:end]
    if -len(expected) <= line < len(expected):
        assert lines[line] == expected[line]
    else:
        with pytest.raises(IndexError):
            lines[line]


def test_a_file_is_read_again_only_after_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "changed.py"
    path.write_text("x = 1\n")
    first = source_text(str(path))
    assert source_text(str(path)) is first
    times = path.stat()
    path.write_text("x = 2\n")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert source_text(str(path)).text == "x = 2\n"
    (tmp_path / "other.py").write_text("x = 3\n")
    os.replace(tmp_path / "other.py", path)
    assert source_text(str(path)).text == "x = 3\n"


def test_only_regular_files_of_limited_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "link.py").symlink_to("/dev/zero")
    for name, size in (("fits.py", 0), ("large.py", 1)):
        with open(tmp_path / name, "wb") as file:
            file.write(b"#\n")
            file.truncate(source_text_module._MAX_SOURCE_BYTES + size)
    names = ("pipe.py", "link.py", "large.py", "fits.py")
    program = (
        "import sys; from tfdbg_arrow.writer.source_text import source_text;"
        "print([len(source_text(path)) for path in sys.argv[1:]])"
    )
    paths = [*(str(tmp_path / name) for name in names), "/dev/zero", "/dev/stdin", "pipe.py", "/proc/self/mem"]
    done = subprocess.run(
        [sys.executable, "-c", program, *paths],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == "[0, 0, 0, 2, 0, 0, 0, 0]\n"


def test_other_threads_add_stacks_while_a_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    table = StackTable(
        lambda name, rows, *notes: None,
        lambda name, columns, *notes: written.append(columns["stack_trace_id"]),
        lock=threading.RLock(),
        original_location=lambda path, lineno: None,
        original_span=lambda path, span: None,
    )
    codes = {name: compile("x = 1\n", name, "exec") for name in ("slow.py", "fast.py")}

    def read(path: str) -> SourceText:
        if path == "slow.py":
            other = threading.Thread(target=lambda: table.add(2, [codes["fast.py"]], [0]), daemon=True)
            other.start()
            other.join(60.0)
        return SourceText("")

    monkeypatch.setattr(stacks, "source_text", read)
    table.add(1, [codes["slow.py"]], [0])
    table.add_traceback([("slow.py", 1, "f")])
    assert written[:2] == [[2], [1]]
