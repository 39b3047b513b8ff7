"""DataComponents: writes the names of the components of data sets' elements."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.util import nest

Append = Callable[[str, list[dict[str, object]]], None]


class DataComponents:
    """Writes rows of `data_component`.

    Args:
        append: Adds rows of a table.
        note_failure: Reports failures.
    """

    def __init__(self, append: Append, *, note_failure: Callable[[str, object], None]) -> None:
        self._append = append
        self._note_failure = note_failure
        self._noted: set[int] = set()
        """The data sets that have rows; Keras makes an iterator for each epoch."""

    def note(self, dataset: Any) -> None:
        """Writes the paths of the components of a data set. Without names, the index of a component says it all."""
        try:
            variant = dataset._variant_tensor
            if not isinstance(variant, framework_ops.EagerTensor) or variant._id in self._noted:
                return  # a data set in a graph has no eager tensor
            self._noted.add(variant._id)
            paths = list(_component_paths(dataset.element_spec))
            if any(path != (index,) for index, path in enumerate(paths)):
                rows = [
                    {"tensor_id": variant._id, "component_index": index, "path": json.dumps(path)}
                    for index, path in enumerate(paths)
                ]
                self._append("data_component", rows)
        except Exception as error:
            self._note_failure("naming the components of a data set", error)


def _component_paths(element_spec: Any) -> Iterator[tuple[int | str, ...]]:
    """Yields the path of each tensor of an element: the indexes and keys that lead to it."""
    for path, spec in nest.flatten_with_tuple_paths(element_spec):
        keys = tuple(key if isinstance(key, (int, str)) else str(key) for key in path)
        for _ in spec._flat_tensor_specs:  # several for a ragged or a sparse tensor
            yield keys
