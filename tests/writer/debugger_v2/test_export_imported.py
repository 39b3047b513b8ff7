"""Dumps of Debugger V2 that are imported and exported: TensorFlow's reader finds the same in both dumps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from tensorflow.python.debug.lib.debug_events_reader import DebugDataReader, Execution

from tfdbg_arrow.debugger_v2.export import ExportedRun, export_logdir
from tfdbg_arrow.debugger_v2.importer import import_dump

from .dumps import MODES, MONITORED, alerts, opened, read_by_tensorboard


@pytest.fixture(scope="module")
def exported(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ExportedRun]:
    """Returns each dump of TensorFlow after its import and export."""
    root = tmp_path_factory.mktemp("exported")
    runs = {}
    for mode in MODES:
        import_dump(recorded / mode, root / mode / "logdir")
        (runs[mode],) = export_logdir(root / mode / "logdir", root / mode / "dump")
    return runs


@pytest.mark.parametrize("mode", MODES)
def test_the_reader_finds_the_same(mode: str, recorded: Path, exported: dict[str, ExportedRun]) -> None:
    run = exported[mode]
    assert (run.tensor_debug_mode, run.left_out) == (mode, ())
    assert ("wait forever" in " ".join(run.notes)) == (mode == "FULL_TENSOR")
    expected, found = facts(recorded / mode), facts(run.dump)
    assert found.pop("times") == pytest.approx(expected.pop("times"), abs=1e-5)
    for name, rows in expected.items():
        assert len(rows) > 0
        assert found[name] == rows, name


def facts(dump: Path) -> dict[str, Sequence[Any]]:
    """Returns the contents of a dump in order. Names replace the IDs, because IDs differ between dumps."""
    with opened(dump) as reader:

        def graph_names(graph_id: str) -> tuple[str, ...]:
            graph = reader.graph_by_id(graph_id)
            return (*(graph_names(graph.outer_graph_id) if graph.outer_graph_id else ()), graph.name)

        executions, traces = reader.executions(), reader.graph_execution_traces()
        return {
            "tensorflow_version": reader.tensorflow_version(),
            # Threads may append events to a dump out of the order of their times. The times in an export never
            # decrease.
            "times": [
                time for rows in (executions, traces) for time in accumulate((each.wall_time for each in rows), max)
            ],
            "executions": [
                (
                    each.op_type,
                    each.graph_id and graph_names(each.graph_id),
                    each.input_tensor_ids,
                    each.output_tensor_ids,
                    each.tensor_debug_mode,
                    values(reader, each),
                    # The devices of an execution without values are lost.
                    values(reader, each) and [reader.device_name_by_id(id_) for id_ in each.output_tensor_device_ids],
                    reader.read_execution_stack_trace(each),
                )
                for each in executions
            ],
            "traces": [
                (
                    each.op_type,
                    each.op_name,
                    each.output_slot,
                    graph_names(each.graph_id),
                    each.device_name,
                    # The export gives new ids to graph tensors.
                    None if each.debug_tensor_value is None else each.debug_tensor_value[1:],
                )
                for each in traces
            ],
            "ops": [
                (
                    graph_names(each.graph_id),
                    each.op_name,
                    each.op_type,
                    each.input_names,
                    each.num_outputs,
                    reader.read_graph_op_creation_stack_trace(each),
                )
                for each in reader.graph_op_digests()
            ],
            "files": [(*key, reader.source_lines(*key)) for key in reader.source_file_list()],
        }


def values(reader: DebugDataReader, execution: Execution) -> list[str]:
    """Returns the values of an execution, as texts because of NaN. Trailing outputs without a value are left out."""
    found = list(execution.debug_tensor_values or reader.execution_to_tensor_values(execution))
    if execution.tensor_debug_mode == SHAPE:  # this mode has no shape of more than six dimensions
        found = [None if each is None or each[2] > 6 else each for each in found]
    while found and found[-1] is None:
        found.pop()
    return [repr(each) for each in found]


SHAPE = 5


@pytest.mark.parametrize("mode", MONITORED)
def test_the_monitor_and_tensorboard_show_the_same(mode: str, recorded: Path, exported: dict[str, ExportedRun]) -> None:
    expected = shown(recorded / mode)
    assert expected["executions"]
    assert expected["traces"]
    assert shown(exported[mode].dump) == expected
    assert bool(expected["alerts"]) == mode.endswith("HEALTH")


def shown(dump: Path) -> dict[str, Any]:
    """Returns the lists that TensorBoard's plugin sends to its page, without times, graph ids and device ids."""
    plugin, run = read_by_tensorboard(dump)
    lists = {
        "alerts": plugin.Alerts(run, 0, -1)["alerts"],
        "executions": plugin.ExecutionDigests(run, 0, -1)["execution_digests"],
        "traces": plugin.GraphExecutionDigests(run, 0, -1)["graph_execution_digests"],
    }
    chosen = {"wall_time", "graph_id", "output_tensor_device_ids"}
    return {name: [{key: row[key] for key in row.keys() - chosen} for row in rows] for name, rows in lists.items()}


def test_whole_tensors_can_be_exported_as_summaries(
    recorded: Path, exported: dict[str, ExportedRun], tmp_path: Path
) -> None:
    logdir = exported["FULL_TENSOR"].dump.parent / "logdir"
    (run,) = export_logdir(logdir, tmp_path / "dump", tensor_debug_mode="FULL_HEALTH")
    assert [alert[2:7] for alert in alerts(run.dump)] == [alert[2:7] for alert in alerts(recorded / "FULL_HEALTH")]
