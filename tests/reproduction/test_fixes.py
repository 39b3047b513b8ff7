"""Test how repairs edit a line of code, and that every repair of the table is code."""

from __future__ import annotations

import ast
import re

import pytest

from tfdbg_arrow.reproduction.fixes import FIXES, Fix, diff_lines, edited_line
from tfdbg_arrow.reproduction.op_signatures import signature_of

EPSILON = Fix("epsilon", "tf.math.log({x} + {eps})")
NO_NAN = Fix("divide_no_nan", "tf.math.divide_no_nan({x}, {y})")


@pytest.mark.parametrize(
    ("line", "fix", "op_type", "expected"),
    [
        ("y = tf.math.log(p)", EPSILON, "Log", "y = tf.math.log(p + 1e-6)"),
        ("y = -tf.math.log(p * q) # é", EPSILON, "Log", "y = -tf.math.log((p * q) + 1e-6) # é"),
        ("é = log(p), 1", EPSILON, "Log", "é = tf.math.log(p + 1e-6), 1"),
        ("return x / y", NO_NAN, "RealDiv", "return tf.math.divide_no_nan(x, y)"),
        ("if (x / y) > 1:", NO_NAN, "RealDiv", "if (tf.math.divide_no_nan(x, y)) > 1:"),
        ("x / y,", NO_NAN, "RealDiv", "tf.math.divide_no_nan(x, y),"),
        ("z = exp(x)", Fix("", "", wider="float32"), "Exp", "z = exp(tf.cast(x, tf.float32))"),
        ("z = x @ w", Fix("", "", wider="float32"), "MatMul", "z = tf.cast(x, tf.float32) @ tf.cast(w, tf.float32)"),
        ("y = log(log(p))", EPSILON, "Log", None),
        ("y = model(p)", EPSILON, "Log", None),
        ("y = tf.math.log(", EPSILON, "Log", None),
        ("y = log(p)\nimport os", EPSILON, "Log", None),
        ("(" * 100_000, EPSILON, "Log", None),
        ("y = log()", EPSILON, "Log", None),
    ],
)
def test_the_op_in_a_line_is_replaced(line: str, fix: Fix, op_type: str, expected: str | None) -> None:
    assert edited_line(line, fix, op_type, ["x", "y"], {"eps": "1e-6"}) == expected


def test_a_diff_has_the_old_and_the_new_line() -> None:
    assert diff_lines("a\x1b", "b", None) == ("--- the script", "+++ the script", "-a\\x1b", "+b")


def test_every_repair_is_an_expression_of_the_inputs_of_its_op() -> None:
    for op_type, fixes in FIXES.items():
        signature = signature_of(op_type)
        assert signature is not None, op_type
        known = {argument for argument, _ in signature.inputs} | {"eps"}
        for fix in fixes:
            maker = None if fix.producer is None else signature_of(fix.producer)
            made = set() if maker is None else {f"{signature.inputs[0][0]}_{argument}" for argument, _ in maker.inputs}
            names = set(re.findall(r"{(\w+)}", fix.code))
            assert names <= known | made, (op_type, fix)
            ast.parse(fix.code.format_map(dict.fromkeys(names, "x")), mode="eval")
