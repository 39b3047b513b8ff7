"""Questions: records the SQL that a logdir is asked, so that it can be run again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tfdbg_arrow.query.logdir.live_views import literal, mentioned

_PARAMETER = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|\?")
_OUR_OWN = re.compile(r"\b(derived|loaded_\w+)\b|\A\s*(CREATE|INSERT|DELETE|DROP|SET)\b", re.IGNORECASE)
"""Matches statements about tables that exist only while this process has the logdir open."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One SQL text that was asked.

    Attributes:
        query: The SELECT, with the parameter values of its first use filled in.
        number: How often it was asked, counting all parameter values.
    """

    query: str
    number: int


class Questions:
    """Records questions while a `noted` block is active."""

    def __init__(self) -> None:
        self._noted: dict[str, tuple[Sequence[object], int]] | None = None

    def note(self, query: str, parameters: object) -> None:
        """Records a question. Questions with named parameters are skipped."""
        if self._noted is None or isinstance(parameters, dict) or _OUR_OWN.search(query) or not any(mentioned(query)):
            return
        values, number = self._noted.get(query, (parameters if isinstance(parameters, Sequence) else (), 0))
        self._noted[query] = (values, number + 1)

    @contextlib.contextmanager
    def noted(self) -> Iterator[list[Question]]:
        """Yields a list that is filled when the block ends: each SQL text asked in the block, in order of first use."""
        found: list[Question] = []
        self._noted = {}
        try:
            yield found
        finally:
            for query, (values, number) in self._noted.items():
                found.append(Question(query=with_values(query, values), number=number))
            self._noted = None


def with_values(query: str, parameters: Sequence[object]) -> str:
    """Returns the SQL with each `?` replaced by a literal, except in string literals and comments.

    Raises:
        ValueError: There are fewer parameters than `?` placeholders.
    """
    values = iter(parameters)

    def replaced(match: re.Match[str]) -> str:
        if match.group() != "?":
            return match.group()
        try:
            return _literal(next(values))
        except StopIteration:
            raise ValueError(f"too few parameters ({len(parameters)}) for: {query}") from None

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
