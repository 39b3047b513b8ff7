"""How answers show themselves: a table or a card in a notebook, and one line in a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsIndex, TypeVar, overload

_Row = TypeVar("_Row")
_MAX_SHOWN = 10


class Displayed:
    """An answer that shows itself in a notebook and a terminal. Its dataclass has `repr=False`.

    The attributes have everything; the texts are short.
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        from tfdbg_arrow.query.notebook import html_of

        return html_of(self)

    def __repr__(self) -> str:
        from tfdbg_arrow.query.one_line import text_of

        return f"<{type(self).__name__} {text_of(self)}>"


class Rows(list[_Row]):
    """A list of answers that shows itself as a table in a notebook, and one line for each row in a terminal."""

    __slots__ = ()

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> _Row: ...

    @overload
    def __getitem__(self, index: slice, /) -> Rows[_Row]: ...

    def __getitem__(self, index: SupportsIndex | slice, /) -> _Row | Rows[_Row]:
        if isinstance(index, slice):
            return Rows(super().__getitem__(index))
        return super().__getitem__(index)

    def _repr_html_(self) -> str:
        from tfdbg_arrow.query.notebook import rows_html

        return rows_html(self)

    def __repr__(self) -> str:
        return lines_of(self, len(self))


def lines_of(rows: Iterable[object], number: int) -> str:
    """Returns the first rows as text, one on each line, and the number of the others."""
    shown = [f" {row!r}" for row, _ in zip(rows, range(_MAX_SHOWN), strict=False)]
    more = [f" … {number - len(shown):,} more"] if number > len(shown) else []
    return "[" + ",\n".join([*shown, *more]).removeprefix(" ") + "]"
