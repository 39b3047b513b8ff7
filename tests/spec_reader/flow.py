"""The rules of the specification that follow a value from an output of an op to the inputs of the op."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import polars

from tests.spec_reader.graph_mode import BORDERS, HANDS_ON_HANDLES, REFERENCE_WRITER, REFERENCES, GraphMode

_WRITER = re.compile(
    r"Assign(Add|Sub)?VariableOp|Resource(Sparse)?Apply\w+|ResourceScatter\w+|ResourceStridedSliceAssign|MakeIterator"
)
_REPLACING = frozenset({"AssignVariableOp", "MakeIterator", "Assign"})
_LOOP = frozenset({"cond", "body"})
_BRANCHES = frozenset({"then_branch", "else_branch", "branches"})
_BORDER_NODES = frozenset({"Identity", "Switch", "Merge", "Enter", "Exit", "NextIteration"})
_NEVER_BAD = re.compile(r"bool|string|q?u?int\d+")
TAKING = re.compile(r"(TensorArray(Read|Gather|Concat)|StackPop)(V\d)?")
_STORING = re.compile(r"(TensorArray(Write|Scatter|Split)|StackPush)(V\d)?")
PASSING = frozenset(
    {"CheckNumerics", "EnsureShape", "Identity", "IdentityN", "PreventGradient", "Snapshot", "StopGradient"}
)
CONTAINERS = ("EmptyTensorList", "Optional", "TensorList")
_MAX_PATH = 10_000

Row = dict[str, Any]


class Context(NamedTuple):
    """One pass through the ops of one graph. `graph_id` identifies the graph."""

    step_id: int | None
    frame_id: int | None
    iteration: int | None
    call_site: str | None
    graph_id: int


class Tensor(NamedTuple):
    """A tensor that a program computed, with or without a row.

    Attributes:
        context: Context of a tensor of a graph. None for a tensor of an execution and for an external tensor.
        op: Name of the op, `execution_index`, or `tensor_id` of an external tensor. For an external tensor, `slot` is
            None.
        slot: Index of the output.
    """

    context: Context | None
    op: str | int
    slot: int | None


_UNKNOWN = Tensor(None, "", None)
"""Stands for a value that a branch without rows may have written to a resource."""


class Flow:
    """The tables of one run, and the rules that follow a value from an output to the inputs of its op.

    Attributes:
        health: The rows of tensor_health, in the order of `event_index`.
    """

    def __init__(self, run_id: str, tables: dict[str, polars.DataFrame]) -> None:
        self.run_id = run_id
        self._tables = tables
        self.start: int = min((row["wall_time_ns"] for row in self.rows("run")), default=0)
        self._mode = GraphMode(
            self.rows("graph_function"),
            self.rows("graph_function_input"),
            self.rows("graph_function_output"),
            self.rows("graph_op"),
            self.rows("graph_op_input"),
        )
        self._graphs = self._by("graph", "graph_id")
        self._ops = self._by("graph_op", "graph_id", "op_name")
        self._outputs = self._by("graph_op_output", "graph_id", "op_name", "output_slot")
        self._executions = self._by("execution", "execution_index")
        self._taken = self._by("execution_input", "execution_index", "input_index")
        self._makers = self._by("execution_output", "tensor_id")
        self._made = self._by("execution_output", "execution_index", "output_slot")
        self._arguments = self._by("graph_function_input", "function_name", "op_name")
        self._results = self._by("graph_function_output", "function_name", "output_index")
        self._functions = _grouped(self.rows("graph_function"), "graph_id")
        self._edges = _grouped(self.rows("graph_op_input"), "graph_id", "op_name")
        self._calls = _grouped((row for row in self.rows("graph_call") if row["is_inline"]), "graph_id", "op_name")
        self._callers = _grouped(itertools.chain(*self._calls.values()), "callee_graph_id")
        self._nodes = {
            (row["executed_graph_id"], row["graph_id"], row["call_site"], row["op_name"] or row["node_name"]): row
            for row in self.rows("executed_op")
        }
        nodes = (row for row in self.rows("executed_op") if row["op_name"] is None)
        computing = filter(_is_computing, nodes)
        self._nodes_made_for = _grouped(computing, "executed_graph_id", "graph_id", "call_site", "made_for")
        self._node_of_name = self._by("executed_op", "executed_graph_id", "node_name")
        self._node_edges = _grouped(self.rows("executed_op_input"), "executed_graph_id", "node_name")
        self.health: dict[Tensor, Row] = {}
        self._executed_graphs: dict[int, int] = {}
        """The optimized graph that ran in each step."""
        self._seen: dict[Context, tuple[int, int | None]] = {}
        """Each context with a row, with its smallest `event_index` and its `execution_index`."""
        self._sites: dict[int | None, dict[str | None, list[Context]]] = defaultdict(lambda: defaultdict(list))
        for row in sorted(self.rows("tensor_health"), key=lambda row: row["event_index"]):
            self._add(row)
        for is_in_loop in (False, True):
            for context in list(self._seen):
                self._add_callers(context, is_in_loop=is_in_loop)
        waiting = list(self._seen)
        for context in waiting:  # the list grows in the loop
            waiting += self._add_silent_callees(context)

    def _add_silent_callees(self, context: Context) -> list[Context]:
        """Adds the contexts of functions without rows that a context called. Returns these contexts."""
        found = []
        calls = (call for key, calls in self._calls.items() if key[0] == context.graph_id for call in calls)
        for call in calls:
            if (
                self._has_run(context, call["op_name"])
                and call["attribute"] not in _LOOP | _BRANCHES
                and not self._own_callees(context, call)
            ):
                callee = self._silent_callee(context, call)
                self._seen[callee] = self._seen[context]
                self._sites[callee.step_id][callee.call_site].append(callee)
                found.append(callee)
        return found

    def _own_callees(self, context: Context, call: Row) -> list[Context]:
        return [other for other in self._callees(context, call) if self._caller(other) == (context, call)]

    @staticmethod
    def _silent_callee(context: Context, call: Row) -> Context:
        """Returns the context of a function or branch without rows that an op called."""
        site = f"{context.call_site}/{call['op_name']}" if context.call_site else str(call["op_name"])
        return context._replace(call_site=site + _suffix(call), graph_id=call["callee_graph_id"])

    def _session(self, context: Context | None) -> str | None:
        """Returns the function of the session's run that a context belongs to, or None outside sessions."""
        name = self._executions.get(None if context is None else self._execution_of(context), {}).get("op_type")
        return name if name in self._mode.sessions else None

    def _has_run(self, context: Context, op: str | int) -> bool:
        """Returns whether an op ran when its graph ran: a session runs only some ops of its graph."""
        session = self._session(context) if context.call_site == "" else None
        return session is None or op in self._mode.before(session, None)

    def rows(self, table: str) -> list[Row]:
        """Returns the rows of a table."""
        return self._tables[table].to_dicts() if table in self._tables else []

    def _by(self, table: str, *columns: str) -> dict[Any, Row]:
        return {_key_of(row, columns): row for row in self.rows(table)}

    def _add(self, row: Row) -> None:
        if row["scope"] != "graph":
            of = "tensor_id" if row["scope"] == "external" else "execution_index"
            self.health[Tensor(None, row[of], row["output_slot"])] = row
            return
        context = Context(*(row[column] for column in Context._fields))
        if context.step_id is None:  # an unknown context equals no other context
            context = context._replace(iteration=~row["event_index"])
        # A node that the optimizer made can run in a loop although it has the call site of the outermost graph.
        is_misplaced = not row["call_site"] and row["frame_id"] and (row["graph_id"], row["op_name"]) not in self._ops
        if context.step_id is not None and context not in self._seen and not is_misplaced:
            self._seen[context] = row["event_index"], row["execution_index"]
            self._sites[context.step_id][context.call_site].append(context)
        self.health[Tensor(context, row["op_name"], row["output_slot"])] = row
        if context.step_id is not None and row.get("executed_graph_id") is not None:
            self._executed_graphs[context.step_id] = row["executed_graph_id"]

    def _add_callers(self, context: Context, *, is_in_loop: bool) -> None:
        """Adds each caller of a context if the caller has no rows.

        Calls by loops need all other contexts to be known.
        """
        seen = self._seen[context]
        while (level := self._level_of(context)) and (is_in_loop or level[0]["attribute"] not in _LOOP):
            context, _ = self._caller(context)
            if context.iteration is None:
                return
            if context not in self._seen:
                self._seen[context] = seen
                self._sites[context.step_id][context.call_site].append(context)

    def execution(self, execution_index: int) -> Row:
        """Returns the row of an execution."""
        return self._executions[execution_index]

    def op_type(self, tensor: Tensor) -> str | None:
        """Returns the type of the op that made a tensor with a row."""
        op_type: str | None = self.health[tensor]["op_type"]
        return op_type

    def stored(self, graph_id: int) -> set[str | int]:
        """Returns the ops of a graph whose outputs are put into a TensorArray or a stack."""
        ops = (row for row in self._ops.values() if row["graph_id"] == graph_id and _STORING.fullmatch(row["op_type"]))
        return {edge["source_op_name"] for row in ops for edge in self._edges[graph_id, row["op_name"]]}

    def written_values(self) -> Iterator[Tensor]:
        """Yields the tensors that ops wrote to variables."""
        for writes in self._writes.values():
            for _, op_type, values in writes:
                yield from values if op_type not in ("MakeIterator", "") else ()

    def used_outputs(self, dtypes: re.Pattern[str]) -> Iterator[tuple[Tensor, str, list[Tensor]]]:
        """Yields (output, op type, inputs in the program) for each used output of the ops of graphs that ran."""
        outputs = _grouped((row for row in self._outputs.values() if dtypes.fullmatch(row["dtype"] or "")), "graph_id")
        edges = self.rows("graph_op_input")
        used = {(edge["graph_id"], edge["source_op_name"], edge["source_output_slot"]) for edge in edges}
        results = self.rows("graph_function_output")
        used |= {(result["graph_id"], result["op_name"], result["output_slot"]) for result in results}
        for context in list(self._seen):
            for row in outputs[context.graph_id]:
                made = Tensor(context, row["op_name"], row["output_slot"])
                is_calling = (context.graph_id, row["op_name"]) in self._calls
                has_run = context.graph_id not in self._recorded_sites or self._node(made) is not None
                if has_run and not is_calling and (context.graph_id, *made[1:]) in used:
                    op_type = self._ops[context.graph_id, row["op_name"]]["op_type"]
                    yield made, op_type, self._edge_inputs(context, row["op_name"])

    def recorded_users(self, tensor: Tensor) -> Iterator[Tensor]:
        """Yields the first output of each op that takes a tensor in the program, if the op is recorded in each run."""
        assert tensor.context is not None
        graph_id = tensor.context.graph_id
        for key in [key for key in self._edges if key[0] == graph_id]:
            is_taken = any(
                (edge["source_op_name"], edge["source_output_slot"]) == tensor[1:] and not edge["is_control"]
                for edge in self._edges[key]
            )
            user = Tensor(tensor.context, key[1], 0)
            is_recorded = self._outputs.get((*key, 0), {}).get("is_recorded")
            has_run = graph_id not in self._recorded_sites or self._node(user) is not None
            if is_taken and is_recorded and has_run:
                yield user

    # Inputs

    def is_at_border(self, tensor: Tensor) -> bool:
        """Returns whether a tensor is at a border. No op computed such a tensor."""
        return self._across(tensor) is not None

    def inputs(self, tensor: Tensor) -> list[Tensor]:
        """Returns the inputs of a tensor's op that can be bad, with or without rows.

        A resource is replaced by the values that were written to it. A tensor at a border has one input: the tensor
        on the other side.
        """
        return [source for _, source in self.numbered_inputs(tensor)]

    def numbered_inputs(self, tensor: Tensor) -> list[tuple[int | None, Tensor]]:
        """Returns the inputs of a tensor, each with its index among the inputs of the op.

        The index is None at a border.
        """
        across = self._across(tensor)
        if across is not None:
            return [(None, source) for source in across]
        context, op, slot = tensor
        if context is None:
            sources = self._execution_inputs(op) if slot is not None else []
        else:
            sources = self._op_inputs(tensor)
        found: list[tuple[int | None, Tensor]] = []
        for index, source in sources:
            dtype = self._dtype(source)
            if self._is_reference(source):
                found += [(index, each) for each in self._content_by_reference(source, context, op)]
            elif dtype == "resource" or (dtype is None and self._handle(source) in self._writes):
                is_placed = context is None or self._is_placed(context)
                held = self._content(self._handle(source), context, op) if is_placed else [_UNKNOWN]
                found += [(index, each) for each in held]
            elif not _NEVER_BAD.fullmatch(dtype or ""):
                found.append((index, source))
        return found

    def is_known(self, tensor: Tensor) -> bool:
        """Returns whether all inputs of a tensor's op are known. An origin with this property is proven."""
        seen: set[Tensor] = set()
        waiting = [tensor]
        while waiting:
            at = waiting.pop()
            if at == _UNKNOWN:
                return False
            if self._across(at) == [] or (at.context is not None and not self._is_op_known(at)):
                return False
            if at is not tensor and at.context is not None and self._across(at) is None and not self._hands_on(at):
                return False
            new = [source for source in self.inputs(at) if source not in self.health and source not in seen]
            seen.update(new)
            waiting += new
        return True

    def _is_op_known(self, tensor: Tensor) -> bool:
        row = self._ops.get((tensor.context.graph_id, tensor.op))
        return row is not None and TAKING.fullmatch(row["op_type"]) is None

    def _hands_on(self, tensor: Tensor) -> bool:
        """Returns whether a tensor without a row is determined by the inputs of its op."""
        op_type = self._ops[tensor.context.graph_id, tensor.op]["op_type"]
        is_absorbed = tensor.context.graph_id in self._recorded_sites and self._node(tensor) is None
        return is_absorbed or op_type in PASSING or op_type.startswith(CONTAINERS)

    def _dtype(self, tensor: Tensor) -> str | None:
        if tensor in self.health:
            return self.health[tensor]["dtype"]
        if tensor.context is None:
            return self._made.get(tensor[1:], {}).get("dtype")
        if (tensor.context.graph_id, tensor.op) not in self._ops:
            dtypes = json.loads((self._node(tensor) or {}).get("output_dtypes") or "[]")
            return dtypes[tensor.slot] if tensor.slot < len(dtypes) else None
        return self._outputs.get((tensor.context.graph_id, *tensor[1:]), {}).get("dtype")

    def _edge_inputs(self, context: Context, op: str | int) -> list[Tensor]:
        """Returns the inputs of an op of a graph by the edges of the program."""
        if (context.graph_id, op) not in self._ops:
            return []
        edges = (edge for edge in self._edges[context.graph_id, op] if not edge["is_control"])
        return [
            Tensor(context, edge["source_op_name"], edge["source_output_slot"])
            for edge in sorted(edges, key=lambda edge: edge["input_index"])
        ]

    def _node(self, tensor: Tensor) -> Row | None:
        assert tensor.context is not None
        executed_graph_id = self._executed_graphs.get(tensor.context.step_id)
        return self._nodes.get((executed_graph_id, tensor.context.graph_id, tensor.context.call_site, tensor.op))

    def _op_inputs(self, tensor: Tensor) -> list[tuple[int, Tensor]]:
        """Returns the inputs that an op took when it ran.

        If some are unknown, adds the inputs of the op in the program.
        """
        if self._mode.type_of(tensor.context.graph_id, tensor.op) in BORDERS:
            return self._inputs_at_border(tensor)
        ran, is_known = self._node_inputs(tensor)
        node = self._node(tensor)
        of_op = tensor.op if node is None or node["op_name"] is not None else node["made_for"]
        program = list(enumerate(self._edge_inputs(tensor.context, of_op)))
        if is_known:  # resources are followed to their handles by the edges of the program
            program = [each for each in program if self._dtype(each[1]) == "resource" and of_op == tensor.op]
        if of_op == tensor.op:
            ran = [each for each in ran if self._dtype(each[1]) != "resource"]
        return [(index, self._where_recorded(source)) for index, source in ran + program]

    def _where_recorded(self, source: Tensor) -> Tensor:
        """Returns the tensor, or the same tensor in iteration 0 if it entered a loop.

        A tensor that enters a loop has the same value in all iterations.
        """
        if not self._mode.is_enter(source.context.graph_id, source.op):
            return source
        return source._replace(context=source.context._replace(iteration=0))

    def _inputs_at_border(self, tensor: Tensor) -> list[tuple[int, Tensor]]:
        """Returns the inputs of an op at a border of a loop or branch of TensorFlow 1."""
        context, op, _ = tensor
        graph_id, iteration = context.graph_id, context.iteration
        inputs = list(enumerate(self._edge_inputs(context, op)))
        if self._mode.is_enter(graph_id, op):
            frame_id, iteration = self._frame_entry(context, self._mode.parts(graph_id)[op])
            outer = context._replace(frame_id=frame_id, iteration=iteration)
            return [(i, source._replace(context=outer)) for i, source in inputs] if iteration is not None else []
        if self._mode.is_exit(graph_id, op):
            return [(i, inner) for i, source in inputs for inner in self._last_inside(source)]
        if self._mode.is_next(graph_id, op):
            before = context._replace(iteration=(iteration or 0) - 1)
            return [(i, source._replace(context=before)) for i, source in inputs] if iteration else []
        if self._mode.merges_loop(graph_id, op):
            return [pair for pair in inputs if self._mode.is_next(graph_id, pair[1].op) == bool(iteration)]
        ran, _ = self._node_inputs(tensor)
        return [pair for pair in dict.fromkeys([*inputs, *ran]) if pair[1] in self.health]

    @functools.cached_property
    def _frames(self) -> dict[tuple[int | None, int, str | None, str], dict[int | None, tuple[int, int, int]]]:
        """The frames of each loop of TensorFlow 1: first event, last iteration, last iteration of a loop variable."""
        found: Any = defaultdict(dict)
        for (context, op, _), row in self.health.items():
            part = None if context is None else self._mode.parts(context.graph_id).get(op)
            if part is not None and context.step_id is not None:
                frames = found[context.step_id, context.graph_id, context.call_site, part]
                first, last, merged = frames.get(context.frame_id, (row["event_index"], 0, -1))
                if self._mode.merges_loop(context.graph_id, op):
                    merged = max(merged, context.iteration)
                frames[context.frame_id] = first, max(last, context.iteration), merged
        return found

    def _frame_entry(self, context: Context, part: str) -> tuple[int | None, int | None]:
        """Returns the frame and the iteration in which the frame of a loop of TensorFlow 1 was entered."""
        outer_part = self._mode.outer(context.graph_id, part)
        if outer_part is None:
            return 0, 0
        place = context.step_id, context.graph_id, context.call_site
        frames = self._frames[*place, part]
        in_order = sorted(frames, key=lambda frame: frames[frame][0])
        outer = self._frames[*place, outer_part]
        passes = [(f, i) for f in sorted(outer, key=lambda f: outer[f][0]) for i in range(outer[f][1] + 1)]
        return _entries_of(in_order, passes).get(context.frame_id, (None, None))

    def _last_inside(self, source: Tensor) -> list[Tensor]:
        """Returns the tensor of the last iteration of the loop that a pass entered, if this iteration is known."""
        context = source.context
        part = self._mode.parts(context.graph_id).get(source.op)
        if part is None:
            return []
        frames = self._frames[context.step_id, context.graph_id, context.call_site, part]
        entered = [
            frame
            for frame in frames
            if self._frame_entry(context._replace(frame_id=frame), part) == (context.frame_id, context.iteration)
        ]
        if len(entered) != 1 or frames[entered[0]][2] < 0:
            return []
        return [source._replace(context=context._replace(frame_id=entered[0], iteration=frames[entered[0]][2]))]

    def _node_inputs(self, tensor: Tensor) -> tuple[list[tuple[int, Tensor]], bool]:
        """Returns the inputs of an op by the edges that ran, without borders.

        Also returns whether the result contains all inputs.
        """
        node = self._node(tensor)
        found = []
        is_known = node is not None
        for edge in self._node_edges[node["executed_graph_id"], node["node_name"]] if node is not None else ():
            source = self._node_of_name.get((edge["executed_graph_id"], edge["source_node_name"]))
            if edge["is_control"]:
                continue
            if source is None or source["graph_id"] is None or not _is_computing(source):
                is_known = False
                continue
            context = tensor.context._replace(call_site=source["call_site"], graph_id=source["graph_id"])
            made = Tensor(context, source["op_name"] or source["node_name"], edge["source_output_slot"])
            found.append((edge["input_index"], made))
        if node is None:  # the op is absorbed; a node that was made for it may compute it
            executed_graph_id = self._executed_graphs.get(tensor.context.step_id)
            place = executed_graph_id, tensor.context.graph_id, tensor.context.call_site
            nodes = self._nodes_made_for[*place, tensor.op]
            found += [(0, Tensor(tensor.context, other["node_name"], tensor.slot)) for other in nodes]
        return found, is_known

    def _execution_inputs(self, index: int | str) -> list[tuple[int, Tensor]]:
        num_inputs = self._executions.get(index, {}).get("num_inputs", 0)
        return [(i, found) for i in range(num_inputs) for found in self._eager(index, i)]

    def _eager(self, index: int | str | None, input_index: int) -> list[Tensor]:
        """Returns the tensor that is an input of an execution."""
        taken = self._taken.get((index, input_index))
        if taken is None:
            return []
        made = self._makers.get(taken["tensor_id"])
        if made is None:
            return [Tensor(None, taken["tensor_id"], None)]
        return [Tensor(None, made["execution_index"], made["output_slot"])]

    def _across(self, tensor: Tensor) -> list[Tensor] | None:
        """Returns the tensors on the other side of a border, or None if an op computed the tensor."""
        context, op, slot = tensor
        if context is None:
            execution = self._executions.get(op) if slot is not None else None
            graph_id = self._graph_of.get(execution["op_type"]) if execution is not None else None
            return None if graph_id is None else self._result([self._root(op, graph_id)], slot, execution["op_type"])
        session = self._session(context) if context.call_site == "" else None
        if session is not None and (op, slot) in self._mode.feeds[session]:
            return self._eager(self._execution_of(context), self._mode.feeds[session][op, slot])
        if (context.graph_id, op) in self._calls:
            return self._call_result(context, op, slot)
        row = self._ops.get((context.graph_id, op))
        if row is None or self._edges[context.graph_id, op] or session is not None:
            return None
        return self._argument(context, op)

    @functools.cached_property
    def _graph_of(self) -> dict[str, int]:
        return {row["function_name"]: row["graph_id"] for row in self.rows("graph_function")}

    @functools.cached_property
    def _roots(self) -> dict[tuple[int | None, int], Context]:
        contexts = ((index, context) for context, (_, index) in reversed(self._seen.items()))
        roots = {(index, -1): context._replace(call_site="", frame_id=0, iteration=0) for index, context in contexts}
        outermost = ((index, context) for context, (_, index) in self._seen.items() if context.call_site == "")
        for index, context in outermost:
            roots[index, context.graph_id] = context._replace(frame_id=0, iteration=0)
        return roots

    def _root(self, index: int | str, graph_id: int) -> Context:
        """Returns the context of the outermost graph of a call."""
        unknown = Context(None, None, None, "", graph_id)
        return self._roots.get((index, graph_id), self._roots.get((index, -1), unknown))._replace(graph_id=graph_id)

    def _variants(self, graph_id: int, name: str | None = None) -> list[str]:
        """Returns the functions of a graph, beginning with the function that has a given name."""
        if name in self._mode.sessions and self._mode.sessions[name]["graph_id"] == graph_id:
            return [name]
        names = [row["function_name"] for row in self._functions[graph_id]]
        return sorted(names, key=lambda other: other != name)

    def _result(self, contexts: Iterable[Context], index: int | None, name: str | None = None) -> list[Tensor]:
        """Returns the result of the graph of each context."""
        found = []
        for context in contexts:
            rows = (self._results.get((other, index)) for other in self._variants(context.graph_id, name))
            row = next(filter(None, rows), None)
            if row is not None:
                found.append(Tensor(context, row["op_name"], row["output_slot"]))
        return found

    def _argument(self, context: Context, op: str | int) -> list[Tensor] | None:
        """Returns the tensor that a Placeholder holds, or None if the op is not an argument of its graph."""
        index = self._execution_of(context)
        name = self._executions.get(index, {}).get("op_type")
        rows = (self._arguments.get((other, op)) for other in self._variants(context.graph_id, name))
        argument = next(filter(None, rows), None)
        if argument is None:
            return None
        position = argument["input_index"]
        caller = self._caller(context)
        if caller is None:
            return self._eager(index, position)
        outer, call = caller
        if call["attribute"] in _LOOP and context.iteration:
            body = next(other for other in self._calls[outer.graph_id, call["op_name"]] if other["attribute"] == "body")
            callees = (other for other in self._callees(outer, body) if other.frame_id == context.frame_id)
            before = {other._replace(iteration=context.iteration - 1) for other in callees}
            return self._result(before, position, body["function_name"])
        if self._is_lost(caller):
            return []
        position += call["attribute"] in _BRANCHES
        return self._edge_inputs(outer, call["op_name"])[position : position + 1]

    def _call_result(self, context: Context, op: str | int, slot: int | None) -> list[Tensor]:
        """Returns the tensor that a calling op outputs."""
        calls = self._calls[context.graph_id, op]
        body = [call for call in calls if call["attribute"] == "body"]
        found = []
        for call in body or calls:
            callees = self._own_callees(context, call)
            if not callees and call["attribute"] not in _LOOP | _BRANCHES:  # the function ran, but has no rows
                callees = [self._silent_callee(context, call)]
            if body and not callees:
                if call["callee_graph_id"] is None:
                    return []  # the body was not recorded, so it is unknown whether it ran
                if any(self._is_lost(self._caller(other)) for other in self._callees(context, call)):
                    return []  # one of these frames may begin here
                return self._edge_inputs(context, op)[slot : slot + 1] if slot is not None else []
            last = max((other.iteration or 0 for other in callees), default=0) if body else context.iteration
            found += self._result({other._replace(iteration=last) for other in callees}, slot, call["function_name"])
        if not found and calls[0]["attribute"] in _BRANCHES:
            return self._silent_result(context, calls, slot)
        return found

    def _source(self, tensor: Tensor) -> Tensor:
        """Returns the tensor from which a tensor without a row comes, across borders and Identity."""
        for _ in range(_MAX_PATH):
            across = None if tensor in self.health else self._across(tensor)
            if across is None and tensor not in self.health and tensor.context is not None:
                row = self._ops.get((tensor.context.graph_id, tensor.op), {})
                across = self._edge_inputs(tensor.context, tensor.op) if row.get("op_type") == "Identity" else None
            if not across or len(across) > 1:
                break
            tensor = across[0]
        return tensor

    def _silent_result(self, context: Context, calls: list[Row], slot: int | None) -> list[Tensor]:
        """Returns the result of branches without rows, if all branches that can have run return the same tensor."""
        if any(self._caller(other) == (context, each) for each in calls for other in self._callees(context, each)):
            return []
        start = f"{context.call_site}/" if context.call_site else ""
        found = set()
        for call in calls:
            if not self._leaves_rows(context, call):
                site = start + call["op_name"] + _suffix(call)
                callee = context._replace(call_site=site, graph_id=call["callee_graph_id"])
                found.update(map(self._source, self._result([callee], slot, call["function_name"])))
        return list(found) if len(found) == 1 else []

    def _leaves_rows(self, context: Context, call: Row) -> bool:
        """Returns whether a branch has at least one row of its own each time that it runs."""
        graph_id = call["callee_graph_id"]
        if graph_id not in self._recorded_sites:
            return any(row["is_recorded"] for key, row in self._outputs.items() if key[0] == graph_id)
        start = re.escape(context.call_site + "/" if context.call_site else "")
        patterns = [start + _tail(call, name) for name in ("", r"_\d+")]
        return any(re.fullmatch(pattern, site) for pattern in patterns for site in self._recorded_sites[graph_id])

    @functools.cached_property
    def _recorded_sites(self) -> dict[int, set[str]]:
        """The call sites of each optimized graph that have a node with rows."""
        found: dict[int, set[str]] = {}
        for row in self.rows("executed_op"):
            if row["graph_id"] is not None:
                sites = found.setdefault(row["graph_id"], set())
                outputs = (self._outputs.get((row["graph_id"], row["op_name"], slot)) for slot in range(64))
                if row["op_name"] is not None and any(each["is_recorded"] for each in outputs if each is not None):
                    sites.add(row["call_site"])
        return found

    # Contexts

    def _execution_of(self, context: Context) -> int | None:
        """Returns the execution in which a context ran."""
        if context in self._seen:
            return self._seen[context][1]
        others = self._sites[context.step_id].values() if context.step_id in self._sites else ()
        return next((self._seen[other][1] for site in others for other in site), None)

    def _callees(self, context: Context, call: Row) -> list[Context]:
        """Returns the contexts that an op called, in any pass of its graph."""
        start = re.escape(context.call_site + "/" if context.call_site else "")
        found: list[Context] = []
        for name in ("", r"_\d+"):
            pattern = re.compile(start + _tail(call, name))
            for site, inner in self._sites[context.step_id].items():
                if pattern.fullmatch(site or "") is not None:
                    found += [other for other in inner if other.graph_id == call["callee_graph_id"]]
            if found:
                break
        return found

    def _caller(self, context: Context) -> tuple[Context, Row] | None:
        """Returns the context and the call that called a context, or None if there is no caller or no known caller."""
        level = self._level_of(context)
        if not level:
            return None
        call, site = level
        outer = context._replace(call_site=site, graph_id=call["graph_id"])
        if call["attribute"] in _LOOP:
            frame_id, iteration = self._entry(outer, call, context.frame_id)
            outer = outer._replace(frame_id=frame_id, iteration=iteration)
        return outer, call

    @staticmethod
    def _is_lost(caller: tuple[Context, Row] | None) -> bool:
        """Returns whether the iteration of a call is unknown."""
        return caller is not None and caller[0].iteration is None

    def _level_of(self, context: Context) -> tuple[Row, str] | tuple[()] | None:
        """Returns the call that led to a context and the call site of the calling op, or () for an outermost graph."""
        root = self._executions.get(self._execution_of(context), {}).get("graph_id")
        found = self._level(context.graph_id, context.call_site, root)
        return self._level(context.graph_id, context.call_site, None) if found is None else found

    @functools.cache  # noqa: B019
    def _level(self, graph_id: int, site: str | None, root: int | None) -> tuple[Row, str] | tuple[()] | None:
        """Returns the same as `_level_of`, for a graph at a call site.

        `root` is the outermost graph, or None for any graph.
        """
        if not site:
            return () if root in (None, graph_id) else None
        for name in ("", r"_\d+"):
            for call in self._callers.get(graph_id, ()):
                matched = re.fullmatch(f"(?:(.*)/)?{_tail(call, name)}", site)
                if matched is not None and self._level(call["graph_id"], matched[1] or "", root) is not None:
                    return call, matched[1] or ""
        return None

    def _is_in_loop(self, context: Context) -> bool:
        level = self._level_of(context)
        if not level:
            return False
        outer = context._replace(graph_id=level[0]["graph_id"], call_site=level[1])
        return level[0]["attribute"] in _LOOP or self._is_in_loop(outer)

    def _entry(self, outer: Context, call: Row, frame_id: int | None) -> tuple[int | None, int | None]:
        """Returns the frame and the iteration in which the frame of a loop was entered."""
        if not self._is_in_loop(outer):
            return 0, 0
        entries = self._entries(outer.step_id, outer.call_site, outer.graph_id, call["op_name"])
        return entries.get(frame_id, (None, None))

    @functools.cache  # noqa: B019
    def _entries(
        self, step_id: int | None, site: str | None, graph_id: int, op: str
    ) -> dict[int | None, tuple[int | None, int | None]]:
        """Returns the entry of each frame of a loop. Entries and frames are paired in the order of their start."""
        outer = Context(step_id, 0, 0, site, graph_id)
        first: dict[int | None, int] = {}
        inner_site = ""
        for call in self._calls[graph_id, op]:
            for inner in self._callees(outer, call):
                event_index, _ = self._seen[inner]
                inner_site = inner.call_site or ""
                first[inner.frame_id] = min(event_index, first.get(inner.frame_id, event_index))
        frames = sorted(first, key=first.__getitem__)
        passes: dict[tuple[int | None, int | None], None] = {}
        while not passes:
            here = (other for other in self._sites[step_id].get(site, ()) if other.graph_id == graph_id)
            passes = dict.fromkeys((other.frame_id, other.iteration) for other in here)
            level = self._level_of(Context(step_id, None, None, site, graph_id))
            if level and level[0]["attribute"] == "body":  # the body ran in all iterations until its last iteration
                last: dict[int | None, int] = {}
                for frame_id, iteration in passes:
                    last[frame_id] = max(iteration or 0, last.get(frame_id, 0))
                passes = dict.fromkeys((frame_id, i) for frame_id in last for i in range(last[frame_id] + 1))
            if not level or level[0]["attribute"] in _LOOP:
                break
            graph_id, site = level[0]["graph_id"], level[1]
        if not passes:  # the outer loop has no rows
            level = self._level_of(Context(step_id, None, None, site, graph_id))
            is_nested = level is not None and self._is_in_loop(
                Context(step_id, None, None, level[1], level[0]["graph_id"])
            )
            return {} if is_nested else _iterations_of(frames, inner_site, site or "")
        order = {frame_id: place for place, (frame_id, _) in enumerate(reversed(passes))}
        return _entries_of(frames, sorted(passes, key=lambda entry: (-order[entry[0]], entry[1])))

    # Variables

    def _is_reference(self, tensor: Tensor) -> bool:
        return tensor.context is not None and self._mode.type_of(tensor.context.graph_id, tensor.op) in REFERENCES

    def _handle(self, tensor: Tensor) -> Any:
        """Returns the `tensor_id` of the handle of a resource, or the session and the op that made the resource."""
        for _ in range(_MAX_PATH):
            if tensor.context is None and tensor.slot is None:
                return int(tensor.op)
            across = self._across(tensor)
            if across is None and tensor.context is None:
                return self._made.get(tensor[1:], {}).get("tensor_id")
            if across is None:
                op_type = self._ops.get((tensor.context.graph_id, tensor.op), {}).get("op_type") or ""
                session = self._session(tensor.context)
                if session is not None and op_type in REFERENCES | {"VarHandleOp"}:
                    return self._mode.sessions[session]["session_index"], tensor.context.graph_id, tensor.op
                if op_type == "Identity" or op_type in HANDS_ON_HANDLES or REFERENCE_WRITER.fullmatch(op_type):
                    across = [source for _, source in self._op_inputs(tensor)]
            if not across:
                return None
            tensor = across[0]
        return None

    def _order(self, context: Context | None, op: str | int) -> tuple[int, ...]:
        """Returns a sort key: it puts the ops that use resources into the order of the program."""
        if context is None:
            return (self._executions[op]["event_index"],)
        node = self._node(Tensor(context, op, 0)) or {}
        names = ((context.graph_id, name) for name in (op, node.get("made_for")))
        position = next((self._ops[name]["op_index"] for name in names if name in self._ops), 0)
        caller = self._caller(context)
        if caller is None:
            execution = self._executions.get(self._execution_of(context))
            return (execution["event_index"] if execution is not None else self._step_start(context.step_id), position)
        return (*self._order(caller[0], caller[1]["op_name"]), context.iteration or 0, position)

    def _is_placed(self, context: Context) -> bool:
        """Returns whether the entry of each loop around a context is known."""
        caller = self._caller(context)
        return caller is None or (not self._is_lost(caller) and self._is_placed(caller[0]))

    def _step_start(self, step_id: int | None) -> int:
        """Returns the smallest `event_index` of a step without a recorded execution."""
        sites = self._sites[step_id].values() if step_id in self._sites else ()
        return min((self._seen[context][0] for site in sites for context in site), default=-1)

    def _content(self, handle: Any, context: Context | None, op: str | int) -> list[Tensor]:
        """Returns the tensors that determine the content of a resource when an op took it."""
        if isinstance(handle, tuple):
            before = [write[1:] for write in self._session_writes_before(handle, context, op)]
        else:
            order = self._order(context, op)
            before = [write[1:] for write in self._writes.get(handle, ()) if write[0] < order]
        found: list[Tensor] = []
        for op_type, values in reversed(before):
            found += values
            if op_type in _REPLACING:
                return found
        return found if handle is None or isinstance(handle, tuple) else [*found, Tensor(None, handle, None)]

    def _content_by_reference(self, reference: Tensor, context: Context, op: str | int) -> list[Tensor]:
        """Returns the output of the last op that wrote to a variable through its reference."""
        before = self._session_writes_before(self._handle(reference), context, op)
        return [before[-1][0]] if before else []

    def _session_place(self, context: Context, op: str | int) -> tuple[int | None, str, tuple[int, ...]]:
        """Returns the position of an op in a session's run: (execution, op of the session's graph, order in a call)."""
        index, order = self._execution_of(context), self._order(context, op)
        while (caller := self._caller(context)) is not None:
            context, op = caller[0], caller[1]["op_name"]
        return index, str(op), order[2:]

    def _session_writes_before(self, handle: Any, context: Context, op: str | int) -> list[Any]:
        """Returns the writes to a variable of a session before an op, in order: (output, op type, values)."""
        index, outer, inner = self._session_place(context, op)
        session = self._executions[index]["op_type"]
        start, needed = self._executions[index]["event_index"], self._mode.before(session, outer)
        found = []
        for (other, name, within), output, op_type, values in self._session_writes.get(handle, ()):
            event_index = self._executions[other]["event_index"]
            places = self._mode.before(self._executions[other]["op_type"], None)
            is_before = name in needed or (name == outer and within < inner) if other == index else event_index < start
            if is_before and name in places:
                found.append(((event_index, places[name], within), (output, op_type, values)))
        return [write for _, write in sorted(found, key=lambda each: each[0])]

    @functools.cached_property
    def _session_writes(self) -> dict[Any, list[Any]]:
        """The writes to each variable of a session: (position, output of the op, op type, values)."""
        found: dict[Any, list[Any]] = defaultdict(list)
        for context in self._seen:
            if self._session(context) is None:
                continue
            for row in (row for row in self._ops.values() if row["graph_id"] == context.graph_id):
                name, op_type = row["op_name"], row["op_type"]
                by_reference = REFERENCE_WRITER.fullmatch(op_type) is not None
                if not (by_reference or _WRITER.fullmatch(op_type)) or not self._has_run(context, name):
                    continue
                part = self._mode.parts(context.graph_id).get(name)
                if (part is not None) != bool(context.frame_id) and context.call_site == "":
                    continue
                inputs = [source for _, source in self._op_inputs(Tensor(context, name, 0))]
                places = (
                    [0] if by_reference else [i for i, source in enumerate(inputs) if self._dtype(source) == "resource"]
                )
                values = [source for i, source in enumerate(inputs) if i not in places]
                if part is not None or not self._is_placed(context):
                    op_type, values = "", [_UNKNOWN]
                for handle in {self._handle(inputs[place]) for place in places}:
                    if isinstance(handle, tuple):
                        place = self._session_place(context, name)
                        found[handle].append((place, Tensor(context, name, 0), op_type, values))
        return found

    @functools.cached_property
    def _writes(self) -> dict[int | None, list[tuple[tuple[int, ...], str, list[Tensor]]]]:
        """The writes to each resource in the order of the program: (order, op type, values)."""
        found: dict[int | None, list[tuple[tuple[int, ...], str, list[Tensor]]]] = defaultdict(list)
        for index, execution in self._executions.items():
            if _WRITER.fullmatch(execution["op_type"]):
                inputs = [source for _, source in self._execution_inputs(index)]
                places = [0] if execution["op_type"] != "MakeIterator" else [1]
                self._note(found, self._order(None, index), execution["op_type"], inputs, places)
        writers = _grouped((row for row in self._ops.values() if _WRITER.fullmatch(row["op_type"])), "graph_id")
        for context in self._seen:
            for row in writers.get(context.graph_id, ()) if self._session(context) is None else ():
                inputs = [source for _, source in self._op_inputs(Tensor(context, row["op_name"], 0))]
                places = [i for i, source in enumerate(inputs) if self._dtype(source) == "resource"]
                order = self._order(context, row["op_name"])
                if self._is_placed(context):
                    self._note(found, order, row["op_type"], inputs, places)
                else:
                    handles = [inputs[i] for i in places]
                    self._note(found, order, "", [*handles, _UNKNOWN], list(range(len(handles))))
        for context in self._silent_branches(set(writers)):
            for row in writers.get(context.graph_id, ()):
                inputs = self._edge_inputs(context, row["op_name"])
                places = [i for i, source in enumerate(inputs) if self._dtype(source) == "resource"]
                handles = [inputs[i] for i in places]
                order = self._order(context, row["op_name"])
                self._note(found, order, "", [*handles, _UNKNOWN], list(range(len(handles))))
        for writes in found.values():
            writes.sort(key=lambda write: write[0])
        return found

    def _silent_branches(self, writing: set[int]) -> Iterator[Context]:
        """Yields the contexts of branches without rows that may have run, and of graphs that these branches call."""
        of_graph: dict[int, list[list[Row]]] = defaultdict(list)
        for (graph_id, _), calls in self._calls.items():
            if calls and any(self._calls_any(call, writing, frozenset()) for call in calls):
                of_graph[graph_id].append(calls)

        def inside(context: Context, call: Row) -> Iterator[Context]:
            start = f"{context.call_site}/" if context.call_site else ""
            site = start + call["op_name"] + _suffix(call)
            callee = context._replace(call_site=site, graph_id=call["callee_graph_id"])
            yield callee
            for calls in of_graph[callee.graph_id] if site.count("/") < _MAX_PATH else ():
                for inner in calls:
                    yield from inside(callee, inner)

        for context in self._seen:
            for calls in of_graph[context.graph_id]:
                if calls[0]["attribute"] not in _BRANCHES or not self._has_run(context, calls[0]["op_name"]):
                    continue
                callees = ((each, other) for each in calls for other in self._callees(context, each))
                if any(self._caller(other) == (context, each) for each, other in callees):
                    continue
                for call in calls:
                    if self._calls_any(call, writing, frozenset()) and not self._leaves_rows(context, call):
                        yield from inside(context, call)

    def _calls_any(self, call: Row, graph_ids: set[int], around: frozenset[int]) -> bool:
        """Returns whether a call leads to one of the given graphs."""
        graph_id = call["callee_graph_id"]
        if graph_id in graph_ids or graph_id is None or graph_id in around:
            return graph_id in graph_ids
        inner = (each for (other, _), calls in self._calls.items() if other == graph_id for each in calls)
        return any(self._calls_any(each, graph_ids, around | {graph_id}) for each in inner)

    def _note(self, found: Any, order: tuple[int, ...], op_type: str, inputs: list[Tensor], handles: list[int]) -> None:
        values = [source for i, source in enumerate(inputs) if i not in handles]
        for handle in {self._handle(inputs[place]) for place in handles if place < len(inputs)}:
            found[handle].append((order, op_type, values))


