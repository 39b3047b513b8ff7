"""Measures how fast the sink turns events into sealed parts, on one core.

    python benchmarks/sink.py [--programs transformer eager_loop] [--rows 2000000] [--output results.json]

A program is recorded for a few steps. The records of its last step are repeated, with the times and IDs that the
recorder would have assigned. A separate sink writes the records to another run as fast as it can. The time to generate
the repetitions is subtracted. `--profile` prints a profile of the remaining time.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

PROGRAM_NAMES = ("transformer", "mlp", "eager_loop")
NUM_STEPS = 4
NUM_WARM_UP_ROWS = 200_000


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result for one program.

    Attributes:
        program: Name of the program.
        step_records: Number of records of a step.
        rows: Number of rows of event tables in sealed parts.
        tensors: Number of rows of tensor_health.
        seal_us: Processor time of all threads to seal a row, in microseconds.
        rows_per_s: Rows per second of the processor time for sealing.
        records_per_s: Spool records per second of the processor time for sealing.
        merge_us: Processor time to merge all parts at the end, in microseconds per row.
    """

    program: str
    step_records: int
    rows: int
    tensors: int
    seal_us: float
    rows_per_s: float
    records_per_s: float
    merge_us: float


class Replay:
    """A recorder that repeats the events of one step.

    Args:
        recorder: The recorder of the original recording, which has the strings.
        step: The records of a step.
    """

    def __init__(self, recorder: Any, step: np.ndarray) -> None:
        self._recorder, self._step = recorder, step
        self._left = self._made = 0
        self.made_s = 0.0
        """Processor time for generating the records."""
        self._lengths = {
            name: int(step[name].max() - step[name][step[name] >= 0].min()) + 1
            for name in ("wall_time_ns", "execution_index", "tensor_id", "step_id")
            if (step[name] >= 0).any()
        }

    def offer(self, num_records: int) -> None:
        """Makes this number of further records available, rounded up to whole steps."""
        self._left += -(-num_records // len(self._step))

    def drain(self, max_records: int) -> np.ndarray:
        """Returns the next records."""
        start = time.process_time()
        repeats = min(self._left, -(-max_records // len(self._step)))  # fewer than requested if fewer are left
        self._left -= repeats
        records = np.tile(self._step.view(f"V{self._step.dtype.itemsize}"), repeats).view(self._step.dtype)
        turn = np.repeat(np.arange(self._made, self._made + repeats), len(self._step))
        records["commit"] = np.arange(len(records)) + (self._made * len(self._step) + 1)
        for name, length in self._lengths.items():
            records[name] += np.where(records[name] >= 0, turn * length, 0)
        self._made += repeats
        self.made_s += time.process_time() - start
        return records

    def wait(self, timeout_s: float, pending: int) -> bool:
        """Sleeps, because no events arrive on their own."""
        time.sleep(timeout_s)
        return False

    def release(self, upto: int, rows_upto: int) -> None:
        """Does nothing, because there are always enough slots."""

    def release_values(self, upto: int) -> None:
        """Does nothing, because there are no values."""

    def num_free(self) -> int:
        """Returns the capacity."""
        return self.capacity()

    def capacity(self) -> int:
        """Returns more slots than are ever used."""
        return 1 << 30

    def strings(self, start: int) -> list[str]:
        """Returns the strings that the recording interned."""
        return list(self._recorder.strings(start))

    def read_value(self, offset: int, size: int) -> bytes:
        """Is never called, because no elements are kept."""
        raise NotImplementedError

    def write_names(self) -> int:
        """Does nothing, because the recording keeps its names."""
        return 0

    def num_dropped(self) -> int:
        """Returns 0, because no events are dropped."""
        return 0

    def num_unkept_values(self) -> int:
        """Returns 0, because no elements are kept."""
        return 0

    def num_unkept_inputs(self) -> int:
        """Returns 0, because no inputs are kept."""
        return 0

    def num_known_arguments(self) -> int:
        """Returns 0, because every argument is measured."""
        return 0


def measure(program: str, num_rows: int, profile: bool) -> Result:
    """Measures a program in this process."""
    from programs import PROGRAMS, STEP_HOOKS

    import tfdbg_arrow
    from tfdbg_arrow.spool.convert import EVENT_TABLES
    from tfdbg_arrow.spool.journal import RunFiles
    from tfdbg_arrow.spool.records import join_records
    from tfdbg_arrow.storage.layout import make_run_id, spool_paths
    from tfdbg_arrow.storage.manifest import read_live_parts
    from tfdbg_arrow.writer.recording import recording
    from tfdbg_arrow.writer.sink.sink import Sink

    made: dict[str, Any] = {}
    seen: list[np.ndarray] = []
    num_seen: list[int] = []

    def note_step(step: int) -> None:
        tfdbg_arrow.flush()
        num_seen.append(sum(map(len, seen)))

    class SeenSink(Sink):
        def __init__(self, *args: Any, **options: Any) -> None:
            made.update(options)
            super().__init__(*args, **{**options, "on_records": lambda records: seen.append(records.copy())})

    with tempfile.TemporaryDirectory() as directory:
        with mock.patch.object(recording, "Sink", SeenSink):
            tfdbg_arrow.enable(str(Path(directory, "recorded")))
        STEP_HOOKS.append(note_step)
        PROGRAMS[program](NUM_STEPS)
        step = join_records(seen)[num_seen[-2] : num_seen[-1]]
        logdir, run_id = Path(directory, "replayed"), make_run_id(time.time_ns(), host_name="replay", pid=1)
        replay = Replay(made["recorder"], step)
        (logdir / "spool").mkdir(parents=True)
        files = RunFiles(spool_paths(logdir, run_id=run_id), run_id=run_id)
        sink = Sink(
            logdir,
            run_id,
            recorder=replay,
            files=files,
            links=made["links"],
            on_failure=print,
        )
        sink.start()

        def seal(rows: int) -> float:
            before, made_before = time.process_time(), replay.made_s
            replay.offer(rows)
            sink.flush()
            return time.process_time() - before - (replay.made_s - made_before)

        def rows_of(tables: tuple[str, ...]) -> int:
            return sum(part.rows for part in read_live_parts(logdir, run_id=run_id) if part.table in tables)

        seal(NUM_WARM_UP_ROWS)
        profiler = cProfile.Profile(time.process_time)
        rows_before = rows_of(EVENT_TABLES)
        if profile:
            profiler.enable()
        seal_s = seal(num_rows)
        profiler.disable()
        rows = rows_of(EVENT_TABLES) - rows_before
        start = time.process_time()
        sink.close(run_row={})
        merge_s = time.process_time() - start
        tensors = rows_of(("tensor_health",))
        result = Result(
            program=program,
            step_records=len(step),
            rows=rows,
            tensors=tensors,
            seal_us=1e6 * seal_s / rows,
            rows_per_s=rows / seal_s,
            records_per_s=-(-num_rows // len(step)) * len(step) / seal_s,
            merge_us=1e6 * merge_s / rows,
        )
        files.close()
        tfdbg_arrow.disable()
    if profile:
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(25)
    return result


def main() -> None:
    """Prints the results as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", choices=PROGRAM_NAMES, default=PROGRAM_NAMES)
    parser.add_argument("--rows", type=int, default=2_000_000, help="records to write (default: 2,000,000)")
    parser.add_argument("--profile", action="store_true", help="profile the sealing, which makes it slower")
    parser.add_argument("--output", type=Path, help="also write the results to this file, as JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        print(json.dumps(asdict(measure(arguments.child, arguments.rows, arguments.profile))))
        return
    found = []
    for program in arguments.programs:
        command = [sys.executable, __file__, "--child", program, "--rows", str(arguments.rows)]
        done = subprocess.run(
            command + ["--profile"] * arguments.profile, check=True, stdout=subprocess.PIPE, text=True
        )
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(found[-1], indent=1), flush=True)
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
