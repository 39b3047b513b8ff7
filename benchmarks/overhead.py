"""Measures the overhead of recording: the time of a training step with each recorder, compared with no recording.

    python benchmarks/overhead.py --output results.json
    python benchmarks/overhead.py --quick --programs mlp --configs none tfdbg_arrow/FULL_HEALTH debugger_v2/FULL_HEALTH

Every measurement runs in a separate process, and the configurations are interleaved over the repetitions, so that
changes in the machine's speed affect all configurations. benchmarks/README.md explains the numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

PROGRAM_NAMES = ("eager_loop", "mlp", "cnn", "transformer")
COMPILED_NAMES = ("mlp_xla", "cnn_xla", "transformer_xla")
"""Programs whose functions XLA compiles. These programs are measured only on request."""
OUR_MODES = ("NO_TENSOR", "CURT_HEALTH", "CONCISE_HEALTH", "FULL_HEALTH", "FULL_NUMERICS", "SHAPE", "FULL_TENSOR")
DEBUGGER_V2_MODES = ("NO_TENSOR", "CURT_HEALTH", "CONCISE_HEALTH", "FULL_HEALTH", "SHAPE", "FULL_TENSOR")
OURS = "tfdbg_arrow"
OURS_BY_TENSORFLOW = "tfdbg_arrow-tensorflow"
"""tfdbg_arrow with `health_backend="tensorflow"`, which counts with TensorFlow's own ops. Measured only on request."""
OURS_TRACED = "tfdbg_arrow-traced"
"""tfdbg_arrow with `graphs="traced"`, which records every op of a function, unfused."""
OURS_TRACED_BY_TENSORFLOW = "tfdbg_arrow-tensorflow-traced"
"""tfdbg_arrow with `graphs="traced"` and `health_backend="tensorflow"`. Measured only on request."""
EVERY_10TH = f"{OURS}/FULL_HEALTH@10"
"""tfdbg_arrow with the schedule `steps=10`, which leaves out nine of ten steps."""
STRIDE = 10
OURS_KEEPING = "tfdbg_arrow-keeping"
"""tfdbg_arrow with `on_nonfinite="keep"`, which keeps the inputs of ops that make a bad value."""
OURS_WITH_HISTOGRAMS = "tfdbg_arrow-histograms"
"""tfdbg_arrow with `histograms=True`, which counts elements by sign and power of two. Measured only on request."""
DEBUGGER_V2 = "debugger_v2"
NONE = "none"
CHECK_NUMERICS = "check_numerics"
DEFAULT_CONFIGS = (
    NONE,
    *(f"{OURS}/{mode}" for mode in OUR_MODES),
    EVERY_10TH,
    f"{OURS_TRACED}/FULL_HEALTH",
    f"{OURS_KEEPING}/FULL_HEALTH",
    *(f"{DEBUGGER_V2}/{mode}" for mode in DEBUGGER_V2_MODES),
    CHECK_NUMERICS,
)
QUICK_CONFIGS = (NONE, f"{OURS}/FULL_HEALTH", f"{DEBUGGER_V2}/FULL_HEALTH", CHECK_NUMERICS)
ALL_CONFIGS = (
    *DEFAULT_CONFIGS,
    *(f"{family}/{mode}" for family in (OURS_BY_TENSORFLOW, OURS_TRACED_BY_TENSORFLOW) for mode in OUR_MODES),
    *(f"{OURS_WITH_HISTOGRAMS}/{mode}" for mode in ("FULL_HEALTH", "FULL_NUMERICS", "FULL_TENSOR")),
)

NUM_STEPS = {"eager_loop": 500, "mlp": 400, "cnn": 1000, "transformer": 150}
NUM_STEPS.update({name: NUM_STEPS[name.removesuffix("_xla")] for name in COMPILED_NAMES})
"""Steps of a process, with the warm-up. The steps must take several seconds, because the sink first writes graphs."""
NUM_WARM_UP = 5
"""Number of first steps that the median excludes, because of tracing, caches and allocation."""
MAX_FULL_TENSOR_STEPS = 10
"""FULL_TENSOR keeps every element, up to 70 MB a step, so it runs for fewer steps."""
TIMEOUT_S = 900


