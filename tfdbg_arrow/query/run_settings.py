"""Reads the settings of a run."""

from __future__ import annotations

from typing import Any

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.untrusted_json import parse_json


def parse_settings(text: str) -> dict[str, Any]:
    """Parses `run.settings`. Returns an empty dict if it is not a JSON object."""
    try:
        settings = parse_json(text)
    except ValueError:
        return {}
    return settings if isinstance(settings, dict) else {}


def withholds_source(logdir: Engine, *, run_id: str) -> bool:
    """Returns whether a run was recorded without source text (`redact`)."""
    for (text,) in logdir.rows("SELECT settings FROM run WHERE run_id = ? LIMIT 1", [run_id]):
        redacted = parse_settings(text).get("redact")
        return isinstance(redacted, list) and "source" in redacted
    return False
