"""Source files as they are read for stacks."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.writer import source_text, stacks
from tfdbg_arrow.writer.source_text import source_lines
from tfdbg_arrow.writer.stacks import StackTable

TEXT = "x = 1\n\n\ny = '\x0c π'"


def test_the_lines_of_files_of_text_in_linecache_and_of_modules_in_zip_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain.py").write_text(TEXT, "utf-8")
    (tmp_path / "latin.py").write_bytes(b"# coding: latin-1\n# \xe9\n")
    (tmp_path / "broken.py").write_bytes(b"# \xe9\n")
    lines = ["x = 1\n", "\n", "\n", "y = '\x0c π'"]
    assert source_lines(str(tmp_path / "plain.py")) == lines
    assert source_lines(str(tmp_path / "latin.py")) == ["# coding: latin-1\n", "# é\n"]
    assert [source_lines(str(tmp_path / name)) for name in ("broken.py", "missing.py", "", "a\0b")] == [[]] * 4
    monkeypatch.syspath_prepend(str(tmp_path))
    assert source_lines("plain.py") == lines
    monkeypatch.setitem(linecache.cache, "<cell>", (6, None, ["z = 2\n"], "<cell>"))
    assert source_lines("<cell>") == ["z = 2\n"]
    with zipfile.ZipFile(tmp_path / "modules.zip", "w") as archive:
        archive.writestr("zipped.py", "z = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path / "modules.zip"))
    zipped = __import__("zipped")
    assert source_lines(zipped.__file__) == []
    linecache.lazycache(zipped.__file__, vars(zipped))
    assert source_lines(zipped.__file__) == ["z = 3\n"]


def test_only_regular_files_of_limited_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "link.py").symlink_to("/dev/zero")
    for name, size in (("fits.py", 0), ("large.py", 1)):
        with open(tmp_path / name, "wb") as file:
            file.write(b"#\n")
            file.truncate(source_text._MAX_SOURCE_BYTES + size)
    names = ("pipe.py", "link.py", "large.py", "fits.py")
    program = (
        "import sys; from tfdbg_arrow.writer.source_text import source_lines;"
        "print([len(source_lines(path)) for path in sys.argv[1:]])"
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
        original_location=lambda path, lineno: None,
        original_span=lambda path, span: None,
    )
    codes = {name: compile("x = 1\n", name, "exec") for name in ("slow.py", "fast.py")}

    def read(path: str) -> list[str]:
        if path == "slow.py":
            other = threading.Thread(target=lambda: table.add(2, [codes["fast.py"]], [0]), daemon=True)
            other.start()
            other.join(60.0)
        return []

    monkeypatch.setattr(stacks, "source_lines", read)
    table.add(1, [codes["slow.py"]], [0])
    table.add_traceback([("slow.py", 1, "f")])
    assert written[:2] == [[2], [1]]
