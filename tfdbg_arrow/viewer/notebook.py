"""A logdir in a notebook: the report in a sandboxed frame that cannot affect the notebook."""

from __future__ import annotations

from markupsafe import Markup

from tfdbg_arrow.query import Logdir
from tfdbg_arrow.viewer.report import read_report, render_report

_GLANCE_BYTES = 400_000
_GLANCE_RULES_S = 2.0
_SHOWN_BYTES = 5_000_000


def glance(logdir: Logdir) -> str:
    """Returns the notebook representation of a logdir: a quickly made report of up to 400 kB."""
    report = read_report(logdir, rules_budget_s=_GLANCE_RULES_S)
    return _frame(render_report(report, max_bytes=_GLANCE_BYTES)[0], height=520)


def frame(logdir: Logdir, *, run_id: str | None, height: int) -> str:
    """Returns a report of up to 5 MB as an HTML element for a notebook.

    Args:
        logdir: The logdir.
        run_id: The run to show; None means all.
        height: Initial height in pixels. The reader can change it.
    """
    return _frame(render_report(read_report(logdir, run_id=run_id), max_bytes=_SHOWN_BYTES)[0], height=height)


def _frame(document: str, *, height: int) -> str:
    # Scripts may run in the frame, but it has its own origin, so they cannot reach the notebook's cells or cookies.
    return Markup(
        '<iframe sandbox="allow-scripts" srcdoc="{}" title="tfdbg_arrow report" '
        'style="width: 100%; height: {}px; border: 1px solid #c9d0d9; border-radius: 8px; resize: vertical"></iframe>'
    ).format(document, int(height))
