"""Tests the package with each supported version of Python and TensorFlow, and prints a table of the results.

Usage: `python tools/matrix.py` tests all combinations for which a Python is installed. `--python 3.12` and
`--tensorflow 2.18` choose some combinations. `--lowest` chooses the combination with the lowest versions. `--write`
puts the results into docs/versions.md, next to the results of other combinations.

Each combination gets a virtual environment in .venv/matrix. Like a fresh installation, this environment contains the
package, the chosen TensorFlow, and the newest versions of all other packages that pip finds. Then the demo, the
programs with known bugs (`tests/culprit`) and tests of recording run in the environment.

The combination with the lowest versions has the oldest Python and TensorFlow. For each other package that the package
and its viewer need, the combination has the lowest version that pyproject.toml allows. In this combination, the tests
of the query layer, the commands and the viewer run too.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
DOCUMENT = REPOSITORY / "docs" / "versions.md"
COMBINATIONS = {
    "2.18": ("3.11", "3.12"),
    "2.19": ("3.11", "3.12"),
    "2.20": ("3.11", "3.12", "3.13"),
    "2.21": ("3.11", "3.12", "3.13"),
}
"""For each supported version of TensorFlow, the versions of Python from 3.11 on for which wheels exist."""
TESTS = (
    "tests/culprit",
    "tests/writer/test_executed_graphs.py",
    "tests/writer/test_layers_and_roles.py",
    "tests/writer/test_recording_lifecycle.py",
    "tests/writer/test_tf1_sessions.py",
)
LOWEST_TESTS = (*TESTS, "tests/cli", "tests/query")
"""The tests that run with the lowest versions, in addition to the viewer's tests that need no browser."""
TEST_REQUIREMENTS = ("hypothesis", "pandas", "polars", "pytest", "pytest-xdist", "scikit-learn", "tensorboard")
"""The packages that the demo and the tests also need, in the newest versions."""
EXTRA_REQUIREMENTS = {"2.18": ("protobuf<7",), "2.19": ("protobuf<7",), "2.20": ("protobuf<7",)}
"""Requirements that versions of TensorFlow do not declare: their `tf.io.write_graph` fails with protobuf 7."""
_ROW = re.compile(r"^\| (\d+\.\d+)\.\S+ \| (\d+\.\d+)\.\S+ \| (newest|lowest) \|")
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error)")


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one combination: its versions, the date, the demo's result, and the counts of the tests."""

    tensorflow: str
    python: str
    others: str
    numpy: str
    pyarrow: str
    date: str
    demo: str
    tests: str
    is_good: bool

    @property
    def row(self) -> str:
        """The row of the table."""
        versions = (self.tensorflow, self.python, self.others, self.numpy, self.pyarrow)
        cells = (*versions, self.date, self.demo, self.tests)
        return f"| {' | '.join(cells)} |"


def main() -> None:
    """Tests the combinations that the command line asks for. Exits with 1 if a combination fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="a version such as 3.12; can be repeated")
    parser.add_argument("--tensorflow", action="append", choices=COMBINATIONS, help="can be repeated")
    parser.add_argument("--lowest", action="store_true", help="test only the lowest versions")
    parser.add_argument("--write", action="store_true", help="put the results into docs/versions.md")
    options = parser.parse_args()
    results = []
    combinations = [(tensorflow, python, False) for tensorflow, pythons in COMBINATIONS.items() for python in pythons]
    oldest, version, _ = combinations[0]
    combinations.append((oldest, version, True))
    for tensorflow, version, is_lowest in combinations:
        if tensorflow not in (options.tensorflow or COMBINATIONS):
            continue
        if options.python and version not in options.python:
            continue
        if options.lowest and not is_lowest:
            continue
        python = find_python(version)
        if python is None:
            print(f"Python {version} is not installed: not tested with TensorFlow {tensorflow}.", file=sys.stderr)
            continue
        result = check(python, version, tensorflow, is_lowest=is_lowest)
        print(result.row, flush=True)
        results.append(result)
        if options.write:
            write(result)
    if not results:
        sys.exit("No combination was tested.")
    sys.exit(not all(result.is_good for result in results))


def find_python(version: str) -> Path | None:
    """Returns the newest interpreter of a version, from the PATH or from pyenv, or None if there is no interpreter."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [*sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True), shutil.which(f"python{version}")]
    return next((Path(candidate) for candidate in candidates if candidate), None)


