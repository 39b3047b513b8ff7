"""The native editor of GraphDefs, `with_record_ops`, compared with TensorFlow's own messages and op definitions."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from tests.fuzz import graph_defs, mutators
from tests.fuzz.graph_defs import (
    CONSTANT,
    GENERATION,
    MARK,
    THROUGH,
    NamedOp,
    canonical,
    check_edit,
    is_record_op,
    make_recording,
    marked,
    serialized,
    small_graph,
)
from tfdbg_arrow.writer.backend import OnNonFinite, native_core
from tfdbg_arrow.writer.hooks import runtime
from tfdbg_arrow.writer.live_stop import masking

from .subprocesses import run_python

pytestmark = pytest.mark.skipif(native_core() is None, reason="the native core is not built")

v1 = tf.compat.v1
GraphDef = v1.GraphDef
FLOATS = [tf.float32, tf.float64, tf.float16, tf.bfloat16]
DTYPES = [dtype.as_datatype_enum for dtype in (*FLOATS, tf.float32, tf.int32, tf.bool, tf.string, tf.resource)]
COVERED = {dtype.as_datatype_enum for dtype in FLOATS}
KEEPABLE = COVERED | {dtype.as_datatype_enum for dtype in (tf.int32, tf.bool, tf.string)}
PLUMBING = {"Enter", "Exit", "Merge", "NextIteration", "Switch", "LoopCond", "_Retval", "NoOp"}
PASSING_ON = {"Identity", "IdentityN"}
MAX_SECONDS = 20.0

Draw = Callable[[st.SearchStrategy[Any]], Any]
Types = Callable[[Draw], dict[str, Any]]


def one(*names: str) -> Types:
    """Returns attributes that each hold a dtype."""
    return lambda draw: {name: draw(st.sampled_from(DTYPES)) for name in names}


def many(*names: str) -> Types:
    """Returns attributes that each hold a list of dtypes."""
    return lambda draw: {name: draw(st.lists(st.sampled_from(DTYPES), max_size=4)) for name in names}


def counted(name: str) -> Types:
    return lambda draw: {**one("T")(draw), name: draw(st.integers(0, 5))}


OPS: dict[str, Types] = {
    "AddN": counted("N"),
    "AddV2": one("T"),
    "Cast": one("SrcT", "DstT"),
    "Const": one("dtype"),
    "Enter": one("T"),
    "Exit": one("T"),
    "FusedBatchNormV3": one("T", "U"),
    "Identity": one("T"),
    "IdentityN": many("T"),
    "LoopCond": one(),
    "Merge": counted("N"),
    "Neg": one("T"),
    "NextIteration": one("T"),
    "NoOp": one(),
    "NoSuchOp": one("T"),
    "PartitionedCall": many("Tin", "Tout"),
    "Placeholder": one("dtype"),
    "RandomUniform": one("T", "dtype"),
    "Shape": one("T"),
    "Split": counted("num_split"),
    "Switch": one("T"),
    "TopKV2": one("T"),
    "Unpack": counted("num"),
    "VariableV2": one("dtype"),
    "While": many("T"),
    "_Arg": one("T"),
    "_Retval": one("T"),
}
TYPES = sorted(OPS)


@dataclasses.dataclass(frozen=True)
class ProgramOp:
    graph_id: int
    name: str
    type: str
    keys: tuple[int, ...]
    keep: bool

    @property
    def named(self) -> NamedOp:
        return (self.name, f"{self.name} of the program", self.type, [*self.keys], self.keep)


def program_ops(graph_id: int) -> list[ProgramOp]:
    """Returns ops whose names are not the end of another op's name. The first two ops are arguments."""
    ops = [ProgramOp(graph_id, f"^{i}", "Placeholder", (900 + 10 * graph_id + i,), False) for i in range(2)]
    for i, op_type in enumerate(TYPES):
        keys = tuple(-1 if (i + slot) % 5 == 0 else 1000 * graph_id + 10 * i + slot for slot in range(4))
        name = f"scope_{graph_id}/{op_type}/op_{graph_id}_{i}" if i % 2 else f"op_{graph_id}_{i}"
        ops.append(ProgramOp(graph_id, name, op_type, keys, i % 4 == 0))
    return ops


