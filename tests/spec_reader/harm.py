"""The rules of the specification that rank origins by the harm that they did."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tests.spec_reader.flow import Row, Tensor
from tests.spec_reader.reader import Origin, Run

_WRITER = re.compile(
    r"Assign(Add|Sub)?VariableOp|Resource(Sparse)?Apply\w+|ResourceScatter\w+|ResourceStridedSliceAssign"
)
_CHECKS = frozenset({"IsFinite", "IsInf", "IsNan"})
_SELF_CHECKS = frozenset({"Equal", "NotEqual"})
_READERS = frozenset(
    {"ReadVariableOp", "_ReadVariablesOp", "ResourceGather", "ResourceGatherNd", "Variable", "VariableV2"}
)
_DISCRETE = re.compile(r"bool|q?u?int\d+")
_IGNORES_VALUES = re.compile(r"Rank|Shape|ShapeN|Size|TensorArraySize(V\d)?|Sparse\w+|Ragged(?!Range)\w+")
_NEVER_BAD = re.compile(r"bool|string|q?u?int\d+")


def most_harmful(run: Run) -> tuple[Origin | None, str | None]:
    """Returns the first origin by harm, and its harm: `variable`, `result`, or None if no bad tensor did harm.

    Roles other than `gradient` are not considered.
    """
    for harm, harmed in (*_harmed(run), (None, bad_tensors(run))):
        first_harmed = next((same for _, same in _by_start(run, harmed)), []) if harm else harmed
        roots = {_cause(run, root) if harm else root for root in roots_of(run, first_harmed)}
        if roots:
            first = min(roots, key=functools.partial(_place, run))
            if harm == "variable" and (loss := _first_loss(run, first_harmed)) is not None:
                first, harm = min((first, harm), (loss, "result"), key=lambda candidate: run.position(candidate[0]))
            return run.describe(first, run.origins().get(first, frozenset())), harm
    return None, None


def _first_loss(run: Run, written: list[Tensor]) -> Tensor | None:
    """Returns the first root of a bad loss, or None.

    The first write of bad values must not be earlier than the loss.
    """
    of_loss = {(row["forward_graph_id"], row["forward_op_name"]) for row in run.rows("graph_op")}
    of_loss |= {("execution", row["forward_execution_index"]) for row in run.rows("execution")}
    results = next(tensors for harm, tensors in _harmed(run) if harm == "result")
    (end, _), *_ = _by_start(run, written)
    for start, returned in _by_start(run, results):
        roots = {_cause(run, root) for root in roots_of(run, returned)} if start <= end else set()
        losses = [root for root in roots if run.code(root).get("role") == "loss" or _op_of(run, root) in of_loss]
        if losses:
            return min(losses, key=functools.partial(_place, run))
    return None


def _op_of(run: Run, tensor: Tensor) -> tuple[object, object]:
    """Returns the graph and op, or the execution, of a tensor, in the form of the columns for a forward op."""
    row = run.health[tensor]
    return ("execution", row["execution_index"]) if tensor.context is None else (row["graph_id"], row["op_name"])


def harm_of_roots(run: Run) -> dict[int, str]:
    """Returns the greatest harm of each root that did harm, by event_index."""
    found: dict[int, str] = {}
    for harm, harmed in _harmed(run):
        for root in roots_of(run, harmed):
            found.setdefault(run.health[root]["event_index"], harm)
    return found


def bad_tensors(run: Run) -> list[Tensor]:
    """Returns the bad tensors with a row, in the order of `event_index`."""
    return [tensor for tensor, row in run.health.items() if run.kinds_of_row(row)]


def _harmed(run: Run) -> list[tuple[str, list[Tensor]]]:
    """Returns the kinds of harm, the greatest harm first, each with the bad tensors that did this harm."""
    bad = bad_tensors(run)
    return [("variable", _written(run)), ("result", [*_results(run, bad), *_decided(run), *_cut_off(run, bad)])]


def _by_start(run: Run, tensors: list[Tensor]) -> list[tuple[tuple[int, int], list[Tensor]]]:
    """Returns (start, tensors) for each execution, and for each step outside of executions, in order."""
    by_execution: dict[tuple[str, int | None], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        row = run.health[tensor]
        index = row["execution_index"]
        by_execution["step" if index is None else "execution", row["step_id"] if index is None else index].append(
            tensor
        )
    started = [(row["event_index"], row["execution_index"]) for row in run.rows("execution")]

    def start(same: list[Tensor]) -> tuple[int, int]:
        rows = [run.health[tensor] for tensor in same]
        if rows[0]["execution_index"] is not None:
            return rows[0]["execution_index"], -1
        first = min(row["event_index"] for row in rows)
        return max((index for event_index, index in started if event_index < first), default=-1), first

    return sorted(((start(same), same) for same in by_execution.values()), key=lambda item: item[0])


def _place(run: Run, root: Tensor) -> tuple[Any, ...]:
    """Returns a sort key: it puts roots into the order of the program. Within a call, proven origins come first."""
    position = run.position(root)
    return position[0], root not in run.origins() or not run.is_known(root), position


def bad_inputs(run: Run, tensor: Tensor) -> list[Tensor]:
    """Returns the nearest bad tensors with rows behind the inputs of an op."""
    behind = [*run.nearest_rows(tensor), *run.behind_exponentials(tensor)]
    return [source for source in behind if run.kinds_of_row(run.health[source])]


def roots_of(run: Run, tensors: Iterable[Tensor]) -> set[Tensor]:
    """Returns the bad tensors that created the bad values of the given tensors."""
    found: set[Tensor] = set()
    seen: set[Tensor] = set()
    waiting = list(tensors)
    while waiting:
        tensor = waiting.pop()
        if tensor in seen:
            continue
        seen.add(tensor)
        own = run.kinds_of_row(run.health[tensor])
        sources = bad_inputs(run, tensor)
        if tensor not in run.origins():
            sources = [source for source in sources if run.kinds_of_row(run.health[source]) & own]
        waiting += sources
        if not sources:
            found.add(tensor)
    return found


def _written(run: Run) -> list[Tensor]:
    """Returns the bad tensors that the program computed and wrote to variables."""
    found: list[Tensor] = []
    for value in run.written_values():
        nearest = [value] if value in run.health else run.ancestors(value, is_through_rows=False)
        found += [source for source in nearest if source in run.health and run.kinds_of_row(run.health[source])]
    return [
        tensor
        for tensor in found
        if run.health[tensor]["scope"] != "external"
        and run.op_type(tensor) != "Const"
        and not _is_undone(run, run.health[tensor]["execution_index"])
    ]


def _results(run: Run, bad: list[Tensor]) -> list[Tensor]:
    """Returns the bad tensors that eager code received and did not use in a computation."""
    users: dict[int, list[Row]] = defaultdict(list)
    for row in run.rows("execution_input"):
        users[row["tensor_id"]].append(run.execution(row["execution_index"]))
    found = []
    for tensor in bad:
        row = run.health[tensor]
        if row["scope"] != "execution":
            continue
        execution = run.execution(row["execution_index"])
        is_given = execution["graph_id"] is None or row["output_slot"] < execution["num_outputs"]
        own = users[row["tensor_id"]]
        if execution["graph_id"] is not None and execution["role"] == "gradient" and not own:
            # The tape dropped the gradient, unless it dropped all gradients of the call.
            made = [made for made in run.rows("execution_output") if made["execution_index"] == row["execution_index"]]
            is_given = is_given and not any(users[other["tensor_id"]] for other in made)
        is_end = is_given and not any(_computes(run, row, user) for user in own)
        if is_end or (row["num_nan"] != 0 and any(_decides_eagerly(run, row["tensor_id"], user) for user in own)):
            found.append(tensor)
    return found


def _decides_eagerly(run: Run, tensor_id: int, user: Row) -> bool:
    """Returns whether an eager op makes a decision from a tensor."""
    index = user["execution_index"]
    inputs = [row["tensor_id"] for row in run.rows("execution_input") if row["execution_index"] == index]
    outputs = [row["dtype"] or "" for row in run.rows("execution_output") if row["execution_index"] == index]
    is_check = user["op_type"] in _SELF_CHECKS and inputs == [tensor_id, tensor_id]
    is_op = user["graph_id"] is None and _may_decide(user["op_type"]) and not is_check
    return is_op and any(_DISCRETE.fullmatch(dtype) for dtype in outputs)


def _may_decide(op_type: str) -> bool:
    return op_type not in _CHECKS and not _WRITER.fullmatch(op_type) and not _IGNORES_VALUES.fullmatch(op_type)


def _decided(run: Run) -> list[Tensor]:
    """Returns the NaNs from which ops of graphs made integers or booleans."""
    found = []
    for made, op_type, edges in run.used_outputs(_DISCRETE):
        if _may_decide(op_type) and not (op_type in _SELF_CHECKS and len(set(edges)) == 1):
            nearest = run.ancestors(made, is_through_rows=False)
            found += [source for source in nearest if source in run.health and run.health[source]["num_nan"] != 0]
    return [tensor for tensor in found if run.op_type(tensor) != "Const" and run.kinds_of_row(run.health[tensor])]


def _cut_off(run: Run, bad: list[Tensor]) -> list[Tensor]:
    """Returns the bad tensors that an op would have taken if its call had not raised an error."""
    errors = (row for row in run.rows("execution_error") if row["error_type"] != "OutOfRangeError")
    indexes = (row["execution_index"] for row in errors)
    failed = {index for index in indexes if _next_call(run, index) is None}
    found = []
    for tensor in bad:
        is_in_failed_call = tensor.context is not None and run.health[tensor]["execution_index"] in failed
        if is_in_failed_call and any(user not in run.health for user in run.recorded_users(tensor)):
            found.append(tensor)
    return [tensor for tensor in found if run.op_type(tensor) != "Const"]


def _next_call(run: Run, index: int) -> int | None:
    """Returns the execution that proves that the error of an execution was caught, or None if it was not caught."""
    errors = {row["execution_index"]: row["error_type"] for row in run.rows("execution_error")}
    if errors.get(index) in (None, "OutOfRangeError") or "NonFiniteError" in errors.values():
        return None
    own = _called_from(run, run.execution(index))
    later = (row for row in run.rows("execution") if row["execution_index"] > index)
    again = (row for row in later if row["execution_index"] not in errors and _called_from(run, row) == own)
    return min((row["execution_index"] for row in again), default=None)


def _called_from(run: Run, execution: Row) -> tuple[object, ...]:
    """Returns the function or op that an execution runs, and the program's stack frames at the call."""
    names = {row["graph_id"]: row["graph_name"] for row in run.rows("graph")}
    owned = {row["stack_frame_id"] for row in run.rows("stack_frame") if row["owner"] == "user"}
    stack = [row for row in run.rows("stack_trace") if row["stack_trace_id"] == execution["stack_trace_id"]]
    frames = [row["stack_frame_id"] for row in sorted(stack, key=lambda row: row["depth"])]
    user_frames = [frame for frame in frames if frame in owned]
    return names.get(execution["graph_id"], execution["op_type"]), *(user_frames or [execution["stack_trace_id"], None])


