"""Reads NodeDefs: the functions that they call, their inputs and their attributes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfdbg_arrow.schema.tables import BAD_CONSTANT, INTEGERS
from tfdbg_arrow.writer.rows import to_json

OWN_OP_PREFIX = "TfdbgArrow"
"""Prefix of the types of our own ops."""

OWN_NAME_PREFIX = "tfdbg_arrow_"
"""Prefix of the names of all ops that we add to a graph."""

MARK = "_tfdbg_arrow_graph"
"""The attribute that tells the native core which graph of the program an op belongs to."""

NEEDS, FEEDS = "_tfdbg_arrow_needs", "_tfdbg_arrow_feeds"
"""Attributes of the op that stands for a run of a session: the tensors and ops that the run needs, and the tensors that
are fed to the run, one per line."""


_own_names = itertools.count(1)


def own_name(what: str = "record") -> str:
    """Returns a name for an op of ours that is not a prefix or suffix of another name in this process."""
    return f"{OWN_NAME_PREFIX}{what}_{next(_own_names)}_"


def is_own(op_type: str, name: str) -> bool:
    """Returns True if the op with this type and name is one of ours."""
    return op_type.startswith(OWN_OP_PREFIX) or name.startswith(OWN_NAME_PREFIX)


@dataclass(frozen=True, slots=True)
class TensorBatch:
    """The tensors of one op to record.

    Attributes:
        op: The producing `tf.Operation`.
        tensors: The symbolic outputs to record.
        nodes: The keys of the tensors, in the same order, without gaps.
        is_chosen: Whether the user chose to keep the elements of the tensors.
        decides: With `on_nonfinite`, whether each tensor stops the program if it is bad. Empty means that no tensor
            does.
    """

    op: Any
    tensors: Sequence[Any]
    nodes: range
    is_chosen: bool = False
    decides: tuple[bool, ...] = ()

    @property
    def all_decides(self) -> tuple[bool, ...]:
        """`decides`, with one value for each tensor."""
        return self.decides or (False,) * len(self.tensors)


def runs_inline(op_type: str) -> bool:
    """Returns True if an op of this type runs the functions in its attributes within its own step.

    Datasets run their functions in separate steps.
    """
    return "Dataset" not in op_type


def function_values(node_def: Any) -> Iterator[tuple[str, int, Any]]:
    """Yields the functions in the attributes of a NodeDef: attribute, index in a list, and the NameAttrList."""
    for key, value in node_def.attr.items():
        kind = value.WhichOneof("value")
        functions = [value.func] if kind == "func" else value.list.func if kind == "list" else []
        for index, function in enumerate(functions):
            yield key, index, function


def functions_of(node_def: Any) -> list[tuple[str, int, str]]:
    """Returns the functions in the attributes of a NodeDef: (attribute, index in a list, function name)."""
    return [(attribute, index, function.name) for attribute, index, function in function_values(node_def)]


def definitions_within(function_name: str, *, read: Callable[[str], Any], inline: bool = False) -> Iterator[Any]:
    """Yields the FunctionDefs of a function and of all functions that it calls, each once.

    Args:
        function_name: The name of the function.
        read: `(function_name)`: returns a FunctionDef.
        inline: Whether to omit functions that do not run within the function's own step.
    """
    unvisited, seen = [function_name], {function_name}
    while unvisited:
        function_def = read(unvisited.pop())
        yield function_def
        for node in function_def.node_def:
            if runs_inline(node.op) or not inline:
                callees = {name for _, _, name in functions_of(node)} - seen
                unvisited += callees
                seen |= callees


def attribute_json(value: Any) -> str:
    """Returns the value of an AttrValue as JSON."""
    return to_json(_attribute_value(value))


def _attribute_value(value: Any) -> object:
    """Converts an AttrValue to an object for JSON.

    A tensor becomes its dtype, its shape and whether it is bad. A small tensor of integers also keeps its elements,
    because such elements are axes, sizes or positions.
    """
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    content = getattr(value, kind)
    if kind == "list":
        for name in ("s", "i", "f", "b", "type", "shape", "tensor", "func"):
            elements = getattr(content, name)
            if elements:
                return [_scalar_attribute(name, element) for element in elements]
        return []
    return _scalar_attribute(kind, content)


_BFLOAT16 = 14
"""The number of bfloat16 in TensorFlow's enum DataType. NumPy has no such type."""
_BFLOAT16_EXPONENT = 0x7F80
"""The bits of the exponent of a bfloat16. All of them are 1 in infinities and NaN."""
_NUMPY_TYPES: dict[int, Any] = {1: np.float32, 2: np.float64, 8: np.complex64, 18: np.complex128, 19: np.float16}
"""NumPy types, keyed by the number of the dtype in TensorFlow's enum DataType."""


_INTEGER_TYPES: dict[int, Any] = {3: np.int32, 9: np.int64}
_MAX_INTEGERS = 8
"""The elements of an integer tensor are recorded if it has at most this many: enough for the size of each axis."""


def _integers(tensor: Any) -> list[int] | None:
    """Returns the elements of a TensorProto with a few integers; None for any other TensorProto."""
    dtype = _INTEGER_TYPES.get(tensor.dtype)
    size = math.prod(dim.size for dim in tensor.tensor_shape.dim)
    if dtype is None or not 0 < size <= _MAX_INTEGERS:
        return None
    if tensor.tensor_content:
        elements = np.frombuffer(tensor.tensor_content, dtype).tolist()
    else:
        elements = [*tensor.int_val, *tensor.int64_val] or [0]
        elements += elements[-1:] * (size - len(elements))  # TensorFlow leaves out repetitions at the end
    return elements if len(elements) == size else None


def _is_bad(tensor: Any) -> bool:
    """Returns True if a TensorProto of floating-point numbers holds an infinity or a NaN."""
    if tensor.dtype == _BFLOAT16:
        content = tensor.tensor_content
        bits = np.frombuffer(content, np.uint16) if content else np.array(tensor.half_val, np.uint16)
        return bool(np.any(bits & _BFLOAT16_EXPONENT == _BFLOAT16_EXPONENT))
    dtype = _NUMPY_TYPES.get(tensor.dtype)
    if dtype is None:
        return False
    if tensor.tensor_content:
        values = np.frombuffer(tensor.tensor_content, dtype)
    elif dtype is np.float16:
        values = np.array(tensor.half_val, np.uint16).view(np.float16)
    else:
        values = np.array([*tensor.float_val, *tensor.double_val, *tensor.scomplex_val, *tensor.dcomplex_val])
    return not bool(np.isfinite(values).all())


def _scalar_attribute(kind: str, content: Any) -> object:
    if kind == "s":
        return content.decode("utf-8", errors="backslashreplace")
    if kind == "shape":
        return None if content.unknown_rank else [dim.size for dim in content.dim]
    if kind == "tensor":
        about = {"dtype": content.dtype, "shape": [dim.size for dim in content.tensor_shape.dim]}
        integers = _integers(content)
        about |= {} if integers is None else {INTEGERS: integers}
        return {**about, BAD_CONSTANT: True} if _is_bad(content) else about
    if kind == "func":
        return content.name
    return content
