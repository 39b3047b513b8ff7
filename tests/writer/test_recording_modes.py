"""The columns and rows that each mode and filter records, compared with the text of the specification."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.errors import LogdirError, SettingError
from tfdbg_arrow.schema import table
from tfdbg_arrow.writer.settings import Request

from .tables import rows

SPEC = (Path(__file__).parents[2] / "spec" / "README.md").read_text("utf-8")
MODES = ("NO_TENSOR", "CURT_HEALTH", "CONCISE_HEALTH", "FULL_HEALTH", "FULL_NUMERICS", "SHAPE", "FULL_TENSOR")
DESCRIPTION = {"rank", "shape", "size"}
VALUES = np.array([[1.0, -2.0, 0.0], [np.nan, np.inf, -np.inf]], np.float32)


def spec_table(heading: str) -> list[list[str]]:
    """Returns the cells of the first table under a heading of the specification."""
    section = SPEC.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    first = section.index("|---|")
    lines = section[first:].splitlines()[1:]
    cells = []
    for line in lines:
        if not line.startswith("|"):
            break
        cells.append([cell.strip() for cell in line.strip("|").split("|")])
    return cells


def columns_of_modes() -> dict[str, set[str]]:
    """Returns the measured columns of tensor_health that each mode fills, according to the specification."""
    magnitudes = SPEC.partition("Magnitudes cover")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in magnitudes.splitlines() if line.startswith("| `")]
    names = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    filled: dict[str, set[str]] = {}
    previous: set[str] = set()
    for mode, text in spec_table("Modes"):
        columns = set(re.findall(r"`([a-z_]+)`", text)) - {"tensor_value", "capture_stat", "tensor_health"}
        if "rank, shape, size" in text:
            columns |= DESCRIPTION
        if "the same" in text:
            columns |= previous
        if "the magnitudes" in text:
            columns |= names
        if "as `FULL_HEALTH`" in text:
            columns |= filled["FULL_HEALTH"]
        previous = filled[mode.strip("`")] = columns
    return filled


FILLED = columns_of_modes()
MEASURED = set.union(*FILLED.values())


def test_the_specification_covers_every_mode_and_column() -> None:
    assert tuple(FILLED) == MODES
    known = {column.name for column in table("tensor_health").columns}
    assert known >= MEASURED
    assert len(FILLED["FULL_NUMERICS"]) == 3 + 1 + 2 + 1 + 6 + 6


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_fills_only_its_columns(mode: str, tmp_path: Path) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.negative(x)

    with tfdbg_arrow.capture(tmp_path, mode):
        tf.identity(f(VALUES))
    health = rows(tmp_path)
    if mode == "NO_TENSOR":
        assert health == []
    else:
        assert {row["scope"] for row in health} == {"graph", "execution", "external"}
    for row in health:
        assert {name for name in MEASURED if row[name] is not None} == FILLED[mode] - {"scalar_value"}
        assert (row["rank"], row["shape"], row["size"], row["dtype"]) == (2, [2, 3], 6, "float32")
        if "num_nan" in FILLED[mode]:
            assert (row["num_neg_inf"], row["num_pos_inf"], row["num_nan"]) == (1, 1, 1)
        if "num_zero" in FILLED[mode]:
            assert (row["num_neg_finite"], row["num_zero"], row["num_pos_finite"]) == (1, 1, 1)
        if "has_inf_or_nan" in FILLED[mode]:
            assert row["has_inf_or_nan"] is True
    negated = [row for row in health if row["op_type"] == "Neg"]
    if mode == "FULL_NUMERICS":
        (row,) = negated
        assert (row["min_finite"], row["max_finite"], row["max_abs_finite"]) == (-1.0, 2.0, 2.0)
        assert row["num_subnormal"] == 0
        assert row["mean_finite"] == pytest.approx(1 / 3)
    # All modes record executions, graphs and ops.
    op_types = [row["op_type"].rstrip("0123456789") for row in rows(tmp_path, "execution")]
    assert op_types == ["__inference_f_", "Identity"]
    reasons = {row["op_name"]: row["not_recorded_reason"] for row in rows(tmp_path, "graph_op_output")}
    assert reasons["Neg"] == ("mode" if mode == "NO_TENSOR" else None)
    values = {row["event_index"] for row in rows(tmp_path, "tensor_value")}
    assert values == ({row["event_index"] for row in health} if mode == "FULL_TENSOR" else set())
    (run,) = rows(tmp_path, "run")
    assert (run["tensor_debug_mode"], run["circular_buffer_size"], run["op_regex"]) == (mode, -1, None)
    assert rows(tmp_path, "capture_stat") == []


NUMPY_OF: dict[str, Any] = {
    **{name: getattr(ml_dtypes, name) for name in ("bfloat16", "float8_e5m2", "float8_e4m3fn")},
    **{name: getattr(ml_dtypes, name) for name in ("float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2fnuz")},
    **{name: np.dtype(name) for name in ("float16", "float32", "float64", "complex64", "complex128", "bool")},
    **{name: np.dtype(name) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
}
INTEGERS = {name for name in NUMPY_OF if name.startswith(("int", "uint"))}
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (3,), (2, 3), (2, 0, 3), (1, 2, 1, 2, 1, 2, 1, 2), (1,) * 30)


def array_of(name: str, shape: tuple[int, ...]) -> Any:
    generator = np.random.default_rng(len(shape))
    values = generator.integers(-3 if name[0] != "u" else 0, 4, size=shape)
    return np.asarray(values).astype(NUMPY_OF[name])


def identities(arrays: list[Any]) -> None:
    """Passes each array to an eager op and to a function whose ops TensorFlow's optimizer would remove."""

    @tf.function
    def f(*tensors: tf.Tensor) -> Any:
        # Shapes are recorded, too, but have another dtype.
        shapes = [tf.shape(tensor, tf.int64 if tensor.dtype == tf.int32 else tf.int32) for tensor in tensors]
        return [tf.reshape(tensor, shape) for tensor, shape in zip(tensors, shapes, strict=True)]

    tensors = [tf.constant(array) for array in arrays]
    for tensor in tensors:
        tf.raw_ops.Identity(input=tensor)
    f(*tensors)


