"""Blocks: what an answer says, before a terminal, a notebook or an error message shows it.

The texts may hold anything that is in a logdir. What shows them makes them safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Style = Literal["", "bad", "bold", "option", "quiet", "warning"]
"""How to show a text. `option` is about an option of the command line; only a terminal shows it."""
Span = str | tuple[str, Style]
"""A text, or a text and its style."""
SEVERITY_STYLES: Mapping[str, Style] = {"error": "bad", "warning": "warning", "info": "quiet"}


@dataclass(frozen=True, init=False)
class Line:
    """A line of text; an empty one separates others. A line belongs to the last line before it with less indentation.

    Attributes:
        spans: The pieces of the text.
        indent: Number of spaces before them.
    """

    spans: tuple[Span, ...]
    indent: int

    def __init__(self, *spans: Span, indent: int = 0) -> None:
        object.__setattr__(self, "spans", spans)
        object.__setattr__(self, "indent", indent)


class Heading(Line):
    """A bold line above what it is about. There is an empty line above it, unless it is the first."""


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
        num_numbers: How many of the columns, from the last on, have numbers.
        num_others: How many rows there are besides these.
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
        function: The function of the module. It is given the answer and returns SVG.
        answer: What to draw.
        otherwise: What to show where nothing can be drawn.
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
