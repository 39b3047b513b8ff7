"""Stacks of ops: the innermost user frame is the line that created the op."""

from __future__ import annotations

import importlib.util
import linecache
import os
import sys
import textwrap
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.writer.program import EXECUTE_MAIN_CODE
from tfdbg_arrow.writer.source_parts import Columns, executed_part, span_of
from tfdbg_arrow.writer.stacks import FrameOwners, StackTable, lineno_of

from .tables import rows

X = tf.constant([0.25, 0.5])
Frame = dict[str, Any]


class Stacks:
    """The stacks of a recording, by op type."""

    def __init__(self, logdir: Path) -> None:
        frames = {row["stack_frame_id"]: row for row in rows(logdir, "stack_frame")}
        self._traces: dict[int, list[Frame]] = {}
        for row in sorted(rows(logdir, "stack_trace"), key=lambda row: row["depth"]):
            self._traces.setdefault(row["stack_trace_id"], []).append(frames[row["stack_frame_id"]])
        self._ops = rows(logdir, "graph_op") + rows(logdir, "execution")
        self.sources = {row["file_path"]: row["source_text"] for row in rows(logdir, "source_file")}

    def of(self, op_type: str) -> list[Frame]:
        """Returns the frames of the only op of a type, innermost first."""
        (op,) = (op for op in self._ops if op["op_type"] == op_type)
        return self._traces[op["stack_trace_id"]]

    def user_frames(self, op_type: str) -> list[Frame]:
        """Returns the user's innermost frame of each op of a type."""
        stacks = [self._traces[op["stack_trace_id"]] for op in self._ops if op["op_type"] == op_type]
        return [next(frame for frame in stack if frame["owner"] == "user") for stack in stacks]

    def user_frame(self, op_type: str) -> Frame:
        return next(frame for frame in self.of(op_type) if frame["owner"] == "user")

    def place(self, op_type: str) -> tuple[str, int, str]:
        frame = self.user_frame(op_type)
        return Path(frame["file_path"]).name, frame["lineno"], frame["func"].rpartition(".")[2]


PROGRAM = """
import tensorflow as tf

def eager(x):
    y = tf.sinh(x)
    return [
        y,
        tf.cosh(
            x,
        ),
    ]

@tf.function
def plain(x):
    return tf.tan(x)

def helper(x):
    return tf.atan(x)

@tf.function
def nested(x):
    def inner(y):
        return tf.asinh(y) + helper(y)
    twice = lambda y: tf.atanh(y)
    return inner(x) + twice(x)

@tf.function
def control(x):
    for _ in tf.range(2):
        if tf.reduce_sum(x) > 0.0:
            x = tf.math.erf(x)
        else:
            x = tf.math.lgamma(x)
    while tf.reduce_prod(x) > 10.0:
        x = tf.math.rsqrt(x)
    return tf.math.erfc(x) if x[0] > 0.0 else tf.math.digamma(x)

@tf.function
def several_lines(x):
    y = (
        tf.math.erfinv(x)
        +
        tf.math.ndtri(
            x
        )
    )
    return y

class Model(tf.Module):
    @tf.function
    def __call__(self, x):
        return self.layer(x)

    def layer(self, x):
        return tf.math.bessel_i0e(x)

def eager_gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.sigmoid(x)
    return tape.gradient(y, x)

@tf.function
def gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nn.softsign(x)
    return tape.gradient(y, x)

@tf.function
def forward(x):
    return tf.nn.elu(x)

def outer_gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = forward(x)
    return tape.gradient(y, x)

def data_set(x):
    return list(tf.data.Dataset.from_tensors(x).map(lambda y: tf.math.bessel_i1e(y)))

def python(x):
    return tf.math.log1p(x)

@tf.function
def calls_python(x):
    return tf.py_function(python, [x], tf.float32)

def run(x):
    eager(x), plain(x), nested(x), control(x), several_lines(x), Model()(x)
    eager_gradient(x), gradient(x), outer_gradient(x), data_set(x), calls_python(x)
"""

