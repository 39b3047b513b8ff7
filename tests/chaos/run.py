"""Random trainings with random disturbances, each compared with the same training without a recording.

`python -m tests.chaos.run --minutes 60` prints its seed, each failure, and the counts. `--seed S --case N` runs one
case again. A case consists of a training of `tests.chaos.program`, settings of the recording, and disturbances at some
steps of the training.

The disturbances are signals (also several at once, or while a recording starts), errors, exits, kills, forks and
threads. The disk can be full or write only a part of the data, and the wall clock can jump. Recordings end and start
again. All the time, a reader asks questions about the logdir.

The recorded training must print the same numbers, end with the same status and the same error, and not hang. The logdir
must be readable during the recording and afterwards. The logdir must be intact, and hold the rows of all steps or say
what is missing.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tfdbg_arrow
from tests.faults.shim import compile_shim
from tfdbg_arrow.errors import TfdbgArrowError
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.storage.layout import MARKER_NAME

REPOSITORY = Path(__file__).resolve().parents[2]
TRAININGS = ("eager", "function", "keras_model", "pipeline")
MODES = ("CURT_HEALTH", "CONCISE_HEALTH", "FULL_HEALTH", "SHAPE", "FULL_NUMERICS", "FULL_TENSOR", "NO_TENSOR")
HARMLESS = (
    "fork",
    "thread",
    "timer",
    "raise_in_handler",
    "collect",
    "restart",
    "disable_in_handler",
    "interrupt_enable",
    "clock",
)
DISKS = ("full_disk", "disk_that_stays_full", "short_writes")
ENDS = ("interrupt", "interrupt_often", "terminate", "kill", "abort", "fail", "exit", "exit_at_once")
KILLED = frozenset({"terminate", "kill", "abort", "exit_at_once"})
"""Ends of a process after which no code of the recording can run."""
FORWARD, BACK = (3, 3_600, 31_536_000), (-5, -86_400)
"""Changes of the wall clock in seconds. If the clock is set back, the thread of TensorFlow that tunes pipelines sleeps
until the clock has caught up. The end of a pipeline waits for this thread."""
TIMEOUT_S = 180
MAX_RATIO, MAX_MORE_S = 10.0, 60.0
"""A recorded training may take MAX_RATIO times as long as the unrecorded training, plus MAX_MORE_S seconds."""

Case = dict[str, Any]


def make_case(seed: int, number: int) -> Case:
    """Returns a case. The same seed and number give the same case."""
    rng = random.Random(f"{seed}-{number}")
    training = rng.choice(TRAININGS)
    steps = rng.randint(4, 40)
    disturbances: dict[str, list[list[Any]]] = {}
    for _ in range(rng.randint(0, 4)):
        name = rng.choice(HARMLESS if rng.random() < 0.8 else DISKS)
        arguments: dict[str, list[Any]] = {
            "timer": [rng.random() < 0.7],
            "interrupt_enable": [rng.uniform(0.001, 0.2)],
            "clock": [rng.choice(FORWARD if training == "pipeline" else [*FORWARD, *BACK])],
            "full_disk": [rng.randint(0, 30), rng.randint(1, 200)],
            "disk_that_stays_full": [rng.randint(0, 60)],
            "short_writes": [rng.randint(0, 30)],
        }
        disturbances.setdefault(str(rng.randrange(steps)), []).append([name, *arguments.get(name, [])])
    if rng.random() < 0.6:
        end = rng.choice(ENDS)
        pauses_s = [rng.uniform(0.0, 0.3) for _ in range(rng.randint(1, 4))]
        arguments = {"interrupt_often": [[round(pause, 3) for pause in pauses_s]]}
        disturbances.setdefault(str(rng.randrange(1, steps)), []).append([end, *arguments.get(end, [])])
    settings: dict[str, Any] = {
        "tensor_debug_mode": rng.choice(MODES),
        "graphs": rng.choice(["auto", "executed"]),
        "max_memory_bytes": rng.choice([192 << 20, 512 << 20]),
    }
    if rng.random() < 0.2:
        settings["steps"] = rng.choice(["::3", "2:9"])
    if rng.random() < 0.2 and settings["tensor_debug_mode"] not in ("SHAPE", "NO_TENSOR"):
        settings["on_nonfinite"] = "keep"
    if rng.random() < 0.3 and settings["tensor_debug_mode"] in ("FULL_HEALTH", "FULL_NUMERICS", "FULL_TENSOR"):
        settings["histograms"] = True
    return {"training": training, "steps": steps, "disturbances": disturbances, "settings": settings}


def names_in(case: Case) -> list[str]:
    """Returns the names of the disturbances of a case, in order."""
    return [each[0] for step in sorted(case["disturbances"], key=int) for each in case["disturbances"][step]]


@dataclass(frozen=True)
class Ended:
    """The end of a process. `status` is None if the process was stopped because it took too long."""

    status: int | None
    output: str
    errors: str
    seconds: float

    @property
    def error(self) -> str:
        """The error that ended the process, without errors that a library printed before."""
        lines = [line for line in self.errors.splitlines() if line and not line.startswith((" ", "tfdbg_arrow"))]
        named = [line for line in lines if line.split(":")[0].endswith(("Error", "KeyboardInterrupt"))]
        return named[-1] if named else ""


def run(case: Case, logdir: Path | None, preload: str) -> Ended:
    """Runs the training of a case. The training is recorded if a logdir is given."""
    words = [sys.executable, "-m", "tests.chaos.program", json.dumps(case), *([str(logdir)] if logdir else [])]
    environment = {**os.environ, "LD_PRELOAD": preload, "PYTHONHASHSEED": "0"}
    begin = time.monotonic()
    with subprocess.Popen(
        words, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=TIMEOUT_S)
            status: int | None = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            status = None
    return Ended(status, output, errors, time.monotonic() - begin)


class Reader:
    """Asks questions about growing logdirs in a thread, and collects the answers that no reader should get."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.faults: list[str] = []
        self.num_answers = 0
        self._thread.start()

    def end(self) -> None:
        """Stops asking."""
        self._is_ended.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._is_ended.wait(0.2):
            for marker in sorted(self._directory.glob(f"*/{MARKER_NAME}")):
                try:
                    with tfdbg_arrow.open_logdir(marker.parent) as opened:
                        opened.first_nonfinite()
                        opened.rows("SELECT count(*), max(event_index) FROM tensor_health")
                        self.num_answers += 1
                except Exception as error:
                    self.faults.append(f"a reader got {type(error).__name__}: {error}")


