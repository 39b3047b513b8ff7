"""The display of a logdir in a notebook. It is rendered by the viewer, which is imported by name if it is installed."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfdbg_arrow.errors import MissingDependencyError, install_command

if TYPE_CHECKING:
    from tfdbg_arrow.query.logdir import Logdir


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A report to display in a notebook.

    Attributes:
        html: The HTML element with the report.
        logdir: The logdir's path or URL.
    """

    html: str
    logdir: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"<report of {self.logdir}; display it in a notebook, or run `tfdbg-arrow report`>"


def glance(logdir: Logdir) -> str | None:
    """Returns the HTML for a notebook cell that ends in a logdir; None if the viewer is missing (text is shown)."""
    try:
        return str(_viewer().glance(logdir))
    except MissingDependencyError:
        return None


def show(logdir: Logdir, *, run_id: str | None, height: int) -> Shown:
    """Returns the report for a notebook.

    Raises:
        MissingDependencyError: The viewer's packages are not installed.
        QueryError: The run is unknown.
    """
    return Shown(html=str(_viewer().frame(logdir, run_id=run_id, height=height)), logdir=str(logdir.path))


def _viewer() -> Any:
    try:
        return importlib.import_module("tfdbg_arrow.viewer.notebook")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"showing a logdir needs the package {error.name}; run: {install_command('viewer')}"
        ) from error
