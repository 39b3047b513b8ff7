"""Each tensor of a session has one row, compared with the runtime's own trace of an unrecorded run."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow

from . import tf1_programs
from .tables import rows
from .tf1_programs import PROGRAMS

pytestmark = pytest.mark.slow

_LOWERED = frozenset({"Case", "If", "While"})
"""The runtime replaces these ops with other nodes, named `<op>/<node>`."""
_HANDING_ON = frozenset({"Identity", "IdentityN", "StopGradient"})
_ONE_OF_TWO = frozenset({"Switch", "RefSwitch"})


def num_runs_of_nodes(step_stats: Any) -> Counter[str]:
    return Counter(node.node_name for device in step_stats.dev_stats for node in device.node_stats)


def fed_and_used(logdir: Path, function_name: str) -> set[str]:
    return {
        f"{row['op_name']}:{row['output_slot']}"
        for row in rows(logdir, "graph_function_input")
        if row["function_name"] == function_name
    }


def expected_rows(logdir: Path, function_name: str, step_stats: Any) -> Counter[str]:
    """Returns how many rows each tensor that is not fed must have: as many as the number of runs of its op."""
    runs = num_runs_of_nodes(step_stats)
    types = {row["op_name"]: row["op_type"] for row in rows(logdir, "graph_op") if row["graph_id"] == 0}
    fed = fed_and_used(logdir, function_name)
    counts: Counter[str] = Counter()
    for row in rows(logdir, "graph_op_output"):
        name = f"{row['op_name']}:{row['output_slot']}"
        if row["graph_id"] == 0 and row["is_recorded"] and name not in fed:
            either = f"{row['op_name']}:either"
            times = runs[row["op_name"]]
            if types[row["op_name"]].removeprefix("Stateless") in _LOWERED:
                times = int(any(node.startswith(row["op_name"] + "/") for node in runs))
            counts[either if types[row["op_name"]] in _ONE_OF_TWO else name] = times
    return +counts


def recorded_rows(logdir: Path, execution_index: int, fed: set[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in rows(logdir, "tensor_health"):
        if row["graph_id"] == 0 and row["execution_index"] == execution_index:
            name = f"{row['op_name']}:{row['output_slot']}"
            if name not in fed:
                counts[f"{row['op_name']}:either" if row["op_type"] in _ONE_OF_TWO else name] += 1
    return counts


def compare_functions(logdir: Path, execution_index: int, step_stats: Any) -> int:
    """Compares the ops of the functions that the session's graph calls, for ops whose names the runtime keeps.

    Returns:
        The number of tensors that were compared.
    """
    runs = num_runs_of_nodes(step_stats)
    found: Counter[tuple[str, int]] = Counter()
    for row in rows(logdir, "tensor_health"):
        if row["graph_id"] and row["execution_index"] == execution_index:
            found[f"{row['call_site']}/{row['op_name']}", row["output_slot"]] += 1
    compared = {key: times for key, times in found.items() if key[0] in runs}
    assert compared == {key: runs[key[0]] for key in compared}
    return len(compared)


def assert_equal_values(actual: Any, expected: Any) -> None:
    for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype
        if a.dtype.hasobject:
            assert a.tolist() == b.tolist()
        else:
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    ("graphs", "backend"),
    [
        ("executed", "native"),
        ("traced", "native"),
        ("executed", "tensorflow"),
        pytest.param("traced", "tensorflow", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_node_that_ran_has_its_rows(name: str, graphs: str, backend: str, tmp_path: Path) -> None:
    program, is_optimized = PROGRAMS[name], graphs == "executed"
    bare = tf1_programs.run(program, is_traced=True, is_optimized=is_optimized)
    with tfdbg_arrow.capture(tmp_path, graphs=graphs, health_backend=backend):
        recorded = tf1_programs.run(program, is_optimized=is_optimized)

    assert_equal_values(recorded.values, bare.values)
    assert rows(tmp_path, "capture_stat") == []
    executions = sorted(rows(tmp_path, "execution"), key=lambda row: row["execution_index"])
    sessions = [row for row in executions if row["op_type"].startswith("Session.run_")]
    assert len(sessions) == len(bare.stats)
    types = {row["op_name"]: row["op_type"] for row in rows(tmp_path, "graph_op") if row["graph_id"] == 0}
    taken = {f"{row['source_node_name']}:{row['source_output_slot']}" for row in rows(tmp_path, "executed_op_input")}

    def may_be_left_out(tensor: str) -> bool:
        # In a loop or branch, nothing could wait for the record op of an unused output. TensorFlow removes
        # ops that only pass a tensor on.
        is_inside = any(part in ("while", "cond") for part in tensor.split("/")[:-1])
        hands_on = not is_optimized and types[tensor.rpartition(":")[0]] in _HANDING_ON
        return tensor.endswith(":either") or hands_on or (tensor not in taken and is_inside)

    num_compared = 0
    for execution, step_stats in zip(sessions, bare.stats, strict=True):
        fed = fed_and_used(tmp_path, execution["op_type"])
        expected = expected_rows(tmp_path, execution["op_type"], step_stats)
        for tensor in list(expected):
            op_type = types[tensor.rpartition(":")[0]]
            if op_type == "NextIteration" or op_type.removeprefix("Stateless") in _LOWERED:
                del expected[tensor]
        found = recorded_rows(tmp_path, execution["execution_index"], fed)
        for tensor in expected:
            low = 0 if may_be_left_out(tensor) else expected[tensor]
            assert low <= found[tensor] <= expected[tensor], (tensor, execution)
        # TensorFlow folds constants again after our optimizer, except constants that are recorded.
        others = {tensor.rpartition(":")[0] for tensor in found if tensor not in expected}
        assert others <= {row["node_name"] for row in rows(tmp_path, "executed_op")}
        if program.is_v2 and not is_optimized:
            num_compared += compare_functions(tmp_path, execution["execution_index"], step_stats)
    assert num_compared >= 6 or name != "loops_v2" or is_optimized
    steps = defaultdict(set)
    for row in rows(tmp_path, "tensor_health"):
        if row["scope"] == "graph":
            steps[row["execution_index"]].add(row["step_id"])
    assert all(len(ids) == 1 for ids in steps.values())
    assert None not in steps
