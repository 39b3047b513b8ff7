"""Coverage-guided inputs for the parsers of bytes: manifests, markers, journals, and records of dumps.

To run by hand, with atheris installed: `python -m tests.fuzz.atheris_harness -runs=100000 -max_len=2048`. A failing
input is written to a file `crash-…`. To run the input again, pass this file as an argument.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris
import numpy as np

from tfdbg_arrow.debugger_v2.file_sets import frame
from tfdbg_arrow.debugger_v2.scan import PythonScanner, Scan, event_scanner
from tfdbg_arrow.errors import TfdbgArrowError
from tfdbg_arrow.spool.call_join import CallJoin
from tfdbg_arrow.spool.journal import JournalReader
from tfdbg_arrow.spool.names import GraphLinks
from tfdbg_arrow.spool.recovery import JournaledNames
from tfdbg_arrow.storage.manifest import live_parts, spool_progress, whole_lines
from tfdbg_arrow.storage.marker import parse_marker

_PATH = Path(tempfile.mkdtemp(prefix="tfdbg_arrow-atheris-")) / "file"


def _manifest(data: bytes) -> None:
    text = whole_lines(data).decode("utf-8", "replace")
    for read in (live_parts, spool_progress):
        read(text, run_id="run-a", path="manifest")  # type: ignore[operator]


def _marker(data: bytes) -> None:
    parse_marker(data.decode("utf-8", "replace"), path="marker")


def _journal(data: bytes) -> None:
    _PATH.write_bytes(data)
    names = JournaledNames(_PATH)
    assert names.num_strings >= 0
    for entry in JournalReader(_PATH).entries():
        for item in entry.data:
            if isinstance(item, dict):
                CallJoin(GraphLinks(), max_looks=1_000).restore(item)


def _dump(data: bytes) -> None:
    content = frame(data[: len(data) // 2]) + frame(data[len(data) // 2 :])
    scans = [
        [*scanner]
        for scanner in (make(io.BytesIO(content), intern=lambda event: 7) for make in (event_scanner, PythonScanner))
    ]
    native, python = scans
    assert _numbers(native) == _numbers(python), "the native scanner and the Python scanner differ"


def _numbers(scans: list[Scan]) -> list[object]:
    names = ("template", "num_inputs", "inputs", "num_outputs", "outputs", "num_contents", "content_length")
    return [[np.asarray(getattr(scan, name)).tolist() for name in names] for scan in scans]


_TARGETS: tuple[Callable[[bytes], None], ...] = (_manifest, _marker, _journal, _dump)


def one_input(data: bytes) -> None:
    """Passes bytes to the target that the first byte selects."""
    if data:
        with contextlib.suppress(TfdbgArrowError):
            _TARGETS[data[0] % len(_TARGETS)](data[1:])


if __name__ == "__main__":
    atheris.instrument_all()  # imports of an editable install are not instrumented automatically
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
