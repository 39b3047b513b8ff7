"""Test that a script never holds code that a logdir chose, and that inputs are read from the tables that have them."""

from __future__ import annotations

import io
import tokenize
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfdbg_arrow
from tests.reproduction.logdirs import VALUES, elements, logdir_of
from tests.viewer.logdirs import HOSTILE
from tfdbg_arrow.errors import BrokenPartError, QueryError, ReproError
from tfdbg_arrow.reproduction.op_signatures import signature_of
from tfdbg_arrow.schema.dtypes import encode_strings

CODE = (
    "x\nimport os; os.system('true')",
    "x\r\nraise SystemExit(3)",
    "x\x0c\nraise SystemExit(3)\x85\u2028raise SystemExit(4)",
    '"""\nraise SystemExit(5)\n"""',
    "')\nraise SystemExit(6)\n('",
    "{x0.__class__}",
    "\\",
    "# coding: utf-7",
)
"""Texts that are code if they leave the comment or the literal that they are in."""


def _code(path: str) -> list[tuple[int, str]]:
    """Returns the tokens of a script, without comments and blank lines."""
    text = Path(path).read_text(encoding="utf-8")
    left_out = (tokenize.COMMENT, tokenize.NL)
    return [
        (token.type, token.string)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in left_out
    ]


@pytest.mark.parametrize("text", ["".join(CODE), "".join(reversed(CODE)), CODE[0], "".join(HOSTILE[:-1]), HOSTILE[-1]])
def test_texts_of_a_logdir_do_not_change_the_code(text: str, tmp_path: Path) -> None:
    attributes = {text: text, "T": text, "_class": [text], "x": {"dtype": text}}
    harmless = tfdbg_arrow.write_repro(logdir_of(tmp_path / "a", values=VALUES), tmp_path / "repro.py")
    expected = _code(harmless.path)
    logdir = logdir_of(tmp_path / "b", text, attributes=attributes, values=VALUES, source_op=text)
    hostile = tfdbg_arrow.write_repro(logdir, tmp_path / "repro.py")
    assert _code(hostile.path) == expected
    compile(Path(hostile.path).read_bytes(), "repro.py", "exec")


@pytest.mark.parametrize("op_type", ["".join(CODE), "WriteFile"])
def test_other_ops_than_those_on_numbers_are_refused(op_type: str, tmp_path: Path) -> None:
    logdir = logdir_of(tmp_path / "logdir", op_type=op_type, values=VALUES)
    with pytest.raises(ReproError, match="the op that ran is"):
        tfdbg_arrow.write_repro(logdir, tmp_path / "repro.py")
    assert not (tmp_path / "repro.py").exists()


def test_no_op_that_a_script_may_run_reads_files_or_calls_python() -> None:
    names = "ReadFile WriteFile MatchingFiles PyFunc PyFuncStateless EagerPyFunc DebugIdentity SaveV2 RestoreV2 Save "
    names += "ImmutableConst PrintV2 Const PartitionedCall While LoadLibrary _Send DecodeImage TFRecordReader __class__"
    assert {name: signature_of(name) for name in names.split()} == dict.fromkeys(names.split())
    assert signature_of("Log") is not None


@pytest.mark.parametrize("attributes", [{"keep_dims": "os.system('true')"}, {"keep_dims": {"a": 1}}])
def test_an_attribute_of_another_type_is_refused(attributes: dict[str, Any], tmp_path: Path) -> None:
    inputs = {0: ("float32", [2], elements(0, 1)), 1: ("int32", [1], np.array([0], "<i4").tobytes())}
    logdir = logdir_of(tmp_path / "logdir", op_type="Sum", attributes=attributes, inputs=inputs)
    with pytest.raises(ReproError, match="attribute keep_dims of Sum"):
        tfdbg_arrow.write_repro(logdir, tmp_path / "repro.py")


def test_known_attributes_are_arguments(tmp_path: Path) -> None:
    inputs = {0: ("float32", [2], elements(0, 1)), 1: ("int32", [1], np.array([0], "<i4").tobytes())}
    logdir = logdir_of(tmp_path / "logdir", op_type="Sum", attributes={"keep_dims": True, "T": 1}, inputs=inputs)
    repro = tfdbg_arrow.write_repro(logdir, tmp_path / "repro.py")
    assert "tf.raw_ops.Sum(input=x0, axis=x1, keep_dims=True)" in Path(repro.path).read_text(encoding="utf-8")


