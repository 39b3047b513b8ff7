"""Aligns the executions (eager ops and calls) of two runs, in the order in which each thread made them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.query.diff.sequences import Tokens, align, match_rest
from tfdbg_arrow.query.diff.stack_keys import StackKeys
from tfdbg_arrow.query.diff.workspace import UP_TO_STEP
from tfdbg_arrow.query.flow.graphs import GraphReader
from tfdbg_arrow.query.logdir import Logdir

_RUNTIME_NAME = re.compile(r"^__(inference|forward|backward)_|(_\d+)+$")
_NO_STEP = -(2**62)


@dataclass(frozen=True)
class Executions:
    """The executions of one run, ordered by thread and time.

    Attributes:
        indexes: execution_index of each.
        graph_ids: The called graph of each; -1 for none.
        signatures: The executed op, or the function without its number, as a number that both runs share.
        stacks: The user's stack as a number that both runs share.
        lines: The user's innermost frame as a number that both runs share.
        steps: The training step of each.
    """

    indexes: npt.NDArray[np.int64]
    graph_ids: npt.NDArray[np.int64]
    signatures: Tokens
    stacks: Tokens
    lines: Tokens
    steps: Tokens


@dataclass(frozen=True)
class AlignedExecutions:
    """The aligned executions.

    Attributes:
        a: execution_index in A, in the order of A.
        b: execution_index of each counterpart in B.
        graph_a: The called graph in A; -1 for none.
        graph_b: The called graph in B.
        num_a: Number of all executions of A.
        num_b: Number of all executions of B.
    """

    a: npt.NDArray[np.int64]
    b: npt.NDArray[np.int64]
    graph_a: npt.NDArray[np.int64]
    graph_b: npt.NDArray[np.int64]
    num_a: int
    num_b: int


def align_executions(
    sides: tuple[tuple[Logdir, str], ...],
    graphs: tuple[GraphReader, GraphReader],
    stacks: StackKeys,
    *,
    last_step: int | None = None,
) -> AlignedExecutions:
    """Aligns the executions of two runs.

    Args:
        sides: The logdir and the run id of each side.
        graphs: The graphs of each side.
        stacks: The stacks of both sides.
        last_step: Only align what ran up to this training step or before any mark; None means all.
    """
    numbers: dict[object, int] = {}
    a, b = (
        _read(logdir, run_id, side, graphs[side], stacks, numbers, last_step)
        for side, (logdir, run_id) in enumerate(sides)
    )
    # If both runs were marked, only executions of the same training step are aligned.
    common = np.intersect1d(a.steps[a.steps != _NO_STEP], b.steps[b.steps != _NO_STEP])
    levels = []
    for side in (a, b):
        steps = side.steps if len(common) else np.zeros_like(side.steps)
        levels.append([_numbered(numbers_of, steps) for numbers_of in _keys(side)])
    tokens_a, tokens_b = zip(*(_shared(x, y) for x, y in zip(*levels, strict=True)), strict=True)
    pairs = align(tokens_a, tokens_b)
    taken_a, taken_b = np.zeros(len(a.indexes), bool), np.zeros(len(b.indexes), bool)
    places = np.array([(i, j) for i, j, _ in pairs], np.int64).reshape(-1, 2)
    taken_a[places[:, 0]] = taken_b[places[:, 1]] = True
    rest = match_rest(tokens_a[0], tokens_b[0], np.flatnonzero(~taken_a), np.flatnonzero(~taken_b))
    places = np.concatenate([places, np.array(rest, np.int64).reshape(-1, 2)])
    places = places[np.argsort(a.indexes[places[:, 0]], kind="stable")]
    of_a, of_b = places[:, 0], places[:, 1]
    return AlignedExecutions(
        a.indexes[of_a],
        b.indexes[of_b],
        a.graph_ids[of_a],
        b.graph_ids[of_b],
        len(a.indexes),
        len(b.indexes),
    )


def _keys(side: Executions) -> tuple[tuple[Tokens, ...], ...]:
    return (side.signatures, side.stacks), (side.signatures, side.lines), (side.signatures,)


def _numbered(columns: tuple[Tokens, ...], steps: Tokens) -> Tokens:
    return np.stack([steps, *columns], axis=1)


def _shared(a: Tokens, b: Tokens) -> tuple[Tokens, Tokens]:
    """Returns rows of numbers as single numbers, which are equal if the rows are equal."""
    ids = np.zeros(len(a) + len(b), np.int64)
    both = np.concatenate([a, b])
    for column in range(both.shape[1]):
        _, numbers = np.unique(both[:, column], return_inverse=True)
        _, ids = np.unique(ids * (int(numbers.max(initial=0)) + 1) + numbers, return_inverse=True)
    return ids[: len(a)].astype(np.int64), ids[len(a) :].astype(np.int64)


def _read(
    logdir: Logdir,
    run_id: str,
    side: int,
    graphs: GraphReader,
    stacks: StackKeys,
    numbers: dict[object, int],
    last_step: int | None,
) -> Executions:
    table = logdir.arrow(
        "SELECT execution_index, coalesce(graph_id, -1) AS graph_id, op_type, coalesce(stack_trace_id, -1) AS stack, "
        f"coalesce(step, {_NO_STEP}) AS step, coalesce(thread_id, 0) AS thread_id, num_inputs, num_outputs "
        f"FROM execution WHERE run_id = ? AND ({UP_TO_STEP} OR ? IS NULL) ORDER BY execution_index",
        [run_id, last_step, last_step],
    )
    columns = {name: table.column(name) for name in table.column_names}
    threads = columns["thread_id"].to_numpy()
    _, first, inverse = np.unique(threads, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(np.argsort(first))[inverse], kind="stable")
    types = columns["op_type"].combine_chunks().dictionary_encode()
    graph_ids = columns["graph_id"].to_numpy()
    codes = types.indices.to_numpy()
    arity = [columns["num_inputs"].to_numpy(), columns["num_outputs"].to_numpy()]
    kinds, of_kind = np.unique(np.stack([codes, graph_ids, *arity], axis=1), axis=0, return_inverse=True)
    names = types.dictionary.to_pylist()
    signatures = np.array(
        [
            numbers.setdefault(
                _signature(names[code], None if graph < 0 else graphs.names.get(graph), (num_inputs, num_outputs)),
                len(numbers),
            )
            for code, graph, num_inputs, num_outputs in kinds.tolist()
        ],
        np.int64,
    )
    ids, of_stack = np.unique(columns["stack"].to_numpy(), return_inverse=True)
    users = np.array([stacks.user(side, stack) for stack in ids.tolist()], np.int64)
    lines = np.array([stacks.line(side, stack) for stack in ids.tolist()], np.int64)
    of_kind, of_stack = of_kind.reshape(-1)[order], of_stack[order]
    return Executions(
        columns["execution_index"].to_numpy()[order],
        graph_ids[order],
        signatures[of_kind],
        users[of_stack],
        lines[of_stack],
        columns["step"].to_numpy()[order],
    )


def _signature(op_type: str, graph_name: str | None, arity: tuple[int, int]) -> tuple[object, ...]:
    if graph_name is not None:
        kind = "backward" if op_type.startswith("__backward_") else "call"
        return kind, graph_name  # the number of captured tensors may differ
    if op_type.startswith("__"):
        return "unrecorded", _RUNTIME_NAME.sub("", op_type)
    return "op", op_type, arity
