"""Aligns the executions of two runs by stack, op and order, like a text diff.

`align` aligns any two sequences of tokens. `align` begins with common ends and unique tokens. `StackKeys` turns stacks
into tokens.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.query.run_diff.workspace import UP_TO_STEP, Side, Sides

Tokens = npt.NDArray[np.int64]
_Gap = tuple[int, int, int, int]
"""The start and end of a range in A, and the start and end of a range in B."""

_RUNTIME_NAME = re.compile(r"^__(inference|forward|backward)_|(_\d+)+$")
_NO_STEP = -(2**62)
"""Stands for an unknown step in arrays, which have no NULL. A program does not mark such a step."""
_MAX_EDITS = 400
"""Maximum number of edits of a search. The time grows with the square of this number."""
_MAX_STEPS = 4_000_000
"""The maximum number of comparisons in a search for the fewest edits. Longer searches stop and pair by occurrence."""


def align(a: Sequence[Tokens], b: Sequence[Tokens]) -> list[tuple[int, int, int]]:
    """Returns (place in A, place in B, level) of each aligned pair. Both places increase.

    Args:
        a: The tokens of A on each level, the strictest level first. Each level aligns the tokens that the previous
            levels left.
        b: The tokens of B on each level.
    """
    aligned: list[tuple[int, int, int]] = []
    gaps: list[_Gap] = [(0, len(a[0]), 0, len(b[0]))]
    for level, (tokens_a, tokens_b) in enumerate(zip(a, b, strict=True)):
        remaining_gaps: list[_Gap] = []
        for gap in gaps:
            pairs = sorted(_align_gap(tokens_a, tokens_b, gap))
            aligned += ((i, j, level) for i, j in pairs)
            remaining_gaps += _between(pairs, gap)
        gaps = remaining_gaps
    return sorted(aligned)


def align_all(a: Sequence[Tokens], b: Sequence[Tokens]) -> list[tuple[int, int, int]]:
    """Returns the pairs of `align`, followed by pairs of other tokens that are equal on the first level, in any order.

    The n-th occurrence in A is paired with the n-th occurrence in B.
    """
    pairs = align(a, b)
    rest_a, rest_b = (
        np.setdiff1d(np.arange(len(tokens[0])), [pair[side] for pair in pairs]) for side, tokens in enumerate((a, b))
    )
    rest = _by_occurrence(a[0][rest_a], b[0][rest_b])
    return [*pairs, *((int(rest_a[i]), int(rest_b[j]), 0) for i, j in rest)]


def _between(pairs: Sequence[tuple[int, int]], gap: _Gap) -> Iterable[_Gap]:
    i, end_i, j, end_j = gap
    for next_i, next_j in (*pairs, (end_i, end_j)):
        if i < next_i and j < next_j:
            yield i, next_i, j, next_j
        i, j = next_i + 1, next_j + 1


def _align_gap(a: Tokens, b: Tokens, gap: _Gap) -> list[tuple[int, int]]:
    aligned: list[tuple[int, int]] = []
    gaps = [gap]
    while gaps:
        i, end_i, j, end_j = gaps.pop()
        length = min(end_i - i, end_j - j)
        head = _common(a[i : i + length], b[j : j + length])
        aligned += zip(range(i, i + head), range(j, j + head), strict=True)
        i, j, length = i + head, j + head, length - head
        tail = _common(a[end_i - length : end_i][::-1], b[end_j - length : end_j][::-1])
        aligned += zip(range(end_i - tail, end_i), range(end_j - tail, end_j), strict=True)
        end_i, end_j = end_i - tail, end_j - tail
        if i == end_i or j == end_j:
            continue
        part_a, part_b = a[i:end_i], b[j:end_j]
        anchors = _rising(_unique(part_a, part_b))
        if anchors:
            pairs = [(i + x, j + y) for x, y in anchors]
            aligned += pairs
            gaps += _between(pairs, (i, end_i, j, end_j))
            continue
        edited = _fewest_edits(part_a.tolist(), part_b.tolist())
        if edited is None:
            edited = _rising(_by_occurrence(part_a, part_b))
            pairs = [(i + x, j + y) for x, y in edited]
            gaps += _between(pairs, (i, end_i, j, end_j)) if pairs else ()
        aligned += ((i + x, j + y) for x, y in edited)
    return aligned


def _common(a: Tokens, b: Tokens) -> int:
    """Returns the number of equal tokens at the start of both sequences."""
    differs = a != b
    return int(differs.argmax()) if differs.any() else len(differs)


def _unique(a: Tokens, b: Tokens) -> list[tuple[int, int]]:
    """Returns the places of the tokens that occur exactly once in A and once in B, ordered by their place in A."""
    once = []
    for tokens in (a, b):
        values, places, counts = np.unique(tokens, return_index=True, return_counts=True)
        once.append((values[counts == 1], places[counts == 1]))
    _, in_a, in_b = np.intersect1d(once[0][0], once[1][0], assume_unique=True, return_indices=True)
    return sorted(zip(once[0][1][in_a].tolist(), once[1][1][in_b].tolist(), strict=True))


def _by_occurrence(a: Tokens, b: Tokens) -> list[tuple[int, int]]:
    """Returns the places of equal tokens, paired by occurrence and ordered by their place in A."""
    indexes_b: dict[int, list[int]] = {}
    for index_b, token in enumerate(b.tolist()):
        indexes_b.setdefault(token, []).append(index_b)
    unpaired_b = {token: iter(indexes) for token, indexes in indexes_b.items()}
    pairs = []
    for index_a, token in enumerate(a.tolist()):
        next_b = next(unpaired_b.get(token, iter(())), None)
        if next_b is not None:
            pairs.append((index_a, next_b))
    return pairs


def _rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns a longest selection of pairs whose second numbers rise. The first numbers of the pairs already rise."""
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for index, (_, y) in enumerate(pairs):
        length = bisect_left(ends, y)
        before.append(last[length - 1] if length else -1)
        if length == len(ends):
            ends.append(y)
            last.append(index)
        else:
            ends[length], last[length] = y, index
    chosen = []
    index = last[-1] if last else -1
    while index >= 0:
        chosen.append(pairs[index])
        index = before[index]
    return chosen[::-1]


