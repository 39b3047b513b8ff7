"""The answers of a viewer to requests, independent of the server around it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tfdbg_arrow.errors import TfdbgArrowError
from tfdbg_arrow.query import Logdir
from tfdbg_arrow.query.integrity.damage import bug_text
from tfdbg_arrow.query.logdir.statements import Question
from tfdbg_arrow.viewer.answer import Answer
from tfdbg_arrow.viewer.background import InTurn, SinceRequest
from tfdbg_arrow.viewer.links import ServerLinks
from tfdbg_arrow.viewer.page import NoSuchPageError, PageKind, Parameters, read_shell, status_of
from tfdbg_arrow.viewer.pages import PAGES
from tfdbg_arrow.viewer.pages.diff import PAGE as DIFF
from tfdbg_arrow.viewer.pages.diff import OtherLogdir, diff_page
from tfdbg_arrow.viewer.pages.sql import DELETE, SAVE, SqlBox, change_saved, read_csv, sql_page
from tfdbg_arrow.viewer.reading import Reader
from tfdbg_arrow.viewer.rendering import json_text, render, render_page, static_files

_LOG = logging.getLogger(__name__)
_SHARE = 0.9
"""The share of a request's time in which the slow parts of a page are computed, if the page has to be whole."""


class Site:
    """The pages of a logdir as HTML and as JSON, and the files that they load.

    Args:
        reader: Reads the logdir.
        links: The links in the pages.
        sql_box: Runs SQL; None means that there is no SQL page.
        others: Other logdirs that the server shows.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        links: ServerLinks | None = None,
        sql_box: SqlBox | None = None,
        others: Sequence[OtherLogdir] = (),
    ) -> None:
        self.reader = reader
        self._links = links or ServerLinks()
        self._sql_box = sql_box
        pages = tuple(diff_page(others) if kind is DIFF and others else kind for kind in PAGES)
        self._kinds = pages if sql_box is None else (*pages, sql_page(sql_box))
        self._kind_of = {kind.name: kind for kind in self._kinds} | {"": PAGES[0]}

    def answer(self, path: str, query: Mapping[str, str]) -> Answer:
        """Returns the response to a request; errors are responses too.

        Args:
            path: The path below the site's root. It begins with `/`.
            query: The parameters.
        """
        try:
            return self._answer(path, query)
        except Exception as error:
            return failed(error, path, query)

    def change(self, path: str, form: Mapping[str, str]) -> Answer:
        """Makes the change that a form of a page requests, and returns the response, which redirects to a page.

        Args:
            path: The path below the site's root. It begins with `/`.
            form: The fields of the form.
        """
        try:
            name = path.removeprefix("/")
            if name not in (SAVE, DELETE) or self._sql_box is None:
                raise NoSuchPageError(f"there is no page {path}")
            parameters = change_saved(self._sql_box.saved, name, Parameters(form))
            # The address is relative to the form's address, because the site may be below an address that it does not
            # know.
            return moved_to(ServerLinks("./").page("sql", **parameters))
        except Exception as error:
            return failed(error, path, form)

    def _answer(self, path: str, query: Mapping[str, str]) -> Answer:
        name = path.removeprefix("/")
        if name.startswith("static/"):
            return static_answer(name.removeprefix("static/"))
        if name == "state.json":
            return json_answer({"state": self.reader.state()})
        if name == "sql.csv" and self._sql_box is not None:
            text = read_csv(self._sql_box, Parameters(query))
            return Answer.of_text(text, subtype="csv", headers={"content-disposition": "attachment"})
        kind = self._kind_of.get(name.removesuffix(".json"))
        if kind is None or name == ".json":
            raise NoSuchPageError(f"there is no page {path}")
        return self._page(kind, path, query)

    def _page(self, kind: PageKind, path: str, query: Mapping[str, str]) -> Answer:
        began = time.monotonic()
        parameters = Parameters({name: text for name, text in query.items() if name != "format"})
        is_json = _is_json(path, query)
        is_whole = is_json or parameters.flag("wait")

        def read(logdir: Logdir) -> tuple[Any, list[Question]]:
            with logdir.questions.noted() as questions:
                in_turn = InTurn(logdir, budget_s=_SHARE * self.reader.timeout_s)
                page = kind.read(logdir, parameters)
                if is_whole and kind.complete is not None:
                    page = kind.complete(in_turn, page, parameters)
                return page, questions

        state = self.reader.state()  # before the page is read, so the page shows this state or a newer state
        page, questions = self.reader.read(
            (kind.name, kind.version(), is_whole or kind.complete is None, parameters.key), read
        )
        if is_json:
            return json_answer(page)
        shell = self.reader.read(("shell", parameters.key), lambda logdir: read_shell(logdir, parameters))
        if not is_whole and kind.complete is not None:
            page = kind.complete(SinceRequest(self.reader.background, began=began), page, parameters)
        text = render_page(
            kind, page, shell=shell, links=self._links, kinds=self._kinds, questions=questions, state=state
        )
        return Answer.of_text(text, subtype="html")


def moved_to(url: str) -> Answer:
    """Returns an answer that redirects to another address."""
    return Answer.of_text("", status=303, headers={"location": url})


def static_answer(name: str) -> Answer:
    """Returns a file that pages load.

    Raises:
        NoSuchPageError: There is no such file.
    """
    static_file = static_files().get(name)
    if static_file is None:
        raise NoSuchPageError(f"there is no file {name!r}.")
    content, content_type = static_file
    is_text = content_type.startswith("text/")
    return Answer(content=content, content_type=f"{content_type}; charset=utf-8" if is_text else content_type)


def json_answer(value: Any, *, status: int = 200) -> Answer:
    """Returns a value as JSON."""
    return Answer(status=status, content=json_text(value).encode(), content_type="application/json")


def failed(error: Exception, path: str, query: Mapping[str, str], *, home: str = "") -> Answer:
    """Returns an error as an HTML page, or as JSON if the request asked for JSON. A defect is also logged.

    Args:
        error: The error.
        path: The path below the site's root.
        query: The parameters.
        home: The path of the first page below the root, without a leading `/`.
    """
    if isinstance(error, TfdbgArrowError):
        status, message = status_of(error), str(error)
    else:
        _LOG.error("the page %s could not be made", path, exc_info=error)
        status, message = 500, bug_text(error, evidence="the traceback in the log of the viewer")
    if _is_json(path, query):
        return json_answer({"error": {"status": status, "message": message}}, status=status)
    root = "../" * (path.count("/") - 1) or "./"
    text = render("failure.html", status=status, message=message, root=root, home=root + home)
    return Answer.of_text(text, subtype="html", status=status)


def _is_json(path: str, query: Mapping[str, str]) -> bool:
    return path.endswith(".json") or query.get("format") == "json"
