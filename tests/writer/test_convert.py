from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdbg_arrow.schema import TABLES, Table, Type, arrow_schema
from tfdbg_arrow.schema.dtypes import DTYPES, dtype_itemsize, dtype_name
from tfdbg_arrow.spool.convert import Converter, metadata_table
from tfdbg_arrow.spool.names import Names
from tfdbg_arrow.spool.records import (
    NO_STEP,
    NO_VALUE,
    NUM_INLINE_DIMS,
    PAYLOAD_DTYPE,
    PAYLOAD_LENGTH,
    RECORD_DTYPE,
    Batch,
    Flag,
    Kind,
    join_records,
    num_whole,
    pick,
)
from tfdbg_arrow.writer.native.reference import HistogramSummary
from tfdbg_arrow.writer.recording.session_events import add_followers

STRINGS = ["", "CPU:0", "MatMul", "__inference_f_1", "while/body", "encoder/dense_1", "gradient"]
NODES = [(7, "dense/MatMul", "MatMul", 0), (7, "dense/Relu", "Relu", 1)]


class Source:
    """A source of strings, nodes and the call graph."""

    def __init__(self) -> None:
        self.known = list(STRINGS)
        self.keys = list(NODES)

    def strings(self, start: int) -> list[str]:
        return self.known[start:]

    def nodes(self, start: int) -> Sequence[tuple[int, str, str, int]]:
        return self.keys[start:]

    def graph_id_of_function(self, function_name: str) -> int | None:
        return 7 if function_name == "__inference_f_1" else None

    def call_site(self, path: str, inner_graph_id: int) -> str:
        return path

    def reaches(self, graph_id: int, inner_graph_id: int) -> bool:
        return graph_id == inner_graph_id


def record(kind: Kind, *, payload: Sequence[int] = (), dims: Sequence[int] = (), **fields: Any) -> np.ndarray:
    made = np.zeros(1, RECORD_DTYPE)
    defaults: dict[str, Any] = dict.fromkeys(("tensor_id", "execution_index", "frame_id"), NO_VALUE) | {"step": NO_STEP}
    for name, value in (defaults | fields).items():
        made[name] = value
    made["kind"] = kind
    if dims:
        made["rank"], made["size"] = fields.get("rank", len(dims)), fields.get("size", int(np.prod(dims)))
        made["dims"][0, : len(dims)] = dims
    if payload:
        made.view(PAYLOAD_DTYPE)["payload"][0, : len(payload)] = payload
    return made


def batch(*records: np.ndarray) -> Batch:
    joined = join_records(records)
    joined["commit"] = np.arange(len(joined)) + 1
    joined["wall_time_ns"] = 1_000_000_001_999 + np.arange(len(joined))
    return Batch(joined)


def converted(made: Batch, *, values: dict[int, bytes] | None = None, source: Source | None = None) -> dict[str, Any]:
    source = source or Source()
    converter = Converter("run1", names=Names(source, nodes=source, call_graph=source))
    tables = converter.tables(made, values=values or {})
    for name, table in tables.items():
        table.validate(full=True)
        assert table.schema.equals(arrow_schema(name), check_metadata=True)
    return {name: table.to_pylist() for name, table in tables.items()}


