"""The first divergence, described with both sides."""

from __future__ import annotations

import numpy as np

from tfdbg_arrow.query.diff.answer import DiffInput, DiffTensor, Divergence, WorstElement
from tfdbg_arrow.query.diff.comparing import HARD
from tfdbg_arrow.query.diff.describing import Describer, is_random
from tfdbg_arrow.query.diff.elements import element_distance, read_element_pair
from tfdbg_arrow.query.diff.ops import GraphPair
from tfdbg_arrow.query.diff.roots import Found, Pair
from tfdbg_arrow.query.events import TensorEvent
from tfdbg_arrow.query.logdir import Logdir


def describe_divergence(
    found: Found,
    describers: tuple[Describer, Describer],
    sides: tuple[tuple[Logdir, str], tuple[Logdir, str]],
    graph_pairs: list[GraphPair],
) -> Divergence:
    """Returns the description of the first divergence.

    Args:
        found: The divergence.
        describers: Of A and of B.
        sides: The logdir and the run id of each.
        graph_pairs: The aligned graphs.
    """
    pair, event_a = found.pair, found.event
    event_b = describers[1].event(pair.event_b)
    a, b = describers[0].tensor(event_a), describers[1].tensor(event_b)
    assert pair.kind is not None
    is_measured = pair.difference is not None and pair.difference < HARD
    return Divergence(
        kind=pair.kind,
        excess=_number(pair.excess),
        difference=pair.difference if is_measured else None,
        tolerance=pair.slack + pair.rtol * (pair.scale or 0.0) if is_measured else None,
        worst=_worst(sides, a, b),
        a=a,
        b=b,
        inputs=tuple(_input(source, of_source, describers) for source, of_source in found.sources),
        is_proven=found.is_proven,
        notes=tuple(_notes(found, event_b, describers, graph_pairs)),
    )


def _number(excess: float) -> float | None:
    return excess if excess < HARD else None


def _input(source: TensorEvent, pair: Pair | None, describers: tuple[Describer, Describer]) -> DiffInput:
    b = None if pair is None else describers[1].tensor(describers[1].event(pair.event_b))
    excess = None if pair is None or pair.kind is None else _number(pair.excess)
    return DiffInput(describers[0].tensor(source), b, excess)


def _worst(sides: tuple[tuple[Logdir, str], tuple[Logdir, str]], a: DiffTensor, b: DiffTensor) -> WorstElement | None:
    if a.dtype is None or b.dtype is None or a.shape is None or a.shape != b.shape or not a.size:
        return None
    elements = read_element_pair(sides, a.event_index, b.event_index, (a.dtype, b.dtype))
    if elements is None or len(elements[0]) != len(elements[1]) or len(elements[0]) != a.size:
        return None
    place = int(element_distance(*elements).argmax())
    index = tuple(int(number) for number in np.unravel_index(place, a.shape))
    return WorstElement(index, elements[0][place].item(), elements[1][place].item())


def _notes(
    found: Found, event_b: TensorEvent, describers: tuple[Describer, Describer], graph_pairs: list[GraphPair]
) -> list[str]:
    event = found.event
    notes = []
    if event.op_type is None:
        notes.append("It came from outside into both programs: they were given other data.")
    elif is_random(event.op_type):
        notes.append(
            f"{event.op_type} draws random numbers: the runs have other seeds, or other states of a generator."
        )
    else:
        random_op = describers[0].random_op_after(event)
        if random_op is not None and not found.sources:
            notes.append(f"It is the seed of a {random_op}: the runs start from other random numbers.")
        elif event.op_type == "Const" and not found.sources:
            notes.append("It is a constant: the programs themselves differ here.")
        elif event.op_type in ("ReadVariableOp", "VariableV2") and not found.sources:
            notes.append("It reads a variable that was last written where nothing was recorded.")
    if event.dtype != event_b.dtype and found.pair.kind != "dtype":
        notes.append(f"A computes it in {event.dtype}, B in {event_b.dtype}.")
    pair = next(
        (p for p in graph_pairs if (p.graph_a, p.graph_b) == (event.graph_id, event_b.graph_id)),
        None,
    )
    extra = None if pair is None or event.op_name is None else pair.extra.get(event.op_name)
    if pair is not None and extra is not None:
        side, name = extra
        index = "ab".index(side)
        graph_id = (pair.graph_a, pair.graph_b)[index]
        op = describers[index].flow.graphs.op(graph_id, name)
        frame = describers[index].op_source(graph_id, name)
        where = "" if frame is None else f", made at {frame.file_path}:{frame.lineno}"
        op_type = "" if op is None else f" ({op.op_type})"
        notes.append(f"Among its inputs only {side.upper()} has {name}{op_type}{where}.")
    return notes
