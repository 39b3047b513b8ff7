"""The rows of op_digest, which are computed for one part of tensor_health while the part is written.

`query/alert_rules/scan.py` computes the same in SQL for parts without a digest.

Source: spec/README.md, "Digests".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tfdbg_arrow.schema import arrow_schema
from tfdbg_arrow.spool.records import Ints, Mask

DIGESTED_TABLE = "tensor_health"
DIGEST_TABLE = "op_digest"
_KEY = ("graph_id", "op_name", "op_type", "output_slot", "dtype")
_MAX_PIECES = 16
"""Number of pieces of a part after which their digests are aggregated."""
_LARGEST = float(np.finfo(np.float64).max)
_COLUMNS = {
    "num_tensors": ("one", "sum"),
    "num_bad_tensors": ("is_bad", "sum"),
    "min_size": ("size", "min"),
    "max_size": ("size", "max"),
    "min_shape": ("shape", "min"),
    "max_shape": ("shape", "max"),
    "max_nonzero": ("nonzero", "max"),
    "max_zero_share": ("zero_share", "max"),
    "max_subnormal": ("subnormal", "max"),
    "max_magnitude": ("magnitude", "max"),
    "num_logs": ("log", "count"),
    "sum_log": ("log", "sum"),
    "sum_log_square": ("log_square", "sum"),
    "min_square": ("square", "min"),
    "max_square": ("square", "max"),
    "min_stddev": ("stddev", "min"),
    "max_stddev": ("stddev", "max"),
    "min_slope": ("slope", "min"),
    "num_norms": ("is_norm", "sum"),
    "min_norm": ("norm", "min"),
    "max_norm": ("norm", "max"),
}
"""For each column of op_digest, the measure of the tensors and its aggregation."""
WINDOW = 10
"""Number of preceding norms with which each norm is compared."""
_LARGEST_NORM = 1e300
"""Beyond this value a sum of norms might overflow, so the jump counts as unknown."""
_Floats = npt.NDArray[np.float64]


class PartDigest:
    """Computes the digest of one part; memory grows with the number of op outputs, not with the number of rows.

    Args:
        run_id: The run.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._digested: list[pa.Table] = []
        self._jumps = NormJumps()

    def add(self, data: pa.Table) -> None:
        """Adds rows of tensor_health. If they are not in the order of their events, norm jumps are unknown."""
        if data.num_rows == 0:
            return
        data = data.combine_chunks()
        outputs = self._outputs(data)
        measures = _measures(data)
        grouped = pa.table({"output": outputs, **measures}).group_by("output", use_threads=False)
        digested = grouped.aggregate(list(_COLUMNS.values()))
        columns = {name: digested[f"{measure}_{function}"] for name, (measure, function) in _COLUMNS.items()}
        self._digested.append(pa.table({"output": digested["output"], **columns}))
        if len(self._digested) == _MAX_PIECES:
            self._digested = [self._summed()]
        chosen = np.flatnonzero(measures["is_norm"].to_numpy())
        norms = measures["norm"].fill_null(np.nan).to_numpy()  # NULL means no size
        self._jumps.add(outputs[chosen], events=data["event_index"].to_numpy()[chosen], norms=norms[chosen])

    def table(self, part_number: int) -> pa.Table:
        """Returns the rows of op_digest.

        Args:
            part_number: Number of the part.
        """
        schema = arrow_schema(DIGEST_TABLE)
        if not self._digested:
            return schema.empty_table()
        digested = self._summed().sort_by("output")
        columns: dict[str, Any] = {name: digested[name] for name in _COLUMNS}
        columns.update(zip(_KEY, zip(*self._numbers, strict=True), strict=True))
        num_outputs = len(self._numbers)
        jumps = self._jumps.greatest(num_outputs)
        columns["run_id"] = pa.repeat(pa.scalar(self._run_id, pa.string()), num_outputs)
        columns["part_number"] = np.full(num_outputs, part_number)
        columns["digest_index"] = np.arange(num_outputs)
        columns["max_norm_jump"] = pa.array(jumps, mask=np.isnan(jumps))
        return pa.table([_as(columns[field.name], field.type) for field in schema], schema=schema)

    def _summed(self) -> pa.Table:
        """Returns the digest so far, with one row per output."""
        functions = {name: "sum" if function == "count" else function for name, (_, function) in _COLUMNS.items()}
        grouped = pa.concat_tables(self._digested).group_by("output", use_threads=False)
        summed = grouped.aggregate(list(functions.items()))
        columns = {name: summed[f"{name}_{function}"] for name, function in functions.items()}
        return pa.table({"output": summed["output"], **columns})

    def _outputs(self, data: pa.Table) -> Ints:
        """Returns the number of each row's op output and dtype; the numbers are valid for all rows added so far."""
        codes = np.zeros(data.num_rows, np.int64)
        for name in _KEY:
            column = data[name].combine_chunks().dictionary_encode(null_encoding="encode")
            pairs = codes * len(column.dictionary) + column.indices.to_numpy()
            codes = pa.array(pairs).dictionary_encode().indices.to_numpy().astype(np.int64)
        first = np.zeros(int(codes.max()) + 1, np.int64)
        first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)  # for equal codes, the last assignment wins
        keys = data.select(_KEY).take(pa.array(first)).to_pydict()
        numbers = [self._numbers.setdefault(key, len(self._numbers)) for key in zip(*keys.values(), strict=True)]
        outputs: Ints = np.array(numbers, np.int64)[codes]
        return outputs