def check(case: Case, directory: Path, preload: str) -> list[str]:
    """Runs a case without and with a recording, and returns the problems."""
    alone = run(case, None, preload)
    logdirs = directory / "logdirs"
    logdirs.mkdir(parents=True)
    reader = Reader(logdirs)
    try:
        recorded = run(case, logdirs, preload)
    finally:
        reader.end()
    found = list(dict.fromkeys(reader.faults))
    for what, one, other in (
        ("status", alone.status, recorded.status),
        ("output", alone.output, recorded.output),
        ("error", alone.error, recorded.error),
    ):
        if one != other:
            found.append(
                f"the {what} without a recording is {one!r}, and with one {other!r}\n{recorded.errors[-3000:]}"
            )
    if recorded.seconds > MAX_RATIO * alone.seconds + MAX_MORE_S:
        found.append(f"it took {recorded.seconds:.0f} s instead of {alone.seconds:.0f} s")
    for logdir in sorted(logdirs.glob("*")):
        if (logdir / MARKER_NAME).exists():
            found += [f"{logdir.name}: {text}" for text in wrong_in(logdir)]
        elif not set(names_in(case)) & {*DISKS}:  # on a full disk, a recording cannot start
            found.append(f"{logdir.name} has no marker")
    return [*found, *missing_steps(case, logdirs, recorded)]


