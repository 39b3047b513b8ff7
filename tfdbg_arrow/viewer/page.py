"""The common parts of pages: URL parameters, kinds of pages, the shell around the content, filter choices, errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tfdbg_arrow.errors import BrokenPartError, QueryError, TfdbgArrowError
from tfdbg_arrow.query import AboutRuns, Logdir, Run
from tfdbg_arrow.query.asked_runs import ALL_RUNS, asked_runs, find_run, runs_by_first_bad
from tfdbg_arrow.query.bad_runs import BadRuns
from tfdbg_arrow.query.display.tensor_window import TensorRow, read_tensor
from tfdbg_arrow.query.recorded import KINDS
from tfdbg_arrow.query.sql_sandbox import SandboxBusyError
from tfdbg_arrow.schema.declaration import MAX_INT64
from tfdbg_arrow.viewer.background import Background
from tfdbg_arrow.viewer.naming import run_labels

MAX_TEXT = 10_000
"""Maximum number of characters of a text."""
MAX_CHOICES = 500
"""Maximum number of choices of a field. A longer list is no help."""
DEFAULT_LIMIT = 100
"""Default maximum number of rows of a window. A page loads further windows when the reader scrolls."""
MAX_LIMIT = 1000
"""Maximum number of rows of a window that an address can ask for. Browsers are slow with longer tables."""
NUM_ABOVE = 8
"""Number of rows that a page with a window shows above the row at which it opens."""


class Parameters:
    """The parameters of one request. An empty parameter counts as not given.

    Args:
        values: The texts of the parameters, by name.
    """

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = {name: text for name, text in (values or {}).items() if text.strip()}

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """The parameters in a fixed order, as a key that identifies the request."""
        return tuple(sorted(self._values.items()))

    def text(self, name: str) -> str | None:
        """Returns a text; None if it was not given."""
        text = self._values.get(name)
        if text is not None and len(text) > MAX_TEXT:
            raise QueryError(f"{name} has {len(text):,} characters, expected at most {MAX_TEXT:,}.")
        return text

    def needed(self, name: str) -> str:
        """Returns a text; raises a QueryError if it was not given."""
        text = self.text(name)
        if text is None:
            raise QueryError(f"the address has no {name}; add ?{name}=….")
        return text

    def integer(self, name: str) -> int | None:
        """Returns a non-negative integer; None if it was not given."""
        text = self._values.get(name)
        if text is None:
            return None
        text = text.strip().replace(",", "")
        if not text.isascii() or not text.isdecimal() or len(text) > 19 or int(text) > MAX_INT64:
            raise QueryError(f"{name} is {text[:100]!r}, expected a whole number from 0 on.")
        return int(text)

    def integers(self, name: str) -> tuple[int, ...]:
        """Returns non-negative integers, separated by commas; an empty tuple if they were not given."""
        text = self.text(name) or ""
        numbers = [Parameters({name: one}).integer(name) for one in text.strip().strip("[]").split(",") if text]
        if None in numbers:
            raise QueryError(f"{name} is {text[:100]!r}, expected whole numbers from 0 on, separated by commas.")
        return tuple(number for number in numbers if number is not None)

    def choice(self, name: str, choices: Iterable[str]) -> str | None:
        """Returns a text that must be one of `choices`; None if it was not given."""
        text, allowed = self.text(name), tuple(choices)
        if text is not None and text not in allowed:
            raise QueryError(f"{name} is {text[:100]!r}, expected one of {', '.join(allowed)}.")
        return text

    def flag(self, name: str) -> bool:
        """Returns whether a switch is on, which means that its value is `1`."""
        return self.choice(name, ("0", "1")) == "1"


class NoSuchPageError(TfdbgArrowError):
    """A URL names something that is not in the logdir, or a page that does not exist."""


class TookTooLongError(TfdbgArrowError):
    """A page's queries were stopped because they took too long."""


class NoAnswerError(TfdbgArrowError):
    """A helper process of a page ended without an answer."""