PROGRAM = {graph_id: program_ops(graph_id) for graph_id in (1, 2, 3)}
PATHS = ("", "", "call", "outer/call", "while/body/_12/call", "outer", "größe")
OTHER_MARKS = (marked(4), (GENERATION + 1) << 32 | 1, 1, -1)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a recording with the graphs of PROGRAM."""
    native_core().load_tensorflow(*runtime.library_paths())
    made = make_recording(tmp_path_factory.mktemp("recording"))
    for graph_id, ops in PROGRAM.items():
        made.add_program_graph(graph_id, [op.named for op in ops], [op.name for op in ops[:2]], {})
    return made


@dataclasses.dataclass
class Node:
    """A node with its op of the program, its path, and the mark of the recording if the node has a mark."""

    definition: Any
    op: ProgramOp | None = None
    path: str = ""
    mark: int | None = None
    is_by_name: bool = False


@st.composite
def nodes(draw: Draw, names: set[str]) -> Node | None:
    graph_id = draw(st.sampled_from([*PROGRAM]))
    path = draw(st.sampled_from(PATHS))
    kind = draw(st.sampled_from(["op", "op", "op", "op", "by name", "other", "marked other", "folded", "argument"]))
    op = draw(st.sampled_from(PROGRAM[graph_id][2:]))
    op_type = draw(st.sampled_from(["_Arg"] if kind == "argument" else [op.type, op.type, *TYPES]))
    prefix = f"{path}/" if path else ""
    own = f"node_{draw(st.integers(0, 99))}" if "other" in kind or kind == "argument" else op.name
    name = f"{prefix}ConstantFolding/{own}" if kind == "folded" else f"{prefix}{own}"
    if name in names:
        return None
    names.add(name)
    definition = v1.NodeDef(name=name, op=op_type, device=draw(st.sampled_from(["", "/device:CPU:0", "/cpu:1"])))
    for key, value in OPS[op_type](draw).items():
        if isinstance(value, list):
            definition.attr[key].list.type.extend(value)
        elif key in ("N", "num", "num_split"):
            definition.attr[key].i = value
        else:
            definition.attr[key].type = value
    if op_type in ("_Arg", "_Retval"):
        definition.attr["index"].i = draw(st.integers(-1, 3))
    mark = marked(graph_id) if kind in ("op", "marked other", "folded") else None
    if mark is None and draw(st.integers(0, 3)) == 0:
        mark = draw(st.sampled_from(OTHER_MARKS))
    if mark is not None:
        definition.attr[MARK].i = mark
    decorate(draw, definition, own)
    node = Node(definition, mark=mark if kind in ("op", "marked other", "folded") else None)
    if kind in ("op", "by name"):
        node.op, node.path, node.is_by_name = op, path, kind == "by name"
    return node


def decorate(draw: Draw, definition: Any, own_name: str) -> None:
    """Adds fields that the optimizer must not change."""
    size = draw(st.sampled_from([0, 0, 0, 0, 5, 100, 20_000]))
    if size:
        definition.attr["value"].tensor.tensor_content = bytes(range(256)) * (size // 256) + b"\xff" * (size % 256)
    if draw(st.integers(0, 4)) == 0:
        definition.attr["_class"].list.s.append(b"loc:@somewhere")
        definition.attr["f"].func.name = "body"
        definition.attr["f"].func.attr["T"].shape.unknown_rank = True
    original_names = draw(st.sampled_from([[], [], ["elsewhere"], [own_name], ["elsewhere", own_name, "op_1_3"]]))
    definition.experimental_debug_info.original_node_names.extend(original_names)
    if draw(st.integers(0, 5)) == 0:
        definition.experimental_debug_info.original_func_names.append("f")
        definition.experimental_type.type_id = 1000


@dataclasses.dataclass
class Drawn:
    """A GraphDef."""

    data: bytes
    nodes: list[Node]


@st.composite
def graphs(draw: Draw) -> Drawn:
    names: set[str] = set()
    drawn = [node for _ in range(draw(st.integers(1, 10))) if (node := draw(nodes(names)))]
    for node in drawn:
        inputs = draw(st.lists(st.sampled_from(sorted(names)), max_size=4))
        slots = [draw(st.sampled_from(["", "", ":0", ":1", ":2", ":7"])) for _ in inputs]
        node.definition.input.extend(name + slot for name, slot in zip(inputs, slots, strict=True))
        node.definition.input.extend(f"^{name}" for name in draw(st.lists(st.sampled_from(sorted(names)), max_size=2)))
    pieces = [GraphDef(node=[in_any_order(draw, node.definition)]).SerializeToString() for node in drawn]
    for others in (library(), GraphDef(versions={"producer": 2000, "min_consumer": 12}), GraphDef(version=3)):
        if draw(st.booleans()):
            pieces.insert(draw(st.integers(0, len(pieces))), others.SerializeToString())
    if draw(st.booleans()):
        pieces.append(draw(st.sampled_from(UNKNOWN)))
    return Drawn(b"".join(pieces), drawn)


UNKNOWN = (b"\xc2\x3e\x03new", b"\xc0\x3e\x96\x01", b"\xc1\x3e12345678\xc5\x3e1234", b"\xc2\x3e\x00" * 3)
"""Fields with the number 1000, as in a later version: bytes, a number, fixed-size numbers, and a repeated field."""


def in_any_order(draw: Draw, definition: Any) -> Any:
    """Returns the bytes of a node with its fields in another order and with unknown fields."""
    whole = definition.SerializeToString()
    if draw(st.booleans()):
        cut = v1.NodeDef.FromString(whole)
        del cut.input[:]
        inputs = v1.NodeDef(input=definition.input).SerializeToString()
        whole = inputs + cut.SerializeToString() if draw(st.booleans()) else cut.SerializeToString() + inputs
    if draw(st.integers(0, 3)) == 0:
        whole += draw(st.sampled_from(UNKNOWN))
    return v1.NodeDef.FromString(whole)


def library() -> Any:
    graph = GraphDef()
    function = graph.library.function.add()
    function.signature.name = "body"
    function.node_def.add(name="op_1_1", op="Neg", input=["x"]).attr[MARK].i = marked(1)
    function.ret["y"] = "op_1_1:y:0"
    graph.library.gradient.add(function_name="body", gradient_func="body")
    return graph


def output_types(definition: Any) -> list[int] | None:
    """Returns the dtype number of each output from TensorFlow's op definitions. -1 means a reference."""
    op_def = op_def_registry.get(definition.op)
    if op_def is None:
        return None
    defaults = {attr.name: attr.default_value for attr in op_def.attr if attr.HasField("default_value")}

    def value_of(name: str) -> Any:
        return definition.attr[name] if name in definition.attr else defaults[name]

    types: list[int] = []
    for argument in op_def.output_arg:
        if argument.type_list_attr:
            types += value_of(argument.type_list_attr).list.type
            continue
        dtype = value_of(argument.type_attr).type if argument.type_attr else argument.type
        number = value_of(argument.number_attr).i if argument.number_attr else 1
        types += [-1 if argument.is_ref else dtype] * number
    return types


