"""Runs repro scripts in a separate process: tries repairs, and shrinks inputs.

`python -m tfdbg_arrow.reproduction.trial JOB` reads a JSON object from the file JOB. The module writes the answer to
the file that the key `result` names. The scripts import TensorFlow; this module does not.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.schema.dtypes import encode_strings

Array = npt.NDArray[Any]
_MAX_ERROR = 500
"""Maximum number of characters of an error that is passed on. Errors of TensorFlow can be very long."""


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Runs a job and returns the answer.

    Args:
        job: `task` is `choices`, `fix` or `minimise`. `scripts` are paths. A job with the task `minimise` also has
            `time_limit_s`, and `values`, the path to write the elements of the inputs to.
    """
    if job["task"] == "fix":
        return {"outcomes": [_outcome(path) for path in job["scripts"]]}
    case = _Case(job["scripts"][0])
    if job["task"] == "minimise":
        return _minimise(case, time_limit_s=job["time_limit_s"], values=Path(job["values"]))
    case.results(case.tensors(case.arrays))
    return {"chosen": case.script.get("CHOSEN", {})}


class _Case:
    """A loaded script: its functions, and its inputs as arrays."""

    def __init__(self, path: str) -> None:
        self.script = runpy.run_path(path, run_name="repro")
        self.tf = self.script["tf"]
        self._is_run = "run" in self.script
        self.first = -1 if self._is_run else 0
        """Index of the first result to examine: only the last op's result, or all gradients."""
        names = list(self.script["INPUTS"])
        if self._is_run:
            names = [name for name in names if not name.startswith(("forward_", "upstream"))]
        self.names = names
        self.dtypes = {name: self.script["INPUTS"][name][0] for name in names}
        self.arrays: dict[str, Array] = {name: np.asarray(self.script["load"](name).numpy()) for name in names}

    def tensors(self, arrays: dict[str, Array]) -> list[Any]:
        return [self.tf.constant(arrays[name], self.tf.as_dtype(self.dtypes[name])) for name in self.names]

    def results(self, tensors: Sequence[Any]) -> list[Any]:
        """Returns the results of the ops in order, or all gradients of the forward op."""
        if self._is_run:
            return [result for _, result in self.script["run"](*tensors)]
        gradients = self.script["run_gradient"](*tensors)
        return [self.tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]

    def kinds(self, tensors: Sequence[Any]) -> tuple[frozenset[str], frozenset[str]]:
        """Returns the kinds of bad values in the result, and the kinds that no input and no earlier result has."""
        results = self.results(tensors)
        got = frozenset().union(*map(self.script["kinds"], results[self.first :]))
        before = frozenset().union(*map(self.script["kinds"], [*tensors, *results[: self.first or 0]]))
        return got, got - before

    def counts(self, tensors: Sequence[Any]) -> tuple[tuple[int, int, int], tuple[int, ...], str]:
        last = self.results(tensors)[-1]
        return self.script["count"](last), tuple(last.shape), last.dtype.name


def _outcome(path: str) -> dict[str, Any]:
    """Returns the number of bad elements in the result of a repair, or the error that the repair raised."""
    try:
        case = _Case(path)
        results = case.results(case.tensors(case.arrays))
        return {"num_bad": sum(sum(case.script["count"](result)) for result in results[case.first :]), "error": None}
    except Exception as error:  # any error of a repair is its outcome
        return {"num_bad": None, "error": f"{type(error).__name__}: {error}"[:_MAX_ERROR]}


