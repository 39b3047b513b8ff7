"""Lines of two runs of one program in different directories are paired."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdbg_arrow.query.model_health.cells import RowKey
from tfdbg_arrow.query.model_health.moved_lines import lines_in_a


def line(file: str, lineno: int = 1, *, is_gradient: bool = False) -> RowKey:
    return RowKey("line", f"{file}:{lineno}", is_gradient)


@pytest.mark.parametrize(
    ("files_a", "files_b", "file_in_a"),
    [
        (["/a/train.py"], ["/b/train.py"], {"/b/train.py": "/a/train.py"}),
        (["/a/train.py"], ["/a/train.py"], {}),
        (["/a/train.py"], ["/b/test.py"], {}),
        (
            ["/a/x/model.py", "/a/y/model.py"],
            ["/b/x/model.py", "/b/y/model.py"],
            {"/b/x/model.py": "/a/x/model.py", "/b/y/model.py": "/a/y/model.py"},
        ),
        (["/a/x/model.py", "/a/y/model.py"], ["/b/z/model.py"], {}),
        (["/a/x/model.py", "/a/model.py"], ["/b/x/model.py", "/b/model.py"], {
            "/b/x/model.py": "/a/x/model.py", "/b/model.py": "/a/model.py"
        }),
        (["/lib/model.py", "/a/model.py"], ["/lib/model.py", "/b/model.py"], {"/b/model.py": "/a/model.py"}),
        (["Cell In[1]"], ["Cell In[2]"], {}),
    ],
)  # fmt: skip
def test_moved_files(files_a: list[str], files_b: list[str], file_in_a: Mapping[str, str]) -> None:
    lines = lines_in_a({line(file) for file in files_a}, {line(file) for file in files_b})
    assert lines == {line(b): line(a) for b, a in file_in_a.items()}


def test_only_lines_that_both_have_are_paired() -> None:
    keys_a = {line("/a/train.py", 1), line("/a/train.py", 2, is_gradient=True), RowKey("layer", "net", False)}
    keys_b = {line("/b/train.py", 1), line("/b/train.py", 2), RowKey("layer", "net", False)}
    assert lines_in_a(keys_a, keys_b) == {line("/b/train.py", 1): line("/a/train.py", 1)}


PATHS = st.lists(st.sampled_from("xyz"), min_size=1, max_size=4).map("/".join)


@given(files=st.sets(PATHS), root_a=st.sampled_from(["/", "/a/"]), root_b=st.sampled_from(["/b/", "/b/c/"]))
def test_a_moved_directory(files: set[str], root_a: str, root_b: str) -> None:
    lines = lines_in_a({line(root_a + file) for file in files}, {line(root_b + file) for file in files})
    assert lines == {line(root_b + file): line(root_a + file) for file in files}
