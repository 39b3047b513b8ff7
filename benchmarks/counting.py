"""Measures how fast TensorFlow's ops count elements of tensors on a device, and the cost of reading eager results.

`python benchmarks/counting.py --device GPU:0 --output counting.json`. docs/executed_graphs.md says how the elements of
tensors on a GPU are counted. This benchmark shows the reasons for this way to count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdbg_arrow.writer.tensorflow_backend.elements import FORMATS, bad_kinds, classes, num_classes

SIZES = (20_000, 200_000, 2_000_000, 16_000_000, 64_000_000)
MAX_ELEMENTS = 400_000_000
"""Maximum number of elements in all tensors of one call. These elements take 1.6 GB."""
MAX_TENSORS, MIN_TENSORS = 100, 4
NUM_CALLS = 5
NUM_EAGER_OPS, NUM_READ_TOGETHER = 384, 64


def _bincount(tensor: Any) -> Any:
    form = FORMATS[tensor.dtype]
    shift = form.constant(form.num_bits - num_classes(tensor.dtype).bit_length() + 1)
    bits = tf.bitwise.right_shift(tf.bitcast(tensor, form.bits), shift)
    return tf.raw_ops.Bincount(
        arr=tf.bitcast(bits, tf.int32), size=num_classes(tensor.dtype), weights=tf.constant([], tf.int32)
    )


WAYS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda tensor: tensor[:1],
    "RightShift and Bincount": _bincount,
    "RightShift and DenseBincount": lambda tensor: classes(tensor[None]),
    "DebugNumericSummaryV2, which of -inf, inf and NaN": bad_kinds,
    "Max": tf.reduce_max,
    "Snapshot": lambda tensor: tf.raw_ops.Snapshot(input=tensor)[:1],
}
"""The computations on each tensor, by name. Each computation except the first reads all elements."""


def counting(sizes: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Yields the microseconds that a call takes for each of its tensors, by way to count and by number of elements."""
    for size in sizes:
        num_tensors = max(MIN_TENSORS, min(MAX_TENSORS, MAX_ELEMENTS // size))
        normal = [tf.random.normal([size]) * 0.02 for _ in range(num_tensors)]
        for elements, tensors in (("normal", normal), ("half of them 0", [tf.nn.relu(tensor) for tensor in normal])):
            for name, way in WAYS.items():
                yield {
                    "way": name,
                    "num_elements": size,
                    "elements": elements,
                    "us": round(_microseconds(way, tensors), 1),
                    "num_tensors": num_tensors,
                }


def _microseconds(way: Callable[[Any], Any], tensors: list[Any]) -> float:
    @tf.function
    def count_all(tensors: list[Any]) -> Any:
        return tf.concat([tf.cast(tf.reshape(way(tensor), [-1])[:1], tf.float32) for tensor in tensors], axis=0)

    count_all(tensors).numpy()
    seconds = []
    for _ in range(NUM_CALLS):
        begin = time.perf_counter()
        count_all(tensors).numpy()
        seconds.append(time.perf_counter() - begin)
    return 1e6 * statistics.median(seconds) / len(tensors)


def eager_reads() -> Iterator[dict[str, Any]]:
    """Yields the microseconds of an eager op on a 32x32 tensor, by the moment when its result is copied to the host."""
    start, factor, term = tf.random.normal([32, 32]), tf.constant(0.999), tf.constant(0.001)
    together = tf.function(lambda tensors: tf.stack(tensors))
    for way in ("never", "at once", f"with {NUM_READ_TOGETHER - 1} others"):
        seconds = []
        for _ in range(NUM_CALLS + 1):
            begin = time.perf_counter()
            tensor, held = start, []
            for index in range(NUM_EAGER_OPS):
                tensor = tensor * factor if index % 2 else tensor + term
                if way == "at once":
                    tensor.numpy()
                elif way != "never":
                    held.append(tensor)
                if len(held) == NUM_READ_TOGETHER:
                    together(held).numpy()
                    held = []
            tensor.numpy()
            seconds.append(time.perf_counter() - begin)
        yield {"read": way, "us_an_op": round(1e6 * statistics.median(seconds[1:]) / NUM_EAGER_OPS, 1)}


def main() -> None:
    """Prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="GPU:0", help="the device of the tensors (default: GPU:0)")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="numbers of elements of a tensor")
    parser.add_argument("--output", type=Path, help="also write the results to this file, as JSON")
    options = parser.parse_args()
    results: dict[str, Any] = {"device": options.device, "counting": [], "eager_reads": []}
    with tf.device(options.device):
        for name, rows in (("counting", counting(tuple(options.sizes))), ("eager_reads", eager_reads())):
            for row in rows:
                print(json.dumps(row), flush=True)
                results[name].append(row)
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
