"""Records programs of the corpus, one after the other in one process, and prints a line of JSON for each.

`python -m tests.culprit.record --repeat 50 losses.focal_loss` records one program 50 times. Without names, all programs
are recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import gc
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import tensorflow as tf

import tfdbg_arrow
from tests.culprit.corpus import Program, is_named, programs
from tests.programs.compiling import compiled
from tfdbg_arrow.query import NonFinite, alerts, provenance, read_reasons
from tfdbg_arrow.query.recorded import health_facts

SEED = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of first_nonfinite for one recording. A field is None if it does not apply or nothing was found.

    Attributes:
        name: Name of the program. is_reported: Whether a value was found that is not marked as expected.
        is_found: Whether any value was found.
        op_type: Type of the op.
        ran_as: The ops that TensorFlow ran in place of the op.
        op_name: Name of the op in its graph.
        forward: Type of the forward op of a gradient op.
        effect: What became of the bad value, such as `variable` or `absorbed`.
        path: File of the line to change.
        lineno: Number of this line, from 1.
        code: Text of this line.
        colno: Column of the start of the expression that made the value, from 1.
        end_colno: Column of the end of this expression.
        dtype: Dtype of the bad tensor.
        sentence: The sentence that says why the op made the value.
        repair: The suggested fix of the op.
        error: An undeclared exception that the program raised, or an exception of the query.
        is_compiled: Whether XLA compiled the functions of the program.
        is_refused: Whether XLA cannot compile the program, with or without a recording.
    """

    name: str
    is_reported: bool = False
    is_found: bool = False
    op_type: str | None = None
    ran_as: str | None = None
    op_name: str | None = None
    forward: str | None = None
    effect: str | None = None
    path: str | None = None
    lineno: int | None = None
    code: str | None = None
    colno: int | None = None
    end_colno: int | None = None
    dtype: str | None = None
    sentence: str | None = None
    repair: str | None = None
    error: str | None = None
    is_compiled: bool = False
    is_refused: bool = False


def is_compilable(program: Program, *, scratch: Path) -> bool:
    """Returns whether XLA compiles at least one function of the unrecorded program, and refuses none."""
    with compiled() as asked:
        error = run(program, contextlib.nullcontext(), scratch=scratch)
    return error is None and bool(asked)


def run(program: Program, recording: contextlib.AbstractContextManager[object], *, scratch: Path) -> str | None:
    """Runs a program.

    Args:
        program: The program.
        recording: Context manager in which the program runs.
        scratch: An empty directory for the files that the program needs.

    Returns:
        The text of an exception that the program raised but does not declare, a text about a declared exception that
        the program did not raise, or None.
    """
    keras.backend.clear_session()
    keras.utils.set_random_seed(SEED)
    raised: Exception | None = None
    if program.prepare is not None:
        program.prepare(scratch)
    run = program.function if program.prepare is None else functools.partial(program.function, scratch)
    with recording, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run()
        except Exception as error:
            raised = error
        finally:
            keras.config.set_dtype_policy("float32")
            tf.config.run_functions_eagerly(False)
    if program.raises is None:
        return None if raised is None else f"{type(raised).__name__}: {raised}"
    return None if isinstance(raised, program.raises) else f"{program.raises.__name__} expected, got {raised!r}"


def answer(
    program: Program, *, graphs: str = "traced", health_backend: str = "auto", is_compiled: bool = False
) -> Answer:
    """Records a program into a temporary logdir and asks for the first bad value.

    Args:
        program: The program.
        graphs: How functions are recorded, as in enable().
        health_backend: The backend that counts the elements of tensors, as in enable().
        is_compiled: Whether XLA compiles all functions of the program.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for inner in ("unrecorded", "recorded", "logdir"):
            (directory / inner).mkdir()
        if is_compiled and not is_compilable(program, scratch=directory / "unrecorded"):
            return Answer(name=program.name, is_refused=True)
        recording = tfdbg_arrow.capture(directory / "logdir", graphs=graphs, health_backend=health_backend)
        with compiled() if is_compiled else contextlib.nullcontext():
            error = run(program, recording, scratch=directory / "recorded")
        found = tfdbg_arrow.first_nonfinite(directory / "logdir")
        error = error or contradiction(directory / "logdir", found)
        reasons = None if found is None else read_reasons(directory / "logdir", found)
    gc.collect()
    if found is None:
        return Answer(name=program.name, error=error, is_compiled=is_compiled)
    explanation = None if reasons is None else reasons.explanation
    line = found.source
    return Answer(
        name=program.name,
        is_reported=not found.is_expected,
        is_found=True,
        op_type=found.op_type,
        ran_as=found.ran_as,
        op_name=found.op_name,
        forward=None if found.forward is None else found.forward.op_type,
        effect=found.effect,
        path=None if line is None else line.file_path,
        lineno=None if line is None else line.lineno,
        code=None if line is None else line.code,
        colno=None if line is None else line.colno,
        end_colno=None if line is None else line.end_colno,
        dtype=found.dtype,
        sentence=explanation.sentence if explanation is not None else None,
        repair=explanation.repair if explanation is not None else None,
        error=error,
        is_compiled=is_compiled,
    )


def contradiction(logdir: Path, culprit: NonFinite | None) -> str | None:
    """Returns a contradiction between first_nonfinite and alerts or provenance, or None if they agree."""
    found = alerts(logdir, kinds=["nonfinite_origin"]).alerts
    errors = {(alert.run_id, alert.first_event_index): alert for alert in found if alert.severity == "error"}
    if culprit is None or culprit.is_expected:
        return f"alerts has an error, but nothing bad did harm: {list(errors.values())}" if errors else None
    alert = errors.get((culprit.run_id, culprit.event_index))
    if alert is None:
        return f"alerts does not name the culprit: {found}"
    (hop, *_) = provenance(logdir, culprit.event_index, run_id=culprit.run_id).hops
    if (hop.op_type, health_facts(hop)) != (culprit.op_type, health_facts(culprit)):
        return f"provenance shows another tensor: {hop}"
    named = {(answer.source, answer.layer) for answer in (culprit, alert, hop)}
    return None if len(named) == 1 else f"the answers name different lines or layers: {named}"


def use_two_devices() -> None:
    """Splits the CPU into two logical devices, which programs with a distribution strategy need."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def main() -> None:
    """Prints an answer for each program that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs or modules; default: all")
    parser.add_argument("--repeat", type=int, default=1, help="how often each program is recorded")
    parser.add_argument("--graphs", default="traced", help="how functions are recorded: traced or executed")
    parser.add_argument("--health-backend", default="auto", help="what counts the elements: native or tensorflow")
    parser.add_argument("--compiled", action="store_true", help="let XLA compile all functions")
    options = parser.parse_args()
    use_two_devices()
    answers = sys.stdout
    sys.stdout = sys.stderr  # the programs print to stderr
    for program in programs():
        for _ in range(options.repeat if is_named(program, options.names) else 0):
            given = answer(
                program,
                graphs=options.graphs,
                health_backend=options.health_backend,
                is_compiled=options.compiled,
            )
            print(json.dumps(dataclasses.asdict(given)), file=answers, flush=True)


if __name__ == "__main__":
    main()
