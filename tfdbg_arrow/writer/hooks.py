"""The only module that touches TensorFlow's private API.

Each hook replaces one attribute of a TensorFlow module while a recording runs and puts the original back
afterwards, unless somebody else replaced it meanwhile: then ours stays and passes every call on.

| hook | why |
|---|---|
| op callback of each thread | every eager op, and the Python stack of every op created in a graph |
| `Context.call_function` | a function call begins: noted before anything in it runs |
| `atomic_function.from_func_graph` | a graph becomes a function: described and made to record |
| `function_context.make_function_context` | what was traced without recording is traced anew |
| `threading.Thread._bootstrap_inner`, `FuncRegistry.__call__` | threads that start, and TensorFlow's that run Python |
| `save._build_meta_graph_impl` | a SavedModel never holds an op of ours; stays for good |
"""

from __future__ import annotations

import glob
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.core.function.polymorphism import function_cache
from tensorflow.python.autograph.impl import api as autograph_api
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute
from tensorflow.python.eager.polymorphic_function import atomic_function, function_context
from tensorflow.python.ops import script_ops
from tensorflow.python.saved_model import save as saved_model_save

from tfdbg_arrow.errors import RecordingError
from tfdbg_arrow.writer.instrument import OWN_OP_PREFIX, TensorBatch
from tfdbg_arrow.writer.stacks import Location

_XLA_MUST_COMPILE = "_XlaMustCompile"
_AttrValue = tf.compat.v1.AttrValue


class Observer(Protocol):
    """What the hooks tell a recording. Nothing of it may raise."""

    op_callback: Callable[..., None]
    generation: int

    def begin_call(self, function_name: bytes, inputs: Sequence[Any], num_outputs: int, /) -> int:
        """A call of a function from eager code begins; returns its execution index, -1 for none."""

    def end_call(self, execution_index: int, outputs: Sequence[Any] | None, /) -> None:
        """The call has returned its outputs, or raised (None)."""

    def before_function(self, function_name: str, graph: Any) -> None:
        """A runtime function is about to be made of a graph."""

    def after_function(self, function_name: str, graph: Any, function_def: Callable[[], Any]) -> None:
        """A runtime function was made of a graph; `function_def` gives its FunctionDef."""

    def note_without_xla(self, function_name: str) -> None:
        """A function that asked for XLA is compiled without it."""


@dataclass(frozen=True)
class _Patch:
    owner: Any
    name: str
    original: Any
    replacement: Any

    def remove(self) -> None:
        if getattr(self.owner, self.name) is self.replacement:
            setattr(self.owner, self.name, self.original)


