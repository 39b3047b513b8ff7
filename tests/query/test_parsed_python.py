"""Test that code from an untrusted source is parsed without an exception."""

from __future__ import annotations

import ast
import warnings
from typing import Any

import pytest

from tfdbg_arrow.safe_text import parsed_python


@pytest.mark.parametrize("text", ["x = 1", b"x = 1", "x is 1"])
def test_code_is_parsed_without_a_warning(text: str | bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tree = parsed_python(text)
    assert len(tree.body) == 1


@pytest.mark.parametrize("text", ["x = ", "\0", b"\xff", "(" * 10_000, "-" * 100_000 + "1"])
def test_other_text_has_no_tree(text: str | bytes) -> None:
    assert parsed_python(text) is None


@pytest.mark.parametrize(("num_errors", "is_parsed"), [(1, True), (2, True), (3, False)])
def test_the_error_of_a_parse_beside_another_thread_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, num_errors: int, is_parsed: bool
) -> None:
    errors = [SystemError("AST constructor recursion depth mismatch (before=84, after=75)")] * num_errors
    parse = ast.parse

    def failing(text: Any) -> ast.Module:
        if errors:
            raise errors.pop()
        return parse(text)

    monkeypatch.setattr(ast, "parse", failing)
    assert (parsed_python("x = 1") is not None) == is_parsed
