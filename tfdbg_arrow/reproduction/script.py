"""Writes the text of a repro script.

A logdir is untrusted. The code of a script consists of texts of this package, names from op_signatures.json, and Python
literals. All other data of the recording is in comments of one line each, or in the file with the inputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tfdbg_arrow._version import __version__
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.query.stacks import Frame
from tfdbg_arrow.reproduction.op_signatures import DtypeName, Value
from tfdbg_arrow.reproduction.pieces import GradientPiece, InputRef, Operand, OutputRef, Piece, PieceInput, PieceOp
from tfdbg_arrow.reproduction.script_parts import (
    CHECK_GRADIENT,
    CHECK_RUN,
    COUNT,
    FITTING,
    LOAD,
    NODE,
    SHOW_GRADIENT,
)
from tfdbg_arrow.safe_text import printable, printable_line

_MAX_COMMENT = 400
"""Maximum number of characters of a comment. Names of ops can be very long."""
_NAMED_DTYPES = frozenset({
    "bfloat16", "bool", "complex128", "complex64", "float16", "float32", "float64", "int16", "int32", "int64", "int8",
    "string", "uint16", "uint32", "uint64", "uint8",
})  # fmt: skip
"""Dtypes that are attributes of the module `tensorflow`."""
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
UPSTREAM = "upstream"
"""The name of the gradient of the forward op's output."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The recorded facts of the bad tensor, which a script compares with its result.

    Attributes:
        op_type: The type of the op that made the tensor.
        dtype: The dtype of the tensor; None if unknown.
        shape: The shape of the tensor; None if unknown.
        kinds: The kinds of bad elements: `nan`, `inf`, or both kinds if the recording does not distinguish them.
        is_certain: Whether the recording distinguishes the kinds.
        is_origin: Whether no input contains one of the kinds.
        counts: The numbers of NaN, -Inf and +Inf; None if they were not measured, or if the op is random.
    """

    op_type: str
    dtype: str | None
    shape: tuple[int, ...] | None
    kinds: tuple[str, ...]
    is_certain: bool
    is_origin: bool
    counts: tuple[int, int, int] | None


def expected_of(event: TensorEvent, op: PieceOp, *, is_origin: bool) -> Expected:
    """Returns the recorded facts of a bad tensor."""
    counts = (event.num_nan, event.num_neg_inf, event.num_pos_inf)
    is_measured = None not in counts
    return Expected(
        op_type=op.op_type,
        dtype=op.dtype,
        shape=event.shape,
        counts=counts if is_measured and not op.signature.is_random else None,  # type: ignore[arg-type]
        kinds=tuple(sorted(event.bad_kinds())),
        is_certain=is_measured,
        is_origin=is_origin,
    )


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts in the comments of a script.

    Attributes:
        headline: The bad tensor, in one sentence.
        lines: More facts, one line each.
        source: The line of the user's code to look at.
        source_lines: The lines around this line, as (number, text).
        stack: The calls that led to this line, innermost first, one line each.
    """

    headline: str
    lines: tuple[str, ...]
    source: Frame | None
    source_lines: tuple[tuple[int, str], ...]
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ScriptContent:
    """The content of a script. `piece` is None if only the gradient of the forward op can be run.

    Attributes:
        facts: The facts in the comments.
        expected: The recorded facts of the bad tensor.
        piece: The op that made the bad value, and the ops before it.
        gradient: The forward op whose gradient made the bad value.
        replaced: Code that replaces the call of the last op. The last op is in the piece, or is the forward op. None
            means that the op itself runs.
    """

    facts: Facts
    expected: Expected
    piece: Piece | None
    gradient: GradientPiece | None = None
    replaced: str | None = None

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces that the script runs: `piece`, and the piece of the forward op."""
        forward = None if self.gradient is None else self.gradient.forward
        return tuple(piece for piece in (self.piece, forward) if piece is not None)

    @property
    def inputs(self) -> dict[str, PieceInput]:
        """The inputs by name."""
        return {**self.own_inputs, **self.forward_inputs}

    @property
    def own_inputs(self) -> dict[str, PieceInput]:
        """The inputs of the piece, by name."""
        return {} if self.piece is None else {f"x{index}": input_ for index, input_ in enumerate(self.piece.inputs)}

    @property
    def forward_inputs(self) -> dict[str, PieceInput]:
        """The inputs of the forward op, and the gradient of the forward op's output, by name."""
        if self.gradient is None:
            return {}
        inputs = {f"forward_x{index}": input_ for index, input_ in enumerate(self.gradient.forward.inputs)}
        return inputs if self.gradient.upstream is None else {**inputs, UPSTREAM: self.gradient.upstream}


def comment(text: str, indent: int = 0) -> str:
    """Returns a comment of one line. Control characters are escaped, and a long text is cut."""
    line = printable_line(text)
    line = line if len(line) <= _MAX_COMMENT else f"{line[:_MAX_COMMENT]} …"
    return (" " * indent + "# " + line).rstrip()


