"""Compares the elements of paired tensors in batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tfdbg_arrow.query.diff.tolerance import MAX_RTOL, PRECISIONS, UNITS, Tolerance, precision_sql
from tfdbg_arrow.query.diff.workspace import Workspace
from tfdbg_arrow.query.elements import DECODED_DTYPES, Array, decode
from tfdbg_arrow.query.logdir import Logdir

_BATCH_BYTES = 32 * 2**20
_BATCH_PAIRS = 50_000


@dataclass(frozen=True)
class _Batch:
    """Pairs whose values fit into memory together."""

    event_a: npt.NDArray[np.int64]
    event_b: npt.NDArray[np.int64]
    dtypes: list[tuple[str, str]]


def compare_elements(
    work: Workspace, sides: tuple[tuple[Logdir, str], tuple[Logdir, str]], tolerance: Tolerance
) -> None:
    """Creates the table `element_difference` from the table `pair`.

    Its columns: `event_a`, `difference` (the greatest absolute difference; for other than floating dtypes, the number
    of elements that differ), `scale_a` and `scale_b` (largest magnitudes of finite elements), `num_apart` (number of
    elements beyond the tolerance), `num_nonfinite` (number of elements that are infinite or NaN in one run and not the
    same in the other).

    Args:
        work: The workspace in which both runs were staged.
        sides: The logdir and the run id of each side.
        tolerance: The differences that count as rounding.
    """
    names = ("event_a", "difference", "scale_a", "scale_b", "num_apart", "num_nonfinite")
    work.load("element_difference", names, [], (int, float, float, float, int, int))
    if not all(_has_values(logdir, run_id) for logdir, run_id in sides):
        return
    eps = 0.0
    for batch in _batches(work):
        tables = [
            _values(logdir, run_id, events)
            for (logdir, run_id), events in zip(sides, (batch.event_a, batch.event_b), strict=True)
        ]
        found, eps = _differences(batch, tables, eps, tolerance)
        if found is not None:
            work.append_arrow("element_difference", found)


def read_element_pair(
    sides: tuple[tuple[Logdir, str], tuple[Logdir, str]], event_a: int, event_b: int, dtypes: tuple[str, str]
) -> tuple[Array, Array] | None:
    """Returns the elements of one pair as flat arrays, or None if one run did not keep them."""
    found = []
    for (logdir, run_id), event, dtype in zip(sides, (event_a, event_b), dtypes, strict=True):
        table = _values(logdir, run_id, np.array([event], np.int64))
        if not table.num_rows:
            return None
        elements = decode(np.frombuffer(table.column("value")[0].as_py(), np.uint8), dtype)
        if elements is None:
            return None
        found.append(elements)
    return found[0], found[1]


def element_distance(a: Array, b: Array) -> npt.NDArray[np.float64]:
    """Returns the distance of each pair of elements. It is infinite if they differ and are not both finite."""
    if not (np.issubdtype(a.dtype, np.inexact) and np.issubdtype(b.dtype, np.inexact)):
        return np.asarray(a != b, np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    wide = np.complex128 if np.iscomplexobj(a) or np.iscomplexobj(b) else np.float64
    with np.errstate(all="ignore"):
        wide_a, wide_b = np.asarray(a, wide), np.asarray(b, wide)
        distance = np.asarray(np.abs(np.subtract(wide_a, wide_b)), np.float64)
        same = (wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b))
    distance[~finite] = np.where(same[~finite], 0.0, np.inf)
    return distance


def _has_values(logdir: Logdir, run_id: str) -> bool:
    return bool(logdir.rows("SELECT 1 FROM tensor_value WHERE run_id = ? LIMIT 1", [run_id]))


def _batches(work: Workspace) -> Iterator[_Batch]:
    """Yields the pairs of equal shape in the order of A, so that few parts of each table are read twice."""
    events = (
        "SELECT event_a, event_b, dtype_a, dtype_b FROM element_batch WHERE batch = ? AND more = ? ORDER BY event_a"
    )
    names = ", ".join(f"'{name}'" for name in sorted(DECODED_DTYPES))
    # Only one join per statement, so that the planner cannot join by equal shapes.
    work.execute(
        "CREATE OR REPLACE TABLE element_pair AS SELECT p.event_a, p.event_b, h.dtype, h.shape, h.size "
        "FROM pair AS p JOIN health_a AS h ON h.event_index = p.event_a "
        f"WHERE h.size > 0 AND h.dtype IN ({names})"
    )
    work.execute(
        "CREATE OR REPLACE TABLE element_batch AS SELECT event_a, event_b, dtype_a, dtype_b, "
        f"CAST(floor(sum(num_bytes) OVER (ORDER BY event_a) / {_BATCH_BYTES}) AS BIGINT) AS batch, "
        f"CAST(floor(row_number() OVER (ORDER BY event_a) / {_BATCH_PAIRS}) AS BIGINT) AS more FROM ("
        "SELECT p.event_a, p.event_b, p.dtype AS dtype_a, h.dtype AS dtype_b, 8 * p.size AS num_bytes "
        "FROM element_pair AS p JOIN health_b AS h ON h.event_index = p.event_b "
        f"WHERE p.shape = h.shape AND h.dtype IN ({names}) "
        f"AND {precision_sql('kind', 'p.dtype')} = {precision_sql('kind', 'h.dtype')}) AS e"
    )
    for batch, more in work.rows("SELECT DISTINCT batch, more FROM element_batch ORDER BY ALL"):
        table = work.arrow(
            events,
            [batch, more],
        )
        yield _Batch(
            table.column("event_a").to_numpy(),
            table.column("event_b").to_numpy(),
            list(zip(table.column("dtype_a").to_pylist(), table.column("dtype_b").to_pylist(), strict=True)),
        )


def _values(logdir: Logdir, run_id: str, events: npt.NDArray[np.int64]) -> pa.Table:
    """Returns event_index and value of the tensors whose values were kept."""
    return logdir.arrow(
        "SELECT event_index, value FROM tensor_value WHERE run_id = $run_id AND event_index >= $first "
        "AND event_index <= $last AND event_index IN (SELECT unnest($events))",
        {"run_id": run_id, "first": int(events.min()), "last": int(events.max()), "events": events.tolist()},
    )


def _differences(
    batch: _Batch, tables: list[pa.Table], eps: float, tolerance: Tolerance
) -> tuple[pa.Table | None, float]:
    """Returns the rows of a batch, and the coarsest eps of the dtypes with a difference so far."""
    places = [_places(table, events) for table, events in zip(tables, (batch.event_a, batch.event_b), strict=True)]
    is_kept = (places[0] >= 0) & (places[1] >= 0)
    groups: dict[tuple[str, str], list[int]] = {}
    for index in np.flatnonzero(is_kept).tolist():
        groups.setdefault(batch.dtypes[index], []).append(index)
    chosen, measured = [], []
    for dtypes, indexes in groups.items():
        members = np.array(indexes, np.int64)
        a, sizes_a = _joined(tables[0], places[0][members], dtypes[0])
        b, sizes_b = _joined(tables[1], places[1][members], dtypes[1])
        if not np.array_equal(sizes_a, sizes_b):
            continue  # values that do not match their shapes, as in a damaged part
        group = _Group(dtypes, a, b, sizes_a)
        chosen.append((members, group))
        if dtypes[0] != dtypes[1] or group.has_difference:
            eps = max(eps, PRECISIONS[dtypes[0]].eps, PRECISIONS[dtypes[1]].eps)
    for members, group in chosen:
        rtol = min(UNITS * eps, MAX_RTOL) if tolerance.rtol is None else tolerance.rtol
        measured.append(group.rows(batch.event_a[members], rtol))
    return (pa.concat_tables(measured) if measured else None), eps


class _Group:
    """The elements of several pairs of the same dtypes, concatenated."""

    def __init__(self, dtypes: tuple[str, str], a: Array, b: Array, sizes: npt.NDArray[np.int64]) -> None:
        self._is_exact = PRECISIONS[dtypes[0]].kind not in ("float", "complex")
        self._a, self._b = a, b
        self._sizes = sizes
        self._starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        self._distance = element_distance(a, b)
        self.has_difference = bool(self._distance.any())

    def rows(self, events: npt.NDArray[np.int64], rtol: float) -> pa.Table:
        starts = self._starts
        if self._is_exact:
            num_apart = np.add.reduceat(self._distance, starts)
            zeros = np.zeros(len(starts))
            return _table(events, num_apart, zeros, zeros, num_apart, zeros)
        is_nonfinite = np.isinf(self._distance)
        distance = np.where(is_nonfinite, 0.0, self._distance)
        scales = [np.maximum.reduceat(_magnitudes(side), starts) for side in (self._a, self._b)]
        limits = np.repeat(rtol * np.maximum(*scales), self._sizes)
        return _table(
            events,
            np.maximum.reduceat(distance, starts),
            scales[0],
            scales[1],
            np.add.reduceat((distance > limits).astype(np.int64), starts),
            np.add.reduceat(is_nonfinite.astype(np.int64), starts),
        )


def _magnitudes(elements: Array) -> npt.NDArray[np.float64]:
    with np.errstate(all="ignore"):
        magnitudes = np.abs(elements).astype(np.float64)
    magnitudes[~np.isfinite(magnitudes)] = 0.0
    return magnitudes


def _table(events: npt.NDArray[np.int64], *columns: npt.NDArray[np.generic]) -> pa.Table:
    names = ("difference", "scale_a", "scale_b", "num_apart", "num_nonfinite")
    kinds = (np.float64, np.float64, np.float64, np.int64, np.int64)
    cells = {name: column.astype(kind) for name, column, kind in zip(names, columns, kinds, strict=True)}
    return pa.table({"event_a": events, **cells})


def _places(table: pa.Table, events: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the row of each event in a table, or -1 if it has none."""
    found = table.column("event_index").to_numpy()
    if not len(found):
        return np.full(len(events), -1, np.int64)
    order = np.argsort(found)
    places = np.minimum(np.searchsorted(found, events, sorter=order), len(found) - 1)
    return np.where(found[order[places]] == events, order[places], -1)


def _joined(table: pa.Table, places: npt.NDArray[np.int64], dtype: str) -> tuple[Array, npt.NDArray[np.int64]]:
    """Returns the concatenated elements of rows of a table, and the number of elements of each row."""
    values = table.column("value").combine_chunks().cast(pa.large_binary()).take(pa.array(places))
    offsets = np.frombuffer(values.buffers()[1], np.int64)[: len(values) + 1]
    data = values.buffers()[2]
    raw = np.frombuffer(data if data is not None else b"", np.uint8)[offsets[0] : offsets[-1]]
    elements = decode(raw, dtype)
    assert elements is not None
    itemsize = len(raw) // len(elements) if len(elements) else 1
    sizes = pc.binary_length(values).to_numpy() // itemsize
    return elements, sizes.astype(np.int64)
