"""Writes a script that reproduces a recorded bad value, and the inputs of the script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tfdbg_arrow.errors import MissingDependencyError, QueryError, ReproError
from tfdbg_arrow.query.asked_runs import about_runs, one_asked_run
from tfdbg_arrow.query.bad_tensor import BadTensorReader
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.explanation import Reasons, read_reasons
from tfdbg_arrow.query.explanation.keras_ops import in_keras_ops, name_of_keras_ops
from tfdbg_arrow.query.explanation.linear import says_zero_is_bad
from tfdbg_arrow.query.logdir.opening import opened
from tfdbg_arrow.query.nonfinite_search import first_nonfinite
from tfdbg_arrow.query.nonfinite_tensor import NonFinite
from tfdbg_arrow.query.recorded import KINDS, TensorEvent
from tfdbg_arrow.query.stacks import Frame, source_lines
from tfdbg_arrow.query.trace_back import bad_start
from tfdbg_arrow.query.wording import call_lines, gradient_text, nonfinite_facts
from tfdbg_arrow.reproduction.elements import Array, ElementReader, Elements
from tfdbg_arrow.reproduction.fixes import (
    Fix,
    argument_texts,
    diff_lines,
    edited_line,
    epsilon_of,
    fixes_for,
)
from tfdbg_arrow.reproduction.pieces import (
    GradientPiece,
    NotRecordedError,
    OutputRef,
    Piece,
    PieceFinder,
    PieceInput,
    unfused,
)
from tfdbg_arrow.reproduction.script import (
    UPSTREAM,
    Facts,
    ScriptContent,
    call_text,
    expected_of,
    render,
)
from tfdbg_arrow.reproduction.trial import write_npz

DEFAULT_TIME_LIMIT_S = 60.0
"""Maximum time in seconds of the search for smaller inputs."""
_START_TIME_S = 300.0
"""Maximum time in seconds of the start of TensorFlow and a run of the script; after that, a trial counts as failed."""


@dataclass(frozen=True, kw_only=True)
class ReproInput:
    """One input of a script.

    Attributes:
        name: The name of the array in the .npz file.
        dtype: TensorFlow's name of the dtype.
        shape: Dimensions.
        made_by: The op of the program that made the input; None if the op is not known.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    made_by: str | None


@dataclass(frozen=True, kw_only=True)
class TriedFix:
    """A standard repair that was tried. A repair is only a suggestion, because it changes the computation.

    Attributes:
        label: The effect of the repair, in a few words.
        code: The code that ran in place of the op.
        is_finite: Whether the result was finite; None if the code raised an error.
        num_bad: Number of elements of the result that are infinite or NaN; None if the code raised an error.
        error: The error; None if there was none.
        diff: The change of the user's line as a unified diff. If the op cannot be found in that line, the diff shows
            the change of the script.
        is_users_line: Whether the diff changes the user's line.
    """

    label: str
    code: str
    is_finite: bool | None
    num_bad: int | None
    error: str | None
    diff: tuple[str, ...]
    is_users_line: bool


@dataclass(frozen=True, kw_only=True)
class Repro:
    """A script that reproduces a recorded bad value.

    Attributes:
        path: The script.
        data_path: The .npz file with the inputs of the script.
        nonfinite: The bad tensor.
        op_types: The types of the ops that the script runs, in order. The last one makes the bad value.
        inputs: The inputs.
        has_gradient: Whether the script also runs the forward op under a gradient tape.
        advice: How to fix the cause, in a sentence; None if the counts do not prove the cause.
        fixes: The repairs that were tried; empty if no repairs were requested, or if the op has no standard repairs.
        sample_path: The .npz file with the first bad sample of the batch; None if the inputs of the step were not kept.
        sample: The inputs of the step in this file. Each input is a batch with only the bad sample.
        shapes_before: The shapes of the inputs before they were shrunk, by name; None if shrinking was not requested.
        is_cut: Whether the time limit ended the search for smaller inputs.
    """

    path: str
    data_path: str
    nonfinite: NonFinite
    op_types: tuple[str, ...]
    inputs: tuple[ReproInput, ...]
    has_gradient: bool
    advice: str | None
    fixes: tuple[TriedFix, ...] = ()
    sample_path: str | None = None
    sample: tuple[ReproInput, ...] = ()
    shapes_before: Mapping[str, tuple[int, ...]] | None = None
    is_cut: bool = False


