"""Compares a recording of Debugger V2 with ours. Our recording must have everything that Debugger V2 has."""

from __future__ import annotations

import re
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .recording import Execution, Frame, Graph, GraphOp, Recording, Stack

_PROGRAM_FILES = re.compile(r"/tests/(parity/programs|writer/programs|writer/features/\w+)\.py$")
_LIBRARY_FILES = re.compile(
    "^("
    + "|".join(re.escape(sysconfig.get_path(name) + "/") for name in ("stdlib", "platstdlib"))
    + ")|/site-packages/"
)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference between Debugger V2's recording and ours.

    Attributes:
        kind: The kind of fact: `graph`, `outer_graph`, `op`, `op_type`, `op_name`, `op_num_outputs`, `op_inputs`,
            `op_stack`, `execution`, `execution_graph`, `execution_stack`, `execution_value`, `tensor_ids`, `trace`,
            `trace_count`, `trace_value`, `source_file`.
        program: The program of the corpus. None if no stack names it.
        subject: The type of the op or function, the name of the graph, or the path of the file.
        theirs: Debugger V2's value. None if Debugger V2 has no value.
        ours: Our value. None if we have no value.
        elsewhere: Our value under the same name in another graph of the program or of an imported function, if we have
            no value in the graph that Debugger V2 names.
        stack: Debugger V2's stack of an op.
        has_node: Whether our tables say that TensorFlow ran a node for our op.
    """

    kind: str
    program: str | None
    subject: str
    theirs: Any
    ours: Any
    elsewhere: Any = None
    stack: Stack = ()
    has_node: bool = True

    def __str__(self) -> str:
        return f"{self.kind} {self.subject} in {self.program}: {_short(self.theirs)} against {_short(self.ours)}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result for one mode.

    Attributes:
        mode: The tensor debug mode.
        differences: All differences.
        equal: Number of Debugger V2's facts that we have with equal values, by kind.
        only_ours: Number of our facts that Debugger V2 does not have, by kind.
    """

    mode: str
    differences: list[Difference] = field(default_factory=list)
    equal: Counter[str] = field(default_factory=Counter)
    only_ours: Counter[str] = field(default_factory=Counter)


def compare(theirs: Recording, ours: Recording) -> Comparison:
    """Compares two recordings of the same programs in the same mode."""
    assert theirs.mode == ours.mode
    return _Comparer(theirs, ours).run()


def user_frames(stack: Stack) -> Stack:
    """Returns the user's frames from the program's own frame on, without frames of libraries and of the test runner."""
    return tuple(frame for frame in _from_program(stack) if not _LIBRARY_FILES.search(frame[0]))


def library_frames(stack: Stack) -> frozenset[Frame]:
    """Returns the distinct library frames below the program's own frame, without frames that call a debugger."""
    return frozenset(
        (path, line, func)
        for path, line, func in _from_program(stack)
        if _LIBRARY_FILES.search(path)
        and not any(path.endswith(suffix) and func in functions for suffix, functions in _DEBUGGER_FRAMES.items())
    )


_DEBUGGER_FRAMES = {
    "/tensorflow/python/debug/lib/dumping_callback.py": ("_process_stack_frames", "callback", "_dump_eager_tensors"),
    "/tensorflow/python/framework/op_callbacks.py": ("invoke_op_callbacks",),
    "/tensorflow/python/eager/context.py": ("call_function",),
    "/tensorflow/python/eager/execute.py": ("execute_with_callbacks",),
    "/tensorflow/python/eager/graph_only_ops.py": ("graph_placeholder",),
    "/tensorflow/python/framework/op_def_library.py": ("_apply_op_helper",),
    "/tensorflow/python/framework/ops.py": ("_create_graph_constant",),
    "/tensorflow/python/framework/tensor.py": ("_graph_placeholder",),
}
"""Frames that Debugger V2 leaves at the end of each stack: its own frames, and TensorFlow's calls to Debugger V2.

The functions of the last four entries create an op of a graph and then call Debugger V2. Our stack is from the
creation, some lines earlier.
"""


def _from_program(stack: Stack) -> Stack:
    start = next((i for i, frame in enumerate(stack) if _PROGRAM_FILES.search(frame[0])), len(stack))
    return stack[start:]