def _measures(data: pa.Table) -> dict[str, pa.Array]:
    """Returns the measures by name, with one value per row."""
    size, num_zero, is_bad = (_column(data, name) for name in ("size", "num_zero", "has_inf_or_nan"))
    mean, stddev, magnitude = (_column(data, name) for name in ("mean_finite", "stddev_finite", "max_abs_finite"))
    mean_square, variance = pc.multiply(mean, mean), pc.multiply(stddev, stddev)
    square = pc.add(mean_square, variance)
    is_in_graph = pc.equal(_column(data, "scope"), "graph")
    is_norm = pc.and_(pc.and_(is_in_graph, mean.is_valid()), pc.fill_null(pc.invert(is_bad), False))
    norm = pc.sqrt(pc.multiply(pc.cast(size, pa.float64(), safe=False), square))
    log = pc.ln(_where(pc.greater(magnitude, 0), magnitude))
    share = pc.divide(pc.cast(num_zero, pa.float64(), safe=False), pc.cast(size, pa.float64(), safe=False))
    return {
        "one": pa.repeat(1, data.num_rows),
        "is_bad": pc.cast(pc.fill_null(is_bad, False), pa.int64()),
        "is_norm": pc.cast(is_norm, pa.int64()),
        "size": size,
        "shape": pc.binary_join(pc.cast(_column(data, "shape"), pa.list_(pa.string())), ","),
        "nonzero": _where(pc.greater(size, 1), pc.subtract(size, num_zero)),
        "zero_share": _where(pc.greater(size, 0), share),
        "subnormal": _column(data, "num_subnormal"),
        "magnitude": magnitude,
        "log": log,
        "log_square": pc.multiply(log, log),
        "square": _cut(square),
        "stddev": stddev,
        "slope": _cut(pc.subtract(pc.subtract(mean, mean_square), variance)),
        "norm": _where(is_norm, _cut(norm)),
    }


def _column(data: pa.Table, name: str) -> pa.Array:
    return data[name].combine_chunks()


def _where(condition: pa.Array, values: pa.Array) -> pa.Array:
    """Returns the values for which a condition holds, and NULL for the others."""
    return pc.if_else(pc.fill_null(condition, False), values, pa.scalar(None, values.type))


def _cut(values: pa.Array) -> pa.Array:
    """Clips values to the range of DOUBLE, because infinities would look like bad data."""
    values = pc.min_element_wise(values, _LARGEST, skip_nulls=False)
    return pc.max_element_wise(values, -_LARGEST, skip_nulls=False)