def _entries_of(frames: list[Any], entries: list[Any]) -> dict[Any, Any]:
    """Returns the entry of each frame of a loop. `frames` and `entries` are in the order of their start."""
    in_order = dict(zip(frames, entries, strict=True)) if len(entries) == len(frames) else {}
    if None in frames or any(frame_id is None for frame_id, _ in entries):
        return in_order
    if in_order and len({_name_of(frame, entry) for frame, entry in in_order.items()}) == 1:
        return in_order
    if not frames:
        return {}
    names = set.intersection(*({_name_of(frame, entry) for entry in entries} for frame in frames))
    if len(names) != 1:
        return in_order
    (name,) = names
    return {frame: entry for frame in frames for entry in entries if _name_of(frame, entry) == name}


def _name_of(frame_id: int, entry: tuple[int, int]) -> int:
    """Returns the hash of the loop's name for a frame and its entry, by inverting two calls of Hash64Combine."""
    name = frame_id % 2**64
    for first in (part % 2**64 for part in entry):
        name = ((name ^ first) - 0x9E3779B97F4A7800 - (first << 10) - (first >> 4)) % 2**64
    return name


def _iterations_of(frames: list[Any], site: str, outer_site: str) -> dict[Any, Any]:
    """Returns the iteration of an outermost loop that entered each frame; an empty dict if any is unknown."""
    name, outer_name = (_hash_of(re.sub(r"/(cond|body)(/_\d+)?$", "", text)) for text in (site, outer_site))
    outer_frame = _combine(0, _combine(0, outer_name))
    iteration_of = {_combine(outer_frame, _combine(i, name)): i for i in range(1024)}
    entries = {frame: (None, iteration_of.get(frame % 2**64)) for frame in frames}
    return entries if all(iteration is not None for _, iteration in entries.values()) else {}


