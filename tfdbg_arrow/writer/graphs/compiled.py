"""Records functions that XLA compiles.

Record ops cannot run in a function that XLA compiles. But a function can return additional results. So the recording
runs copies of functions, and leaves the program's functions unchanged:

| function | its copy |
|---|---|
| compiled | returns, as its last result, a matrix with a row for each of its tensors |
| called by a compiled function | the same; the caller adds the returned rows to its own rows |
| branch | the same, with empty rows for the other branches |
| loop | keeps the rows of the first iteration with a bad tensor and of the last iteration |
| not compiled, but calls a compiled function | a record op takes the rows after the call |

A compiled function that eager code calls is wrapped in a function that is not compiled.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from tfdbg_arrow.writer.graphs.compiled_rows import (
    Copy,
    Covered,
    Key,
    Row,
    RowCopies,
    call_with_rows,
    has_dynamic_shapes,
)
from tfdbg_arrow.writer.graphs.function_edit import (
    CALLS,
    DOUBLE,
    MUST_COMPILE,
    NO_INLINE,
    FunctionEdit,
    may_keep_state,
    replace_function,
)
from tfdbg_arrow.writer.graphs.node_defs import (
    OWN_NAME_PREFIX,
    TensorBatch,
    definitions_within,
    functions_of,
    runs_inline,
)
from tfdbg_arrow.writer.graphs.state import GraphState

if TYPE_CHECKING:
    from tfdbg_arrow.writer.tensorflow_backend.compiled import CompiledSummaries

SUFFIX = "_tfdbg_arrow_inside"
"""Part of the name of every copy, followed only by the kind of the copy and a number."""

_AROUND = "_around"
_RECORD_OP = "TfdbgArrowRecordRows"


def is_around_compiled(function_name: bytes) -> bool:
    """Returns True if a function only wraps the call of a compiled function's copy."""
    return function_name.endswith((SUFFIX + _AROUND).encode())


