"""Blocks: the content of an answer, which a terminal, a notebook or an error message shows.

The texts may hold any text of a logdir. The code that shows the texts escapes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Style = Literal["", "bad", "bold", "option", "quiet", "warning"]
"""How to show a text.

A text with the style `option` is about a command-line option; only a terminal shows such a text.
"""
Span = str | tuple[str, Style]
"""A text, or a text and its style."""
SEVERITY_STYLES: Mapping[str, Style] = {"error": "bad", "warning": "warning", "info": "quiet"}


@dataclass(frozen=True, init=False)
class Line:
    """A line of text; an empty line separates other lines.

    A line belongs to the last line above it with less indentation.

    Attributes:
        spans: The pieces of the text.
        indent: Number of spaces before the text.
    """

    spans: tuple[Span, ...]
    indent: int

    def __init__(self, *spans: Span, indent: int = 0) -> None:
        object.__setattr__(self, "spans", spans)
        object.__setattr__(self, "indent", indent)


class Heading(Line):
    """A bold line above the lines that it introduces.

    There is an empty line above the heading, unless it is the first line.
    """


@dataclass(frozen=True)
class Facts:
    """Pairs of a name and a value, at least one."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Code:
    """Lines that show source text, with its spaces."""

    lines: Sequence[Line]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        names: The names of the columns; empty if they have none.
        rows: The cells of each row. Notebooks show as many rows as they have room for.
        num_numbers: Number of columns at the right end that hold numbers.
        num_others: Number of rows that are not in `rows`.
    """

    names: Sequence[str]
    rows: Sequence[Sequence[Span]]
    num_numbers: int = 0
    num_others: int = 0


@dataclass(frozen=True)
class Drawing:
    """A drawing by the viewer, for a notebook.

    Attributes:
        module: The viewer's module that draws it.
        function: The function of the module. The function takes the answer and returns SVG.
        answer: The answer to draw.
        otherwise: The block to show where nothing can be drawn.
    """

    module: str
    function: str
    answer: object
    otherwise: Sequence[Line | Table]


Block = Line | Facts | Code | Table | Drawing
Blocks = Iterator[Block]


def with_style(span: Span) -> tuple[str, Style]:
    """Returns a text and its style."""
    return (span, "") if isinstance(span, str) else span