@dataclasses.dataclass(frozen=True)
class Expected:
    """The expected attributes of a record op. A key of None means that the program's registry has no such output."""

    op: str
    type: int
    key: int | None
    keep: bool
    argument: int = -1
    call_site: str | None = None


class Model:
    """Computes the record ops that an edited graph must have."""

    def __init__(self, drawn: Drawn, *, records_others: bool) -> None:
        self._records_others = records_others
        self._graphs_at: dict[str, set[int]] = {}
        for node in drawn.nodes:
            if node.definition.op == "_Arg" and node.mark is not None:
                self._graphs_at.setdefault("", set()).add(node.mark & 0xFFFFFFFF)
            elif node.op is not None and not node.is_by_name:
                self._graphs_at.setdefault(node.path, set()).add(node.op.graph_id)
        self.is_ours = any(node.mark is not None for node in drawn.nodes)
        self.matches = {node.definition.name: self._match_whole(node) for node in drawn.nodes}
        self.records: dict[str, Expected] = {}
        if self.is_ours:
            for node in drawn.nodes:
                self._expect(node)

    def _match_whole(self, node: Node) -> tuple[ProgramOp | None, int]:
        """Returns the same as _match(), except that an IdentityN without some of its outputs has no op."""
        op, argument = self._match(node)
        is_identity = op is not None and op.type == node.definition.op == "IdentityN"
        types = output_types(node.definition)
        is_short = op is not None and types is not None and len(types) < len(op.keys)
        return (None, -1) if is_identity and is_short else (op, argument)

    def _match(self, node: Node) -> tuple[ProgramOp | None, int]:
        """Returns the op that a node stands for, and the index of the argument, or -1 if the node is no argument."""
        is_argument = node.definition.op == "_Arg"
        if node.op is not None and not node.is_by_name and not is_argument:
            return node.op, -1
        is_inlined = node.op is not None and node.op.graph_id in self._graphs_at.get(node.path, ())
        if is_inlined and not is_argument:
            return node.op, -1
        index = node.definition.attr["index"].i if "index" in node.definition.attr else -1
        graph_ids = self._graphs_at.get("", set())
        if is_argument and len(graph_ids) == 1 and 0 <= index < 2:
            return PROGRAM[next(iter(graph_ids))][index], index
        return None, -1

    def _is_known(self, node: Node) -> bool:
        name = node.definition.name
        ends = [at for at, letter in enumerate(name) if letter == "/"]
        return node.mark is not None or any(path in self._graphs_at for path in ["", *(name[:end] for end in ends)])

    def _expect(self, node: Node) -> None:
        definition = node.definition
        op, argument = self.matches[definition.name]
        is_programs_own = op is not None and op.type == definition.op != "NextIteration"
        if (definition.op in PLUMBING and not is_programs_own) or not self._is_known(node):
            return
        if op is None and (not self._records_others or definition.op in PASSING_ON | {"_Arg"}):
            return
        for slot, dtype in enumerate(output_types(definition) or []):
            if dtype not in COVERED and not (op is not None and op.keep and dtype in KEEPABLE):
                continue
            key = None
            if op is not None:
                if slot >= len(op.keys) or op.keys[slot] < 0:
                    continue
                key = op.keys[slot] if definition.op in (op.type, "_Arg") else None
            self.records[f"{definition.name}:{slot}" if slot else definition.name] = Expected(
                CONSTANT if definition.op == "Const" else THROUGH,
                dtype,
                key,
                op is not None and op.keep,
                argument,
                None if op is None else "" if argument >= 0 else node.path,
            )


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=graphs(), records_others=st.booleans(), keeps_inputs=st.booleans())
def test_an_edited_graph_is_the_original_with_record_ops(
    recording: Any, drawn: Drawn, records_others: bool, keeps_inputs: bool
) -> None:
    recording.set_records_others(records_others)
    recording.set_keeps_inputs(keeps_inputs)
    edited = recording.with_record_ops(drawn.data)
    model = Model(drawn, records_others=records_others)
    original = GraphDef.FromString(drawn.data)
    if not model.records:
        assert edited == b""
    else:
        graph = GraphDef.FromString(edited)
        check_edit(original, graph)
        assert recording.with_record_ops(edited) == b"", "the graph already has record ops"
        records = {node.input[0]: node for node in graph.node if is_record_op(node)}
        assert sorted(records) == sorted(model.records)
        for source, expected in model.records.items():
            check_attributes(records[source], expected)
            check_kept_inputs(records[source], original, keeps_inputs=keeps_inputs)
    recording.set_keeps_inputs(False)
    noted = recording.take_executed_graphs()
    assert len(noted) == model.is_ours
    for _, nodes in noted:
        check_noted(nodes, original, model)


