"""Records functions that XLA compiles.

No record op can run in a function that XLA compiles. But a function can return more. So the recording runs copies of
functions, and leaves the program's own as they are:

| function | its copy |
|---|---|
| compiled | returns a matrix with a row for each of its tensors as its last result |
| called by a compiled one | the same; the caller adds the rows to its own |
| branch | the same, with a place for the rows of the other branches |
| loop | keeps the rows of the first iteration with a bad tensor and of the last one |
| not compiled, but calls a compiled one | a record op takes the rows behind the call |

A compiled function that eager code calls gets a function around it that is not compiled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from tfdbg_arrow.spool.graph_links import inlined_suffix
from tfdbg_arrow.writer.graphs.node_defs import functions_of, runs_inline
from tfdbg_arrow.writer.graphs.own_ops import OWN_NAME_PREFIX, TensorBatch
from tfdbg_arrow.writer.graphs.registry import GraphState

SUFFIX = "_tfdbg_arrow_inside"
"""Ends the name of every copy."""

_AROUND = "_around"

MAX_LOOPS = 6
"""No tensor is recorded in more loops within one another."""

NUM_COLUMNS = 21 + MAX_LOOPS
"""Columns of a row; `SummaryColumn` in `native/record_op.h` says which."""

NOT_RUN = -2.0
"""Each column of the row of a tensor that was not computed."""

_MUST_COMPILE = "_XlaMustCompile"
_NO_INLINE = "_noinline"
_RECORD_OP = "TfdbgArrowRecordCompiled"
_CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
_BRANCHES = frozenset(("Case", "If", "StatelessCase", "StatelessIf"))
_LOOPS = frozenset(("StatelessWhile", "While"))
_SAME_TENSOR = frozenset(("Identity", "PreventGradient", "StopGradient"))
"""Ops whose output is their first input."""
_SAME_ELEMENTS = {
    "BroadcastTo": 0,
    "ExpandDims": 0,
    "Fill": 1,
    "Reshape": 0,
    "Squeeze": 0,
    "Tile": 0,
    "Transpose": 0,
}
"""Ops whose output has the elements of one input, each of them equally often; the input's index."""

# Source: tensorflow/core/framework/types.proto.
_DOUBLE, _INT64, _BOOL = 2, 9, 10


def is_around_compiled(function_name: bytes) -> bool:
    """Returns whether a function is one that calls the copy of a compiled one and does nothing else."""
    return function_name.endswith((SUFFIX + _AROUND).encode())


class CompiledLibrary(Protocol):
    """TensorFlow's runtime functions, and those of ours that XLA compiles into the copies."""

    def function_def(self, name: str) -> Any:
        """Returns a copy of a function's FunctionDef."""

    def add_function_def(self, function_def: Any) -> None:
        """Adds a function."""

    def new_node(self) -> Any:
        """Returns an empty NodeDef."""

    def output_names(self, node_def: Any) -> list[str]:
        """Returns how other nodes of a FunctionDef refer to each output of a node."""

    def is_pure(self, op_type: str) -> bool:
        """Returns whether it makes no difference how often ops of a type run."""

    def row_of_constant(self, tensor: Any) -> Sequence[float]:
        """Returns the row of a TensorProto."""

    def row_node(self, dtype_number: int, rank: int | None) -> Any:
        """Returns what makes the row of a tensor, of shape [1, NUM_COLUMNS]; None for a dtype that has none.

        It is a NodeDef without name and inputs. An op takes the tensor, or its shape if its first operand has the type
        of one, and then the shape as int64; a call takes the tensor.
        """

    def same_values_node(self, rank: int | None) -> Any:
        """Returns what makes the row of a tensor from that of another whose elements it has, each equally often.

        It is a NodeDef without name and inputs, of an op that takes the row and the shape as int64; None: nothing does.
        """

    def join_node(self, nums_rows: Sequence[int]) -> Any:
        """Returns what puts matrices below one another, given their numbers of rows; None: TensorFlow's ConcatV2 does.

        It is a NodeDef without name and inputs.
        """

    def next_iteration_function(self) -> str:
        """Returns the function that ends an iteration of a loop.

        It takes the iteration's index and rows, and then, of the iterations before, what it returns: index, rows of
        the last one, rows of the first bad one, whether there was one, and its index.
        """

    def last_condition_function(self) -> str:
        """Returns the function from the rows of a loop's last condition and its iteration to these rows, labelled."""

    def end_loop_function(self) -> str:
        """Returns the function from what the last iteration returned to the rows of the loop: first bad, last."""