PLACES = {
    "Sinh": ("y = tf.sinh(x)", "eager"),
    "Cosh": ("tf.cosh(", "eager"),
    "Tan": ("return tf.tan(x)", "plain"),
    "Atan": ("return tf.atan(x)", "helper"),
    "Asinh": ("return tf.asinh(y) + helper(y)", "inner"),
    "Atanh": ("twice = lambda y: tf.atanh(y)", "nested"),
    "Erf": ("x = tf.math.erf(x)", "control"),
    "Lgamma": ("x = tf.math.lgamma(x)", "control"),
    "Prod": ("while tf.reduce_prod(x) > 10.0:", "control"),
    "Rsqrt": ("x = tf.math.rsqrt(x)", "control"),
    "Erfc": ("return tf.math.erfc(x) if x[0] > 0.0 else tf.math.digamma(x)", "control"),
    "Digamma": ("return tf.math.erfc(x) if x[0] > 0.0 else tf.math.digamma(x)", "control"),
    "Erfinv": ("tf.math.erfinv(x)", "several_lines"),
    "Ndtri": ("tf.math.ndtri(", "several_lines"),
    "BesselI0e": ("return tf.math.bessel_i0e(x)", "layer"),
    "Sigmoid": ("y = tf.sigmoid(x)", "eager_gradient"),
    "SigmoidGrad": ("return tape.gradient(y, x)", "eager_gradient"),
    "Softsign": ("y = tf.nn.softsign(x)", "gradient"),
    "SoftsignGrad": ("return tape.gradient(y, x)", "gradient"),
    "Elu": ("return tf.nn.elu(x)", "forward"),
    # The backward function is traced when the function is called under a tape.
    "EluGrad": ("y = forward(x)", "outer_gradient"),
    "BesselI1e": ("return list(tf.data.Dataset.from_tensors(x).map(lambda y: tf.math.bessel_i1e(y)))", "<lambda>"),
    "Log1p": ("return tf.math.log1p(x)", "python"),
}
"""The line that creates the op and the function of that line, by op type."""


def load(path: Path, text: str) -> ModuleType:
    """Writes a module and imports it."""
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"module_{abs(hash(path))}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Stacks:
    directory = tmp_path_factory.mktemp("stacks")
    module = load(directory / "program.py", PROGRAM)
    with tfdbg_arrow.capture(directory / "logdir"):
        module.run(X)
    return Stacks(directory / "logdir")


@pytest.mark.parametrize("op_type", PLACES)
def test_the_innermost_user_frame(op_type: str, recorded: Stacks) -> None:
    code, func = PLACES[op_type]
    frame = recorded.user_frame(op_type)
    lines = PROGRAM.splitlines()
    assert frame["code"] == code
    assert lines[frame["lineno"] - 1].strip() == code
    assert (Path(frame["file_path"]).name, frame["func"].rpartition(".")[2]) == ("program.py", func)


COLUMNS_PROGRAM = """
import tensorflow as tf

def two_calls(x):
    return tf.sinh(x) + tf.cosh(x)

def beyond_ascii(x):
	return "漢字 ä", tf.math.erf(x), "é"

def several_lines(x):
    return 1.0 * tf.math.erfc(
        x,
    )

@tf.function(autograph=False)
def traced(x):
    return tf.asinh(x), tf.atan(x)

@tf.function
def converted(x):
    return tf.asin(x), tf.acos(x)

def run(x):
    two_calls(x), beyond_ascii(x), several_lines(x), traced(x), converted(x)
"""
COLUMNS = {
    "Sinh": "tf.sinh(x)",
    "Cosh": "tf.cosh(x)",
    "AddV2": "tf.sinh(x) + tf.cosh(x)",
    "Erf": "tf.math.erf(x)",
    "Erfc": "tf.math.erfc(",
    "Asinh": "tf.asinh(x)",
    "Atan": "tf.atan(x)",
    "Asin": "tf.asin(x)",
    "Acos": "tf.acos(x)",
}
"""The part of the line that creates the op, by op type."""


def test_the_part_of_the_line(tmp_path: Path) -> None:
    module = load(tmp_path / "program.py", COLUMNS_PROGRAM)
    with tfdbg_arrow.capture(tmp_path / "logdir"):
        module.run(X)
    stacks = Stacks(tmp_path / "logdir")
    found = {}
    for op_type in COLUMNS:
        frame = stacks.user_frame(op_type)
        start, end = frame["colno"], frame["end_colno"]
        line = COLUMNS_PROGRAM.splitlines()[frame["lineno"] - 1]
        found[op_type] = None if start is None or end is None else line[start - 1 : end - 1]
    assert found == COLUMNS
    frames = [frame for frame in rows(tmp_path / "logdir", "stack_frame") if frame["owner"] != "user"]
    assert {(frame["colno"], frame["end_colno"]) for frame in frames} == {(None, None)}


