"""The inputs: whole logdirs, spools and dumps, and for each number one of them with something spoiled."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tfdbg_arrow.schema.logdir_layout import MARKER_NAME, spool_paths

from ..recovery.checking import copied, left_by_a_kill
from ..recovery.driver import RUN_ID
from ..viewer import logdirs
from ..writer.debugger_v2.building import Dump, small_dump, write_dump
from . import mutators

KINDS = ("parts", "rows", "manifest", "spool", "dump")
_NUM_CALLS = 20
_NUM_RECORDS = 90
"""Records in the spool that are in no part."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """One input.

    Attributes:
        number: Its number, from which all of it follows.
        kind: What was spoiled.
        what: Which files of it.
        path: The logdir, or the dump.
    """

    number: int
    kind: str
    what: str
    path: Path


class Inputs:
    """Makes inputs in a directory, one at a time.

    Args:
        directory: Where; what is there is removed with the next input.
        kinds: The kinds to make.
    """

    def __init__(self, directory: Path, *, kinds: tuple[str, ...] = KINDS) -> None:
        self._kinds = kinds
        self._made = directory / "input"
        whole = directory / "whole"
        makers = (logdirs.log_of_zero, logdirs.nested, logdirs.two_runs)
        self._logdirs = [make(whole / make.__name__) for make in makers]
        self._left = left_by_a_kill(whole / "left", num_calls=_NUM_CALLS, flushed_after=4)
        self._dump = small_dump()

    def make(self, number: int) -> Input:
        """Makes the input of a number in the place of the one before."""
        random = Random(number)
        kind = self._kinds[number % len(self._kinds)]
        shutil.rmtree(self._made, ignore_errors=True)
        if kind == "dump":
            what = self._make_dump(random)
        else:
            whole = self._left if kind == "spool" else random.choice(self._logdirs)
            copied(whole, self._made)
            what = getattr(self, f"_spoil_{kind}")(random)
        return Input(number=number, kind=kind, what=what, path=self._made)

    def _spoil_parts(self, random: Random) -> str:
        paths = self._some_parts(random)
        for path in paths:
            mutators.spoil_part(path, random)
        return _names(paths)

    def _spoil_rows(self, random: Random) -> str:
        paths = self._some_parts(random)
        for path in paths:
            mutators.spoil_rows(path, random)
        return _names(paths)

    def _some_parts(self, random: Random) -> list[Path]:
        parts = sorted(self._made.glob("*/run_id=*/*.parquet"))
        return random.sample(parts, random.choice((1, 1, 2, 4)))

    def _spoil_manifest(self, random: Random) -> str:
        path = random.choice([self._made / MARKER_NAME, *sorted((self._made / "manifest").iterdir()) * 3])
        data = path.read_bytes()
        spoil = random.choice((mutators.spoiled, mutators.spoiled_lines, mutators.spoiled_lines))
        path.write_bytes(spoil(data, random))
        return _names([path])

    def _spoil_spool(self, random: Random) -> str:
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
        os.utime(paths.journal, (0, 0))  # its head, if spoiled, does not say where it was written
        return _names(chosen)

    def _make_dump(self, random: Random) -> str:
        dump: Dump = {file: list(records) for file, records in self._dump.items()}
        write_dump(self._made, dump)
        chosen = random.sample(sorted(self._made.iterdir()), random.choice((1, 1, 2)))
        for path in chosen:
            records = dump[path.suffix[1:]]
            data = path.read_bytes()
            is_framed = random.random() < 0.75
            path.write_bytes(mutators.spoiled_records(records, random) if is_framed else mutators.spoiled(data, random))
        return _names(chosen)


def _names(paths: list[Path]) -> str:
    return ", ".join(f"{path.parent.parent.name}/{path.parent.name}/{path.name}" for path in paths)