class Hooks:
    """The hooks of one recording.

    Args:
        observer: Is told of calls and functions.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._active = False
        self._patches: list[_Patch] = []
        self._callback_lists: list[list[Any]] = []
        self._lock = threading.Lock()

    def install(self) -> None:
        """Puts all hooks in place; the calling thread and every later one is observed."""
        _keep_saved_models_clean()
        self._active = True
        self._patch(eager_context.Context, "call_function", self._make_call_function)
        self._patch(atomic_function, "from_func_graph", self._make_from_func_graph)
        self._patch(function_context, "make_function_context", self._make_make_function_context)
        self._patch(threading.Thread, "_bootstrap_inner", self._make_observed_entry)
        self._patch(script_ops.FuncRegistry, "__call__", self._make_observed_entry)
        self._observe_thread()
        execute.execute = execute.execute_with_callbacks

    def remove(self) -> None:
        """Takes the hooks away; functions made meanwhile run on."""
        self._active = False
        for patch in reversed(self._patches):
            patch.remove()
        self._patches.clear()
        callback = self._observer.op_callback
        with self._lock:
            for callbacks in self._callback_lists:
                if callback in callbacks:
                    callbacks.remove(callback)
            self._callback_lists.clear()
        if not eager_context.context().op_callbacks:
            execute.execute = execute.quick_execute

    def _patch(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        replacement = make(original)
        setattr(owner, name, replacement)
        self._patches.append(_Patch(owner=owner, name=name, original=original, replacement=replacement))

    def _observe_thread(self) -> None:
        """Gives the calling thread our op callback: TensorFlow keeps a list of them for each thread."""
        callbacks = eager_context.context().op_callbacks
        callback = self._observer.op_callback
        if callback not in callbacks:
            with self._lock:
                if self._active:
                    callbacks.append(callback)
                    self._callback_lists.append(callbacks)

    def _make_observed_entry(self, original: Any) -> Any:
        def run_observed(*args: Any, **kwargs: Any) -> Any:
            if self._active:
                self._observe_thread()
            return original(*args, **kwargs)

        return run_observed

    def _make_call_function(self, original: Any) -> Any:
        observer = self._observer

        def call_function(ctx: Any, name: bytes, tensor_inputs: Sequence[Any], num_outputs: int) -> Any:
            if not self._active:
                return original(ctx, name, tensor_inputs, num_outputs)
            self._observe_thread()
            execution_index = observer.begin_call(name, tensor_inputs, num_outputs)
            outputs = None
            try:
                outputs = original(ctx, name, tensor_inputs, num_outputs)
                return outputs
            finally:
                observer.end_call(execution_index, outputs)

        return call_function

    def _make_from_func_graph(self, original: Any) -> Any:
        observer = self._observer

        def from_func_graph(name: Any, graph: Any, attrs: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._active:
                return original(name, graph, attrs, *args, **kwargs)
            text = name.decode() if isinstance(name, bytes) else name
            if attrs and _is_true(attrs.get(_XLA_MUST_COMPILE)):
                # XLA has no kernel for a record op: the function would fail to compile.
                attrs = {key: value for key, value in attrs.items() if key != _XLA_MUST_COMPILE}
                observer.note_without_xla(text)
            observer.before_function(text, graph)
            function = original(name, graph, attrs, *args, **kwargs)
            observer.after_function(text, graph, lambda: function.cached_definition)
            return function

        return from_func_graph

    def _make_make_function_context(self, original: Any) -> Any:
        observer = self._observer

        def make_function_context(scope_type: Any = None) -> Any:
            context = original(scope_type)
            if not self._active:
                return context
            self._observe_thread()
            key = (context.context, "tfdbg_arrow", observer.generation)
            return function_cache.FunctionContext(key, context.scope_type)

        return make_function_context


def _is_true(attribute: Any) -> bool:
    return bool(getattr(attribute, "b", attribute))


_own_names = 0
_own_names_lock = threading.Lock()


def own_name() -> str:
    """Returns a name for an op of ours that is no prefix or suffix of another in this process."""
    global _own_names
    with _own_names_lock:
        _own_names += 1
        return f"tfdbg_arrow_record_{_own_names}_"


def create_record_op(graph: Any, op_type: str, inputs: Sequence[Any], *, attrs: dict[str, Any], device: str) -> Any:
    """Creates a record op in a graph, at its top, outside all scopes, and returns it.

    Args:
        graph: The FuncGraph.
        op_type: One of the native ops.
        inputs: Symbolic tensors of that graph.
        attrs: The op's attributes but `own_name`, as AttrValue.
        device: Where to run it, as the producer of its inputs; empty for anywhere.
    """
    name = own_name()
    attrs = {**attrs, "own_name": _AttrValue(s=name.encode())}
    # A name that ends in a slash is taken as it is.
    op = graph._create_op_internal(op_type, list(inputs), [], None, name + "/", attrs, None, False)
    if device:
        op._set_device(device)
    return op


class NativeRecordOps:
    """Records with the native op: one for each op that makes covered tensors.

    Args:
        generation: Tells the recordings of one process apart.
    """

    def __init__(self, *, generation: int) -> None:
        self._generation = generation

    def add(self, graph: Any, batches: Sequence[TensorBatch]) -> list[Any]:
        """Adds the record ops; returns them."""
        added = []
        with graph.as_default():
            for device, group in _groups(batches, limit=_GROUP):
                types = [tensor.dtype.base_dtype.as_datatype_enum for batch in group for tensor in batch.tensors]
                nodes = [node for batch in group for node in batch.nodes]
                attrs = {
                    "T": _AttrValue(list=_AttrValue.ListValue(type=types)),
                    "nodes": _AttrValue(list=_AttrValue.ListValue(i=nodes)),
                    "generation": _AttrValue(i=self._generation),
                }
                tensors = [tensor for batch in group for tensor in batch.tensors]
                added.append(create_record_op(graph, "TfdbgArrowRecord", tensors, attrs=attrs, device=device))
        return added


import os as _os
_GROUP = int(_os.environ.get("G", "1"))


def _groups(batches: Sequence[TensorBatch], *, limit: int) -> list[tuple[str, list[TensorBatch]]]:
    """Batches that one record op takes: neighbours in order of creation on the same device."""
    groups: list[tuple[str, list[TensorBatch]]] = []
    open_groups: dict[str, list[TensorBatch]] = {}
    for batch in batches:
        device = batch.op.device
        group = open_groups.get(device)
        if group is None or len(group) >= limit:
            group = open_groups[device] = []
            groups.append((device, group))
        group.append(batch)
    return groups


def original_location(file_path: str, lineno: int) -> Location | None:
    """Maps a line of a file that autograph generated to the user's line; None for any other file.

    TensorFlow keeps this map for each thread, and it is missing in some; the cache of converted
    functions has it for all.
    """
    if "__autograph_generated_file" not in file_path:
        return None
    source_map = _autograph_maps.get(file_path)
    if source_map is None:
        source_map = _find_autograph_map(file_path)
        _autograph_maps[file_path] = source_map
    return source_map.get(lineno)


_autograph_maps: dict[str, dict[int, Location]] = {}


def _find_autograph_map(file_path: str) -> dict[int, Location]:
    for by_options in list(autograph_api._TRANSPILER._cache._cache.values()):
        for factory in list(by_options.values()):
            source_map = factory.source_map
            if factory.module is None or getattr(factory.module, "__file__", None) != file_path or not source_map:
                continue
            return {
                line.lineno: (origin.loc.filename, origin.loc.lineno, origin.function_name or "<lambda>")
                for line, origin in source_map.items()
                if line.filename == file_path
            }
    return {}


def has_accelerator() -> bool:
    """Returns whether TensorFlow sees a device other than the CPU."""
    return any(device.device_type != "CPU" for device in tf.config.list_physical_devices())


def library_paths() -> tuple[str, str, str]:
    """Returns the paths of TensorFlow's framework, runtime and Python binding libraries.

    Raises:
        RecordingError: They are not where TensorFlow 2.17 to 2.21 have them.
    """
    root = os.path.dirname(tf.__file__)
    found: list[str] = []
    for patterns in (
        ("libtensorflow_framework.so.2", "libtensorflow_framework*.dylib"),
        ("libtensorflow_cc.so.2", "libtensorflow_cc*.dylib"),
        ("python/lib_pywrap_tensorflow_common.*", "python/_pywrap_tensorflow_internal.so"),
    ):
        paths = [path for pattern in patterns for path in sorted(glob.glob(os.path.join(root, pattern)))]
        if not paths:
            raise RecordingError(
                f"TensorFlow {tf.__version__} in {root} has no library {patterns[0]}; the native recorder knows "
                "TensorFlow 2.17 to 2.21: use health_backend='tensorflow'"
            )
        found.append(paths[0])
    return found[0], found[1], found[2]


_saved_models_are_kept_clean = False


def _keep_saved_models_clean() -> None:
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
    _delete(stripped, lambda op: op.name.startswith(OWN_OP_PREFIX))
    graph_def = meta_graph_def.graph_def
    _strip_nodes(graph_def.node)
    for function in graph_def.library.function:
        names = _strip_nodes(function.node_def)
        for key in [key for key, node in function.control_ret.items() if node in names]:
            del function.control_ret[key]
            function.signature.control_output.remove(key)


def _strip_nodes(nodes: Any) -> set[str]:
    names = {node.name for node in nodes if node.op.startswith(OWN_OP_PREFIX)}
    if names:
        _delete(nodes, lambda node: node.name in names)
        for node in nodes:
            _delete(node.input, lambda text: text.removeprefix("^") in names)
    return names


def _delete(repeated: Any, is_unwanted: Callable[[Any], bool]) -> None:
    for index in range(len(repeated) - 1, -1, -1):
        if is_unwanted(repeated[index]):
            del repeated[index]
