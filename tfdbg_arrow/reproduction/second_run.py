"""Runs a program a second time, and records more around the op that made a bad value in the first run."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdbg_arrow.errors import LogdirError, ReproError, TfdbgArrowError
from tfdbg_arrow.query import AboutRuns, Diff, Forward, Logdir, NonFinite, Producer, open_logdir
from tfdbg_arrow.query import diff as compare
from tfdbg_arrow.query.asked_runs import ALL_RUNS
from tfdbg_arrow.query.info import parse_settings

_POLL_S = 1.0
"""Seconds between two queries of the growing logdir, which take time from the program."""
_QUERY_S = 20.0
"""Time limit for a query of the growing logdir."""
_END_S = 10.0
"""Time that a program has to end after SIGTERM; then it gets SIGKILL."""


@dataclass(frozen=True, kw_only=True)
class SecondRun:
    """The result of a second run of a program.

    Attributes:
        logdir: The logdir of the second run.
        about: Which run of the first logdir was the first run.
        first: The bad tensor of the first run.
        second: The first bad tensor of the second run; None if there is no bad tensor.
        is_same_place: Whether the same op made both bad tensors, in the same training step and iteration.
        diff: The first difference between the two runs, if the places differ. None if the places are the same, or if
            the runs could not be compared.
        why_not_compared: The reason why the runs could not be compared. None if they were compared, or if the places
            are the same.
        is_stopped: Whether the program was stopped after the step.
        program_exit_code: The program's exit code; minus the number of the signal that ended it.
    """

    logdir: str
    about: AboutRuns
    first: NonFinite
    second: NonFinite | None
    is_same_place: bool
    diff: Diff | None
    why_not_compared: str | None
    is_stopped: bool
    program_exit_code: int


def run_again(
    logdir: Path,
    program: Sequence[str],
    *,
    output: Path,
    run_id: str | None = None,
    event_index: int | None = None,
    seed: int | None = None,
    timeout_s: float | None = None,
) -> SecondRun:
    """Runs a program again, and keeps the elements of the tensors around the op that made the first bad value.

    The second run is recorded with the mode and `graphs` of the first run. The program is stopped when it has passed
    the training step after the step of the bad value. Without training steps, the program is stopped when the same op
    makes a bad value. The logdir is read once a second, so the program can run on for some steps.

    Args:
        logdir: The logdir of the first run.
        program: The script and its arguments, or `-m`, a module and its arguments.
        output: The logdir of the second run. This logdir must not hold a run.
        run_id: The first run. None means the newest run, with the other processes of its program.
        event_index: The bad tensor's row in tensor_health. None means the tensor that first_nonfinite() returns.
        seed: The seed that is set for Python, NumPy and TensorFlow before the program starts; None sets no seed.
        timeout_s: Number of seconds after which the program is stopped; None means no limit.

    Raises:
        LogdirError: A logdir cannot be read, or `output` holds a run.
        ReproError: The first run has no bad tensor, or the program recorded nothing.
    """
    with open_logdir(logdir) as opened:
        about = opened.about_runs(run_id=run_id)
        if event_index is None:
            first = opened.first_nonfinite(run_id=run_id)
        else:
            first = next(
                (tensor for tensor in opened.nonfinite(run_id=run_id, limit=None) if tensor.event_index == event_index),
                None,
            )
        if first is None:
            what = "has no bad tensor" if event_index is None else f"has no bad tensor with event index {event_index}"
            others = about.sentence
            raise ReproError(
                f"{logdir} {what}, so there is nothing to look at in a second run." + (f" {others}" if others else "")
            )
        options = _options_of(opened, first)
    if output.exists() and any(output.iterdir()):
        raise LogdirError(f"{output} is not empty; choose another directory for the second run with --logdir")
    seeds = () if seed is None else ("--seed", str(seed))
    command = [sys.executable, "-m", "tfdbg_arrow", "run", "--logdir", str(output), *options, *seeds]
    exit_code, is_stopped = _run(
        [*command, *program] if program[0] == "-m" else [*command, "--", *program], output, first, timeout_s=timeout_s
    )
    try:
        with open_logdir(output) as opened:
            second = opened.first_nonfinite(run_id=ALL_RUNS)
    except LogdirError as error:
        raise ReproError(f"the program recorded nothing (exit code {exit_code}): {error}") from error
    is_same = second is not None and _place(second) == _place(first)
    difference, why_not = (None, None) if is_same else _compare(logdir, output, first)
    return SecondRun(
        logdir=str(output),
        about=about,
        first=first,
        second=second,
        is_same_place=is_same,
        diff=difference,
        why_not_compared=why_not,
        is_stopped=is_stopped,
        program_exit_code=exit_code,
    )


def _options_of(opened: Logdir, first: NonFinite) -> list[str]:
    """Returns the options of `tfdbg-arrow run` for the second run."""
    ((mode, text),) = opened.rows(
        "SELECT tensor_debug_mode, settings FROM run WHERE run_id = $run", {"run": first.run_id}
    )
    settings = parse_settings(text)
    options = ["--mode", "FULL_HEALTH" if mode == "FULL_TENSOR" else str(mode), "--on-nonfinite", "keep"]
    # Inside XLA, no elements are kept. So functions that the first run recorded inside XLA run without XLA.
    for name, allowed in (("graphs", ("executed", "traced")), ("xla", ("observe", "keep"))):
        if settings.get(name) in allowed:
            options += [f"--{name}", settings[name]]
    return [*options, "--values", _values_pattern(opened, first)]


def _values_pattern(opened: Logdir, tensor: NonFinite) -> str:
    """Returns a regular expression for the names of the op that made a bad tensor, its forward op, and earlier ops.

    Eager ops have no names, so the expression matches their types. The inputs of the earlier ops are kept too, so that
    repairs that replace two ops, such as log-softmax, can be tried.
    """
    makers = [input_.producer for input_ in tensor.inputs if input_.producer is not None]
    ops: list[NonFinite | Producer | Forward | None] = [tensor, tensor.forward, *makers]
    names = {op.op_name or op.op_type for op in ops if op is not None}
    # The node that TensorFlow ran can have another name than the program's op.
    ran = "SELECT coalesce(op_name, op_type) FROM tensor_health WHERE run_id = $run AND event_index = $event"
    names.update(name for (name,) in opened.rows(ran, {"run": tensor.run_id, "event": tensor.event_index}))
    for maker in makers:
        rows = opened.rows(
            "SELECT DISTINCT source_op_name FROM graph_op_input JOIN graph USING (run_id, graph_id) "
            "WHERE run_id = $run AND graph_name = $graph AND op_name = $op AND NOT is_control",
            {"run": tensor.run_id, "graph": maker.graph_name, "op": maker.op_name},
        )
        names.update(name for (name,) in rows)
    return "(?:" + "|".join(re.escape(name) for name in sorted(filter(None, names))) + r")\Z"


def _place(tensor: NonFinite) -> tuple[object, ...]:
    """Returns the facts that stay the same in a second run. Function names are left out: they contain numbers."""
    source = None if tensor.source is None else (tensor.source.file_path, tensor.source.lineno)
    return tensor.op_type, tensor.op_name, tensor.output_slot, tensor.iteration, tensor.step, source


def _run(command: list[str], output: Path, first: NonFinite, *, timeout_s: float | None) -> tuple[int, bool]:
    """Runs a program until it ends or has passed the step; returns the exit code and whether it was stopped."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    process = subprocess.Popen(command, env={**os.environ, "TFDBG_ARROW": "1"})
    try:
        while True:
            try:
                return process.wait(_POLL_S), False
            except subprocess.TimeoutExpired:
                pass
            if (deadline is not None and time.monotonic() > deadline) or _is_past(output, first):
                return _ended(process), True
    finally:
        if process.poll() is None:
            _ended(process)


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Ends a process, and returns its exit code."""
    process.terminate()
    try:
        return process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _is_past(output: Path, first: NonFinite) -> bool:
    """Returns whether the second run has passed the step of the first bad value; without steps, the value itself."""
    # The logdir does not exist before the program imports TensorFlow.
    with contextlib.suppress(TfdbgArrowError), open_logdir(output) as opened, opened.within(_QUERY_S):
        if first.step is not None:
            ((last,),) = opened.rows("SELECT max(step) FROM mark")
            return last is not None and last > first.step + 1
        ((is_found,),) = opened.rows(
            "SELECT count(*) > 0 FROM tensor_health WHERE has_inf_or_nan AND op_type IS NOT DISTINCT FROM $op_type "
            "AND op_name IS NOT DISTINCT FROM $op_name",
            {"op_type": first.op_type, "op_name": first.op_name},
        )
        return bool(is_found)
    return False


def _compare(logdir: Path, output: Path, first: NonFinite) -> tuple[Diff | None, str | None]:
    try:
        with open_logdir(logdir) as a, open_logdir(output) as b:
            return compare(a, b, run_a=first.run_id, last_step=first.step), None
    except TfdbgArrowError as error:
        return None, str(error)
