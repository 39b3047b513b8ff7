"""Shows blocks as HTML, for notebooks.

The HTML needs no script and no other file, and has at most MAX_BYTES, not counting a drawing. Everything from a
logdir is escaped and made printable.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from html import escape

from tfdbg_arrow.query.present.blocks import (
    Block,
    Code,
    Drawing,
    Facts,
    Heading,
    Items,
    Line,
    Span,
    Style,
    Table,
    with_style,
)
from tfdbg_arrow.safe_text import printable_line

MAX_BYTES = 20_000
MAX_DRAWING_BYTES = 250_000
MAX_ROWS = 50
"""Number of rows of a list that are shown at most."""
_MAX_TEXT = 300
_NUM_OTHER_BYTES = 300
"""Number of bytes around the blocks, and of the note about what is left out."""
_STYLES: dict[Style, str] = {
    "bad": "color:#c62828;font-weight:bold",
    "bold": "font-weight:bold",
    "quiet": "opacity:.65",
    "warning": "color:#b26a00;font-weight:bold",
}
_Shown = Line | Items | Facts | Code | Table | str
"""A block; a drawing as SVG."""
_CELL = "text-align:left;vertical-align:top;padding:.1em .8em .1em 0"
_HEADING = "font-weight:bold;margin:.4em 0 .1em"
_TABLE = '<table style="border-collapse:collapse">'


def html_of(blocks: Iterable[Block]) -> str:
    """Returns blocks as HTML. Lists and tables share what the other blocks leave of MAX_BYTES."""
    drawn = [part for block in blocks for part in _drawn(block)]
    parts = [None if isinstance(block, Items | Table) else _html(block) for block in drawn]
    room = MAX_BYTES - _NUM_OTHER_BYTES
    room_of_lists = room - sum(map(_size, filter(None, parts)))
    num_lists = parts.count(None)
    shown = ['<div style="overflow-x:auto;line-height:1.4">']
    for block, part in zip(drawn, parts, strict=True):
        if isinstance(block, Items | Table):
            part = _list_html(block, max_bytes=room_of_lists // num_lists)
            room_of_lists -= _size(part)
            num_lists -= 1
        assert part is not None
        room -= _size(part)
        if room < 0:
            shown.append(_line("… the rest is not shown; the attributes have it"))
            break
        shown.append(part)
    return "".join([*shown, "</div>"])


def _size(part: str) -> int:
    return 0 if part.startswith("<svg") else len(part.encode())


def _drawn(block: Block) -> Sequence[_Shown]:
    """Returns a drawing as SVG, or what stands for it if the viewer's packages are missing or the SVG is too large."""
    if not isinstance(block, Drawing):
        return (block,)
    try:
        charts = importlib.import_module(f"tfdbg_arrow.viewer.{block.module}")
    except ModuleNotFoundError:
        return block.otherwise
    drawing = str(getattr(charts, block.function)(block.answer))
    is_shown = drawing.startswith("<svg") and len(drawing.encode()) <= MAX_DRAWING_BYTES
    return (drawing,) if is_shown else block.otherwise


def _html(block: Line | Facts | Code | str) -> str:
    match block:
        case Heading():
            return f'<div style="{_HEADING}">{_spans(block.spans)}</div>'
        case Line():
            style = f' style="padding-left:{block.indent / 2:g}em"' if block.indent else ""
            text = _spans(block.spans)
            return f"<div{style}>{text or '&nbsp;'}</div>" if text or not block.spans else ""
        case Facts():
            rows = (f"<tr>{_cell((name, 'quiet'))}{_cell(value)}</tr>" for name, value in block.pairs)
            return f"{_TABLE}{''.join(rows)}</table>"
        case Code():
            lines = (" " * line.indent + _spans(line.spans) for line in block.lines)
            return f'<pre style="white-space:pre-wrap">{chr(10).join(lines)}</pre>'
        case str():
            return block


def _list_html(block: Items | Table, *, max_bytes: int) -> str:
    """Returns the first things or rows of a list, and the number of the others."""
    if isinstance(block, Table):
        number, rows = len(block.rows), block.rows
        head = "".join(f'<th style="{_CELL}">{_span(name)}</th>' for name in block.names)
        parts = [f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:MAX_ROWS]]
        start, end = f"{_TABLE}<tr>{head}</tr>", "</table>"
    elif all(len(item) == 1 and len(item[0].spans) > 1 for item in block.items):
        # Spans of lines that are alike stand below each other.
        number, start, end = block.number, _TABLE, "</table>"
        parts = [f"<tr>{''.join(map(_cell, line.spans))}</tr>" for (line,) in block.items[:MAX_ROWS]]
    else:
        number, start, end = block.number, "", ""
        parts = ["".join(map(_html, item)) for item in block.items[:MAX_ROWS]]
    left, shown = max_bytes - len(start) - 100, list[str]()
    for part in parts:
        left -= _size(part)
        if left < 0:
            break
        shown.append(part)
    more = _line(f"… {number - len(shown):,} more") if number > len(shown) else ""
    return f"{start}{''.join(shown)}{end}{more}"


def _line(text: str) -> str:
    return _html(Line((text, "quiet")))


def _cell(span: Span) -> str:
    return f'<td style="{_CELL}">{_span(span)}</td>'


def _spans(spans: Sequence[Span]) -> str:
    return "".join(map(_span, spans))


def _span(span: Span) -> str:
    text, style = with_style(span)
    if style == "option":
        return ""
    shown = printable_line(text)
    shown = escape(shown if len(shown) <= _MAX_TEXT else f"{shown[:_MAX_TEXT]}…")
    return f'<span style="{_STYLES[style]}">{shown}</span>' if style else shown