def test_attributes_that_are_not_json_are_refused(tmp_path: Path) -> None:
    logdir = logdir_of(tmp_path / "logdir", attributes=["no", "object"], values=VALUES)
    with pytest.raises(ReproError, match="no JSON object"):
        tfdbg_arrow.write_repro(logdir, tmp_path / "repro.py")


def test_kept_inputs_come_before_recorded_tensors(tmp_path: Path) -> None:
    kept = {0: ("float32", [2], elements(0, 9))}
    repro = tfdbg_arrow.write_repro(logdir_of(tmp_path / "a", values=VALUES, inputs=kept), tmp_path / "repro.py")
    with np.load(repro.data_path, allow_pickle=False) as arrays:
        assert arrays["x0"].tolist() == [0, 9]
    repro = tfdbg_arrow.write_repro(logdir_of(tmp_path / "b", inputs=kept), tmp_path / "repro.py")
    with np.load(repro.data_path, allow_pickle=False) as arrays:
        assert arrays["x0"].tolist() == [0, 9]
    repro = tfdbg_arrow.write_repro(logdir_of(tmp_path / "c", values=VALUES), tmp_path / "repro.py")
    with np.load(repro.data_path, allow_pickle=False) as arrays:
        assert arrays["x0"].tolist() == [0, 1]


def test_missing_elements_are_an_error_that_says_how_to_record_them(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match=r'input 0 of Log.*on_nonfinite="keep".*values=.*FULL_TENSOR'):
        tfdbg_arrow.write_repro(logdir_of(tmp_path / "logdir"), tmp_path / "repro.py")


@pytest.mark.parametrize(
    ("dtype", "shape", "value"),
    [
        ("float32", [3], elements(0, 1)),
        ("float32", [-2], elements(0, 1)),
        ("float32", [2**40, 2**40], b""),
        ("import os", [2], elements(0, 1)),
        ("resource", [2], elements(0, 1)),
        ("string", [2], b"\xff" * 16),
    ],
)
def test_elements_that_are_no_tensor_are_an_error(dtype: str, shape: list[int], value: bytes, tmp_path: Path) -> None:
    logdir = logdir_of(tmp_path / "logdir", inputs={0: (dtype, shape, value)})
    with pytest.raises(BrokenPartError, match="input_value"):
        tfdbg_arrow.write_repro(logdir, tmp_path / "repro.py")


@pytest.mark.slow
def test_elements_of_all_dtypes_are_stored_without_pickle(tmp_path: Path) -> None:
    texts = encode_strings([b"a\x00", b"", b"\xff"])
    for dtype, shape, value in (
        ("bfloat16", [2], b"\x80\x7f\x00\x00"),
        ("float8_e5m2", [2, 1], b"\x7c\x00"),
        ("float16", [], b"\x00\x7c"),
        ("complex64", [0, 2], b""),
        ("string", [3], texts),
    ):
        logdir = logdir_of(tmp_path / dtype, inputs={0: (dtype, shape, value)})
        repro = tfdbg_arrow.write_repro(logdir, tmp_path / "repro.py")
        assert [(input_.dtype, list(input_.shape)) for input_ in repro.inputs] == [(dtype, shape)]
        with np.load(repro.data_path, allow_pickle=False) as arrays:
            assert arrays["x0"].tobytes() == value


def test_arguments_are_checked(tmp_path: Path) -> None:
    logdir = logdir_of(tmp_path / "logdir", values=VALUES)
    with pytest.raises(QueryError, match=r"ends in \.py"):
        tfdbg_arrow.write_repro(logdir, tmp_path / "repro.txt")
    with pytest.raises(QueryError, match="depth is -1"):
        tfdbg_arrow.write_repro(logdir, tmp_path / "repro.py", depth=-1)
    with pytest.raises(QueryError, match="holds no infinity"):
        tfdbg_arrow.write_repro(logdir, tmp_path / "repro.py", event_index=0)
    with pytest.raises(ReproError, match="cannot be written"):
        tfdbg_arrow.write_repro(logdir, tmp_path / "missing" / "repro.py")
