"""Measures the cost of the alert rules, `first_nonfinite` and the exports on a training with 250 bad steps.

The script records the programs of alert_programs.py unless the recordings exist already. Each command runs in a
separate process. The script measures the time and the peak resident memory of this process.

    python benchmarks/alert_rules.py [--directory DIR] [--output FILE.json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from overhead import environment

PROGRAM = Path(__file__).with_name("alert_programs.py")
LOGDIRS = {
    "bad, one part": ("bad1", ["keras", "--bad-from", "300"]),
    "bad, two parts": ("bad2", ["spread", "--from", "{directory}/bad1", "--parts", "2"]),
    "healthy": ("good", ["keras"]),
    "nested loops, 6 thousand tensors": ("loops_small", ["loops", "--inner", "2"]),
    "nested loops, 145 thousand tensors": ("loops_large", ["loops", "--inner", "89"]),
}
"""For each logdir: its directory, and the arguments of alert_programs.py that record the logdir."""
COMMANDS = {
    "alerts": ["alerts", "{logdir}"],
    "check": ["check", "{logdir}"],
    "first-nonfinite": ["first-nonfinite", "{logdir}"],
    "report": ["report", "{logdir}", "-o", "{scratch}/report.html"],
    "export --parquet": ["export", "{logdir}", "--parquet", "{scratch}/parquet"],
    "export --csv": ["export", "{logdir}", "--csv", "{scratch}/csv"],
    "export --duckdb": ["export", "{logdir}", "--duckdb", "{scratch}/file.duckdb"],
    "export --sqlite": ["export", "{logdir}", "--sqlite", "{scratch}/file.sqlite"],
}
LOOP_COMMANDS = ("first-nonfinite",)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The result for one command on one logdir.

    Attributes:
        logdir: Name of the logdir.
        command: Name of the command.
        seconds: Time from start to end, including the start of the interpreter.
        peak_mib: Peak resident memory of the command's process.
        exit_code: Exit code of the command.
    """

    logdir: str
    command: str
    seconds: float
    peak_mib: float
    exit_code: int


def record(directory: Path) -> None:
    """Records the logdirs that do not exist yet."""
    for name, arguments in LOGDIRS.values():
        if not (directory / name).exists():
            filled = [each.format(directory=directory) for each in arguments]
            subprocess.run([sys.executable, str(PROGRAM), str(directory / name), *filled], check=True)


def measure(logdir: Path, what: str, command: str) -> Measured:
    """Runs and measures one command."""
    with tempfile.TemporaryDirectory() as scratch:
        arguments = [each.format(logdir=logdir, scratch=scratch) for each in COMMANDS[command]]
        started = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "tfdbg_arrow", *arguments], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - started
    return Measured(
        logdir=what,
        command=command,
        seconds=round(seconds, 2),
        peak_mib=round(usage.ru_maxrss / 1024, 0),
        exit_code=process.returncode,
    )


def main() -> None:
    """Runs the benchmark and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()) / "tfdbg_arrow_alert_rules")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    record(arguments.directory)
    found = []
    for what, (name, _) in LOGDIRS.items():
        for command in LOOP_COMMANDS if name.startswith("loops") else COMMANDS:
            found.append(measure(arguments.directory / name, what, command))
            print(f"{what:30} {command:18} {found[-1].seconds:6.1f} s {found[-1].peak_mib:6.0f} MiB", flush=True)
    if arguments.output is not None:
        facts = {"environment": environment(), "measured": [asdict(each) for each in found]}
        arguments.output.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
