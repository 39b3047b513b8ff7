"""Test exports of unusual logdirs: TensorFlow's reader can read every dump, and existing dumps are not changed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tfdbg_arrow.debugger_v2.export import export_logdir
from tfdbg_arrow.debugger_v2.export_rows import RunRows
from tfdbg_arrow.debugger_v2.file_sets import DumpFiles
from tfdbg_arrow.debugger_v2.protos.debug_event_pb2 import DebugEvent
from tfdbg_arrow.errors import BrokenPartError, DumpError, LogdirError, SettingError
from tfdbg_arrow.storage.layout import manifest_path, part_path
from tfdbg_arrow.storage.manifest import add_line, checksummed, read_live_parts

from .query.builder import CLEAN, CPU, INF, NAN, RunBuilder
from .writer.debugger_v2.dumps import alerts, messages, opened


def test_an_alert_has_the_slot_after_outputs_without_a_summary(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    split = run.execution("Split", inputs=[1], outputs={2: "resource", 3: "int32", 4: "float32"})
    run.eager(split, NAN, tensor_id=4, slot=2)
    export_logdir(run.write(tmp_path / "logdir"), tmp_path / "dump")
    assert [alert[1:] for alert in alerts(tmp_path / "dump")] == [("Split", 2, 2, 0, 0, 1, 0, None)]
    with opened(tmp_path / "dump") as reader:
        (execution,) = reader.executions()
        assert execution.debug_tensor_values == (None, None, [-1, -1, 1, 1, 2, 0, 0, 1, 0, 0, 1])
        devices = [reader.device_name_by_id(number) for number in execution.output_tensor_device_ids]
        assert devices == [CPU, CPU, CPU]  # the device of the output that was measured


def test_an_execution_without_a_stack_trace_has_one_unknown_frame(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    run.add("source_file", source_file_id=0, file_path="train.py", source_text="a\nb\n")
    stack = run.stack(("train.py", 2, "main", "b", "user"))
    run.execution("Add", stack=stack)
    run.execution("Mul")
    run.execution("Sub", stack=99)
    export_logdir(run.write(tmp_path / "logdir"), tmp_path / "dump")
    with opened(tmp_path / "dump") as reader:
        stacks = [reader.read_execution_stack_trace(execution) for execution in reader.executions()]
    unknown = ("host", [("<unknown>", 0, "<unknown>")])
    assert stacks == [("host", [("train.py", 2, "main")]), unknown, unknown]


def test_source_files_with_the_same_path_do_not_shift_later_files(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    for number, (path, text) in enumerate([("a.py", "1\n"), ("a.py", "2\n"), ("a.py (2)", None), ("b.py", "")]):
        run.add("source_file", source_file_id=number, file_path=path, source_text=text)
        run.add("stack_frame", stack_frame_id=number, source_file_id=number, file_path=path, lineno=1, func="f")
        run.add("stack_trace", stack_trace_id=0, depth=number, stack_frame_id=number)
    run.execution("Add", stack=0)
    export_logdir(run.write(tmp_path / "logdir"), tmp_path / "dump")
    with opened(tmp_path / "dump") as reader:
        (execution,) = reader.executions()
        _, frames = reader.read_execution_stack_trace(execution)
        assert [path for path, _, _ in frames] == ["b.py", "a.py (2) (2)", "a.py (2)", "a.py"]
        texts = [reader.source_lines("host", path) for path, _, _ in frames]
        assert texts == [[""], [], ["2", ""], ["1", ""]]


def test_graphs_come_after_their_outer_graphs_regardless_of_ids(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    inner = run.graph("inner").op("x", "Mul")
    outer = run.graph("outer").op("x", "Mul")
    run.rows["graph"][0]["outer_graph_id"] = 1
    run.rows["graph"][1]["outer_graph_id"] = 77  # the program was killed before it wrote that row
    for name, other in (("left", 3), ("right", 2)):  # an impossible cycle of outer graphs
        run.graph(name)
        run.rows["graph"][-1]["outer_graph_id"] = other
    run.tensor(inner, "x", INF)
    run.tensor(outer, "x", CLEAN)
    export_logdir(run.write(tmp_path / "logdir"), tmp_path / "dump")
    with opened(tmp_path / "dump") as reader:
        assert [trace.graph_ids for trace in reader.graph_execution_traces()] == [("1", "0"), ("1",)]
        assert {graph.name for graph in reader.outermost_graphs()} == {"outer", "right"}
    assert [alert[1:] for alert in alerts(tmp_path / "dump")] == [("Mul", 0, 2, 0, 1, 0, None, 0)]


def test_rows_that_the_reader_cannot_read_are_left_out_and_counted(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Mul").op("y", inputs=["x"])
    run.add("graph_op", graph_id=0, op_index=5, op_name="x", op_type="Add", num_outputs=1)
    run.add("graph_op", graph_id=9, op_index=0, op_name="z", op_type="Add", num_outputs=1)
    graph.op_types["lost"] = "Log"
    run.tensor(graph, "lost", NAN)
    run.tensor(graph, "y:4", NAN)
    run.tensor(graph, "x", NAN)
    first = run.execution("Add", inputs=[5])
    run.external(5, NAN, execution=first)
    (exported,) = export_logdir(run.write(tmp_path / "logdir"), tmp_path / "dump")
    with opened(tmp_path / "dump") as reader:
        assert [(op.op_name, op.op_type) for op in reader.graph_op_digests()] == [("x", "Mul"), ("y", "y")]
        assert [trace.op_name for trace in reader.graph_execution_traces()] == ["x"]
    counted = {(item.table, item.reason.split()[0], item.num_rows) for item in exported.left_out}
    assert counted == {
        ("graph_op", "The", 1),  # two reasons start with this word
        ("tensor_health", "The", 2),
        ("tensor_health", "Debugger", 1),
    }
    assert sum(item.num_rows for item in exported.left_out if item.table == "graph_op") == 2


def test_rows_are_sorted(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Mul")
    for number in range(30):
        execution = run.execution(f"Op{number}", inputs=[number, 100 + number], outputs={200 + number: "float32"})
        run.eager(execution, INF if number % 7 == 0 else CLEAN, tensor_id=200 + number)
        run.tensor(graph, "x", NAN if number % 5 == 0 else CLEAN, iteration=number)
    expected = export_logdir(run.write(tmp_path / "logdir"), tmp_path / "dump")
    for name in ("execution", "execution_input", "execution_output", "tensor_health"):
        run.rows[name] = run.rows[name][::-1][::2] + run.rows[name][::2]
    shuffled = export_logdir(run.write(tmp_path / "shuffled", parts=7), tmp_path / "again")
    assert messages(tmp_path / "again") == messages(tmp_path / "dump")
    assert shuffled[0].num_records == expected[0].num_records
    assert len(alerts(tmp_path / "dump")) == 5 + 6


def test_a_high_rank_keeps_its_last_dimensions_and_unmeasured_tensors_are_empty(tmp_path: Path) -> None:
    shape = [2, 1, 3, 1, 1, 2, 1, 5]
    run = RunBuilder("run-a", tensor_debug_mode="SHAPE")
    execution = run.execution("Reshape", outputs={1: "bool", 2: "bool"})
    run.eager(execution, {"dtype": "bool", "rank": 8, "shape": shape, "size": 60}, tensor_id=1)
    run.eager(execution, {"dtype": "bool"}, tensor_id=2, slot=1)
    export_logdir(run.write(tmp_path / "logdir"), tmp_path / "dump")
    with opened(tmp_path / "dump") as reader:
        assert reader.executions()[0].debug_tensor_values == ([-1, 10, 8, 60, 3, 1, 1, 2, 1, 5], None)


def test_a_run_that_only_started_becomes_an_empty_dump(tmp_path: Path) -> None:
    run = RunBuilder("run-a", end_wall_time_ns=None, is_clean_end=False, tensorflow_version=None, host_name="a/b c")
    (exported,) = export_logdir(run.write(tmp_path / "logdir"), tmp_path / "dump")
    with opened(tmp_path / "dump") as reader:
        assert (reader.num_executions(), reader.num_graph_execution_traces()) == (0, 0)
    assert exported.num_records["metadata"] == 1
    assert {path.name.rsplit(".", 1)[0] for path in (tmp_path / "dump").iterdir()} == {"tfdbg_events.1700000000.a-b c"}


def test_each_of_several_runs_becomes_a_directory_unless_one_is_chosen(tmp_path: Path) -> None:
    for run_id, op_type in (("run-a", "Add"), ("run-b", "Mul")):
        run = RunBuilder(run_id)
        run.execution(op_type)
        run.write(tmp_path / "logdir")
    export_logdir(tmp_path / "logdir", tmp_path / "all")
    assert sorted(os.listdir(tmp_path / "all")) == ["run-a", "run-b"]
    for run_id, op_type in (("run-a", "Add"), ("run-b", "Mul")):
        with opened(tmp_path / "all" / run_id) as reader:
            assert [execution.op_type for execution in reader.executions()] == [op_type]
    export_logdir(tmp_path / "logdir", tmp_path / "one", run_id="run-b")
    with opened(tmp_path / "one") as reader:
        assert reader.tfdbg_run_id() == "run-b"


@pytest.mark.parametrize(
    ("recorded", "asked"),
    [("CURT_HEALTH", "FULL_HEALTH"), ("SHAPE", "CURT_HEALTH"), ("FULL_HEALTH", "FULL_TENSOR"), ("NO_TENSOR", "SHAPE")],
)
def test_errors_for_modes_that_the_recording_does_not_have(recorded: str, asked: str, tmp_path: Path) -> None:
    logdir = RunBuilder("run-a", tensor_debug_mode=recorded).write(tmp_path / "logdir")
    with pytest.raises(SettingError, match=f"recorded in {recorded}, which cannot be exported in {asked}"):
        export_logdir(logdir, tmp_path / "dump", tensor_debug_mode=asked)
    with pytest.raises(SettingError, match="tensor_debug_mode is 'FULL_NUMERICS', expected one of NO_TENSOR"):
        export_logdir(logdir, tmp_path / "dump", tensor_debug_mode="FULL_NUMERICS")
    assert not (tmp_path / "dump").exists()


def test_a_part_replaced_during_an_export_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunBuilder("run-a")
    run.execution("Add")
    logdir = run.write(tmp_path / "logdir")
    entries = {entry.table: entry for entry in read_live_parts(logdir, run_id="run-a")}
    old = entries["execution"].path
    new = part_path("execution", run_id="run-a", number=7)
    counts: list[str] = []
    seen: list[tuple[int, int]] = []
    count = RunRows.count

    def replacing(self: RunRows, rows: str) -> int:
        if not counts:
            (logdir / old).rename(logdir / new)
            entries["execution"] = replace(entries["execution"], path=new)
            (logdir / manifest_path("run-a")).write_text(checksummed(map(add_line, entries.values())))
        counts.append(rows)
        return count(self, rows)

    monkeypatch.setattr(RunRows, "count", replacing)
    export_logdir(logdir, tmp_path / "dump", progress=lambda done, total: seen.append((done, total)))
    with opened(tmp_path / "dump") as reader:
        assert reader.num_executions() == 1
    assert counts[0] in counts[1:]
    assert seen[-1] == (1, 1)
    (logdir / new).unlink()
    with pytest.raises(BrokenPartError, match=rf"{new} cannot be read as Parquet \(it does not exist\)"):
        export_logdir(logdir, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_failed_export_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunBuilder("run-a")
    run.execution("Add")
    logdir = run.write(tmp_path / "logdir")

    def full(self: DumpFiles, suffix: str, event: DebugEvent, wall_time_ns: int) -> None:
        if suffix == "execution":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(DumpFiles, "write", full)
    with pytest.raises(DumpError, match=r"cannot be written \(No space left on device\)"):
        export_logdir(logdir, tmp_path / "deep" / "er" / "dump")
    assert not (tmp_path / "deep").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("kept")
    with pytest.raises(DumpError):
        export_logdir(logdir, tmp_path / "mine")
    assert os.listdir(tmp_path / "mine") == ["notes.txt"]


def test_an_export_is_not_written_into_an_existing_dump(tmp_path: Path) -> None:
    logdir = RunBuilder("run-a").write(tmp_path / "logdir")
    export_logdir(logdir, tmp_path / "dump")
    before = messages(tmp_path / "dump")
    with pytest.raises(DumpError, match="already holds a dump"):
        export_logdir(logdir, tmp_path / "dump")
    RunBuilder("run-b").write(logdir)
    with pytest.raises(DumpError, match="already holds a dump"):
        export_logdir(logdir, tmp_path / "dump")  # the directories of the runs would be inside another dump
    assert messages(tmp_path / "dump") == before
    with pytest.raises(DumpError, match="is a logdir of tfdbg_arrow"):
        export_logdir(logdir, logdir)
    (tmp_path / "file").write_text("x")
    with pytest.raises(DumpError, match="is a file"):
        export_logdir(logdir, tmp_path / "file")


def test_errors_for_runs_without_a_row_and_unfinished_imports(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    run.rows["run"].clear()
    with pytest.raises(LogdirError, match="has no row for the run run-a"):
        export_logdir(run.write(tmp_path / "logdir"), tmp_path / "dump")
    half = RunBuilder("run-b", health_backend="debugger_v2", tensor_debug_mode=None, end_wall_time_ns=None)
    with pytest.raises(LogdirError, match="the import of the run run-b was not finished"):
        export_logdir(half.write(tmp_path / "half"), tmp_path / "dump")
    assert not (tmp_path / "dump").exists()