_Matrix = tuple[str, int]
"""How nodes refer to a matrix, and how many rows it has."""


class _Key(NamedTuple):
    """A tensor that is to be recorded.

    Attributes:
        node: Its key in the registry.
        dtype: Its dtype's number.
        rank: How many dimensions it has; None: not known before the program runs.
        decides: Whether it stops the program if it is bad.
    """

    node: int
    dtype: int
    rank: int | None
    decides: bool


@dataclass(frozen=True)
class _Row:
    """A row of a matrix: which tensor, in which call and loop of the function that returns the matrix."""

    key: _Key
    call_site: str = ""
    loops: tuple[str, ...] = ()
    """The loops that it is computed in, from the outermost, as call sites."""

    def called_at(self, node_name: str, suffix: str = "") -> _Row:
        """Returns the row as a function has it that calls the one whose row it is."""
        place = node_name + suffix
        return replace(
            self,
            call_site=_joined(place, self.call_site),
            loops=tuple(_joined(place, loop) for loop in self.loops),
        )


def _joined(path: str, rest: str) -> str:
    return f"{path}/{rest}" if rest else path


@dataclass(frozen=True)
class _Copy:
    """A copy that returns a matrix as its last result."""

    name: str
    rows: tuple[_Row, ...]


@dataclass
class _Covered:
    """The tensors of a function that are to be recorded: arguments by index, others by node name and slot."""

    arguments: dict[int, _Key] = field(default_factory=dict)
    outputs: dict[str, dict[int, _Key]] = field(default_factory=dict)


