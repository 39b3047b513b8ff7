"""A logdir in a notebook: the report in a frame that can do nothing to the notebook around it."""

from __future__ import annotations

from markupsafe import Markup

from tfdbg_arrow.query import Logdir
from tfdbg_arrow.viewer.report import read_report, render_report

_GLANCE_BYTES = 400_000
_GLANCE_RULES_S = 2.0
_SHOWN_BYTES = 5_000_000


def glance(logdir: Logdir) -> str:
    """Returns what a notebook shows where a cell ends in a logdir: what the report holds in 400 kB, made quickly."""
    report = read_report(logdir, rules_budget_s=_GLANCE_RULES_S)
    return _frame(render_report(report, max_bytes=_GLANCE_BYTES)[0], height=520)


def frame(logdir: Logdir, *, run_id: str | None, height: int) -> str:
    """Returns the report, of up to 5 MB, as an element for a notebook.

    Args:
        logdir: The logdir.
        run_id: Only this run; None: all.
        height: Height in pixels; the reader can change it.
    """
    return _frame(render_report(read_report(logdir, run_id=run_id), max_bytes=_SHOWN_BYTES)[0], height=height)


def _frame(document: str, *, height: int) -> str:
    # Scripts may run in it, but it has an origin of its own: neither the notebook's cells nor its cookies are in reach.
    return Markup(
        '<iframe sandbox="allow-scripts" srcdoc="{}" title="tfdbg_arrow report" '
        'style="width: 100%; height: {}px; border: 1px solid #c9d0d9; border-radius: 8px; resize: vertical"></iframe>'
    ).format(document, int(height))
