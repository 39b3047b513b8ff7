"""Shows blocks as plain text, for error messages and `repr`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tfdbg_arrow.query.present.blocks import Block, Code, Drawing, Facts, Heading, Line, Span, Table, with_style
from tfdbg_arrow.safe_text import printable_line


def text_of(blocks: Iterable[Block]) -> str:
    """Returns blocks as printable text."""
    return "\n".join(line_text(piece) if isinstance(piece, Line) else _table_text(piece) for piece in pieces(blocks))


def line_text(line: Line) -> str:
    """Returns a line as printable text, without spaces at its end."""
    return (" " * line.indent + "".join(map(_span_text, line.spans))).rstrip()


def pieces(blocks: Iterable[Block]) -> Iterator[Line | Table]:
    """Yields the lines and tables that represent blocks in plain text."""
    for number, block in enumerate(blocks):
        match block:
            case Heading():
                if number:
                    yield Line()
                yield Line(*((span, "bold") if isinstance(span, str) else span for span in block.spans))
            case Facts():
                width = max(len(name) for name, _ in block.pairs) + 2
                for name, value in block.pairs:
                    yield Line((f"{name:<{width}}", "quiet"), value, indent=2)
            case Code():
                yield from block.lines
            case Drawing():
                yield from block.otherwise
            case Line() | Table():
                yield block


def _span_text(span: Span) -> str:
    text, style = with_style(span)
    return "" if style == "option" else printable_line(text)


def _table_text(table: Table) -> str:
    return "\n".join("  ".join(map(_span_text, row)) for row in (table.names, *table.rows))