def check_attributes(record: Any, expected: Expected) -> None:
    attr = record.attr
    assert record.op == expected.op
    assert attr["T"].type == expected.type
    assert attr["node"].i == expected.key if expected.key is not None else attr["node"].i <= -2
    assert attr["keep"].b == expected.keep
    assert attr["argument"].i == expected.argument
    if expected.call_site is not None:
        assert attr["has_call_site"].b
        assert attr["call_site"].s.decode() == expected.call_site
    else:
        name = record.name.partition("/")[2]
        assert name.startswith(attr["call_site"].s.decode())


def check_kept_inputs(record: Any, original: Any, *, keeps_inputs: bool) -> None:
    """Checks that a record op takes those inputs of its node that must be kept, and has the indexes of these inputs."""
    _, *kept = record.input
    indexes = list(record.attr["kept_inputs"].list.i)
    assert keeps_inputs or not kept
    (node,) = [node for node in original.node if node.name == record.input[0].partition(":")[0]]
    assert kept == [canonical(node.input[index]) for index in indexes]


def check_noted(nodes: list[Any], original: Any, model: Model) -> None:
    """Checks that the rows about an executed graph match the graph that TensorFlow reads."""
    assert len(nodes) == len(original.node)
    for (name, op_type, device, graph_id, op_name, path, inputs, *_), node in zip(nodes, original.node, strict=True):
        op, _ = model.matches[node.name]
        assert (name, op_type, device) == (node.name, node.op, node.device)
        assert op_name == (op.named[1] if op is not None else "")
        assert op is None or graph_id == op.graph_id
        assert path is None or node.name.startswith(path)
        written = [f"^{source}" if is_control else f"{source}:{slot}" for source, slot, is_control in inputs]
        assert written == [text if text.startswith("^") or ":" in text else f"{text}:0" for text in node.input]


# Real graphs.


def with_loops(x: Any) -> Any:
    total = x
    for step in tf.range(3):
        total = tf.nn.relu(total * 0.5 + 1.0) if step > 0 else tf.math.log(tf.nn.softmax(total))
    values, indices = tf.math.top_k(total, 2)
    return tf.add_n([total, x, x]), values, indices, *tf.split(tf.cast(total, tf.float16), 3, axis=1)


