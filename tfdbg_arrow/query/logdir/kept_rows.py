"""KeptRows: a cache of query results that are needed repeatedly while somebody looks at a run."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdbg_arrow.query.logdir import Logdir

_MAX_QUESTIONS = 64


class KeptRows:
    """The most recent query results of a logdir, keyed by query and parameters."""

    def __init__(self) -> None:
        self._rows: OrderedDict[tuple[object, ...], list[tuple[Any, ...]]] = OrderedDict()

    def rows(self, logdir: Logdir, query: str, parameters: tuple[object, ...]) -> list[tuple[Any, ...]]:
        """Returns the rows of `logdir.rows`, from the cache if the same query was asked before."""
        rows = self._rows.pop((query, parameters), None)
        if rows is None:
            rows = logdir.rows(query, parameters)
        else:
            logdir.questions.note(query, parameters)
        self._rows[query, parameters] = rows
        while len(self._rows) > _MAX_QUESTIONS:
            self._rows.popitem(last=False)
        return rows
