"""Source code: excerpts around a line, and lines as HTML with syntax highlighting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape
from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType

from tfdbg_arrow.query import Frame, Logdir, SourceLine, source_lines
from tfdbg_arrow.query.info import withholds_source
from tfdbg_arrow.query.stacks import executed_span
from tfdbg_arrow.safe_text import printable

_MAX_CHARACTERS = 1_000_000
"""Maximum size of a source that is highlighted. Highlighting a longer one takes too long."""
_MAX_LINE = 2000
"""Maximum number of characters of a line that are shown. A note counts the others."""
_CONTEXT = 7
"""Number of lines before and after the highlighted line of an excerpt."""
_CLASSES: tuple[tuple[_TokenType, str], ...] = (
    (Comment, "c"),
    (String.Doc, "c"),
    (Keyword, "k"),
    (Operator.Word, "k"),
    (String, "s"),
    (Number, "m"),
    (Name.Decorator, "d"),
    (Name.Function, "f"),
    (Name.Class, "f"),
    (Name.Builtin, "b"),
)


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """Lines of a source file.

    Attributes:
        run_id: The run that recorded the text.
        frame: The frame whose line is highlighted.
        lines: The lines in order; empty if the run did not record the file's text.
        is_withheld: Whether the setting `redact` prevented recording the text.
    """

    run_id: str
    frame: Frame
    lines: tuple[SourceLine, ...]
    is_withheld: bool = False


def read_excerpt(logdir: Logdir, frame: Frame | None, *, run_id: str) -> Excerpt | None:
    """Returns the lines around a frame; None if `frame` is None."""
    if frame is None:
        return None
    lines = source_lines(logdir, frame, run_id=run_id, context=_CONTEXT)
    is_withheld = not lines and withholds_source(logdir, run_id=run_id)
    return Excerpt(run_id=run_id, frame=frame, lines=lines, is_withheld=is_withheld)


def highlighted(lines: Sequence[SourceLine], frame: Frame | None = None) -> list[Markup]:
    """Returns each line of a Python source as HTML. Very long lines are cut, and show the number of omitted characters.

    The source is always escaped: the result is text in <span> and <mark> elements, never markup from the source.

    Args:
        lines: The lines.
        frame: A frame. In its line, the part that the frame executes is marked.
    """
    if sum(len(line.text) for line in lines) > _MAX_CHARACTERS or any(len(line.text) > _MAX_LINE for line in lines):
        return [_cut(line.text) for line in lines]
    tokens = PythonLexer(stripnl=False, ensurenl=False).get_tokens("\n".join(line.text for line in lines))
    line_pieces: list[list[tuple[_TokenType, str]]] = [[]]
    for kind, text in tokens:
        for number, piece in enumerate(text.split("\n")):
            if number:
                line_pieces.append([])
            if piece:
                line_pieces[-1].append((kind, piece))
    if len(line_pieces) != len(lines):  # if the lexer dropped or added lines, line numbers would be wrong
        return [_cut(line.text) for line in lines]
    return [
        _marked(pieces, None if frame is None or frame.lineno != line.lineno else executed_span(frame, line.text))
        for pieces, line in zip(line_pieces, lines, strict=True)
    ]


def _marked(pieces: Sequence[tuple[_TokenType, str]], span: tuple[int, int] | None) -> Markup:
    """Returns the pieces of a line as HTML, with a part of the line in a <mark> element."""
    start, end = span or (0, 0)
    parts = [Markup(""), Markup(""), Markup("")]
    column = 0
    for kind, text in pieces:
        cuts = [0, *(min(max(cut - column, 0), len(text)) for cut in (start, end)), len(text)]
        for index in range(3):
            piece = text[cuts[index] : cuts[index + 1]]
            parts[index] += _span(kind, piece) if piece else ""
        column += len(text)
    before, part, after = parts
    return before + (Markup("<mark>{}</mark>").format(part) if part else "") + after


def _span(kind: _TokenType, text: str) -> Markup:
    name = next((name for parent, name in _CLASSES if kind in parent), None)
    shown = _code(text)
    return shown if name is None else Markup('<span class="t-{}">{}</span>').format(name, shown)


def _cut(line: str) -> Markup:
    if len(line) <= _MAX_LINE:
        return _code(line)
    rest = Markup('<span class="cut"> … {} more characters</span>').format(f"{len(line) - _MAX_LINE:,}")
    return _code(line[:_MAX_LINE]) + rest


def _code(text: str) -> Markup:
    return escape("    ".join(map(printable, text.split("\t"))))