@dataclass(frozen=True, kw_only=True)
class Run:
    """One measurement in a separate process.

    Attributes:
        program: Name of the program.
        config: Name of the configuration.
        repeat: Number of the repetition, from 0.
        step_s: Time of each step in seconds, including the warm-up. Empty if the process failed.
        close_s: Time in seconds to end the recording, until everything is on disk.
        num_bytes: Size of the recording on disk.
        num_tensor_bytes: The part of num_bytes that grows with the tensors: the tables tensor_health and tensor_value,
            or Debugger V2's files of executions and traces. None if the configuration records no tensors.
        num_tensors: Number of recorded tensors. None if the configuration records no tensors.
        num_rows: Number of rows of all tables, or of records of all Debugger V2 files. None if num_tensors is None.
        error: The last lines of output of a process that failed, otherwise None.
    """

    program: str
    config: str
    repeat: int
    step_s: list[float] = field(default_factory=list)
    close_s: float = 0.0
    num_bytes: int = 0
    num_tensor_bytes: int | None = None
    num_tensors: int | None = None
    num_rows: int | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The summary of all repetitions of a program in a configuration. A value that is not available is None.

    Attributes:
        program: Name of the program.
        config: Name of the configuration.
        step_ms: Median time of a step after the warm-up, in milliseconds: the median of the medians of all repetitions.
            With a schedule, the mean over the schedule's cycle takes the place of each repetition's median.
        ratio_to_none: step_ms divided by step_ms of the same program without recording.
        share_of_debugger_v2: (ours - none) / (theirs - none), with Debugger V2 in the same mode. Debugger V2 lacks
            FULL_NUMERICS, so this mode is compared with FULL_HEALTH of Debugger V2.
        share_of_check_numerics: The same share, with check_numerics in place of Debugger V2.
        first_step_ratio: Time of the first step, which includes tracing, divided by the same time without recording.
        close_s: Median time to end the recording.
        num_bytes: Median bytes on disk.
        num_tensor_bytes: Median of the bytes that grow with the tensors.
        num_tensors: Median number of recorded tensors.
        num_rows: Median number of rows or records.
    """

    program: str
    config: str
    step_ms: float | None
    ratio_to_none: float | None
    share_of_debugger_v2: float | None
    share_of_check_numerics: float | None
    first_step_ratio: float | None
    close_s: float | None
    num_bytes: float | None
    num_tensor_bytes: float | None
    num_tensors: float | None
    num_rows: float | None


# The measured process


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The size of a recording. The attributes are the same as those of Run."""

    num_tensors: int | None = None
    num_tensor_bytes: int | None = None
    num_rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A recorder that is switched on.

    Attributes:
        close: Ends the recording and returns once everything is on disk.
        count: Returns the size of the recording.
    """

    close: Callable[[], None]
    count: Callable[[], Counts]


def start_recording(config: str, logdir: Path) -> Recording:
    """Switches on the recorder of a configuration, with full history.

    Args:
        config: One of ALL_CONFIGS.
        logdir: An empty directory to record into.
    """
    family, _, mode = config.partition("/")
    if family == NONE:
        return Recording(close=lambda: None, count=Counts)

    import tensorflow as tf

    if family == CHECK_NUMERICS:
        tf.debugging.enable_check_numerics()
        return Recording(close=lambda: None, count=Counts)
    if family == DEBUGGER_V2:
        writer = tf.debugging.experimental.enable_dump_debug_info(
            str(logdir), tensor_debug_mode=mode, circular_buffer_size=-1
        )

        def flush() -> None:
            writer.FlushNonExecutionFiles()
            writer.FlushExecutionFiles()

        return Recording(close=flush, count=lambda: count_debugger_v2(logdir))

    import tfdbg_arrow

    backend = "tensorflow" if family in (OURS_BY_TENSORFLOW, OURS_TRACED_BY_TENSORFLOW) else "native"
    mode, _, stride = mode.partition("@")
    steps = int(stride) if stride else None
    tfdbg_arrow.enable(
        str(logdir),
        tensor_debug_mode=mode,
        circular_buffer_size=-1,
        health_backend=backend,
        steps=steps,
        graphs="traced" if family in (OURS_TRACED, OURS_TRACED_BY_TENSORFLOW) else "auto",
        on_nonfinite="keep" if family == OURS_KEEPING else "record",
        histograms=family == OURS_WITH_HISTOGRAMS,
    )
    if steps is not None:
        from programs import STEP_HOOKS

        tfdbg_arrow.mark(step=0)
        STEP_HOOKS.append(lambda step: tfdbg_arrow.mark(step=step))
    return Recording(close=tfdbg_arrow.disable, count=lambda: count_ours(logdir))


def count_ours(logdir: Path) -> Counts:
    """Counts the content of a tfdbg_arrow logdir."""
    from tfdbg_arrow.storage.manifest import read_live_parts, run_ids

    parts = [part for run_id in run_ids(logdir) for part in read_live_parts(logdir, run_id=run_id)]
    return Counts(
        num_tensors=sum(part.rows for part in parts if part.table == "tensor_health"),
        num_tensor_bytes=sum(part.bytes for part in parts if part.table in ("tensor_health", "tensor_value")),
        num_rows=sum(part.rows for part in parts),
    )


def count_debugger_v2(logdir: Path) -> Counts:
    """Counts the content of a Debugger V2 dump."""
    from tensorflow.core.protobuf import debug_event_pb2

    num_tensors = num_tensor_bytes = num_records = 0
    for path in logdir.iterdir():
        is_trace, is_execution = (path.name.endswith(end) for end in (".graph_execution_traces", ".execution"))
        num_tensor_bytes += path.stat().st_size if is_trace or is_execution else 0
        for record in _records(path):
            num_records += 1
            if is_trace:
                num_tensors += 1
            elif is_execution:
                num_tensors += len(debug_event_pb2.DebugEvent.FromString(record).execution.output_tensor_ids)
    return Counts(num_tensors=num_tensors, num_tensor_bytes=num_tensor_bytes, num_rows=num_records)


def _records(path: Path) -> Iterator[bytes]:
    """Yields the records of a TFRecord file, each stored as a length, its checksum, the bytes, and their checksum."""
    with path.open("rb") as file:
        while len(header := file.read(12)) == 12:
            (length,) = struct.unpack("<Q", header[:8])
            yield file.read(length)
            file.read(4)


def measure(program: str, *, config: str, num_steps: int, logdir: Path) -> dict[str, object]:
    """Runs a program in this process and returns the measured fields of Run."""
    from programs import PROGRAMS

    recording = start_recording(config, logdir)
    step_s = PROGRAMS[program](num_steps)
    start = time.perf_counter()
    recording.close()
    close_s = time.perf_counter() - start
    counts = recording.count()
    num_bytes = sum(path.stat().st_size for path in logdir.rglob("*") if path.is_file())
    return {
        "step_s": step_s,
        "close_s": close_s,
        "num_bytes": num_bytes,
        **asdict(counts),
    }


# # The process that starts the measured processes


def run_in_process(program: str, *, config: str, repeat: int, num_steps: int) -> Run:
    """Makes one measurement, in a new process and a new directory."""
    if config.endswith("/FULL_TENSOR"):
        num_steps = min(num_steps, MAX_FULL_TENSOR_STEPS)
    with tempfile.TemporaryDirectory(prefix="overhead_") as directory:
        logdir, answer = Path(directory, "logdir"), Path(directory, "answer.json")
        logdir.mkdir()
        command = [sys.executable, __file__, "--measure", program, config, str(num_steps), str(logdir), str(answer)]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
        try:
            process = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return Run(program=program, config=config, repeat=repeat, error=f"took more than {TIMEOUT_S} s")
        if not answer.exists():
            lines = process.stderr.strip().splitlines()[-5:] or [f"exit code {process.returncode}, no message"]
            return Run(program=program, config=config, repeat=repeat, error="\n".join(lines))
        return Run(program=program, config=config, repeat=repeat, **json.loads(answer.read_text()))


def summarise(runs: list[Run]) -> list[Summary]:
    """Returns one summary for each program and configuration, in the order of first appearance."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        group = groups.setdefault((run.program, run.config), [])
        if run.error is None:
            group.append(run)
    step_ms = {key: _median(1e3 * _typical_step(run) for run in group) for key, group in groups.items()}
    first_s = {key: _median(run.step_s[0] for run in group) for key, group in groups.items()}

    def share(program: str, config: str, peer: str) -> float | None:
        none, ours, theirs = (step_ms.get((program, name)) for name in (NONE, config, peer))
        if none is None or ours is None or theirs is None or theirs <= none or not config.startswith(OURS):
            return None
        return (ours - none) / (theirs - none)

    return [
        Summary(
            program=program,
            config=config,
            step_ms=step_ms[program, config],
            ratio_to_none=_ratio(step_ms[program, config], step_ms.get((program, NONE))),
            share_of_debugger_v2=share(program, config, _peer(config)),
            share_of_check_numerics=share(program, config, CHECK_NUMERICS),
            first_step_ratio=_ratio(first_s[program, config], first_s.get((program, NONE))),
            close_s=_median(run.close_s for run in group),
            num_bytes=_median(run.num_bytes for run in group),
            num_tensor_bytes=_median(run.num_tensor_bytes for run in group if run.num_tensor_bytes is not None),
            num_tensors=_median(run.num_tensors for run in group if run.num_tensors is not None),
            num_rows=_median(run.num_rows for run in group if run.num_rows is not None),
        )
        for (program, config), group in groups.items()
    ]