def _combine(a: int, b: int) -> int:
    return a ^ ((b + 0x9E3779B97F4A7800 + (a << 10) + (a >> 4)) % 2**64)


def _hash_of(text: str) -> int:
    """Returns MurmurHash64A of a text with the seed 0xDECAFCAFFE."""
    data, factor = text.encode(), 0xC6A4A7935BD1E995
    hashed = 0xDECAFCAFFE ^ (len(data) * factor % 2**64)
    for start in range(0, len(data), 8):
        word = int.from_bytes(data[start : start + 8], "little")
        if start + 8 <= len(data):
            word = word * factor % 2**64
            word = (word ^ (word >> 47)) * factor % 2**64
        hashed = (hashed ^ word) * factor % 2**64
    hashed = (hashed ^ (hashed >> 47)) * factor % 2**64
    return hashed ^ (hashed >> 47)


def _is_computing(node: Row) -> bool:
    """Returns whether a node of an optimized graph is not at a border."""
    return node["op_name"] is not None or node["op_type"] not in _BORDER_NODES


def _key_of(row: Row, columns: tuple[str, ...]) -> Any:
    return row[columns[0]] if len(columns) == 1 else tuple(row[column] for column in columns)


def _grouped(rows: Iterable[Row], *columns: str) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        found[_key_of(row, columns)].append(row)
    return found


def _suffix(call: Row) -> str:
    """Returns the part of a call site after the name of the calling op."""
    suffixes = {"then_branch": "/then", "else_branch": "/else", "cond": "/cond", "body": "/body"}
    return f"/branch{call['branch_index']}" if call["attribute"] == "branches" else suffixes.get(call["attribute"], "")


def _tail(call: Row, number: str) -> str:
    """Returns a pattern for the text that a call adds to a call site. `number` may follow the op's name."""
    return rf"{re.escape(call['op_name'])}{number}{_suffix(call)}(?:/_\d+)?"
