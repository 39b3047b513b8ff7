"""Builds the native core for aarch64, and compares its results with the results on this machine.

Usage: `python tools/aarch64.py`. The whole core is compiled and linked by a cross-compiler. The parts that need neither
Python nor TensorFlow are linked with tests/aarch64/outputs.cc, for aarch64 and for this machine. QEMU runs the aarch64
program. Both programs print the results of the health kernels and the other parts for the same random bytes, of all
dtypes. All bytes must be equal, with one exception: the largest modulus of complex elements may differ in its last bit.
`std::hypot` computes the modulus, and this function rounds differently in the C library of aarch64.

QEMU orders the memory accesses of threads like this machine, so the comparison cannot find races. On Debian, the script
needs `apt-get install g++ g++-aarch64-linux-gnu qemu-user`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import nanobind

REPOSITORY = Path(__file__).resolve().parents[1]
NATIVE = REPOSITORY / "tfdbg_arrow" / "writer" / "native"
OUTPUTS = REPOSITORY / "tests" / "aarch64" / "outputs.cc"
BUILD = REPOSITORY / "build" / "aarch64"
PARTS = ("bad_place", "debug_event_scan", "graph_def", "health", "histogram", "journal", "scalar", "spool")
"""The sources of the core that OUTPUTS calls."""
CROSS_COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"
FLAGS = ("-std=c++17", "-O3", "-Wall", "-Wextra", "-pthread", "-static", f"-I{NATIVE}")
MAX_SHOWN = 10


def main() -> None:
    """Builds the core, and exits with 1 if its results for aarch64 differ."""
    missing = [name for name in ("g++", CROSS_COMPILER, EMULATOR) if shutil.which(name) is None]
    if missing:
        sys.exit(f"{', '.join(missing)} is missing. On Debian: apt-get install g++ g++-aarch64-linux-gnu qemu-user")
    build_core()
    objects = [BUILD / "CMakeFiles" / "_core.dir" / NATIVE.relative_to(REPOSITORY) / f"{part}.cc.o" for part in PARTS]
    there = run_outputs("aarch64", CROSS_COMPILER, objects, [EMULATOR])
    here = run_outputs("here", "g++", [NATIVE / f"{part}.cc" for part in PARTS], [])
    differences = [text for pair in zip_longest(there, here, fillvalue="") for text in compare(*pair)]
    print("\n".join(differences[:MAX_SHOWN]))
    print(f"{len(here):,} lines of results: {len(differences):,} differ on aarch64")
    sys.exit(bool(differences))


def build_core() -> None:
    """Compiles and links the core for aarch64, with the options that a wheel has."""
    programs = Path(sys.executable).parent  # the environment has CMake and Ninja
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CXX_COMPILER": CROSS_COMPILER,
        "CMAKE_MAKE_PROGRAM": programs / "ninja",
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        # Python's headers are the same for all 64-bit processors.
        "Python_EXECUTABLE": sys.executable,
        "nanobind_DIR": nanobind.cmake_dir(),
    }
    defined = [f"-D{name}={value}" for name, value in settings.items()]
    subprocess.run([programs / "cmake", "-S", REPOSITORY, "-B", BUILD, "-G", "Ninja", *defined], check=True)
    subprocess.run([programs / "cmake", "--build", BUILD], check=True)


def run_outputs(name: str, compiler: str, parts: list[Path], emulator: list[str]) -> list[str]:
    """Builds tests/aarch64/outputs.cc with the parts of the core, and returns the lines that it prints."""
    program, spool = BUILD / f"outputs-{name}", BUILD / f"spool-{name}"
    subprocess.run([compiler, *FLAGS, OUTPUTS, *parts, "-o", program], check=True)
    spool.unlink(missing_ok=True)
    done = subprocess.run([*emulator, program, spool], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def compare(there: str, here: str) -> list[str]:
    """Returns a text for each field of a line that differs."""
    label = here.partition(":")[0]
    pairs = zip_longest(there.split(" "), here.split(" "), fillvalue="")
    return [f"{label}: {a or 'nothing'}, here {b or 'nothing'}" for a, b in pairs if a != b and not is_rounding(a, b)]


def is_rounding(there: str, here: str) -> bool:
    """Returns whether two fields are moduli that differ in the last bit."""
    name, _, value = there.partition("=")
    other_name, _, other_value = here.partition("=")
    if name != "modulus" or other_name != name:
        return False
    patterns = (int.from_bytes(bytes.fromhex(each), "little") for each in (value, other_value))
    return abs(next(patterns) - next(patterns)) <= 1


if __name__ == "__main__":
    main()
