"""DirectoryExport: the base class of the formats that write a directory with a file for each table and view."""

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
        path: The directory to create.
    """

    suffix: ClassVar[str | None]
    keeps_views: ClassVar[bool] = False

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir()

    @abstractmethod
    def write(self, relation: Relation, rows: pa.RecordBatchReader, *, advance: Callable[[int], None]) -> None:
        """Writes a file, replacing one of the same name.

        Args:
            relation: The table or view.
            rows: Its rows.
            advance: Called with the number of rows written since the last call.

        Raises:
            OSError: The file cannot be written.
            pa.ArrowException: The format cannot represent a value.
        """

    def file_of(self, relation: Relation) -> Path:
        """Returns the path of the file of a table or view."""
        return self._path / f"{relation.name}{self.suffix}"

    def add_view(self, relation: Relation) -> bool:
        """Returns False: the format cannot keep a view as a view."""
        return False

    def close(self) -> None:  # noqa: B027 - there is nothing to do
        """Does nothing: each file is already complete."""