def health_row(**columns: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(arrow_schema("tensor_health").names)
    row |= {"run_id": "run1", "wall_time_ns": 1_000_000_001_999, "wall_time": datetime(1970, 1, 1, 0, 16, 40, 1)}
    return row | {"event_index": 0, "dtype": "float32"} | columns


FULL = Flag.COVERED | Flag.SHAPE | Flag.CHECKED | Flag.COUNTS | Flag.SIGNS


def test_a_fully_measured_graph_tensor_fills_every_column_of_its_scope() -> None:
    made = batch(
        record(
            Kind.GRAPH_TENSOR,
            dims=(2, 4),
            dtype=1,
            node=1,
            call_site=4,
            device=1,
            slot=1,
            step_id=2**62,
            execution_index=5,
            frame_id=3,
            iteration=2,
            step=10,
            flags=FULL | Flag.BAD | Flag.NUMERICS | Flag.ORDERED | Flag.ANY_FINITE | Flag.CONTEXT,
            num_neg_inf=1,
            num_pos_inf=1,
            num_nan=1,
            num_neg_finite=2,
            num_zero=1,
            num_pos_finite=2,
            num_subnormal=1,
            min=-4.0,
            max=3.0,
            mean=-0.5,
            stddev=2.5,
            max_abs=4.0,
        )
    )
    assert converted(made) == {
        "tensor_health": [
            health_row(
                scope="graph",
                execution_index=5,
                step_id=2**62,
                frame_id=3,
                iteration=2,
                call_site="while/body",
                graph_id=7,
                op_name="dense/Relu",
                op_type="Relu",
                output_slot=1,
                device_id=1,
                rank=2,
                shape=[2, 4],
                size=8,
                has_inf_or_nan=True,
                num_neg_inf=1,
                num_pos_inf=1,
                num_nan=1,
                num_neg_finite=2,
                num_zero=1,
                num_pos_finite=2,
                min_finite=-4.0,
                max_finite=3.0,
                mean_finite=-0.5,
                stddev_finite=2.5,
                max_abs_finite=4.0,
                num_subnormal=1,
                step=10,
            )
        ]
    }


@pytest.mark.parametrize(
    ("flags", "measured"),
    [
        (Flag.COVERED, {}),
        (Flag.COVERED | Flag.SHAPE, {"rank": 1, "shape": [3], "size": 3}),
        (Flag.COVERED | Flag.CHECKED, {"has_inf_or_nan": False}),
        (Flag.COVERED | Flag.CHECKED | Flag.BAD, {"has_inf_or_nan": True}),
        (Flag.COVERED | Flag.COUNTS, {"num_neg_inf": 1, "num_pos_inf": 2, "num_nan": 3}),
        (Flag.COVERED | Flag.SIGNS, {"num_neg_finite": 4, "num_zero": 5, "num_pos_finite": 6}),
        (Flag.COVERED | Flag.NUMERICS, {"num_subnormal": 7}),
        (Flag.COVERED | Flag.NUMERICS | Flag.ANY_FINITE, {"num_subnormal": 7, "max_abs_finite": 5.0}),
        (
            Flag.COVERED | Flag.NUMERICS | Flag.ORDERED,
            {"num_subnormal": 7, "min_finite": 1.0, "max_finite": 2.0, "mean_finite": 3.0, "stddev_finite": 4.0},
        ),
        (Flag.COVERED | Flag.CONTEXT, {"step_id": 9, "frame_id": 8, "iteration": 6, "call_site": ""}),
    ],
)
def test_a_column_is_null_if_its_flag_says_not_measured(flags: Flag, measured: dict[str, Any]) -> None:
    counts = {"num_neg_inf": 1, "num_pos_inf": 2, "num_nan": 3, "num_neg_finite": 4, "num_zero": 5, "num_pos_finite": 6}
    magnitudes = {"num_subnormal": 7, "min": 1.0, "max": 2.0, "mean": 3.0, "stddev": 4.0, "max_abs": 5.0}
    context = {"step_id": 9, "frame_id": 8, "iteration": 6}
    made = batch(record(Kind.GRAPH_TENSOR, dims=(3,), dtype=1, flags=flags, **counts, **magnitudes, **context))
    expected = health_row(
        scope="graph", graph_id=7, op_name="dense/MatMul", op_type="MatMul", output_slot=0, **measured
    )
    assert converted(made)["tensor_health"] == [expected]


def test_eager_tensors_have_no_graph_columns_and_only_outputs_are_execution_outputs() -> None:
    flags = Flag.COVERED | Flag.CONTEXT
    made = batch(
        record(Kind.EXTERNAL_TENSOR, dtype=2, node=2, execution_index=4, tensor_id=40, flags=flags, step_id=1),
        record(Kind.EXECUTION_TENSOR, dtype=1, node=2, slot=1, execution_index=4, tensor_id=41, device=1, flags=flags),
        record(Kind.EXECUTION_TENSOR, dtype=20, node=2, slot=2, execution_index=4, tensor_id=42),
    )
    found = converted(made)
    later = {"event_index": 1, "wall_time_ns": 1_000_000_002_000, "wall_time": datetime(1970, 1, 1, 0, 16, 40, 2)}
    assert found["tensor_health"] == [
        health_row(scope="external", dtype="float64", execution_index=4, tensor_id=40),
        health_row(
            scope="execution", execution_index=4, tensor_id=41, op_type="MatMul", output_slot=1, device_id=1, **later
        ),
    ]
    assert found["execution_output"] == [
        {"run_id": "run1", "execution_index": 4, "output_slot": 1, "tensor_id": 41, "dtype": "float32"},
        {"run_id": "run1", "execution_index": 4, "output_slot": 2, "tensor_id": 42, "dtype": "resource"},
    ]


def test_the_execution_of_a_function_names_its_graph_and_that_of_an_op_does_not() -> None:
    made = batch(
        record(
            Kind.EXECUTION,
            node=3,
            execution_index=0,
            num_inputs=1,
            num_outputs=2,
            stack=6,
            thread=99,
            step=3,
            part_stack=-1,
            payload=[5],
        ),
        record(
            Kind.EXECUTION,
            node=2,
            execution_index=1,
            num_inputs=0,
            num_outputs=1,
            thread=98,
            forward_execution=0,
            layer=5,
            role=6,
            part_stack=4,
        ),
    )
    found = converted(made)
    first = {
        "run_id": "run1",
        "execution_index": 0,
        "event_index": 0,
        "wall_time_ns": 1_000_000_001_999,
        "wall_time": datetime(1970, 1, 1, 0, 16, 40, 1),
        "op_type": "__inference_f_1",
        "graph_id": 7,
        "num_inputs": 1,
        "num_outputs": 2,
        "stack_trace_id": 6,
        "thread_id": 99,
        "step": 3,
        "forward_execution_index": None,
        "layer": None,
        "role": None,
        "part_stack_trace_id": None,
    }
    second = first | {
        "execution_index": 1,
        "event_index": 1,
        "wall_time_ns": 1_000_000_002_000,
        "wall_time": datetime(1970, 1, 1, 0, 16, 40, 2),
        "op_type": "MatMul",
        "graph_id": None,
        "num_inputs": 0,
        "num_outputs": 1,
        "stack_trace_id": None,
        "thread_id": 98,
        "step": None,
        "forward_execution_index": 0,
        "layer": "encoder/dense_1",
        "role": "gradient",
        "part_stack_trace_id": 4,
    }
    assert found["execution"] == [first, second]
    assert found["execution_input"] == [{"run_id": "run1", "execution_index": 0, "input_index": 0, "tensor_id": 5}]


@pytest.mark.parametrize("num_inputs", [0, 1, 18, 19, 20, 38, 39, 60])
def test_inputs_are_read_from_the_execution_and_the_following_records(num_inputs: int) -> None:
    ids = [1000 + i for i in range(num_inputs)]
    records = [record(Kind.EXECUTION, node=2, execution_index=8, size=num_inputs, payload=ids[:PAYLOAD_LENGTH])]
    for start in range(PAYLOAD_LENGTH, num_inputs, PAYLOAD_LENGTH):
        records.append(record(Kind.INPUTS, slot=start, payload=ids[start : start + PAYLOAD_LENGTH]))
    records.append(record(Kind.EXECUTION, node=2, execution_index=9, size=1, payload=[7]))
    found = converted(batch(*records))["execution_input"]
    expected = [(8, i, id_) for i, id_ in enumerate(ids)] + [(9, 0, 7)]
    assert [(row["execution_index"], row["input_index"], row["tensor_id"]) for row in found] == expected


def test_following_records_without_their_first_are_ignored() -> None:
    made = batch(record(Kind.INPUTS, payload=[1]), record(Kind.EXECUTION_END, execution_index=1), record(Kind.INPUTS))
    assert converted(made) == {}


@pytest.mark.parametrize("rank", [0, 1, 4, 5, 23, 24, 44])
def test_a_shape_of_any_rank_is_complete(rank: int) -> None:
    dims = list(range(2, 2 + rank))
    flags = Flag.COVERED | Flag.SHAPE
    other = record(Kind.EXECUTION_TENSOR, dtype=1, node=2, dims=(5, 6), flags=flags)
    records = [other, record(Kind.EXECUTION_TENSOR, dtype=1, node=2, flags=flags, rank=rank, size=9)]
    records[1]["dims"][0, : min(rank, NUM_INLINE_DIMS)] = dims[:NUM_INLINE_DIMS]
    records += [
        record(Kind.DIMS, payload=dims[i : i + PAYLOAD_LENGTH]) for i in range(NUM_INLINE_DIMS, rank, PAYLOAD_LENGTH)
    ]
    found = converted(batch(*records, other))["tensor_health"]
    assert [(row["rank"], row["shape"]) for row in found] == [(2, [5, 6]), (rank, dims), (2, [5, 6])]


def test_a_shape_with_missing_dimension_records_is_null() -> None:
    flags = Flag.COVERED | Flag.SHAPE
    deep = record(Kind.EXECUTION_TENSOR, dtype=1, node=2, flags=flags, rank=5, size=9)
    found = converted(batch(deep, record(Kind.EXECUTION_TENSOR, dtype=1, node=2, dims=(3,), flags=flags), deep))
    assert [row["shape"] for row in found["tensor_health"]] == [None, [3], None]


NO_HISTOGRAM = (None, None, None)


def histograms(found: dict[str, Any]) -> list[tuple[int | None, list[int] | None, list[int] | None]]:
    names = ("histogram_exponent", "histogram_negative", "histogram_positive")
    return [(row[names[0]], row[names[1]], row[names[2]]) for row in found["tensor_health"]]


def tensor(*, size: int, rank: int = 1, flags: int = 0, **fields: Any) -> np.ndarray:
    flags |= Flag.COVERED | Flag.SHAPE
    return record(Kind.GRAPH_TENSOR, dtype=1, node=1, size=size, rank=rank, flags=flags, **fields)


@st.composite
def counted_tensors(draw: st.DrawFn) -> tuple[np.ndarray, int, HistogramSummary | None]:
    """Draws a tensor's record, rank and histogram. The counts are at most the tensor's size."""
    size = draw(st.sampled_from([1, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**40]))
    rank = draw(st.sampled_from([0, 1, 4, 5, 23, 24]))
    if draw(st.booleans()):
        return tensor(size=size, rank=rank), rank, None
    num = draw(st.sampled_from([0, 1, 2, 9, 10, 19, 38, 39, 76, 77, 400]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    negative, positive = (tuple(random.integers(0, size, num, endpoint=True).tolist()) for _ in range(2))
    exponent = draw(st.integers(-1074, 1000)) if num else None
    return tensor(size=size, rank=rank), rank, HistogramSummary(exponent, negative, positive)


@settings(deadline=None)
@given(drawn=st.lists(counted_tensors(), min_size=1, max_size=6))
def test_a_histogram_of_any_size_is_complete(drawn: list[tuple[np.ndarray, int, HistogramSummary | None]]) -> None:
    joined = join_records([made for made, _, _ in drawn])
    shapes = [tuple(range(1, rank + 1)) for _, rank, _ in drawn]
    followed = add_followers(joined, shapes, [histogram for _, _, histogram in drawn])
    assert num_whole(followed) == len(followed)
    found = converted(batch(followed))
    assert [row["shape"] for row in found["tensor_health"] if len(row["shape"]) > NUM_INLINE_DIMS] == [
        list(shape) for shape in shapes if len(shape) > NUM_INLINE_DIMS
    ]
    assert histograms(found) == [
        NO_HISTOGRAM if each is None else (each.exponent, list(each.negative), list(each.positive))
        for _, _, each in drawn
    ]


def test_a_histogram_with_missing_records_is_null() -> None:
    whole = add_followers(tensor(size=300), [()], [HistogramSummary(-3, (1,) * 50, (2,) * 50)])
    assert len(whole) == 3
    small = add_followers(tensor(size=3), [()], [HistogramSummary(0, (1, 0), (0, 2))])
    cut = pick(whole, np.array([0, 1]))
    assert num_whole(cut) == 0
    expected = [NO_HISTOGRAM, (-3, [1] * 50, [2] * 50), NO_HISTOGRAM, (0, [1, 0], [0, 2]), NO_HISTOGRAM]
    assert histograms(converted(batch(cut, whole, tensor(size=3), small, cut))) == expected


def test_values_carry_dtype_shape_and_elements() -> None:
    flags = Flag.COVERED | Flag.SHAPE | Flag.VALUE
    made = batch(
        record(Kind.EXECUTION_TENSOR, dtype=1, node=2, dims=(3,), flags=Flag.COVERED | Flag.SHAPE),
        record(Kind.EXECUTION_TENSOR, dtype=4, node=2, dims=(2, 1), flags=flags),
    )
    row = {"run_id": "run1", "event_index": 1, "dtype": "uint8", "shape": [2, 1], "value": b"\x01\x02"}
    assert converted(made, values={1: b"\x01\x02"})["tensor_value"] == [row]


def test_an_unknown_key_leaves_its_columns_null() -> None:
    made = batch(record(Kind.GRAPH_TENSOR, dtype=1, node=99, flags=Flag.COVERED))
    assert converted(made)["tensor_health"] == [health_row(scope="graph")]


def test_names_include_nodes_that_are_added_later() -> None:
    source = Source()
    names = Names(source, nodes=source, call_graph=source)
    source.known.append("new")
    source.keys.append((8, "new", "MatMul", 3))
    assert names.of_strings(np.array([7])).tolist() == [-1]
    names.refresh()
    (string,), graph, (op_name,), (op_type,), slot = names.of_strings(np.array([7])), *names.of_nodes(np.array([2]))
    assert (names.texts[string], graph.tolist(), names.texts[op_name]) == ("new", [8], "new")
    assert (names.texts[op_type], slot.tolist()) == ("MatMul", [3])


def test_only_devices_of_covered_tensors_are_listed() -> None:
    source = Source()
    converter = Converter("run1", names=Names(source, nodes=source, call_graph=source))
    made = batch(
        record(Kind.GRAPH_TENSOR, dtype=1, device=1, flags=Flag.COVERED),
        record(Kind.GRAPH_TENSOR, dtype=1, device=2),
        record(Kind.GRAPH_TENSOR, dtype=1, device=0, flags=Flag.COVERED),
    )
    assert converter.devices(made) == {1: "CPU:0"}


@pytest.mark.parametrize(
    ("records", "whole"),
    [
        ([], 0),
        ([record(Kind.EXECUTION, size=19)], 1),
        ([record(Kind.EXECUTION, size=20)], 0),
        ([record(Kind.EXECUTION_END), record(Kind.EXECUTION, size=39), record(Kind.INPUTS)], 1),
        ([record(Kind.EXECUTION_END), record(Kind.EXECUTION, size=38), record(Kind.INPUTS)], 3),
        ([record(Kind.GRAPH_TENSOR, rank=5, flags=Flag.SHAPE)], 0),
        ([record(Kind.GRAPH_TENSOR, rank=5)], 1),
        ([record(Kind.GRAPH_TENSOR, rank=5, flags=Flag.SHAPE), record(Kind.DIMS)], 2),
        ([record(Kind.GRAPH_TENSOR, size=9, flags=Flag.HISTOGRAM_COUNTED)], 1),
        ([record(Kind.GRAPH_TENSOR, size=9, flags=Flag.HISTOGRAM_COUNTED | 77 << 16), record(Kind.HISTOGRAM)], 0),
        (
            [
                record(Kind.GRAPH_TENSOR, rank=5, size=9, flags=Flag.SHAPE | 76 << 16),
                record(Kind.DIMS),
                record(Kind.HISTOGRAM),
            ],
            3,
        ),
        ([record(Kind.INPUTS)], 1),
        ([record(Kind.EXTERNAL_TENSOR)], 0),
        ([record(Kind.EXTERNAL_TENSOR), record(Kind.EXECUTION, size=20)], 0),
        ([record(Kind.EXTERNAL_TENSOR), record(Kind.EXECUTION, size=1)], 2),
        (
            [
                record(Kind.EXECUTION_END),
                record(Kind.EXTERNAL_TENSOR, rank=5, flags=Flag.SHAPE),
                record(Kind.DIMS),
                record(Kind.EXTERNAL_TENSOR),
            ],
            1,
        ),
    ],
)
def test_a_batch_ends_before_an_incomplete_group(records: list[np.ndarray], whole: int) -> None:
    assert num_whole(join_records(records)) == whole


def test_picked_and_joined_records_keep_their_last_bytes() -> None:
    one = record(Kind.EXECUTION, payload=range(PAYLOAD_LENGTH))
    both = pick(join_records([one, one]), np.array([1, 0]))
    assert both.view(PAYLOAD_DTYPE)["payload"].tolist() == [list(range(PAYLOAD_LENGTH))] * 2


def test_metadata_rows_get_run_id_and_wall_time_and_null_for_missing_columns() -> None:
    table = metadata_table("mark", [{"event_index": 1, "wall_time_ns": 5_999, "label": "a", "value": "b"}], run_id="r")
    assert table.to_pylist() == [
        {
            "run_id": "r",
            "event_index": 1,
            "wall_time_ns": 5_999,
            "wall_time": datetime(1970, 1, 1, 0, 0, 0, 5),
            "step": None,
            "label": "a",
            "value": "b",
        }
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [({"device_id": 1}, "NULL in device_name"), ({"device_id": 1, "device_name": "d", "x": 1}, r"columns \['x'\]")],
)
def test_invalid_metadata_rows_raise_an_error(row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metadata_table("device", [row], run_id="r")
    with pytest.raises(pa.ArrowInvalid):
        metadata_table("device", [{"device_id": "one", "device_name": "d"}], run_id="r")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_text_that_is_not_utf_8_keeps_its_row(table: Table) -> None:
    samples: dict[Type, object] = {Type.VARCHAR: "caf\udce9 \ud800", Type.TIMESTAMP: datetime(2026, 1, 2)}
    samples |= {Type.BOOLEAN: True, Type.BLOB: b"", Type.BIGINT_LIST: []}
    values = {column.name: samples.get(column.type, 1) for column in table.columns}
    (row,) = metadata_table(table.name, [values], run_id="r").to_pylist()
    texts = {name for name, value in values.items() if isinstance(value, str)} - {"run_id"}
    assert {name: row[name] for name in texts} == dict.fromkeys(texts, "caf\\udce9 \\ud800")


def test_dtypes_equal_tensorflows() -> None:
    tf_dtypes = pytest.importorskip("tensorflow").dtypes
    for dtype in DTYPES:
        theirs = tf_dtypes.as_dtype(dtype.number)
        assert (dtype.name, dtype.itemsize or 0) == (theirs.name, theirs.size)
    assert (dtype_name(101), dtype_itemsize(101)) == (tf_dtypes.as_dtype(101).name, 4)
    assert (dtype_name(77), dtype_itemsize(77)) == ("unknown_77", None)
