"""Writes the golden logdirs of the present format version: `python -m tests.compat.make_golden`.

Beside each is what readers answer. What is there is never written again: it is what that version wrote. A new format
version needs it run once, before it is released, and `golden/<version>` committed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tfdbg_arrow.schema import FORMAT_VERSION
from tfdbg_arrow.writer.debugger_v2.importer import import_dump

from ..viewer import logdirs
from ..writer.debugger_v2.building import small_dump, write_dump
from .answering import answers_of

GOLDEN = Path(__file__).parent / "golden"
MAX_BYTES = 300_000
"""Of a logdir."""


def main() -> None:
    """Writes golden/<version>."""
    target = GOLDEN / FORMAT_VERSION
    if target.exists():
        sys.exit(f"{target} is there, and stays as it is")
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
    # By the schema: source text, which a recording would bring along of the machine.
    logdirs.log_of_zero(target / "with_source")
    for logdir in sorted(target.iterdir()):
        answers = json.dumps(answers_of(logdir), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        (target / f"{logdir.name}.json").write_text(answers + "\n", encoding="utf-8")
        print(f"{logdir}: {num_bytes(logdir):,} bytes, of {MAX_BYTES:,} at most")


def num_bytes(logdir: Path) -> int:
    """Returns how many bytes a logdir takes."""
    return sum(path.stat().st_size for path in logdir.rglob("*") if path.is_file())


def _record(logdir: Path, mode: str) -> None:
    program = Path(__file__).with_name("golden_program.py")
    subprocess.run([sys.executable, program.name, str(logdir), mode], cwd=program.parent, check=True)
    (logdir / "spool").rmdir()  # empty, which git does not keep


if __name__ == "__main__":
    main()
