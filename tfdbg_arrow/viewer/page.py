"""PageKind: what every page is made of; Shell: what every page shows around its own."""

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
    """One kind of page. Its name is that of its URL, its module, its template and its test.

    Attributes:
        name: The name.
        title: What it is called in the navigation.
        key: The letter that leads to it, after `g`; None where it is about one thing and in no navigation.
        read: Reads a page's data, a frozen dataclass.
        assets: Files under static/ that only this page loads, styles and scripts, in this order.
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
    """What every page shows around its own.

    Attributes:
        logdir: The logdir's path or URL.
        runs: Its runs, oldest first.
        run_id: The run that was chosen; None: all.
    """

    logdir: str
    runs: tuple[Run, ...]
    run_id: str | None


def read_shell(logdir: Logdir, parameters: Parameters) -> Shell:
    """Returns what stands around a page."""
    return Shell(logdir=str(logdir.path), runs=logdir.runs(), run_id=chosen_run(logdir, parameters))


def chosen_run(logdir: Logdir, parameters: Parameters) -> str | None:
    """Returns the run that a URL names, None where it names none.

    Raises:
        NoSuchPageError: The logdir has no such run.
    """
    run_id = parameters.text("run")
    if run_id is not None and run_id not in [run.run_id for run in logdir.runs()]:
        raise NoSuchPageError(f"run {run_id!r} is not in {logdir.path}.")
    return run_id


def one_run(logdir: Logdir, parameters: Parameters) -> str | None:
    """Returns the run that a page about one run is of: the one named, else the first with a bad tensor, else the first.

    Returns:
        None where the logdir holds no run.
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
    """Returns `one_run`, which has to be there.

    Raises:
        NoSuchPageError: The logdir holds no run.
    """
    run_id = one_run(logdir, parameters)
    if run_id is None:
        raise NoSuchPageError(f"{logdir.path} holds no run yet.")
    return run_id
