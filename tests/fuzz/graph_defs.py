"""Adds record ops to GraphDefs, and checks the resulting GraphDefs.

The GraphDefs are like those that TensorFlow passes to an optimizer. The module works without TensorFlow's Python part,
which takes seconds and memory to import.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.graph_pb2 import GraphDef

from tfdbg_arrow.writer.backend import native_core

GENERATION = 7
MARK = "_tfdbg_arrow_graph"
THROUGH, CONSTANT = "TfdbgArrowRecordThrough", "TfdbgArrowRecordConstant"
PREFIX = "tfdbg_arrow_record_"
KEEPING_ATTRIBUTES = {"input_types", "kept_inputs"}
"""The attributes of a record op that also takes inputs of its node."""
ATTRIBUTES = {
    "T",
    "node",
    "generation",
    "executed_graph",
    "argument",
    "keep",
    "decides",
    "is_watch",
    "is_component",
    "sources",
    "has_call_site",
    "call_site",
}
_FLOATS = 1 << 1 | 1 << 2 | 1 << 14 | 1 << 19
"""A bit for each of the dtypes float32, float64, bfloat16 and float16, at the number of the dtype."""
_SHARED_LIBRARIES = (
    "libtensorflow_framework.so.2",
    "libtensorflow_cc.so.2",
    "python/lib_pywrap_tensorflow_common.*",
)

NamedOp = tuple[str, str, str, list[int], bool]


def make_recording(directory: Path, mode: int = 3) -> Any:
    """Returns a recording of floating-point tensors that can edit graphs.

    TensorFlow writes no events to this recording.
    """
    directory.mkdir(parents=True, exist_ok=True)
    spool, values = directory / "graphs.spool", directory / "graphs.values"
    recording = native_core().Recording(str(spool), str(values), 1024, mode, _FLOATS, GENERATION)
    recording.set_keeps_inputs(True)
    return recording


def load_libraries() -> bool:
    """Loads only TensorFlow's libraries, which describe the ops to the core. Returns whether the libraries exist."""
    found = importlib.util.find_spec("tensorflow")
    if native_core() is None or found is None or found.origin is None:
        return False
    root = Path(found.origin).parent
    paths = [path for pattern in _SHARED_LIBRARIES for path in glob.glob(str(root / pattern))]
    if len(paths) != len(_SHARED_LIBRARIES):
        return False
    for path in paths:
        ctypes.CDLL(path)
    native_core().load_tensorflow(*paths)
    return True


def edit(recording: Any, data: bytes, *, message: Any = GraphDef, stops: bool = False) -> Any | None:
    """Edits bytes that may not be a graph, and checks the result.

    Args:
        recording: The recording that edits the graph.
        data: The bytes.
        message: The class of the messages.
        stops: Whether the recording stops the program at a bad value.

    Returns:
        The edited graph. None if the bytes were refused or left unchanged, or if protobuf cannot parse them.
    """
    edited = b""
    with contextlib.suppress(RuntimeError):  # the bytes were refused
        edited = recording.with_record_ops(data)
    recording.take_executed_graphs()
    try:
        original = message.FromString(data)
    except DecodeError:
        return None
    if not edited:
        return None
    graph = message.FromString(edited)
    check_edit(original, graph, stops=stops)
    return graph


class GraphEditor:
    """Edits GraphDefs of the program of `small_graph`.

    Args:
        directory: A directory for the spool.
    """

    def __init__(self, directory: Path) -> None:
        self._recording = make_recording(directory)
        for graph_id, (ops, arguments, calls) in small_graph()[1].items():
            self._recording.add_program_graph(graph_id, ops, arguments, calls)
        self._num_strings = 0

    def check(self, data: bytes) -> None:
        """Edits bytes that may not be a graph. Checks that the result is complete and can be serialized."""
        edit(self._recording, data)
        self._num_strings += len(native_core().strings(self._num_strings))


@functools.cache
def graph_editor(directory: Path) -> GraphEditor | None:
    """Returns the editor of this process; None if TensorFlow or the native core is missing.

    The first call loads TensorFlow's libraries, which take 0.3 GB of memory.
    """
    return GraphEditor(directory) if load_libraries() else None


