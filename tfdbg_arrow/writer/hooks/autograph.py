"""Finds the user's line and expression for code that AutoGraph generated.

AutoGraph keeps one line of the user for each generated line. An expression over several lines becomes one generated
line. So while AutoGraph converts a function, this module also notes where each expression was written.

| hook | purpose |
|---|---|
| `origin_info.resolve_entity` | notes where each expression of the user's function begins and ends |
| `origin_info.create_source_map` | notes which expression of the user each generated expression was made from |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gast
from tensorflow.python.autograph.impl import api as autograph_api
from tensorflow.python.autograph.pyct import anno, ast_util, origin_info, parser
from tensorflow.python.util import tf_inspect

from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.source_parts import Span
from tfdbg_arrow.writer.stacks import AUTOGRAPH_FILE, Location

_maps: dict[str, dict[int, Location]] = {}
"""For each generated file, a map from generated lines to the user's lines."""
_spans: dict[str, dict[Span, Span]] = {}
"""For each generated file, a map from the spans of generated expressions to the spans of the user's expressions."""

_NOTING = "noting where the expressions of a function were written"


def hook_autograph(observation: Observation, patches: Patches) -> None:
    """Installs the hooks that note where the user wrote each expression of a converted function."""
    patches.put(origin_info, "resolve_entity", lambda original: _make_resolve_entity(original, observation))
    patches.put(origin_info, "create_source_map", lambda original: _make_create_source_map(original, observation))


class _Place(origin_info.Location):  # type: ignore[misc]
    """AutoGraph's location of a part of a function, with a span that is complete and right in all cases."""

    span: Span


def _make_resolve_entity(original: Any, observation: Observation) -> Any:
    def resolve_entity(node: Any, source: Any, entity: Any) -> None:
        original(node, source, entity)
        try:
            lines, first_lineno = tf_inspect.getsourcelines(entity)
            text = _lambda_text(node, lines) if isinstance(node, gast.Lambda) else _function_text(source, lines)
            if text is not None:
                for part in gast.walk(node):
                    _note_span(part, text, first_lineno)
        except Exception as error:
            observation.observer.note_failure(_NOTING, error)

    return resolve_entity


_Text = dict[int, list[tuple[int, int, int]]]
"""For each line that AutoGraph parsed, the lines of the function's file from which the line was made.

Each entry has the number of the function's line (from 0), the first byte that is used from this line, and the position
of this byte in the parsed line. The bytes before it are indentation that AutoGraph removed. AutoGraph also joins lines
at backslashes.
"""


def _function_text(source: str, lines: Sequence[str]) -> _Text | None:
    """Returns where each parsed line of a function comes from; None if that is not known.

    Args:
        source: The text that AutoGraph parsed.
        lines: The lines of the function in its file.
    """
    parsed = source.split("\n")
    # AutoGraph puts the file's imports from __future__ before the function.
    linenos = range(next(i for i, line in enumerate(parsed) if not line.startswith("from __future__")), len(parsed))
    text: _Text = {}
    parts = enumerate(line.encode() for line in lines)
    for lineno in linenos:
        joined, starts = b"", []
        for number, line in parts:
            starts.append((number, len(joined)))
            joined += line.removesuffix(b"\n").removesuffix(b"\\")
            if not line.endswith(b"\\\n"):
                break
        if not starts:
            break
        removed = len(joined) - len(parsed[lineno].encode())
        if removed < 0 or joined[removed:] != parsed[lineno].encode() or joined[:removed].strip():
            return None
        text[lineno + 1] = [(number, max(0, removed - start), max(0, start - removed)) for number, start in starts]
    return text


def _lambda_text(node: Any, lines: Sequence[str]) -> _Text | None:
    """Returns where the lines of a lambda come from; None if unknown. AutoGraph parses the whole file for a lambda.

    Args:
        node: The lambda.
        lines: The lines of the file, from the first line of the lambda.
    """
    if not lines[0].encode()[node.col_offset :].startswith(b"lambda"):
        return None
    return {node.lineno + number: [(number, 0, 0)] for number in range(node.end_lineno - node.lineno + 1)}


def _note_span(node: Any, text: _Text, first_lineno: int) -> None:
    origin = anno.getanno(node, anno.Basic.ORIGIN, default=None)
    if origin is None or getattr(node, "end_lineno", None) is None:
        return
    lineno, start = _place(text, node.lineno, node.col_offset)
    end_lineno, last = _place(text, node.end_lineno, node.end_col_offset - 1)
    place = _Place(*origin.loc)
    place.span = Span(first_lineno + lineno, first_lineno + end_lineno, start, last + 1)
    anno.setanno(node, anno.Basic.ORIGIN, origin._replace(loc=place))


def _place(text: _Text, lineno: int, column: int) -> tuple[int, int]:
    """Returns where a byte of a parsed line is in the function: the number of the line (from 0), and the byte in it."""
    number, first, start = next(part for part in reversed(text[lineno]) if part[2] <= column)
    return number, first + column - start


def _make_create_source_map(original: Any, observation: Observation) -> Any:
    def create_source_map(nodes: Any, code: Any, filepath: Any) -> Any:
        source_map = original(nodes, code, filepath)
        try:
            _spans[filepath] = dict(_matched_spans(nodes, code))
        except Exception as error:
            observation.observer.note_failure(_NOTING, error)
        return source_map

    return create_source_map


def _matched_spans(nodes: Any, code: str) -> Iterator[tuple[Span, Span]]:
    """Yields the span of each generated expression with the span of the user's expression that it was made from."""
    generated = parser.parse(code, preamble_len=0, single_node=False)
    for converted, node in ast_util.parallel_walk(nodes, generated):
        origin = anno.getanno(converted, anno.Basic.ORIGIN, default=None)
        if origin is not None and isinstance(origin.loc, _Place) and isinstance(node, gast.expr):
            yield Span(node.lineno, node.end_lineno, node.col_offset, node.end_col_offset), origin.loc.span


def original_span(file_path: str, span: Span) -> Span | None:
    """Returns the span of the user's expression behind a generated one; None for other files, and if it is unknown.

    The span is unknown for code that AutoGraph added, and for functions that AutoGraph converted before the hooks were
    installed.
    """
    return _spans.get(file_path, {}).get(span)


def original_location(file_path: str, lineno: int) -> Location | None:
    """Returns the user's line for a line of a file that autograph generated; None for other files and lines.

    TensorFlow keeps this map per thread, and some threads do not have it. The cache of converted functions has the map
    for all threads. If a line was made from several lines of the user, the result is one of these lines.
    """
    if AUTOGRAPH_FILE not in file_path:
        return None
    source_map = _maps.get(file_path)
    if source_map is None:
        source_map = _maps[file_path] = _find_map(file_path)
    return source_map.get(lineno)


def _find_map(file_path: str) -> dict[int, Location]:
    for by_options in list(autograph_api._TRANSPILER._cache._cache.values()):
        for factory in list(by_options.values()):
            source_map = factory.source_map
            if factory.module is None or getattr(factory.module, "__file__", None) != file_path or not source_map:
                continue
            return {
                line.lineno: (origin.loc.filename, _lineno(origin.loc), origin.function_name or "<lambda>")
                for line, origin in source_map.items()
                if line.filename == file_path
            }
    return {}


def _lineno(place: origin_info.Location) -> int:
    # If a backslash joins two lines, AutoGraph counts them as one line.
    return place.span.lineno if isinstance(place, _Place) else int(place.lineno)
