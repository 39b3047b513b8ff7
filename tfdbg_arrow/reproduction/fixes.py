"""Standard repairs of ops, as code that a script can run and as an edit of the user's line.

`tfdbg_arrow.query.explanation` explains why an op made a bad value, and gives advice. The table here contains only the
code to try.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfdbg_arrow.query.stacks import Frame
from tfdbg_arrow.reproduction.pieces import InputRef, OutputRef, Piece, PieceOp
from tfdbg_arrow.reproduction.script import literal
from tfdbg_arrow.safe_text import parsed_python, printable_line

HALVES = frozenset({"bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"})
"""Dtypes for which a wider dtype is tried."""
_MAX_LINE = 2_000
"""Maximum length of a line of code that is parsed."""


@dataclass(frozen=True)
class Fix:
    """Code that replaces an op.

    Attributes:
        label: The effect of the code, in a few words.
        code: The code. `{x}` is the op's input of that name. `{x_logits}` is the input `logits` of the op that made
            `{x}`. `{eps}` is a small number in the dtype.
        producer: The type of the op that must have made the first input; None for any type.
        wider: The wider dtype that the op runs in; None if the code replaces the op by other ops.
        returns_0: Whether the code returns 0 where the op returned a bad value.
    """

    label: str
    code: str
    producer: str | None = None
    wider: str | None = None
    returns_0: bool = False


def _unit(function: str) -> tuple[Fix, ...]:
    return (Fix("clip", f"{function}(tf.clip_by_value({{x}}, -1 + {{eps}}, 1 - {{eps}}))"),)


def _double_where(function: str) -> Fix:
    return Fix("double where", f"tf.where({{x}} > 0, {function}(tf.where({{x}} > 0, {{x}}, 1.0)), 0.0)")


_DIVISION = (
    Fix("divide_no_nan", "tf.math.divide_no_nan({x}, {y})", returns_0=True),
    Fix("epsilon", "{x} / ({y} + {eps})"),
    Fix("double where", "tf.where({y} != 0, {x} / tf.where({y} != 0, {y}, 1.0), 0.0)", returns_0=True),
)
_JITTER = "{input} + 1e-6 * tf.eye(tf.shape({input})[-1], dtype={input}.dtype)"

FIXES: dict[str, tuple[Fix, ...]] = {
    "Log": (
        Fix("log_softmax", "tf.nn.log_softmax({x_logits})", producer="Softmax"),
        Fix("log_sigmoid", "tf.math.log_sigmoid({x_x})", producer="Sigmoid"),
        Fix("epsilon", "tf.math.log({x} + {eps})"),
        Fix("clip", "tf.math.log(tf.maximum({x}, {eps}))"),
        _double_where("tf.math.log"),
    ),
    "Log1p": (Fix("clip", "tf.math.log1p(tf.maximum({x}, -1 + {eps}))"),),
    "Sqrt": (
        Fix("epsilon", "tf.sqrt({x} + {eps})"),
        Fix("clip", "tf.sqrt(tf.maximum({x}, {eps}))"),
        _double_where("tf.sqrt"),
    ),
    "Rsqrt": (
        Fix("epsilon", "tf.math.rsqrt({x} + {eps})"),
        Fix("clip", "tf.math.rsqrt(tf.maximum({x}, {eps}))"),
        _double_where("tf.math.rsqrt"),
    ),
    "Reciprocal": (Fix("reciprocal_no_nan", "tf.math.reciprocal_no_nan({x})", returns_0=True),),
    "RealDiv": _DIVISION,
    "Div": _DIVISION,
    "FloorDiv": (Fix("clip", "{x} // tf.maximum({y}, {eps})"),),
    "FloorMod": (Fix("clip", "{x} % tf.maximum({y}, {eps})"),),
    "Exp": (Fix("clip", "tf.exp(tf.minimum({x}, 10.0))"),),
    "Expm1": (Fix("clip", "tf.math.expm1(tf.minimum({x}, 10.0))"),),
    "Sinh": (Fix("clip", "tf.sinh(tf.clip_by_value({x}, -10.0, 10.0))"),),
    "Cosh": (Fix("clip", "tf.cosh(tf.clip_by_value({x}, -10.0, 10.0))"),),
    "Pow": (
        Fix("clip", "tf.pow(tf.maximum({x}, {eps}), {y})"),
        Fix("double where", "tf.where({x} > 0, tf.pow(tf.where({x} > 0, {x}, 1.0), {y}), 0.0)"),
    ),
    "Xlogy": (
        Fix("epsilon", "tf.math.xlogy({x}, {y} + {eps})"),
        Fix("clip", "tf.math.xlogy({x}, tf.maximum({y}, {eps}))"),
    ),
    "Xdivy": (Fix("epsilon", "tf.math.xdivy({x}, {y} + {eps})"),),
    "Acos": _unit("tf.acos"),
    "Asin": _unit("tf.asin"),
    "Atanh": _unit("tf.atanh"),
    "Erfinv": _unit("tf.math.erfinv"),
    "Acosh": (Fix("clip", "tf.acosh(tf.maximum({x}, 1 + {eps}))"),),
    "Ndtri": (Fix("clip", "tf.math.ndtri(tf.clip_by_value({x}, {eps}, 1 - {eps}))"),),
    "Atan2": (Fix("epsilon", "tf.atan2({y}, {x} + {eps})"),),
    "Lgamma": (Fix("clip", "tf.math.lgamma(tf.maximum({x}, {eps}))"),),
    "Digamma": (Fix("clip", "tf.math.digamma(tf.maximum({x}, {eps}))"),),
    "Square": (Fix("clip", "tf.square(tf.clip_by_value({x}, -100.0, 100.0))"),),
    "Softmax": (Fix("clip", "tf.nn.softmax(tf.clip_by_value({logits}, -1e4, 1e4))"),),
    "LogSoftmax": (Fix("clip", "tf.nn.log_softmax(tf.clip_by_value({logits}, -1e4, 1e4))"),),
    "Mean": (
        Fix(
            "divide_no_nan",
            "tf.math.divide_no_nan(tf.reduce_sum({input}, {axis}), tf.reduce_sum(tf.ones_like({input}), {axis}))",
        ),
    ),
    "EuclideanNorm": (Fix("epsilon", "tf.sqrt(tf.reduce_sum(tf.square({input}), {axis}) + {eps})"),),
    "Cholesky": (
        Fix("jitter", f"tf.linalg.cholesky({_JITTER})"),
        Fix("larger jitter", f"tf.linalg.cholesky({_JITTER.replace('1e-6', '1e-3')})"),
    ),
    "MatrixInverse": (Fix("jitter", f"tf.linalg.inv({_JITTER})"),),
    "MatrixDeterminant": (Fix("slogdet", "tf.linalg.slogdet({input})[1]"),),
}
"""The repairs to try, by the type of the op. For an op of a gradient, this is the type of its forward op."""

_NAMES: dict[str, tuple[str, ...]] = {
    "RealDiv": ("divide", "truediv", "div"),
    "Div": ("divide", "truediv", "div"),
    "FloorDiv": ("floordiv",),
    "FloorMod": ("mod", "floormod"),
    "Mean": ("reduce_mean", "mean"),
    "EuclideanNorm": ("norm", "euclidean_norm", "reduce_euclidean_norm"),
    "MatrixInverse": ("inv", "inverse"),
    "MatrixDeterminant": ("det",),
    "LogSoftmax": ("log_softmax",),
}
"""Names of the functions that make an op. Ops whose only name is the op's type in lower case are left out."""
_OPERATORS: dict[str, type[ast.operator]] = {
    "RealDiv": ast.Div,
    "Div": ast.Div,
    "FloorDiv": ast.FloorDiv,
    "FloorMod": ast.Mod,
    "Pow": ast.Pow,
    "MatMul": ast.MatMult,
    "Mul": ast.Mult,
    "AddV2": ast.Add,
    "Sub": ast.Sub,
}