class CompiledFunctions:
    """Makes the copies, for one recording.

    Args:
        library: Where functions are.
        generation: Tells the recordings of one process apart.
        on_failure: `(function_name, error)`: told of a function of which no copy could be made.
        on_left_out: `(function_name, reason)`: told of a function that is not recorded.
    """

    def __init__(
        self,
        library: CompiledLibrary,
        *,
        generation: int,
        on_failure: Callable[[str, object], None],
        on_left_out: Callable[[str, str], None],
    ) -> None:
        self._library = library
        self._generation = generation
        self._on_failure = on_failure
        self._on_left_out = on_left_out
        self._lock = threading.RLock()
        self._is_needed = False
        self._keys: dict[int, dict[str, dict[int, _Key]]] = {}
        self._covered: dict[str, _Covered] = {}
        self._definitions: dict[str, Any] = {}
        self._copies: dict[str, _Copy] = {}
        self._without_rows: dict[str, str] = {}
        self._to_run: dict[bytes, bytes] = {}
        self._num_names = 0

    def add_tensors(self, state: GraphState, batches: Iterable[TensorBatch]) -> None:
        """Notes which tensors of a graph that runs in compiled functions are to be recorded."""
        keys = self._keys.setdefault(state.graph_id, {})
        for batch in batches:
            for tensor, node, decides in zip(batch.tensors, batch.nodes, batch.all_decides, strict=True):
                number = tensor.dtype.base_dtype.as_datatype_enum
                keys.setdefault(batch.op.name, {})[tensor.value_index] = _Key(node, number, tensor.shape.rank, decides)

    def add_function(self, function_name: str, graph: Any, state: GraphState, node_names: Sequence[Any]) -> None:
        """Notes how the ops of a graph are named in a function.

        Args:
            function_name: The function.
            graph: The FuncGraph.
            state: Its state.
            node_names: For each op but the arguments: node name, op name, op type.
        """
        keys = self._keys.get(state.graph_id)
        if keys is None:
            return
        covered = _Covered()
        for index, tensor in enumerate(graph.inputs):
            if tensor.op.name in keys:
                covered.arguments[index] = keys[tensor.op.name][0]
        for node_name, op_name, _ in node_names:
            if op_name in keys:
                covered.outputs[node_name] = dict(keys[op_name])
        self._covered[function_name] = covered

    def note_compiled(self) -> None:
        """Notes that there is a function that XLA compiles: without one no function is copied."""
        self._is_needed = True

    def name_of(self, function_name: bytes) -> bytes:
        """Returns the name of the copy of a function; its own where nothing in it is compiled."""
        if not self._is_needed:
            return function_name
        known = self._to_run.get(function_name)
        if known is None:
            with self._lock:
                known = self._to_run.get(function_name)
                if known is None:
                    known = self._to_run[function_name] = self._copy_to_run(function_name.decode()).encode()
                    self._definitions.clear()
        return known

    def forget_copy(self, function_name: bytes) -> None:
        """Runs a function as it is from here on."""
        self._to_run[function_name] = function_name

    def _copy_to_run(self, function_name: str) -> str:
        try:
            if self._must_compile(function_name):
                return self._function_around(function_name)
            return self._copy_of_plain(function_name)
        except Exception as error:
            self._on_failure(function_name, error)
            return function_name

    def _definition(self, function_name: str) -> Any:
        found = self._definitions.get(function_name)
        if found is None:
            found = self._definitions[function_name] = self._library.function_def(function_name)
        return found

    def _must_compile(self, function_name: str) -> bool:
        attributes = self._definition(function_name).attr
        return _MUST_COMPILE in attributes and bool(attributes[_MUST_COMPILE].b)

    def _function_around(self, function_name: str) -> str:
        """Makes a function that calls the copy of a compiled one, and records what this returns."""
        copy = self._copy_inside(function_name)
        if copy is None:
            return function_name
        edit = self._edit(function_name)
        function_def, signature = edit.function_def, edit.function_def.signature
        del function_def.node_def[:]
        for name in (_MUST_COMPILE, _NO_INLINE):
            function_def.attr.pop(name, None)
        function_def.control_ret.clear()
        del signature.control_output[:]
        signature.is_stateful = True
        types = [argument.type for argument in signature.output_arg]
        call = edit.add_call(
            copy.name,
            [argument.name for argument in signature.input_arg],
            [argument.type for argument in signature.input_arg],
            [*types, _DOUBLE],
            op_type="StatefulPartitionedCall",
            must_compile=True,
        )
        for index, argument in enumerate(signature.output_arg):
            function_def.ret[argument.name] = f"{call}:output:{index}"
        self._add_record_op(edit, copy.rows, f"{call}:output:{len(types)}")
        edit.run(call)
        return self._add(edit, function_name + SUFFIX + _AROUND)

    def _copy_of_plain(self, function_name: str) -> str:
        """Returns the copy of a function that is not compiled; its own name where nothing in it is compiled."""
        known = self._without_rows.get(function_name)
        if known is not None:
            return known
        edit = self._edit(function_name)
        self._without_rows[function_name] = function_name
        is_changed = False
        for node in list(edit.function_def.node_def):
            if not runs_inline(node.op):
                continue
            for _, _, callee in functions_of(node):
                if not self._must_compile(callee):
                    name = self._copy_of_plain(callee)
                    if name != callee:
                        _replace_function(node, callee, name)
                        edit.run(node.name)
                        is_changed = True
                elif node.op in _CALLS:
                    copy = self._copy_inside(callee)
                    if copy is not None:
                        rows = edit.call_with_rows(node, copy)
                        self._add_record_op(edit, [row.called_at(node.name) for row in copy.rows], rows)
                        is_changed = True
        if is_changed:
            self._without_rows[function_name] = self._add(edit, function_name + SUFFIX)
        return self._without_rows[function_name]

    def _copy_inside(self, function_name: str) -> _Copy | None:
        """Returns the copy of a function that runs in a compiled one; None where nothing in it is recorded."""
        if function_name not in self._copies:
            edit = self._edit(function_name)
            rows, matrix = self._add_rows(edit, function_name)
            self._copies[function_name] = _Copy(function_name, ())
            if rows:
                edit.return_rows(matrix)
                name = self._add(edit, function_name + SUFFIX + "_rows")
                self._copies[function_name] = _Copy(name, tuple(rows))
        copy = self._copies[function_name]
        return copy if copy.rows else None

    def _add_rows(self, edit: _Edit, function_name: str) -> tuple[list[_Row], str]:
        """Adds to a function what makes its matrix; returns what its rows are, and how nodes refer to it."""
        covered = self._covered.get(function_name, _Covered())
        rows: list[_Row] = []
        parts: list[_Matrix] = []
        known: dict[str, str] = {}
        """How nodes refer to the row of a tensor, by how they refer to the tensor."""

        def add(tensor: str, key: _Key, row: str | None) -> None:
            if row is not None:
                known[tensor] = row
                rows.append(_Row(key))
                parts.append((row, 1))

        for index, argument in enumerate(edit.function_def.signature.input_arg):
            if index in covered.arguments:
                key = covered.arguments[index]
                add(argument.name, key, self._add_row(edit, argument.name, key))
        for node in list(edit.function_def.node_def):
            keys = covered.outputs.get(node.name, {})
            names = self._library.output_names(node) if keys else []
            # The rows are recorded in this order: what a function returns comes behind what it computes.
            inner, matrices = self._add_inner_rows(edit, node)
            rows += inner
            parts += matrices
            for slot in sorted(keys):
                row = self._add_known_row(edit, node, names[slot], keys[slot], known)
                add(names[slot], keys[slot], row or self._add_row(edit, names[slot], keys[slot]))
        return rows, self._joined(edit, parts) if parts else ""

    def _add_known_row(self, edit: _Edit, node: Any, tensor: str, key: _Key, known: Mapping[str, str]) -> str | None:
        """Adds the row of a tensor of which it is known what it holds; returns how nodes refer to it, None for another.

        Args:
            edit: The function.
            node: The node that makes the tensor.
            tensor: How nodes refer to the tensor.
            key: The tensor.
            known: How nodes refer to the rows of the tensors before, by how they refer to the tensors.
        """
        if node.op == "Const":
            return edit.add_rows([self._library.row_of_constant(node.attr["value"].tensor)])
        if node.op in _SAME_TENSOR:
            return known.get(node.input[0])
        row = known.get(node.input[_SAME_ELEMENTS[node.op]]) if node.op in _SAME_ELEMENTS else None
        template = self._library.same_values_node(key.rank) if row is not None else None
        return None if template is None else edit.add_copy(template, [row, edit.add_shape(tensor, key.dtype)])

    def _add_row(self, edit: _Edit, tensor: str, key: _Key) -> str | None:
        """Adds what makes the row of a tensor; returns how nodes refer to it, None for a dtype without rows."""
        template = self._library.row_node(key.dtype, key.rank)
        if template is None:
            return None
        if template.op in _CALLS:
            return edit.add_copy(template, [tensor])
        shape = edit.add_shape(tensor, key.dtype)
        takes_tensor = template.attr["operand_dtypes"].list.type[0] == key.dtype
        return edit.add_copy(template, [tensor if takes_tensor else shape, shape])

    def _joined(self, edit: _Edit, parts: Sequence[_Matrix]) -> str:
        """Puts matrices below one another; returns how nodes refer to the result."""
        template = self._library.join_node([num_rows for _, num_rows in parts]) if len(parts) > 1 else None
        matrices = [matrix for matrix, _ in parts]
        return edit.add_concatenation(matrices) if template is None else edit.add_copy(template, matrices)

    def _add_inner_rows(self, edit: _Edit, node: Any) -> tuple[list[_Row], list[_Matrix]]:
        """Makes a node return the rows of the functions that it calls; returns what they are, and the matrices."""
        if node.op in _CALLS:
            copy = self._copy_inside(functions_of(node)[0][2])
            if copy is None:
                return [], []
            rows = [row.called_at(node.name) for row in copy.rows]
            return rows, [(edit.call_with_rows(node, copy), len(rows))]
        if node.op in _BRANCHES:
            return self._add_branches(edit, node)
        if node.op in _LOOPS:
            return self._add_loop(edit, node)
        return [], []

    def _add_branches(self, edit: _Edit, node: Any) -> tuple[list[_Row], list[_Matrix]]:
        functions = functions_of(node)
        copies = [self._copy_inside(name) for _, _, name in functions]
        counts = [0 if copy is None else len(copy.rows) for copy in copies]
        if not any(counts):
            return [], []
        rows: list[_Row] = []
        for place, (attribute, index, name) in enumerate(functions):
            copy = copies[place]
            before, behind = sum(counts[:place]), sum(counts[place + 1 :])
            branch = self._edit(name if copy is None else copy.name)
            matrix = None if copy is None else branch.take_result()
            parts = [
                *([branch.add_rows([[NOT_RUN] * NUM_COLUMNS] * before)] if before else []),
                *([matrix] if matrix is not None else []),
                *([branch.add_rows([[NOT_RUN] * NUM_COLUMNS] * behind)] if behind else []),
            ]
            branch.return_rows(branch.add_concatenation(parts))
            _replace_function(node, name, self._add(branch, self._new_name(name)), attribute, index)
            suffix = inlined_suffix(attribute, index)
            rows += [row.called_at(node.name, suffix) for row in (() if copy is None else copy.rows)]
        return rows, [(edit.append_output(node, (len(rows), NUM_COLUMNS)), len(rows))]

    def _add_loop(self, edit: _Edit, node: Any) -> tuple[list[_Row], list[_Matrix]]:
        called = {attribute: name for attribute, _, name in functions_of(node)}
        body = self._copy_inside(called["body"])
        condition = self._copy_inside(called["cond"])
        if condition is not None and not self._may_run_twice(called["cond"]):
            condition = None
            self._on_left_out(called["cond"], "is the condition of a loop and has an op that must not run twice")
        body_rows = [] if body is None else [row.called_at(node.name, "/body") for row in body.rows]
        condition_rows = [] if condition is None else [row.called_at(node.name, "/cond") for row in condition.rows]
        rows = [replace(row, loops=(node.name, *row.loops)) for row in (*condition_rows, *body_rows)]
        if any(len(row.loops) > MAX_LOOPS for row in rows):
            self._on_left_out(called["body"], f"is a loop in {MAX_LOOPS} others")
            rows = []
        if not rows:
            return [], []
        types = list(node.attr["T"].list.type)
        state_types = [_INT64, _DOUBLE, _DOUBLE, _BOOL, _INT64]
        shape = (len(rows), NUM_COLUMNS)
        state_shapes: list[tuple[int, ...]] = [(), shape, shape, (), ()]

        new_body = self._edit(called["body"] if body is None else body.name)
        arguments = [argument.name for argument in new_body.function_def.signature.input_arg]
        parts = [] if body is None else [new_body.take_result()]
        if condition is not None:
            call = new_body.add_call(condition.name, arguments, types, [_BOOL, _DOUBLE])
            parts.insert(0, f"{call}:output:1")
        state = new_body.append_arguments(state_types)
        step = new_body.add_call(
            self._library.next_iteration_function(),
            [state[0], new_body.add_concatenation(parts), *state[1:]],
            [_INT64, _DOUBLE, *state_types[1:]],
            state_types,
        )
        for index, dtype in enumerate(state_types):
            new_body.append_result(f"{step}:output:{index}", dtype)
        new_condition = self._edit(called["cond"])
        new_condition.append_arguments(state_types)

        _replace_function(node, called["body"], self._add(new_body, self._new_name(called["body"])), "body")
        _replace_function(node, called["cond"], self._add(new_condition, self._new_name(called["cond"])), "cond")
        nothing = edit.add_rows([[NOT_RUN] * NUM_COLUMNS] * len(rows))
        zero = edit.add_scalar(_INT64)
        _insert_inputs(node, [zero, nothing, nothing, edit.add_scalar(_BOOL), zero])
        results = [
            edit.append_output(node, shape, dtype=dtype, attribute="T")
            for dtype, shape in zip(state_types, state_shapes, strict=True)
        ]
        end = edit.add_call(self._library.end_loop_function(), results, state_types, [_DOUBLE])
        matrices = [(f"{end}:output:0", 2 * len(rows))]
        last_rows: list[_Row] = []
        if condition is not None:
            variables = [f"{node.name}:output:{index}" for index in range(len(types))]
            call = edit.add_call(condition.name, variables, types, [_BOOL, _DOUBLE])
            label = self._library.last_condition_function()
            labelled = edit.add_call(label, [f"{call}:output:1", results[0]], [_DOUBLE, _INT64], [_DOUBLE])
            last_rows = rows[: len(condition_rows)]
            matrices.append((f"{labelled}:output:0", len(last_rows)))
        return [*rows, *rows, *last_rows], matrices

    def _may_run_twice(self, function_name: str) -> bool:
        """Returns whether a loop's condition can be computed once more, for its rows."""
        waiting, seen = [function_name], {function_name}
        while waiting:
            for node in self._definition(waiting.pop()).node_def:
                callees = {name for _, _, name in functions_of(node)}
                if not callees and not self._library.is_pure(node.op):
                    return False
                waiting += callees - seen
                seen |= callees
        return True

    def _add_record_op(self, edit: _Edit, rows: Sequence[_Row], matrix: str) -> None:
        call_sites = list(dict.fromkeys(row.call_site for row in rows))
        loops = list(dict.fromkeys(row.loops for row in rows if row.loops))
        name = self._own_name("record")
        node = edit.add_node(_RECORD_OP, name, [matrix])
        node.attr["nodes"].list.i.extend(row.key.node for row in rows)
        node.attr["decides"].list.i.extend(int(row.key.decides) for row in rows)
        node.attr["dtypes"].list.i.extend(row.key.dtype for row in rows)
        node.attr["generation"].i = self._generation
        node.attr["own_name"].s = name.encode()
        node.attr["call_sites"].s = "\n".join(call_sites).encode()
        places = {site: place for place, site in enumerate(call_sites)}
        node.attr["sites"].list.i.extend(places[row.call_site] for row in rows)
        node.attr["loops"].s = "\n".join("\t".join(chain) for chain in loops).encode()
        chains = {chain: place for place, chain in enumerate(loops)}
        node.attr["loop_of"].list.i.extend(chains.get(row.loops, -1) for row in rows)
        edit.run(name)

    def _edit(self, function_name: str) -> _Edit:
        function_def = type(self._definition(function_name))()
        function_def.CopyFrom(self._definition(function_name))
        return _Edit(function_def, self._library.new_node, self._own_name)

    def _add(self, edit: _Edit, name: str) -> str:
        edit.function_def.signature.name = name
        self._library.add_function_def(edit.function_def)
        return name

    def _own_name(self, what: str) -> str:
        """Returns a name for a node of ours that is no prefix or suffix of another's."""
        self._num_names += 1
        return f"{OWN_NAME_PREFIX}inside_{what}_{self._num_names}_"

    def _new_name(self, function_name: str) -> str:
        self._num_names += 1
        return f"{function_name}{SUFFIX}_{self._num_names}"