def test_full_tensor_keeps_the_bytes(tmp_path: Path) -> None:
    arrays = {name: [array_of(name, shape) for shape in SHAPES] for name in NUMPY_OF}
    with tfdbg_arrow.capture(tmp_path, "FULL_TENSOR", graphs="traced"):
        for of_dtype in arrays.values():
            identities(of_dtype)
    health = {row["event_index"]: row for row in rows(tmp_path)}
    kept: dict[tuple[str, str], set[tuple[tuple[int, ...], bytes]]] = {}
    for value in rows(tmp_path, "tensor_value"):
        row = health[value["event_index"]]
        assert (value["dtype"], value["shape"]) == (row["dtype"], row["shape"])
        if row["op_type"] == "Identity" or row["op_type"] == "Reshape" or row["scope"] == "external":
            kept.setdefault((row["dtype"], row["scope"]), set()).add((tuple(value["shape"]), value["value"]))
    for name, of_dtype in arrays.items():
        expected = {(array.shape, array.tobytes()) for array in of_dtype}
        for scope in ("graph", "execution", "external"):
            assert kept[name, scope] == expected, (name, scope)
    assert rows(tmp_path, "capture_stat") == []


@pytest.mark.parametrize("mode", ["FULL_HEALTH", "SHAPE"])
def test_shapes_of_every_rank(mode: str, tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path, mode, graphs="traced"):
        identities([array_of("float32", shape) for shape in SHAPES])
    for scope, op_type in (("graph", "Reshape"), ("execution", "Identity"), ("external", None)):
        found = {
            (tuple(row["shape"]), row["rank"], row["size"])
            for row in rows(tmp_path)
            if row["scope"] == scope and row["op_type"] == op_type
        }
        assert found == {(shape, len(shape), int(np.prod(shape))) for shape in SHAPES}


def program() -> None:
    """Runs ops of several types and dtypes, eagerly and in a function."""

    @tf.function
    def f(x: tf.Tensor, n: tf.Tensor) -> Any:
        y = tf.exp(x) + 1.0
        return tf.cast(y, tf.float64), n * n, n > 2, tf.as_string(n)

    x, n = tf.constant([1.0, 2.0]), tf.constant([1, -2, 3])
    f(x, n)
    tf.exp(x)
    tf.abs(n)
    tf.cast(x, tf.float16)
    tf.complex(x, x)


