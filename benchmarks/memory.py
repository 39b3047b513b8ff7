"""Measures the memory that a recording takes when events come faster than they can be written.

    python benchmarks/memory.py [--seconds 20] [--output FILE.json]

Two threads run loops of small ops. A separate process measures each `max_memory_bytes`, once with a normal disk and
once with a disk that refuses every part. The memory of the recording is the peak memory of the process, including the
end of the recording, minus the peak memory of the same program without recording. This memory includes the libraries
that recording loads, about 40 MiB.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest import mock

from overhead import environment

MIB = 1 << 20
BOUNDS_MIB = (192, 256, 512)
NUM_ELEMENTS = {"FULL_HEALTH": 16, "FULL_TENSOR": 16_384}
"""Number of elements of each tensor, by mode."""
DISKS = ("takes all", "refuses all")
NUM_THREADS = 2
NUM_ITERATIONS, NUM_OPS = 2_000, 20


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result for one process.

    Attributes:
        mode: The tensor_debug_mode.
        max_memory_mib: The memory bound. 0 means that nothing is recorded.
        disk: One of DISKS: whether parts could be written.
        peak_mib: Peak memory of the process.
        tensors: Number of computed tensors.
    """

    mode: str
    max_memory_mib: int
    disk: str
    peak_mib: float
    tensors: int


def flood(num_elements: int, *, seconds: float) -> int:
    """Runs loops of small ops in several threads for `seconds` seconds. Returns the number of computed tensors."""
    import tensorflow as tf

    @tf.function  # type: ignore[untyped-decorator]
    def loop(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(NUM_ITERATIONS):
            for _ in range(NUM_OPS // 2):
                x = tf.sin(x) * 1.5
        return x

    num_calls: list[None] = []

    def run() -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            loop(tf.ones([num_elements]))
            num_calls.append(None)

    threads = [threading.Thread(target=run) for _ in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return NUM_ITERATIONS * NUM_OPS * len(num_calls)


def measure(mode: str, max_memory_mib: int, *, disk: str, seconds: float) -> Result:
    """Runs `flood` in this process and measures the peak memory."""
    import tfdbg_arrow
    from tfdbg_arrow.writer.sink.parts import PartWriter

    if max_memory_mib == 0:
        tensors = flood(NUM_ELEMENTS[mode], seconds=seconds)
    else:
        with tempfile.TemporaryDirectory() as logdir:
            tfdbg_arrow.enable(logdir, mode, max_memory_bytes=max_memory_mib * MIB)
            full = mock.patch.object(PartWriter, "write_tables", new=_refuse)
            with full if disk == DISKS[1] else contextlib.nullcontext():
                tensors = flood(NUM_ELEMENTS[mode], seconds=seconds)
            tfdbg_arrow.disable()
    (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    peak_mib = int(peak.split()[1]) / 1024
    return Result(mode=mode, max_memory_mib=max_memory_mib, disk=disk, peak_mib=peak_mib, tensors=tensors)


def _refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _measure_apart(mode: str, max_memory_mib: int, *, disk: str, seconds: float) -> Result:
    command = [sys.executable, __file__, "--measure", mode, str(max_memory_mib), disk, str(seconds)]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return Result(**json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    """Runs the benchmark."""
    if sys.argv[1:2] == ["--measure"]:
        mode, bound, disk, seconds = sys.argv[2:]
        print(json.dumps(asdict(measure(mode, int(bound), disk=disk, seconds=float(seconds)))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each process records")
    parser.add_argument("--bounds", type=int, nargs="+", default=BOUNDS_MIB, help="in MiB")
    parser.add_argument("--modes", nargs="+", choices=NUM_ELEMENTS, default=tuple(NUM_ELEMENTS))
    parser.add_argument("--output", type=Path, help="write the results to this file, as JSON")
    arguments = parser.parse_args()
    results = []
    print(f"{'mode':12} {'bound MiB':>9}  {'disk':12} {'took MiB':>8} {'tensors':>12}")
    for mode in arguments.modes:
        none = _measure_apart(mode, 0, disk=DISKS[0], seconds=arguments.seconds)
        results.append(none)
        for disk in DISKS:
            for bound in arguments.bounds:
                result = _measure_apart(mode, bound, disk=disk, seconds=arguments.seconds)
                results.append(result)
                took = result.peak_mib - none.peak_mib
                print(f"{mode:12} {bound:9}  {disk:12} {took:8.0f} {result.tensors:12,}", flush=True)
    if arguments.output:
        document = {"environment": environment(), "results": [asdict(result) for result in results]}
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
