"""Test that a logdir of any released version can still be read, with the same answers as then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.schema import FORMAT_VERSION

from .answering import answers_of
from .make_golden import GOLDEN, MAX_BYTES, num_bytes

VERSIONS = sorted(path for path in GOLDEN.iterdir() if path.is_dir())
LOGDIRS = [path for version in VERSIONS for path in sorted(version.iterdir()) if path.is_dir()]

CHOICES = {"answers.report.num_tensors", "answers.report.left_out"}
"""Which tensors a report shows or leaves out may change, but not whether it shows some and leaves some out."""


def holds(found: Any, stored: Any, where: str = "answers") -> None:
    """Checks that an answer is the stored one. New attributes are allowed."""
    if isinstance(stored, dict):
        assert isinstance(found, dict), where
        for key, value in stored.items():
            assert key in found, f"{where} has no {key}"
            if key in ("why", "repair"):
                # The wording may change, but not whether there is an explanation and a repair.
                assert value is None or found[key] is not None, where
                continue
            if f"{where}.{key}" in CHOICES:
                assert bool(found[key]) == bool(value), f"{where}.{key}"
                continue
            if key == "alerts":
                holds_alerts(found[key], value)
                continue
            holds(found[key], value, f"{where}.{key}")
    elif isinstance(stored, list):
        assert isinstance(found, list), where
        assert len(found) == len(stored), where
        for index, value in enumerate(stored):
            holds(found[index], value, f"{where}[{index}]")
    else:
        assert found == stored, where


def holds_alerts(found: list[dict[str, Any]], stored: list[dict[str, Any]]) -> None:
    """Checks that the alerts are the same, except for the severity and the message of harmless alerts."""
    assert len(found) == len(stored)
    for new, old in zip(sorted(found, key=_place), sorted(stored, key=_place), strict=True):
        judged = {"severity", "message"} if new["is_expected"] else set()
        holds(new, {key: value for key, value in old.items() if key not in judged}, "answers.alerts")


def _place(alert: dict[str, Any]) -> tuple[str, str, int, str]:
    return alert["kind"], alert["run_id"], alert["first_event_index"] or -1, alert["op_name"] or ""


@pytest.mark.slow
@pytest.mark.parametrize("logdir", LOGDIRS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_golden_logdir_gives_the_stored_answers(logdir: Path) -> None:
    stored = json.loads(logdir.with_suffix(".json").read_text("utf-8"))
    columns = {name: table["columns"] for name, table in stored["tables"].items()}
    holds(answers_of(logdir, columns=columns), stored)


def test_this_version_has_golden_logdirs() -> None:
    names = [path.name for path in VERSIONS]
    assert FORMAT_VERSION in names, "run: python -m tests.compat.make_golden"


def test_golden_logdirs_are_small() -> None:
    assert [path for path in LOGDIRS if num_bytes(path) > MAX_BYTES] == []
