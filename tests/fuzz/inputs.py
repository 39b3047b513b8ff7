"""Makes inputs from intact logdirs, spools, dumps and graphs. The number of an input selects one and its mutation."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tfdbg_arrow.storage.layout import MARKER_NAME, spool_paths

from ..recovery.checking import copied, left_by_a_kill
from ..recovery.driver import RUN_ID
from ..viewer import logdirs
from ..writer.debugger_v2.building import Dump, small_dump, write_dump
from . import mutators
from .graph_defs import small_graph

_FILES = ("parts", "manifest", "spool", "dump", "rows", "manifest", "spool", "dump")
KINDS = (*_FILES, *_FILES[:4], "graph", *_FILES[5:])
"""The kinds of 16 successive inputs: one is a graph; Parquet, manifests, spools and dumps have a quarter each."""
_NUM_CALLS = 20
_CAPACITY = 256
_NUM_RECORDS = 90
"""Number of records in the spool that are in no part."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """One input.

    Attributes:
        number: The number of the input, which determines everything else.
        kind: The kind of file that was mutated.
        spoiled: The files that were mutated.
        path: The logdir, the dump, or a directory with a GraphDef.
        whole: The intact original. None for a dump and a graph.
        is_by_fault: True if the mutation resembles a fault. False if the mutation resembles an attack with valid
            checksums.
    """

    number: int
    kind: str
    spoiled: tuple[Path, ...]
    path: Path
    whole: Path | None
    is_by_fault: bool

    @property
    def what(self) -> str:
        """The mutated files, as text for a person."""
        return ", ".join(f"{path.parent.parent.name}/{path.parent.name}/{path.name}" for path in self.spoiled)


class Inputs:
    """Makes inputs in a directory, one at a time.

    Args:
        directory: Directory for the inputs. Each input is removed when the next input is made.
        kinds: The kinds to make.
    """

    def __init__(self, directory: Path, *, kinds: tuple[str, ...] = KINDS) -> None:
        self._kinds = kinds
        self._directory = directory
        whole = directory / "whole"
        makers = (logdirs.log_of_zero, logdirs.nested, logdirs.two_runs)
        self._logdirs = [make(whole / make.__name__) for make in makers]
        self._left = left_by_a_kill(whole / "left", num_calls=_NUM_CALLS, flushed_after=4, capacity=_CAPACITY)
        self._dump = small_dump()
        self._graph, _ = small_graph()
        self._parts = {
            path: [part.relative_to(path) for part in sorted(path.glob("*/run=*/*.parquet"))] for path in self._logdirs
        }
        self._copies: dict[Path, Path] = {}
        self._last: Input | None = None

    def make(self, number: int) -> Input:
        """Makes the input with a number. The previous input no longer exists afterwards."""
        random = Random(number)
        kind = self._kinds[number % len(self._kinds)]
        self._mend()
        self._is_by_fault = True
        self._made = self._directory / f"input-{number}"  # a new path each time, because DuckDB caches what it read
        if kind == "dump":
            spoiled = self._make_dump(random)
        elif kind == "graph":
            spoiled = self._make_graph(random)
        else:
            self._whole = self._left if kind == "spool" else random.choice(self._logdirs)
            self._make_copy(self._whole)
            spoiled = getattr(self, f"_spoil_{kind}")(random)
        whole = None if kind in ("dump", "graph") else self._whole
        self._last = Input(
            number=number,
            kind=kind,
            spoiled=tuple(spoiled),
            path=self._made,
            whole=whole,
            is_by_fault=self._is_by_fault,
        )
        return self._last

    def discard(self) -> None:
        """Discards the copy of the last input, because the tests of that input changed it."""
        if self._last is not None:
            shutil.rmtree(self._last.path, ignore_errors=True)
            if self._last.whole is not None:
                del self._copies[self._last.whole]
        self._last = None

    def _mend(self) -> None:
        """Restores the mutated files of the last input in its copy, so that no other file has to be copied again."""
        last = self._last
        if last is None or last.whole is None:
            self.discard()
            return
        for path in last.spoiled:
            shutil.copy2(last.whole / path.relative_to(last.path), path)

    def _make_copy(self, whole: Path) -> None:
        if whole in self._copies:
            self._copies[whole].rename(self._made)
        else:
            copied(whole, self._made)
        self._copies[whole] = self._made

    def _spoil_parts(self, random: Random) -> list[Path]:
        paths = self._some_parts(random)
        for path in paths:
            mutators.spoil_part(path, random)
        return paths

    def _spoil_rows(self, random: Random) -> list[Path]:
        paths = self._some_parts(random)
        for path in paths:
            mutators.spoil_rows(path, random)
        return paths

    def _some_parts(self, random: Random) -> list[Path]:
        parts = random.sample(self._parts[self._whole], random.choice((1, 1, 2, 4)))
        return [self._made / part for part in parts]

    def _spoil_manifest(self, random: Random) -> list[Path]:
        path = random.choice([self._made / MARKER_NAME, *sorted((self._made / "manifest").iterdir()) * 3])
        data = path.read_bytes()
        spoil = random.choice((mutators.spoiled, mutators.spoiled_lines, mutators.spoiled_lines_with_checksums))
        self._is_by_fault = spoil is not mutators.spoiled_lines_with_checksums
        path.write_bytes(spoil(data, random))
        return [path]

    def _spoil_spool(self, random: Random) -> list[Path]:
        paths = spool_paths(self._made, run_id=RUN_ID)
        chosen = random.sample(paths.all(), random.choice((1, 1, 2)))
        for path in chosen:
            data = path.read_bytes()
            if random.random() < 0.3:
                reach = min(len(data), 4096 + 256 * _NUM_RECORDS)
                made = mutators.spoiled(data, random, hot=range(reach))
            elif path == paths.spool:
                made = mutators.spoiled_spool(data, random, num_records=_NUM_RECORDS)
            elif path == paths.values:
                made = mutators.spoiled(data, random)
            else:
                made = mutators.spoiled_journal(data, random)
            path.write_bytes(made)
        os.utime(paths.journal, (0, 0))  # a mutated journal header may not name the machine
        return chosen

    def _make_graph(self, random: Random) -> list[Path]:
        path = self._made / "graph.pb"
        self._made.mkdir()
        is_message = random.random() < 0.75
        path.write_bytes((mutators.spoiled_message if is_message else mutators.spoiled)(self._graph, random))
        return [path]

    def _make_dump(self, random: Random) -> list[Path]:
        dump: Dump = {file: list(records) for file, records in self._dump.items()}
        write_dump(self._made, dump)
        chosen = random.sample(sorted(self._made.iterdir()), random.choice((1, 1, 2)))
        for path in chosen:
            records = dump[path.suffix[1:]]
            data = path.read_bytes()
            is_framed = random.random() < 0.75
            path.write_bytes(mutators.spoiled_records(records, random) if is_framed else mutators.spoiled(data, random))
        return chosen
