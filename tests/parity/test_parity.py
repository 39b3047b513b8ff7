"""Test that tfdbg_arrow records every fact about a corpus of programs that Debugger V2 records, in each mode.

`PYTHONPATH=tests python -m parity.report` prints the counts of all modes, and the facts that only tfdbg_arrow records.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .differences import EXPLANATIONS, MODES
from .report import text
from .run import run

pytestmark = pytest.mark.slow

IN_EVERY_RUN = ("FULL_TENSOR",)
"""This mode compares the most, because it compares every element."""
COMPARED = ("graph", "outer_graph", "op", "op_type", "op_name", "op_num_outputs", "op_inputs", "op_stack")
COMPARED += ("execution", "execution_graph", "execution_stack", "library_frames", "tensor_ids", "source_file")
COMPARED_VALUES = ("execution_value", "trace_count", "trace_value")


@pytest.mark.parametrize(
    "mode", [m if m in IN_EVERY_RUN else pytest.param(m, marks=pytest.mark.exhaustive) for m in MODES]
)
def test_everything_that_debugger_v2_records_is_recorded(mode: str, tmp_path: Path) -> None:
    outcome = run(mode, tmp_path / mode)
    report = text([outcome])
    equal, only_ours = outcome.comparison.equal, outcome.comparison.only_ours

    assert outcome.failed == {"debugger_v2": {}, "tfdbg_arrow": {}}
    assert outcome.unexplained == [], report
    assert outcome.unused == [], report
    assert outcome.unresolved == {}
    # The comparison covered many facts, and few facts differ.
    assert all(equal[kind] > 100 for kind in COMPARED + (COMPARED_VALUES if mode != "NO_TENSOR" else ())), report
    of_ops = sum(difference.kind.startswith("op") for difference in outcome.comparison.differences)
    assert of_ops < 0.02 * sum(equal[kind] for kind in COMPARED if kind.startswith("op")), report
    # Facts that Debugger V2 lacks.
    assert all(only_ours[kind] > 0 for kind in ("graph", "op", "execution", "execution_graph")), report
    assert only_ours["execution of another thread"] > 0, report
    assert (only_ours["trace"] > 500) == (mode != "NO_TENSOR"), report


def test_explanations_have_unique_names() -> None:
    names = [entry.name for entry in EXPLANATIONS]
    assert len(set(names)) == len(names)
