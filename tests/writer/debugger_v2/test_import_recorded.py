"""Import of dumps that TensorFlow recorded: queries work in each mode, and both scanners read the same events."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.debugger_v2.importer import import_dump
from tfdbg_arrow.debugger_v2.scan import NativeScanner, PythonScanner, Scan
from tfdbg_arrow.query import first_nonfinite, open_logdir

from .conftest import MODES

MEASURED = {
    "NO_TENSOR": set(),
    "CURT_HEALTH": {"has_inf_or_nan"},
    "CONCISE_HEALTH": {"has_inf_or_nan", "size", "num_neg_inf", "num_pos_inf", "num_nan"},
    "FULL_HEALTH": {
        "has_inf_or_nan", "dtype", "rank", "size", "num_neg_inf", "num_pos_inf", "num_nan", "num_neg_finite",
        "num_zero", "num_pos_finite",
    },
    "SHAPE": {"dtype", "rank", "size", "shape"},
    "FULL_TENSOR": {
        "has_inf_or_nan", "dtype", "rank", "shape", "size", "num_neg_inf", "num_pos_inf", "num_nan", "num_neg_finite",
        "num_zero", "num_pos_finite",
    },
}  # fmt: skip
"""The columns that have a value in the row of Log:0, by mode."""


@pytest.fixture(scope="module")
def logdirs(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("imported")
    for mode in MODES:
        import_dump(recorded / mode, directory / mode)
    return directory


@pytest.mark.parametrize("mode", MODES)
def test_columns_that_a_mode_does_not_measure_are_null(logdirs: Path, mode: str) -> None:
    with open_logdir(logdirs / mode) as opened:
        columns, rows = opened.table("SELECT * FROM tensor_health WHERE op_name = 'Log' ORDER BY event_index")
        assert opened.rows("SELECT tensor_debug_mode, is_clean_end FROM run") == [(mode, True)]
        assert opened.rows("SELECT * FROM capture_stat") == []
    assert len(rows) == 4
    row = dict(zip(columns, rows[0], strict=True))
    names = set().union(*MEASURED.values())
    assert {name for name in names if row[name] is not None} == MEASURED[mode]
    expected = {
        "has_inf_or_nan": True, "dtype": "float32", "rank": 2, "shape": [1, 2], "size": 2, "num_neg_inf": 1,
        "num_pos_inf": 0, "num_nan": 0, "num_neg_finite": 0, "num_zero": 1, "num_pos_finite": 0,
    }  # fmt: skip
    assert {name: row[name] for name in MEASURED[mode]} == {name: expected[name] for name in MEASURED[mode]}
    if mode == "FULL_TENSOR":
        with open_logdir(logdirs / mode) as opened:
            found = opened.rows(
                "SELECT dtype, shape, value FROM tensor_value WHERE event_index = ?", [row["event_index"]]
            )
        assert found == [("float32", [1, 2], struct.pack("<2f", float("-inf"), 0.0))]


@pytest.mark.parametrize("mode", ["CURT_HEALTH", "CONCISE_HEALTH", "FULL_HEALTH", "FULL_TENSOR"])
def test_the_first_bad_value_has_its_op_and_line(logdirs: Path, mode: str) -> None:
    found = first_nonfinite(logdirs / mode)
    assert found is not None
    assert (found.op_name, found.op_type, found.graph_name) == ("Log", "Log", "loss")
    assert found.num_neg_inf == (None if mode == "CURT_HEALTH" else 1)
    assert found.source is not None
    assert found.source.code is not None
    assert found.source.code.endswith("# the fault")
    # The dump has no values of the arguments of an outermost function.
    (input_,) = found.inputs
    assert (input_.health, found.is_origin) == (None, False)
    assert input_.producer is not None
    assert (input_.producer.op_name, input_.producer.op_type) == ("probs", "Placeholder")


def test_calls_are_inferred_from_graph_and_time(logdirs: Path) -> None:
    with open_logdir(logdirs / "FULL_HEALTH") as opened:
        found = opened.rows(
            "SELECT DISTINCT g.graph_name, regexp_replace(e.op_type, '_[0-9]+$', '') FROM tensor_health t "
            "JOIN graph g USING (run_id, graph_id) LEFT JOIN execution e USING (run_id, execution_index) "
            "WHERE t.scope = 'graph' AND regexp_matches(g.graph_name, '^(model|loss|inner)$') ORDER BY ALL"
        )
        flags = opened.rows(
            "SELECT DISTINCT execution_index IS NULL, is_call_inferred FROM tensor_health WHERE scope = 'graph'"
        )
    assert found == [
        ("inner", "__forward_loss"),
        ("inner", "__inference_loss"),
        ("loss", "__forward_loss"),
        ("loss", "__inference_loss"),
        ("model", "__forward_model"),
        ("model", "__inference_model"),
    ]
    assert set(flags) <= {(False, True), (True, None)}


def _scanned(scanner: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for scan in scanner:
        rows.extend(_rows(scan))
    return rows


def _rows(scan: Scan) -> list[dict[str, Any]]:
    inputs, outputs = iter(scan.inputs.tolist()), iter(scan.outputs.tolist())
    spans = iter(zip(scan.content_start.tolist(), scan.content_length.tolist(), strict=True))
    rows = []
    for index in range(len(scan)):
        contents = [next(spans) for _ in range(scan.num_contents[index])]
        rows.append(
            {
                "wall_time_s": scan.wall_time_s[index],
                "template": int(scan.template[index]),
                "inputs": [next(inputs) for _ in range(scan.num_inputs[index])],
                "outputs": [next(outputs) for _ in range(scan.num_outputs[index])],
                "contents": [scan.buffer[start : start + length] if length else b"" for start, length in contents],
            }
        )
    return rows


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("file", ["execution", "graph_execution_traces"])
@pytest.mark.parametrize("max_bytes", [1000, 2**20])
def test_the_native_scanner_agrees_with_the_python_one(recorded: Path, mode: str, file: str, max_bytes: int) -> None:
    core = pytest.importorskip("tfdbg_arrow.writer.native._core")
    (path,) = (recorded / mode).glob(f"*.{file}")
    content = path.read_bytes()
    for data in (content, content[: len(content) - 7], content[:-200] + b"\x00" + content[-199:]):
        native_seen, python_seen = _Seen(), _Seen()
        native = NativeScanner(core, io.BytesIO(data), intern=native_seen, max_bytes=max_bytes)
        python = PythonScanner(io.BytesIO(data), intern=python_seen)
        assert _scanned(native) == _scanned(python)
        assert native_seen.messages == python_seen.messages
        assert (native.offset, native.damage) == (python.offset, python.damage)


class _Seen:
    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def __call__(self, event: Any) -> int:
        self.messages.append(event.SerializeToString(deterministic=True))
        return len(self.messages) - 1
