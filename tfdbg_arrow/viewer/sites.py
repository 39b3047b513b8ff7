"""The pages of several logdirs: a list of them, and below it the site of each.

/logdirs, /logdirs.json     the list; if there is one logdir, the way to its pages
/state.json                 changes with the list
/<key>/…                    the site of a logdir
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tfdbg_arrow.query.logdirs import LogdirSummary, read_summaries
from tfdbg_arrow.storage.search import cut_text
from tfdbg_arrow.viewer.answer import Answer
from tfdbg_arrow.viewer.links import ServerLinks, Url
from tfdbg_arrow.viewer.logdir_search import Found, LogdirSearch, key_of
from tfdbg_arrow.viewer.page import NoSuchPageError
from tfdbg_arrow.viewer.reading import Reader
from tfdbg_arrow.viewer.rendering import render
from tfdbg_arrow.viewer.site import Site, failed, json_answer, static_answer

_LIST = "logdirs"
_MAX_OPEN = 4
_PATIENCE_S = 20.0


@dataclass(frozen=True, kw_only=True)
class LogdirRow:
    """A logdir in the list.

    Attributes:
        name: Its path relative to the directory that was searched.
        url: The address of its pages, relative to the list.
        summary: What it is about.
    """

    name: str
    url: Url
    summary: LogdirSummary


@dataclass(frozen=True, kw_only=True)
class LogdirsPage:
    """The data of the list.

    Attributes:
        directories: The directories that were searched.
        rows: The logdirs, for each directory the one that was changed last first.
        notes: What was not searched.
    """

    directories: tuple[str, ...]
    rows: tuple[LogdirRow, ...]
    notes: tuple[str, ...]


class Sites:
    """The sites of the logdirs below some directories, without SQL pages.

    At most `_MAX_OPEN` logdirs are open at a time.

    Args:
        search: Finds the logdirs.
        notes: What is not searched, for the list.
        open_reader: Opens a logdir.
    """

    def __init__(
        self, search: LogdirSearch, *, notes: tuple[str, ...] = (), open_reader: Callable[[Path], Reader] = Reader
    ) -> None:
        self._search = search
        self._open_reader = open_reader
        self._notes = notes
        self._lock = threading.Lock()
        self._readers: OrderedDict[Path, Reader] = OrderedDict()
        self._page: tuple[str, LogdirsPage] | None = None

    def close(self) -> None:
        """Closes the open logdirs."""
        with self._lock:
            readers, self._readers = self._readers, OrderedDict()
        for reader in readers.values():
            reader.close()

    def answer(self, path: str, query: Mapping[str, str]) -> Answer:
        """Returns the response to a request; errors are responses too.

        Args:
            path: The path below the root of the sites. It begins with `/`.
            query: The parameters.
        """
        try:
            return self._answer(path, query)
        except Exception as error:
            return failed(error, path, query, home=_LIST)

    def _answer(self, path: str, query: Mapping[str, str]) -> Answer:
        first, slash, rest = path.removeprefix("/").partition("/")
        if first == "static":
            return static_answer(rest)
        if path == "/state.json":
            return json_answer({"state": self._search.found(patience_s=0).state})
        if path == "/":
            return _moved(_LIST)
        found = self._search.found(patience_s=_PATIENCE_S)
        if path == f"/{_LIST}.json":
            return json_answer(self._list(found))
        if path == f"/{_LIST}":
            return self._list_answer(found)
        logdir = found.paths.get(first)
        if logdir is None:
            raise NoSuchPageError(f"there is no page {path}; its logdir may have been moved or deleted.")
        if not slash:
            return _moved(f"{first}/")
        links = ServerLinks("./", logdirs=f"../{_LIST}" if len(found.paths) > 1 else None)
        return Site(self._reader(logdir), links=links).answer(f"/{rest}", query)

    def _list_answer(self, found: Found) -> Answer:
        if len(found.paths) == 1:
            return _moved(f"{next(iter(found.paths))}/")
        text = render("logdirs.html", page=self._list(found), state=found.state)
        return Answer.of_text(text, subtype="html")

    def _list(self, found: Found) -> LogdirsPage:
        with self._lock:
            if self._page is not None and self._page[0] == found.state:
                return self._page[1]
        rows = tuple(
            LogdirRow(
                name=_name(Path(summary.path), search.path, is_alone=len(found.searches) == 1),
                url=Url(f"{key_of(Path(summary.path))}/"),
                summary=summary,
            )
            for search in found.searches
            for summary in read_summaries(search)
        )
        cuts = tuple(f"In {search.path}, {cut_text(search)}." for search in found.searches if search.is_cut)
        directories = tuple(str(directory) for directory in self._search.directories)
        page = LogdirsPage(directories=directories, rows=rows, notes=(*cuts, *self._notes))
        with self._lock:
            self._page = found.state, page
        return page

    def _reader(self, logdir: Path) -> Reader:
        with self._lock:
            if logdir in self._readers:
                self._readers.move_to_end(logdir)
                return self._readers[logdir]
        # Opened without the lock, so that a slow disk holds up only the pages of this logdir.
        opened = self._open_reader(logdir)
        with self._lock:
            reader = self._readers.setdefault(logdir, opened)
            self._readers.move_to_end(logdir)
            unused = [] if reader is opened else [opened]
            while len(self._readers) > _MAX_OPEN:
                unused.append(self._readers.popitem(last=False)[1])
        for each in unused:
            each.close()
        return reader


def _name(logdir: Path, directory: Path, *, is_alone: bool) -> str:
    """Returns the name of a logdir in the list."""
    if logdir == directory or not is_alone:
        return str(logdir)
    return str(logdir.relative_to(directory))


def _moved(url: str) -> Answer:
    return Answer.of_text("", status=303, headers={"location": url})
