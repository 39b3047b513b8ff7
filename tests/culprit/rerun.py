"""Applies the repairs of answers to programs, runs the repaired programs, and prints a line of JSON for each.

`python -m tests.culprit.rerun ANSWERS` reads the lines that `python -m tests.culprit.record` printed.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# The module `record` sets the environment variables that TensorFlow reads at its import.
from tests.culprit.record import Answer, answer, use_two_devices  # isort: skip

import numpy as np
import tensorflow as tf

from tests.culprit.corpus import Program, load_program, programs
from tests.culprit.repairs import Repaired, repaired_text


def rerun(program: Program, given: Mapping[str, Any]) -> Repaired:
    """Applies the repair of an answer to its program, and runs the program again.

    Args:
        program: The program.
        given: The answer, with the fields of record.Answer.
    """
    text, is_by_hand = repaired_text(program, given)
    told = Repaired(name=program.name, repair=given["repair"], is_by_hand=is_by_hand, outcome="not applied")
    if text is None:
        return told
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / program.path.name
        path.write_text(text)
        new = load_program(path, program.name.rpartition(".")[2])
        variables: list[Any] = []
        results: list[Any] = []

        def run(*arguments: Any) -> None:
            with tf.variable_creator_scope(_keep_in(variables)):
                results.append(new.function(*arguments))

        second = answer(dataclasses.replace(new, function=run, raises=None), graphs="executed")
    reason = _why_not_finite(program, second, [*results, *variables])
    return dataclasses.replace(told, outcome="finite" if reason is None else "not finite", reason=reason)


def _keep_in(variables: list[Any]) -> Callable[..., Any]:
    def create(next_creator: Callable[..., Any], **arguments: Any) -> Any:
        variables.append(next_creator(**arguments))
        return variables[-1]

    return create


def _why_not_finite(program: Program, second: Answer, values: list[Any]) -> str | None:
    """Returns the reason why a repaired program is not finite, or None if it is finite.

    The recording of the program must not report a bad value. The function also checks the program's variables and the
    values that it returns. Without these checks, the test would only compare the package with itself.
    """
    is_declared = program.raises is not None and (second.error or "").startswith(program.raises.__name__)
    if second.error is not None and not is_declared:
        return f"ERROR {second.error}"
    if second.is_reported:
        return f"{second.op_type} -> {second.effect}, line {second.lineno}: {second.code}: {second.sentence}"
    bad = [value for value in tf.nest.flatten(values) if not _is_finite(value)]
    return f"{bad[0]} is not finite" if bad else None


def _is_finite(value: Any) -> bool:
    if isinstance(value, tf.Variable | tf.Tensor) and not hasattr(value, "numpy"):
        return True  # the variable belongs to a graph, and has no value outside its session
    array = np.asarray(value)
    return not np.issubdtype(array.dtype, np.inexact) or bool(np.isfinite(array).all())


def main() -> None:
    """Prints the outcome for each program that has a bug and an answer."""
    answers = {fields["name"]: fields for fields in map(json.loads, Path(sys.argv[1]).read_text().splitlines())}
    use_two_devices()
    printed = sys.stdout
    sys.stdout = sys.stderr  # the programs print to stderr
    for program in programs():
        if program.culprit is not None and program.name in answers:
            outcome = rerun(program, answers[program.name])
            print(json.dumps(dataclasses.asdict(outcome)), file=printed, flush=True)


if __name__ == "__main__":
    main()
