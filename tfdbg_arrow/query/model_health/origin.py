"""The origin of the first bad value of a run, the rows on the way to its effect, and the tensor that grew before."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice

from tfdbg_arrow.query.asked_runs import asked_runs
from tfdbg_arrow.query.bad_tensor import BadTensorReader
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.explanation import Growth, read_reasons
from tfdbg_arrow.query.model_health.cells import Labels, RowKey, read_keys
from tfdbg_arrow.query.nonfinite_search import first_nonfinite
from tfdbg_arrow.query.nonfinite_tensor import NonFinite
from tfdbg_arrow.query.recorded import EFFECTS, KINDS, TensorEvent

_MAX_BATCHES = 4
"""The search starts from at most this many batches of harmful tensors."""
_MAX_FOLLOWED = 2000
"""The maximum number of bad tensors that the search follows back from the harmful tensors."""


@dataclass(frozen=True)
class Origin:
    """The first bad tensor that did harm.

    Attributes:
        tensor: The tensor.
        path: The rows on the way from the tensor to its effect, without repetitions. The first is the tensor's own row.
        growth: The tensor that had grown before; None if no tensor had grown, or if magnitudes were not recorded.
    """

    tensor: NonFinite
    path: tuple[RowKey, ...]
    growth: Growth | None


def choose_run(logdir: Engine, run_id: str | None) -> tuple[str | None, NonFinite | None]:
    """Returns a run, chosen as in `layer_health`, and its first bad tensor that did harm. Either can be None.

    Raises:
        QueryError: There is no such run.
    """
    run_ids = asked_runs(logdir, run_id).run_ids
    bad_tensor = first_nonfinite(logdir, run_id=run_id)
    if bad_tensor is not None and not bad_tensor.is_expected:
        return bad_tensor.run_id, bad_tensor
    return (run_ids[-1] if run_ids else None), None


def read_origin(logdir: Engine, bad_tensor: NonFinite, labels: Labels, rows: Collection[RowKey]) -> Origin:
    """Returns the way of the first bad tensor through the rows of a map, and the growth before it."""
    way = _way(logdir, bad_tensor)
    key_of = read_keys(logdir, labels, way)
    path = dict.fromkeys(key_of[event] for event in way if event in key_of)
    ran, written = key_of.get(way[0]), _row_as_written(bad_tensor)
    if written is not None and written in rows and ran is not None and ran.kind == written.kind:
        path = dict.fromkeys((written, *(key for key in path if key != ran)))
    reasons = read_reasons(logdir, bad_tensor)
    return Origin(tensor=bad_tensor, path=tuple(path), growth=reasons.growth)


def _row_as_written(bad_tensor: NonFinite) -> RowKey | None:
    """Returns the row of the line that the answer names, if TensorFlow ran an op of another line instead."""
    source = bad_tensor.source
    if bad_tensor.ran_as is None or source is None or bad_tensor.forward is not None:
        return None
    return RowKey("line", f"{source.file_path}:{source.lineno}", is_gradient=False)


def _way(logdir: Engine, bad_tensor: NonFinite) -> list[int]:
    """Returns the shortest way from a bad tensor to a tensor that did the harm, as indexes of rows of tensor_health.

    The search goes back from the first tensors that did the harm, over at most _MAX_FOLLOWED tensors. If the search
    does not reach the bad tensor, the way continues from the earliest tensor that the search reached. This happens if a
    forward op leaves a bad value out and the value comes back in a gradient.
    """
    if bad_tensor.effect not in EFFECTS[:-1]:
        return [bad_tensor.event_index]
    reader = BadTensorReader(logdir, run_id=bad_tensor.run_id, kinds=KINDS)
    with reader.flow.lock:
        used_by: dict[int, int | None] = {}
        roots: list[TensorEvent] = []
        for batch in islice(reader.sinks.batches(bad_tensor.effect), _MAX_BATCHES):
            unvisited = deque(batch)
            used_by.update((row.event_index, used_by.get(row.event_index)) for row in batch)
            seen: set[int] = set()
            while unvisited and len(used_by) < _MAX_FOLLOWED and bad_tensor.event_index not in used_by:
                row = unvisited.popleft()
                if row.event_index in seen:
                    continue
                seen.add(row.event_index)
                sources = reader.flow.bad_sources_of(row)
                for source in sources:
                    if source.event_index not in used_by:
                        used_by[source.event_index] = row.event_index
                        unvisited.append(source)
                if not sources:
                    roots.append(row)
            if bad_tensor.event_index in used_by or roots:
                break
        if bad_tensor.event_index in used_by:
            start: int | None = bad_tensor.event_index
        else:
            start = min(roots, key=reader.origins.order).event_index if roots else None
    way = [bad_tensor.event_index]
    while start is not None:
        way.append(start)
        start = used_by[start]
    return list(dict.fromkeys(way))
