"""A dump of TensorFlow's Debugger V2 that was imported and exported: TensorFlow's reader finds the same in both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.debugger_v2.export import ExportedRun, export_logdir
from tfdbg_arrow.debugger_v2.importer import import_dump

from .dumps import MODES, MONITORED, alerts, opened, read_by_tensorboard


@pytest.fixture(scope="module")
def exported(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ExportedRun]:
    root = tmp_path_factory.mktemp("exported")
    runs = {}
    for mode in MODES:
        import_dump(recorded / mode, root / mode / "logdir")
        (runs[mode],) = export_logdir(root / mode / "logdir", root / mode / "dump")
    return runs


@pytest.mark.parametrize("mode", MODES)
def test_tensorflows_reader_finds_the_same(mode: str, recorded: Path, exported: dict[str, ExportedRun]) -> None:
    run = exported[mode]
    assert (run.tensor_debug_mode, run.left_out) == (mode, ())
    expected, found = facts(recorded / mode), facts(run.dump)
    for name, rows in expected.items():
        assert len(rows) > 0
        assert found[name] == rows, name


def facts(dump: Path) -> dict[str, Sequence[Any]]:
    """Returns what a reader finds in a dump, with names instead of the ids that a dump chooses itself."""
    with opened(dump) as reader:

        def graph_names(graph_id: str) -> tuple[str, ...]:
            graph = reader.graph_by_id(graph_id)
            return (*(graph_names(graph.outer_graph_id) if graph.outer_graph_id else ()), graph.name)

        executions = [
            (
                round(each.wall_time, 5),
                each.op_type,
                graph_names(each.graph_id) if each.graph_id else None,
                each.input_tensor_ids,
                each.output_tensor_ids,
                each.tensor_debug_mode,
                values(reader, each),
                reader.read_execution_stack_trace(each),
            )
            for each in reader.executions()
        ]
        traces = [
            (
                round(each.wall_time, 5),
                each.op_type,
                each.op_name,
                each.output_slot,
                graph_names(each.graph_id),
                each.device_name,
                None if each.debug_tensor_value is None else each.debug_tensor_value[1:],
            )
            for each in reader.graph_execution_traces()
        ]
        ops = [
            (
                graph_names(each.graph_id),
                each.op_name,
                each.op_type,
                each.input_names,
                each.num_outputs,
                reader.read_graph_op_creation_stack_trace(each),
            )
            for each in reader.graph_op_digests()
        ]
        files = [(*key, reader.source_lines(*key)) for key in reader.source_file_list()]
        return {
            "executions": executions,
            "traces": traces,
            "ops": ops,
            "files": files,
            "tensorflow_version": reader.tensorflow_version(),
        }


def values(reader, execution):
    if execution.debug_tensor_values is not None:
        found = list(execution.debug_tensor_values)
    else:
        found = [None if each is None else each.tolist() for each in reader.execution_to_tensor_values(execution)]
    while found and found[-1] is None:
        found.pop()
    return found
