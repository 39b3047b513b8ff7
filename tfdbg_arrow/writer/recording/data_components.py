"""DataComponents: writes the names of the components of data sets' elements."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

Append = Callable[[str, list[dict[str, object]]], None]


class DataComponents:
    """Writes rows of `data_component`.

    Args:
        append: Adds rows of a table.
    """

    def __init__(self, append: Append) -> None:
        self._append = append
        self._noted: set[int] = set()
        """The data sets that have rows; Keras makes an iterator for each epoch."""

    def note(self, tensor_id: int, paths: Sequence[tuple[int | str, ...]], /) -> None:
        """Writes the paths of the components of a data set. Without names, the index of a component says it all.

        Args:
            tensor_id: The tensor of the data set.
            paths: For each tensor of an element the indexes and keys that lead to it.
        """
        if tensor_id in self._noted or all(path == (index,) for index, path in enumerate(paths)):
            return
        self._noted.add(tensor_id)
        rows = [
            {"tensor_id": tensor_id, "component_index": index, "path": json.dumps(path)}
            for index, path in enumerate(paths)
        ]
        self._append("data_component", rows)