def with_gradients(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x
        while tf.reduce_sum(y) < 100.0:
            y = y * tf.nn.softplus(y) + 1.0
        scale = tf.ones([3])
        image, mean, *_ = v1.nn.fused_batch_norm(tf.reshape(y, [1, 2, 1, 3]), scale, scale)
        loss = tf.reduce_sum(image * image) + tf.reduce_sum(mean)
    return loss, tape.gradient(loss, x)


def with_calls(x: Any) -> Any:
    twice = tf.function(lambda y: tf.nn.tanh(y) * 2.0, autograph=False)
    return twice(twice(x)), tf.map_fn(twice, x), tf.unique(tf.reshape(x, [-1])), tf.strings.as_string(x)


X = np.array([[100.0, -100.0, 0.5], [1.0, 2.0, 3.0]], np.float32)
PROGRAMS = (with_loops, with_gradients, with_calls)


def real_graph(program: Any, *, is_lowered: bool) -> tuple[Any, list[str]]:
    """Returns the marked GraphDef of a function, and the names of its outputs."""
    concrete = tf.function(program).get_concrete_function(tf.TensorSpec([2, 3], tf.float32, name="x"))
    if is_lowered:  # to Switch, Merge, Enter, …
        concrete = convert_variables_to_constants_v2(concrete, lower_control_flow=True)
    graph = GraphDef()
    graph.CopyFrom(concrete.graph.as_graph_def())
    for node in graph.node:
        node.attr[MARK].i = marked(5)
    return graph, [tensor.name for tensor in concrete.outputs]


def imported(graph: Any) -> Any:
    with tf.Graph().as_default() as made:
        tf.import_graph_def(graph, name="")
    return made


@pytest.mark.parametrize("is_lowered", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_float_of_a_real_graph_is_recorded_with_the_type_that_tensorflow_infers(
    recording: Any, program: Any, is_lowered: bool
) -> None:
    graph, outputs = real_graph(program, is_lowered=is_lowered)
    own = imported(graph)
    ops = [(op.name, op.name, op.type, [7] * len(op.outputs), False) for op in own.get_operations()]
    recording.add_program_graph(5, ops, [], {})
    recording.set_records_others(True)
    edited = GraphDef.FromString(recording.with_record_ops(graph.SerializeToString()))
    recording.take_executed_graphs()
    check_edit(graph, edited)
    with_records = imported(edited)
    found = {}
    for op in with_records.get_operations():
        if op.type in (THROUGH, CONSTANT):
            assert op.get_attr("T") == op.inputs[0].dtype
            found[op.inputs[0].name] = op.inputs[0].dtype
    expected = {
        tensor.name: tensor.dtype
        for op in own.get_operations()
        if op.type != "NextIteration"
        for tensor in op.outputs
        if tensor.dtype in FLOATS
    }
    assert len(expected) > 5
    assert found == expected
    for each in own.get_operations():
        copy = with_records.get_operation_by_name(each.name)
        assert [tensor.dtype for tensor in copy.outputs] == [tensor.dtype for tensor in each.outputs]
        assert [str(tensor.shape) for tensor in copy.outputs] == [str(tensor.shape) for tensor in each.outputs]
    results = []
    for made in (own, with_records):
        with v1.Session(graph=made) as session:
            results.append([str(np.asarray(value).tolist()) for value in session.run(outputs, {"x:0": X})])
    assert results[0] == results[1]


# Bytes that TensorFlow does not write. `tests/fuzz` has mutated graphs.


SMALL, SMALL_PROGRAM = small_graph()


@pytest.fixture(scope="module")
def small(recording: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a recording with the program of SMALL."""
    made = make_recording(tmp_path_factory.mktemp("small"))
    for graph_id, (ops, arguments, calls) in SMALL_PROGRAM.items():
        made.add_program_graph(graph_id, ops, arguments, calls)
    return made


def readable(data: bytes) -> Any | None:
    """Returns the GraphDef that protobuf reads. None means that protobuf cannot parse the bytes."""
    try:
        return GraphDef.FromString(data)
    except DecodeError:
        return None


edit = functools.partial(graph_defs.edit, message=GraphDef)


def small_node(graph: Any, **fields: Any) -> Any:
    """Adds a node to a graph of SMALL's program, by default a float `Neg`."""
    node = graph.node.add(**{"name": "node", "op": "Neg", "input": ["x"], **fields})
    node.attr["T"].type = 1
    node.attr[MARK].i = marked(1)
    return node


def message(number: int, value: bytes) -> bytes:
    """Returns an encoded field that holds bytes."""
    return mutators.varint(number << 3 | 2) + mutators.varint(len(value)) + value


def test_the_small_graph_is_recorded(small: Any) -> None:
    graph = edit(small, SMALL)
    assert graph is not None
    assert {node.op for node in graph.node if is_record_op(node)} == {THROUGH, CONSTANT}


def test_truncated_graphs_are_rejected_or_edited(small: Any) -> None:
    edits = [edit(small, SMALL[:size]) for size in range(len(SMALL))]
    assert sum(graph is not None for graph in edits) > 5


@pytest.fixture(scope="module", params=[OnNonFinite.NOTE, OnNonFinite.FAIL], ids=["callable", "raise"])
def stopping(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, bool]:
    """Returns a recording of PROGRAM that reacts to bad values, and whether it stops the program."""
    native_core().load_tensorflow(*runtime.library_paths())
    made = make_recording(tmp_path_factory.mktemp("stopping"))
    made.set_on_nonfinite(int(request.param), "run")
    made.set_stop_rules(*masking.stop_rules())
    for graph_id, ops in PROGRAM.items():
        made.add_program_graph(graph_id, [op.named for op in ops], [op.name for op in ops[:2]], {}, graph_id == 1)
    return made, request.param is OnNonFinite.FAIL


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=graphs())
def test_a_graph_that_may_stop_has_the_same_edges(stopping: tuple[Any, bool], drawn: Drawn) -> None:
    recording, stops = stopping
    edited = edit(recording, drawn.data, stops=stops)
    masked = {key for key, *_ in recording.take_masked_outputs()}
    records = [] if edited is None else [node for node in edited.node if is_record_op(node)]
    assert masked == {record.attr["node"].i for record in records if not record.attr["decides"].b}


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=200))
def test_random_bytes_do_not_crash(small: Any, data: bytes) -> None:
    edit(small, data)
    edit(small, SMALL + data)
    edit(small, message(1, data) + SMALL)


@pytest.mark.parametrize("size", [2, 3, 5, 6, 9, 10])
def test_numbers_longer_than_needed_are_read_as_protobuf_reads_them(small: Any, size: int) -> None:
    data = b""
    for node in GraphDef.FromString(SMALL).node:
        body = node.SerializeToString()
        data += mutators.varint(1 << 3 | 2, length=min(size, 5)) + mutators.varint(len(body), length=size) + body
    graph = edit(small, data)
    if readable(data) is not None:
        expected = edit(small, SMALL)
        assert graph is not None
        assert expected is not None
        for node in (*graph.node, *expected.node):
            node.attr.pop("executed_graph", None)  # a different number for each graph
        assert serialized(GraphDef(node=graph.node)) == serialized(GraphDef(node=expected.node))