def seen(logdir: Path) -> set[tuple[str, str | None, str]]:
    ops = [row for row in rows(logdir) if not (row["op_type"] or "").startswith("__")]
    return {(row["scope"], row["op_type"], row["dtype"]) for row in ops}


class TestFilters:
    def test_op_regex_matches_from_the_start_of_the_type(self, tmp_path: Path) -> None:
        with tfdbg_arrow.capture(tmp_path, op_regex="(Exp|Add|Com)"):
            program()
        health = {row for row in seen(tmp_path) if row[0] != "external"}
        assert health == {
            ("graph", "Exp", "float32"),
            ("graph", "AddV2", "float32"),
            ("execution", "Exp", "float32"),
            ("execution", "Complex", "complex64"),
        }
        reasons = {row["op_name"]: row["not_recorded_reason"] for row in rows(tmp_path, "graph_op_output")}
        assert (reasons["Exp"], reasons["Cast"], reasons["mul"]) == (None, "op_regex", "dtype")
        assert rows(tmp_path, "run")[0]["op_regex"] == "(Exp|Add|Com)"
        assert len(rows(tmp_path, "execution")) == 5

    @pytest.mark.parametrize(
        ("tensor_dtypes", "expected", "text"),
        [
            (["float64", tf.float16], {"float64", "float16"}, '["float16","float64"]'),
            ((np.float32, "bool"), {"float32", "bool"}, '["bool","float32"]'),
            ([tf.int32], {"int32"}, '["int32"]'),
            ([], set(), "[]"),
            (lambda dtype: dtype.is_complex or dtype.is_bool, {"complex64", "bool"}, None),
            (lambda dtype: dtype.is_integer, {"int32"}, None),
        ],
    )
    def test_tensor_dtypes(self, tensor_dtypes: Any, expected: set[str], text: str | None, tmp_path: Path) -> None:
        with tfdbg_arrow.capture(tmp_path, tensor_dtypes=tensor_dtypes):
            program()
        health = rows(tmp_path)
        assert {row["dtype"] for row in health} == expected
        (run,) = rows(tmp_path, "run")
        if text is None:
            assert "<lambda>" in run["tensor_dtypes"]
        else:
            assert run["tensor_dtypes"] == text
        for row in health:
            if row["dtype"] == "int32" and row["op_type"] == "Mul":
                assert (row["num_nan"], row["num_neg_finite"], row["num_zero"], row["num_pos_finite"]) == (0, 0, 0, 3)
        reasons = {row["op_name"]: row["not_recorded_reason"] for row in rows(tmp_path, "graph_op_output")}
        assert reasons["Cast"] == (None if "float64" in expected else "tensor_dtypes")
        assert reasons["AsString"] == "dtype"

    def test_both_filters_must_match(self, tmp_path: Path) -> None:
        with tfdbg_arrow.capture(tmp_path, op_regex="Cast", tensor_dtypes=["float64"]):
            program()
        assert {row for row in seen(tmp_path) if row[0] != "external"} == {("graph", "Cast", "float64")}

    @pytest.mark.parametrize("mode", ["SHAPE", "FULL_TENSOR"])
    def test_modes_that_cover_every_number(self, mode: str, tmp_path: Path) -> None:
        with tfdbg_arrow.capture(tmp_path, mode):
            program()
        dtypes = {row["dtype"] for row in rows(tmp_path)}
        kept = {"string"} if mode == "FULL_TENSOR" else set()
        assert dtypes == {"float32", "float64", "float16", "complex64", "int32", "bool"} | kept


class TestCircularBuffer:
    def test_keeps_the_last(self, tmp_path: Path) -> None:
        @tf.function
        def f(x: tf.Tensor) -> tf.Tensor:
            return tf.maximum(x, 1.0)  # three tensors: the argument, the constant, and the result

        with tfdbg_arrow.capture(tmp_path, circular_buffer_size=6):
            for i in range(20):
                tf.identity(f(tf.constant(float(i))))
        executions = sorted(rows(tmp_path, "execution"), key=lambda row: row["execution_index"])
        assert [row["execution_index"] for row in executions] == list(range(34, 40))
        health = rows(tmp_path)
        assert {row["execution_index"] for row in health if row["scope"] == "execution"} == set(range(34, 40))
        graph = [row for row in health if row["scope"] == "graph"]
        assert {row["execution_index"] for row in graph} == {36, 38}
        assert len(graph) == 6
        (stat,) = rows(tmp_path, "capture_stat")
        assert (stat["stat"], stat["reason_code"], stat["num_events"]) == ("dropped", "circular_buffer", 34 + 54)

    @pytest.mark.parametrize("size", [0, -1, -7])
    def test_keeps_all_without_a_size(self, size: int, tmp_path: Path) -> None:
        with tfdbg_arrow.capture(tmp_path, circular_buffer_size=size):
            for i in range(20):
                tf.identity(float(i))
        assert len(rows(tmp_path, "execution")) == 20


