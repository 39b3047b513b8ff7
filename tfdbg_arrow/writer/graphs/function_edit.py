"""Changes FunctionDefs: adds nodes, arguments and results, and replaces called functions.

PlainFunctions makes copies of functions without our ops. The copies run in steps that are not recorded. A record op
that returns at once still has a cost: TensorFlow schedules it, cannot fuse across its input tensor, and cannot reuse
that tensor's memory.

A copy has its own kernels. A second kernel would change the program if the kernel keeps a state, as TensorFlow's
stateful random ops do. So functions with such ops are not copied. The copies stay when the recording ends, because
another thread may be about to call a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from tfdbg_arrow.writer.graphs.node_defs import definitions_within, function_values, runs_inline
from tfdbg_arrow.writer.graphs.stripping import strip_function

if TYPE_CHECKING:
    from tfdbg_arrow.writer.hooks.runtime import RuntimeFunctions

SUFFIX = "_tfdbg_arrow_plain"
"""The suffix of the names of the copies."""
_STATE_IS_ELSEWHERE = frozenset({
    "Assert", "Case", "EagerPyFunc", "If", "MergeV2Checkpoints", "Print", "PrintV2", "PyFunc", "ReadFile", "RestoreV2",
    "SaveV2", "StackV2", "StatefulPartitionedCall", "TensorArrayV3", "Timestamp", "VarHandleOp", "While", "WriteFile",
})  # fmt: skip
"""Stateful ops whose kernels keep nothing from one run to the next."""
CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
MUST_COMPILE = "_XlaMustCompile"
NO_INLINE = "_noinline"
"""The attribute of a function that TensorFlow does not inline, but runs as a separate call with its own step ID."""


# Source: tensorflow/core/framework/types.proto.
DOUBLE, INT64, BOOL = 2, 9, 10


class FunctionEdit:
    """Copies a FunctionDef and changes the copy.

    Args:
        function_def: The FunctionDef, which is not changed.
        new_name: `(what)`: returns a name that no other node has.

    Attributes:
        function_def: The copy.
    """

    def __init__(self, function_def: Any, new_name: Callable[[str], str]) -> None:
        self.function_def = type(function_def)()
        self.function_def.CopyFrom(function_def)
        self._new_name = new_name

    def store(self, library: RuntimeFunctions, name: str) -> str:
        """Stores the copy under a name in TensorFlow's runtime; returns the name."""
        self.function_def.signature.name = name
        library.add_function_def(self.function_def)
        return name

    def add_node(self, op_type: str, name: str, inputs: Sequence[str]) -> Any:
        """Adds a node; returns it."""
        node = self.function_def.node_def.add()
        node.op, node.name = op_type, name
        node.input.extend(inputs)
        return node

    def add_call(
        self,
        function_name: str,
        inputs: Sequence[str],
        input_types: Sequence[int],
        output_types: Sequence[int],
        *,
        op_type: str = "PartitionedCall",
        must_compile: bool = False,
    ) -> str:
        """Adds a call of a function; returns the node's name."""
        node = self.add_node(op_type, self._new_name("call"), inputs)
        node.attr["f"].func.name = function_name
        node.attr["Tin"].list.type.extend(input_types)
        node.attr["Tout"].list.type.extend(output_types)
        for name in ("config", "config_proto", "executor_type"):
            node.attr[name].s = b""
        if must_compile:
            node.attr[MUST_COMPILE].b = True
        return str(node.name)

    def add_copy(self, template: Any, inputs: Sequence[str]) -> str:
        """Adds a copy of a NodeDef; returns how nodes refer to its first output."""
        node = self.add_node(template.op, self._new_name("row"), inputs)
        for name, value in template.attr.items():
            node.attr[name].CopyFrom(value)
        return f"{node.name}:{'output' if node.op in CALLS else 'results'}:0"

    def add_shape(self, tensor: str, dtype: int) -> str:
        """Adds the shape of a tensor, as int64; returns how nodes refer to it."""
        node = self.add_node("Shape", self._new_name("shape"), [tensor])
        node.attr["T"].type = dtype
        node.attr["out_type"].type = INT64
        return f"{node.name}:output:0"

    def add_matrix(self, values: Sequence[Sequence[float]]) -> str:
        """Adds a constant matrix of float64; returns how nodes refer to it."""
        node = self.add_node("Const", self._new_name("matrix"), [])
        node.attr["dtype"].type = DOUBLE
        tensor = node.attr["value"].tensor
        tensor.dtype = DOUBLE
        for size in (len(values), len(values[0])):
            tensor.tensor_shape.dim.add().size = size
        flat = [value for row in values for value in row]
        tensor.double_val.extend(flat[:1] if len(set(flat)) == 1 else flat)
        return f"{node.name}:output:0"

    def add_scalar(self, dtype: int) -> str:
        """Adds a constant 0 or False; returns how nodes refer to it."""
        node = self.add_node("Const", self._new_name("zero"), [])
        node.attr["dtype"].type = dtype
        tensor = node.attr["value"].tensor
        tensor.dtype = dtype
        if dtype == BOOL:
            tensor.bool_val.append(False)
        else:
            tensor.int64_val.append(0)
        return f"{node.name}:output:0"

    def add_concatenation(self, parts: Sequence[str]) -> str:
        """Concatenates matrices; returns how nodes refer to the result."""
        if len(parts) == 1:
            return parts[0]
        axis = self.add_scalar(INT64)
        node = self.add_node("ConcatV2", self._new_name("concat"), [*parts, axis])
        node.attr["N"].i = len(parts)
        node.attr["T"].type = DOUBLE
        node.attr["Tidx"].type = INT64
        return f"{node.name}:output:0"

    def append_output(
        self, node: Any, shape: Sequence[int] | None, *, dtype: int = DOUBLE, attribute: str = "Tout"
    ) -> str:
        """Adds an output to a node; returns how nodes refer to it."""
        types = node.attr[attribute].list.type
        types.append(dtype)
        for name in ("output_shapes", "_output_shapes"):
            if name in node.attr and node.attr[name].list.shape:
                added = node.attr[name].list.shape.add()
                if shape is None:
                    added.unknown_rank = True
                else:
                    for size in shape:
                        added.dim.add().size = size
        return f"{node.name}:output:{len(types) - 1}"

    def append_arguments(self, types: Sequence[int]) -> list[str]:
        """Adds arguments to the function; returns how nodes refer to them."""
        names = []
        for dtype in types:
            argument = self.function_def.signature.input_arg.add()
            argument.name, argument.type = self._new_name("argument"), dtype
            names.append(str(argument.name))
        return names

    def append_result(self, tensor: str, dtype: int) -> None:
        """Adds a result to the function."""
        argument = self.function_def.signature.output_arg.add()
        argument.name, argument.type = self._new_name("result"), dtype
        self.function_def.ret[argument.name] = tensor

    def take_result(self) -> str:
        """Removes the last result; returns how nodes refer to the tensor that it returned."""
        last = self.function_def.signature.output_arg[-1].name
        del self.function_def.signature.output_arg[-1]
        return str(self.function_def.ret.pop(last))

    def run(self, node_name: str) -> None:
        """Makes TensorFlow run a node whenever the function runs."""
        signature = self.function_def.signature
        signature.is_stateful = True
        if node_name not in self.function_def.control_ret.values():
            name = self._new_name("runs")
            self.function_def.control_ret[name] = node_name
            signature.control_output.append(name)


