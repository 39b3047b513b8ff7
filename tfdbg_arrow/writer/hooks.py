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
| `core._status_to_exception`, `BaseSession._do_call` | TensorFlow's error of a step that we failed becomes ours |
| `save._build_meta_graph_impl` | a SavedModel never holds an op of ours; stays for good |
"""

from __future__ import annotations

import glob
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.core.function.polymorphism import function_cache
from tensorflow.python.autograph.impl import api as autograph_api
from tensorflow.python.client import session as client_session
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import core as eager_core
from tensorflow.python.eager import execute
from tensorflow.python.eager import record as tape_record
from tensorflow.python.eager.polymorphic_function import atomic_function, function_context
from tensorflow.python.framework import config as framework_config
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import script_ops
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph, WhileCondFuncGraph
from tensorflow.python.saved_model import save as saved_model_save

from tfdbg_arrow.errors import RecordingError
from tfdbg_arrow.writer.instrument import OWN_NAME_PREFIX, OWN_OP_PREFIX, TensorBatch
from tfdbg_arrow.writer.stacks import Location

_XLA_MUST_COMPILE = "_XlaMustCompile"
_AttrValue = tf.compat.v1.AttrValue


class Stop(Protocol):
    """What turns TensorFlow's error of a step that we failed into ours."""

    def error_in(self, text: str) -> Exception | None:
        """Returns our error for the text of one of TensorFlow's; None for an error that is not about us."""


