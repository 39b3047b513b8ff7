"""Generates a large logdir from a small recording.

scale_program.py is recorded for a few steps. A generated run consists of the recorded first steps, many repetitions of
one healthy step, and in some runs the recorded bad steps at the end. IDs, times and steps continue from one repetition
to the next as the recorder would have assigned them, and the magnitudes vary by a few percent. All other rows are as
recorded. The expected answers are known, and are written next to the logdir as LOGDIR.json.

    python benchmarks/generate_logdir.py LOGDIR [--rows 100000000] [--runs 1000] [--processes 2]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfdbg_arrow.schema import TABLES, arrow_schema
from tfdbg_arrow.storage.layout import MARKER_NAME, make_run_id
from tfdbg_arrow.storage.manifest import read_live_parts, run_ids
from tfdbg_arrow.storage.marker import marker_text
from tfdbg_arrow.writer.sink.parts import PartWriter

WARM_STEPS = 3
"""Number of first steps, which include the tracing. A generated run contains these steps unchanged."""
FIRST_BAD_STEP = 6
NUM_STEPS = 9
BAD_EVERY = 10
"""One run in BAD_EVERY runs becomes bad."""
START_NS = 1_795_000_000_000_000_000
RUN_NS = 600 * 10**9
"""Time from the start of one run to the start of the next run."""
NOISE = 0.02
"""Standard deviation of the logarithm of a random factor. The magnitudes of a tensor are multiplied by this factor."""
_MAGNITUDES = ("min_finite", "max_finite", "mean_finite", "stddev_finite", "max_abs_finite")
_REPEATED = ("execution", "execution_input", "execution_output", "tensor_health", "mark")
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The contents of a generated logdir, and the answers that queries must give.

    Attributes:
        rows: Number of rows of tensor_health in all runs.
        runs: The runs, oldest first.
        bad_runs: The runs that become bad, oldest first.
        bad_rows: Number of bad tensors in one bad run.
        op_type: Type of the op that creates the first bad value in each bad run.
        op_name: Name of the op that creates the first bad value.
        code: The source line that created the op.
        event_index: event_index of the op's row of tensor_health in each bad run.
        last_event_index: event_index of the last bad tensor in each bad run.
        seconds: Time to generate the logdir.
    """

    rows: int
    runs: tuple[str, ...]
    bad_runs: tuple[str, ...]
    bad_rows: int
    op_type: str
    op_name: str
    code: str
    event_index: int
    last_event_index: int
    seconds: float


@dataclass(frozen=True)
class _Piece:
    """A piece of a generated run: the recorded steps from `first_step` up to `end_step`, repeated `repeats` times."""

    first_step: int
    end_step: int
    repeats: int


