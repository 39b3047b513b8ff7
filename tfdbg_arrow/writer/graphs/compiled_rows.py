"""Makes copies of functions that XLA compiles. A copy also returns the rows of its tensors.

A copy returns a matrix as its last result: one row for each recorded tensor, in the order of the ops. A function that
calls other functions adds their rows to its own rows. A branch has empty rows for the other branches. The state of a
loop keeps the rows of the first iteration with a bad tensor and of the last iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tfdbg_arrow.schema.op_traits import BORDERS, REPEATED, Trait, types_with
from tfdbg_arrow.spool.names import inlined_suffix
from tfdbg_arrow.writer.graphs.function_edit import (
    BOOL,
    CALLS,
    DOUBLE,
    INT64,
    FunctionEdit,
    insert_inputs,
    replace_function,
)
from tfdbg_arrow.writer.graphs.node_defs import definitions_within, functions_of
from tfdbg_arrow.writer.graphs.summary_columns import MAX_LOOPS, NOT_RUN, NUM_COMPILED_COLUMNS

if TYPE_CHECKING:
    from tfdbg_arrow.writer.tensorflow_backend.compiled import CompiledSummaries

_BRANCHES = types_with(Trait.BRANCHES)
_LOOPS = types_with(Trait.LOOPS)
SAME_TENSOR = types_with(Trait.EQUAL) - types_with(BORDERS | Trait.CAN_FAIL | Trait.TESTS) - {"IdentityN"}
"""Ops whose output is equal to their first input, and that are not at the border of a loop or branch."""
RESHAPED = types_with(Trait.RESHAPED)
"""Ops whose output has the elements of their first input, in another shape or order."""
_SAME_ELEMENTS = {**dict.fromkeys(RESHAPED, 0), **REPEATED}

_DYNAMIC = frozenset(("DynamicPartition", "NonMaxSuppressionV3", "NonMaxSuppressionV4", "Unique", "UniqueV2", "Where"))
"""Ops whose number of output elements depends on the values of their input."""
_SHAPE_OPERANDS = {
    "BroadcastTo": (1,),
    "Fill": (0,),
    "MirrorPad": (1,),
    "Pad": (1,),
    "PadV2": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Slice": (1, 2),
    "StridedSlice": (1, 2),
    "Tile": (1,),
}
"""Ops whose inputs with these indexes determine the shape of the output."""
OF_SHAPES = types_with(Trait.OF_SHAPE) | {"Const"}
"""Ops whose outputs depend only on the shapes of their inputs, or on nothing."""
_SHAPE_ARITHMETIC = frozenset(
    (
        *("AddV2", "BroadcastArgs", "Cast", "ConcatV2", "DynamicStitch", "ExpandDims", "Fill", "FloorDiv", "FloorMod"),
        *("GatherV2", "Identity", "Maximum", "Minimum", "Mul", "Neg", "Pack", "Prod", "Range", "Reshape", "SelectV2"),
        *("Slice", "Squeeze", "StridedSlice", "Sub", "Unpack"),
    )
)


Matrix = tuple[str, int]
"""How nodes refer to a matrix, and its number of rows."""


class Key(NamedTuple):
    """A tensor that is to be recorded.

    Attributes:
        node: The key of the tensor.
        dtype: The number of its dtype.
        rank: The number of its dimensions; None if it is unknown before the program runs.
        decides: Whether the tensor stops the program if it is bad.
    """

    node: int
    dtype: int
    rank: int | None
    decides: bool


@dataclass(frozen=True)
class Row:
    """A row of a matrix: the tensor, and its call site and loops in the function that returns the matrix."""

    key: Key
    call_site: str = ""
    loops: tuple[str, ...] = ()
    """The loops that compute the tensor, given as call sites, the outermost loop first."""

    def called_at(self, node_name: str, suffix: str = "") -> Row:
        """Returns the row for a caller; the given node of the caller calls this function."""
        call_name = node_name + suffix
        return replace(
            self,
            call_site=_joined(call_name, self.call_site),
            loops=tuple(_joined(call_name, loop) for loop in self.loops),
        )


def _joined(path: str, rest: str) -> str:
    return f"{path}/{rest}" if rest else path


@dataclass(frozen=True)
class Copy:
    """A copy that returns a matrix as its last result."""

    name: str
    rows: tuple[Row, ...]


@dataclass
class Covered:
    """The tensors to record in a function: arguments by index, other tensors by node name and slot."""

    arguments: dict[int, Key] = field(default_factory=dict)
    outputs: dict[str, dict[int, Key]] = field(default_factory=dict)


class RowCopies:
    """Makes the copies.

    Args:
        library: Stores functions, and makes rows.
        read: `(function_name)`: returns a FunctionDef, which must not be changed.
        covered: The tensors to record, by function.
        suffix: The suffix of the names of the copies.
        new_name: `(what)`: returns a name for a node of ours.
        on_left_out: `(function_name, reason)`: called for a function that is not recorded.
    """

    def __init__(
        self,
        library: CompiledSummaries,
        *,
        read: Callable[[str], Any],
        covered: Mapping[str, Covered],
        suffix: str,
        new_name: Callable[[str], str],
        on_left_out: Callable[[str, str], None],
    ) -> None:
        self._library = library
        self._read = read
        self._covered = covered
        self._suffix = suffix
        self._new_name = new_name
        self._on_left_out = on_left_out
        self._copies: dict[str, Copy] = {}
        self._num_copies = 0

    def copy(self, function_name: str) -> Copy | None:
        """Returns the copy of a function that runs in a compiled function; None if nothing in it is recorded."""
        if function_name not in self._copies:
            edit = self._edit(function_name)
            rows, matrix = self._add_rows(edit, function_name)
            name = function_name
            if rows:
                edit.append_result(matrix, DOUBLE)
                name = edit.store(self._library, function_name + self._suffix)
            self._copies[function_name] = Copy(name, tuple(rows))
        copy = self._copies[function_name]
        return copy if copy.rows else None

    def _add_rows(self, edit: FunctionEdit, function_name: str) -> tuple[list[Row], str]:
        """Adds the nodes that make a function's matrix; returns its rows, and how nodes refer to it."""
        covered = self._covered.get(function_name, Covered())
        rows: list[Row] = []
        parts: list[Matrix] = []
        row_of_tensor: dict[str, str] = {}
        """A map from the node input that refers to a tensor to the node input that refers to the tensor's row."""

        def add(tensor: str, key: Key, row: str | None) -> None:
            if row is not None:
                row_of_tensor[tensor] = row
                rows.append(Row(key))
                parts.append((row, 1))

        for index, argument in enumerate(edit.function_def.signature.input_arg):
            if index in covered.arguments:
                key = covered.arguments[index]
                add(argument.name, key, self._add_row(edit, argument.name, key))
        for node in list(edit.function_def.node_def):
            keys = covered.outputs.get(node.name, {})
            names = self._library.output_names(node) if keys else []
            # The rows are recorded in this order: the outputs of a call come after the ops in the called function.
            inner, matrices = self._add_inner_rows(edit, node)
            rows += inner
            parts += matrices
            for slot in sorted(keys):
                row = self._add_known_row(edit, node, names[slot], keys[slot], row_of_tensor)
                add(names[slot], keys[slot], row or self._add_row(edit, names[slot], keys[slot]))
        return rows, self._joined(edit, parts) if parts else ""

    def _add_known_row(
        self, edit: FunctionEdit, node: Any, tensor: str, key: Key, row_of_tensor: Mapping[str, str]
    ) -> str | None:
        """Adds the row of a constant, or of a tensor with the elements of another tensor.

        Args:
            edit: The function.
            node: The node that makes the tensor.
            tensor: How nodes refer to the tensor.
            key: The tensor.
            row_of_tensor: A map from the node inputs that refer to earlier tensors to the node inputs that refer to the
                rows of these tensors.

        Returns:
            How nodes refer to the row; None if the tensor has to be measured.
        """
        if node.op == "Const":
            return edit.add_matrix([self._library.row_of_constant(node.attr["value"].tensor)])
        if node.op in SAME_TENSOR:
            return row_of_tensor.get(node.input[0])
        row = row_of_tensor.get(node.input[_SAME_ELEMENTS[node.op]]) if node.op in _SAME_ELEMENTS else None
        if row is None:
            return None
        template = self._library.same_values_node(key.rank)
        return None if template is None else edit.add_copy(template, [row, edit.add_shape(tensor, key.dtype)])

    def _add_row(self, edit: FunctionEdit, tensor: str, key: Key) -> str | None:
        """Adds a node that makes a tensor's row; returns how nodes refer to it, or None for a dtype without rows."""
        template = self._library.row_node(key.dtype, key.rank)
        if template is None:
            return None
        if template.op in CALLS:
            return edit.add_copy(template, [tensor])
        shape = edit.add_shape(tensor, key.dtype)
        takes_tensor = template.attr["operand_dtypes"].list.type[0] == key.dtype
        return edit.add_copy(template, [tensor if takes_tensor else shape, shape])

    def _joined(self, edit: FunctionEdit, parts: Sequence[Matrix]) -> str:
        """Concatenates matrices; returns how nodes refer to the result."""
        template = self._library.join_node([num_rows for _, num_rows in parts]) if len(parts) > 1 else None
        matrices = [matrix for matrix, _ in parts]
        return edit.add_concatenation(matrices) if template is None else edit.add_copy(template, matrices)

    def _add_inner_rows(self, edit: FunctionEdit, node: Any) -> tuple[list[Row], list[Matrix]]:
        """Makes a node return the rows of the functions that it calls; returns the rows and the matrices."""
        if node.op in CALLS:
            copy = self.copy(functions_of(node)[0][2])
            if copy is None:
                return [], []
            rows = [row.called_at(node.name) for row in copy.rows]
            return rows, [(call_with_rows(edit, node, copy), len(rows))]
        if node.op in _BRANCHES:
            return self._add_branches(edit, node)
        if node.op in _LOOPS:
            return self._add_loop(edit, node)
        return [], []

    def _add_branches(self, edit: FunctionEdit, node: Any) -> tuple[list[Row], list[Matrix]]:
        functions = functions_of(node)
        copies = [self.copy(name) for _, _, name in functions]
        counts = [0 if copy is None else len(copy.rows) for copy in copies]
        if not any(counts):
            return [], []
        rows: list[Row] = []
        for branch_number, (attribute, index, name) in enumerate(functions):
            copy = copies[branch_number]
            before, behind = sum(counts[:branch_number]), sum(counts[branch_number + 1 :])
            branch = self._edit(name if copy is None else copy.name)
            matrix = None if copy is None else branch.take_result()
            parts = [
                *([branch.add_matrix([[NOT_RUN] * NUM_COMPILED_COLUMNS] * before)] if before else []),
                *([matrix] if matrix is not None else []),
                *([branch.add_matrix([[NOT_RUN] * NUM_COMPILED_COLUMNS] * behind)] if behind else []),
            ]
            branch.append_result(branch.add_concatenation(parts), DOUBLE)
            replace_function(node, name, branch.store(self._library, self._copy_name(name)), attribute, index)
            suffix = inlined_suffix(attribute, index)
            rows += [row.called_at(node.name, suffix) for row in (() if copy is None else copy.rows)]
        return rows, [(edit.append_output(node, (len(rows), NUM_COMPILED_COLUMNS)), len(rows))]

    def _add_loop(self, edit: FunctionEdit, node: Any) -> tuple[list[Row], list[Matrix]]:
        called = {attribute: name for attribute, _, name in functions_of(node)}
        body = self.copy(called["body"])
        condition = self.copy(called["cond"])
        if condition is not None and not self._may_run_twice(called["cond"]):
            condition = None
            self._on_left_out(called["cond"], "is the condition of a loop and has an op that must not run twice")
        body_rows = [] if body is None else [row.called_at(node.name, "/body") for row in body.rows]
        condition_rows = [] if condition is None else [row.called_at(node.name, "/cond") for row in condition.rows]
        rows = [replace(row, loops=(node.name, *row.loops)) for row in (*condition_rows, *body_rows)]
        if any(len(row.loops) > MAX_LOOPS for row in rows):
            self._on_left_out(called["body"], f"is a loop inside {MAX_LOOPS} other loops")
            rows = []
        if not rows:
            return [], []
        types = list(node.attr["T"].list.type)
        state_types = [INT64, DOUBLE, DOUBLE, BOOL, INT64]
        shape = (len(rows), NUM_COMPILED_COLUMNS)
        state_shapes: list[tuple[int, ...]] = [(), shape, shape, (), ()]

        new_body = self._edit(called["body"] if body is None else body.name)
        arguments = [argument.name for argument in new_body.function_def.signature.input_arg]
        parts = [] if body is None else [new_body.take_result()]
        if condition is not None:
            call = new_body.add_call(condition.name, arguments, types, [BOOL, DOUBLE])
            parts.insert(0, f"{call}:output:1")
        state = new_body.append_arguments(state_types)
        step = new_body.add_call(
            self._library.next_iteration_function(),
            [state[0], new_body.add_concatenation(parts), *state[1:]],
            [INT64, DOUBLE, *state_types[1:]],
            state_types,
        )
        for index, dtype in enumerate(state_types):
            new_body.append_result(f"{step}:output:{index}", dtype)
        new_condition = self._edit(called["cond"])
        new_condition.append_arguments(state_types)

        for attribute, new in (("body", new_body), ("cond", new_condition)):
            name = called[attribute]
            replace_function(node, name, new.store(self._library, self._copy_name(name)), attribute)
        nothing = edit.add_matrix([[NOT_RUN] * NUM_COMPILED_COLUMNS] * len(rows))
        zero = edit.add_scalar(INT64)
        insert_inputs(node, [zero, nothing, nothing, edit.add_scalar(BOOL), zero])
        results = [
            edit.append_output(node, shape, dtype=dtype, attribute="T")
            for dtype, shape in zip(state_types, state_shapes, strict=True)
        ]
        end = edit.add_call(self._library.end_loop_function(), results, state_types, [DOUBLE])
        matrices = [(f"{end}:output:0", 2 * len(rows))]
        last_rows: list[Row] = []
        if condition is not None:
            variables = [f"{node.name}:output:{index}" for index in range(len(types))]
            call = edit.add_call(condition.name, variables, types, [BOOL, DOUBLE])
            label = self._library.last_condition_function()
            labelled = edit.add_call(label, [f"{call}:output:1", results[0]], [DOUBLE, INT64], [DOUBLE])
            last_rows = rows[: len(condition_rows)]
            matrices.append((f"{labelled}:output:0", len(last_rows)))
        return [*rows, *rows, *last_rows], matrices

    def _may_run_twice(self, function_name: str) -> bool:
        """Returns True if a loop's condition can be computed a second time, to get its rows."""
        return all(
            functions_of(node) or self._library.is_pure(node.op)
            for function_def in definitions_within(function_name, read=self._read)
            for node in function_def.node_def
        )

    def _edit(self, function_name: str) -> FunctionEdit:
        return FunctionEdit(self._read(function_name), self._new_name)

    def _copy_name(self, function_name: str) -> str:
        self._num_copies += 1
        return f"{function_name}{self._suffix}_{self._num_copies}"


