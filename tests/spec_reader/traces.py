"""Compares the tensors on the paths of `provenance` and `spread` with the tensors that the reader finds.

A tensor that only crossed a border, or that an op such as Identity passed on, stands for the tensor that an op
computed. Reads of variables are left out. If an op added to a variable, tfdbg_arrow takes the last read before the op
as the old value of the variable. The specification takes the tensors from which this read was made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.spec_reader.flow import CONTAINERS, PASSING, Tensor
from tests.spec_reader.harm import bad_inputs, bad_outputs_of_forward_op, bad_tensors, roots_of
from tests.spec_reader.reader import Run
from tfdbg_arrow.query import open_logdir

_Edges = dict[Tensor, set[Tensor]]


def wrong_traces(run: Run, logdir: Path) -> list[str]:
    """Returns the differences for three bad tensors of a run: the first and the last two."""
    inputs, users = _edges(run)
    bad = bad_tensors(run)
    tensors = {run.health[tensor]["event_index"]: tensor for tensor in bad}
    found = []
    with open_logdir(logdir) as opened:
        for tensor in {*bad[:1], *bad[-2:]}:
            start, index = _computed(run, tensor), run.health[tensor]["event_index"]
            back, forth = _reached(start, inputs), _reached(start, users)
            hops = (hop.event_index for hop in opened.provenance(index).hops)
            found += _differences(run, f"provenance of {index}", _tensors(hops, tensors), back, involved=back)
            hops = (hop.event_index for hop in opened.spread(index).hops)
            found += _differences(run, f"spread of {index}", _tensors(hops, tensors), forth, involved=bad)
    return found


def _tensors(hops: Iterable[int], tensors: dict[int, Tensor]) -> set[Tensor]:
    """Returns the bad tensors among hops."""
    return {tensors[index] for index in hops if index in tensors}


def _differences(
    run: Run, what: str, ours: set[Tensor], theirs: set[Tensor], *, involved: Iterable[Tensor]
) -> Iterator[str]:
    """Yields a difference between two sets, unless tfdbg_arrow may know more than the reader.

    tfdbg_arrow may know inputs that the reader does not know. tfdbg_arrow also knows which element of a list an op
    takes.
    """
    if not all(map(run.is_known, involved)):
        return
    own, expected = _shown(run, ours), _shown(run, theirs)
    has_lists = any((run.op_type(each) or "").startswith(CONTAINERS) for each in theirs)
    if own - expected or (own != expected and not has_lists):
        yield f"{what}: only tfdbg_arrow has {sorted(own - expected)}, only the reader {sorted(expected - own)}"


def _shown(run: Run, tensors: Iterable[Tensor]) -> set[int]:
    computed = (_computed(run, tensor) for tensor in tensors)
    return {run.health[each]["event_index"] for each in computed if run.op_type(each) != "ReadVariableOp"}


def _edges(run: Run) -> tuple[_Edges, _Edges]:
    """Returns the bad inputs of each bad tensor, and the bad tensors that were computed from each bad tensor."""
    inputs: _Edges = defaultdict(set)
    users: _Edges = defaultdict(set)
    bad = bad_tensors(run)
    for tensor in {_computed(run, tensor) for tensor in bad}:
        inputs[tensor] = {_computed(run, source) for source in bad_inputs(run, tensor)}
        for source in inputs[tensor]:
            users[source].add(tensor)
    for root in roots_of(run, bad):
        for forward in bad_outputs_of_forward_op(run, root):
            users[_computed(run, forward)].add(root)
    return inputs, users


def _computed(run: Run, tensor: Tensor) -> Tensor:
    """Returns the tensor that an op computed, given a tensor that only passed this tensor on."""
    while run.is_at_border(tensor) or run.op_type(tensor) in PASSING:
        sources = run.nearest_rows(tensor)
        if len(sources) != 1:
            break
        (tensor,) = sources
    return tensor


def _reached(start: Tensor, edges: _Edges) -> set[Tensor]:
    found = {start}
    waiting = [start]
    while waiting:
        new = edges.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found