class _Comparer:
    def __init__(self, theirs: Recording, ours: Recording) -> None:
        self._theirs = theirs
        self._ours = ours
        self._result = Comparison(mode=theirs.mode)
        self._our_graph: dict[str, str] = {}
        self._our_op: dict[tuple[str, str], GraphOp] = {}
        """Our op for each graph and op name of Debugger V2."""
        self._programs: dict[str, str | None] = {}
        self._our_programs: dict[str, str | None] = {}
        self._their_ops, self._our_ops = _ops_by_graph(theirs), _ops_by_graph(ours)

    def run(self) -> Comparison:
        self._match_graphs()
        self._compare_ops()
        self._compare_executions()
        self._compare_traces()
        self._compare_source_files()
        return self._result

    def _differ(self, kind: str, program: str | None, subject: str, theirs: Any, ours: Any, **more: Any) -> None:
        self._result.differences.append(
            Difference(kind=kind, program=program, subject=subject, theirs=theirs, ours=ours, **more)
        )

    def _check(self, kind: str, program: str | None, subject: str, theirs: Any, ours: Any) -> None:
        if theirs == ours:
            self._result.equal[kind] += 1
        else:
            self._differ(kind, program, subject, theirs, ours)

    # Graphs.

    def _match_graphs(self) -> None:
        """Pairs graphs with the same program and name in their order. Names may repeat, and IDs differ."""
        waiting: dict[Any, list[Graph]] = defaultdict(list)
        unplaced: list[Graph] = []
        outer_of: dict[str, str | None] = {}
        for graph in self._ours.graphs:
            program = self._our_programs[graph.graph_id] = _program_of(self._our_ops[graph.graph_id])
            outer_of[graph.graph_id] = graph.outer_graph_id
            if graph.name == _PLAIN_GRAPH and not self._our_ops[graph.graph_id]:
                self._result.only_ours["graph"] += 1  # an unnamed graph without ops could be paired with any graph
                continue
            waiting[program, _plain_name(graph.name)].append(graph)
        for graph in self._theirs.graphs:
            ops = self._their_ops[graph.graph_id]
            program = self._programs[graph.graph_id] = _program_of(ops)
            same = waiting[program, _plain_name(graph.name)]
            if same:
                self._our_graph[graph.graph_id] = same.pop(0).graph_id
                self._result.equal["graph"] += 1
            elif not ops and graph.name is not None:
                unplaced.append(graph)
            else:
                types = tuple(op.op_type for op in ops)
                self._differ("graph", program, str(graph.name), types, None)
        for graph in unplaced:
            # Of graphs without ops that were traced in other threads or imported, Debugger V2 has only the name.
            names = [key for key, graphs in waiting.items() if graphs and key[1] == _plain_name(graph.name)]
            if names:
                self._our_graph[graph.graph_id] = waiting[names[0]].pop(0).graph_id
                self._result.equal["graph"] += 1
            else:
                self._differ("graph", None, str(graph.name), (), None)
        for graph in self._theirs.graphs:
            if graph.graph_id in self._our_graph:
                ours = outer_of[self._our_graph[graph.graph_id]]
                theirs = self._our_graph.get(graph.outer_graph_id or "")
                self._check("outer_graph", self._programs[graph.graph_id], str(graph.name), theirs, ours)
        self._result.only_ours["graph"] += sum(map(len, waiting.values()))

    # Ops.

    def _compare_ops(self) -> None:
        is_by_name = self._theirs.mode != "NO_TENSOR"
        for graph_id, our_graph_id in self._our_graph.items():
            program = self._programs[graph_id]
            pairs, rest = _pair_ops(self._their_ops[graph_id], self._our_ops[our_graph_id], is_by_name=is_by_name)
            self._result.only_ours["op"] += rest
            names = {their_op.op_name: our_op.op_name for their_op, our_op in pairs if our_op is not None}
            for theirs, ours in pairs:
                kind = theirs.op_type
                if ours is None:
                    elsewhere = [op.op_name for op in self._elsewhere(program, theirs)]
                    self._differ("op", program, kind, theirs.op_name, None, elsewhere=elsewhere, stack=theirs.stack)
                    continue
                self._our_op[graph_id, theirs.op_name] = ours
                self._result.equal["op"] += 1
                self._check("op_type", program, kind, theirs.op_type, ours.op_type)
                self._check("op_name", program, kind, theirs.op_name, ours.op_name)
                self._check("op_num_outputs", program, kind, theirs.num_outputs, ours.num_outputs)
                inputs = tuple(_renamed(name, names) for name in theirs.input_names)
                self._check("op_inputs", program, kind, inputs, ours.input_names)
                self._compare_stacks("op_stack", program, kind, theirs.stack, ours.stack)

    def _elsewhere(self, program: str | None, op: GraphOp) -> list[GraphOp]:
        """Returns our ops of the same name and type in graphs of the program, or in graphs that no program traced."""
        return [
            other
            for other in self._ours.ops
            if other.op_name == op.op_name
            and other.op_type == op.op_type
            and self._our_programs.get(other.graph_id) in (program, None)
        ]

    # Executions.

    def _compare_executions(self) -> None:
        left = list(self._ours.executions)
        position = 0
        id_of: dict[int, int] = {}
        used: dict[int, int] = {}
        for execution in self._theirs.executions:
            program = _program_of([execution])
            name = _plain_name(execution.op_type)
            found = position
            while found < len(left) and (_plain_name(left[found].op_type) != name or _is_skipped(left[found])):
                found += 1
            if found == len(left):
                self._differ("execution", program, name, name, None)
                continue
            skipped = left[position:found]
            self._result.only_ours["execution"] += sum(_is_skipped(item) for item in skipped)
            for item in skipped:
                if not _is_skipped(item):
                    self._differ("execution", program, item.op_type, None, item.op_type)
            position = found + 1
            self._compare_execution(execution, left[found], program, id_of, used)
        self._result.only_ours["execution"] += len(left) - position
        self._result.only_ours["execution of another thread"] += self._ours.num_elsewhere

    def _compare_execution(
        self, theirs: Execution, ours: Execution, program: str | None, id_of: dict[int, int], used: dict[int, int]
    ) -> None:
        name = _plain_name(theirs.op_type)
        their_num, our_num = (
            (len(theirs.input_ids), len(theirs.output_ids)),
            (len(ours.input_ids), len(ours.output_ids)),
        )
        self._check("execution", program, name, (name, *their_num), (_plain_name(ours.op_type), *our_num))
        if theirs.graph_id is None:
            self._result.only_ours["execution_graph"] += ours.graph_id is not None
        else:
            self._check("execution_graph", program, name, self._our_graph.get(theirs.graph_id), ours.graph_id)
        for their_id, our_id in zip(
            theirs.input_ids + theirs.output_ids, ours.input_ids + ours.output_ids, strict=False
        ):
            known = id_of.setdefault(their_id, our_id), used.setdefault(our_id, their_id)
            self._check("tensor_ids", program, name, (known[0], their_id), (our_id, known[1]))
        self._compare_stacks("execution_stack", program, name, theirs.stack, ours.stack)
        self._compare_execution_values(theirs, ours, program, name)

    def _compare_execution_values(self, theirs: Execution, ours: Execution, program: str | None, name: str) -> None:
        """Compares the values in order. Debugger V2 stores no slots, and only the outputs that numpy can hold."""
        waiting = list(theirs.values)
        for dtype, value in ours.values:
            their_value = waiting.pop(0) if dtype not in ("resource", "variant") and waiting else None
            if their_value is None:
                self._result.only_ours["execution_value"] += value is not None
            else:
                self._check("execution_value", program, f"{name} {dtype}", their_value, value)
        for value in waiting:
            if value is not None:
                self._differ("execution_value", program, name, value, None)

    # Traces.

    def _compare_traces(self) -> None:
        """Compares the computations of each graph tensor: their number and values.

        Loops may overlap, so order is ignored.
        """
        their_values: dict[tuple[str, str, int], Counter[Any]] = defaultdict(Counter)
        our_values: dict[tuple[str, str, int], Counter[Any]] = defaultdict(Counter)
        types: dict[tuple[str, str, int], str] = {}
        for trace in self._ours.traces:
            our_values[trace.graph_id, trace.op_name, trace.output_slot][trace.device_name, trace.value] += 1
        for trace in self._theirs.traces:
            key = trace.graph_id, trace.op_name, trace.output_slot
            types[key] = trace.op_type
            their_values[key][trace.device_name, trace.value] += 1
        for key, values in their_values.items():
            graph_id, op_name, slot = key
            program = self._programs[graph_id]
            op = self._our_op.get((graph_id, op_name))
            found = our_values.pop((op.graph_id, op.op_name, slot), None) if op is not None else None
            subject = f"{types[key]}:{slot}"
            if found is None:
                theirs = next(op for op in self._their_ops[graph_id] if op.op_name == op_name)
                others = self._elsewhere(program, theirs)
                elsewhere = [our_values.get((other.graph_id, other.op_name, slot)) for other in others]
                has_node = op is None or op.has_node
                self._differ("trace", program, subject, values, None, elsewhere=elsewhere, has_node=has_node)
                continue
            self._check("trace_count", program, subject, values.total(), found.total())
            self._check("trace_value", program, subject, values, found)
        self._result.only_ours["trace"] += sum(values.total() for values in our_values.values())

    # Stacks and source files.

    def _compare_stacks(self, kind: str, program: str | None, subject: str, theirs: Stack, ours: Stack) -> None:
        # Our stacks have the qualified name of a function. Debugger V2's stacks have only the last part of this name.
        plain = tuple((path, line, func.rpartition(".")[2]) for path, line, func in user_frames(ours))
        self._check(kind, program, subject, user_frames(theirs), plain)
        ours_in_libraries = {(path, line, func.rpartition(".")[2]) for path, line, func in library_frames(ours)}
        missing = sorted((path, line, func or "<lambda>") for path, line, func in library_frames(theirs))
        missing = [frame for frame in missing if frame not in ours_in_libraries]
        self._check("library_frames", program, subject, tuple(missing), ())

    def _compare_source_files(self) -> None:
        for path, text in self._theirs.source_files.items():
            self._check("source_file", None, path, text, self._ours.source_files.get(path))
        self._result.only_ours["source_file"] += len(self._ours.source_files.keys() - self._theirs.source_files.keys())