def type_entry(*values: bytes) -> bytes:
    """Returns the encoded attribute T of a node, with values."""
    return message(5, message(1, b"T") + b"".join(message(2, value) for value in values))


FLOAT, DOUBLE, NUMBER = b"\x30\x01", b"\x30\x02", b"\x18\x05"


@pytest.mark.parametrize(
    ("entries", "dtype"),
    [
        (type_entry(FLOAT) + type_entry(DOUBLE), 2),
        (type_entry(DOUBLE) + type_entry(FLOAT), 1),
        (type_entry(FLOAT + DOUBLE), 2),
        (type_entry(NUMBER + FLOAT), 1),
        (type_entry(FLOAT + NUMBER), None),
        (type_entry(FLOAT, DOUBLE), None),
        (type_entry(FLOAT) + type_entry(b""), None),
        (type_entry(FLOAT) + message(5, message(2, DOUBLE) + message(1, b"T")), 2),
    ],
)
def test_the_last_value_of_a_repeated_attribute_counts(small: Any, entries: bytes, dtype: int | None) -> None:
    node = small_node(GraphDef())
    del node.attr["T"]
    data = message(1, node.SerializeToString() + entries)
    graph = edit(small, data)
    if dtype is None:
        assert graph is None
    else:
        assert graph is not None
        assert graph.node[0].attr["T"].type == dtype
        assert [record.attr["T"].type for record in graph.node[1:]] == [dtype]


def list_of(*pieces: bytes) -> bytes:
    """Returns the encoded attribute T with lists of dtypes."""
    return message(5, message(1, b"T") + message(2, b"".join(message(1, piece) for piece in pieces)))


@pytest.mark.parametrize(
    ("entry", "dtypes"),
    [
        (list_of(message(6, b"\x01\x03\x02")), [1, 3, 2]),
        (list_of(b"\x30\x01\x30\x03\x30\x02"), [1, 3, 2]),
        (list_of(b"\x30\x01" + message(6, b"\x03\x02")), [1, 3, 2]),
        (list_of(message(6, b"\x01"), message(6, b"\x03\x02")), [1, 3, 2]),
        (list_of(message(6, b"\x01\x03\x82\x80\x00")), [1, 3, 2]),
        (list_of(message(6, b"\x01\x03\x82")), None),
        (list_of(b"\x30\x01" * 70_000), None),
        (list_of(message(6, b"\x01" * 70_000)), None),
        (list_of(message(6, b"\x01" * 40_000), message(6, b"\x01" * 40_000)), None),
    ],
)
def test_lists_of_dtypes_are_read_as_protobuf_reads_them(small: Any, entry: bytes, dtypes: list[int] | None) -> None:
    node = small_node(GraphDef(), op="IdentityN")
    node.name = "twins"  # the name of an op of the program, so the node is recorded
    del node.attr["T"]
    graph = edit(small, message(1, node.SerializeToString() + entry))
    if dtypes is None:
        assert graph is None
    else:
        assert graph is not None
        assert [*graph.node[0].attr["T"].list.type] == dtypes
        assert [(record.input[0], record.attr["T"].type) for record in graph.node[1:]] == [("twins", 1), ("twins:2", 2)]


@pytest.mark.parametrize("text", ["top:00", "top:0", "top:1", "top:01", "top:+0", "top:-0", "top: 0", "top:"])
def test_a_slot_with_extra_digits_does_not_bypass_a_record_op(small: Any, text: str) -> None:
    graph = GraphDef.FromString(SMALL)
    graph.node.add(name="last", op="Neg", input=[text])
    edited = edit(small, graph.SerializeToString())
    if text.partition(":")[2].isdigit():
        assert edited is not None
        (last,) = [node for node in edited.node if node.name == "last"]
        assert is_recorded(edited, last.input[0]) == text.endswith("0")
    else:
        assert edited is None


def is_recorded(graph: Any, text: str) -> bool:
    return any(is_record_op(node) and node.name == text for node in graph.node)


@pytest.mark.parametrize("name", ["^x", "node:1", "node:", "a:b", ":0"])
def test_a_node_that_no_input_can_name_is_not_recorded(small: Any, name: str) -> None:
    graph = GraphDef()
    small_node(graph, name=name)
    assert edit(small, graph.SerializeToString()) is None
    small_node(graph, name="layer/Relu", input=[f"x/{name}" if name == ":0" else "x"])
    edited = edit(small, graph.SerializeToString())
    if edited is not None:
        assert [node.input[0] for node in edited.node if is_record_op(node)] == ["layer/Relu"]