class Observer(Protocol):
    """What the hooks tell a recording. Nothing of it may raise."""

    op_callback: Callable[..., None]
    generation: int

    @property
    def stop(self) -> Stop | None:
        """Set where the recording may stop the program."""

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
        if self._observer.stop is not None:
            self._patch(eager_core, "_status_to_exception", self._make_status_to_exception)
            self._patch(client_session.BaseSession, "_do_call", self._make_do_call)
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
            if not self._active or _thread.is_unobserved:
                return original(ctx, name, tensor_inputs, num_outputs)
            self._observe_thread()
            execution_index = observer.begin_call(name, tensor_inputs, num_outputs)
            outputs = None
            try:
                outputs = original(ctx, name, tensor_inputs, num_outputs)
                return outputs
            except tf.errors.OpError as failure:
                error = self._stop_error(failure.message)
                if error is None:
                    raise
                raise error from None
            finally:
                observer.end_call(execution_index, outputs)

        return call_function

    def _stop_error(self, text: str) -> Exception | None:
        """Returns our error for the text of one of TensorFlow's; None where the error is not about us."""
        stop = self._observer.stop
        return stop.error_in(text) if self._active and stop is not None else None

    def _make_status_to_exception(self, original: Any) -> Any:
        def status_to_exception(status: Any) -> Any:
            error = self._stop_error(status.message)
            return original(status) if error is None else error

        return status_to_exception

    def _make_do_call(self, original: Any) -> Any:
        def do_call(session: Any, function: Any, *args: Any) -> Any:
            try:
                return original(session, function, *args)
            except tf.errors.OpError as failure:
                error = self._stop_error(failure.message)
                if error is None:
                    raise
                raise error from None

        return do_call

    def _make_from_func_graph(self, original: Any) -> Any:
        observer = self._observer

        def from_func_graph(name: Any, graph: Any, attrs: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._active or _thread.is_unobserved:
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
            if not self._active or _thread.is_unobserved:
                return context
            self._observe_thread()
            key = (context.context, "tfdbg_arrow", observer.generation)
            return function_cache.FunctionContext(key, context.scope_type)

        return make_function_context


def _is_true(attribute: Any) -> bool:
    return bool(getattr(attribute, "b", attribute))


_own_names = 0
_own_names_lock = threading.Lock()


def own_name(what: str = "record") -> str:
    """Returns a name for an op or a scope of ours that is no prefix or suffix of another in this process."""
    global _own_names
    with _own_names_lock:
        _own_names += 1
        return f"{OWN_NAME_PREFIX}{what}_{_own_names}_"


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
    # An op without a kernel on that very device would else fail the user's function.
    if device and allows_soft_placement():
        op._set_device(device)
    return op


_HELD_CONDITION = "condition_once_recorded"
_HELD_VARIABLE = "loop_variable_once_recorded"


def make_run(graph: Any, ops: Sequence[Any]) -> None:
    """Makes TensorFlow run ops of a graph, though nobody uses their outputs, whenever the graph runs.

    Control outputs do that, but for a loop's condition, of which the runtime keeps only the result: there
    the result is made to wait for the ops.
    """
    known = {op.name for op in graph.control_outputs}
    new = [op for op in ops if op.name not in known]
    graph.control_outputs.extend(new)
    if not new or not isinstance(graph, WhileCondFuncGraph):
        return
    result = graph.outputs[0]
    if not result.op.name.startswith(_HELD_CONDITION):
        attrs = {"T": _AttrValue(type=result.dtype.as_datatype_enum)}
        with graph.as_default():
            held = graph._create_op_internal(
                "Identity", [result], [result.dtype], None, _HELD_CONDITION, attrs, None, False
            )
        held.outputs[0].set_shape(result.shape)
        graph.outputs[0] = held.outputs[0]
    graph.outputs[0].op._add_control_inputs(new)


def make_run_before_next(graph: Any, ops: Sequence[Any]) -> None:
    """As make_run(), and no iteration of a loop begins before the ops of the last one have run."""
    known = {op.name for op in graph.control_outputs}
    new = [op for op in ops if op.name not in known]
    make_run(graph, ops)
    if not new or not isinstance(graph, WhileBodyFuncGraph):
        return
    arguments = {id(tensor) for tensor in graph.inputs}
    with graph.as_default():
        for index, result in enumerate(graph.outputs):
            # A gradient tells loop invariants and lists from loop variables by the tensors themselves.
            if id(result) in arguments or result.dtype in (tf.resource, tf.variant):
                continue
            if not result.op.name.startswith(_HELD_VARIABLE):
                attrs = {"T": _AttrValue(type=result.dtype.as_datatype_enum)}
                held = graph._create_op_internal(
                    "Identity", [result], [result.dtype], None, _HELD_VARIABLE, attrs, None, False
                )
                held.outputs[0].set_shape(result.shape)
                graph.outputs[index] = held.outputs[0]
            graph.outputs[index].op._add_control_inputs(new)


def own_result(tensor: Any) -> Any:
    """Returns the user's tensor for a graph's result that make_run() has put in its place."""
    return tensor.op.inputs[0] if tensor.op.name.startswith((_HELD_CONDITION, _HELD_VARIABLE)) else tensor


def is_used_by_graph(graph: Any) -> bool:
    """Returns whether another graph uses what a graph returns: not eager code, not a loop's next iteration."""
    return hasattr(graph.outer_graph, "control_outputs") and not isinstance(graph, WhileBodyFuncGraph)


def let_pass(error: Exception) -> Exception:
    """Marks an error so that autograph and Keras hand it on as it is, and returns it."""
    error.ag_pass_through = True  # type: ignore[attr-defined]
    error._keras_call_info_injected = True  # type: ignore[attr-defined]
    return error


def create_summary_op(
    graph: Any,
    rows: Any,
    *,
    nodes: Sequence[int],
    dtypes: Sequence[int],
    decides: Sequence[bool],
    generation: int,
    device: str,
) -> Any:
    """Creates the op that records summary rows, and returns it.

    Args:
        graph: The FuncGraph.
        rows: Its symbolic float64 tensor of shape [len(nodes), NUM_COLUMNS] of `summary.py`.
        nodes: The keys of the tensors.
        dtypes: The tensors' own dtypes, as numbers.
        decides: For each whether it stops the program if it is bad.
        generation: Tells the recordings of one process apart.
        device: Where the tensors are; the rows are taken from host memory.
    """
    attrs = {
        "nodes": _AttrValue(list=_AttrValue.ListValue(i=nodes)),
        "dtypes": _AttrValue(list=_AttrValue.ListValue(i=dtypes)),
        "decides": _AttrValue(list=_AttrValue.ListValue(i=[int(decide) for decide in decides])),
        "generation": _AttrValue(i=generation),
    }
    with graph.as_default():
        return create_record_op(graph, "TfdbgArrowRecordSummary", [rows], attrs=attrs, device=device)


@contextmanager
def own_scope(graph: Any) -> Iterator[None]:
    """Within it, ops that TensorFlow's API makes are added at the top of a graph, under a name of ours, unobserved."""
    with (
        graph.as_default(),
        unobserved(),
        tf.control_dependencies(None),
        tf.device(None),
        graph.name_scope(own_name("summary") + "/"),
    ):
        yield


class NativeRecordOps:
    """Records with the native op: one for each op that makes covered tensors.

    Args:
        generation: Tells the recordings of one process apart.
        is_gate: Whether no op takes a tensor that can stop the program before that tensor is recorded.
    """

    def __init__(self, *, generation: int, is_gate: bool = False) -> None:
        self._generation = generation
        self._max_ops = 1 if is_gate else _MAX_OPS_IN_GROUP
        self._is_gate = is_gate

    def add(self, graph: Any, batches: Sequence[TensorBatch]) -> list[Any]:
        """Adds the record ops; returns them."""
        added = []
        with graph.as_default():
            places = {id(tensor): index for index, tensor in enumerate(graph.inputs)}
            for device, group in _groups(batches, places, max_ops=self._max_ops):
                tensors = [tensor for batch in group for tensor in batch.tensors]
                types = [tensor.dtype.base_dtype.as_datatype_enum for tensor in tensors]
                nodes = [node for batch in group for node in batch.nodes]
                decides = [int(decide) for batch in group for decide in batch.decides]
                arguments = [places[id(tensor)] for tensor in tensors if id(tensor) in places]
                attrs = {
                    "T": _AttrValue(list=_AttrValue.ListValue(type=types)),
                    "nodes": _AttrValue(list=_AttrValue.ListValue(i=nodes)),
                    "decides": _AttrValue(list=_AttrValue.ListValue(i=[int(decide) for decide in decides])),
                    "generation": _AttrValue(i=self._generation),
                    "arguments": _AttrValue(list=_AttrValue.ListValue(i=arguments)),
                }
                added.append(create_record_op(graph, "TfdbgArrowRecord", tensors, attrs=attrs, device=device))
                if self._is_gate:
                    _hold_users(added[-1], [tensor for tensor, decide in zip(tensors, decides, strict=True) if decide])
        return added


def _hold_users(record_op: Any, tensors: Sequence[Any]) -> None:
    """Makes the ops that take the tensors wait for their record op.

    Not those of constants: TensorFlow folds these into the ops that take them, which changes numbers in the last bits.
    """
    tensors = [tensor for tensor in tensors if tensor.op.type != "Const"]
    users = {
        id(user): user for tensor in tensors for user in tensor.consumers() if not user.type.startswith(OWN_OP_PREFIX)
    }
    for user in users.values():
        user._add_control_inputs([record_op])


# Each record op costs a turn of TensorFlow's scheduler, as much as counting a small tensor; but an op that takes
# many tensors keeps the first alive until the last is there, and an error in between loses them all.
_MAX_OPS_IN_GROUP = 4


def _groups(
    batches: Sequence[TensorBatch], places: Mapping[int, int], *, max_ops: int
) -> list[tuple[str, list[TensorBatch]]]:
    """Batches that one record op takes: neighbours in order of creation, on the same device, all arguments or none."""
    groups: list[tuple[str, list[TensorBatch]]] = []
    filling: dict[tuple[str, bool], list[TensorBatch]] = {}
    for batch in batches:
        device = batch.op.device
        key = (device, id(batch.tensors[0]) in places)
        if key not in filling or len(filling[key]) >= max_ops:
            filling[key] = []
            groups.append((device, filling[key]))
        filling[key].append(batch)
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


class _Thread(threading.local):
    is_unobserved = False


_thread = _Thread()


@contextmanager
def unobserved() -> Iterator[None]:
    """Runs or creates ops and functions of ours: no op callback is told of them, no gradient tape keeps them."""
    thread_data = eager_context.context()._thread_local_data
    callbacks = thread_data.op_callbacks
    was_unobserved, _thread.is_unobserved = _thread.is_unobserved, True
    # The list itself stays as it is: remove() may take our callback out of it meanwhile.
    thread_data.op_callbacks = []
    try:
        with tape_record.stop_recording():
            yield
    finally:
        thread_data.op_callbacks = callbacks
        _thread.is_unobserved = was_unobserved


def eager_tensor_id(tensor: Any) -> int:
    """Returns the id of an eager tensor, -1 for anything else."""
    return tensor._id if type(tensor) is framework_ops.EagerTensor else -1


def allows_soft_placement() -> bool:
    """Returns whether an op that has no kernel on the device it asks for runs elsewhere, as it does by default."""
    # tf.config.get_soft_device_placement() answers otherwise while a graph is the default.
    return eager_context.context()._soft_device_placement is not False


def is_op_determinism_enabled() -> bool:
    """Returns whether the program asked for deterministic ops."""
    return bool(framework_config.is_op_determinism_enabled())


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


def _is_own(node: Any) -> bool:
    return bool(node.op.startswith(OWN_OP_PREFIX) or node.name.startswith(OWN_NAME_PREFIX))


def _strip_nodes(nodes: Any) -> set[str]:
    names = {node.name for node in nodes if _is_own(node)}
    if names:
        _delete(nodes, lambda node: node.name in names)
        for node in nodes:
            _delete(node.input, lambda text: text.removeprefix("^") in names)
    return names


def _delete(repeated: Any, is_unwanted: Callable[[Any], bool]) -> None:
    for index in range(len(repeated) - 1, -1, -1):
        if is_unwanted(repeated[index]):
            del repeated[index]
