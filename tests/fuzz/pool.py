"""Worker processes that serve many inputs. A worker that dies or hangs is reported as a finding and replaced.

To run by hand: `python -m tests.fuzz.pool --first 0 --number 100000 --workers 2`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .inputs import KINDS

ROOT = Path(__file__).parents[2]
MAX_SECONDS = 5.0
"""Maximum processor time for an input."""
MAX_RSS_BYTES = 1 << 30
_PATIENCE_S = 600.0
"""Wall time after which a worker counts as hung even if it takes no processor time. Long, for busy machines."""
_POLL_S = 2.0
_INPUTS_A_WORKER = 2_000


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A failure caused by an input: the input's number and kind, the mutated files, and the failure."""

    number: int
    kind: str
    what: str
    text: str


class _Worker:
    def __init__(self, directory: Path, kinds: tuple[str, ...]) -> None:
        (directory / "scratch").mkdir(parents=True)
        self._errors = open(directory / "stderr", "w+")  # noqa: SIM115
        command = [sys.executable, "-m", "tests.fuzz.worker", str(directory), ",".join(kinds)]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(directory / "scratch")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
        )
        if self._line() != "ready\n":
            raise RuntimeError(f"a worker did not start: {self._last_words()}")

    def ask(self, number: int) -> dict[str, Any] | str:
        """Returns the worker's answer, or a text that says how the worker died."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{number}\n")
            line = self._line()
        except BrokenPipeError:
            line = ""
        if line is None:
            self._process.kill()
            return "hung"
        if not line:
            return f"died with {self._process.wait()}: {self._last_words()}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _line(self) -> str | None:
        assert self._process.stdout is not None
        begin, used = time.monotonic(), self._processor_seconds()
        while time.monotonic() - begin < _PATIENCE_S and self._processor_seconds() - used < 4 * MAX_SECONDS:
            if select.select([self._process.stdout], [], [], _POLL_S)[0]:
                return self._process.stdout.readline()
        return None

    def _processor_seconds(self) -> float:
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # the process is dead, as its output shows
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-3000:]

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self._process.kill()
        self._process.wait()


def findings(
    numbers: Iterable[int],
    directory: Path,
    *,
    workers: int = 1,
    kinds: tuple[str, ...] = KINDS,
    on_answer: Callable[[dict[str, Any] | str], object] = lambda answer: None,
) -> Iterator[Finding]:
    """Yields the failures that inputs cause.

    Args:
        numbers: The numbers of the inputs.
        directory: Directory for the workers' files.
        workers: Number of worker processes.
        kinds: The kinds of input to make.
        on_answer: Called with each answer of a worker, or with a text that says how the worker died.
    """
    waiting, found, lock = iter(numbers), list[Finding](), threading.Lock()

    def work(name: str) -> None:
        for life in range(sys.maxsize):
            worker = _Worker(directory / f"{name}-{life}", kinds)
            try:
                for _ in range(_INPUTS_A_WORKER):
                    with lock:
                        number = next(waiting, None)
                    if number is None:
                        return
                    answer = worker.ask(number)
                    on_answer(answer)
                    found.extend(_judged(number, answer, kinds))
                    # max_rss_bytes is the peak memory of the worker's lifetime.
                    if isinstance(answer, str) or answer["max_rss_bytes"] > MAX_RSS_BYTES:
                        break
            finally:
                worker.close()

    threads = [threading.Thread(target=work, args=(f"worker-{i}",)) for i in range(workers)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.05)
        while found:
            yield found.pop(0)
    yield from found


def _judged(number: int, answer: dict[str, Any] | str, kinds: tuple[str, ...]) -> Iterator[Finding]:
    if isinstance(answer, str):
        yield Finding(number=number, kind=kinds[number % len(kinds)], what="", text=answer)
        return
    texts = list(answer["failures"])
    if answer["seconds"] > MAX_SECONDS:
        texts.append(f"took {answer['seconds']:.1f} s of processor time")
    if answer["max_rss_bytes"] > MAX_RSS_BYTES:
        texts.append(f"took {answer['max_rss_bytes']:,} bytes of memory")
    for text in texts:
        yield Finding(number=number, kind=answer["kind"], what=answer["what"], text=text)


class _Tally:
    """Counts the inputs so far. For each kind: the number of inputs, their processor time, and the slowest input."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._numbers, self._seconds = Counter[str](), Counter[str]()
        self._slowest: dict[str, tuple[float, int]] = {}
        self._max_rss_bytes = 0

    def add(self, answer: dict[str, Any] | str) -> None:
        """Counts an answer, and prints the progress from time to time."""
        if isinstance(answer, str):
            self._numbers["no answer"] += 1
        else:
            kind, seconds = answer["kind"], answer["seconds"]
            self._numbers[kind] += 1
            self._seconds[kind] += seconds
            self._slowest[kind] = max(self._slowest.get(kind, (0.0, 0)), (seconds, answer["number"]))
            self._max_rss_bytes = max(self._max_rss_bytes, answer["max_rss_bytes"])
        if self._numbers.total() % 500 == 0:
            print(f"{self.line()}", file=sys.stderr, flush=True)

    def line(self) -> str:
        """Returns the counts as one line."""
        total = self._numbers.total()
        passed = time.monotonic() - self._begin
        used = 1e3 * sum(self._seconds.values()) / max(1, total)
        kinds = ", ".join(
            f"{number:,} {kind} (slowest {seconds:.2f} s: {slowest})"
            for kind, number in sorted(self._numbers.items())
            for seconds, slowest in [self._slowest.get(kind, (0.0, -1))]
        )
        return (
            f"{total:,} inputs in {passed:.0f} s, {used:.1f} ms of processor time each, at most "
            f"{self._max_rss_bytes / 1e6:.0f} MB: {kinds}"
        )


def main() -> None:
    """Tests inputs and prints the failures. Of failures with the same last line, only one is printed in full."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kinds", default=",".join(KINDS))
    arguments = parser.parse_args()
    seen, tally = Counter[str](), _Tally()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="tfdbg_arrow-fuzz-", dir=memory) as directory:
        numbers = range(arguments.first, arguments.first + arguments.number)
        kinds = tuple(arguments.kinds.split(","))
        for found in findings(numbers, Path(directory), workers=arguments.workers, kinds=kinds, on_answer=tally.add):
            last = found.text.strip().rpartition("\n")[2]
            seen[last] += 1
            print(f"{found.number} {found.kind} {found.what}: {found.text if seen[last] == 1 else last}", flush=True)
    print(f"{tally.line()}; {seen.total()} findings:")
    for last, count in seen.most_common():
        print(f"  {count:6} {last}")


if __name__ == "__main__":
    main()