def wrong_in(logdir: Path) -> Iterator[str]:
    """Yields the problems of a logdir."""
    try:
        tfdbg_arrow.recover(logdir)
        with tfdbg_arrow.open_logdir(logdir) as opened:
            for table in TABLES:
                opened.rows(f'SELECT * FROM "{table.name}" LIMIT 100000')
            for table in TABLES:
                keys = ", ".join(f'"{name}"' for name in table.key)
                if twice := opened.rows(f'SELECT {keys} FROM "{table.name}" GROUP BY ALL HAVING count(*) > 1 LIMIT 3'):
                    yield f"{table.name} has rows with the same key: {twice}"
            opened.first_nonfinite()
    except TfdbgArrowError as error:
        yield f"{type(error).__name__}: {error}"
        return
    command = [sys.executable, "-m", "tfdbg_arrow", "verify", str(logdir)]
    verified = subprocess.run(command, capture_output=True, text=True, check=False)
    if verified.returncode != 0:
        yield f"verify: {verified.stdout[-500:]}{verified.stderr[-500:]}"


def missing_steps(case: Case, logdirs: Path, recorded: Ended) -> list[str]:
    """Returns an error if a step was marked, but neither the mark nor a report of lost rows was recorded."""
    marked = {
        int(line.split()[0]) + 1 for line in recorded.output.splitlines() if line[:1].isdigit() and " " in line
    }  # each line was printed before the mark of its step
    found: set[int] = set()
    is_loss_noted = False
    for marker in logdirs.glob(f"*/{MARKER_NAME}"):
        with tfdbg_arrow.open_logdir(marker.parent) as opened:
            found |= {step for (step,) in opened.rows("SELECT step FROM mark WHERE step IS NOT NULL")}
            is_loss_noted |= bool(opened.rows("SELECT 1 FROM capture_stat WHERE stat IN ('dropped', 'failed') LIMIT 1"))
    names = names_in(case)
    last = max(marked, default=0)
    expected = marked - ({last} if set(names) & {*ENDS} else set())
    if {"disable_in_handler", "restart", "interrupt_enable"} & set(names) or "steps" in case["settings"]:
        return []  # marks between two recordings, and marks of steps that were left out, are not recorded
    is_told = is_loss_noted or set(names) & {*DISKS}
    return [] if expected <= found or is_told else [f"the marks of the steps {sorted(expected - found)} are missing"]


def main() -> None:
    """Runs cases for the time that the command line asks for, and exits with 1 if a case failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--case", type=int, help="run only the case with this number")
    parser.add_argument("--jobs", type=int, default=2, help="how many cases run at the same time")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    deadline = time.monotonic() + 60 * options.minutes
    counts: Counter[str] = Counter()
    failed = []
    with tempfile.TemporaryDirectory(prefix="tfdbg_arrow-chaos-") as kept:
        preload = compile_preload(Path(kept))

        def one(number: int) -> tuple[int, Case, list[str]] | None:
            if time.monotonic() > deadline:
                return None
            case = make_case(options.seed, number)
            directory = Path(tempfile.mkdtemp(prefix=f"tfdbg_arrow-chaos-{number}-"))
            found = check(case, directory, preload)
            if not found:
                shutil.rmtree(directory)
            return number, case, [*found, *([f"files: {directory}"] if found else [])]

        numbers = [options.case] if options.case is not None else range(1_000_000)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            waiting = iter(numbers)
            running = {pool.submit(one, number) for number, _ in zip(waiting, range(options.jobs), strict=False)}
            while running:
                done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
                for outcome in (future.result() for future in done):
                    if outcome is None:
                        continue
                    number, case, found = outcome
                    counts.update(["cases", *set(names_in(case))])
                    if found:
                        failed.append(number)
                        print(f"case {number}: {json.dumps(case)}", *found, sep="\n  ", flush=True)
                    if time.monotonic() < deadline and (following := next(waiting, None)) is not None:
                        running.add(pool.submit(one, following))
    print(f"{counts.pop('cases', 0)} cases, {len(failed)} failed {failed or ''}; {dict(sorted(counts.items()))}")
    sys.exit(1 if failed else 0)


def compile_preload(directory: Path) -> str:
    """Compiles the libraries that make file operations fail and move the clock. Returns the value of LD_PRELOAD."""
    clock = directory / "clock.so"
    source = Path(__file__).with_name("clock.c")
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-w", "-O1", "-shared", "-fPIC", str(source), "-o", str(clock), "-ldl"], check=True)
    return f"{compile_shim(directory)}:{clock}"


if __name__ == "__main__":
    main()