def write_repro(
    logdir: Engine | str | Path,
    path: str | Path,
    *,
    event_index: int | None = None,
    run_id: str | None = None,
    depth: int = 0,
    fix: bool = False,
    minimise: bool = False,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
) -> Repro:
    """Writes a script that runs the op that made a bad value with its recorded inputs, and asserts the bad result.

    The script needs TensorFlow and NumPy. An .npz file of the same name contains the inputs. A second .npz file,
    `NAME_sample.npz`, contains the bad sample of the batch, if this sample is known and the recording kept the inputs
    of the step, as `on_nonfinite="keep"` does. The file holds what the program passed to the step, as a batch of one.
    Existing files are replaced. The sample is also written if no script is possible, for example because the data
    itself is bad. Writing the script does not need TensorFlow. But `fix` and `minimise` need TensorFlow, because they
    run the op in a separate process.

    The inputs must have been recorded: with `on_nonfinite="keep"`, with `values=`, or in mode FULL_TENSOR. If an input
    was not recorded, the script computes it from earlier recorded tensors, if possible.

    Args:
        logdir: An open logdir or its path.
        path: The path of the script, which ends in `.py`.
        event_index: The bad tensor's row in tensor_health; None means the tensor that `first_nonfinite` returns.
        run_id: The run. None means the newest run, with the other processes of its program.
        depth: Number of earlier ops on each path that the script also runs, if the inputs of these ops were recorded.
        fix: Whether to try standard repairs.
        minimise: Whether to shrink the inputs to the smallest inputs found that give the same kinds of bad values.
        time_limit_s: Maximum time of the search for smaller inputs, in seconds.

    Raises:
        ReproError: A script cannot run the op, or an input was not recorded.
        LogdirError: The path is not a readable logdir.
        QueryError: An argument is wrong, or the recording has no bad value.
        BrokenPartError: A part cannot be read.
        MissingDependencyError: TensorFlow is not installed, and `fix` or `minimise` needs it.
    """
    target = Path(path)
    if target.suffix != ".py":
        raise QueryError(f"the path of the script is {str(target)!r}; expected a name that ends in .py.")
    if depth < 0:
        raise QueryError(f"depth is {depth}; expected 0 or more ops.")
    sample_path = target.with_name(f"{target.stem}_sample.npz")
    with opened(logdir) as open_:
        bad = _read_bad(open_, event_index=event_index, run_id=run_id)
        if bad.sample:
            _write_arrays(sample_path, {name: elements.plain_array for name, elements in bad.sample.items()})
        try:
            read = _read(open_, bad, depth=depth, is_fixed=fix)
        except ReproError as error:
            if not bad.sample:
                raise
            inputs = ", ".join(f"{name} {input_.dtype} {list(input_.shape)}" for name, input_ in bad.sample.items())
            raise ReproError(f"{error} The bad sample of the batch was written to {sample_path}: {inputs}.") from None
    tensor, content, deeper = bad.nonfinite, read.content, read.deeper
    with tempfile.TemporaryDirectory(prefix="tfdbg_arrow-") as directory:
        trials = _Trials(Path(directory))
        if fix or minimise:
            content = trials.resolved(content)
        tried = trials.resolved(deeper) if deeper is not None else content
        fixes = trials.fixes(tried, tensor, advice=read.advice or "", keras_ops=read.keras_ops) if fix else ()
        before, is_cut = None, False
        if minimise:
            before = {name: input_.elements.shape for name, input_ in content.inputs.items()}
            content, is_cut = trials.minimised(content, time_limit_s)
    data_path = target.with_suffix(".npz")
    _write(content, target, data_path)
    return Repro(
        path=str(target),
        data_path=str(data_path),
        nonfinite=tensor,
        op_types=tuple(op.op_type for op in content.pieces[0].ops),
        inputs=tuple(
            ReproInput(name=name, dtype=input_.elements.dtype, shape=input_.elements.shape, made_by=input_.made_by)
            for name, input_ in content.inputs.items()
        ),
        has_gradient=content.gradient is not None,
        advice=read.advice,
        fixes=fixes,
        sample_path=str(sample_path) if bad.sample else None,
        sample=tuple(
            ReproInput(name=name, dtype=elements.dtype, shape=elements.shape, made_by=None)
            for name, elements in bad.sample.items()
        ),
        shapes_before=before,
        is_cut=is_cut,
    )