class CompiledFunctions:
    """Makes the copies of functions, for one recording.

    Args:
        library: Stores functions, and makes rows in functions whose shapes are all known to XLA.
        library_of_any: The same for functions with a shape that can depend on values.
        lock: The lock of the recording; see Journal.
        generation: The number of the recording in this process.
        on_failure: `(function_name, error)`: called if a function could not be copied.
        on_left_out: `(function_name, reason)`: called for a function that is not recorded.
    """

    def __init__(
        self,
        library: CompiledSummaries,
        library_of_any: CompiledSummaries,
        *,
        lock: AbstractContextManager[object],
        generation: int,
        on_failure: Callable[[str, object], None],
        on_left_out: Callable[[str, str], None],
    ) -> None:
        self._library = library
        self._generation = generation
        self._on_failure = on_failure
        self._on_left_out = on_left_out
        self._lock = lock
        self._is_needed = False
        self._keys: dict[int, dict[str, dict[int, Key]]] = {}
        self._covered: dict[str, Covered] = {}
        self._definitions: dict[str, Any] = {}
        self._plain_copies: dict[str, str] = {}
        self._to_run: dict[bytes, bytes] = {}
        self._keeping_state: set[bytes] = set()
        self._num_names = 0
        self._copies = self._make_copies(library, "_rows")
        self._copies_of_any = self._make_copies(library_of_any, "_any_rows")

    def add_tensors(self, state: GraphState, batches: Iterable[TensorBatch]) -> None:
        """Notes which tensors to record in a graph that runs in compiled functions."""
        keys = self._keys.setdefault(state.graph_id, {})
        for batch in batches:
            for tensor, node, decides in zip(batch.tensors, batch.nodes, batch.all_decides, strict=True):
                number = tensor.dtype.base_dtype.as_datatype_enum
                keys.setdefault(batch.op.name, {})[tensor.value_index] = Key(node, number, tensor.shape.rank, decides)

    def add_function(
        self, function_name: str, graph: Any, state: GraphState, node_names: Sequence[tuple[str, str, str]]
    ) -> None:
        """Notes how the ops of a graph are named in a function.

        Args:
            function_name: The name of the function.
            graph: The FuncGraph.
            state: The state of the graph.
            node_names: Node name, op name and op type of each op except the arguments.
        """
        keys = self._keys.get(state.graph_id)
        if keys is None:
            return
        covered = Covered()
        for index, tensor in enumerate(graph.inputs):
            if tensor.op.name in keys:
                covered.arguments[index] = keys[tensor.op.name][0]
        for node_name, op_name, _ in node_names:
            if op_name in keys:
                covered.outputs[node_name] = dict(keys[op_name])
        self._covered[function_name] = covered

    def note_compiled(self) -> None:
        """Notes that XLA compiles a function; before that, no function is copied."""
        self._is_needed = True

    def name_of(self, function_name: bytes) -> bytes:
        """Returns the name of the copy of a function; the function's own name if nothing in it is compiled."""
        if not self._is_needed:
            return function_name
        copy_name = self._to_run.get(function_name)
        if copy_name is None:
            with self._lock:
                copy_name = self._to_run.get(function_name)
                if copy_name is None:
                    copy_name = self._to_run[function_name] = self._copy_to_run(function_name.decode()).encode()
                    self._definitions.clear()
        return copy_name

    def keeps_state(self, function_name: bytes) -> bool:
        """Returns True if a copy has kernels that keep a state; then every call must run the copy."""
        return function_name in self._keeping_state

    def forget_copy(self, function_name: bytes) -> None:
        """Makes later calls run the function itself instead of a copy."""
        self._to_run[function_name] = function_name

    def _copy_to_run(self, function_name: str) -> str:
        try:
            make = self._function_around if self._must_compile(function_name) else self._copy_of_plain
            copy = make(function_name)
            if copy != function_name and self._has_state(function_name):
                self._keeping_state.add(function_name.encode())
            return copy
        except Exception as error:
            self._on_failure(function_name, error)
            return function_name

    def _definition(self, function_name: str) -> Any:
        definition = self._definitions.get(function_name)
        if definition is None:
            definition = self._definitions[function_name] = self._library.function_def(function_name)
        return definition

    def _has_state(self, function_name: str) -> bool:
        return any(
            may_keep_state(node.op) and self._library.keeps_state(node.op)
            for function_def in definitions_within(function_name, read=self._definition, inline=True)
            for node in function_def.node_def
        )

    def _must_compile(self, function_name: str) -> bool:
        attributes = self._definition(function_name).attr
        return MUST_COMPILE in attributes and bool(attributes[MUST_COMPILE].b)

    def _function_around(self, function_name: str) -> str:
        """Makes a function that calls the copy of a compiled function and records the returned rows."""
        copy = self._copy_inside(function_name)
        if copy is None:
            return function_name
        edit = self._edit(function_name)
        function_def, signature = edit.function_def, edit.function_def.signature
        del function_def.node_def[:]
        for name in (MUST_COMPILE, NO_INLINE):
            function_def.attr.pop(name, None)
        function_def.control_ret.clear()
        del signature.control_output[:]
        signature.is_stateful = True
        types = [argument.type for argument in signature.output_arg]
        call = edit.add_call(
            copy.name,
            [argument.name for argument in signature.input_arg],
            [argument.type for argument in signature.input_arg],
            [*types, DOUBLE],
            op_type="StatefulPartitionedCall",
            must_compile=True,
        )
        for index, argument in enumerate(signature.output_arg):
            function_def.ret[argument.name] = f"{call}:output:{index}"
        self._add_record_op(edit, copy.rows, f"{call}:output:{len(types)}", arguments=self._covered.get(function_name))
        edit.run(call)
        return edit.store(self._library, function_name + SUFFIX + _AROUND)

    def _copy_inside(self, function_name: str) -> Copy | None:
        """Returns the copy of a compiled function, which returns rows; None if nothing in the function is recorded."""
        has_any_shapes = has_dynamic_shapes(function_name, read=self._definition)
        return (self._copies_of_any if has_any_shapes else self._copies).copy(function_name)

    def _make_copies(self, library: CompiledSummaries, suffix: str) -> RowCopies:
        this = weakref.proxy(self)  # no reference cycle: the copies are not used without this object
        return RowCopies(
            library,
            read=lambda function_name: this._definition(function_name),
            covered=self._covered,
            suffix=SUFFIX + suffix,
            new_name=lambda what: this._own_name(what),
            on_left_out=self._on_left_out,
        )

    def _copy_of_plain(self, function_name: str) -> str:
        """Returns the name of the copy of an uncompiled function; the function's own name if it needs no copy."""
        earlier_copy = self._plain_copies.get(function_name)
        if earlier_copy is not None:
            return earlier_copy
        edit = self._edit(function_name)
        self._plain_copies[function_name] = function_name  # in case the function calls itself
        try:
            is_changed = self._copy_calls(edit)
            copy = edit.store(self._library, function_name + SUFFIX) if is_changed else function_name
        except BaseException:
            del self._plain_copies[function_name]
            raise
        self._plain_copies[function_name] = copy
        return copy

    def _copy_calls(self, edit: FunctionEdit) -> bool:
        """Makes a function call copies of compiled functions; returns True if that changed anything."""
        is_changed = False
        for node in list(edit.function_def.node_def):
            if not runs_inline(node.op):
                continue
            for _, _, callee in functions_of(node):
                if not self._must_compile(callee):
                    name = self._copy_of_plain(callee)
                    if name != callee:
                        replace_function(node, callee, name)
                        edit.run(node.name)
                        is_changed = True
                elif node.op in CALLS:
                    copy = self._copy_inside(callee)
                    if copy is not None:
                        rows = call_with_rows(edit, node, copy)
                        self._add_record_op(edit, [row.called_at(node.name) for row in copy.rows], rows)
                        is_changed = True
        return is_changed

    def _add_record_op(
        self, edit: FunctionEdit, rows: Sequence[Row], matrix: str, *, arguments: Covered | None = None
    ) -> None:
        """Adds the op that records a matrix.

        Args:
            edit: The function.
            rows: Descriptions of the rows of the matrix.
            matrix: How nodes refer to the matrix.
            arguments: The covered arguments. The arguments identify a call of the function. None if another function
                calls this function.
        """
        call_sites = list(dict.fromkeys(row.call_site for row in rows))
        loops = list(dict.fromkeys(row.loops for row in rows if row.loops))
        name = self._own_name("record")
        known_by = [] if arguments is None else sorted(arguments.arguments)
        signature = edit.function_def.signature
        node = edit.add_node(_RECORD_OP, name, [matrix, *(signature.input_arg[index].name for index in known_by)])
        node.attr["T"].list.type.extend(signature.input_arg[index].type for index in known_by)
        node.attr["argument_indexes"].list.i.extend(known_by)
        node.attr["nodes"].list.i.extend(row.key.node for row in rows)
        node.attr["decides"].list.i.extend(int(row.key.decides) for row in rows)
        node.attr["dtypes"].list.i.extend(row.key.dtype for row in rows)
        node.attr["generation"].i = self._generation
        node.attr["own_name"].s = name.encode()
        node.attr["call_sites"].s = "\n".join(call_sites).encode()
        index_of_site = {site: index for index, site in enumerate(call_sites)}
        node.attr["sites"].list.i.extend(index_of_site[row.call_site] for row in rows)
        node.attr["loops"].s = "\n".join("\t".join(chain) for chain in loops).encode()
        chains = {chain: index for index, chain in enumerate(loops)}
        node.attr["loop_of"].list.i.extend(chains.get(row.loops, -1) for row in rows)
        edit.run(name)

    def _edit(self, function_name: str) -> FunctionEdit:
        return FunctionEdit(self._definition(function_name), self._own_name)

    def _own_name(self, what: str) -> str:
        """Returns a name for one of our nodes. This name is not a prefix or suffix of another name."""
        self._num_names += 1
        return f"{OWN_NAME_PREFIX}inside_{what}_{self._num_names}_"
