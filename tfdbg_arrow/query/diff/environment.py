"""Other differences between two runs, and what could not be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tfdbg_arrow.query.diff.answer import Setting
from tfdbg_arrow.query.info import Run
from tfdbg_arrow.query.logdir import Logdir
from tfdbg_arrow.query.untrusted_json import parse_json

_IDENTITY = frozenset({"run_id", "wall_time_ns", "wall_time", "end_wall_time_ns", "pid", "settings"})
"""Columns of run that differ between any two runs, and `settings`, whose entries are compared one by one."""


def environment_differences(sides: tuple[tuple[Logdir, str], tuple[Logdir, str]]) -> tuple[Setting, ...]:
    """Returns the differences in the columns of run, in its settings and in the devices."""
    a, b = (_facts(logdir, run_id) for logdir, run_id in sides)
    names = [*a, *(name for name in b if name not in a)]
    return tuple(Setting(name, a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name))


def _facts(logdir: Logdir, run_id: str) -> Mapping[str, str | None]:
    columns, rows = logdir.table("SELECT * FROM run WHERE run_id = ? LIMIT 1", [run_id])
    run = dict(zip(columns, rows[0], strict=True))
    facts = {name: None if run[name] is None else str(run[name]) for name in columns if name not in _IDENTITY}
    try:
        settings = parse_json(run["settings"])
    except ValueError:
        settings = run["settings"]
    if isinstance(settings, dict):
        facts.update({f"settings.{name}": json.dumps(value) for name, value in settings.items() if value is not None})
    else:
        facts["settings"] = str(settings)
    devices = logdir.rows("SELECT device_name FROM device WHERE run_id = ? ORDER BY device_name", [run_id])
    facts["devices"] = ", ".join(name for (name,) in devices) or None
    return facts


_MEASURES = {
    "NO_TENSOR": 0,
    "SHAPE": 1,
    "CURT_HEALTH": 2,
    "CONCISE_HEALTH": 3,
    "FULL_HEALTH": 4,
    "FULL_NUMERICS": 5,
    "FULL_TENSOR": 5,
}
_ONLY = {
    "NO_TENSOR": "which ops ran",
    "SHAPE": "dtypes and shapes",
    "CURT_HEALTH": "shapes, and whether a tensor holds an infinity or a NaN",
    "CONCISE_HEALTH": "shapes, and how many elements are infinite or NaN",
    "FULL_HEALTH": "shapes, and how many elements are infinite, NaN, negative, zero and positive",
}


def incomparable(runs: tuple[Run, Run]) -> tuple[str, ...]:
    """Returns what could not be compared, as sentences: modes that measure less than others, gaps in a recording.

    Args:
        runs: A and B.
    """
    modes = (runs[0].tensor_debug_mode, runs[1].tensor_debug_mode)
    found = []
    if modes[0] != modes[1]:
        known = [mode for mode in modes if mode in _MEASURES]
        least = min(known, key=lambda mode: _MEASURES[mode], default=None)
        only = (
            "statistics that both modes record"
            if {"FULL_NUMERICS", "FULL_TENSOR"} == set(modes) or least is None
            else _ONLY.get(least, "statistics that both modes record")
        )
        extra = " (how many elements are infinite, NaN, negative, zero and positive)" if "FULL_TENSOR" in modes else ""
        text = only + (extra if only == "statistics that both modes record" else "")
        found.append(f"A was recorded in {modes[0]}, B in {modes[1]}: only {text} could be compared.")
    elif modes[0] in _ONLY:
        found.append(f"{modes[0]} records only {_ONLY[modes[0]]}, not the values themselves.")
    for name, run in zip("AB", runs, strict=True):
        found += (f"Parts of {name} were not recorded: {text}" for text in run.left_out)
    return tuple(found)