LINES_PROGRAM = """import tensorflow as tf

def body(x, y):
    z = tf.where(
        x > 0.0,
        tf.math.lgamma(x), x) / tf.where(
            x > 0.0, x, x - y)
    z = tf.square(z *  # the values of x, "é (
        tf.asin(x)
    )
    z = (
        (z
            )  # behind a parenthesis
            // (y)
    )
    z = ("é", tf.asinh(
        z), tf.acosh(z))[1]
    z = (
        tf.sinh(z)
            + tf.cosh(z)
            + tf.tan(z) ** tf.atan(
                z)
    )
    return (tf
        .math
        .erf(
            z))

def lambdas(x, y):
    first = lambda x: (
        x
        + y)
    return first(
        x) if (x[0]
        >= 1.0) else first(
        tf.maximum(
        x, y))

def outer():
    def indented(x, y):
        z = x * \\
            tf.math.expm1(
                x) \\
            / tf.math.log1p("é" and y)
        return tf.abs(
            tf.math.rsqrt(z)  # the inverse
            - tf.math.digamma(
        z)
        )
    return indented

class Module(tf.Module):
    @tf.function(
        jit_compile=False)
    def __call__(self, x, y):
        return (
            tf.math.erfc(x)
            < tf.math.erfinv(y))

indented_function = tf.function(outer())
body_function, lambdas_function = tf.function(body), tf.function(
    lambdas)
lambda_function = tf.function(lambda x, y: tf.math.cumsum(x
    % y))

def run(x):
    tf.config.run_functions_eagerly(EAGER)
    indented_function(x, x), Module()(x, x), body_function(x, x), lambdas_function(x, x), lambda_function(x, x)
"""
LINE_PARTS = {
    "Greater": {(5, "x > 0.0"), (7, "x > 0.0")},
    "Lgamma": {(6, "tf.math.lgamma(x)")},
    "SelectV2": {(4, "tf.where("), (6, "tf.where(")},
    "RealDiv": {(6, "/ tf.where("), (44, '/ tf.math.log1p("é" and y)')},
    "Sub": {(7, "x - y"), (47, "- tf.math.digamma(")},
    "Mul": {(41, "x * \\"), (8, 'z *  # the values of x, "é (')},
    "Square": {(8, 'tf.square(z *  # the values of x, "é (')},
    "Asin": {(9, "tf.asin(x)")},
    "FloorDiv": {(14, "// (y)")},
    "Asinh": {(16, "tf.asinh(")},
    "Acosh": {(17, "tf.acosh(z)")},
    "Sinh": {(19, "tf.sinh(z)")},
    "Cosh": {(20, "tf.cosh(z)")},
    "AddV2": {(20, "+ tf.cosh(z)"), (21, "+ tf.tan(z) ** tf.atan("), (32, "+ y")},
    "Tan": {(21, "tf.tan(z)")},
    "Pow": {(21, "tf.tan(z) ** tf.atan(")},
    "Atan": {(21, "tf.atan(")},
    "Erf": {(26, "erf(")},
    "GreaterEqual": {(35, ">= 1.0")},
    "Maximum": {(36, "tf.maximum(")},
    "Expm1": {(42, "tf.math.expm1(")},
    "Log1p": {(44, 'tf.math.log1p("é" and y)')},
    "Abs": {(45, "tf.abs(")},
    "Rsqrt": {(46, "tf.math.rsqrt(z)")},
    "Digamma": {(47, "tf.math.digamma(")},
    "Erfc": {(57, "tf.math.erfc(x)")},
    "Erfinv": {(58, "tf.math.erfinv(y)")},
    "Less": {(58, "< tf.math.erfinv(y)")},
    "FloorMod": {(64, "% y")},
    "Cumsum": {(63, "tf.math.cumsum(x")},
}
"""The lines that create ops, and the parts of these lines, by op type."""


@pytest.mark.parametrize("is_eager", [False, True], ids=["AutoGraph", "eager"])
def test_expressions_over_several_lines(tmp_path: Path, is_eager: bool) -> None:
    text = LINES_PROGRAM.replace("EAGER", str(is_eager))
    module = load(tmp_path / "program.py", text)
    try:
        with tfdbg_arrow.capture(tmp_path / "logdir"):
            module.run(X)
    finally:
        tf.config.run_functions_eagerly(False)
    stacks = Stacks(tmp_path / "logdir")
    lines = text.splitlines()
    found = {
        op_type: {
            (frame["lineno"], lines[frame["lineno"] - 1][frame["colno"] - 1 : frame["end_colno"] - 1])
            for frame in stacks.user_frames(op_type)
        }
        for op_type in LINE_PARTS
    }
    assert found == LINE_PARTS