def _minimise(case: _Case, *, time_limit_s: float, values: Path) -> dict[str, Any]:
    deadline = time.monotonic() + time_limit_s
    wanted = case.kinds(case.tensors(case.arrays))
    if not wanted[0]:
        raise AssertionError("the script does not go bad here, so its inputs cannot be shrunk")

    def is_bad(arrays: dict[str, Array]) -> bool:
        try:
            return case.kinds(case.tensors(arrays)) == wanted
        except Exception:  # the shapes do not fit together
            return False

    arrays = shrink(dict(case.arrays), is_bad, is_over=lambda: time.monotonic() > deadline)
    counts, shape, dtype = case.counts(case.tensors(arrays))
    about = {name: {"dtype": case.dtypes[name], "shape": list(arrays[name].shape)} for name in case.names}
    write_npz(values, {name: _raw(arrays[name], case.dtypes[name]) for name in case.names})
    is_cut = time.monotonic() > deadline
    return {"inputs": about, "counts": counts, "shape": shape, "dtype": dtype, "is_cut": is_cut}


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes arrays to an .npz file that NumPy loads without pickle."""
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # NumPy's own argument is named allow_pickle


def _raw(array: Array, dtype: str) -> npt.NDArray[np.uint8]:
    if dtype == "string":
        return np.frombuffer(encode_strings([bytes(element) for element in array.reshape(-1)]), np.uint8)
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def shrink(
    arrays: dict[str, Array], is_bad: Callable[[dict[str, Array]], bool], *, is_over: Callable[[], bool]
) -> dict[str, Array]:
    """Returns the smallest arrays found that still give the bad value.

    The arrays are sliced along several axes of equal size together, or along single axes. An op raises an error for
    slices that do not fit together; such slices do not count as bad.

    Args:
        arrays: The inputs by name.
        is_bad: A function that returns whether inputs still give the bad value.
        is_over: A function that returns whether to stop.
    """
    is_smaller = True
    while is_smaller and not is_over():
        is_smaller = False
        for group in _groups(arrays):
            if is_over():
                break
            name, axis = group[0]
            size = arrays[name].shape[axis]
            if any(arrays[other_name].shape[other_axis] != size for other_name, other_axis in group) or size < 2:
                continue
            is_bad_slice = partial(_is_bad_slice, is_bad, arrays, group)
            indexes = smallest(list(range(size)), is_bad_slice, is_over=is_over)
            if len(indexes) < size:
                arrays = _sliced(arrays, group, indexes)
                is_smaller = True
    return arrays


def _sliced(arrays: dict[str, Array], group: Sequence[tuple[str, int]], indexes: list[int]) -> dict[str, Array]:
    new = dict(arrays)
    for name, axis in group:
        new[name] = np.take(new[name], indexes, axis=axis)
    return new


def _is_bad_slice(
    is_bad: Callable[[dict[str, Array]], bool],
    arrays: dict[str, Array],
    group: Sequence[tuple[str, int]],
    indexes: list[int],
) -> bool:
    return is_bad(_sliced(arrays, group, indexes))


def _groups(arrays: dict[str, Array]) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yields sets of (array, axis) of equal size, from the largest set to the smallest."""
    pairs = [(name, axis) for name, array in arrays.items() for axis in range(array.ndim)]
    by_size: dict[int, list[tuple[str, int]]] = {}
    for name, axis in pairs:
        by_size.setdefault(arrays[name].shape[axis], []).append((name, axis))
    seen = set()
    for size in sorted(by_size, reverse=True):
        group = by_size[size]
        by_axis = [[pair for pair in group if pair[1] == axis] for axis in sorted({axis for _, axis in group})]
        from_end = sorted({axis - arrays[name].ndim for name, axis in group})
        by_end = [[pair for pair in group if pair[1] - arrays[pair[0]].ndim == end] for end in from_end]
        for candidate in (group, *by_axis, *by_end, *([pair] for pair in group)):
            if tuple(candidate) not in seen:
                seen.add(tuple(candidate))
                yield tuple(candidate)


def smallest(items: list[int], is_bad: Callable[[list[int]], bool], *, is_over: Callable[[], bool]) -> list[int]:
    """Returns a smallest list of items that is still bad, by delta debugging.

    Source: Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input (2002), ddmin.
    """
    num_chunks = 2
    while len(items) > 1 and not is_over():
        size = -(-len(items) // num_chunks)
        chunks = [items[start : start + size] for start in range(0, len(items), size)]
        rests = [[item for item in items if item not in set(chunk)] for chunk in chunks] if len(chunks) > 2 else []
        for candidate in (*chunks, *rests):
            if is_over():
                return items
            if is_bad(candidate):
                num_chunks = 2 if len(candidate) <= size else max(num_chunks - 1, 2)
                items = candidate
                break
        else:
            if num_chunks >= len(items):
                return items
            num_chunks = min(2 * num_chunks, len(items))
    return items


def main() -> None:
    """Runs the job in the file that the command line names."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        answer = run_job(job)
    except Exception as error:  # the parent process tells the user
        answer = {"error": f"{type(error).__name__}: {error}"[:_MAX_ERROR]}
    Path(job["result"]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