_SKIPPED = frozenset(
    (
        *("Enter", "Exit", "Identity", "If", "LoopCond", "Merge", "NextIteration", "StatelessIf", "Switch", "While"),
        *("StatefulPartitionedCall", "RemoteCall", "DestroyResourceOp"),
    )
)
"""Source: OP_CALLBACK_SKIP_OPS in tensorflow/python/debug/lib/op_callbacks_common.py."""


def _is_skipped(execution: Execution) -> bool:
    """Returns whether Debugger V2 does not record an execution.

    Debugger V2 skips some op types, and runs of sessions.
    """
    return execution.op_type in _SKIPPED or execution.op_type.startswith("Session.run")


_PLAIN_GRAPH = "tf.Graph"
"""Our name for a graph that does not belong to a function. Debugger V2 has no name for such a graph."""


def _plain_name(name: str | None) -> str | None:
    """Returns a name without the numbers that make names unique in a process.

    Returns None for the graph of a session.
    """
    return None if name in (None, _PLAIN_GRAPH) else re.sub(r"_\d+", "", name)


def _ops_by_graph(recording: Recording) -> dict[str, list[GraphOp]]:
    found: dict[str, list[GraphOp]] = defaultdict(list)
    for op in recording.ops:
        found[op.graph_id].append(op)
    return found