class TestErrors:
    @pytest.mark.parametrize(
        ("settings", "value", "expected"),
        [
            ({"tensor_debug_mode": "FULL"}, "'FULL'", "expected one of CONCISE_HEALTH, CURT_HEALTH"),
            ({"tensor_debug_mode": None}, "None", "expected one of"),
            ({"tensor_debug_mode": 3}, "3", "expected one of"),
            ({"circular_buffer_size": 1.5}, "1.5", "expected an integer"),
            ({"circular_buffer_size": True}, "True", "expected an integer"),
            ({"op_regex": "("}, "'('", "no regular expression"),
            ({"op_regex": 5}, "5", "no regular expression"),
            ({"tensor_dtypes": "float32"}, "'float32'", "expected None, a list"),
            ({"tensor_dtypes": ["float31"]}, "float31", "expected None, a list"),
            ({"tensor_dtypes": [tf.string]}, "string", "mode FULL_HEALTH can record only bfloat16"),
            ({"tensor_dtypes": 5}, "5", "expected None, a list"),
            ({"health_backend": "gpu"}, "'gpu'", "expected one of auto, native, tensorflow"),
            ({"max_memory_bytes": 10}, "10", "from 201326592"),
            ({"when_full": "block"}, "'block'", "expected one of wait, drop"),
        ],
    )
    def test_an_invalid_setting(self, settings: dict[str, Any], value: str, expected: str, tmp_path: Path) -> None:
        with pytest.raises(SettingError) as caught:
            tfdbg_arrow.enable(tmp_path / "logdir", **settings)
        self.assert_one_sentence(str(caught.value), next(iter(settings)), value, expected)
        assert not (tmp_path / "logdir").exists()
        assert not tfdbg_arrow.is_recording()

    def test_a_callable_that_raises(self, tmp_path: Path) -> None:
        def choose(dtype: Any) -> bool:
            raise ZeroDivisionError("of the program")

        with pytest.raises(SettingError) as caught:
            tfdbg_arrow.enable(tmp_path / "logdir", tensor_dtypes=choose)
        self.assert_one_sentence(str(caught.value), "tensor_dtypes", "choose", "of the program")

    @pytest.mark.parametrize(
        ("kind", "expected"),
        [
            ("file", "is a file; expected a directory"),
            ("link to nowhere", "cannot be written"),
            ("broken marker", "tfdbg_arrow.json"),
            ("newer version", "9.0"),
        ],
    )
    def test_a_logdir_that_cannot_be_used(self, kind: str, expected: str, tmp_path: Path) -> None:
        logdir = tmp_path / "logdir"
        if kind == "file":
            logdir.write_text("x")
        elif kind == "link to nowhere":
            logdir.symlink_to(tmp_path / "missing" / "x")
        else:
            logdir.mkdir()
            marker = json.dumps({"format": "tfdbg_arrow", "format_version": "9.0"})
            (logdir / "tfdbg_arrow.json").write_text(marker if kind == "newer version" else "{")
        with pytest.raises(LogdirError) as caught:
            tfdbg_arrow.enable(logdir)
        self.assert_one_sentence(str(caught.value), "logdir", expected)
        assert not tfdbg_arrow.is_recording()

    def test_a_new_logdir_can_be_checked_many_times_at_once(self, tmp_path: Path) -> None:
        def check(_: int) -> Path:
            return Request(logdir=tmp_path / "logdir").check(tf.as_dtype).logdir

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(check, range(500))) == {tmp_path / "logdir"}
        assert list((tmp_path / "logdir").iterdir()) == []

    def assert_one_sentence(self, text: str, *parts: str) -> None:
        for part in parts:
            assert part in text
        assert "\n" not in text
        assert text.count(". ") == 0
