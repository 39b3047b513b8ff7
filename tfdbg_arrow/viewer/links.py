"""Links between pages: URLs on the server, fragments in a report."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from tfdbg_arrow.query.display.execution_window import ExecutionFilter
from tfdbg_arrow.query.display.tensor_window import TensorFilter

_PARAMETERS = {
    "graph_id": "graph",
    "execution_index": "execution",
    "thread_id": "thread",
    "is_call": "calls",
    "is_bad": "bad",
}
"""The parameters of addresses that are not named like the attribute of a filter."""


class Url(str):
    """A complete URL that this module created: ASCII and percent-encoded."""

    __slots__ = ()


class ServerLinks:
    """Links between the pages of a server.

    Args:
        root: The address of the pages; `./` if they are below an address that the server does not know.
        logdirs: The address of the list of logdirs; None if the server shows only one logdir.
    """

    def __init__(self, root: str = "/", *, logdirs: str | None = None) -> None:
        self.root = Url(root)
        self.logdirs = None if logdirs is None else Url(logdirs)

    def page(self, name: str, /, **parameters: object) -> Url:
        """Returns a page's URL. Parameters that are None are omitted."""
        given = {key: value for key, value in parameters.items() if value is not None}
        path = self.root if name == "overview" else f"{self.root}{name}"
        return Url(path + (f"?{urlencode(given, errors='backslashreplace')}" if given else ""))

    def of_logdir(self, key: str | None) -> ServerLinks:
        """Returns the links to the pages of another logdir of the server; None means the logdir of this object."""
        return self if key is None else ServerLinks(f"../{key}/", logdirs=self.logdirs)

    def source(self, run_id: str, file_path: str, lineno: int | None = None) -> Url:
        """Returns the URL of a source file, with a fragment for the line."""
        url = self.page("source", run=run_id, file=file_path, line=lineno)
        return url if lineno is None else Url(f"{url}#L{lineno}")

    def tensor(self, run_id: str, event_index: int | None) -> Url | None:
        """Returns the URL of a recorded tensor; None if `event_index` is None."""
        return None if event_index is None else self.page("tensor", run=run_id, event=event_index)


class ReportLinks:
    """Links inside a report.

    Args:
        sources: The prefix of the element IDs of each included file, by (run, path).
        tensors: The element IDs of the included tensors, by (run, event_index).
    """

    def __init__(self, sources: Mapping[tuple[str, str], str], tensors: Mapping[tuple[str, int], str]) -> None:
        self._sources = sources
        self._tensors = tensors

    def page(self, name: str, /, **parameters: object) -> Url | None:
        """Returns the fragment of a page; None if the report does not include the page."""
        return Url(f"#{name}") if name in ("overview", "model", "alerts") and not parameters else None

    def source(self, run_id: str, file_path: str, lineno: int | None = None) -> Url | None:
        """Returns the fragment of a line; None if the report does not include its file."""
        prefix = self._sources.get((run_id, file_path))
        if prefix is None:
            return None
        return Url(f"#{prefix}" if lineno is None else f"#{prefix}L{lineno}")

    def tensor(self, run_id: str, event_index: int | None) -> Url | None:
        """Returns the fragment of a recorded tensor; None if the report does not include it."""
        fragment = None if event_index is None else self._tensors.get((run_id, event_index))
        return None if fragment is None else Url(f"#{fragment}")


Links = ServerLinks | ReportLinks
"""The links to pages, source files and tensors. The methods return None if the target is not available."""


def filter_parameters(filter_: TensorFilter | ExecutionFilter) -> dict[str, object]:
    """Returns a filter as URL parameters of its page."""
    return {
        _PARAMETERS.get(name, name): (1 if value else None) if isinstance(value, bool) else value
        for name, value in vars(filter_).items()
    }
