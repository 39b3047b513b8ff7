"""Converts untrusted data to text that is safe to print, and parses untrusted JSON and Python code.

The content of a logdir is untrusted. File names, op names and source lines can contain control sequences that change
the state of a terminal or the text direction of a page. JSON and code can be nested too deeply for their parsers.
"""

from __future__ import annotations

import ast
import base64
import dataclasses
import json
import math
import sys
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

_PARSES = 3
"""Maximum number of times that code is parsed.

If another thread parses code at the same time, as AutoGraph does, Python before 3.11.8 and 3.12.2 can raise a
SystemError for valid code (CPython issue 106905).
"""
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str) -> str:
    r"""Returns a text in which control and format characters are escaped, such as `\x1b`, `\n` or `\u202e`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if unicodedata.category(character) not in _UNPRINTABLE else _escape(character) for character in text
    )


def as_utf8(text: str) -> str:
    """Returns a text that can be encoded in UTF-8.

    In a path, for example, Python represents bytes that are not valid text as surrogates. UTF-8 cannot encode
    surrogates.
    """
    return text.encode("utf-8", errors="backslashreplace").decode()


def printable_line(text: str) -> str:
    """Returns a line of source code in which tabs are expanded, and other characters are escaped as in `printable`."""
    return printable(text.expandtabs(4))


def printable_lines(text: str, *, indent: int) -> str:
    """Returns a text of several lines in which each line is escaped as in `printable`.

    DuckDB marks a position in a line with `^` in the next line. This mark stays below the position.

    Args:
        text: The text.
        indent: Number of spaces before each line except the first line. With these spaces, no line of a message looks
            like a new message.
    """
    lines = text.split("\n")
    for index in range(1, len(lines)):
        if lines[index].strip() and not lines[index].strip(" ^"):
            lines[index] = " " * _escaped_width(lines[index - 1], lines[index].index("^")) + lines[index]
    first, *rest = map(printable, lines)
    return "\n".join([first, *((" " * indent + line).rstrip() for line in rest)])


def _escaped_width(line: str, width: int) -> int:
    """Returns the width that escaping adds to the first columns of a line.

    A character that must be escaped has no width before it is escaped.
    """
    extra = 0
    for character in line:
        if unicodedata.category(character) in _UNPRINTABLE:
            extra += len(_escape(character))
        elif width <= 0:
            break
        elif not unicodedata.combining(character):
            width -= 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return extra


def number_of(count: int | None, noun: str, plural: str | None = None) -> str:
    """Returns a number and a noun, such as `1 zero` or `2,000 zeros`. None counts as 0."""
    return f"{count or 0:,} {noun if count == 1 else plural or noun + 's'}"


def shortened(text: str, max_length: int) -> str:
    """Returns a text of at most `max_length` characters. A longer text loses its end, and an ellipsis shows this."""
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def some_of(names: Sequence[str], max_names: int) -> str:
    """Returns the first names, separated by commas, and how many more there are."""
    num_others = len(names) - max_names
    return ", ".join(names[:max_names]) + (f" and {num_others:,} more" if num_others > 0 else "")


def time_text(wall_time_ns: int) -> str:
    """Returns a time in UTC, such as `2026-11-25 06:00:00`."""
    return f"{datetime.fromtimestamp(wall_time_ns // 1_000_000_000, tz=UTC):%Y-%m-%d %H:%M:%S}"


def to_json(value: Any) -> Any:
    """Converts a value to a JSON value.

    A dataclass becomes an object with its attributes. A non-finite float becomes "NaN", "Infinity" or "-Infinity".
    Bytes become base64 text. Dates and times become ISO 8601 text, and a timedelta becomes seconds. Any other value
    becomes str(value).
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode("ascii")
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)


def parse_json(text: str | bytes) -> Any:
    """Parses a JSON text.

    Raises:
        ValueError: The text is not JSON, or is nested too deeply.
        RecursionError: The frames of the callers leave too little space on Python's stack.
    """
    try:
        return json.loads(text)
    except RecursionError:
        if is_stack_used_up():
            raise
        raise ValueError("JSON that is nested too deeply") from None


def is_stack_used_up() -> bool:
    """Returns whether the frames of the callers take more than half of Python's recursion limit.

    If so, a RecursionError comes from the calling program, not from the content of a file.
    """
    frame, depth = sys._getframe(), 0
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    return depth > sys.getrecursionlimit() // 2


def _escape(character: str) -> str:
    return character.encode("unicode_escape", errors="backslashreplace").decode("ascii")


def parsed_python(text: str | bytes) -> ast.Module | None:
    """Returns the syntax tree of a text, or None if the text is not Python code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python shows a warning for code such as `1 is 1`
        for _ in range(_PARSES):
            try:
                return ast.parse(text)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return None
            except SystemError:
                continue
    return None