@dataclass(frozen=True, kw_only=True)
class _Bad:
    """The bad tensor.

    Attributes:
        finder: Finds the ops that a script runs, in the run of the tensor.
        computed: The row of the op that computed the tensor.
        nonfinite: The answer about the tensor.
        sample: The first bad sample of the batch, by input of the step; empty if it is not known.
    """

    finder: PieceFinder
    computed: TensorEvent
    nonfinite: NonFinite
    sample: Mapping[str, Elements]


@dataclass(frozen=True, kw_only=True)
class _Read:
    """The data that was read from a logdir for a script.

    Attributes:
        content: The script that reproduces the bad tensor.
        deeper: The script with more earlier ops, and with separate ops in place of fused ops. This script is for
            repairs that replace one or two ops. None if no repairs are tried.
        advice: How to fix the cause.
        keras_ops: The name for keras.ops in the file with the user's line; None if the file imports TensorFlow.
    """

    content: ScriptContent
    deeper: ScriptContent | None
    advice: str | None
    keras_ops: str | None


def _read_bad(logdir: Engine, *, event_index: int | None, run_id: str | None) -> _Bad:
    if event_index is None:
        first = first_nonfinite(logdir, run_id=run_id)
        if first is None:
            about = about_runs(logdir, run_id).sentence
            raise QueryError(
                f"no recorded tensor of {logdir.path} holds an infinity or a NaN." + (f" {about}" if about else "")
            )
        run, event_index = first.run_id, first.event_index
    else:
        run = one_asked_run(logdir, run_id)
    finder = PieceFinder(logdir, run_id=run)
    with finder.flow.lock:
        event = bad_start(finder.flow, event_index, run_id=run)
        computed = finder.flow.computed(event)
        reader = BadTensorReader(logdir, run_id=run, kinds=KINDS)
        tensor = reader.describe(computed, effect=None)
    return _Bad(
        finder=finder,
        computed=computed,
        nonfinite=tensor,
        sample={} if tensor.samples is None else ElementReader(logdir, run_id=run).sample(tensor.samples),
    )


def _read(logdir: Engine, bad: _Bad, *, depth: int, is_fixed: bool) -> _Read:
    finder, computed, tensor = bad.finder, bad.computed, bad.nonfinite
    with finder.flow.lock:
        gradient = finder.gradient(computed)
        piece: Piece | None = None
        try:
            piece = finder.piece(computed, depth=depth)
        except NotRecordedError:
            if gradient is None or gradient.upstream is None:
                raise
        deeper: Piece | None = None
        if is_fixed and piece is not None:
            deeper = unfused(piece if depth > 0 else finder.piece(computed, depth=1))
    reasons = read_reasons(logdir, tensor)
    facts = _facts(logdir, tensor, reasons)
    last = piece.ops[-1] if piece is not None else gradient.forward.ops[-1] if gradient is not None else None
    assert last is not None
    expected = expected_of(computed, last, is_origin=tensor.is_origin)
    content = ScriptContent(facts=facts, expected=expected, piece=piece, gradient=gradient)
    module = None if tensor.source is None else finder.flow.stacks.module(tensor.source.file_path)
    return _Read(
        content=content,
        deeper=None if deeper is None else replace(content, piece=deeper),
        advice=None if reasons.explanation is None else reasons.explanation.repair,
        keras_ops=None if module is None else name_of_keras_ops(module),
    )


def _facts(logdir: Engine, tensor: NonFinite, reasons: Reasons) -> Facts:
    lines = [f"{name}: {text}" for name, text in nonfinite_facts(tensor)]
    lines += reasons.sentences
    if tensor.forward is not None:
        forward = tensor.forward
        name = f" ({forward.op_name})" if forward.op_name else ""
        lines.append(f"{gradient_text(forward)}{name}")
        if forward.source is not None:
            code = f": {forward.source.code}" if forward.source.code else ""
            lines.append(f"the line of the forward op: {forward.source.place}{code}")
    around: tuple[tuple[int, str], ...] = ()
    if tensor.source is not None:
        read = source_lines(logdir, tensor.source, run_id=tensor.run_id)
        around = tuple((line.lineno, line.text) for line in read)
    return Facts(
        headline=tensor.headline,
        lines=tuple(lines),
        source=tensor.source,
        source_lines=around,
        stack=tuple(call_lines(tensor)),
    )