def literal(value: Value) -> str:
    """Returns the value of an attribute as Python code."""
    if isinstance(value, DtypeName):
        return f"tf.{value.name}" if value.name in _NAMED_DTYPES else f"tf.as_dtype({value.name!r})"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, float):
        return repr(value) if abs(value) < float("inf") else f"float({str(value)!r})"
    if isinstance(value, str):
        return ascii(value)
    if value is None or isinstance(value, (bool, int)):
        return repr(value)
    raise TypeError(f"{type(value).__name__} has no literal")


def render(content: ScriptContent, *, npz_name: str) -> str:
    """Returns the text of a script.

    Args:
        content: The content of the script.
        npz_name: The name of the file with the inputs, in the directory of the script.
    """
    blocks = [_header(content, npz_name), _constants(content, npz_name), LOAD, COUNT]
    ops = [op for piece in content.pieces for op in piece.ops]
    if any(len(op.choices) > 1 for op in ops):
        blocks.append(FITTING)
    if any(not op.signature.is_raw for op in ops):
        blocks.append(NODE)
    if content.piece is not None:
        blocks.append(_run_function(content, content.piece))
    if content.gradient is not None:
        blocks.append(_gradient_function(content, content.gradient))
    blocks.append(_main(content))
    return "\n\n".join(block.strip("\n") + "\n" for block in blocks)


def _header(content: ScriptContent, npz_name: str) -> str:
    facts = content.facts
    lines = [
        # The first two lines contain no text of a logdir, because Python reads the encoding of the script from them.
        "# Runs the op that made a bad value.",
        "#",
        comment(facts.headline),
        "#",
        f"# tfdbg-arrow {__version__} wrote this script from a recording. It needs TensorFlow, NumPy, and the .npz",
        "# file with the inputs beside it. What was recorded:",
        "#",
        *(comment(f"  {line}") for line in facts.lines),
    ]
    if facts.source is not None:
        lines += ["#", comment(f"{facts.source.place} in {facts.source.func}")]
        width = len(str(facts.source_lines[-1][0])) if facts.source_lines else 0
        for number, text in facts.source_lines:
            lines.append(comment(f"  {'>' if number == facts.source.lineno else ' '} {number:>{width}} | {text}"))
        if not facts.source_lines and facts.source.code:
            lines.append(comment(f"  > {facts.source.lineno} | {facts.source.code}"))
    if facts.stack:
        lines += ["#", "# Called from, innermost first:", *(comment(f"  {line}") for line in facts.stack)]
    imports = ["from pathlib import Path", "", "import numpy as np"]
    return "\n".join([*lines, "", *imports, "import tensorflow as tf"])


def _constants(content: ScriptContent, npz_name: str) -> str:
    lines = [f"DATA = Path(__file__).with_name({npz_name!a})", "INPUTS = {"]
    for name, input_ in content.inputs.items():
        by = "" if input_.made_by is None else f"  # made by {printable(input_.made_by)[:120]}"
        lines.append(f"    {name!r}: ({input_.elements.dtype!r}, {input_.elements.shape!r}),{by}")
    lines += ["}", '"""The dtype and the shape of each input."""']
    lines += ["EXPECTED = {", *(f"    {name!r}: {value!r}," for name, value in vars(content.expected).items()), "}"]
    lines += ['"""What was recorded of the bad tensor. `counts` are the numbers of NaN, -Inf and +Inf."""']
    return "\n".join(lines)


