"""Ops that TensorFlow copies from one graph to another never bring an op of ours with them.

TensorFlow copies the initializers of variables out of the function that makes them, and parts of wrapped functions.
An op that waits for one of ours would bring it along, and its tensor would be recorded twice.

| hook | why |
|---|---|
| `op_selector.graph_inputs` | says which ops have to be copied before an op; stays for good |
| `lift_to_graph._copy_non_source` | says for which ops a copy has to wait; stays for good |
"""

from __future__ import annotations

from typing import Any

from tensorflow.python.eager import lift_to_graph
from tensorflow.python.ops import op_selector

from tfdbg_arrow.writer.graphs.own_ops import is_own

_copies_are_kept_clean = False


def keep_copied_ops_clean() -> None:
    """From now on no op that TensorFlow copies waits for an op of ours, also after recording has ended."""
    global _copies_are_kept_clean
    if _copies_are_kept_clean:
        return
    _copies_are_kept_clean = True
    original_inputs = op_selector.graph_inputs
    original_copy = lift_to_graph._copy_non_source

    def graph_inputs(op: Any) -> Any:
        return [each for each in original_inputs(op) if not is_own(each.type, each.name)]

    def copy(*args: Any, **kwargs: Any) -> Any:
        inputs, waits = original_copy(*args, **kwargs)
        return inputs, [wait for wait in waits if not is_own(wait.old_graph_op.type, wait.old_graph_op.name)]

    op_selector.graph_inputs = graph_inputs
    lift_to_graph._copy_non_source = copy
