"""DataSets: writes rows about the data sets of tf.data."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

Append = Callable[[str, list[dict[str, object]]], None]


class DataSets:
    """Writes rows of `data_set`.

    Args:
        append: Adds rows of a table.
    """

    def __init__(self, append: Append) -> None:
        self._append = append
        self._noted: set[int] = set()
        """The data sets that have rows; Keras makes an iterator for each epoch."""

    def note(self, tensor_id: int, paths: Sequence[tuple[int | str, ...]], is_deterministic: bool, /) -> None:
        """Writes the row of a data set.

        Args:
            tensor_id: The tensor of the data set.
            paths: For each tensor of an element, the indexes and keys that lead to the tensor.
            is_deterministic: Whether the elements come in the same order in each run.
        """
        if tensor_id in self._noted:
            return
        self._noted.add(tensor_id)
        is_flat = all(path == (index,) for index, path in enumerate(paths))
        row: dict[str, object] = {
            "tensor_id": tensor_id,
            "is_deterministic": is_deterministic,
            "component_paths": None if is_flat else json.dumps(paths),
        }
        self._append("data_set", [row])