def epsilon_of(dtype: str | None) -> str:
    """Returns a small number as code. In the dtype, the number is not 0, and 1 minus the number is not 1."""
    return {"float16": "1e-3", "bfloat16": "1e-2", "float64": "1e-12"}.get(dtype or "", "1e-6")


def fixes_for(piece: Piece, *, needs_nonzero: bool) -> list[Fix]:
    """Returns the repairs to try for the last op of a piece, the most specific one first.

    Args:
        piece: The piece.
        needs_nonzero: Whether the program would make a bad value if the op returned 0, for example with a logarithm.
    """
    op = piece.ops[-1]
    fixes = []
    for fix in FIXES.get(op.op_type, ()):
        if fix.returns_0 and needs_nonzero:
            continue
        first = op.arguments[0][1] if op.arguments else None
        maker = piece.ops[first.op].op_type if isinstance(first, OutputRef) else None
        if fix.producer in (None, maker):
            fixes.append(fix)
    if op.dtype in HALVES and op.signature.is_raw and len(op.choices) == 1:
        for wider in ("float32", "float64"):
            fixes.append(Fix(f"{wider} in this op", _wider_code(piece, op, wider), wider=wider))
    return fixes


def _wider_code(piece: Piece, op: PieceOp, dtype: str) -> str:
    """Returns code that runs an op on inputs that are cast to a wider dtype."""
    words = []
    for argument, operand in op.arguments:
        first = operand[0] if isinstance(operand, tuple) and operand else operand
        if isinstance(first, InputRef):
            is_half = piece.inputs[first.index].elements.dtype in HALVES
        else:
            is_half = isinstance(first, OutputRef) and piece.ops[first.op].dtype in HALVES
        code = f"{{{argument}}}"
        if is_half and isinstance(operand, tuple):
            code = f"[tf.cast(each, tf.{dtype}) for each in {code}]"
        elif is_half:
            code = f"tf.cast({code}, tf.{dtype})"
        words.append(f"{argument}={code}")
    words += [f"{argument}={literal(value)}" for argument, value in op.choices[0].items()]
    call = f"tf.raw_ops.{op.op_type}({', '.join(words)})"
    return call if op.signature.is_single else f"tf.nest.flatten({call})[{op.slot}]"