def _is_undone(run: Run, index: int | None) -> bool:
    following = None if index is None else _next_call(run, index)
    if index is None or following is None:
        return False
    reads = [row for row in run.rows("tensor_health") if row["has_inf_or_nan"] and row["op_type"] in _READERS]
    before = {(row["op_type"], row["op_name"]) for row in reads if row["execution_index"] == index}
    between = (
        row for row in reads if row["execution_index"] is not None and index < row["execution_index"] <= following
    )
    return {(row["op_type"], row["op_name"]) for row in between} <= before


def _computes(run: Run, row: Row, user: Row) -> bool:
    """Returns whether an execution computes with a bad tensor instead of only testing it."""
    if user["graph_id"] is not None or _WRITER.fullmatch(user["op_type"]):
        return True
    outputs = (each for each in run.rows("execution_output") if each["execution_index"] == user["execution_index"])
    if any(not _NEVER_BAD.fullmatch(each["dtype"] or "") for each in outputs):
        return True
    return not row["num_nan"] and user["op_type"] not in _CHECKS


def _cause(run: Run, root: Tensor) -> Tensor:
    """Returns the first root of the bad outputs of a gradient's forward op, or the given root if none is bad."""
    behind = bad_outputs_of_forward_op(run, root)
    behind = behind or _after_forward_op(run, root)
    behind = behind or [each for each in run.unlinked(root) if run.kinds_of_row(run.health[each])]
    return min(roots_of(run, behind) - {root}, key=run.position, default=root)


