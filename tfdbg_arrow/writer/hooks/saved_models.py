"""SavedModels never hold an op of ours.

| hook | why |
|---|---|
| `save._build_meta_graph_impl` | strips every SavedModel of this process; stays for good |
"""

from __future__ import annotations

from typing import Any

from tensorflow.python.saved_model import save as saved_model_save

from tfdbg_arrow.writer.graphs.own_ops import OWN_OP_PREFIX
from tfdbg_arrow.writer.hooks.stripping import delete_from, strip_function, strip_own_nodes

_saved_models_are_kept_clean = False


def keep_saved_models_clean() -> None:
    """From now on no SavedModel of this process holds an op of ours, also after recording has ended."""
    global _saved_models_are_kept_clean
    if _saved_models_are_kept_clean:
        return
    _saved_models_are_kept_clean = True
    original = saved_model_save._build_meta_graph_impl

    def build_meta_graph(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        strip_record_ops(result[0])
        return result

    saved_model_save._build_meta_graph_impl = build_meta_graph


def strip_record_ops(meta_graph_def: Any) -> None:
    """Removes every op of ours, and every mention of one, from a MetaGraphDef."""
    stripped = meta_graph_def.meta_info_def.stripped_op_list.op
    delete_from(stripped, lambda op: op.name.startswith(OWN_OP_PREFIX))
    graph_def = meta_graph_def.graph_def
    strip_own_nodes(graph_def.node)
    for function in graph_def.library.function:
        strip_function(function)
