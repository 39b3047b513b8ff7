"""Records random programs and keeps their source and their logdirs.

`python -m tests.spec_reader.record_programs DIRECTORY GRAPHS SEED...` writes `DIRECTORY/<seed>/program.py` and
`DIRECTORY/<seed>/logdir` for each seed. GRAPHS is `traced` or `executed`. A seed that has a logdir is skipped.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf

import tfdbg_arrow
from tests.spec_reader.random_program import random_program
from tests.spec_reader.source import source


def record(directory: Path, seed: int, *, graphs: str) -> None:
    """Records the program of a seed. Every second program makes its variables before the recording."""
    texts = dict(zip(("variables", "program"), source(random_program(seed)), strict=True))
    codes = {}
    for name, text in texts.items():
        path = directory / f"{name}.py"
        path.write_text(text)
        codes[name] = compile(text, str(path), "exec")
    known: dict[str, Any] = {"__name__": f"program_{seed}"}
    if seed % 2:
        exec(codes["variables"], known)
    with tfdbg_arrow.capture(directory / "logdir", graphs=graphs):
        if not seed % 2:
            exec(codes["variables"], known)
        exec(codes["program"], known)


def main() -> None:
    """Records the programs of the seeds on the command line."""
    directory, graphs, *seeds = sys.argv[1:]
    for seed in map(int, seeds):
        target = Path(directory, str(seed))
        target.mkdir(parents=True)
        record(target, seed, graphs=graphs)
        tf.keras.backend.clear_session()


if __name__ == "__main__":
    main()