class _Edit:
    """A FunctionDef that is changed.

    Args:
        function_def: The FunctionDef.
        new_node: Returns an empty NodeDef.
        new_name: `(what)`: returns a name that no other node has.
    """

    def __init__(self, function_def: Any, new_node: Callable[[], Any], new_name: Callable[[str], str]) -> None:
        self.function_def = function_def
        self._new_node = new_node
        self._new_name = new_name

    def add_node(self, op_type: str, name: str, inputs: Sequence[str]) -> Any:
        """Adds a node; returns it."""
        node = self._new_node()
        node.op, node.name = op_type, name
        node.input.extend(inputs)
        self.function_def.node_def.append(node)
        return self.function_def.node_def[-1]

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
            node.attr[_MUST_COMPILE].b = True
        return str(node.name)

    def add_copy(self, template: Any, inputs: Sequence[str]) -> str:
        """Adds a copy of a NodeDef; returns how nodes refer to its first output."""
        node = self.add_node(template.op, self._new_name("row"), inputs)
        for name, value in template.attr.items():
            node.attr[name].CopyFrom(value)
        return f"{node.name}:{'output' if node.op in _CALLS else 'results'}:0"

    def add_shape(self, tensor: str, dtype: int) -> str:
        """Adds the shape of a tensor, as int64; returns how nodes refer to it."""
        node = self.add_node("Shape", self._new_name("shape"), [tensor])
        node.attr["T"].type = dtype
        node.attr["out_type"].type = _INT64
        return f"{node.name}:output:0"

    def add_rows(self, values: Sequence[Sequence[float]]) -> str:
        """Adds a constant matrix; returns how nodes refer to it."""
        node = self.add_node("Const", self._new_name("rows"), [])
        node.attr["dtype"].type = _DOUBLE
        tensor = node.attr["value"].tensor
        tensor.dtype = _DOUBLE
        for size in (len(values), NUM_COLUMNS):
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
        if dtype == _BOOL:
            tensor.bool_val.append(False)
        else:
            tensor.int64_val.append(0)
        return f"{node.name}:output:0"

    def add_concatenation(self, parts: Sequence[str]) -> str:
        """Puts matrices below one another; returns how nodes refer to the result."""
        if len(parts) == 1:
            return parts[0]
        axis = self.add_scalar(_INT64)
        node = self.add_node("ConcatV2", self._new_name("concat"), [*parts, axis])
        node.attr["N"].i = len(parts)
        node.attr["T"].type = _DOUBLE
        node.attr["Tidx"].type = _INT64
        return f"{node.name}:output:0"

    def call_with_rows(self, node: Any, copy: _Copy) -> str:
        """Makes a node call a copy; returns how nodes refer to the copy's matrix."""
        _replace_function(node, functions_of(node)[0][2], copy.name)
        return self.append_output(node, None)

    def append_output(
        self, node: Any, shape: Sequence[int] | None, *, dtype: int = _DOUBLE, attribute: str = "Tout"
    ) -> str:
        """Gives a node one more output; returns how nodes refer to it."""
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
        """Gives the function more arguments; returns how nodes refer to them."""
        names = []
        for dtype in types:
            argument = self.function_def.signature.input_arg.add()
            argument.name, argument.type = self._new_name("argument"), dtype
            names.append(str(argument.name))
        return names

    def append_result(self, tensor: str, dtype: int) -> None:
        """Gives the function one more result."""
        argument = self.function_def.signature.output_arg.add()
        argument.name, argument.type = self._new_name("result"), dtype
        self.function_def.ret[argument.name] = tensor

    def return_rows(self, matrix: str) -> None:
        """Makes a matrix the last result."""
        self.append_result(matrix, _DOUBLE)

    def take_result(self) -> str:
        """Takes the last result away; returns how nodes refer to what it was."""
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


def _replace_function(node: Any, old: str, new: str, attribute: str | None = None, index: int = 0) -> None:
    """Makes a node name another function; `attribute` and `index` choose one of several places."""
    for key, value in node.attr.items():
        if attribute is not None and key != attribute:
            continue
        kind = value.WhichOneof("value")
        functions = [value.func] if kind == "func" else list(value.list.func) if kind == "list" else []
        for place, function in enumerate(functions):
            if function.name == old and (attribute is None or place == index):
                function.name = new


def _insert_inputs(node: Any, inputs: Sequence[str]) -> None:
    """Adds data inputs to a node, behind those that it has and before its control inputs."""
    data = [text for text in node.input if not text.startswith("^")]
    control = [text for text in node.input if text.startswith("^")]
    del node.input[:]
    node.input.extend([*data, *inputs, *control])
