"""Checks that run the benchmark, the corpus and tests of this repository on the GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from tests.culprit.compare import are_good_enough, judge, miss, record, summary
from tests.culprit.corpus import sampled
from tools.gpu.machine import REPOSITORY
from tools.gpu.results import Result

BENCHMARKS = ("mlp", "cnn", "transformer", "eager_loop")
NONE, OURS, DEBUGGER_V2 = "none", "tfdbg_arrow-tensorflow/FULL_HEALTH", "debugger_v2/FULL_HEALTH"
NUM_STEPS, NUM_STEPS_ON_CPU = 60, 12
"""The numbers are small, because Debugger V2 takes up to a second for a step on a GPU."""
CPU_SAMPLE_STEP = 25
"""`--cpu` records only every 25th program of the corpus. `make slow` records all programs on a CPU."""
TESTS = ("tests/writer/test_device_summaries.py", "-k", "gpu")


def overhead(*, is_cpu: bool) -> Iterator[Result]:
    """Measures steps without a recorder, with tfdbg_arrow and with Debugger V2. Yields a result for each program."""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory, "overhead.json")
        command = [sys.executable, "benchmarks/overhead.py", "--repeats", "1", "--output", str(output)]
        command += ["--steps", str(NUM_STEPS_ON_CPU if is_cpu else NUM_STEPS)]
        command += ["--programs", *BENCHMARKS, "--configs", NONE, OURS, DEBUGGER_V2]
        # The exit code says whether a measurement failed. The JSON says which measurement.
        subprocess.run(command, cwd=REPOSITORY, check=False)
        measured = json.loads(output.read_text())
    errors = {run["program"]: run["error"] for run in measured["runs"] if run["error"] is not None}
    step_ms = {(summary["program"], summary["config"]): summary["step_ms"] for summary in measured["summary"]}
    for program in BENCHMARKS:
        if program in errors:
            yield Result(item=program, is_right=False, told=errors[program])
            continue
        none, ours, theirs = (step_ms[program, config] for config in (NONE, OURS, DEBUGGER_V2))
        yield Result(
            item=program,
            # A few steps on a busy CPU are not enough to show a difference.
            is_right=is_cpu or ours < theirs,
            told=f"{none:.1f} ms a step; {ours / none:.2f} times that with tfdbg_arrow, {theirs / none:.1f} times with"
            f" Debugger V2{' (not judged on a CPU)' if is_cpu else ''}",
            facts={"none_ms": none, "tfdbg_arrow_ms": ours, "debugger_v2_ms": theirs},
        )


def corpus(*, is_cpu: bool) -> Iterator[Result]:
    """Records the programs of tests/culprit, and judges the answers as its tests do."""
    names = [program.name for program in sampled(CPU_SAMPLE_STEP if is_cpu else 1)]
    answers = record(names, graphs="executed", health_backend="tensorflow" if is_cpu else "auto")
    verdicts = list(judge(answers, graphs="executed"))
    misses = [line for line in map(miss, verdicts) if line is not None]
    yield Result(
        item=f"{len(verdicts)} of {len(names)} programs",
        is_right=len(verdicts) == len(names) and are_good_enough(verdicts),
        told="\n".join([summary(verdicts), *misses]),
        facts={"misses": misses},
    )


def tests(*, is_cpu: bool) -> Iterator[Result]:
    """Runs the tests of graphs for GPUs. If TensorFlow has no kernels for GPUs, the tests are skipped."""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory, "tests.xml")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junit-xml={output}", *TESTS]
        exit_code = subprocess.run(command, cwd=REPOSITORY, check=False).returncode
        (suite,) = ElementTree.parse(output).getroot().iter("testsuite")
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    yield Result(
        item=" ".join(TESTS),
        is_right=exit_code == 0 and (is_cpu or counts["skipped"] == 0),
        told=", ".join(f"{count} {name}" for name, count in counts.items()),
        facts=counts,
    )
