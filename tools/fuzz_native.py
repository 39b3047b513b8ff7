"""Fuzzes the parsers of the native core with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer.

Usage: `python tools/fuzz_native.py --minutes 30`. The harnesses of tests/fuzz/native run at the same time, each in its
own process. Inputs that reach new code are kept in build/fuzz, and the next run starts with these inputs. An input that
fails is written to the same directory as `HARNESS-crash-…`. `build/fuzz/HARNESS FILE` runs the input again.

The script needs Clang with libFuzzer: on Debian, `apt-get install clang libclang-rt-14-dev`. CXX names another clang++.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
NATIVE = REPOSITORY / "tfdbg_arrow" / "writer" / "native"
HARNESSES = REPOSITORY / "tests" / "fuzz" / "native"
BUILD = REPOSITORY / "build" / "fuzz"
NAMES = ("graph_def", "debug_event_scan")
"""Sources in tests/fuzz/native. Each source tests the source of the same name in the core."""
FLAGS = ("-std=c++17", "-O1", "-g", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined")
MAX_SEED_BYTES = 1 << 14


def main() -> None:
    """Builds the harnesses, and runs them for the time that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30, help="time for each harness (default: %(default)s)")
    options = parser.parse_args()
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("clang++", "clang++-14"))), None)
    if compiler is None:
        sys.exit("clang++ is not installed. On Debian: apt-get install clang libclang-rt-14-dev")
    for name in NAMES:
        (BUILD / f"{name}-inputs").mkdir(parents=True, exist_ok=True)
        sources = (HARNESSES / f"{name}.cc", NATIVE / f"{name}.cc")
        subprocess.run([compiler, *FLAGS, f"-I{NATIVE}", *sources, "-o", BUILD / name], check=True)
    write_seeds()
    running = {name: start(name, options.minutes) for name in NAMES}
    failed = [name for name, process in running.items() if process.wait() != 0]
    for name in NAMES:
        report(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; the logs and the inputs are in {BUILD}")


def start(name: str, minutes: float) -> subprocess.Popen[bytes]:
    """Starts a harness, which writes its log into a file."""
    seconds = max(1, round(60 * minutes))
    arguments = (f"-max_total_time={seconds}", f"-max_len={2 * MAX_SEED_BYTES}", "-timeout=20", "-print_final_stats=1")
    with (BUILD / f"{name}.log").open("wb") as log:
        command = [str(BUILD / name), *arguments, f"-artifact_prefix={BUILD}/{name}-", f"{BUILD}/{name}-inputs"]
        return subprocess.Popen(command, stderr=log, stdout=log, cwd=BUILD)


def report(name: str) -> None:
    """Prints the results of a harness."""
    log = (BUILD / f"{name}.log").read_text(errors="replace")
    runs = re.search(r"number_of_executed_units: (\d+)", log)
    covered = re.findall(r"cov: (\d+) ft: (\d+)", log)
    found = sorted(path.name for path in BUILD.glob(f"{name}-*") if path.is_file())
    edges, features = covered[-1] if covered else ("no", "no")
    print(f"{name}: {int(runs[1]) if runs else 0:,} inputs, {edges} edges and {features} features covered", end="; ")
    print("failing inputs: " + ", ".join(found) if found else "no failing input")


def write_seeds() -> None:
    """Writes the first inputs of each harness, which TensorFlow made."""
    import tensorflow as tf
    from tensorflow.core.framework import op_def_pb2
    from tensorflow.python.framework import op_def_registry

    @tf.function  # type: ignore[untyped-decorator]
    def function(x: tf.Tensor) -> tf.Tensor:
        for i in tf.range(3):
            x = tf.nn.relu(tf.matmul(x, x)) + tf.cast(i, tf.float32)
        return tf.concat(tf.split(x, 2), 0)

    ops = op_def_pb2.OpList(op=[op_def_registry.get(name) for name in ("MatMul", "Split", "IdentityN", "While")])
    graph = function.get_concrete_function(tf.zeros([2, 2])).graph.as_graph_def().SerializeToString()
    op_list = ops.SerializeToString()
    seed = struct.pack("<H", len(op_list)) + op_list + graph
    (BUILD / "graph_def-inputs" / "seed").write_bytes(seed[:MAX_SEED_BYTES])
    with tempfile.TemporaryDirectory() as dump:
        program = (
            "import sys, tensorflow as tf\n"
            "tf.debugging.experimental.enable_dump_debug_info(sys.argv[1], 'FULL_HEALTH', -1)\n"
            "tf.function(lambda x: tf.math.log(x) + 1.0)(tf.zeros([2]))\n"
        )
        subprocess.run([sys.executable, "-c", program, dump], check=True)
        for path in Path(dump).iterdir():
            (BUILD / "debug_event_scan-inputs" / path.suffix[1:]).write_bytes(
                b"\xfe" + path.read_bytes()[:MAX_SEED_BYTES]
            )


if __name__ == "__main__":
    main()