def replace_function(node: Any, old: str, new: str, attribute: str | None = None, index: int = 0) -> None:
    """Replaces a function in a node; `attribute` and `index` select one of several references."""
    for key, position, function in function_values(node):
        if function.name == old and (attribute is None or (key, position) == (attribute, index)):
            function.name = new


def insert_inputs(node: Any, inputs: Sequence[str]) -> None:
    """Adds data inputs to a node, between its data inputs and its control inputs."""
    data = [text for text in node.input if not text.startswith("^")]
    control = [text for text in node.input if text.startswith("^")]
    del node.input[:]
    node.input.extend([*data, *inputs, *control])


class PlainFunctions:
    """Makes copies of functions without our ops, for one recording.

    Args:
        library: Stores functions.
        lock: The lock of the recording; see Journal.
        on_error: `(function_name, error)`: called if a function could not be copied.
    """

    def __init__(
        self,
        library: RuntimeFunctions,
        *,
        lock: AbstractContextManager[object],
        on_error: Callable[[str, object], None],
    ) -> None:
        self._library = library
        self._on_error = on_error
        self._lock = lock
        self._plain: dict[bytes, bytes] = {}
        self._copies: set[str] = set()

    def name_of(self, function_name: bytes) -> bytes:
        """Returns the name of the copy of a function; the function's own name if no copy can be made."""
        copy_name = self._plain.get(function_name)
        if copy_name is None:
            with self._lock:
                copy_name = self._plain.get(function_name)
                if copy_name is None:
                    copy_name = self._plain[function_name] = self._copy(function_name.decode()).encode()
        return copy_name

    def _copy(self, function_name: str) -> str:
        try:
            stripped = self._strip_all(function_name)
            if stripped is None:
                return function_name
            for name, function_def in stripped.items():
                if name + SUFFIX not in self._copies:
                    _rename(function_def, set(stripped))
                    self._library.add_function_def(function_def)
                    self._copies.add(name + SUFFIX)
        except Exception as error:
            self._on_error(function_name, error)
            return function_name
        return function_name + SUFFIX

    def _strip_all(self, function_name: str) -> dict[str, Any] | None:
        """Returns a function and all functions that run inline in it, without our ops.

        Returns None if one of the functions keeps a state, or if none of them has ops of ours.
        """
        definitions: dict[str, Any] = {}
        has_own = False
        for function_def in definitions_within(function_name, read=self._library.function_def, inline=True):
            definitions[function_def.signature.name] = function_def
            has_own |= strip_function(function_def)
            if "api_implements" in function_def.attr:  # TensorFlow may replace it by another function
                return None
            if any(may_keep_state(node.op) and self._library.keeps_state(node.op) for node in function_def.node_def):
                return None
        return definitions if has_own else None


def may_keep_state(op_type: str) -> bool:
    """Returns True if kernels of a stateful op of this type may keep something from one run to the next."""
    return op_type not in _STATE_IS_ELSEWHERE and "Dataset" not in op_type


def _rename(function_def: Any, names: set[str]) -> None:
    """Renames a FunctionDef and the copied functions that it calls to the names of the copies."""
    function_def.signature.name += SUFFIX
    for node in function_def.node_def:
        if not runs_inline(node.op):
            continue
        for _, _, function in function_values(node):
            if function.name in names:
                function.name += SUFFIX
