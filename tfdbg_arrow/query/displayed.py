"""How answers are displayed: as a table or a card in a notebook, and as one line in a terminal.

`present` writes these texts. `present` imports the classes of answers, and these classes import this module for their
base class. Therefore, this module cannot import `present`; instead, `tfdbg_arrow.query` sets `Displayed.shown_by`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol, SupportsIndex, TypeVar, overload

_Row = TypeVar("_Row")
_MAX_SHOWN = 10
"""Maximum number of rows in a `repr`, so that it fits on a screen. The last line counts the others."""
CUT_TEXT = "… and others that the limit left out"
"""The last line of a list that the limit of a question cut."""


class Texts(Protocol):
    """The interface of the object that writes the texts of answers."""

    def answer_html(self, answer: object) -> str:
        """Returns an answer as HTML."""

    def rows_html(self, rows: Rows[Any]) -> str:
        """Returns a list of answers of one class as an HTML table."""

    def line_of(self, answer: object) -> str:
        """Returns an answer in one line."""


class Displayed:
    """The base class of answers that can be displayed in a notebook and a terminal.

    A dataclass that inherits from this class needs `repr=False`. The attributes of an answer are complete, but its text
    is short.

    Attributes:
        shown_by: Returns the object that writes the texts of all answers.
    """

    shown_by: ClassVar[Callable[[], Texts]]

    __slots__ = ()

    def _repr_html_(self) -> str:
        return Displayed.shown_by().answer_html(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {Displayed.shown_by().line_of(self)}>"


class Rows(list[_Row]):
    """A list of answers that is displayed as a table in a notebook, and as one line for each row in a terminal.

    Attributes:
        is_cut: Whether the limit of the question left out further rows.
    """

    __slots__ = ("is_cut",)

    def __init__(self, rows: Iterable[_Row] = (), *, is_cut: bool = False) -> None:
        super().__init__(rows)
        self.is_cut = is_cut

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> _Row: ...

    @overload
    def __getitem__(self, index: slice, /) -> Rows[_Row]: ...

    def __getitem__(self, index: SupportsIndex | slice, /) -> _Row | Rows[_Row]:
        if isinstance(index, slice):
            return Rows(super().__getitem__(index))
        return super().__getitem__(index)

    def _repr_html_(self) -> str:
        return Displayed.shown_by().rows_html(self)

    def __repr__(self) -> str:
        return lines_of(self, len(self), is_cut=self.is_cut)


def lines_of(rows: Iterable[object], number: int, *, is_cut: bool = False) -> str:
    """Returns the first rows as text, one row on each line, followed by the number of remaining rows.

    Args:
        rows: The rows.
        number: Number of all rows.
        is_cut: Whether a limit left out further rows.
    """
    shown = [f" {row!r}" for row, _ in zip(rows, range(_MAX_SHOWN), strict=False)]
    others = [f" … {number - len(shown):,} more"] if number > len(shown) else []
    cut = [f" {CUT_TEXT}"] if is_cut else []
    return "[" + ",\n".join([*shown, *others, *cut]).removeprefix(" ") + "]"
