"""The pages of several logdirs: a list of the logdirs, and a site for each logdir.

/logdirs, /logdirs.json     the list; for a single logdir, a redirect to its pages
/state.json                 changes with the list
/<key>/…                    the site of a logdir
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.query.logdirs import LogdirSummary, read_summaries
from tfdbg_arrow.storage import manifest
from tfdbg_arrow.storage.location import RemoteLocation, parse_location
from tfdbg_arrow.storage.marker import check_logdir
from tfdbg_arrow.storage.search import cut_text
from tfdbg_arrow.viewer.answer import Answer
from tfdbg_arrow.viewer.links import ServerLinks, Url
from tfdbg_arrow.viewer.logdir_search import FoundLogdirs, LogdirSearch, key_of
from tfdbg_arrow.viewer.page import NoSuchPageError
from tfdbg_arrow.viewer.pages.diff import OtherLogdir
from tfdbg_arrow.viewer.pages.sql import SqlBox
from tfdbg_arrow.viewer.reading import Reader
from tfdbg_arrow.viewer.rendering import render
from tfdbg_arrow.viewer.site import Site, failed, json_answer, moved_to, static_answer

_LIST = "logdirs"
_MAX_OPEN = 4
"""Maximum number of logdirs that stay open. Each has connections of its own, with memory of their own."""
_MAX_OTHERS = 100
"""Maximum number of logdirs below each directory whose runs are offered for a comparison. These are the logdirs that
were changed last."""
_PATIENCE_S = 20.0
"""Seconds that a request waits for the first search, which takes up to 5 seconds for each directory."""


@dataclass(frozen=True, kw_only=True)
class LogdirRow:
    """A logdir in the list.

    Attributes:
        name: The path of the logdir. The path is relative to the searched directory if only one directory was searched.
        url: The address of the logdir's pages, relative to the list.
        summary: The summary of the logdir.
    """

    name: str
    url: Url
    summary: LogdirSummary


@dataclass(frozen=True, kw_only=True)
class LogdirsPage:
    """The data of the list.

    Attributes:
        directories: The directories that were searched.
        rows: The logdirs by directory. In each directory, the logdir that was changed last comes first.
        comparison: The address of the comparison of two runs; None unless there are two logdirs with one run each.
        notes: Sentences about what was not searched.
    """

    directories: tuple[str, ...]
    rows: tuple[LogdirRow, ...]
    comparison: Url | None
    notes: tuple[str, ...]


class Sites:
    """The sites of the logdirs below some directories.

    At most `_MAX_OPEN` logdirs are open at a time, except while requests still use more of them.

    Args:
        search: Finds the logdirs.
        notes: Sentences for the list about what is not searched.
        open_reader: Opens a logdir.
        sql_box_of: Returns the SqlBox of a logdir; None means that there are no SQL pages.
        home: The address of the first page, relative to the root.
    """

    def __init__(
        self,
        search: LogdirSearch,
        *,
        notes: tuple[str, ...] = (),
        open_reader: Callable[[Path], Reader] = Reader,
        sql_box_of: Callable[[Path], SqlBox] | None = None,
        home: str = _LIST,
    ) -> None:
        self._home = home
        self._search = search
        self._open_reader = open_reader
        # Each logdir has its own SqlBox, because a SqlBox answers one query at a time.
        self._sql_box_of = None if sql_box_of is None else cache(sql_box_of)
        self._notes = notes
        self._lock = threading.Lock()
        self._readers: OrderedDict[Path, _Shared] = OrderedDict()
        self._is_closed = False
        self._page: tuple[str, LogdirsPage] | None = None

    def close(self) -> None:
        """Closes the open logdirs. If a request still uses a logdir, the logdir is closed when the request ends."""
        with self._lock:
            self._is_closed = True
            unused = [self._dropped() for _ in range(len(self._readers))]
        for reader in unused:
            if reader is not None:
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

    def change(self, path: str, form: Mapping[str, str]) -> Answer:
        """Makes the change that a form of a page requests, and returns the response, which redirects to a page.

        Args:
            path: The path below the root of the sites. It begins with `/`.
            form: The fields of the form.
        """
        first, _, rest = path.removeprefix("/").partition("/")
        try:
            logdir = self._search.result(patience_s=_PATIENCE_S).paths.get(first)
            if logdir is None:
                raise NoSuchPageError(f"there is no page {path}; its logdir may have been moved or deleted.")
            with self._site(logdir) as site:
                return site.change(f"/{rest}", form)
        except Exception as error:
            return failed(error, path, form, home=_LIST)

    def _answer(self, path: str, query: Mapping[str, str]) -> Answer:
        first, slash, rest = path.removeprefix("/").partition("/")
        if first == "static":
            return static_answer(rest)
        if path == "/state.json":
            return json_answer({"state": self._search.result(patience_s=0).state})
        if path == "/":
            return moved_to(self._home)
        search_result = self._search.result(patience_s=_PATIENCE_S)
        if path == f"/{_LIST}.json":
            return json_answer(self._list(search_result))
        if path == f"/{_LIST}":
            return self._list_answer(search_result)
        logdir = search_result.paths.get(first)
        if logdir is None:
            raise NoSuchPageError(f"there is no page {path}; its logdir may have been moved or deleted.")
        if not slash:
            return moved_to(f"{first}/")
        links = ServerLinks("./", logdirs=f"../{_LIST}" if len(search_result.paths) > 1 else None)
        others = _others(search_result, logdir) if rest.removesuffix(".json") == "diff" else ()
        with self._site(logdir, links=links, others=others) as site:
            return site.answer(f"/{rest}", query)

    @contextlib.contextmanager
    def _site(
        self, logdir: Path, *, links: ServerLinks | None = None, others: Sequence[OtherLogdir] = ()
    ) -> Iterator[Site]:
        sql_box = None if self._sql_box_of is None else self._sql_box_of(logdir)
        with self._borrowed(logdir) as reader:
            yield Site(reader, links=links, sql_box=sql_box, others=others)

    def _list_answer(self, search_result: FoundLogdirs) -> Answer:
        if len(search_result.paths) == 1:
            return moved_to(f"{next(iter(search_result.paths))}/")
        text = render("logdirs.html", page=self._list(search_result), state=search_result.state)
        return Answer.of_text(text, subtype="html")

    def _list(self, search_result: FoundLogdirs) -> LogdirsPage:
        with self._lock:
            if self._page is not None and self._page[0] == search_result.state:
                return self._page[1]
        rows = tuple(
            LogdirRow(
                name=_name(Path(summary.path), search.path, is_alone=len(search_result.searches) == 1),
                url=Url(f"{key_of(Path(summary.path))}/"),
                summary=summary,
            )
            for search in search_result.searches
            for summary in read_summaries(search)
        )
        cuts = tuple(f"In {search.path}, {cut_text(search)}." for search in search_result.searches if search.is_cut)
        directories = tuple(str(directory) for directory in self._search.directories)
        is_pair = [row.summary.num_runs for row in rows] == [1, 1]
        page = LogdirsPage(
            directories=directories,
            rows=rows,
            comparison=Url(f"{rows[0].url}diff") if is_pair else None,
            notes=(*cuts, *self._notes),
        )
        with self._lock:
            self._page = search_result.state, page
        return page

    @contextlib.contextmanager
    def _borrowed(self, logdir: Path) -> Iterator[Reader]:
        """Yields the reader of a logdir, which stays open until the block ends."""
        with self._lock:
            shared = self._taken(logdir)
        if shared is None:
            # Open the logdir without the lock, so that a slow disk delays only the pages of this logdir.
            opened = self._open_reader(logdir)
            with self._lock:
                shared = self._taken(logdir)
                if shared is None:
                    shared = _Shared(opened, num_users=1)
                    if self._is_closed:
                        shared.is_dropped = True
                    else:
                        self._readers[logdir] = shared
                unused = [self._dropped() for _ in range(len(self._readers) - _MAX_OPEN)]
            for reader in (*unused, None if shared.reader is opened else opened):
                if reader is not None:
                    reader.close()
        try:
            yield shared.reader
        finally:
            with self._lock:
                shared.num_users -= 1
                is_last = shared.is_dropped and not shared.num_users
            if is_last:
                shared.reader.close()

    def _taken(self, logdir: Path) -> _Shared | None:
        """Returns the open logdir for one more user; None if it is not open."""
        shared = self._readers.get(logdir)
        if shared is not None:
            shared.num_users += 1
            self._readers.move_to_end(logdir)
        return shared

    def _dropped(self) -> Reader | None:
        """Removes the least recently used logdir, and returns its reader; None if the reader is still in use."""
        _, shared = self._readers.popitem(last=False)
        shared.is_dropped = True
        return None if shared.num_users else shared.reader


@dataclass
class _Shared:
    """An open logdir.

    Attributes:
        reader: The reader of the logdir.
        num_users: Number of requests that use the logdir.
        is_dropped: Whether the last request that uses the logdir closes it.
    """

    reader: Reader
    num_users: int
    is_dropped: bool = False


def pair_of(
    logdir: str,
    other: str,
    *,
    open_reader: Callable[[Path], Reader] = Reader,
    sql_box_of: Callable[[Path], SqlBox] | None = None,
) -> Sites:
    """Returns the sites of two logdirs. The first page compares their runs.

    Args:
        logdir: A logdir.
        other: The other logdir.
        open_reader: Opens a logdir.
        sql_box_of: As for `Sites`.

    Raises:
        NoLogdirError: A path is not a logdir.
        LogdirError: A logdir cannot be read, or is a URL.
    """
    for path in (logdir, other):
        if isinstance(parse_location(path), RemoteLocation):
            raise LogdirError(f"{path} is a URL; the viewer compares two logdirs only if both are directories.")
        check_logdir(Path(path))
    paths = [Path(logdir), Path(other)]
    home = f"{key_of(paths[0])}/diff"
    return Sites(LogdirSearch(paths), open_reader=open_reader, sql_box_of=sql_box_of, home=home)


def _others(search_result: FoundLogdirs, logdir: Path) -> tuple[OtherLogdir, ...]:
    """Returns the logdirs whose runs can be compared with those of a logdir."""
    others = []
    for search in search_result.searches:
        for found_logdir in search.logdirs[:_MAX_OTHERS]:
            with contextlib.suppress(LogdirError):
                if found_logdir.path != logdir:
                    name = _name(found_logdir.path, search.path, is_alone=len(search_result.searches) == 1)
                    run_ids = tuple(manifest.run_ids(found_logdir.path))
                    others.append(
                        OtherLogdir(key=key_of(found_logdir.path), name=name, path=found_logdir.path, run_ids=run_ids)
                    )
    return tuple(others)


def _name(logdir: Path, directory: Path, *, is_alone: bool) -> str:
    """Returns the name of a logdir in the list."""
    if logdir == directory or not is_alone:
        return str(logdir)
    return str(logdir.relative_to(directory))