def marked(graph_id: int) -> int:
    """Returns the mark of the ops of a graph."""
    return GENERATION << 32 | graph_id


def canonical(text: str) -> str:
    """Returns the text of an input in the form that TensorFlow writes."""
    name, colon, slot = text.rpartition(":")
    if text.startswith("^") or not colon or not (slot.isascii() and slot.isdigit()):
        return text
    return name if int(slot) == 0 else f"{name}:{int(slot)}"


def is_record_op(node: Any) -> bool:
    """Returns whether a node records another node."""
    return node.op in (THROUGH, CONSTANT)


def check_edit(original: Any, edited: Any, *, stops: bool = False) -> None:
    """Checks the properties of a GraphDef with record ops, given the original GraphDef.

    If each record op is replaced by its input, the result is the original, in the same order. If a record op passes its
    tensor on, all consumers take the tensor from the record op. If the recording stops the program, the iterations of a
    loop run one after the other.
    """
    records = [node for node in edited.node if is_record_op(node)]
    others = [node for node in edited.node if not is_record_op(node)]
    assert records
    assert [*others, *records] == [*edited.node], "record ops are behind all others"
    names = {node.name for node in original.node}
    assert len(names | {record.name for record in records}) == len(names) + len(records), "their names are new"
    keys = {record.attr["node"].i for record in records if not record.attr["is_watch"].b}
    for record in records:
        _check_record(record)
        assert keys.issuperset(record.attr["sources"].list.i)
        assert not record.attr["is_watch"].b or record.attr["decides"].b
    if len(names) == len(original.node):
        by_name = {node.name: node for node in original.node}
        for record in records:
            source = by_name[record.input[0].partition(":")[0]]
            assert (record.op == CONSTANT) == (source.op == "Const" or not _is_host(source.device))
            assert record.device == source.device

    sources = {record.name: record.input[0] for record in records if record.op == THROUGH}
    recorded = set(sources.values())
    expected, restored = type(original)(), type(original)()
    expected.CopyFrom(original)
    restored.CopyFrom(edited)
    del restored.node[:]
    for before, after in zip(expected.node, others, strict=True):
        if before.op == "AddN" and not _is_host(before.device):  # the AddN waits until its terms are copied to the host
            waits_for = [text.removeprefix("^") for text in after.input[len(before.input) :]]
            assert {record.name for record in records if record.op == CONSTANT}.issuperset(waits_for)
            del after.input[len(before.input) :]
        assert len(before.input) == len(after.input)
        if stops and before.op in ("Enter", "RefEnter"):
            before.attr["parallel_iterations"].Clear()
            before.attr["parallel_iterations"].i = 1
        made = restored.node.add()
        made.CopyFrom(after)
        for at, text in enumerate(before.input):
            if canonical(text) in recorded:
                assert after.input[at] in sources, f"{text} of {before.name} is not behind a record op"
                before.input[at] = canonical(text)
                made.input[at] = sources[after.input[at]]
    assert serialized(restored) == serialized(expected)


def _is_host(device: str) -> bool:
    """Returns whether a device name asks for a CPU, or for no type of device."""
    _, found, rest = device.rpartition("device:")
    return not found or rest.partition(":")[0] in ("", "CPU")


def _check_record(record: Any) -> None:
    attributes = set(record.attr)
    assert all(canonical(each) == each and not each.startswith("^") for each in record.input)
    number, _, name = record.name.removeprefix(PREFIX).partition("/")
    assert record.name == f"{PREFIX}{int(number)}/{name}"
    assert record.input[0].partition(":")[0] == name
    assert attributes in (ATTRIBUTES, ATTRIBUTES | KEEPING_ATTRIBUTES)
    num_kept = len(record.input) - 1
    assert num_kept == len(record.attr["kept_inputs"].list.i) == len(record.attr["input_types"].list.type)
    assert record.attr["generation"].i == GENERATION
    assert record.attr["T"].type > 0
    assert -(2**31) <= record.attr["node"].i < 2**31


