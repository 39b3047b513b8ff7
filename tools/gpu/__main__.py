"""Checks tfdbg_arrow on the GPU of this machine.

`python -m tools.gpu --only record,identical` selects checks. The checks run one after the other, each in its own
process with a time limit:

* record: programs with a bug, in each way to run them and each mode: does the answer name the op and the line?
* identical: three trainings: are all their numbers bit-identical with and without a recording?
* overhead: four trainings: does a recording cost less than Debugger V2?
* corpus: the programs of tests/culprit: are enough answers right?
* tests: can each op that is added to a graph run on a GPU?

The exit code is 0 if all checks pass, 1 if a check fails, and 2 if TensorFlow sees no GPU or the command line is wrong.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tools.gpu.machine import REPOSITORY, advice, find_machine
from tools.gpu.processes import Check, run_check
from tools.gpu.results import CheckResult, Machine

CHECKS = {
    "record": Check(function="tools.gpu.record.record", limit_s=1200),
    "identical": Check(function="tools.gpu.identical.identical", limit_s=1200),
    "overhead": Check(function="tools.gpu.repository.overhead", limit_s=1800),
    "corpus": Check(function="tools.gpu.repository.corpus", limit_s=3600),
    "tests": Check(function="tools.gpu.repository.tests", limit_s=900),
}
RIGHT, WRONG, NO_GPU = 0, 1, 2


def document(machine: Machine, checks: Sequence[CheckResult]) -> str:
    """Returns the results as JSON."""
    is_passed = all(check.is_passed for check in checks)
    listed = [{"is_passed": check.is_passed, **asdict(check)} for check in checks]
    return json.dumps({"machine": asdict(machine), "is_passed": is_passed, "checks": listed}, indent=1) + "\n"


def table(check: CheckResult) -> Table:
    """Returns the results of a check as a table."""
    title = f"{check.check}: {'passed' if check.is_passed else 'FAILED'} in {check.seconds:.0f} s"
    shown = Table("", "", "", title=title, title_justify="left", show_header=False)
    for result in check.results:
        # Text objects, so that brackets in the text are not read as markup.
        cells = ("ok" if result.is_right else "WRONG", result.item, result.told)
        shown.add_row(*map(Text, cells), style=None if result.is_right else "red")
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the checks and returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_check_names, default=list(CHECKS), metavar="CHECK,…", help=", ".join(CHECKS))
    parser.add_argument("--cpu", action="store_true", help="run small versions of the checks without a GPU")
    parser.add_argument(
        "--output", type=Path, default=REPOSITORY / "build" / "gpu.json", help="JSON file (default: build/gpu.json)"
    )
    options = parser.parse_args(arguments)
    machine = find_machine(is_cpu=options.cpu)
    if machine.device is None and not options.cpu:
        print(advice(machine), file=sys.stderr)
        return NO_GPU
    console = Console()
    where = "without a GPU" if options.cpu else f"{machine.device}, driver {machine.driver}"
    console.print(f"TensorFlow {machine.tensorflow}, {where}", highlight=False)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    checks: list[CheckResult] = []
    for name in options.only:
        log = options.output.with_name(f"{options.output.stem}_{name}.log")
        checks.append(run_check(name, CHECKS[name], is_cpu=options.cpu, log=log))
        console.print(table(checks[-1]))
        # The file is written after each check, so that an interruption loses no result.
        options.output.write_text(document(machine, checks), encoding="utf-8")
    failed = [check.check for check in checks if not check.is_passed]
    console.print(f"failed: {', '.join(failed)}" if failed else "All checks passed.", highlight=False)
    console.print(f"results: {options.output}", highlight=False, soft_wrap=True)
    return WRONG if failed else RIGHT


def _check_names(text: str) -> list[str]:
    """Parses the names of checks, which are separated by commas."""
    names = text.split(",")
    if unknown := [name for name in names if name not in CHECKS]:
        raise argparse.ArgumentTypeError(f"no check is named {unknown[0]!r}; the checks are {', '.join(CHECKS)}")
    return names


if __name__ == "__main__":
    # A program that ends this process must also end its check.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