def _after_forward_op(run: Run, root: Tensor) -> list[Tensor]:
    """Returns the roots in a call's forward pass that were computed from the result of the gradient's forward op."""
    own, code = run.health[root], run.code(root)
    if code.get("forward_op_name") is None or own["execution_index"] is None:
        return []
    forward = [
        tensor
        for tensor in bad_tensors(run)
        if run.health[tensor]["scope"] == "graph"
        and run.health[tensor]["execution_index"] == own["execution_index"]
        and run.code(tensor).get("role") != "gradient"
    ]
    place = code["forward_graph_id"], code["forward_op_name"]
    return [
        tensor
        for tensor in roots_of(run, forward)
        if any((run.health[each]["graph_id"], each.op) == place for each in run.ancestors(tensor) if each in run.health)
    ]


def bad_outputs_of_forward_op(run: Run, gradient: Tensor) -> list[Tensor]:
    """Returns the bad tensors of a gradient's forward op, from the op's last run before the gradient."""
    code = run.code(gradient)
    if code.get("forward_op_name") is not None:
        columns, key = ("graph_id", "op_name"), (code["forward_graph_id"], code["forward_op_name"])
    elif code.get("forward_execution_index") is not None:
        columns, key = ("scope", "execution_index"), ("execution", code["forward_execution_index"])
    else:
        return []
    index = run.health[gradient]["execution_index"]
    rows = [
        (tensor, row)
        for tensor, row in run.health.items()
        if tuple(row[column] for column in columns) == key and (row["execution_index"] or 0) <= (index or 0)
    ]
    last = max((row["execution_index"] or 0 for _, row in rows), default=None)
    return [tensor for tensor, row in rows if (row["execution_index"] or 0) == last and run.kinds_of_row(row)]
