"""Measures a long recording over half an hour: the time of a step, rows, memory and files.

    python benchmarks/soak.py [--minutes 30] [--program mlp] [--output FILE.json]

The script trains a program of programs.py in FULL_HEALTH with full history, and takes a sample of the recording every
few seconds. At the end, it prints the ratio of the last tenth of the run to the first tenth. `plots.py` draws all
samples.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from overhead import PROGRAM_NAMES, environment

CONFIGS = ("tfdbg_arrow/FULL_HEALTH", "none")
SAMPLE_S = 5.0
WARM_UP_S = 20.0
"""Time that is excluded from the first tenth, because of tracing, caches and the first merges."""
MAX_STEPS = 10_000_000


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The state of the recording at one moment.

    Attributes:
        elapsed_s: Seconds since the start.
        step: Number of steps so far.
        step_ms: Median of the steps since the previous sample.
        rows: Number of rows in all sealed parts.
        memory_bytes: Resident memory of the process.
        num_files: Number of files in the logdir.
        num_bytes: Space that the files take on disk.
    """

    elapsed_s: float
    step: int
    step_ms: float
    rows: int
    memory_bytes: int
    num_files: int
    num_bytes: int


class _TimeIsUpError(Exception):
    """Raised to end the program."""


class Soak:
    """Takes samples between the steps of a program.

    Args:
        logdir: The logdir of the recording.
        seconds: Duration of the program, in seconds.
    """

    def __init__(self, logdir: Path, seconds: float) -> None:
        self._logdir, self._seconds = logdir, seconds
        self._begin = self._last_step = time.perf_counter()
        self._next_sample = SAMPLE_S
        self._step_s: list[float] = []
        self.samples: list[Sample] = []

    def step(self, number: int) -> None:
        """Ends a step."""
        now = time.perf_counter()
        self._step_s.append(now - self._last_step)
        elapsed = now - self._begin
        if elapsed >= self._next_sample:
            self.samples.append(self._sample(elapsed, number))
            self._step_s.clear()
            self._next_sample = elapsed + SAMPLE_S
        if elapsed >= self._seconds:
            raise _TimeIsUpError
        self._last_step = time.perf_counter()  # the time of a sample does not count for any step

    def _sample(self, elapsed: float, number: int) -> Sample:
        from tfdbg_arrow.storage.manifest import read_live_parts, run_ids

        files = [path.stat() for path in self._logdir.rglob("*") if path.is_file()]
        has_parts = (self._logdir / "manifest").is_dir()
        parts = [part for run in run_ids(self._logdir) for part in read_live_parts(self._logdir, run_id=run)]
        return Sample(
            elapsed_s=elapsed,
            step=number,
            step_ms=1e3 * statistics.median(self._step_s),
            rows=sum(part.rows for part in parts) if has_parts else 0,
            memory_bytes=int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
            num_files=len(files),
            num_bytes=sum(512 * file.st_blocks for file in files),
        )


def measure(program: str, *, config: str, seconds: float, logdir: Path) -> list[Sample]:
    """Records a program in this process for `seconds` seconds."""
    from overhead import start_recording
    from programs import PROGRAMS, STEP_HOOKS

    recording = start_recording(config, logdir)
    soak = Soak(logdir, seconds)
    STEP_HOOKS.append(soak.step)
    try:
        PROGRAMS[program](MAX_STEPS)
    except _TimeIsUpError:
        recording.close()
    return soak.samples


def summary(samples: list[Sample]) -> dict[str, float]:
    """Returns the ratios between the last and the first tenth after the warm-up, and the sizes of the last sample."""
    warm = [sample for sample in samples if sample.elapsed_s >= WARM_UP_S] or samples
    tenth = max(1, len(warm) // 10)
    first, last = warm[:tenth], warm[-tenth:]

    def ratio(name: str) -> float:
        values = [statistics.median(getattr(sample, name) for sample in part) for part in (last, first)]
        return values[0] / values[1]

    return {
        "steps": samples[-1].step,
        "rows": samples[-1].rows,
        "files": samples[-1].num_files,
        "bytes": samples[-1].num_bytes,
        "step_ratio": ratio("step_ms"),
        "memory_ratio": ratio("memory_bytes"),
        "peak_memory_bytes": max(sample.memory_bytes for sample in samples),
    }


def main() -> int:
    """Runs the benchmark."""
    if sys.argv[1:2] == ["--measure"]:
        program, config, seconds, logdir, answer = sys.argv[2:]
        samples = measure(program, config=config, seconds=float(seconds), logdir=Path(logdir))
        Path(answer).write_text(json.dumps([asdict(sample) for sample in samples]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--program", choices=PROGRAM_NAMES[:2], default="mlp", help="a program that can run forever")
    parser.add_argument("--config", choices=CONFIGS, default=CONFIGS[0])
    parser.add_argument("--output", type=Path, help="write all samples and the summary to this file, as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak_") as directory:
        logdir, answer = Path(directory, "logdir"), Path(directory, "answer.json")
        logdir.mkdir()
        command = [sys.executable, __file__, "--measure", arguments.program, arguments.config]
        command += [str(60 * arguments.minutes), str(logdir), str(answer)]
        subprocess.run(command, env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}, check=True)
        samples = [Sample(**sample) for sample in json.loads(answer.read_text())]
    found = summary(samples)
    for name, value in found.items():
        print(f"{name:18} {value:,.3f}" if name.endswith("ratio") else f"{name:18} {value:,}")
    if arguments.output:
        document = {
            "environment": environment(),
            "program": arguments.program,
            "config": arguments.config,
            "summary": found,
            "samples": [asdict(sample) for sample in samples],
        }
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