def _as(values: Any, type_: pa.DataType) -> pa.Array:
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else pa.array(values)
    return array if array.type == type_ else array.cast(type_)


class NormJumps:
    """Computes jumps of norms piece by piece; keeps the last norms of each output for the next piece."""

    def __init__(self) -> None:
        self._greatest: _Floats = np.zeros(0)
        self._is_known: Mask = np.zeros(0, np.bool_)
        self._last_event: Ints = np.zeros(0, np.int64)
        self._tails: _Floats = np.zeros((0, WINDOW))
        self._num_tail: Ints = np.zeros(0, np.int64)

    def add(self, outputs: Ints, *, events: Ints, norms: _Floats) -> None:
        """Adds norms.

        Args:
            outputs: The number of the op output of each norm.
            events: The event_index of each norm. If a later piece has an older event of an output, the output's jump is
                unknown.
            norms: The norms; NaN for an unknown norm.
        """
        if len(outputs) == 0:
            return
        self._grow(int(outputs.max()) + 1)
        order = np.lexsort((events, outputs))
        outputs, events, norms = outputs[order], events[order], norms[order]
        starts = np.flatnonzero(np.diff(outputs, prepend=-1))
        counts = np.diff(starts, append=len(outputs))
        present = outputs[starts]
        self._is_known[present] &= events[starts] > self._last_event[present]
        self._last_event[present] = np.maximum(events[starts + counts - 1], self._last_event[present])
        is_sound = norms <= _LARGEST_NORM
        self._is_known[outputs[~is_sound]] = False
        norms = np.where(is_sound, norms, 0.0)

        # The sequence holds, for each output, the tail of earlier pieces followed by its new norms.
        num_tail = self._num_tail[present]
        lengths = num_tail + counts
        begins = np.cumsum(lengths) - lengths
        sequence = np.empty(int(lengths.sum()))
        columns = np.arange(WINDOW)
        is_tail = columns < num_tail[:, None]
        sequence[(begins[:, None] + columns)[is_tail]] = self._tails[present][is_tail]
        places = np.arange(len(outputs)) + np.repeat(begins + num_tail - starts, counts)
        sequence[places] = norms

        has_window = places - np.repeat(begins, counts) >= WINDOW
        ratios = np.zeros(len(outputs))
        sums = _sums_before(sequence)[places[has_window]]
        ratios[has_window] = np.divide(norms[has_window] * WINDOW, sums, out=np.zeros(len(sums)), where=sums > 0)
        self._greatest[present] = np.maximum(self._greatest[present], np.maximum.reduceat(ratios, starts))

        num_kept = np.minimum(lengths, WINDOW)
        is_kept = columns < num_kept[:, None]
        tails = np.zeros((len(present), WINDOW))
        tails[is_kept] = sequence[((begins + lengths - num_kept)[:, None] + columns)[is_kept]]
        self._tails[present], self._num_tail[present] = tails, num_kept

    def greatest(self, num_outputs: int) -> _Floats:
        """Returns the largest jump of each output; 0 if there is none, NaN if it is unknown.

        Args:
            num_outputs: Number of outputs.
        """
        self._grow(num_outputs)
        return np.where(self._is_known, self._greatest, np.nan)[:num_outputs]

    def _grow(self, num_outputs: int) -> None:
        more = num_outputs - len(self._greatest)
        if more > 0:
            self._greatest = np.pad(self._greatest, (0, more))
            self._is_known = np.pad(self._is_known, (0, more), constant_values=True)
            self._last_event = np.pad(self._last_event, (0, more), constant_values=-1)
            self._tails = np.pad(self._tails, ((0, more), (0, 0)))
            self._num_tail = np.pad(self._num_tail, (0, more))


def _sums_before(sequence: _Floats) -> _Floats:
    """Returns for each position the sum of the WINDOW values before it, or of fewer for the first positions."""
    sums = np.zeros(len(sequence))
    for distance in range(1, WINDOW + 1):
        sums[distance:] += sequence[:-distance]
    return sums