def _peer(config: str) -> str:
    """Returns the configuration of Debugger V2 that is most similar to a configuration."""
    mode = config.partition("/")[2].partition("@")[0]
    return f"{DEBUGGER_V2}/{'FULL_HEALTH' if mode == 'FULL_NUMERICS' else mode}"


def _typical_step(run: Run) -> float:
    """Returns the median step. With a schedule, returns the mean of the medians at each position of its cycle."""
    warm = run.step_s[NUM_WARM_UP:] or run.step_s[-1:]
    if run.config == EVERY_10TH and len(warm) >= STRIDE:
        return statistics.fmean(statistics.median(warm[place::STRIDE]) for place in range(STRIDE))
    return statistics.median(warm)


def _median(values: Iterator[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def report(summaries: list[Summary]) -> str:
    """Returns the summaries as text, one table for each program."""
    columns = ("config", "step ms", "/ none", "/ V2", "/ check", "1st step", "close s", "tensors", "bytes", "B/tensor")
    lines: list[str] = []
    for program in dict.fromkeys(summary.program for summary in summaries):
        lines += ["", program, ("{:<32}" + "{:>10}" * 9).format(*columns)]
        for summary in (summary for summary in summaries if summary.program == program):
            per_tensor = _ratio(summary.num_tensor_bytes, summary.num_tensors)
            cells = (
                _cell(summary.step_ms, ".2f"),
                _cell(summary.ratio_to_none, ".2f"),
                _cell(summary.share_of_debugger_v2, ".3f"),
                _cell(summary.share_of_check_numerics, ".3f"),
                _cell(summary.first_step_ratio, ".2f"),
                _cell(summary.close_s, ".2f"),
                _cell(summary.num_tensors, ".0f"),
                _cell(summary.num_bytes or None, ".0f"),
                _cell(per_tensor, ".1f"),
            )
            lines.append(("{:<32}" + "{:>10}" * 9).format(summary.config, *cells))
    lines += [
        "",
        "/ none: step divided by that without recording.  / V2, / check: (ours - none) / (theirs - none), where theirs",
        "is Debugger V2 in the same mode (for FULL_NUMERICS: FULL_HEALTH) or check_numerics.  1st step: with tracing.",
    ]
    return "\n".join(lines)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def environment() -> dict[str, object]:
    """Returns the machine and the versions on which the numbers depend."""
    import importlib.metadata

    versions = {}
    for distribution in ("tfdbg-arrow", "tensorflow", "tensorflow-cpu", "keras", "numpy", "pyarrow"):
        try:
            versions[distribution] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "platform": platform.platform(),
        "processor": _processor(),
        "num_cpus": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _positive(text: str) -> int:
    """Parses an option that must be a positive number."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def main() -> int:
    """Runs the benchmark. Returns 0, or 1 if a measurement failed."""
    if sys.argv[1:2] == ["--measure"]:
        program, config, num_steps, logdir, answer = sys.argv[2:]
        Path(answer).write_text(
            json.dumps(measure(program, config=config, num_steps=int(num_steps), logdir=Path(logdir)))
        )
        return 0

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--programs",
        nargs="+",
        choices=PROGRAM_NAMES + COMPILED_NAMES,
        default=PROGRAM_NAMES,
        metavar="PROGRAM",
        help=", ".join(PROGRAM_NAMES + COMPILED_NAMES),
    )
    parser.add_argument("--configs", nargs="+", choices=ALL_CONFIGS, metavar="CONFIG", help=", ".join(ALL_CONFIGS))
    parser.add_argument("--repeats", type=_positive, help="processes for each program and configuration (default: 5)")
    parser.add_argument(
        "--steps", type=_positive, help="steps in each process, including the warm-up (default: several seconds)"
    )
    parser.add_argument("--quick", action="store_true", help="FULL_HEALTH only, 2 repeats of 25 steps")
    parser.add_argument("--output", type=Path, help="write all measurements and the summary to this file, as JSON")
    arguments = parser.parse_args()
    configs = arguments.configs or (QUICK_CONFIGS if arguments.quick else DEFAULT_CONFIGS)
    num_repeats = arguments.repeats or (2 if arguments.quick else 5)
    num_steps = {name: arguments.steps or (25 if arguments.quick else NUM_STEPS[name]) for name in arguments.programs}

    runs: list[Run] = []
    total = num_repeats * len(arguments.programs) * len(configs)
    for repeat in range(num_repeats):
        for program in arguments.programs:
            # # Rotate the order in each repetition, so that the first configuration is not always the same.
            turn = repeat % len(configs)
            for config in (*configs[turn:], *configs[:turn]):
                run = run_in_process(program, config=config, repeat=repeat, num_steps=num_steps[program])
                runs.append(run)
                outcome = f"failed: {run.error}" if run.error else f"{1e3 * _typical_step(run):8.2f} ms a step"
                print(f"[{len(runs)}/{total}] {program} {config}: {outcome}", file=sys.stderr, flush=True)

    order = [(program, config) for program in arguments.programs for config in configs]
    summaries = sorted(summarise(runs), key=lambda summary: order.index((summary.program, summary.config)))
    print(report(summaries))
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "environment": environment(),
            "settings": {"num_repeats": num_repeats, "num_steps": num_steps, "num_warm_up": NUM_WARM_UP},
            "summary": [asdict(summary) for summary in summaries],
            "runs": [asdict(run) for run in runs],
        }
        arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if any(run.error for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
