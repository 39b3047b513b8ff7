"""Shows blocks as HTML, for notebooks.

The HTML needs no script and no other file, and has at most MAX_BYTES, not counting a drawing. Everything from a
logdir is escaped and made printable.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

from tfdbg_arrow.query.present.blocks import Block, Code, Drawing, Facts, Heading, Line, Span, Style, Table, with_style
from tfdbg_arrow.safe_text import printable_line

MAX_BYTES = 20_000
"""Maximum size of an answer, in bytes. A notebook stores the output of every cell in its file."""
MAX_DRAWING_BYTES = 250_000
"""Maximum size of a drawing, in bytes. For a larger drawing, the notebook shows a table or text."""
MAX_ROWS = 50
"""Maximum number of rows of a table that are shown."""
_MAX_TEXT = 300
"""Maximum number of characters of one text. A longer one would make a column of a table too wide."""
_NUM_OTHER_BYTES = 300
"""Number of bytes around the parts, including the note about parts that are left out."""
_STYLES: dict[Style, str] = {
    "bad": "color:#c62828;font-weight:bold",
    "bold": "font-weight:bold",
    "quiet": "opacity:.65",
    "warning": "color:#b26a00;font-weight:bold",
}
_CELL = "text-align:left;vertical-align:top;padding:.1em .8em .1em 0"
_TABLE = '<table style="border-collapse:collapse">'
_Shown = Line | Facts | Code | Table | str
"""A block. A drawing is represented by its SVG text."""


def html_of(blocks: Iterable[Block]) -> str:
    """Returns blocks as HTML. A table or a group of lines takes at most half of the remaining bytes of MAX_BYTES."""
    shown = [drawn for block in blocks for drawn in _drawn(block)]
    groups = [list(group) for _, group in groupby(shown, key=lambda drawn: None if type(drawn) is Line else id(drawn))]
    room = MAX_BYTES - _NUM_OTHER_BYTES
    html = ['<div style="overflow-x:auto;line-height:1.4">']
    for number, group in enumerate(groups, start=1):
        part = _html(group, max_bytes=room if number == len(groups) else room // 2)
        room -= 0 if part.startswith("<svg") else len(part.encode())
        if room < 0:
            html.append(_line_html(Line(("… the rest is not shown; the attributes have it", "quiet"))))
            break
        html.append(part)
    return "".join([*html, "</div>"])


def _drawn(block: Block) -> Sequence[_Shown]:
    """Returns a drawing as SVG, or its replacement if the viewer's packages are missing or the SVG is too large."""
    if not isinstance(block, Drawing):
        return (block,)
    try:
        charts = importlib.import_module(f"tfdbg_arrow.viewer.{block.module}")
    except ModuleNotFoundError:
        return block.otherwise
    drawing = str(getattr(charts, block.function)(block.answer))
    is_shown = drawing.startswith("<svg") and len(drawing.encode()) <= MAX_DRAWING_BYTES
    return (drawing,) if is_shown else block.otherwise


def _html(group: Sequence[_Shown], *, max_bytes: int) -> str:
    match group[0]:
        case Heading(spans=spans):
            return f'<div style="font-weight:bold;margin:.4em 0 .1em">{_spans(spans)}</div>'
        case Line():
            lines = [_line_html(line) for line in group if isinstance(line, Line)]
            return _first(lines, len(lines), max_bytes=max_bytes, what="more lines")
        case Table() as table:
            head = "".join(f'<th style="{_CELL}">{_span(name)}</th>' for name in table.names)
            start = _TABLE + (f"<tr>{head}</tr>" if head else "")
            rows, number = list(map(_row, table.rows[:MAX_ROWS])), len(table.rows) + table.num_others
            return _first(rows, number, max_bytes=max_bytes, what="more", start=start, end="</table>")
        case Facts(pairs=pairs):
            return f"{_TABLE}{''.join(_row([(name, 'quiet'), value]) for name, value in pairs)}</table>"
        case Code():
            lines = [" " * line.indent + _spans(line.spans) for line in group[0].lines]
            return f'<pre style="white-space:pre-wrap">{chr(10).join(lines)}</pre>'
        case str() as drawing:
            return drawing


def _first(parts: Sequence[str], number: int, *, max_bytes: int, what: str, start: str = "", end: str = "") -> str:
    """Returns the first parts of a list, and the number of the remaining parts."""
    bytes_left, num_shown = max_bytes - len(start) - 100, 0
    for part in parts:
        bytes_left -= len(part.encode())
        if bytes_left < 0:
            break
        num_shown += 1
    others_text = "" if num_shown == number else _line_html(Line((f"… {number - num_shown:,} {what}", "quiet")))
    return f"{start}{''.join(parts[:num_shown])}{end}{others_text}"


def _line_html(line: Line) -> str:
    style = f' style="padding-left:{line.indent / 2:g}em"' if line.indent else ""
    text = _spans(line.spans)
    return f"<div{style}>{text or '&nbsp;'}</div>" if text or not line.spans else ""


def _row(cells: Iterable[Span]) -> str:
    return "<tr>" + "".join(f'<td style="{_CELL}">{_span(cell)}</td>' for cell in cells) + "</tr>"


def _spans(spans: Sequence[Span]) -> str:
    return "".join(map(_span, spans))


def _span(span: Span) -> str:
    text, style = with_style(span)
    if style == "option":
        return ""
    shown = printable_line(text)
    shown = escape(shown if len(shown) <= _MAX_TEXT else f"{shown[:_MAX_TEXT]}…")
    return f'<span style="{_STYLES[style]}">{shown}</span>' if style else shown
