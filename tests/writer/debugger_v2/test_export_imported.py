"""Dumps of TensorFlow's Debugger V2 that are imported and exported have the same messages in the same order."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tensorboard.plugins.debugger_v2.debug_data_multiplexer import DebuggerV2EventMultiplexer

from tfdbg_arrow.debugger_v2.export import export_logdir
from tfdbg_arrow.debugger_v2.file_sets import frame
from tfdbg_arrow.debugger_v2.importer import import_dump
from tfdbg_arrow.errors import SettingError

from ..subprocesses import run_python
from .dumps import MODES, MONITORED, alerts, messages, opened

RECORD = """
import sys
import tensorflow as tf
from writer.debugger_v2.traced_program import run_program

for mode in sys.argv[2:]:
    tf.random.set_seed(1)
    tf.debugging.experimental.enable_dump_debug_info(f"{sys.argv[1]}/{mode}", mode, circular_buffer_size=-1)
    run_program()
    tf.debugging.experimental.disable_dump_debug_info()
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Returns a dump of the program for each mode of Debugger V2."""
    root = tmp_path_factory.mktemp("dumps")
    run_python(root / "record.py", RECORD, root, *MODES)
    return {mode: root / mode for mode in MODES}


@pytest.fixture(scope="module")
def logdirs(dumps: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("imported")
    for mode, dump in dumps.items():
        import_dump(dump, root / mode)
    return {mode: root / mode for mode in dumps}


@pytest.fixture(scope="module")
def exported(logdirs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("exported")
    for mode, logdir in logdirs.items():
        (run,) = export_logdir(logdir, root / mode)
        assert (run.is_imported, run.tensor_debug_mode, run.left_out, run.notes) == (True, mode, (), ())
    return {mode: root / mode for mode in logdirs}


@pytest.mark.parametrize("mode", MODES)
def test_every_file_has_the_same_messages_in_the_same_order(
    mode: str, dumps: dict[str, Path], exported: dict[str, Path]
) -> None:
    expected = messages(dumps[mode])
    found = messages(exported[mode])
    assert list(found) == list(expected)
    assert len(expected) == 6
    for name, records in expected.items():
        assert len(records) > 0
        assert found[name] == records


@pytest.mark.parametrize("mode", MONITORED)
def test_the_monitor_reports_the_same_alerts(mode: str, dumps: dict[str, Path], exported: dict[str, Path]) -> None:
    expected = alerts(dumps[mode])
    assert alerts(exported[mode]) == expected
    assert bool(expected) == mode.endswith("HEALTH")


@pytest.mark.parametrize("mode", ["CONCISE_HEALTH", "FULL_HEALTH"])
def test_tensorboards_plugin_shows_the_same(mode: str, dumps: dict[str, Path], exported: dict[str, Path]) -> None:
    assert shown(exported[mode]) == shown(dumps[mode])


def shown(dump: Path) -> dict[str, object]:
    """Returns the data that the plugin sends to its page."""
    with opened(dump) as reader:
        num_alerts = len(alerts(dump))
        num_executions, num_traces = reader.num_executions(), reader.num_graph_execution_traces()
        ops = [(op.graph_id, op.op_name) for op in reader.graph_op_digests()]
    plugin = DebuggerV2EventMultiplexer(str(dump))
    (run,) = plugin.Runs()
    for _ in range(600):  # it reads in a separate thread
        if (
            plugin.ExecutionDigests(run, 0, -1)["num_digests"] == num_executions
            and plugin.Alerts(run, 0, -1)["num_alerts"] == num_alerts
        ):
            break
        time.sleep(0.05)
    executions = plugin.ExecutionData(run, 0, -1)
    frame_ids = executions["executions"][0]["stack_frame_ids"]
    found = {
        "alerts": plugin.Alerts(run, 0, -1),
        "executions": executions,
        "traces": plugin.GraphExecutionData(run, 0, -1),
        "ops": [op_info(plugin, run, *op) for op in ops],
        "graphs": [plugin.GraphInfo(run, graph_id) for graph_id in sorted({graph_id for graph_id, _ in ops})],
        "files": plugin.SourceFileList(run),
        "lines": plugin.SourceLines(run, 0),
        "frames": plugin.StackFrames(run, frame_ids),
    }
    assert found["alerts"]["num_alerts"] == num_alerts > 0
    assert found["traces"]["end"] == num_traces > 0
    assert json.dumps(found, default=list)
    return found


def op_info(plugin: DebuggerV2EventMultiplexer, run: str, graph_id: str, op_name: str) -> object:
    try:
        return plugin.GraphOpInfo(run, graph_id, op_name)
    except IndexError as error:  # the plugin fails: a call got outputs for the gradient after it was written
        return str(error)


def test_damaged_and_unknown_records_are_exported_unchanged(dumps: dict[str, Path], tmp_path: Path) -> None:
    """Records that cannot be parsed are kept whole. Only a record that is cut off is lost."""
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in dumps["FULL_HEALTH"].iterdir():
        content = path.read_bytes()
        if path.suffix == ".execution":
            content = frame(b"\xff\xff no message") + content + frame(b"\x10\x07\xfa\x3f\x03abc")  # an unknown field
        elif path.suffix == ".graph_execution_traces":
            content = content[:-5]
        elif path.suffix == ".stack_frames":
            continue
        (damaged / path.name).write_bytes(content)
    import_dump(damaged, tmp_path / "logdir")
    export_logdir(tmp_path / "logdir", tmp_path / "back")
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == sorted(p.name for p in damaged.iterdir())
    for path in damaged.iterdir():
        found = (tmp_path / "back" / path.name).read_bytes()
        if path.suffix == ".graph_execution_traces":
            assert path.read_bytes().startswith(found)
            assert len(found) > 0.9 * len(path.read_bytes())
        else:
            assert found == path.read_bytes()


def test_each_file_set_becomes_a_separate_dump(dumps: dict[str, Path], tmp_path: Path) -> None:
    for mode in ("FULL_HEALTH", "SHAPE"):
        import_dump(dumps[mode], tmp_path / "logdir")
    runs = export_logdir(tmp_path / "logdir", tmp_path / "all")
    assert [run.dump for run in runs] == [tmp_path / "all" / run.run_id for run in runs]
    assert {run.tensor_debug_mode for run in runs} == {"FULL_HEALTH", "SHAPE"}
    for run in runs:
        assert run.tensor_debug_mode is not None
        assert messages(run.dump) == messages(dumps[run.tensor_debug_mode])


def test_an_imported_run_cannot_be_exported_in_another_mode(logdirs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="was imported from a dump in FULL_HEALTH"):
        export_logdir(logdirs["FULL_HEALTH"], tmp_path / "dump", tensor_debug_mode="SHAPE")
    assert not (tmp_path / "dump").exists()