def _fewest_edits(a: list[int], b: list[int]) -> list[tuple[int, int]] | None:
    """Returns the pairs of equal tokens in a shortest edit, or None if the search takes too long.

    The function is the greedy algorithm from Myers, An O(ND) Difference Algorithm and Its Variations (1986).
    """
    n, m = len(a), len(b)
    reach = {1: 0}
    history: list[dict[int, int]] = []
    steps = 0
    for edits in range(min(n + m, _MAX_EDITS) + 1):
        history.append(dict(reach))
        for k in range(-edits, edits + 1, 2):
            x = reach[k + 1] if k == -edits or (k != edits and reach[k - 1] < reach[k + 1]) else reach[k - 1] + 1
            y = x - k
            start = x
            while x < n and y < m and a[x] == b[y]:
                x, y = x + 1, y + 1
            steps += x - start + 1
            reach[k] = x
            if x >= n and y >= m:
                return _walk_back(history, n, m)
        if steps > _MAX_STEPS:
            return None
    return None


def _walk_back(history: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs = []
    for edits in range(len(history) - 1, -1, -1):
        reach, k = history[edits], x - y
        down = k == -edits or (k != edits and reach[k - 1] < reach[k + 1])
        before_k = k + 1 if down else k - 1
        before_x = reach[before_k] if edits else 0
        before_y = before_x - before_k if edits else 0
        start_x, start_y = (before_x, before_y + 1) if down else (before_x + 1, before_y)
        if not edits:
            start_x = start_y = 0
        while x > start_x and y > start_y:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = before_x, before_y
    return pairs[::-1]


class StackKeys:
    """Assigns numbers to the stacks of two runs. Equal stacks get equal numbers.

    A frame is identified by its function and the text of its line. The line number of a frame does not count, because
    an edit above the line changes the number.
    """

    def __init__(self, sides: Sides) -> None:
        numbers: dict[object, int] = {}
        self._numbers: list[dict[tuple[str, int | None], int]] = []
        for side in sides:
            numbers_of_side: dict[tuple[str, int | None], int] = {}
            rows = side.logdir.rows(
                "SELECT stack_trace_id, list(frame ORDER BY depth DESC), "
                "list(frame ORDER BY depth DESC) FILTER (WHERE owner = 'user') FROM (SELECT *, "
                "[func, coalesce(code, CAST(lineno AS VARCHAR))] AS frame FROM stack WHERE run_id = ?) GROUP BY 1",
                [side.run_id],
            )
            for stack_trace_id, frames, user_frames in rows:
                of_user = user_frames or []
                for part, part_frames in (("whole", frames), ("user", of_user), ("line", of_user[-1:])):
                    key = (part, *map(tuple, part_frames))
                    numbers_of_side[part, stack_trace_id] = numbers.setdefault(key, len(numbers))
            self._numbers.append(numbers_of_side)

    def number(self, part: str, side: int, stack_trace_id: int | None) -> int:
        """Returns the number of a `whole` stack, its `user` part, or the user's innermost `line`; -1 if not known."""
        return self._numbers[side].get((part, stack_trace_id), -1)


@dataclass(frozen=True)
class Executions:
    """The executions of one run, ordered by thread and time.

    Attributes:
        indexes: The execution_index of each execution.
        graph_ids: The called graph of each execution; -1 for no graph.
        signatures: The executed op, or the function name without its number, as a number that both runs share.
        stacks: The user's stack as a number that both runs share.
        lines: The user's innermost frame as a number that both runs share.
        steps: The training step of each execution.
    """

    indexes: npt.NDArray[np.int64]
    graph_ids: npt.NDArray[np.int64]
    signatures: Tokens
    stacks: Tokens
    lines: Tokens
    steps: Tokens


@dataclass(frozen=True)
class AlignedExecutions:
    """The aligned executions of two runs.

    Attributes:
        a: The execution_index of each aligned execution in A, in the order of A.
        b: The execution_index of each counterpart in B.
        graph_a: The called graph in A; -1 for no graph.
        graph_b: The called graph in B; -1 for no graph.
        num_a: Number of all executions of A.
        num_b: Number of all executions of B.
    """

    a: npt.NDArray[np.int64]
    b: npt.NDArray[np.int64]
    graph_a: npt.NDArray[np.int64]
    graph_b: npt.NDArray[np.int64]
    num_a: int
    num_b: int


def align_executions(sides: Sides, stacks: StackKeys, *, last_step: int | None = None) -> AlignedExecutions:
    """Aligns the executions of two runs.

    Args:
        sides: The two runs.
        stacks: The stacks of both runs.
        last_step: Aligns only executions up to this training step, or without a step; None means all.
    """
    numbers: dict[object, int] = {}
    a, b = (_read(side, index, stacks, numbers, last_step) for index, side in enumerate(sides))
    # If both runs were marked, only executions of the same training step are aligned.
    common = np.intersect1d(a.steps[a.steps != _NO_STEP], b.steps[b.steps != _NO_STEP])
    levels = []
    for side in (a, b):
        steps = side.steps if len(common) else np.zeros_like(side.steps)
        keys = ((side.signatures, side.stacks), (side.signatures, side.lines), (side.signatures,))
        levels.append([np.stack([steps, *columns], axis=1) for columns in keys])
    tokens_a, tokens_b = zip(*(_shared(x, y) for x, y in zip(*levels, strict=True)), strict=True)
    index_pairs = np.array([(i, j) for i, j, _ in align_all(tokens_a, tokens_b)], np.int64).reshape(-1, 2)
    index_pairs = index_pairs[np.argsort(a.indexes[index_pairs[:, 0]], kind="stable")]
    of_a, of_b = index_pairs[:, 0], index_pairs[:, 1]
    indexes, graph_ids = (a.indexes[of_a], b.indexes[of_b]), (a.graph_ids[of_a], b.graph_ids[of_b])
    return AlignedExecutions(*indexes, *graph_ids, len(a.indexes), len(b.indexes))


def _shared(a: Tokens, b: Tokens) -> tuple[Tokens, Tokens]:
    """Returns a number for each row of numbers. Equal rows of A and B get equal numbers."""
    ids = np.zeros(len(a) + len(b), np.int64)
    both = np.concatenate([a, b])
    for column in range(both.shape[1]):
        _, numbers = np.unique(both[:, column], return_inverse=True)
        _, ids = np.unique(ids * (int(numbers.max(initial=0)) + 1) + numbers, return_inverse=True)
    return ids[: len(a)].astype(np.int64), ids[len(a) :].astype(np.int64)


def _read(run: Side, side: int, stacks: StackKeys, numbers: dict[object, int], last_step: int | None) -> Executions:
    table = run.logdir.arrow(
        "SELECT execution_index, coalesce(graph_id, -1) AS graph_id, op_type, coalesce(stack_trace_id, -1) AS stack, "
        f"coalesce(step, {_NO_STEP}) AS step, coalesce(thread_id, 0) AS thread_id, num_inputs, num_outputs "
        f"FROM execution WHERE run_id = ? AND ({UP_TO_STEP} OR ? IS NULL) ORDER BY execution_index",
        [run.run_id, last_step, last_step],
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
                _signature(names[code], None if graph < 0 else run.graphs.names.get(graph), (num_inputs, num_outputs)),
                len(numbers),
            )
            for code, graph, num_inputs, num_outputs in kinds.tolist()
        ],
        np.int64,
    )
    ids, of_stack = np.unique(columns["stack"].to_numpy(), return_inverse=True)
    users = np.array([stacks.number("user", side, stack) for stack in ids.tolist()], np.int64)
    lines = np.array([stacks.number("line", side, stack) for stack in ids.tolist()], np.int64)
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
        return kind, graph_name  # without the arity, because the number of captured tensors may differ
    if op_type.startswith("__"):
        return "unrecorded", _RUNTIME_NAME.sub("", op_type)
    return "op", op_type, arity
