"""Questions: what SQL a logdir was asked, for whoever wants to ask it again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tfdbg_arrow.query.logdir.live_views import literal, mentioned

_PARAMETER = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|\?")
_OUR_OWN = re.compile(r"\b(derived|loaded_\w+)\b|\A\s*(CREATE|INSERT|DELETE|DROP|SET)\b", re.IGNORECASE)
"""What stands in a statement about tables that exist only while a logdir is open here."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One text of SQL that was asked.

    Attributes:
        query: The SELECT; values stand where there were parameters, those of the first time.
        number: How often it was asked, with whatever values.
    """

    query: str
    number: int


class Questions:
    """Notes what is asked while someone wants to know."""

    def __init__(self) -> None:
        self._noted: dict[str, tuple[Sequence[object], int]] | None = None

    def note(self, query: str, parameters: object) -> None:
        """Takes note of a question; parameters by name are not understood, and such a question is left out."""
        if self._noted is None or isinstance(parameters, dict) or _OUR_OWN.search(query) or not any(mentioned(query)):
            return
        values, number = self._noted.get(query, (parameters if isinstance(parameters, Sequence) else (), 0))
        self._noted[query] = (values, number + 1)

    @contextlib.contextmanager
    def noted(self) -> Iterator[list[Question]]:
        """Yields a list that holds, at the end, each text that was asked meanwhile, in the order of the first time."""
        found: list[Question] = []
        self._noted = {}
        try:
            yield found
        finally:
            for query, (values, number) in self._noted.items():
                found.append(Question(query=with_values(query, values), number=number))
            self._noted = None


def with_values(query: str, parameters: Sequence[object]) -> str:
    """Returns SQL with literals in the place of `?`, those in texts and comments left alone.

    Raises:
        ValueError: There are fewer parameters than `?`.
    """
    values = iter(parameters)

    def replaced(match: re.Match[str]) -> str:
        if match.group() != "?":
            return match.group()
        try:
            return _literal(next(values))
        except StopIteration:
            raise ValueError(f"{len(parameters)} parameters are too few for: {query}") from None

    return _PARAMETER.sub(replaced, query)


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return f"from_hex('{value.hex()}')"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_literal, value))}]"
    return literal(str(value))