@dataclass
class _Body:
    """The statements that run the ops of a piece."""

    piece: Piece
    prefix: str
    replaced: str | None
    names: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for index, op in enumerate(self.piece.ops):
            is_last = index == len(self.piece.ops) - 1
            name = f"{_snake(op.op_type)}_{index + 1}"
            call = self._call(op, name, is_last=is_last)
            if is_last and self.replaced is not None:
                call = self.replaced.format_map(self._expressions(op))
            if op.source is not None:
                code = "" if op.source.code is None else f": {op.source.code}"
                self.lines.append(comment(f"{op.source.place}{code}", 4))
            if len(op.choices) > 1:
                self.lines.append(
                    "    # The recording does not have all attributes of this op: these are tried in turn."
                )
            self.lines.append(f"    {name} = {call}")
            self.names.append(name)

    def result(self, index: int) -> str:
        op = self.piece.ops[index]
        is_replaced = self.replaced is not None and index == len(self.piece.ops) - 1
        return self.names[index] if op.signature.is_single or is_replaced else f"{self.names[index]}[{op.slot}]"

    def _operand(self, operand: Operand) -> str:
        if isinstance(operand, InputRef):
            return f"{self.prefix}x{operand.index}"
        op = self.piece.ops[operand.op]
        return self.names[operand.op] + ("" if op.signature.is_single else f"[{operand.slot}]")

    def _argument(self, operand: Operand | tuple[Operand, ...]) -> str:
        if isinstance(operand, tuple):
            return f"[{', '.join(map(self._operand, operand))}]"
        return self._operand(operand)

    def _expressions(self, op: PieceOp) -> dict[str, str]:
        """Returns the code of the op's inputs, by argument, and the code of the inputs of the ops that made them."""
        expressions = {}
        for name, operand in op.arguments:
            expressions[name] = self._argument(operand)
            if isinstance(operand, OutputRef):
                maker = self.piece.ops[operand.op]
                expressions |= {
                    f"{name}_{inner}": self._argument(inner_operand) for inner, inner_operand in maker.arguments
                }
        return expressions

    def _call(self, op: PieceOp, name: str, *, is_last: bool) -> str:
        inputs = {argument: self._argument(operand) for argument, operand in op.arguments}
        if op.signature.is_raw:
            called, given = f"tf.raw_ops.{op.op_type}", inputs
        else:
            called = "run_node"
            flat = ", ".join(map(self._operand, op.operands))
            given = {"op_type": repr(op.op_type), "inputs": f"[{flat}]", **self._node_types(op, inputs)}
        words = [f"{argument}={code}" for argument, code in given.items()]
        if len(op.choices) > 1:
            choices = ", ".join(_dict(choice) for choice in op.choices)
            expected = "EXPECTED" if is_last else "None"
            about = f"slot={op.slot}, dtype={op.dtype!r}, shape={op.shape!r}, expected={expected}"
            call = f"lambda **more: {called}({', '.join((*words, '**more'))})"
            return f"first_fitting({name!r}, {call}, [{choices}], {about})"
        words += [f"{argument}={literal(value)}" for argument, value in op.choices[0].items()]
        call = f"{called}({', '.join(words)})"
        return call if op.signature.is_single else f"tf.nest.flatten({call})"

    def _node_types(self, op: PieceOp, inputs: Mapping[str, str]) -> dict[str, str]:
        arguments = dict(op.arguments)
        code_of_attribute = {}
        for attribute, argument in op.signature.types:
            operand = arguments[argument]
            if isinstance(operand, tuple):
                dtypes = (f"{self._operand(element)}.dtype" for element in operand)
                code_of_attribute[attribute] = f"[{', '.join(dtypes)}]"
            else:
                code_of_attribute[attribute] = f"{inputs[argument]}.dtype"
        for argument, length in op.signature.inputs:
            operand = arguments[argument]
            if length and isinstance(operand, tuple):
                code_of_attribute[length] = str(len(operand))
        return code_of_attribute


def _dict(attributes: Mapping[str, Value]) -> str:
    return "{" + ", ".join(f"{name!r}: {literal(value)}" for name, value in attributes.items()) + "}"


def _run_function(content: ScriptContent, piece: Piece) -> str:
    replaced = content.replaced if content.gradient is None else None
    body = _Body(piece, "", replaced)
    results = ", ".join(f"({op.op_type!r}, {body.result(index)})" for index, op in enumerate(piece.ops))
    head = f"def run({', '.join(content.own_inputs)}):"
    text = '    """Runs the ops, and returns the type and the result of each."""'
    return "\n".join([head, text, *body.lines, f"    return [{results}]"])


def _gradient_function(content: ScriptContent, gradient: GradientPiece) -> str:
    body = _Body(gradient.forward, "forward_", content.replaced)
    result = body.result(len(gradient.forward.ops) - 1)
    names = [name for name in content.forward_inputs if name != UPSTREAM]
    floats = ("bfloat", "complex", "float")
    watched = ", ".join(name for name in names if content.forward_inputs[name].elements.dtype.startswith(floats))
    seeds = "" if gradient.upstream is None else f", output_gradients={UPSTREAM}"
    ones = "    # The bad value does not depend on the gradient of the output, so ones stand for it."
    lines = [
        f"def run_gradient({', '.join(content.forward_inputs)}):",
        '    """Runs the forward op under a tape, and returns the gradients of its inputs."""',
        "    with tf.GradientTape() as tape:",
        f"        tape.watch([{watched}])",
        *("    " + line for line in body.lines),
        *([] if seeds else [ones]),
        f"    return tape.gradient({result}, [{watched}]{seeds})",
    ]
    return "\n".join(lines)


def call_text(content: ScriptContent) -> str:
    """Returns the code that replaces the last op."""
    body = _Body(content.pieces[-1], "" if content.gradient is None else "forward_", content.replaced)
    return body.lines[-1].partition(" = ")[2]


def _main(content: ScriptContent) -> str:
    lines = [
        "def main():",
        '    """Runs everything, prints what it got, and asserts that it is as recorded."""',
        '    print("TensorFlow", tf.__version__)',
    ]
    if content.piece is not None:
        lines += [
            f"    inputs = [load(name) for name in [{', '.join(map(repr, content.own_inputs))}]]",
            *CHECK_RUN.strip("\n").splitlines(),
        ]
    if content.gradient is not None:
        lines.append(
            f"    gradients = run_gradient(*[load(name) for name in [{', '.join(map(repr, content.forward_inputs))}]])"
        )
        lines += (CHECK_GRADIENT if content.piece is None else SHOW_GRADIENT).strip("\n").splitlines()
    lines += ['    print("The bad value came up again.")', "", "", 'if __name__ == "__main__":', "    main()"]
    return "\n".join(lines)


def _snake(op_type: str) -> str:
    """Returns the name of a variable for the result of an op."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", op_type.strip("_"))
    name = words.lower()
    assert _IDENTIFIER.fullmatch(name)
    return name