def call_with_rows(edit: FunctionEdit, node: Any, copy: Copy) -> str:
    """Makes a node call a copy; returns how nodes refer to the copy's matrix."""
    replace_function(node, functions_of(node)[0][2], copy.name)
    return edit.append_output(node, None, dtype=DOUBLE)


def has_dynamic_shapes(function_name: str, *, read: Callable[[str], Any]) -> bool:
    """Returns True if a shape in a function, or in a function that it calls, may depend on computed values.

    XLA rejects a call of the native core if a tensor of the call has such a shape.

    Args:
        function_name: The name of the function.
        read: `(function_name)`: returns a FunctionDef.
    """
    for function_def in definitions_within(function_name, read=read):
        nodes = {node.name: node for node in function_def.node_def}
        for node in nodes.values():
            operands = [node.input[index] for index in _SHAPE_OPERANDS.get(node.op, ()) if index < len(node.input)]
            if node.op in _DYNAMIC or not _are_known(operands, nodes):
                return True
    return False


def _are_known(tensors: Sequence[str], nodes: Mapping[str, Any]) -> bool:
    """Returns True if tensors are computed only from shapes, constants and arguments."""
    unvisited, seen = list(tensors), set(tensors)
    while unvisited:
        node = nodes.get(unvisited.pop().partition(":")[0])
        if node is None or node.op in OF_SHAPES:  # None means an argument, which XLA compiles as a constant
            continue
        if node.op not in _SHAPE_ARITHMETIC:
            return False
        new = [text for text in node.input if text not in seen]
        unvisited += new
        seen.update(new)
    return True