def status_of(error: Exception) -> int:
    """Returns the HTTP status for an error of the package."""
    if isinstance(error, NoSuchPageError):
        return 404
    if isinstance(error, (TookTooLongError, SandboxBusyError)):
        return 503
    return 400 if isinstance(error, QueryError) else 500


@dataclass(frozen=True, kw_only=True)
class Gradual:
    """How to read a page if one part of it takes long.

    Attributes:
        start: Reads the quick part of the page.
        complete: Adds the ready results of the slow part, and starts to compute its other results in the background.
    """

    start: Callable[[Logdir, Parameters], Any]
    complete: Callable[[Background, Any, Parameters], Any]


@dataclass(frozen=True, kw_only=True)
class PageKind:
    """One kind of page. Its URL, module, template and test have the same name.

    Attributes:
        name: The name.
        title: The title in the navigation.
        key: The letter that opens the page after `g`; None for a page that is not in the navigation.
        read: Reads a page's data and returns a frozen dataclass.
        assets: Styles and scripts under static/ that only this page loads, in this order.
        version: Returns a value that changes when the page changes but the logdir does not.
        gradual: How to read the page step by step; None if `read` is always quick. The HTML page reloads itself until
            all results are ready, unless its URL has the parameter `wait`.
    """

    name: str
    title: str
    key: str | None
    read: Callable[[Logdir, Parameters], Any]
    assets: tuple[str, ...] = ()
    gradual: Gradual | None = None
    version: Callable[[], Hashable] = lambda: None

    @property
    def template(self) -> str:
        """The template's name."""
        return f"{self.name}.html"


@dataclass(frozen=True, kw_only=True)
class Shell:
    """The data that every page shows around its content.

    Attributes:
        logdir: The logdir's path or URL.
        runs: The runs of the logdir, oldest first.
        run_id: The selected run, or "all"; None means the newest run, with the other processes of its program.
        about: The selected runs, and a sentence that describes the selection.
        labels: The label of each run in a menu, by ID of the run.
    """

    logdir: str
    runs: tuple[Run, ...]
    run_id: str | None
    about: AboutRuns
    labels: Mapping[str, str]

    @property
    def is_newest(self) -> bool:
        """Whether the page is about the newest run."""
        return bool(self.runs) and self.runs[-1].run_id in self.about.run_ids

    @property
    def news(self) -> str | None:
        """A sentence that says whether the page is about the newest run; None for all runs."""
        if not self.runs or self.run_id == ALL_RUNS:
            return None
        if not self.is_newest:
            without = " without bad values" if self.about.num_bad_others == 0 else ""
            label = self.labels[self.runs[-1].run_id].removeprefix("newest · ")
            return f"There is a newer run{without}: {label}."
        if not self.about.num_others:
            return "This is the only run." if len(self.runs) == 1 else "These are the only runs."
        others = self.about.others
        if self.about.num_others == self.about.num_bad_others == 1:
            (other,) = (run for run in self.runs if run.run_id not in self.about.run_ids)
            others = f"{others.removesuffix('.')}: {self.labels[other.run_id]}."
        return f"This is the newest of {len(self.runs):,} runs. {others}"


def read_shell(logdir: Logdir, parameters: Parameters) -> Shell:
    """Returns the shell of a page."""
    return make_shell(logdir, run_id=chosen_run(logdir, parameters))


def make_shell(logdir: Logdir, *, run_id: str | None) -> Shell:
    """Returns the shell of a page about a run, about "all" runs, or about the newest run if `run_id` is None."""
    return Shell(
        logdir=str(logdir.path),
        runs=logdir.runs(),
        run_id=run_id,
        about=logdir.about_runs(run_id=run_id),
        labels=read_run_labels(logdir),
    )


def read_run_labels(logdir: Logdir) -> dict[str, str]:
    """Returns the `run_labels` of a logdir. If a part is broken, the labels do not say which runs are bad."""
    bad_steps: dict[str, int | None] = {}
    with contextlib.suppress(BrokenPartError):  # the pages that read the run report the broken part
        bad_steps = logdir.lasting(BadRuns).first_steps()
    return run_labels(logdir.runs(), bad_steps=bad_steps)