def test_a_record_op_does_not_take_a_name_of_the_program(small: Any) -> None:
    graph = GraphDef()
    graph.node.add(name="x", op="Placeholder").attr["dtype"].type = 1
    for name in ("x/y", "tfdbg_arrow_record_0/x/y", "tfdbg_arrow_record_1/x/y", "tfdbg_arrow_record_"):
        small_node(graph, name=name)
    edited = edit(small, graph.SerializeToString())
    assert edited is not None
    assert len({node.name for node in edited.node}) == 7, "nodes with a name of a record op are not recorded"
    imported(edited)


# Texts that are not UTF-8.

BROKEN = (*mutators.BROKEN_UTF8, b"\xff", b"\xc3", b"\xf4\x90\x80\x80", b"\xe0\x9f\xbf", b"ok\xf0\x8f\xbf\xbf")


def texts_with_invalid_utf_8(broken: bytes) -> dict[str, bytes]:
    """Returns copies of SMALL with one more node. In each copy, another string of the node is invalid UTF-8."""
    mark = message(5, message(1, MARK.encode()) + message(2, b"\x18" + mutators.varint(marked(1))))
    texts = {"name": (1, b"bad"), "op": (2, b"Neg"), "input": (3, b"x"), "device": (4, b"/cpu:0")}
    made = {}
    for spoiled in (*texts, "attribute", "original name"):
        fields = [message(number, broken if spoiled == name else text) for name, (number, text) in texts.items()]
        fields.append(message(5, message(1, broken if spoiled == "attribute" else b"b") + message(2, b"")))
        fields.append(message(6, message(1, broken if spoiled == "original name" else b"b")))
        made[spoiled] = SMALL + message(1, b"".join(fields) + mark + type_entry(FLOAT))
    return made


@pytest.mark.parametrize("broken", BROKEN)
def test_a_text_that_is_not_utf_8_is_rejected(small: Any, broken: bytes) -> None:
    for data in texts_with_invalid_utf_8(broken).values():
        assert readable(data) is None
        with pytest.raises(RuntimeError, match="no GraphDef"):
            small.with_record_ops(data)
    assert small.take_executed_graphs() == []
    assert native_core().strings(0)[0] == ""


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.one_of(st.binary(min_size=1, max_size=6), st.text(min_size=1, max_size=6).map(str.encode)))
def test_texts_are_accepted_if_python_can_decode_them(small: Any, text: bytes) -> None:
    expected = is_text(text)
    for data in texts_with_invalid_utf_8(text).values():
        if expected:
            with contextlib.suppress(RuntimeError):  # the text is not a valid input
                small.with_record_ops(data)
        else:
            with pytest.raises(RuntimeError, match="no GraphDef"):
                small.with_record_ops(data)
    for _, nodes in small.take_executed_graphs():
        assert len(nodes) == len(GraphDef.FromString(SMALL).node) + 1


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# Hostile sizes.


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Asserts that the block takes less processor time."""
    begin = time.process_time()
    yield
    assert time.process_time() - begin < seconds


def edited_in_time(recording: Any, data: bytes, *, seconds: float = MAX_SECONDS) -> Any | None:
    """Edits a graph, and asserts that the editing does not take long."""
    with within(seconds):
        edited = recording.with_record_ops(data)
    recording.take_executed_graphs()
    return GraphDef.FromString(edited) if edited else None


def test_a_graph_of_many_nodes_is_edited_in_time(small: Any) -> None:
    graph = GraphDef()
    for number in range(20_000):
        small_node(graph, name=f"part_{number % 100}/node_{number}", input=[f"node_{number - 1}"])
        if number % 2:
            del graph.node[-1].attr[MARK]
    small_node(graph, name="layer/Relu")
    edited = edited_in_time(small, graph.SerializeToString())
    assert edited is not None
    assert len(edited.node) == 2 * len(graph.node)


def test_a_graph_of_many_unknown_ops_is_edited_in_time(small: Any) -> None:
    """Reading the list of all ops takes milliseconds, so the list must not be read again for each node."""
    graph = GraphDef()
    for number in range(4_000):
        small_node(graph, name=f"node_{number}", op=f"no_such_op_{number}")
    small_node(graph)
    edited = edited_in_time(small, graph.SerializeToString(), seconds=5.0)
    assert edited is not None
    assert len(edited.node) == len(graph.node) + 1


NUM_COMPONENTS = 1_000_000


@pytest.mark.parametrize("is_marked", [True, False])
@pytest.mark.parametrize("letter", ["", "a"])
def test_a_name_of_many_components_is_looked_up_in_time(recording: Any, is_marked: bool, letter: str) -> None:
    graph = GraphDef()
    for number in range(50):
        small_node(graph, name=f"call_{number}/{PROGRAM[1][5].name}")
    for end in ("b", PROGRAM[1][7].name):
        small_node(graph, name=f"{letter}/" * NUM_COMPONENTS + end)
        if not is_marked:
            del graph.node[-1].attr[MARK]
    edited = edited_in_time(recording, graph.SerializeToString(), seconds=10.0)
    assert edited is not None


@pytest.mark.parametrize("depth", [0, 1, 50, 200])
def test_an_op_is_found_behind_many_nested_calls(recording: Any, depth: int) -> None:
    op = next(op for op in PROGRAM[1] if op.type == "Neg")
    path = "/".join(["call"] * depth)
    graph = GraphDef()
    small_node(graph, name=f"{path}/{op.name}".removeprefix("/"))
    small_node(graph, name=f"{path}/{PROGRAM[1][2].name}".removeprefix("/"))
    del graph.node[-1].attr[MARK]
    recording.take_executed_graphs()
    recording.with_record_ops(graph.SerializeToString())
    ((_, nodes),) = recording.take_executed_graphs()
    assert [(node[4], node[5]) for node in nodes] == [(op.named[1], path), (PROGRAM[1][2].named[1], path)]


def test_a_node_fused_from_many_ops_is_looked_up_in_time(recording: Any) -> None:
    graph = GraphDef()
    node = small_node(graph, name="ConstantFolding/" + "a/" * NUM_COMPONENTS + PROGRAM[1][2].name)
    node.experimental_debug_info.original_node_names.extend([PROGRAM[1][2].name] * NUM_COMPONENTS)
    small_node(graph, name=PROGRAM[1][5].name)
    assert edited_in_time(recording, graph.SerializeToString(), seconds=10.0) is not None


def test_a_node_of_many_inputs_and_attributes_is_edited_in_time(small: Any) -> None:
    graph = GraphDef()
    small_node(graph, name="layer/Relu")
    node = small_node(graph, input=[*["layer/Relu", "layer/Relu:0", "^x"] * 10_000, "layer/Relu"])
    for number in range(10_000):
        node.attr[f"_attribute_{number}"].i = number
    edited = edited_in_time(small, graph.SerializeToString())
    check_edit(graph, edited)


CLAIMING = f"""
import sys
import time
from pathlib import Path
import tensorflow as tf
from tests.fuzz.graph_defs import MARK, make_recording, marked, small_graph
from tfdbg_arrow.writer.backend import native_core
from tfdbg_arrow.writer.hooks import runtime

