"""Collects what readers answer about a logdir, as JSON that can be stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfdbg_arrow import Logdir, open_logdir
from tfdbg_arrow.safe_text import to_json
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.viewer.report import read_report, render_report


def answers_of(logdir: Path, *, columns: Mapping[str, list[str]] | None = None) -> dict[str, Any]:
    """Returns what readers answer about a logdir.

    Args:
        logdir: The logdir.
        columns: For each table, the columns whose values are compared. None means all current columns.
    """
    with open_logdir(logdir) as opened:
        first = opened.first_nonfinite()
        report = read_report(opened)
        text, _ = render_report(report)
        return {
            "tables": {name: _table(opened, name, chosen) for name, chosen in _columns(columns).items()},
            "first_nonfinite": to_json(first),
            "provenance": None if first is None else to_json(opened.provenance(first.event_index, run_id=first.run_id)),
            "alerts": [to_json(alert) for alert in opened.alerts().alerts],
            "report": {
                "is_whole": text.rstrip().endswith("</html>"),
                "num_tensors": len(report.tensors),
                "num_sources": len(report.sources),
                "left_out": list(report.left_out),
            },
        }


def _columns(given: Mapping[str, list[str]] | None) -> Mapping[str, list[str]]:
    return given if given is not None else {table.name: [c.name for c in table.columns] for table in TABLES}


def _table(opened: Logdir, name: str, columns: list[str]) -> dict[str, Any]:
    rows = opened.rows(f"SELECT {', '.join(columns)} FROM {name}")
    lines = sorted(json.dumps(to_json(list(row)), allow_nan=False) for row in rows)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return {"columns": columns, "rows": len(rows), "sha256": digest}