def chosen_run(logdir: Logdir, parameters: Parameters) -> str | None:
    """Returns the ID of the run that a URL names, or "all"; None if the URL names no run, which means the newest run.

    Raises:
        NoSuchPageError: The logdir has no such run.
        QueryError: Several runs have the name.
    """
    run = parameters.text("run")
    if run is None or run == ALL_RUNS or run in [one.run_id for one in logdir.runs()]:
        return run
    if run not in [one.run_name for one in logdir.runs()]:
        raise NoSuchPageError(f"run {run!r} is not in {logdir.path}.")
    return find_run(logdir, run)


def one_run(logdir: Logdir, parameters: Parameters) -> str | None:
    """Returns the run that a page about one run shows.

    Returns:
        The run that the URL names, else the newest run. If this means several runs, the first run with a bad tensor,
        else the oldest run. None if the logdir has no run.
    """
    asked = asked_runs(logdir, chosen_run(logdir, parameters))
    if len(asked.run_ids) < 2:
        return next(iter(asked.run_ids), None)
    return (*runs_by_first_bad(logdir, KINDS, asked), *asked.run_ids)[0]


def needed_run(logdir: Logdir, parameters: Parameters) -> str:
    """Returns `one_run`, or raises an error if there is no run.

    Raises:
        NoSuchPageError: The logdir has no run.
    """
    run_id = one_run(logdir, parameters)
    if run_id is None:
        raise NoSuchPageError(f"{logdir.path} has no runs yet.")
    return run_id


def needed_tensor(logdir: Logdir, event_index: int, *, run_id: str) -> TensorRow:
    """Returns a recorded tensor of a run.

    Raises:
        NoSuchPageError: The run has no such tensor.
    """
    tensor = read_tensor(logdir, event_index, run_id=run_id)
    if tensor is None:
        raise NoSuchPageError(f"event {event_index} of run {run_id} is not a recorded tensor.")
    return tensor


@dataclass(frozen=True, kw_only=True)
class GraphChoice:
    """A graph to choose from."""

    graph_id: int
    graph_name: str


_Row = TypeVar("_Row")


@dataclass(frozen=True, kw_only=True)
class RowsPage(Generic[_Row]):
    """A window of the rows of a run that match a filter. Rows are tensors or executions.

    Attributes:
        run_id: The run; None if the logdir has no run.
        rows: The window, by event_index or execution_index.
        num_matching: Number of rows that match the filter.
        num_before: Number of matching rows before the window.
        limit: Maximum number of rows in a window.
        op_types: Op types and functions to choose from.
        graphs: Graphs to choose from.
    """

    run_id: str | None
    rows: tuple[_Row, ...] = ()
    num_matching: int = 0
    num_before: int = 0
    limit: int
    op_types: tuple[str, ...] = ()
    graphs: tuple[GraphChoice, ...] = ()

    @property
    def num_after(self) -> int:
        """Number of matching rows after the window."""
        return self.num_matching - self.num_before - len(self.rows)


def read_graph_choices(logdir: Logdir, run_id: str | None) -> tuple[GraphChoice, ...]:
    """Returns the graphs of a run, at most MAX_CHOICES."""
    rows = logdir.kept_rows(
        f"SELECT graph_id, graph_name FROM graph WHERE run_id = ? ORDER BY graph_id LIMIT {MAX_CHOICES}",
        [run_id],
    )
    return tuple(GraphChoice(graph_id=graph_id, graph_name=name) for graph_id, name in rows)


def read_texts(logdir: Logdir, query: str, run_id: str | None) -> tuple[str, ...]:
    """Returns the texts that a query finds, at most MAX_CHOICES.

    Args:
        logdir: The logdir.
        query: A query with one column. Each of its parameters is the run ID.
        run_id: The run.
    """
    rows = logdir.kept_rows(f"SELECT * FROM ({query}) AS c ORDER BY 1 LIMIT {MAX_CHOICES}", [run_id] * query.count("?"))
    return tuple(str(row[0]) for row in rows if row[0] is not None)
