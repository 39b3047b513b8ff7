"""Writes the golden logdirs of the current format version: `python -m tests.compat.make_golden`.

The answers of readers are stored beside each logdir. Existing golden logdirs are never overwritten, because they are
what that version wrote. For a new format version, run this once before its release and commit `golden/<version>`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tfdbg_arrow.debugger_v2.importer import import_dump
from tfdbg_arrow.schema import FORMAT_VERSION

from ..viewer import logdirs
from ..writer.debugger_v2.building import small_dump, write_dump
from .answering import answers_of

GOLDEN = Path(__file__).parent / "golden"
MAX_BYTES = 300_000
"""Maximum size of a golden logdir."""


def main() -> None:
    """Writes golden/<version>."""
    target = GOLDEN / FORMAT_VERSION
    if target.exists():
        sys.exit(f"{target} exists already and is not overwritten")
    try:
        _write(target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _write(target: Path) -> None:
    for mode in ("FULL_NUMERICS", "FULL_TENSOR"):
        _record(target / mode.lower(), mode)
    with tempfile.TemporaryDirectory() as directory:
        import_dump(write_dump(Path(directory) / "dump", small_dump()), target / "imported")
    # Written from the schema because a recording would add source text of the machine.
    logdirs.log_of_zero(target / "with_source")
    for logdir in sorted(target.iterdir()):
        answers = json.dumps(answers_of(logdir), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        (target / f"{logdir.name}.json").write_text(answers + "\n", encoding="utf-8")
        print(f"{logdir}: {num_bytes(logdir):,} bytes (maximum {MAX_BYTES:,})")


def num_bytes(logdir: Path) -> int:
    """Returns the total size of a logdir's files in bytes."""
    return sum(path.stat().st_size for path in logdir.rglob("*") if path.is_file())


def _record(logdir: Path, mode: str) -> None:
    program = Path(__file__).with_name("golden_program.py")
    subprocess.run([sys.executable, program.name, str(logdir), mode], cwd=program.parent, check=True)
    (logdir / "spool").rmdir()  # empty directories are not stored by git


if __name__ == "__main__":
    main()
