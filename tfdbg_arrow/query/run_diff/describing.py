"""Describes the first divergence of two runs, with the tensors of both runs."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.query.run_diff.aligned_graphs import PRECISION_OPS, GraphPair
from tfdbg_arrow.query.run_diff.answer import DiffInput, DiffTensor, Divergence, WorstElement
from tfdbg_arrow.query.run_diff.comparing import HARD, element_distance, read_element_pair
from tfdbg_arrow.query.run_diff.roots import Pair, Root
from tfdbg_arrow.query.run_diff.workspace import SIDES, Side, Sides, Workspace
from tfdbg_arrow.query.stacks import Frame
from tfdbg_arrow.schema.op_traits import RANDOM, RANDOM_KEYS, Trait, types_with

_READS = types_with(Trait.READS | Trait.HOLDS_REFERENCE)
_SEARCHED = 200
"""To find a random op that uses a tensor, at most this many later ops are searched."""


def describe_divergence(
    root: Root,
    sides: Sides,
    graph_pairs: list[GraphPair],
    work: Workspace,
) -> Divergence:
    """Returns the description of the first divergence."""
    pair, event_a = root.pair, root.event
    event_b = sides[1].event(pair.event_b)
    a, b = sides[0].tensor(event_a), sides[1].tensor(event_b)
    assert pair.kind is not None
    alone = _only_one_has((event_a, event_b), sides, graph_pairs, work)
    worst, scaling = _elements(sides, a, b)
    is_measured = pair.difference is not None and pair.difference < HARD
    return Divergence(
        kind=pair.kind,
        excess=_number(pair.excess),
        difference=pair.difference if is_measured else None,
        tolerance=pair.slack + pair.rtol * (pair.scale or 0.0) if is_measured else None,
        worst=worst,
        a=a,
        b=b,
        inputs=tuple(_input(source, of_source, sides) for source, of_source in root.sources),
        is_proven=root.is_proven and alone is None,
        notes=tuple(note for note in (*_notes(root, event_b, sides), alone, scaling) if note is not None),
    )


def _number(excess: float) -> float | None:
    return excess if excess < HARD else None


def _input(source: TensorEvent, pair: Pair | None, sides: Sides) -> DiffInput:
    b = None if pair is None else sides[1].tensor(sides[1].event(pair.event_b))
    excess = None if pair is None or pair.kind is None else _number(pair.excess)
    return DiffInput(sides[0].tensor(source), b, excess)


def _elements(sides: Sides, a: DiffTensor, b: DiffTensor) -> tuple[WorstElement | None, str | None]:
    """Returns the elements that are furthest apart, and a sentence if one tensor is a multiple of the other."""
    if a.dtype is None or b.dtype is None or a.shape is None or a.shape != b.shape or not a.size:
        return None, None
    elements = read_element_pair(sides, a.event_index, b.event_index, (a.dtype, b.dtype))
    if elements is None or len(elements[0]) != len(elements[1]) or len(elements[0]) != a.size:
        return None, None
    flat_index = int(element_distance(*elements).argmax())
    index = tuple(int(number) for number in np.unravel_index(flat_index, a.shape))
    worst = WorstElement(index, elements[0][flat_index].item(), elements[1][flat_index].item())
    if not all(np.issubdtype(side.dtype, np.inexact) for side in elements):
        return worst, None
    return worst, _scaling(elements[0].astype(np.complex128), elements[1].astype(np.complex128))


def _scaling(a: npt.NDArray[np.complex128], b: npt.NDArray[np.complex128]) -> str | None:
    """Returns a sentence if one tensor is a power of two times the other, as with a scaled loss; otherwise None."""
    if not (np.isfinite(a).all() and np.isfinite(b).all() and np.abs(a).max() > 0):
        return None
    flat_index = int(np.abs(a).argmax())
    factor = float((b[flat_index] / a[flat_index]).real)
    if not (factor > 0 and factor != 1 and math.log2(factor).is_integer()):
        return None
    if not np.allclose(a * factor, b, rtol=2.0**-8, atol=2.0**-8 * float(np.abs(b).max())):
        return None
    text = f"{factor:,.0f} times that of A" if factor > 1 else f"that of A divided by {1 / factor:,.0f}"
    return f"The tensor of B is {text} in every element, as if only one of the runs scaled its loss."


def _notes(root: Root, event_b: TensorEvent, sides: Sides) -> list[str]:
    event = root.event
    notes = []
    if event.op_type is None:
        notes.append("It came from outside both programs: they received different data.")
    elif _is_random(event.op_type):
        notes.append(
            f"{event.op_type} draws different numbers in {event_b.dtype} than in {event.dtype} from the same seed."
            if event.dtype != event_b.dtype and root.is_proven
            else f"{event.op_type} draws random numbers: the runs have different seeds or different generator states."
        )
    else:
        random_op = _random_op_after(sides[0], event)
        if random_op is not None and not root.sources:
            notes.append(f"It is the seed of a {random_op}: the runs use different random numbers.")
        elif event.op_type == "Const" and not root.sources:
            notes.append("It is a constant: the programs themselves differ here.")
        elif event.op_type in _READS and not root.sources:
            notes.append("It reads a variable whose last write was not recorded.")
    if event.dtype != event_b.dtype and root.pair.kind != "dtype":
        notes.append(f"A computes it in {event.dtype}, B in {event_b.dtype}.")
    return notes


def _random_op_after(side: Side, event: TensorEvent) -> str | None:
    """Returns the type of a random op that takes a tensor as its seed, directly or through other ops, or None."""
    if event.graph_id is None or event.op_name is None:
        return None
    graph = side.graphs.graph(event.graph_id)
    seen = {event.op_name}
    unvisited = [event.op_name]
    while unvisited and len(seen) < _SEARCHED:
        name = unvisited.pop(0)
        for user in graph.users.get(name, ()):
            op = graph.ops.get(user)
            if op is None or user in seen:
                continue
            if _is_random(op.op_type) and op.op_type not in RANDOM_KEYS:
                if any(op.inputs[index][0] == name for index in _seed_inputs(op.op_type) if index < len(op.inputs)):
                    return op.op_type
                continue  # the numbers that it draws are random without this tensor
            seen.add(user)
            unvisited.append(user)
    return None


def _seed_inputs(op_type: str) -> tuple[int, ...]:
    """Returns the indexes of the inputs of a random op that hold a seed, or a key and a counter made from a seed."""
    if not op_type.startswith("Stateless"):
        return ()  # the seed is an attribute, or a state
    if op_type.endswith(("Shuffle", "V2", "V3")) and op_type != "StatelessRandomGammaV2":
        return (1, 2)
    return (2,) if op_type == "StatelessMultinomial" else (1,)


def _is_random(op_type: str | None) -> bool:
    """Returns whether an op draws random numbers, from a seed or a state."""
    return op_type is not None and RANDOM.fullmatch(op_type) is not None


def _only_one_has(
    events: tuple[TensorEvent, TensorEvent],
    sides: Sides,
    graph_pairs: list[GraphPair],
    work: Workspace,
) -> str | None:
    """Returns a sentence about an op that only one run has between the divergence and its inputs, or None."""
    key = (events[0].graph_id, events[1].graph_id)
    pair = next((pair for pair in graph_pairs if (pair.graph_a, pair.graph_b) == key), None)
    extra = None if pair is None or events[0].op_name is None else pair.extra.get(events[0].op_name)
    if pair is not None and extra is not None:
        side, name = extra
        index = SIDES.index(side)
        graph_id = (pair.graph_a, pair.graph_b)[index]
        op = sides[index].graphs.op(graph_id, name)
        op_type = "" if op is None else f" ({op.op_type})"
        return _alone(side, name + op_type, sides[index].op_source(graph_id, name))
    for index, side in enumerate(SIDES):
        if events[index].scope != "execution":
            continue
        for source in sides[index].flow.sources_of(events[index]).events:
            is_known = work.rows(f"SELECT 1 FROM pair WHERE event_{side} = ?", [source.event_index])
            if source.op_type is not None and source.op_type not in PRECISION_OPS and not is_known:
                return _alone(side, f"{source.op_type}, run eagerly", sides[index].source(source))
    return None


def _alone(side: str, op: str, frame: Frame | None) -> str:
    where = "" if frame is None else f", created at {frame.place}"
    return f"Among its inputs, only {side.upper()} has {op}{where}."
