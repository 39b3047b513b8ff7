"""Renders pages as HTML and JSON. All texts from a logdir are escaped and made printable."""

from __future__ import annotations

import cmath
import inspect
import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from tfdbg_arrow._version import __version__
from tfdbg_arrow.query import stacks, wording
from tfdbg_arrow.query.logdir.statements import Question
from tfdbg_arrow.query.model_health import sentences
from tfdbg_arrow.query.present import runs
from tfdbg_arrow.query.present.tensors import HARMLESS_ORIGIN
from tfdbg_arrow.safe_text import number_of, printable, printable_line, to_json
from tfdbg_arrow.viewer import (
    charts,
    distribution_drawing,
    graph_drawing,
    line_drawing,
    links,
    map_drawing,
    naming,
    source_text,
)
from tfdbg_arrow.viewer.colours import BAD, paint, style_sheet
from tfdbg_arrow.viewer.graph_links import GraphLinks
from tfdbg_arrow.viewer.links import Links, Url
from tfdbg_arrow.viewer.page import MAX_TEXT, PageKind, Shell
from tfdbg_arrow.viewer.pages import PAGES

_MODULES = (
    charts, distribution_drawing, graph_drawing, line_drawing, links, map_drawing, naming, runs, sentences, source_text,
    stacks, wording,
)  # fmt: skip
"""The modules whose public functions are filters of the templates, under the names of the functions."""
_MAX_TEXT = 400
"""Maximum number of characters of a text on a page. A longer text shows how many characters are left out."""
_CONTENT_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def _with_code(text: str) -> Markup:
    """Returns a sentence as HTML, with the text between backticks marked up as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 else escape(part) for index, part in enumerate(parts)
    )


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tfdbg_arrow.viewer", "pages"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        name: function
        for module in _MODULES
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    }
    environment.filters |= {
        "number": lambda value: f"{value:,}",
        "number_of": number_of,
        "value": _value_text,
        "whole": lambda text: escape("\n".join(map(printable_line, text.split("\n")))),
        "typed": escape,
        "with_code": _with_code,
        "json": lambda value: Markup(escape(json_text(value))),
        "is_bad_value": _is_bad_value,
    }
    environment.globals.update(
        borders=naming.BORDERS,
        roles=naming.ROLES,
        harmless_origin=HARMLESS_ORIGIN,
        state_marks=graph_drawing.STATE_MARKS,
        level_shares=distribution_drawing.level_shares(),
        bad_paint=paint(BAD),
        graph_links=GraphLinks,
        version=__version__,
    )
    return environment


def render_page(
    kind: PageKind,
    page: Any,
    *,
    shell: Shell,
    links: Links,
    kinds: Sequence[PageKind] = PAGES,
    questions: Sequence[Question] = (),
    state: str = "",
) -> str:
    """Returns a page as HTML.

    Args:
        kind: The kind of page.
        page: The data of the page, as returned by `kind.read`.
        shell: The data shown around the content of the page.
        links: Links to other pages.
        kinds: The pages of the navigation.
        questions: The queries that were run for the page.
        state: The state of the logdir that the page shows, or an earlier state.
    """
    return render(
        "layout.html",
        kind=kind,
        page=page,
        shell=shell,
        links=links,
        kinds=kinds,
        questions=questions,
        state=state,
        longest_query=MAX_TEXT if any(other.name == "sql" for other in kinds) else 0,
        prefix="",
    )


def render(template: str, **values: Any) -> str:
    """Renders a template with values and returns the text."""
    return _environment().get_template(template).render(**values)


def json_text(value: Any) -> str:
    """Returns a value as ASCII JSON without `<`, `>` and `&`, so that it cannot be parsed as markup."""
    text = json.dumps(to_json(value), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@lru_cache(maxsize=1)
def static_files() -> dict[str, tuple[bytes, str]]:
    """Returns (bytes, content type) of the files that pages load, by path under static/."""
    return {
        "colours.css": (style_sheet().encode(), "text/css"),
        **{
            name: (file.read_bytes(), _CONTENT_TYPES[name.rpartition(".")[2]])
            for name, file in _files_under(resources.files("tfdbg_arrow.viewer") / "static")
            if name.rpartition(".")[2] in _CONTENT_TYPES
        },
    }


def _files_under(directory: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in directory.iterdir():
        if entry.is_dir():
            yield from _files_under(entry, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", entry


def _shown(value: Any) -> Any:
    """Makes a value printable for a template and shortens very long texts. Our own markup and URLs are unchanged."""
    if isinstance(value, (Markup, Url)) or value is None:
        return "" if value is None else value
    text = str(value)
    if len(text) > _MAX_TEXT:
        text = f"{text[: _MAX_TEXT // 2]} … {len(text) - _MAX_TEXT:,} more characters … {text[-_MAX_TEXT // 2 :]}"
    return printable(text)


def _value_text(value: Any) -> str:
    if isinstance(value, complex):
        return f"{value.real:.5g}{value.imag:+.5g}j"
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _is_bad_value(value: Any) -> bool:
    """Returns whether an element, or a part of a complex element, is infinite or NaN."""
    return isinstance(value, (float, complex)) and not cmath.isfinite(value)