class Recording:
    """The small recording, divided into steps.

    Args:
        logdir: A logdir with one run of scale_program.py.
    """

    def __init__(self, logdir: Path) -> None:
        (run_id,) = run_ids(logdir)
        self.tables: dict[str, pa.Table] = {table.name: arrow_schema(table.name).empty_table() for table in TABLES}
        for entry in read_live_parts(logdir, run_id=run_id):
            part = pq.ParquetFile(logdir / entry.path).read()
            self.tables[entry.table] = pa.concat_tables([self.tables[entry.table], part])
        marks = self.tables["mark"]
        self._event_starts = _ints(marks, "event_index")
        executions = self.tables["execution"]
        order = np.argsort(_ints(executions, "execution_index"))
        self._execution_starts = _ints(executions, "execution_index")[order][
            np.searchsorted(_ints(executions, "event_index")[order], self._event_starts)
        ]
        self._time_starts = _ints(marks, "wall_time_ns")
        made = self.tables["execution_output"]
        health = self.tables["tensor_health"]
        outside = health.filter(pc.equal(health["scope"], "external"))
        ids = np.concatenate([_ints(made, "tensor_id"), _ints(outside, "tensor_id")])
        steps = np.concatenate([self._step_of(made), self._step_of(outside)])
        self._id_ranges = {
            step: (int(ids[steps == step].min()), int(ids[steps == step].max())) for step in range(NUM_STEPS)
        }

    def run(
        self, run_id: str, *, start_ns: int, num_steps: int, is_bad: bool, bad_share: float = 0.0, seed: int
    ) -> dict[str, pa.Table]:
        """Returns the rows of one run, by table."""
        num_bad = max(NUM_STEPS - FIRST_BAD_STEP, round(bad_share * num_steps)) if is_bad else 0
        pieces = [_Piece(-1, WARM_STEPS, 1), _Piece(WARM_STEPS, WARM_STEPS + 1, num_steps - WARM_STEPS - num_bad)]
        if is_bad:
            pieces.append(_Piece(FIRST_BAD_STEP, NUM_STEPS - 1, 1))
            pieces.append(_Piece(NUM_STEPS - 1, NUM_STEPS, num_bad - (NUM_STEPS - 1 - FIRST_BAD_STEP)))
        rng = np.random.default_rng(seed)
        first_ns = int(_ints(self.tables["run"], "wall_time_ns")[0])
        made = {}
        for name, table in self.tables.items():
            rows = self._repeated(table, pieces, rng) if name in _REPEATED else table
            rows = _replaced(rows, "run_id", pa.repeat(run_id, rows.num_rows))
            if "wall_time_ns" in rows.schema.names:
                rows = _retimed(rows, "wall_time_ns", _ints(rows, "wall_time_ns") + (start_ns - first_ns))
            if name == "run":
                last_ns = start_ns + (num_steps + 1) * self._duration(WARM_STEPS)
                rows = _replaced(rows, "end_wall_time_ns", pa.array([last_ns], pa.int64()))
            made[name] = rows
        return made

    def _repeated(self, table: pa.Table, pieces: list[_Piece], rng: np.random.Generator) -> pa.Table:
        """Returns the rows of a table for some pieces, piece after piece."""
        steps = self._step_of(table)
        rows, deltas = [], []
        step = 0
        for piece in pieces:
            chosen = np.flatnonzero((steps >= piece.first_step) & (steps < piece.end_step))
            rows.append(np.tile(chosen, piece.repeats))
            # Repetition r of a piece begins at step `step` + r.
            deltas.append(np.repeat(np.arange(piece.repeats) + step - max(piece.first_step, 0), len(chosen)))
            step += (piece.end_step - max(piece.first_step, 0)) * piece.repeats
        taken, delta = np.concatenate(rows), np.concatenate(deltas)
        made = table.take(pa.array(taken))
        names = made.schema.names
        base = np.maximum(steps[taken], 0)
        # Each healthy step has as many events, executions and IDs as the repeated step. Bad steps follow the healthy
        # steps.
        for name, starts in (("event_index", self._event_starts), ("execution_index", self._execution_starts)):
            if name in names:
                made = _shifted(made, name, self._shift(starts, base, delta))
        if "tensor_id" in names:
            made = _shifted(made, "tensor_id", self._id_shift(_ints(made, "tensor_id"), base, delta))
        if "wall_time_ns" in names:
            made = _retimed(
                made, "wall_time_ns", _ints(made, "wall_time_ns") + self._shift(self._time_starts, base, delta)
            )
        if "step" in names:
            made = _shifted(made, "step", delta)
        if table.schema.metadata[b"tfdbg_arrow.table"] == b"mark":
            made = _replaced(made, "value", pc.cast(made["step"], pa.string()))
        if "step_id" in names:
            made = _with_new_contexts(made, delta, rng)
            made = _with_noise(made, rng)
        return made

    def _shift(self, starts: np.ndarray, step: np.ndarray, delta: np.ndarray) -> np.ndarray:
        """Returns the difference of a counter between a recorded step and the same step in the generated run."""
        length = int(starts[WARM_STEPS + 1] - starts[WARM_STEPS])
        return np.asarray(starts[WARM_STEPS] + (step + delta - WARM_STEPS) * length - starts[step]) * (
            step >= WARM_STEPS
        )

    def _id_shift(self, ids: np.ndarray, step: np.ndarray, delta: np.ndarray) -> np.ndarray:
        """Returns the shift of tensor IDs.

        The IDs of a step shift with the step. Older IDs, such as those of variables, do not.
        """
        first = np.array([self._id_ranges[each][0] for each in range(NUM_STEPS)])
        length = first[WARM_STEPS + 1] - first[WARM_STEPS]
        is_new = (step >= WARM_STEPS) & (ids >= first[step])
        return np.asarray(first[WARM_STEPS] + (step + delta - WARM_STEPS) * length - first[step]) * is_new

    def _step_of(self, table: pa.Table) -> np.ndarray:
        """Returns the step in which each row was recorded, or -1 for rows before the first step."""
        if "event_index" in table.schema.names:
            return np.searchsorted(self._event_starts, _ints(table, "event_index"), side="right") - 1
        return np.searchsorted(self._execution_starts, _ints(table, "execution_index"), side="right") - 1

    def _duration(self, step: int) -> int:
        return int(self._time_starts[step + 1] - self._time_starts[step])


