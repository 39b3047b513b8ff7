"""Builds the native core with GCC's sanitizers and runs tests. Fails if a sanitizer reports an error.

Usage: `python tools/sanitize.py` runs both kinds, and `python tools/sanitize.py address` runs only one kind:

* `address`: AddressSanitizer and UndefinedBehaviorSanitizer;
* `thread`: ThreadSanitizer.

`python tools/sanitize.py thread tests/live_stop` runs the given tests instead of the usual tests. Each kind gets a
virtual environment in .venv, which uses the packages of the environment that runs this script. Only the core is
instrumented. Python and TensorFlow are not instrumented, so only their accesses in `memcpy` and similar functions are
checked.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
TESTS = (
    "tests/live_stop",
    "tests/writer/test_call_join.py",
    "tests/writer/test_changed_arguments.py",
    "tests/writer/test_ending.py",
    "tests/writer/test_executed_graphs.py",
    "tests/writer/test_full_spool.py",
    "tests/writer/test_graph_rows.py",
    "tests/writer/test_health.py",
    "tests/writer/test_histograms.py",
    "tests/writer/test_inside_xla.py",
    "tests/writer/test_keep_inputs.py",
    "tests/writer/test_native_spool.py",
    "tests/writer/test_pipelines.py",
    "tests/writer/test_recording_lifecycle.py",
    "tests/writer/test_recording_strings.py",
    "tests/writer/test_repeated_arguments.py",
    "tests/writer/test_repeated_recordings.py",
    "tests/writer/test_tf1_sessions.py",
)
"""The tests that run most of the code of the core."""


@dataclass(frozen=True, kw_only=True)
class Sanitizer:
    """A build of the core with sanitizers.

    Attributes:
        flags: The value of `-fsanitize`.
        library: The library that must be loaded before all others.
        options: Environment variables.
        prefix: A command that starts the tests. Empty if no command is needed.
    """

    flags: str
    library: str
    options: dict[str, str]
    prefix: tuple[str, ...] = ()


SANITIZERS = {
    "address": Sanitizer(
        flags="address,undefined",
        library="libasan.so",
        # Python does not free all memory when it exits, so every run would report leaks.
        options={"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"},
    ),
    "thread": Sanitizer(
        flags="thread",
        library="libtsan.so",
        # The deadlock detector ends a process that holds more than 64 locks. DuckDB holds more while it forks.
        options={
            "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:report_signal_unsafe=0:detect_deadlocks=0:"
            f"suppressions={Path(__file__).with_name('thread_sanitizer.supp')}"
        },
        # If addresses have many random bits, other memory may occupy the addresses that ThreadSanitizer needs.
        prefix=("setarch", "--addr-no-randomize"),
    ),
}


def main() -> None:
    """Runs the tests under the sanitizers that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", choices=SANITIZERS, help="default: both")
    parser.add_argument("tests", nargs="*", default=TESTS, help="files or directories of tests")
    options = parser.parse_args()
    kinds = [options.kind] if options.kind else list(SANITIZERS)
    failed = [kind for kind in kinds if not run(kind, options.tests)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def run(kind: str, tests: Sequence[str]) -> bool:
    """Builds the core with a sanitizer and runs tests. Returns whether all tests passed without a report."""
    sanitizer = SANITIZERS[kind]
    python = build(kind, sanitizer)
    reports = REPOSITORY / "build" / f"sanitize-{kind}" / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    libraries = [compiler_library(name) for name in (sanitizer.library, "libstdc++.so")]
    log = f"log_path={reports}/report"
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
        **{name: f"{options}:{log}" for name, options in sanitizer.options.items()},
        "LD_PRELOAD": ":".join(libraries),
    }
    selected = ["-p", "no:cacheprovider", "-m", "not slow and not exhaustive", *tests]
    command = [*sanitizer.prefix, python, "-m", "pytest", *selected]
    passed = subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode == 0
    # Programs that tests start write their reports to the same directory.
    found = sorted(reports.iterdir())
    for path in found:
        print(f"\n{path}:\n{path.read_text(errors='replace')}")
    print(f"{kind}: {'passed' if passed else 'failed'}, {len(found)} reports")
    return passed and not found


def build(kind: str, sanitizer: Sanitizer) -> str:
    """Installs the package with an instrumented core into its own environment. Returns the path of its Python."""
    environment = REPOSITORY / ".venv" / f"sanitize-{kind}"
    python = str(environment / "bin" / "python")
    if not Path(python).exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "packages_of_the_other_environment.pth").write_text(sysconfig.get_path("purelib") + "\n")
    settings = (
        f"build-dir=build/sanitize-{kind}/core",
        "cmake.build-type=RelWithDebInfo",  # Release would remove the names of functions from reports
        f"cmake.define.TFDBG_ARROW_SANITIZE={sanitizer.flags}",
    )
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    options = ["--no-build-isolation", "--no-deps", "--editable", ".", *(f"-C{each}" for each in settings)]
    subprocess.run([*pip, *options], cwd=REPOSITORY, check=True)
    return python


def compiler_library(name: str) -> str:
    """Returns the path of a library of GCC."""
    compiler = os.environ.get("CXX", "g++")
    found = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = found.stdout.strip()
    if not Path(path).is_absolute():
        sys.exit(f"{compiler} has no {name}. Install GCC with its sanitizers, and set CXX to it.")
    return path


if __name__ == "__main__":
    main()
