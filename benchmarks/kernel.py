"""Measures elements and bytes per second of the health kernels, compared with a plain memory read of the same bytes.

Run: python benchmarks/kernel.py [--json FILE] [--dtypes float32,float16] [--sizes 64,1000000] [--seconds 0.05]

The kernels take turns over the same buffer, so that other load on the machine affects all kernels alike. The best of
several rounds counts. Times are measured inside the native core and include no Python call. The data are normally
distributed numbers without NaN or infinity, unless --bad puts a NaN into every thousandth element.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.writer.native import reference

SIZES = (64, 1_000, 10_000, 100_000, 1_000_000, 16_000_000)
KERNELS = ("read_sum", "count_health", "measure", "count_histogram")
"""The kernels. The last kernel exists only for real floating-point dtypes."""
ROUNDS = 7


@dataclass(frozen=True)
class Result:
    """The result for one kernel on one buffer."""

    kernel: str
    dtype: str
    num_elements: int
    size_bytes: int
    call_ns: float
    elements_per_s: float
    bytes_per_s: float
    ratio_to_read: float
    """Speed relative to read_sum over the same bytes in the same run."""


def make_buffer(dtype: str, *, num_elements: int, bad: bool) -> npt.NDArray[np.uint8]:
    """Returns the bytes of a tensor of `dtype`: N(0, 1) numbers, or rounded N(0, 30) for integers.

    Args:
        dtype: A name in reference.TENSORFLOW_DTYPES.
        num_elements: Number of elements.
        bad: Whether every thousandth element of a float or complex dtype is NaN.

    Returns:
        The bytes of the elements.
    """
    numbers = np.resize(np.random.default_rng(0).standard_normal(min(num_elements, 1_000_000)), num_elements)
    numpy_dtype = _numpy_dtype(dtype)
    if numpy_dtype.kind == "b":
        array: npt.NDArray[Any] = numbers > 0
    elif numpy_dtype.kind in "iu":
        array = (numbers * 30).astype(np.int64).astype(numpy_dtype)
    elif numpy_dtype.kind == "c":
        array = (numbers + 1j * numbers[::-1]).astype(numpy_dtype)
    else:
        array = numbers.astype(np.float32 if numpy_dtype.itemsize < 4 else numpy_dtype).astype(numpy_dtype)
    if bad and numpy_dtype.kind not in "biu":
        array[::1000] = np.nan
    return array.view(np.uint8)


def run(core: Any, *, dtypes: Sequence[str], sizes: Sequence[int], seconds: float, bad: bool) -> list[Result]:
    """Measures every kernel for every dtype and size.

    Args:
        core: The native core.
        dtypes: Names in reference.TENSORFLOW_DTYPES.
        sizes: Numbers of elements.
        seconds: Approximate time that one kernel runs on one buffer in one round.
        bad: Whether the data contain NaNs.

    Returns:
        One result for each dtype, size and kernel, in that order.
    """
    results = []
    for dtype in dtypes:
        for num_elements in sizes:
            buffer = make_buffer(dtype, num_elements=num_elements, bad=bad)
            best = _best_seconds(core, reference.TENSORFLOW_DTYPES[dtype], buffer, seconds=seconds)
            for kernel in best:
                results.append(
                    Result(
                        kernel=kernel,
                        dtype=dtype,
                        num_elements=num_elements,
                        size_bytes=buffer.nbytes,
                        call_ns=best[kernel] * 1e9,
                        elements_per_s=num_elements / best[kernel],
                        bytes_per_s=buffer.nbytes / best[kernel],
                        ratio_to_read=best["read_sum"] / best[kernel],
                    )
                )
            _show_progress(f"{dtype} {num_elements:,}")
    _show_progress("")
    return results


def render(results: Sequence[Result], *, kernel_name: str) -> str:
    """Renders the results as a table.

    Args:
        results: The results of `run`.
        kernel_name: The instruction set that the core uses.

    Returns:
        Lines of text, with speeds in 10^9 elements and bytes per second.
    """
    lines = [
        f"Health kernels ({kernel_name}) on {platform.processor() or platform.machine()}",
        f"{'kernel':<15} {'dtype':<19} {'elements':>11} {'ns a call':>13} {'G elem/s':>13} {'GB/s':>8} {'of read':>8}",
    ]
    lines += [
        f"{r.kernel:<15} {r.dtype:<19} {r.num_elements:>11,} {r.call_ns:>13,.1f} {r.elements_per_s / 1e9:>13.3f} "
        f"{r.bytes_per_s / 1e9:>8.2f} {r.ratio_to_read:>8.2f}"
        for r in results
    ]
    return "\n".join(lines)


def main() -> int:
    """Runs the benchmark that the command line specifies, and returns the exit code."""
    arguments = _parse_arguments()
    try:
        from tfdbg_arrow.writer.native import _core  # type: ignore[attr-defined, unused-ignore]
    except ImportError as error:
        print(f"The native core is not built ({error}); install tfdbg_arrow with a C++17 compiler.", file=sys.stderr)
        return 2
    core: Any = _core
    results = run(core, dtypes=arguments.dtypes, sizes=arguments.sizes, seconds=arguments.seconds, bad=arguments.bad)
    kernel_name = core.health_kernel_name()
    if arguments.json == "-":
        print(_to_json(results, kernel_name=kernel_name))
        return 0
    print(render(results, kernel_name=kernel_name))
    if arguments.json is not None:
        Path(arguments.json).write_text(_to_json(results, kernel_name=kernel_name) + "\n", encoding="utf-8")
    return 0


def _best_seconds(core: Any, dtype: int, buffer: npt.NDArray[np.uint8], *, seconds: float) -> dict[str, float]:
    """Returns the seconds per call of each kernel that supports the dtype, in the best of ROUNDS rounds."""
    kernels = [kernel for kernel in KERNELS if not math.isnan(core.time_kernel(kernel, dtype, buffer, 1))]
    repeats = {kernel: _choose_repeats(core, kernel, dtype, buffer, seconds=seconds) for kernel in kernels}
    best = dict.fromkeys(kernels, float("inf"))
    for _ in range(ROUNDS):
        for kernel in kernels:
            taken = core.time_kernel(kernel, dtype, buffer, repeats[kernel]) / repeats[kernel]
            best[kernel] = min(best[kernel], taken)
    return best


def _choose_repeats(core: Any, kernel: str, dtype: int, buffer: npt.NDArray[np.uint8], *, seconds: float) -> int:
    repeats = 1
    while True:
        taken = float(core.time_kernel(kernel, dtype, buffer, repeats))
        if taken >= seconds / 10:
            return max(1, round(repeats * seconds / taken))
        repeats *= 4


def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype
    return np.dtype(name)


def _to_json(results: Sequence[Result], *, kernel_name: str) -> str:
    machine = {"machine": platform.machine(), "system": platform.platform(), "instruction_set": kernel_name}
    return json.dumps({**machine, "results": [asdict(result) for result in results]}, indent=1)


def _show_progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--json", metavar="FILE", help="also write the results as JSON to FILE; with -, write only JSON, to stdout"
    )
    parser.add_argument("--dtypes", type=_dtype_list, default=list(reference.TENSORFLOW_DTYPES), metavar="NAME,…")
    parser.add_argument("--sizes", type=_size_list, default=list(SIZES), metavar="ELEMENTS,…")
    parser.add_argument(
        "--seconds", type=float, default=0.05, help="time for one kernel, buffer and round (default 0.05)"
    )
    parser.add_argument("--bad", action="store_true", help="put a NaN into every thousandth element")
    return parser.parse_args()


def _dtype_list(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in reference.TENSORFLOW_DTYPES:
            raise argparse.ArgumentTypeError(
                f"{name!r} is not a dtype; expected one of {', '.join(reference.TENSORFLOW_DTYPES)}"
            )
    return names


def _size_list(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
