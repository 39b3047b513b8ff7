"""Notes which components the elements of data sets have, and whether the order of the elements is fixed.

| hook | purpose |
|---|---|
| `OwnedIterator._create_iterator` | the data set whose elements an iterator returns |
| `_TensorSliceDataset.__init__`, `_TensorDataset.__init__` | a data set of the program's arrays |
| `DatasetSpec._to_components` | the data set that a function gets as an argument |
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

from tensorflow.python.data.ops import dataset_ops, from_tensor_slices_op, from_tensors_op, iterator_ops
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.util import nest

from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.own_frames import own_frames_left_out


def hook_data_sets(observation: Observation, patches: Patches) -> None:
    """Installs the hooks."""
    noted = functools.partial(_noted, observation, set())
    patches.put(iterator_ops.OwnedIterator, "_create_iterator", noted(lambda iterator, *_: iterator._dataset))
    for of_tensors in (from_tensor_slices_op._TensorSliceDataset, from_tensors_op._TensorDataset):
        patches.put(of_tensors, "__init__", noted(lambda dataset, *_: dataset))
    patches.put(dataset_ops.DatasetSpec, "_to_components", noted(lambda _, dataset: dataset))


def _noted(observation: Observation, tensor_ids: set[int], dataset_of: Callable[..., Any]) -> Callable[[Any], Any]:
    """Returns a decorator that notes a data set after a method has run.

    Args:
        observation: Takes the rows.
        tensor_ids: The tensors of the data sets that have rows; Keras makes an iterator for each epoch.
        dataset_of: Returns the data set, from the object and the arguments of the method.
    """

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def run_and_note(self: Any, *args: Any, **kwargs: Any) -> Any:
            with own_frames_left_out:
                result = original(self, *args, **kwargs)
            if observation.is_active:
                _tell(observation, tensor_ids, dataset_of(self, *args))
            return result

        return run_and_note

    return make


def _tell(observation: Observation, tensor_ids: set[int], dataset: Any) -> None:
    """Adds the row of a data set, unless it is in a graph, where it has no eager tensor."""
    try:
        variant = dataset._variant_tensor
        if not isinstance(variant, framework_ops.EagerTensor) or variant._id in tensor_ids:
            return
        paths = list(_component_paths(dataset.element_spec))
        is_flat = all(path == (index,) for index, path in enumerate(paths))
        row = {
            "tensor_id": variant._id,
            "is_deterministic": _is_deterministic(dataset),
            "component_paths": None if is_flat else json.dumps(paths),
        }
        tensor_ids.add(variant._id)
        observation.observer.append("data_set", [row])
    except Exception as error:
        observation.observer.note_failure("describing a data set", error)


def _is_deterministic(dataset: Any) -> bool:
    """Returns True if a data set, and the data sets that its elements come from, keep the order of the elements."""
    if dataset._options_attr.deterministic is False:  # options() would execute an op
        return False
    to_visit = [dataset]
    while to_visit:
        visited = to_visit.pop()
        if getattr(visited, "_deterministic", None) == "false":
            return False
        to_visit += visited._inputs()
    return True


def _component_paths(element_spec: Any) -> Iterator[tuple[int | str, ...]]:
    """Yields the path of each tensor of an element: the indexes and keys that lead to it."""
    for path, spec in nest.flatten_with_tuple_paths(element_spec):
        keys = tuple(key if isinstance(key, (int, str)) else str(key) for key in path)
        for _ in spec._flat_tensor_specs:  # several for a ragged or a sparse tensor
            yield keys
