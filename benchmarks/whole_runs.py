"""Measures the cost of recording a program from its start to its end: processor time and peak memory.

    python benchmarks/whole_runs.py --output benchmarks/results/whole_runs.json
    python benchmarks/whole_runs.py --repeats 3 --programs keras_small session

Each program runs in its own process, alternately without a recording and recorded by `tfdbg-arrow run`. In the test
suite, pytest's plugin records each test. benchmarks/README.md explains the numbers.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import phases
from overhead import environment

SUITE = "pytest_suite"
PROGRAM_NAMES = (
    "one_op",
    "keras_small",
    "keras_transformer",
    "seq2seq",
    "contrastive",
    "graph_convolution",
    "gan",
    "policy_gradient",
    "session",
    "data_pipeline",
    SUITE,
)
"""The names in whole_programs.PROGRAMS, and the suite. To import whole_programs instead would take seconds."""
PHASES = ("import", "enable", "tracing", "steps", "close", "summary", "exit")
TIMEOUT_S = 600
_DIRECTORY = Path(__file__).resolve().parent
_PROGRAMS_FILE = f"{_DIRECTORY}/whole_programs.py"
_PLUGIN = "tfdbg_arrow.pytest_plugin"


@dataclass(frozen=True, kw_only=True)
class Run:
    """The measurement of one process.

    Attributes:
        program: Name of the program.
        is_recorded: Whether it was recorded.
        cpu_s: Processor time of the process and its children, user and system, in seconds.
        peak_mib: Peak resident memory of the process in MiB.
        phase_s: Processor time of each phase in seconds, of all threads of the process. The time of the recording's own
            thread counts for the phase in which the thread runs.
    """

    program: str
    is_recorded: bool
    cpu_s: float
    peak_mib: float
    phase_s: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The medians of the repetitions of a program, and the cost that recording adds.

    Attributes:
        program: Name of the program.
        none_s: Processor time without recording, in seconds.
        recorded_s: Processor time with recording, in seconds.
        ratio: Median of recorded / not recorded, over the repetitions.
        added_mib: Peak memory with recording minus peak memory without recording, in MiB.
        added_phase_s: Processor time of each phase with recording minus the time without recording, in seconds.
    """

    program: str
    none_s: float
    recorded_s: float
    ratio: float
    added_mib: float
    added_phase_s: dict[str, float]


def record(program: str, logdir: str) -> None:
    """Records a program in this process, as `tfdbg-arrow run` or pytest's plugin does, and times the phases."""
    from tfdbg_arrow.writer import active_recording

    phases.time_calls(active_recording, "start", "enable")
    phases.time_calls(active_recording, "end", "close")
    if program == SUITE:
        import pytest

        from tfdbg_arrow import pytest_plugin

        phases.time_calls(pytest_plugin, "_examine", "summary")
        sys.exit(pytest.main(_suite_arguments(logdir)))
    from tfdbg_arrow.cli import run
    from tfdbg_arrow.cli.app import main

    phases.time_calls(run, "_finish", "summary")
    sys.argv[1:] = ["run", "--logdir", logdir, _PROGRAMS_FILE, program]
    main()


def _suite_arguments(directory: str) -> list[str]:
    return [
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        directory,
        "--basetemp",
        f"{directory}/tests",
        f"{_DIRECTORY}/whole_suite.py",
    ]


def _command(program: str, *, is_recorded: bool, directory: str) -> list[str]:
    if is_recorded:
        return [sys.executable, __file__, "--record", program, f"{directory}/logdir"]
    if program == SUITE:
        return [sys.executable, "-m", "pytest", "-p", f"no:{_PLUGIN}", *_suite_arguments(f"{directory}/logdir")]
    return [sys.executable, _PROGRAMS_FILE, program]


