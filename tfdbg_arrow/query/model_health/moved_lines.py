"""Pairs the lines of two runs of one program whose files are in different directories."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import replace
from itertools import takewhile

from tfdbg_arrow.query.model_health.cells import RowKey


def lines_in_a(keys_a: Collection[RowKey], keys_b: Collection[RowKey]) -> dict[RowKey, RowKey]:
    """Returns the rows of A by the rows of B that stand for the same line of a moved file.

    A file that only one run has is paired with a file of the same name that only the other run has. Among several such
    files, the file whose path has the longest common end is chosen. If two files fit equally well, neither is paired.

    Args:
        keys_a: The rows of run A.
        keys_b: The rows of run B.
    """
    files_a, files_b = ({_file_of(key) for key in keys if key.kind == "line"} for keys in (keys_a, keys_b))
    moved = _moved_files(files_a - files_b, files_b - files_a)
    lines: dict[RowKey, RowKey] = {}
    for key in keys_b:
        file = moved.get(_file_of(key)) if key.kind == "line" else None
        if file is not None and (key_a := replace(key, path=f"{file}:{key.path.rpartition(':')[2]}")) in keys_a:
            lines[key] = key_a
    return lines


def _file_of(key: RowKey) -> str:
    return key.path.rpartition(":")[0]


def _moved_files(files_a: Collection[str], files_b: Collection[str]) -> dict[str, str]:
    """Returns the files of A by the files of B."""
    of_name: dict[str, list[str]] = defaultdict(list)
    for a in files_a:
        of_name[_name_of(a)].append(a)
    pairs: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for b in files_b:
        for a in of_name[_name_of(b)]:
            pairs[_common_end(a, b)].append((a, b))
    moved: dict[str, str] = {}
    seen_a: set[str] = set()
    seen_b: set[str] = set()
    for _, longest in sorted(pairs.items(), reverse=True):
        left = [(a, b) for a, b in longest if a not in seen_a and b not in seen_b]
        nums_a, nums_b = (Counter(files) for files in (zip(*left, strict=True) if left else ((), ())))
        moved |= {b: a for a, b in left if nums_a[a] == nums_b[b] == 1}
        seen_a |= nums_a.keys()
        seen_b |= nums_b.keys()
    return moved


def _name_of(file: str) -> str:
    return file.rpartition("/")[2]


def _common_end(a: str, b: str) -> int:
    """Returns the number of names that both paths end with."""
    names = zip(reversed(a.split("/")), reversed(b.split("/")), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], names))
