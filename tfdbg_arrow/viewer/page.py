"""PageKind: the definition of a page. Shell: the data that every page shows around its content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfdbg_arrow.query import Logdir, Run
from tfdbg_arrow.query.recorded import KINDS
from tfdbg_arrow.viewer.failures import NoSuchPageError
from tfdbg_arrow.viewer.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class PageKind:
    """One kind of page. Its URL, module, template and test have the same name.

    Attributes:
        name: The name.
        title: The title in the navigation.
        key: The letter that opens the page after `g`; None for a page that is not in the navigation.
        read: Reads a page's data and returns a frozen dataclass.
        assets: Styles and scripts under static/ that only this page loads, in this order.
    """

    name: str
    title: str
    key: str | None
    read: Callable[[Logdir, Parameters], Any]
    assets: tuple[str, ...] = ()

    @property
    def template(self) -> str:
        """The template's name."""
        return f"{self.name}.html"


@dataclass(frozen=True, kw_only=True)
class Shell:
    """The data that every page shows around its content.

    Attributes:
        logdir: The logdir's path or URL.
        runs: Its runs, oldest first.
        run_id: The selected run; None means all.
    """

    logdir: str
    runs: tuple[Run, ...]
    run_id: str | None


def read_shell(logdir: Logdir, parameters: Parameters) -> Shell:
    """Returns the shell of a page."""
    return Shell(logdir=str(logdir.path), runs=logdir.runs(), run_id=chosen_run(logdir, parameters))


def chosen_run(logdir: Logdir, parameters: Parameters) -> str | None:
    """Returns the run that a URL names; None if it names no run.

    Raises:
        NoSuchPageError: The logdir has no such run.
    """
    run_id = parameters.text("run")
    if run_id is not None and run_id not in [run.run_id for run in logdir.runs()]:
        raise NoSuchPageError(f"run {run_id!r} is not in {logdir.path}.")
    return run_id


def one_run(logdir: Logdir, parameters: Parameters) -> str | None:
    """Returns the run that a page about one run shows.

    Returns:
        The run that the URL names, else the first run with a bad tensor, else the first run; None if the logdir has no
        run.
    """
    run_id = chosen_run(logdir, parameters)
    if run_id is not None:
        return run_id
    bad_runs = logdir.bad_runs.by_first(KINDS)
    if bad_runs:
        return bad_runs[0]
    runs = logdir.runs()
    return runs[0].run_id if runs else None


def needed_run(logdir: Logdir, parameters: Parameters) -> str:
    """Returns `one_run`, or raises an error if there is no run.

    Raises:
        NoSuchPageError: The logdir has no run.
    """
    run_id = one_run(logdir, parameters)
    if run_id is None:
        raise NoSuchPageError(f"{logdir.path} has no runs yet.")
    return run_id