def measure(program: str, *, is_recorded: bool) -> Run:
    """Runs a program in a new process.

    Raises:
        RuntimeError: The process failed.
    """
    with tempfile.TemporaryDirectory(prefix="whole_runs_") as directory:
        Path(directory, "logdir").mkdir()
        answer = Path(directory, "answer.json")
        variables = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, phases.ANSWER: str(answer)}
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = subprocess.run(
            _command(program, is_recorded=is_recorded, directory=directory),
            env=variables,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if process.returncode != 0:
            raise RuntimeError(f"{program} ended with {process.returncode}:\n{process.stdout}\n{process.stderr}")
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        run = Run(program=program, is_recorded=is_recorded, cpu_s=cpu_s, **json.loads(answer.read_text()))
        # The interpreter frees the remaining objects after the last phase ended.
        run.phase_s["exit"] = run.phase_s.get("exit", 0.0) + cpu_s - sum(run.phase_s.values())
        return run


def summarise(runs: Sequence[Run], program: str) -> Summary:
    """Returns the summary of a program. The runs alternate between not recorded and recorded."""
    none, recorded = (
        [run for run in runs if run.program == program and run.is_recorded is wanted] for wanted in (False, True)
    )
    none_s, recorded_s = (statistics.median(run.cpu_s for run in group) for group in (none, recorded))

    def added(phase: str) -> float:
        with_, without = (statistics.median(run.phase_s.get(phase, 0.0) for run in group) for group in (recorded, none))
        return with_ - without

    return Summary(
        program=program,
        none_s=none_s,
        recorded_s=recorded_s,
        ratio=statistics.median(ours.cpu_s / base.cpu_s for base, ours in zip(none, recorded, strict=True)),
        added_mib=statistics.median(run.peak_mib for run in recorded) - statistics.median(run.peak_mib for run in none),
        added_phase_s={phase: added(phase) for phase in PHASES},
    )


def report(summaries: Sequence[Summary]) -> str:
    """Returns the summaries as a table."""
    lines = [
        f"{'':<18}{'none':>7}{'ours':>7}{'':>7}{'MiB':>7}   seconds that recording adds to",
        f"{'':<18}{'s':>7}{'s':>7}{'ratio':>7}{'more':>7}  " + "".join(f"{phase:>9}" for phase in PHASES),
    ]
    for summary in summaries:
        cells = "".join(f"{summary.added_phase_s[phase]:>9.2f}" for phase in PHASES)
        lines.append(
            f"{summary.program:<18}{summary.none_s:>7.2f}{summary.recorded_s:>7.2f}{summary.ratio:>7.2f}"
            f"{summary.added_mib:>7.0f}  {cells}"
        )
    ratio = statistics.median(summary.ratio for summary in summaries)
    added_mib = statistics.median(summary.added_mib for summary in summaries)
    lines.append(f"{'median':<32}{ratio:>7.2f}{added_mib:>7.0f}")
    return "\n".join(lines)


def main() -> int:
    """Runs the benchmark."""
    if sys.argv[1:2] == ["--record"]:
        record(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", choices=PROGRAM_NAMES, default=PROGRAM_NAMES)
    parser.add_argument("--repeats", type=int, default=5, help="processes of each kind for each program (default: 5)")
    parser.add_argument("--output", type=Path, help="write all measurements and the summaries to this file, as JSON")
    options = parser.parse_args()
    # pip compiles the modules when it installs a package, so they are compiled here, too.
    compileall.compile_dir(_DIRECTORY.parent / "tfdbg_arrow", quiet=1)
    runs: list[Run] = []
    for _ in range(options.repeats):
        for program in options.programs:
            for is_recorded in (False, True):
                runs.append(measure(program, is_recorded=is_recorded))
                kind = "recorded" if is_recorded else "not recorded"
                print(f"{program} {kind}: {runs[-1].cpu_s:.2f} s", file=sys.stderr, flush=True)
    summaries = [summarise(runs, program) for program in options.programs]
    print(report(summaries))
    if options.output:
        document = {
            "environment": environment(),
            "summary": [asdict(summary) for summary in summaries],
            "runs": [asdict(run) for run in runs],
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
