"""Records healthy programs, and prints a line of JSON with what the answers say about each.

`python -m tests.healthy.record [--deterministic] [NAME …]` records the named programs, or all of them, in this process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
from click.testing import CliRunner

import tfdbg_arrow
from tests.healthy.programs import PROGRAMS, make_deterministic
from tfdbg_arrow.cli import app

COMMANDS = ("first-nonfinite", "check", "alerts", "why", "coverage", "doctor")


def answers(logdir: Path) -> dict[str, Any]:
    """Returns the exit code of each command that does not exit with 0, and the errors and warnings of `alerts`."""
    results = {command: CliRunner().invoke(app, [command, str(logdir), "--json"]) for command in COMMANDS}
    warnings = [
        f"{each['severity']} {each['kind']}: {each['first']['op_name']}: {each['first']['message']}"
        for each in json.loads(results["alerts"].stdout)["findings"]
        if each["severity"] != "info"
    ]
    codes = {command: result.stdout[:2000] for command, result in results.items() if result.exit_code != 0}
    return {"exit_codes": codes, "warnings": warnings}


def main() -> None:
    """Prints the answers for each program named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--deterministic", action="store_true")
    options = parser.parse_args()
    if options.deterministic:
        make_deterministic()
    for name in options.names or PROGRAMS:
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        with tempfile.TemporaryDirectory() as directory:
            logdir = Path(directory, "logdir")
            with tfdbg_arrow.capture(logdir, "FULL_NUMERICS"):
                PROGRAMS[name]()
            print(json.dumps({"name": name, **answers(logdir)}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