def check(python: Path, version: str, tensorflow: str, *, is_lowest: bool) -> Result:
    """Installs one combination and runs the demo and the tests in it."""
    others = "lowest" if is_lowest else "newest"
    environment = REPOSITORY / ".venv" / "matrix" / f"python{version}-tensorflow{tensorflow}-{others}"
    command = str(environment / "bin" / "python")
    run([str(python), "-m", "venv", "--clear", str(environment)])
    constraints = environment / "constraints.txt"
    constraints.write_text("\n".join(lowest_versions()) if is_lowest else "")
    pip = [command, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--constraint", str(constraints)]
    run([*pip, "--requirement", "requirements/build.txt", *TEST_REQUIREMENTS])
    # The tests import the package from this directory, so it is installed as editable. Each Python has its own build.
    build = f"--config-settings=build-dir=build/matrix-{version}"
    extra = EXTRA_REQUIREMENTS.get(tensorflow, ())
    run([*pip, "--no-build-isolation", "--editable", ".[viewer]", f"tensorflow-cpu=={tensorflow}.*", *extra, build])
    run([*pip, "--no-deps", f"tf_keras=={tensorflow}.*"])  # with dependencies, pip would install `tensorflow`
    listing = [command, "-c", "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"]
    names = ("tensorflow_cpu", "numpy", "pyarrow")
    versions = run([*listing, *names]).stdout.split()
    with tempfile.TemporaryDirectory() as logdir:
        demo = run([command, "examples/demo.py", "--logdir", f"{logdir}/demo"], check=False)
    start = time.monotonic()
    tests = run(
        [command, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-q", "-p", "no:cacheprovider",
         "-m", "not slow and not exhaustive", *(lowest_tests() if is_lowest else TESTS)],
        check=False,
    )  # fmt: skip
    log = REPOSITORY / "build" / f"matrix-{environment.name}.log"
    log.write_text(demo.stdout + demo.stderr + tests.stdout + tests.stderr)
    last_line = tests.stdout.splitlines()[-1] if tests.stdout else ""
    counts = ", ".join(" ".join(match) for match in _COUNT.findall(last_line))
    minutes = (time.monotonic() - start) / 60
    print(f"{environment.name}: {minutes:.0f} minutes of tests, log in {log}", file=sys.stderr)
    return Result(
        others=others,
        tensorflow=versions[0],
        python=run([command, "-c", "import platform; print(platform.python_version())"]).stdout.strip(),
        numpy=versions[1],
        pyarrow=versions[2],
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        demo="failed" if demo.returncode else "passed",
        tests=counts or "did not run",
        is_good=not demo.returncode and not tests.returncode,
    )


def lowest_versions() -> list[str]:
    """Returns the lower bounds in pyproject.toml of the requirements of the package and its viewer, for pip."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"]["viewer"]]
    return [requirement.replace(">=", "==") for requirement in requirements]


def lowest_tests() -> list[str]:
    """Returns the tests that run with the lowest versions."""
    viewer = sorted(REPOSITORY.glob("tests/viewer/test_*.py"))
    return [*LOWEST_TESTS, *(str(path) for path in viewer if "playwright" not in path.read_text())]


def run(command: list[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs a command in the repository, and returns its output as text."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if check and done.returncode:
        sys.exit(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def write(result: Result) -> None:
    """Puts a result into the table of docs/versions.md, in place of the last result of the same combination."""
    before, _, table = DOCUMENT.read_text().partition("<!-- The table is written by tools/matrix.py. -->\n")
    lines = table.splitlines()
    rows = {match.groups(): line for line in lines if (match := _ROW.match(line))}
    match = _ROW.match(result.row)
    assert match is not None
    rows[match.groups()] = result.row
    ordered = [rows[key] for key in sorted(rows)]
    header = [line for line in lines if line.startswith("|") and not _ROW.match(line)]
    text = "\n".join((*header, *ordered))
    DOCUMENT.write_text(f"{before}<!-- The table is written by tools/matrix.py. -->\n{text}\n")


if __name__ == "__main__":
    print(f"{platform.system()} {platform.machine()}", file=sys.stderr)
    main()