@dataclass(frozen=True)
class _Occurrence:
    """The part of a line that makes an op: the columns of the whole expression and of its operands."""

    start: int
    end: int
    operands: tuple[tuple[int, int], ...]
    texts: tuple[str, ...]


def edited_line(
    line: str, fix: Fix, op_type: str, arguments: Sequence[str], other_code: Mapping[str, str]
) -> str | None:
    """Returns a line of the user's code with the repair, or None if the op cannot be found in the line.

    Args:
        line: The line, without its indentation.
        fix: The repair.
        op_type: The type of the op.
        arguments: The names of the op's inputs.
        other_code: The code of other placeholders: of `eps`, and of the inputs of the op that made the first input.
    """
    occurrence = _occurrence(line, op_type)
    if occurrence is None:
        return None
    if fix.wider is not None:
        for (start, end), text in reversed(list(zip(occurrence.operands, occurrence.texts, strict=True))):
            line = f"{line[:start]}tf.cast({text}, tf.{fix.wider}){line[end:]}"
        return line
    try:
        new = fix.code.format_map(dict(zip(arguments, occurrence.texts, strict=False)) | dict(other_code))
    except KeyError:
        return None
    return line[: occurrence.start] + new + line[occurrence.end :]


def argument_texts(line: str | None, op_type: str) -> tuple[str, ...]:
    """Returns the code of the operands of the op that a line makes; empty unless it makes the op exactly once."""
    occurrence = None if line is None else _occurrence(line, op_type)
    return () if occurrence is None else occurrence.texts


def _occurrence(line: str, op_type: str) -> _Occurrence | None:
    """Returns the only part of a line that makes an op; None if no part or several parts make the op."""
    tree, shift = _parsed(line)
    if tree is None:
        return None
    names = _NAMES.get(op_type, (op_type.lower(),))
    operator = _OPERATORS.get(op_type)
    occurrences = []
    for node in ast.walk(tree):
        operands: list[ast.expr] = []
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            operands = node.args if name in names else []
        elif isinstance(node, ast.BinOp) and operator is not None and isinstance(node.op, operator):
            operands = [node.left, node.right]
        if operands:
            assert isinstance(node, ast.expr)
            spans = [_columns(line, expression, shift) for expression in (node, *operands)]
            texts = tuple(
                f"({line[start:end]})" if isinstance(operand, _LOOSE) else line[start:end]
                for operand, (start, end) in zip(operands, spans[1:], strict=True)
            )
            occurrences.append(_Occurrence(*spans[0], tuple(spans[1:]), texts))
    return occurrences[0] if len(occurrences) == 1 else None


_LOOSE = (ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda, ast.UnaryOp)
"""Expressions that need parentheses within other expressions."""


def _columns(line: str, node: ast.expr, shift: int) -> tuple[int, int]:
    """Returns the start and the end column of an expression. Python's parser counts columns in bytes of UTF-8."""
    line_bytes = line.encode()
    start, end = node.col_offset - shift, (node.end_col_offset or 0) - shift
    return len(line_bytes[:start].decode()), len(line_bytes[:end].decode())


def _parsed(line: str) -> tuple[ast.AST | None, int]:
    """Returns the syntax tree of a line, and the number of columns added before the line to make it a statement."""
    if len(line) > _MAX_LINE or not line.isprintable():
        return None, 0
    for before, after in (("", ""), ("", " pass"), ("f(", ")")):
        tree = parsed_python(before + line + after)
        if tree is not None:
            return tree, len(before)
    return None, 0


def diff_lines(old: str, new: str, frame: Frame | None) -> tuple[str, ...]:
    """Returns a change of one line as a unified diff."""
    name = "the script" if frame is None else frame.place
    diff = difflib.unified_diff([printable_line(old)], [printable_line(new)], name, name, n=0, lineterm="")
    return tuple(printable_line(line) for line in diff if not line.startswith("@@"))