def claiming(num_outputs, *, name, dtype=1):
    node = tf.compat.v1.NodeDef(name=name, op="Split")
    node.attr["T"].type = dtype
    node.attr["num_split"].i = num_outputs
    node.attr[MARK].i = marked(1)
    return node

def with_record_ops(*nodes):
    return recording.with_record_ops(tf.compat.v1.GraphDef(node=nodes).SerializeToString())

native_core().load_tensorflow(*runtime.library_paths())
recording = make_recording(Path(sys.argv[1]))
for graph_id, (ops, arguments, calls) in small_graph()[1].items():
    recording.add_program_graph(graph_id, ops, arguments, calls)
edited = with_record_ops(claiming(100, name="few"), claiming(2**40, name="too many"), claiming(-1, name="negative"))
assert len(tf.compat.v1.GraphDef.FromString(edited).node) == 3 + 100
recording.take_executed_graphs()
for nodes in (
    [claiming(60_000, name="n" * 10_000)],
    [claiming(60_000, name=f"node_{{number}}", dtype=3) for number in range(20)],
    [claiming(60_000, name=f"node_{{number}}") for number in range(15)],
):
    begin = time.process_time()
    try:
        with_record_ops(*nodes)
    except RuntimeError as error:
        assert "too many" in str(error) or "too much" in str(error), error
    else:
        raise AssertionError("the graph was edited")
    assert time.process_time() - begin < {MAX_SECONDS}
assert recording.take_executed_graphs() == []
"""


@pytest.mark.slow
def test_claimed_outputs_take_no_memory(tmp_path: Path) -> None:
    """Runs in a separate process, because later recordings in the process would write the names of all outputs."""
    run_python(tmp_path / "program.py", CLAIMING, tmp_path / "recording")


def test_deep_nesting_does_not_crash(small: Any) -> None:
    for number in (1, 2, 10):
        nested = b""
        for _ in range(3_000):
            nested = message(number, nested)
        for data in (nested, message(1, nested), message(5, message(1, b"f") + message(2, nested))):
            edit(small, data + SMALL)
            edit(small, message(1, small_node(GraphDef()).SerializeToString() + data))


@pytest.mark.parametrize("size", [2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_size_beyond_the_bytes_is_rejected(small: Any, size: int) -> None:
    length = mutators.varint(size)
    for data in (b"\x0a" + length, SMALL + b"\x0a" + length + b"x", SMALL + message(1, b"\x0a" + length + b"name")):
        with pytest.raises(RuntimeError, match="no GraphDef"):
            small.with_record_ops(data)


WITHOUT_TENSORFLOW = """
import sys
from pathlib import Path
from tests.fuzz.graph_defs import make_recording, small_graph

recording = make_recording(Path(sys.argv[1]))
data, program = small_graph()
for graph_id, (ops, arguments, calls) in program.items():
    recording.add_program_graph(graph_id, ops, arguments, calls)
assert recording.with_record_ops(data) == b""
assert "tensorflow" not in sys.modules
"""


@pytest.mark.slow
def test_without_tensorflow_nothing_is_recorded(tmp_path: Path) -> None:
    run_python(tmp_path / "program.py", WITHOUT_TENSORFLOW, tmp_path / "recording")