def serialized(message: Any) -> bytes:
    """Returns bytes that are the same for the same messages, also if the messages hold a NaN."""
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def small_graph() -> tuple[bytes, dict[int, tuple[list[NamedOp], list[str], dict[str, int]]]]:
    """Returns a GraphDef with a loop, a call, a fused op and a library, and the program's graphs that it contains."""
    graph = GraphDef()
    _add(graph, "x", "_Arg", T=1, index=0)
    _add(graph, "weights", "Const", ["^x"], 1, dtype=1)
    graph.node[-1].attr["value"].tensor.dtype = 1
    graph.node[-1].attr["value"].tensor.tensor_content = b"\0\0\x80\x7f" * 8
    _add(graph, "layer/MatMul", "_FusedMatMul", ["x", "weights:0", "weights"], T=1, fused_ops=[b"BiasAdd"], num_args=1)
    graph.node[-1].experimental_debug_info.original_node_names.append("MatMul")
    _add(graph, "layer/Relu", "Relu", ["layer/MatMul"], 1, T=1)
    _add(graph, "call/split", "Split", ["axis", "layer/Relu"], 2, T=1, num_split=3)
    _add(graph, "call/ConstantFolding/sum", "Neg", ["call/split:1"], 2, T=1)
    _add(graph, "while/enter", "Enter", ["call/split:2"], 1, T=1, frame_name=b"while")
    _add(graph, "while/merge", "Merge", ["while/enter", "while/next"], 1, T=1, N=2)
    _add(graph, "while/body/Mul", "Mul", ["while/merge:0", "while/merge:0", "^layer/Relu"], 1, T=1)
    _add(graph, "while/next", "NextIteration", ["while/body/Mul"], 1, T=1)
    _add(graph, "top", "TopKV2", ["while/body/Mul", "k"], 1, T=1)
    _add(graph, "twins", "IdentityN", ["top", "top:1", "call/split"], 1, T=[1, 3, 1])
    _add(graph, "axis", "Const", [], 1, dtype=3)
    _add(graph, "k", "Const", [], 1, dtype=3)
    _add(graph, "result", "_Retval", ["twins"], T=1, index=0)
    graph.node[3].device = "/job:localhost/replica:0/task:0/device:CPU:0"
    function = graph.library.function.add()
    function.signature.name = "body"
    _add_node(function.node_def.add(), "inner", "Neg", ["y"], 2, T=1)
    graph.versions.producer = 2000
    outer: list[NamedOp] = [
        ("^0", "x", "Placeholder", [1], False),
        ("weights", "weights", "Const", [2], False),
        ("layer/MatMul", "layer/MatMul", "MatMul", [3], True),
        ("layer/Relu", "layer/Relu", "Relu", [4], False),
        ("while/body/Mul", "while/body/Mul", "Mul", [5], False),
        ("top", "top", "TopKV2", [6, 7], False),
        ("twins", "twins", "IdentityN", [8, -1, 9], False),
    ]
    _add(graph, "while/body/_3/call/unary_ops_composition", "_UnaryOpsComposition", ["layer/Relu"], T=1)
    inner: list[NamedOp] = [("split", "split", "Split", [10, 11, 12], False)]
    return graph.SerializeToString(), {1: (outer, ["^0"], {"call": 2, "while/body": 1}), 2: (inner, [], {"again": 2})}


def _add(graph: Any, name: str, op: str, inputs: Iterable[str] = (), graph_id: int = 0, **attributes: Any) -> None:
    _add_node(graph.node.add(), name, op, inputs, graph_id, **attributes)


def _add_node(node: Any, name: str, op: str, inputs: Iterable[str], graph_id: int, **attributes: Any) -> None:
    node.name, node.op = name, op
    node.input.extend(inputs)
    if graph_id:
        node.attr[MARK].i = marked(graph_id)
    for key, value in attributes.items():
        if isinstance(value, bytes):
            node.attr[key].s = value
        elif isinstance(value, list) and isinstance(value[0], bytes):
            node.attr[key].list.s.extend(value)
        elif isinstance(value, list):
            node.attr[key].list.type.extend(value)
        elif key in ("T", "dtype"):
            node.attr[key].type = value
        else:
            node.attr[key].i = value