def test_code_without_columns() -> None:
    """Python can omit columns (`-X no_debug_ranges`), and a file can change between its import and its recording."""
    code = compile("f(x), g(x)\n", "program.py", "exec")
    instructions = range(0, len(code.co_code), 2)

    def parts(lines: list[str]) -> set[Columns]:
        spans = [span_of(code, instruction) for instruction in instructions]
        return {executed_part(span, lines)[1] for span in spans if span is not None}

    assert parts(["f(x), g(x)\n"]) >= {(1, 5), (7, 11)}
    for lines in ([], ["f\n"]):
        assert parts(lines) <= {None, (1, 2)}
    without_columns = code.replace(co_linetable=bytes([0xE8 + 7, 0x02] * (len(code.co_code) // 16 + 1)))
    assert {position[2] for position in without_columns.co_positions()} == {None}
    assert {span_of(without_columns, instruction) for instruction in instructions} == {None}


def test_the_stack_reaches_the_caller(recorded: Stacks) -> None:
    frames = [(frame["func"].rpartition(".")[2], frame["owner"]) for frame in recorded.of("Atan")]
    users = [func for func, owner in frames if owner == "user"]
    assert users[:4] == ["helper", "inner", "nested", "run"]
    assert "recorded" in users  # a function of this file
    assert frames[0][1] == "framework"
    assert {owner for _, owner in frames} == {"user", "framework", "library"}


def test_no_frame_is_of_the_recorder_or_generated(recorded: Stacks) -> None:
    package = str(Path(tfdbg_arrow.__file__).parent)
    assert __file__ in recorded.sources
    for path in recorded.sources:
        assert not path.startswith(package)
        assert "__autograph_generated_file" not in path


def test_sources_are_stored_completely(recorded: Stacks) -> None:
    (text,) = (text for path, text in recorded.sources.items() if path.endswith("program.py"))
    assert text == PROGRAM
    assert recorded.sources[__file__] == Path(__file__).read_text("utf-8")


@pytest.mark.parametrize("name", ["<ipython-input-7-0123456789ab>", "/tmp/ipykernel_4242/1234567.py"])
def test_a_notebooks_cell_keeps_its_source(name: str, tmp_path: Path) -> None:
    cell = textwrap.dedent("""\
        @tf.function
        def f(x):
            return tf.math.expm1(x)
        y = tf.sin(f(X))
    """)
    linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
    with tfdbg_arrow.capture(tmp_path):
        exec(compile(cell, name, "exec"), {"tf": tf, "X": X, "__name__": "__main__"})
    stacks = Stacks(tmp_path)
    assert stacks.sources[name] == cell
    assert (stacks.user_frame("Expm1")["lineno"], stacks.user_frame("Expm1")["func"]) == (3, "f")
    assert stacks.user_frame("Sin")["code"] == "y = tf.sin(f(X))"


def test_a_file_that_changes_keeps_its_original_source(tmp_path: Path) -> None:
    path = tmp_path / "changing.py"
    text = "import tensorflow as tf\ndef first(x):\n    return tf.sin(x)\ndef second(x):\n    return tf.cos(x)\n"
    module = load(path, text)
    with tfdbg_arrow.capture(tmp_path / "logdir"):
        module.first(X)
        tfdbg_arrow.flush()
        path.write_text("# all is new\n" * 9, encoding="utf-8")
        linecache.checkcache(str(path))
        module.second(X)
    stacks = Stacks(tmp_path / "logdir")
    assert stacks.sources[str(path)] == text
    assert stacks.user_frame("Cos")["code"] == "return tf.cos(x)"


def test_names_beyond_ascii(tmp_path: Path) -> None:
    module = load(tmp_path / "größe_漢字.py", "import tensorflow as tf\ndef größe_π(x):\n    return tf.sin(x)  # π\n")
    with tfdbg_arrow.capture(tmp_path / "logdir"):
        module.größe_π(X)
    stacks = Stacks(tmp_path / "logdir")
    assert stacks.place("Sin") == ("größe_漢字.py", 3, "größe_π")
    assert stacks.user_frame("Sin")["code"] == "return tf.sin(x)  # π"


def test_a_path_that_is_not_utf_8(tmp_path: Path) -> None:
    """File names may contain bytes that are not UTF-8, but strings in Parquet may not."""
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.py")
    namespace: dict[str, Any] = {"tf": tf, "X": X}
    with tfdbg_arrow.capture(tmp_path / "logdir"):
        exec(compile("y = tf.sin(X)\n", name, "exec"), namespace)
    assert rows(tmp_path / "logdir", "capture_stat") == []
    stacks = Stacks(tmp_path / "logdir")
    assert stacks.place("Sin") == ("caf\\udce9.py", 1, "<module>")


def test_a_function_name_that_is_not_utf_8(tmp_path: Path) -> None:
    def double(x: Any) -> Any:
        return x + x

    double.__name__ = "caf\udce9"
    with tfdbg_arrow.capture(tmp_path):
        # TensorFlow also refuses the name, but only after it traced the function.
        with pytest.raises(TypeError, match="TF_GraphToFunction_wrapper"):
            tf.function(double, autograph=False)(X)
        tf.sin(X)
    assert rows(tmp_path, "capture_stat") == []
    (graph,) = rows(tmp_path, "graph")
    (function,) = rows(tmp_path, "graph_function")
    (argument,) = rows(tmp_path, "graph_function_input")
    (result,) = rows(tmp_path, "graph_function_output")
    assert graph["graph_name"] == "caf\\udce9"
    assert function["function_name"].startswith("__inference_caf\\udce9_")
    assert {row["function_name"] for row in (argument, result)} == {function["function_name"]}


def test_deep_recursion(tmp_path: Path) -> None:
    def descend(depth: int) -> Any:
        return descend(depth - 1) if depth else tf.sin(X)

    with tfdbg_arrow.capture(tmp_path):
        descend(400)
    frames = Stacks(tmp_path).of("Sin")
    assert sum(frame["func"].endswith("descend") for frame in frames) == 401


def test_each_distinct_stack_is_stored_once(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path) as capture:
        for _ in range(50):
            tf.sin(X)
    executions = rows(tmp_path, "execution")
    assert len(executions) == 50
    assert len({row["stack_trace_id"] for row in executions}) == 1, rows(tmp_path, "stack_frame")
    assert capture.run_id == executions[0]["run_id"]


def test_an_instruction_that_python_specializes_has_one_stack(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path):
        for _ in range(50):
            tuple(map(tf.sin, [X]))  # after some calls of a built-in function, Python replaces the call instruction
    executions = rows(tmp_path, "execution")
    assert len(executions) == 50
    assert len({row["stack_trace_id"] for row in executions}) == 1


class TestOwners:
    @pytest.mark.parametrize(
        ("path", "owner"),
        [
            (keras.__file__, "framework"),
            (tf.__file__, "framework"),
            ("/opt/other/lib/python3.11/site-packages/tensorflow/python/framework/ops.py", "framework"),
            ("/usr/lib/python3/dist-packages/keras/src/layers/layer.py", "framework"),
            ("/usr/lib/python3/dist-packages/numpy/linalg.py", "library"),
            ("/home/ada/tensorflow/train.py", "user"),
            (pytest.__file__, "library"),
            (os.__file__, "library"),
            ("<frozen importlib._bootstrap>", "library"),
            (__file__, "user"),
            ("<ipython-input-1-abc>", "user"),
            ("<string>", "user"),
        ],
    )
    def test_by_path(self, path: str, owner: str) -> None:
        assert FrameOwners().owner(path) == owner

    def test_packages_of_another_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend("/elsewhere/site-packages")
        monkeypatch.syspath_prepend("/elsewhere/project")
        owners = FrameOwners()
        assert owners.owner("/elsewhere/site-packages/tensorflow/ops.py") == "framework"
        assert owners.owner("/elsewhere/site-packages/numpy/core.py") == "library"
        assert owners.owner("/elsewhere/project/train.py") == "user"


def test_instructions_without_a_line_have_their_functions() -> None:
    code = compile("\n\nx = 1\n", "file.py", "exec")
    assert lineno_of(code, 10_000) == 1
    assert {lineno_of(code, instruction) for instruction in range(0, len(code.co_code), 2)} <= {1, 3}


def test_generated_helpers_of_one_statement_are_one_frame() -> None:
    code = compile("x = 1\n", "generated.py", "exec")
    found: list[tuple[str, Any]] = []
    traces: list[tuple[str, Any]] = []
    table = StackTable(
        lambda name, new, *notes: found.extend((name, row) for row in new),
        lambda name, columns, *notes: traces.append((name, columns)),
        lock=threading.RLock(),
        original_location=lambda path, lineno: ("user.py", 7, "f") if path == "generated.py" else None,
        original_span=lambda path, span: None,
    )
    table.add(5, [code, code, compile("y = 1\n", "other.py", "exec")], [0, 0, 0])
    assert traces == [("stack_trace", {"stack_trace_id": [5, 5], "depth": [0, 1], "stack_frame_id": [0, 1]})]
    assert [row["file_path"] for name, row in found if name == "stack_frame"] == ["user.py", "other.py"]


def test_equal_frames_of_other_code_objects_are_one_stack() -> None:
    traces: list[Any] = []
    table = StackTable(
        lambda name, new, *notes: [note() for note in notes],
        lambda name, columns, *notes: traces.append(columns["stack_trace_id"]),
        lock=threading.RLock(),
        original_location=lambda path, lineno: None,
        original_span=lambda path, span: None,
    )
    stack_ids = [table.add(stack_id, [compile("x = 1\n", "file.py", "exec")], [0]) for stack_id in (5, 6)]
    assert stack_ids == [5, 5]
    assert traces == [[5]]


def test_a_traceback_ends_before_the_command_line_that_ran_the_program() -> None:
    found: list[tuple[str, Any]] = []
    table = StackTable(
        lambda name, new, *notes: found.extend((name, row) for row in new),
        lambda name, columns, *notes: None,
        lock=threading.RLock(),
        original_location=lambda path, lineno: None,
        original_span=lambda path, span: None,
    )
    runner = (EXECUTE_MAIN_CODE.co_filename, 1, EXECUTE_MAIN_CODE.co_name)
    table.add_traceback([("train.py", 3, "step"), ("train.py", 9, "<module>"), runner, ("tfdbg-arrow", 8, "<module>")])
    assert [row["file_path"] for name, row in found if name == "stack_frame"] == ["train.py", "train.py"]


@pytest.mark.parametrize("interrupted", range(6))
def test_an_interruption_while_a_stack_is_written_loses_no_row(interrupted: int) -> None:
    """The interruption comes before or after the rows of one of three tables are added."""
    tables: dict[str, list[dict[str, Any]]] = {"source_file": [], "stack_frame": [], "stack_trace": []}
    num_calls = 0

    def interrupt() -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == interrupted + 1:
            raise KeyboardInterrupt

    def append(table: str, new: Any, *notes: Any) -> None:
        interrupt()
        for row in new:
            tables[table].append(row)
        for note in notes:
            note()
        interrupt()

    def append_columns(table: str, columns: Any, *notes: Any) -> None:
        append(table, [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)], *notes)

    table = StackTable(
        append,
        append_columns,
        lock=threading.RLock(),
        original_location=lambda path, lineno: None,
        original_span=lambda path, span: None,
    )
    first = [compile("x = 1\n", "first.py", "exec"), compile("y = 1\n", "second.py", "exec")]
    second = [first[1], compile("z = 1\n", "third.py", "exec")]
    with pytest.raises(KeyboardInterrupt):
        table.add(0, first, [0, 0])
    table.add(1, first, [0, 0])
    table.add(2, second, [0, 0])
    files = {row["source_file_id"]: row["file_path"] for row in tables["source_file"]}
    frames = {row["stack_frame_id"]: files[row["source_file_id"]] for row in tables["stack_frame"]}
    assert len(files) == len(tables["source_file"])
    assert len(frames) == len(tables["stack_frame"])
    found = [(row["stack_trace_id"], frames[row["stack_frame_id"]]) for row in tables["stack_trace"]]
    expected = [(1, "first.py"), (1, "second.py"), (2, "second.py"), (2, "third.py")]
    assert [row for row in found if row[0] > 0] == expected


def test_an_op_that_keras_created_has_the_line_of_the_call_that_ran_it(tmp_path: Path) -> None:
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.ops.log(inputs))
    with tfdbg_arrow.capture(tmp_path):
        model.predict(np.array([[1.0, 2.0]], "float32"), verbose=0)  # traces the function
        model.predict(np.array([[1.0, 0.0]], "float32"), verbose=0)
    found = tfdbg_arrow.first_nonfinite(tmp_path)
    assert found is not None
    assert found.source is not None
    assert found.source.code == 'model.predict(np.array([[1.0, 0.0]], "float32"), verbose=0)'
