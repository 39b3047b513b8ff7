"""DirectoryExport: what the formats share that are a directory with a file for each table and view."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from tfdbg_arrow.query.exports.relations import Relation


class DirectoryExport(ABC):
    """Writes `<name><suffix>` files into a directory.

    Args:
        path: The directory; it is made.
    """

    suffix: ClassVar[str | None]
    keeps_views: ClassVar[bool] = False

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir()

    @abstractmethod
    def write(self, relation: Relation, rows: pa.RecordBatchReader, *, advance: Callable[[int], None]) -> None:
        """Writes a file, in the place of one of that name.

        Args:
            relation: The table or view.
            rows: Its rows.
            advance: Told of so many rows more.

        Raises:
            OSError: It cannot be written.
            pa.ArrowException: A value does not fit.
        """

    def file_of(self, relation: Relation) -> Path:
        """Returns the path of a table's or view's file."""
        return self._path / f"{relation.name}{self.suffix}"

    def add_view(self, relation: Relation) -> bool:
        """Returns whether a view can be kept as a view: never."""
        return False

    def close(self) -> None:  # noqa: B027 - there is nothing to do
        """Does nothing: each file is whole."""