def _program_of(items: Sequence[GraphOp | Execution]) -> str | None:
    """Returns the program of the outermost function of the corpus in the first stack that has such a function."""
    for item in items:
        for file_path, _, func in item.stack:
            if _PROGRAM_FILES.search(file_path) and func not in ("<module>", "program", "feature"):
                return func.partition(".")[0]
    return None


def _pair_ops(
    theirs: Sequence[GraphOp], ours: Sequence[GraphOp], *, is_by_name: bool
) -> tuple[list[tuple[GraphOp, GraphOp | None]], int]:
    """Pairs the ops of a graph, and counts our unpaired ops.

    First, ops with equal names are paired. Then, ops with names that are equal except for numbers are paired in order
    of creation. Without `is_by_name`, only the second rule applies to constants, because Debugger V2's own constants
    take names that constants of the program would have. Remaining placeholders are paired in order if Debugger V2's
    placeholders are named after its own ops.
    """
    by_name = {op.op_name: op for op in ours}
    found = {}
    for op in theirs:
        if op.op_name in by_name and (is_by_name or op.op_type != "Const"):
            found[op.op_name] = by_name.pop(op.op_name)
    waiting: dict[tuple[str, str], list[GraphOp]] = defaultdict(list)
    for op in by_name.values():
        waiting[_plain_op(op)].append(op)
    for op in theirs:
        if op.op_name not in found and waiting[_plain_op(op)]:
            found[op.op_name] = waiting[_plain_op(op)].pop(0)
    arguments = [op for ops in waiting.values() for op in ops if op.op_type == "Placeholder"]
    for op in theirs:
        if op.op_name not in found and op.op_type == "Placeholder" and OWN_NAMES.search(op.op_name) and arguments:
            found[op.op_name] = arguments.pop(0)
            waiting[_plain_op(found[op.op_name])].remove(found[op.op_name])
    return [(op, found.get(op.op_name)) for op in theirs], sum(map(len, waiting.values()))


OWN_NAMES = re.compile(r"(^|/)(DebugIdentityV2|DebugNumericSummaryV2|tfdbg_identity)(_\d+)?(/|:|$)")
"""Matches the names of Debugger V2's own ops, and names that TensorFlow derives from them."""


def _plain_op(op: GraphOp) -> tuple[str, str]:
    name = re.sub(r"_\d+\b", "", re.sub("Stateful|Stateless", "", op.op_name))
    return op.op_type.removeprefix("Stateless"), re.sub(r"\d+", "#", name)


def _renamed(tensor_name: str, names: dict[str, str]) -> str:
    op_name, _, slot = tensor_name.rpartition(":")
    return f"{names.get(op_name, op_name)}:{slot}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 300 else text[:297] + "..."
