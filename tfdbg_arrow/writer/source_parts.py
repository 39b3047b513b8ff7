"""Finds the part of a line that an instruction executes."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Sequence
from types import CodeType
from typing import NamedTuple

from tfdbg_arrow.safe_text import parsed_python

Columns = tuple[int, int] | None
"""The columns of an expression in its line, from 1: those of its first character, and of the character after its last
one. None if they are unknown."""


class Span(NamedTuple):
    """Where an expression lies in a file, as in `CodeType.co_positions`.

    Attributes:
        lineno: The first line of the expression, from 1.
        end_lineno: The last line of the expression.
        start: The byte (UTF-8) in the first line where the expression starts, from 0.
        end: In the last line, the byte that follows the expression.
    """

    lineno: int
    end_lineno: int
    start: int
    end: int


def span_of(code: CodeType, instruction: int) -> Span | None:
    """Returns the span of the expression that the instruction at a byte offset executes; None if it is unknown."""
    positions = itertools.islice(code.co_positions(), instruction // 2, None)
    lineno, end_lineno, start, end = next(positions, (None, None, None, None))
    if lineno is None or end_lineno is None or start is None or end is None:
        return None
    return Span(lineno, end_lineno, start, end)


def executed_part(span: Span, lines: Sequence[str]) -> tuple[int, Columns]:
    """Returns the line of an expression, and its part in this line.

    If the expression has several lines, the result is the line of its operator, or of the name of the method that it
    calls. The first line can contain other operations. The part begins at the operator or name.

    Args:
        span: Where the expression lies.
        lines: The lines of the file.
    """
    lineno, start = span.lineno, span.start
    expression = parse_span(span, lines) if span.end_lineno > span.lineno else None
    operation = None if expression is None else _operation(expression, span, lines)
    if operation is not None and operation[0] > span.lineno:
        lineno, start = operation
    if not 1 <= lineno <= len(lines):
        return lineno, None
    line = _encoded(lines[lineno - 1].rstrip())
    end = span.end if span.end_lineno == lineno else len(line)
    if not start < end <= len(line):
        return lineno, None  # the file changed after it was compiled
    start_text, end_text = (line[:byte].decode(errors="replace") for byte in (start, end))
    return lineno, (len(start_text) + 1, len(end_text) + 1)


def parse_span(span: Span, lines: Sequence[str]) -> ast.expr | None:
    """Returns the expression at a span; None if the text there is not an expression.

    In the result, lines and the columns of the first line count from 1.
    """
    if not 1 <= span.lineno <= span.end_lineno <= len(lines):
        return None
    text = [_encoded(line) for line in lines[span.lineno - 1 : span.end_lineno]]
    text[-1] = text[-1][: span.end]
    text[0] = text[0][span.start :]
    module = parsed_python(b"(" + b"".join(text) + b"\n)")
    statement = module.body[0] if module is not None and len(module.body) == 1 else None
    return statement.value if isinstance(statement, ast.Expr) else None


def _operation(expression: ast.expr, span: Span, lines: Sequence[str]) -> tuple[int, int] | None:
    """Returns the line and the byte of an operator, or of the name of a called method; None for other expressions."""
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
        name_end = _absolute(expression.func.end_lineno, expression.func.end_col_offset, span)
        return name_end[0], name_end[1] - len(_encoded(expression.func.attr))
    if isinstance(expression, ast.BinOp):
        left, right = expression.left, expression.right
    elif isinstance(expression, ast.Compare) and len(expression.ops) == 1:
        left, right = expression.left, expression.comparators[0]
    else:
        return None
    first, start = _absolute(left.end_lineno, left.end_col_offset, span)
    last, end = _absolute(right.lineno, right.col_offset, span)
    for lineno in range(first, last + 1):
        line = _encoded(lines[lineno - 1])
        between = line[: end if lineno == last else len(line)]
        # Between the operands, there are only parentheses, comments and the operator.
        match = re.compile(rb"[\s()\\]*([^\s()\\#])").match(between, start if lineno == first else 0)
        if match is not None:
            return lineno, match.start(1)
    return None


def _absolute(lineno: int | None, column: int | None, span: Span) -> tuple[int, int]:
    assert lineno is not None
    assert column is not None
    return lineno + span.lineno - 1, column + (span.start - 1 if lineno == 1 else 0)


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")  # Python counts bytes of UTF-8
