"""The common parts of pages: URL parameters, kinds of pages, the shell around the content, filter choices, errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tfdbg_arrow.errors import BrokenPartError, QueryError, TfdbgArrowError
from tfdbg_arrow.query import AboutRuns, Logdir, Run
from tfdbg_arrow.query.asked_runs import ALL_RUNS, asked_runs, find_run, runs_by_first_bad
from tfdbg_arrow.query.bad_runs import BadRuns
from tfdbg_arrow.query.display.graph_runs import GraphName
from tfdbg_arrow.query.display.row_window import Rows, Window, first_of_step
from tfdbg_arrow.query.display.tensor_window import TensorRow, read_tensor
from tfdbg_arrow.query.recorded import KINDS
from tfdbg_arrow.query.sql_sandbox import SandboxBusyError
from tfdbg_arrow.schema.declaration import MAX_INT64
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
"""If a page opens at a row of a window, it shows this many rows above that row."""


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

    def needed_integer(self, name: str) -> int:
        """Returns a non-negative integer; raises a QueryError if it was not given."""
        self.needed(name)
        return self.integer(name) or 0

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


def parameters_of(**values: object) -> Parameters:
    """Returns the parameters of a request. Values that are None are not given."""
    return Parameters({name: str(value) for name, value in values.items() if value is not None})


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
class PageKind:
    """One kind of page. The URL, module, template and test of a page have the same name.

    Attributes:
        name: The name.
        title: The title in the navigation.
        key: The letter that opens the page after `g`; None for a page that is not in the navigation.
        read: Reads a page's data and returns a frozen dataclass; if `complete` is given, only the quick part.
        complete: Adds the slow answers, which its first argument computes (see `background.Answers`); None if `read` is
            always quick. The HTML page reloads itself until all answers are ready, unless its URL has the parameter
            `wait`.
        assets: Styles and scripts under static/ that only this page loads, in this order.
        version: Returns a value that changes when the page changes but the logdir does not.
    """

    name: str
    title: str
    key: str | None
    read: Callable[[Logdir, Parameters], Any]
    complete: Callable[[Any, Any, Parameters], Any] | None = None
    assets: tuple[str, ...] = ()
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
    bad_run_ids: Collection[str] = ()
    with contextlib.suppress(BrokenPartError):  # the pages that read the run report the broken part
        bad_run_ids = logdir.lasting(BadRuns).bad_runs(logdir.run_ids())
    return run_labels(logdir.runs(), bad_run_ids=bad_run_ids)


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
        The run that the URL names; without one, the newest run. If the choice has several runs, the run that went bad
        first; if no run is bad, the oldest run. None if the logdir has no run.
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


_Row = TypeVar("_Row")


@dataclass(frozen=True, kw_only=True)
class RowsPage(Window[_Row]):
    """A window of the tensors or executions of a run that match a filter.

    Attributes:
        run_id: The run; None if the logdir has no run.
        limit: Maximum number of rows in a window.
        op_types: Op types and functions to choose from.
        graphs: Graphs to choose from.
    """

    run_id: str | None
    limit: int
    op_types: tuple[str, ...] = ()
    graphs: tuple[GraphName, ...] = ()


def read_window(
    rows: Rows[_Row], bad: Rows[_Row], parameters: Parameters, *, run_id: str, limit: int, focus: int | None = None
) -> tuple[Window[_Row], int | None, int | None]:
    """Returns the window that a URL asks for, and the indexes of the last bad row before it and the first one after it.

    The window starts at the first row from the index `at` on, ends before the index `before`, starts at the training
    step `step`, or starts after `place` rows. Without these parameters, it starts a little above `focus`, or else above
    the first bad row.

    Args:
        rows: The rows that match the filter.
        bad: Those of them that are bad.
        parameters: The parameters of the URL.
        run_id: The run.
        limit: Maximum number of rows.
        focus: The index of a row.
    """
    first, before, place, step = map(parameters.integer, ("at", "before", "place", "step"))
    if step is not None:
        # If the step has no rows, the window starts after the last row and is empty.
        index = first_of_step(rows.logdir, rows.table, rows.index, step, run_id=run_id)
        first, before = MAX_INT64 if index is None else index, None
    elif first is None and before is None and place is None:
        shown = bad.next(-1) if focus is None else focus
        place = max(0, rows.window(first=shown or 0, limit=1).num_before - NUM_ABOVE)
    window = rows.window(first=first or 0, before=before, place=place, limit=limit)
    if not window.rows:
        return window, None, None
    ends = rows.index_of(window.rows[0]), rows.index_of(window.rows[-1])
    return window, bad.next(ends[0], is_backwards=True), bad.next(ends[1])


def read_graph_choices(logdir: Logdir, run_id: str | None) -> tuple[GraphName, ...]:
    """Returns the graphs of a run, at most MAX_CHOICES."""
    rows = logdir.kept_rows(
        f"SELECT graph_id, graph_name FROM graph WHERE run_id = ? ORDER BY graph_id LIMIT {MAX_CHOICES}",
        [run_id],
    )
    return tuple(GraphName(*row) for row in rows)


def read_texts(logdir: Logdir, query: str, *parameters: object) -> tuple[str, ...]:
    """Returns the texts that a query finds, at most MAX_CHOICES.

    Args:
        logdir: The logdir.
        query: A query with one column.
        parameters: The values for the `?` in the query.
    """
    rows = logdir.kept_rows(f"SELECT * FROM ({query}) AS c ORDER BY 1 LIMIT {MAX_CHOICES}", parameters)
    return tuple(str(row[0]) for row in rows if row[0] is not None)