def _write(content: ScriptContent, path: Path, data: Path) -> None:
    _write_arrays(data, {name: input_.elements.array for name, input_ in content.inputs.items()})
    try:
        path.write_text(render(content, npz_name=data.name), encoding="utf-8")
    except OSError as error:
        raise ReproError(f"the script cannot be written to {path}: {error.strerror or error}.") from error


def _write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    try:
        write_npz(path, arrays)
    except OSError as error:
        raise ReproError(f"the arrays cannot be written to {path}: {error.strerror or error}.") from error


class _Trials:
    """Runs scripts in another process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._num_files = 0

    def resolved(self, content: ScriptContent) -> ScriptContent:
        """Returns a script in which each op has the attributes that gave the recorded output."""
        if all(len(op.choices) == 1 for piece in content.pieces for op in piece.ops):
            return content
        if content.piece is not None:
            chosen = self._run("choices", [replace(content, gradient=None)])["chosen"]
            content = replace(content, piece=_chosen(content.piece, chosen))
        if content.gradient is not None:
            chosen = self._run("choices", [replace(content, piece=None)])["chosen"]
            forward = _chosen(content.gradient.forward, chosen)
            content = replace(content, gradient=replace(content.gradient, forward=forward))
        return content

    def fixes(
        self, content: ScriptContent, tensor: NonFinite, *, advice: str, keras_ops: str | None
    ) -> tuple[TriedFix, ...]:
        """Tries the repairs for the last op or, for a gradient, the repairs for its forward op.

        Repairs that the advice refutes are left out.
        """
        if content.gradient is not None:
            content = replace(content, piece=None)
        (piece,) = content.pieces
        eps = epsilon_of(piece.ops[-1].dtype)
        candidates = [
            (fix, fix.code.replace("{eps}", eps)) for fix in fixes_for(piece, needs_nonzero=says_zero_is_bad(advice))
        ]
        if not candidates:
            return ()
        scripts = [replace(content, replaced=code) for _, code in candidates]
        outcomes = self._run("fix", scripts)["outcomes"]
        tried = []
        for (fix, _), script, outcome in zip(candidates, scripts, outcomes, strict=True):
            diff, is_users = _diff(fix, piece, tensor.source, content, script, keras_ops=keras_ops)
            num_bad = outcome["num_bad"]
            is_finite = None if num_bad is None else num_bad == 0
            tried.append(
                TriedFix(
                    label=fix.label,
                    code=call_text(script),
                    is_finite=is_finite,
                    num_bad=num_bad,
                    error=outcome["error"],
                    diff=diff,
                    is_users_line=is_users,
                )
            )
        return tuple(tried)

    def minimised(self, content: ScriptContent, time_limit_s: float) -> tuple[ScriptContent, bool]:
        """Returns the script with smaller inputs, and whether the time limit ended the search.

        The inputs of the op and the inputs of the forward op are shrunk separately. The forward op is left out if its
        gradient is not bad.
        """
        is_cut = False
        if content.piece is not None:
            read, answer = self._shrunk(replace(content, gradient=None), time_limit_s)
            piece = _without_shapes(replace(content.piece, inputs=_with_elements(content.piece.inputs, read, "x")))
            counts = None if content.expected.counts is None else tuple(answer["counts"])
            expected = replace(content.expected, shape=tuple(answer["shape"]), counts=counts)
            content = replace(content, piece=piece, expected=expected)
            is_cut = bool(answer["is_cut"])
        if content.gradient is not None:
            forward, upstream = content.gradient.forward, content.gradient.upstream
            try:
                read, answer = self._shrunk(replace(content, piece=None), time_limit_s)
            except ReproError:
                if content.piece is None:
                    raise
                return replace(content, gradient=None), is_cut
            forward = _without_shapes(replace(forward, inputs=_with_elements(forward.inputs, read, "forward_x")))
            upstream = None if upstream is None else replace(upstream, elements=read[UPSTREAM])
            content = replace(content, gradient=GradientPiece(forward=forward, upstream=upstream))
            is_cut = is_cut or bool(answer["is_cut"])
        return content, is_cut

    def _shrunk(self, content: ScriptContent, time_limit_s: float) -> tuple[dict[str, Elements], Any]:
        values = self._directory / "values.npz"
        answer = self._run("minimise", [content], time_limit_s=time_limit_s, values=str(values))
        with np.load(values, allow_pickle=False) as arrays:
            read = {
                name: Elements(about["dtype"], tuple(about["shape"]), arrays[name].tobytes())
                for name, about in answer["inputs"].items()
            }
        return read, answer

    def _run(self, task: str, scripts: Sequence[ScriptContent], *, time_limit_s: float = 0.0, **options: str) -> Any:
        paths = []
        for content in scripts:
            self._num_files += 1
            path = self._directory / f"case{self._num_files}.py"
            _write(content, path, path.with_suffix(".npz"))
            paths.append(str(path))
        job, result = self._directory / "job.json", self._directory / "result.json"
        about = {"task": task, "scripts": paths, "result": str(result), "time_limit_s": time_limit_s, **options}
        job.write_text(json.dumps(about), encoding="utf-8")
        result.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tfdbg_arrow.reproduction.trial", str(job)]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3")}
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=time_limit_s + _START_TIME_S, env=environment, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ReproError(f"the script did not end within {error.timeout:.0f} seconds.") from None
        if not result.exists():
            last = done.stderr.decode("utf-8", "backslashreplace").strip().splitlines()[-1:]
            raise ReproError(f"the process that runs the script ended with code {done.returncode}: {''.join(last)}")
        answer = json.loads(result.read_text(encoding="utf-8"))
        error_text = answer.get("error")
        if error_text is not None and error_text.startswith("ModuleNotFoundError: No module named 'tensorflow'"):
            raise MissingDependencyError("TensorFlow is not installed, and runs the op; run: pip install tensorflow")
        if error_text is not None:
            raise ReproError(f"the script raised an error: {error_text}")
        return answer


def _chosen(piece: Piece, chosen: Mapping[str, int]) -> Piece:
    """Returns a piece with the attributes that gave the recorded output in the script."""
    by_index = {int(name.rpartition("_")[2]) - 1: number for name, number in chosen.items()}
    ops = tuple(replace(op, choices=(op.choices[by_index.get(index, 0)],)) for index, op in enumerate(piece.ops))
    return replace(piece, ops=ops)


def _with_elements(inputs: Sequence[PieceInput], read: Mapping[str, Elements], prefix: str) -> tuple[PieceInput, ...]:
    return tuple(replace(input_, elements=read[f"{prefix}{index}"]) for index, input_ in enumerate(inputs))


def _without_shapes(piece: Piece) -> Piece:
    return replace(piece, ops=tuple(replace(op, shape=None) for op in piece.ops))


def _diff(
    fix: Fix, piece: Piece, source: Frame | None, old: ScriptContent, new: ScriptContent, *, keras_ops: str | None
) -> tuple[tuple[str, ...], bool]:
    op = piece.ops[-1]
    other_code = {"eps": epsilon_of(op.dtype)}
    first = op.arguments[0][1] if op.arguments else None
    if isinstance(first, OutputRef):
        maker = piece.ops[first.op]
        line = None if maker.source is None else maker.source.code
        texts = argument_texts(line, maker.op_type)
        for index, (name, _) in enumerate(maker.arguments):
            other_code[f"{op.arguments[0][0]}_{name}"] = texts[index] if index < len(texts) else name
    line_of = source if source is not None and source.code else op.source
    if line_of is not None and line_of.code:
        edited = edited_line(line_of.code, fix, op.op_type, [name for name, _ in op.arguments], other_code)
        if edited is not None and edited != line_of.code:
            edited = edited if keras_ops is None else in_keras_ops(edited, keras_ops)
            return diff_lines(line_of.code, edited, line_of), True
    before = render(old, npz_name="repro.npz").splitlines()
    after = render(new, npz_name="repro.npz").splitlines()
    changed = [(one, two) for one, two in zip(before, after, strict=True) if one != two]
    lines = changed[0] if changed else ("", "")
    return diff_lines(lines[0].strip(), lines[1].strip(), None), False