def rows_of(run: dict[str, pa.Table]) -> int:
    """Returns the number of tensors of a run."""
    return int(run["tensor_health"].num_rows)


def generate(logdir: Path, *, rows: int, runs: int, bad_share: float = 0.0, processes: int = 2) -> Expected:
    """Generates a logdir with at least `rows` rows of tensor_health in `runs` runs, and LOGDIR.json beside it.

    Args:
        logdir: A directory that does not exist yet.
        rows: Total number of rows.
        runs: Number of runs.
        bad_share: The share of the steps of a bad run that are bad. At least the last three steps are bad.
        processes: Number of processes that write.

    Raises:
        FileExistsError: The directory exists.
    """
    started = time.perf_counter()
    logdir.mkdir(parents=True)
    (logdir / MARKER_NAME).write_text(marker_text())
    with tempfile.TemporaryDirectory() as scratch:
        small = Path(scratch) / "recording"
        program = Path(__file__).with_name("scale_program.py")
        command = [sys.executable, str(program), str(small), str(NUM_STEPS), str(FIRST_BAD_STEP)]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        recording = Recording(small)
    num_steps = NUM_STEPS
    sample = recording.run("r", start_ns=START_NS, num_steps=num_steps, is_bad=False, seed=0)
    longer = recording.run("r", start_ns=START_NS, num_steps=num_steps + 1, is_bad=False, seed=0)
    a_step = rows_of(longer) - rows_of(sample)
    num_steps += max(0, -(-(rows // runs - rows_of(sample)) // a_step))
    numbers = range(runs)
    bad = [number for number in numbers if number % BAD_EVERY == min(BAD_EVERY - 3, runs - 1)]
    jobs = [(logdir, recording, number, num_steps, number in bad, bad_share) for number in numbers]
    if processes == 1 or runs == 1:
        made = [_write_run(*job) for job in jobs]
    else:
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            made = pool.starmap(_write_run, jobs, chunksize=4)
    sample = recording.run("r", start_ns=START_NS, num_steps=num_steps, is_bad=True, bad_share=bad_share, seed=0)
    found = sample["tensor_health"].filter(sample["tensor_health"]["has_inf_or_nan"])
    first_steps = found.filter(pc.less(found["step"], pc.add(pc.min(found["step"]), NUM_STEPS - FIRST_BAD_STEP)))
    (origin,) = found.filter(pc.equal(found["op_type"], "Log")).sort_by("event_index").slice(0, 1).to_pylist()
    expected = Expected(
        rows=sum(made),
        runs=tuple(_run_id(number) for number in numbers),
        bad_runs=tuple(_run_id(number) for number in bad),
        bad_rows=found.num_rows,
        op_type=origin["op_type"],
        op_name=origin["op_name"],
        code="log_probability = tf.math.log(probability)",
        event_index=origin["event_index"],
        last_event_index=pc.max(first_steps["event_index"]).as_py(),
        seconds=time.perf_counter() - started,
    )
    expected_path(logdir).write_text(json.dumps(asdict(expected)) + "\n")
    return expected


def expected_path(logdir: Path) -> Path:
    """Returns the path of the file that describes a generated logdir."""
    return logdir.with_name(logdir.name + ".json")


def read_expected(logdir: Path) -> Expected:
    """Reads the description of a generated logdir."""
    facts = json.loads(expected_path(logdir).read_text())
    return Expected(**{name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()})


def _run_id(number: int) -> str:
    return make_run_id(START_NS + number * RUN_NS, host_name=f"trainer-{number % 8}", pid=4242 + number)


def _write_run(logdir: Path, recording: Recording, number: int, num_steps: int, is_bad: bool, bad_share: float) -> int:
    start_ns, run_id = START_NS + number * RUN_NS, _run_id(number)
    tables = recording.run(
        run_id, start_ns=start_ns, num_steps=num_steps, is_bad=is_bad, bad_share=bad_share, seed=number
    )
    writer = PartWriter(logdir, run_id)
    writer.start()
    for name, table in tables.items():
        writer.write(name, table.cast(arrow_schema(name)))
    writer.compact("tensor_health")
    return rows_of(tables)


def _with_new_contexts(table: pa.Table, delta: np.ndarray, rng: np.random.Generator) -> pa.Table:
    """Gives each repetition new step and frame IDs, which are random numbers as in TensorFlow."""
    for name in ("step_id", "frame_id"):
        values = table[name].combine_chunks()
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        old = values.fill_null(0).to_numpy()
        distinct, which = np.unique(old, return_inverse=True)
        first = int(delta.min())
        new = rng.integers(_INT64.min, 0, size=(int(delta.max()) - first + 1, len(distinct)))
        given = np.where(old == 0, 0, new[delta - first, which])  # 0 means outside all loops
        table = _replaced(table, name, pa.array(given, pa.int64(), mask=is_null))
    return table


def _with_noise(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    factor = pa.array(np.exp(rng.normal(0, NOISE, table.num_rows)))
    for name in _MAGNITUDES:
        table = _replaced(table, name, pc.multiply(table[name], factor))
    return table


def _ints(table: pa.Table, name: str) -> np.ndarray:
    """Returns a column of integers, with -1 for NULL."""
    return np.asarray(pc.fill_null(table[name], -1).combine_chunks().cast(pa.int64()).to_numpy())


def _shifted(table: pa.Table, name: str, shift: np.ndarray) -> pa.Table:
    return _replaced(table, name, pc.add(table[name], pa.array(shift, pa.int64())))


def _retimed(table: pa.Table, name: str, times_ns: np.ndarray) -> pa.Table:
    table = _replaced(table, name, pa.array(times_ns, pa.int64()))
    if name == "wall_time_ns":
        table = _replaced(table, "wall_time", pa.array(times_ns // 1000, pa.int64()).cast(pa.timestamp("us")))
    return table


def _replaced(table: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), table.schema.field(name), values)


def main() -> None:
    """Generates a logdir as the command line specifies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logdir", type=Path)
    parser.add_argument("--rows", type=int, default=100_000_000, help="total number of rows of tensor_health")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--bad-share", type=float, default=0.0, help="share of the steps of a bad run that are bad")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    made = generate(
        arguments.logdir,
        rows=arguments.rows,
        runs=arguments.runs,
        bad_share=arguments.bad_share,
        processes=arguments.processes,
    )
    print(f"{made.rows:,} rows in {len(made.runs):,} runs, {len(made.bad_runs):,} of them bad: {made.seconds:.0f} s")


if __name__ == "__main__":
    main()
