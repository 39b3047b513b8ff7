"""Import of handmade dumps: whole rows, and damaged or unusual dumps."""

from __future__ import annotations

import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdbg_arrow.debugger_v2.export import ExportedRun, export_logdir
from tfdbg_arrow.debugger_v2.file_sets import FILES, RecordReader, frame
from tfdbg_arrow.debugger_v2.importer import import_dump
from tfdbg_arrow.debugger_v2.protos.debug_event_pb2 import DebugEvent, TensorDebugMode
from tfdbg_arrow.debugger_v2.protos.tensor_pb2 import TensorProto
from tfdbg_arrow.errors import DumpError, LogdirError
from tfdbg_arrow.query import first_nonfinite, open_logdir
from tfdbg_arrow.schema.dtypes import decode_strings

from . import building
from .building import Dump, execution, small_dump, trace, write_dump
from .dumps import opened


def rows(logdir: Path, query: str) -> list[tuple[Any, ...]]:
    with open_logdir(logdir) as opened:
        return opened.rows(query)


def imported(tmp_path: Path, dump: Dump) -> Path:
    logdir = tmp_path / "logdir"
    import_dump(write_dump(tmp_path / "dump", dump), logdir)
    return logdir


def stats(logdir: Path) -> list[tuple[Any, ...]]:
    return rows(logdir, "SELECT stat, subject, reason, num_events FROM capture_stat ORDER BY ALL")


def exported(logdir: Path) -> ExportedRun:
    """Exports the imported run. TensorFlow's reader must be able to read the export."""
    (run,) = export_logdir(logdir, logdir.with_name("exported"))
    with opened(run.dump) as reader:
        assert len(reader.executions()) == run.num_records["execution"]
        assert len(reader.graph_execution_traces()) == run.num_records["graph_execution_traces"]
    return run


def test_executions_and_traces_are_ordered_and_joined(tmp_path: Path) -> None:
    logdir = imported(tmp_path, small_dump())
    assert rows(
        logdir,
        "SELECT event_index, scope, coalesce(op_name, op_type), execution_index, is_call_inferred, output_slot, "
        "num_neg_inf, num_zero, size, has_inf_or_nan FROM tensor_health ORDER BY event_index",
    ) == [
        (1, "execution", "RandomUniform", 0, None, 0, 0, 0, 2, False),
        (3, "graph", "Softmax", 1, True, 0, 0, 1, 2, False),
        (4, "execution", "__inference_model_7", 1, None, 0, 0, 1, 2, False),
        (6, "graph", "Log", 2, True, 0, 1, 0, 2, True),
        (7, "graph", "Neg", 2, True, 0, 0, 0, 2, True),
        (8, "execution", "__forward_loss_9", 2, None, 0, 0, 0, 2, True),
        (10, "execution", "AddV2", 3, None, 0, 0, 0, 2, True),
        (11, "graph", "Softmax", None, None, 0, 0, 1, 2, False),
    ]
    assert rows(
        logdir, "SELECT execution_index, event_index, op_type, graph_id, thread_id FROM execution ORDER BY ALL"
    ) == [
        (0, 0, "RandomUniform", None, None),
        (1, 2, "__inference_model_7", 0, None),
        (2, 5, "__forward_loss_9", None, None),
        (3, 9, "AddV2", None, None),
    ]
    assert rows(logdir, "SELECT * EXCLUDE run_id FROM execution_input WHERE execution_index = 2 ORDER BY ALL") == [
        (2, 0, 10),
        (2, 1, 300),
    ]
    assert rows(logdir, "SELECT * EXCLUDE run_id FROM execution_output ORDER BY ALL LIMIT 1") == [
        (0, 0, 1100, "float32")
    ]
    assert rows(logdir, "SELECT function_name, graph_id FROM graph_function") == [("__inference_model_7", 0)]
    assert stats(logdir) == []


def test_no_call_is_inferred_without_the_first_execution(tmp_path: Path) -> None:
    dump = small_dump()
    del dump["execution"][0]
    logdir = imported(tmp_path, dump)
    query = "SELECT execution_index, is_call_inferred FROM tensor_health WHERE op_name = 'Softmax' ORDER BY event_index"
    assert rows(logdir, query) == [(None, None), (None, None)]


def test_a_trace_is_not_joined_to_a_call_of_another_graph(tmp_path: Path) -> None:
    dump = small_dump()
    dump["graph_execution_traces"][0] = trace(150, "g-loss", "Log").SerializeToString()
    logdir = imported(tmp_path, dump)
    assert rows(
        logdir, "SELECT execution_index FROM tensor_health WHERE scope = 'graph' ORDER BY event_index LIMIT 1"
    ) == [(None,)]


def test_the_first_bad_tensor_is_found_and_unknowns_are_listed(tmp_path: Path) -> None:
    found = first_nonfinite(imported(tmp_path, small_dump()))
    assert found is not None
    assert (found.op_name, found.op_type, found.num_neg_inf, found.graph_name) == ("Log", "Log", 1, "loss")
    assert not found.is_origin
    (input_,) = found.inputs
    assert input_.health is None
    assert found.source is not None
    assert (found.source.file_path, found.source.lineno, found.source.func) == ("/home/ada/train.py", 1, "loss")


def test_an_export_has_all_records_of_the_imported_dump(tmp_path: Path) -> None:
    dump = small_dump()
    run = exported(imported(tmp_path, dump))
    assert run.num_records == {file: len(records) for file, records in dump.items()}
    assert (run.tensor_debug_mode, run.left_out) == ("FULL_HEALTH", ())


def test_summaries_of_some_outputs_keep_their_places(tmp_path: Path) -> None:
    """Outputs of a type that Debugger V2 does not support have no summary. Integers have an empty summary."""
    made = execution(150, "Mul")
    made.execution.num_outputs = 4
    made.execution.output_tensor_ids.extend((1, 2, 3))
    made.execution.output_tensor_device_ids.extend((1, 1, 1))
    made.execution.tensor_protos.add()
    building.full_health(made.execution.tensor_protos.add(), 0, 0, 1, 0, 0, 0, tensor_id=-1)
    dump = {**small_dump(), "execution": [made.SerializeToString()]}
    logdir = imported(tmp_path, dump)
    assert rows(
        logdir, "SELECT output_slot, device_id, num_nan FROM tensor_health WHERE op_type = 'Mul' ORDER BY event_index"
    ) == [(None, 1, 0), (None, 1, 1)]
    with opened(exported(logdir).dump) as reader:
        (found,) = reader.executions()
    assert [each and each[7] for each in found.debug_tensor_values] == [0, None, 1, None]


@pytest.mark.parametrize("mode", [TensorDebugMode.REDUCE_INF_NAN_THREE_SLOTS, 99, None])
def test_a_dump_of_an_unknown_mode_or_without_events_is_exported_without_tensors(
    tmp_path: Path, mode: int | None
) -> None:
    made = execution(150, "Mul")
    if mode is not None:
        made.execution.tensor_debug_mode = mode
    events = [] if mode is None else [made.SerializeToString()]
    logdir = imported(tmp_path, {**small_dump(), "execution": events, TRACES: []})
    run = exported(logdir)
    assert (run.tensor_debug_mode, run.num_records["execution"]) == ("NO_TENSOR", len(events))


def unknown_field(record: bytes) -> bytes:
    return record + b"\xfa\x07\x03new"  # field 127, a string


def reordered(record: bytes) -> bytes:
    return record[9:] + record[:9]  # moves the time behind the event


def odd_summary(made: Any, place: int, value: float) -> bytes:
    tensor = made.graph_execution_trace.tensor_proto
    numbers = list(struct.unpack("<11d", tensor.tensor_content))
    numbers[place] = value
    tensor.tensor_content = struct.pack("<11d", *numbers)
    return bytes(made.SerializeToString())


def frame_of_file(index: int) -> bytes:
    return building.stack_frame("f9", file_index=index, line=2, func="f")


def frame_without_text() -> bytes:
    made = DebugEvent.FromString(building.stack_frame("f9", file_index=0, line=2, func="f#"))
    made.stack_frame_with_id.file_line_col.code = "c#"
    return bytes(made.SerializeToString()).replace(b"#", b"\xff")


def endless() -> Any:
    made = execution(150, "Mul")
    made.wall_time = float("inf")
    return made


TRACES = "graph_execution_traces"
ODD: dict[str, tuple[str, Callable[[], bytes]]] = {
    "unknown field of an event": ("execution", lambda: unknown_field(execution(150, "Mul").SerializeToString())),
    "unknown field of a trace": (TRACES, lambda: unknown_field(trace(90, "g-model", "x").SerializeToString())),
    "unknown field of a frame": ("stack_frames", lambda: unknown_field(frame_of_file(0))),
    "no message": ("execution", lambda: b"\xff\xff\xff"),
    "no message among graphs": ("graphs", lambda: b"\xff\xff\xff"),
    "an empty message": (TRACES, lambda: b""),
    "a graph id, which nothing writes": ("execution", lambda: bytes(DebugEvent(graph_id="g").SerializeToString())),
    "a trace among executions": ("execution", lambda: trace(160, "g-model", "Softmax").SerializeToString()),
    "fields in another order": ("execution", lambda: reordered(execution(150, "Mul").SerializeToString())),
    "an unknown graph": (TRACES, lambda: trace(90, "g-lost", "op").SerializeToString()),
    "an unknown op": (TRACES, lambda: trace(90, "g-model", "lost").SerializeToString()),
    "an op of an unknown graph": ("graphs", lambda: building.graph_op("g-lost", "op", "Mul", "a:0", "^b", "c")),
    "an unknown frame": ("graphs", lambda: building.graph_op("g-loss", "Exp", "Exp", stack=("f0", "f-lost"))),
    "a name and code that are no UTF-8": ("stack_frames", frame_without_text),
    "an unknown file": ("stack_frames", lambda: frame_of_file(5)),
    "a line break in a line": ("source_files", lambda: building.source_file("/a.py", "x\ny", "z")),
    "an empty line": ("source_files", lambda: building.source_file("/a.py", "")),
    "no lines": ("source_files", lambda: building.source_file("/a.py")),
    "a fraction as count": (TRACES, lambda: odd_summary(trace(90, "g-model", "Softmax"), 6, 0.5)),
    "a negative zero": (TRACES, lambda: odd_summary(trace(90, "g-model", "Softmax"), 10, -0.0)),
    "NaN as size": (TRACES, lambda: odd_summary(trace(90, "g-model", "Softmax"), 4, float("nan"))),
    "an infinite dtype": (TRACES, lambda: odd_summary(trace(90, "g-model", "Softmax"), 2, float("inf"))),
    "an endless time": ("execution", lambda: endless().SerializeToString()),
}  # fmt: skip


def strings_trace(**fields: Any) -> bytes:
    made = trace(90, "g-model", "Softmax")
    computed = made.graph_execution_trace
    computed.tensor_debug_mode = TensorDebugMode.FULL_TENSOR
    computed.tensor_proto.CopyFrom(TensorProto(dtype="DT_STRING", **fields))
    computed.tensor_proto.tensor_shape.dim.add(size=3)
    return bytes(made.SerializeToString())


STRINGS = (b"a" * 200, b"", "ünï".encode())
PACKED = b"\xc8\x01" + bytes([0, 5]) + b"".join(STRINGS)
"""Strings as TensorFlow packs them: the lengths as varints, then the bytes."""


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tensor_content": PACKED}, STRINGS),
        ({"string_val": STRINGS}, STRINGS),
        ({"string_val": [b"same"]}, (b"same",) * 3),
        ({"string_val": [b"x"] * 4}, None),
        ({"tensor_content": PACKED + b"more"}, None),
        ({"tensor_content": PACKED[:-1]}, None),
        ({"tensor_content": b"\xff" * 40}, None),
        ({"tensor_content": b""}, None),
    ],
)
def test_the_elements_of_strings_are_kept(
    tmp_path: Path, fields: dict[str, Any], expected: tuple[bytes, ...] | None
) -> None:
    dump = small_dump()
    dump[TRACES].append(strings_trace(**fields))
    logdir = imported(tmp_path, dump)
    values = rows(logdir, "SELECT value, shape FROM tensor_value WHERE dtype = 'string'")
    assert [(decode_strings(value, 3), shape) for value, shape in values] == (
        [] if expected is None else [(expected, [3])]
    )


@pytest.mark.parametrize("name", ODD)
def test_odd_records_do_not_harm_others(tmp_path: Path, name: str) -> None:
    file, make = ODD[name]
    dump = small_dump()
    dump[file].insert(1, make())
    dump[file].append(make())
    logdir = tmp_path / "logdir"
    (run,) = import_dump(write_dump(tmp_path / "dump", dump), logdir).runs
    assert run.num_events == sum(map(len, dump.values()))
    assert first_nonfinite(logdir) is not None
    again = exported(logdir)
    assert all(again.num_records[file] >= len(records) for file, records in small_dump().items())


def test_unresolved_references_are_counted(tmp_path: Path) -> None:
    dump = small_dump()
    dump["graphs"].append(ODD["an unknown frame"][1]())
    dump["execution"].append(b"\xff\xff\xff")
    dump["stack_frames"].append(ODD["an unknown file"][1]())
    logdir = imported(tmp_path, dump)
    assert stats(logdir) == [
        ("dropped", "execution record", "is not a DebugEvent", 1),
        ("failed", "source file", "is referred to, but not among the dump's source_files", 1),
        ("failed", "stack frame", "is referred to, but not among the dump's stack_frames", 1),
    ]
    # The known frame of the stack is not lost.
    assert rows(
        logdir,
        "SELECT f.func FROM graph_op o JOIN stack_trace t USING (run_id, stack_trace_id) "
        "JOIN stack_frame f USING (run_id, stack_frame_id) WHERE op_name = 'Exp'",
    ) == [("<module>",)]


def test_an_op_that_claims_two_billion_outputs_does_not_fill_the_disk(tmp_path: Path) -> None:
    dump = small_dump()
    event = DebugEvent.FromString(building.graph_op("g-loss", "wide", "Split", "probs:0"))
    event.graph_op_creation.num_outputs = 2**31 - 1
    event.graph_op_creation.output_tensor_ids.extend(range(299))
    dump["graphs"].append(event.SerializeToString())
    logdir = imported(tmp_path, dump)
    assert rows(logdir, "SELECT count(*) FROM graph_op_output WHERE op_name = 'wide'") == [(300,)]
    assert rows(logdir, "SELECT num_outputs FROM graph_op WHERE op_name = 'wide'") == [(300,)]
    assert ("failed", "graph op", "claims more outputs than it lists; the others are left out", 1) in stats(logdir)
    assert exported(logdir).size_bytes < 10_000


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_reported(tmp_path: Path, file: str) -> None:
    dump = small_dump()
    del dump[file]
    logdir = imported(tmp_path, dump)
    assert ("dropped", f"file {file}", "is missing in the dump", None) in stats(logdir)
    assert rows(logdir, "SELECT is_clean_end FROM run") == [(False,)]
    exported(logdir)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_all_records_before_a_cut_are_imported(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        dump = write_dump(Path(scratch) / "dump", small_dump())
        for file in sorted(data.draw(st.sets(st.sampled_from(FILES), min_size=1))):
            (path,) = dump.glob(f"*.{file}")
            content = path.read_bytes()
            path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
        logdir = Path(scratch) / "logdir"
        (run,) = import_dump(dump, logdir).runs
        assert run.num_events == sum(len(records) for records in map(_records, dump.iterdir()))
        torn = sum(bool(reason) for _, _, reason, _ in stats(logdir) if "ends inside" in reason)
        assert torn == sum(_is_cut(path) for path in dump.iterdir())


def _records(path: Path) -> list[bytes]:
    with open(path, "rb") as file:
        return list(RecordReader(file))


def _is_cut(path: Path) -> bool:
    return path.stat().st_size > sum(len(frame(record)) for record in _records(path))


def test_a_damaged_record_ends_only_its_own_file(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump", small_dump())
    path = next(dump.glob("*.execution"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    import_dump(dump, tmp_path / "logdir")
    ((stat, subject, reason, _),) = stats(tmp_path / "logdir")
    assert (stat, subject) == ("dropped", "file execution")
    assert "the checksum of a record does not match" in reason
    assert rows(tmp_path / "logdir", "SELECT count(*) FROM tensor_health WHERE scope = 'graph'") == [(4,)]


def test_several_file_sets_become_several_runs(tmp_path: Path) -> None:
    dump = small_dump()
    write_dump(tmp_path / "dump", dump, prefix="tfdbg_events.1795000000.worker-0")
    write_dump(tmp_path / "dump", dump, prefix="tfdbg_events.1795000000.worker-1")
    dump["metadata"] = [building.metadata(run_id="recording-2")]
    write_dump(tmp_path / "dump", dump, prefix="tfdbg_events.1795009999.worker-1")
    found = import_dump(tmp_path / "dump", tmp_path / "logdir")
    assert len({run.run_id for run in found.runs}) == 3
    assert rows(tmp_path / "logdir", "SELECT host_name, count(*) FROM run GROUP BY host_name ORDER BY ALL") == [
        ("worker-0", 1),
        ("worker-1", 2),
    ]
    assert rows(tmp_path / "logdir", "SELECT count(*) FROM execution GROUP BY run_id") == [(4,)] * 3


def test_a_dump_is_imported_again_only_if_it_grew(tmp_path: Path) -> None:
    dump, logdir = write_dump(tmp_path / "dump", small_dump()), tmp_path / "logdir"
    (first,) = import_dump(dump, logdir).runs
    files = {path: path.stat().st_mtime_ns for path in logdir.rglob("*.parquet")}
    (second,) = import_dump(shutil.copytree(dump, tmp_path / "copy"), logdir).runs
    assert (second.run_id, second.is_new, second.rows) == (first.run_id, False, first.rows)
    assert {path: path.stat().st_mtime_ns for path in logdir.rglob("*.parquet")} == files
    grown = small_dump()
    grown["execution"].append(execution(900, "Mul").SerializeToString())
    (third,) = import_dump(write_dump(dump, grown), logdir).runs
    assert (third.run_id, third.is_new) == (first.run_id, True)
    assert rows(logdir, "SELECT count(*) FROM execution") == [(5,)]


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("at", [1, 5, 12])
def test_an_interrupted_import_starts_over_without_duplicates(tmp_path: Path, at: int) -> None:
    dump, logdir = write_dump(tmp_path / "dump", small_dump()), tmp_path / "logdir"
    calls = 0

    def interrupt(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        assert 0 <= done <= total
        if calls == at:
            raise _Killed

    with pytest.raises(_Killed):
        import_dump(dump, logdir, progress=interrupt)
    (run,) = import_dump(dump, logdir).runs
    assert run.is_new
    # The same holds for readers that only use the path.
    assert pyarrow.dataset.dataset(logdir / "execution").count_rows() == 4
    assert rows(logdir, "SELECT count(*), bool_and(is_clean_end) FROM run") == [(1, True)]


def test_a_second_import_at_the_same_time_raises_an_error(tmp_path: Path) -> None:
    dump, logdir = write_dump(tmp_path / "dump", small_dump()), tmp_path / "logdir"
    found: list[str] = []

    def again(done: int, total: int) -> None:
        if not found:
            with pytest.raises(LogdirError) as error:
                import_dump(dump, logdir)
            found.append(str(error.value))

    import_dump(dump, logdir, progress=again)
    assert "another import is writing" in found[0]
    assert rows(logdir, "SELECT count(*) FROM execution") == [(4,)]


def test_a_link_out_of_the_dump_raises_an_error_and_one_within_is_read(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump", small_dump())
    graphs = next(dump.glob("*.graphs"))
    moved = graphs.rename(tmp_path / "elsewhere")
    graphs.symlink_to(moved)
    with pytest.raises(DumpError, match=rf"{graphs.name} leads through a symbolic link to {moved}"):
        import_dump(dump, tmp_path / "logdir")
    assert not (tmp_path / "logdir").exists()
    graphs.unlink()
    graphs.symlink_to(moved.rename(dump / "within").name)
    import_dump(dump, tmp_path / "logdir")
    assert rows(tmp_path / "logdir", "SELECT count(*) FROM graph") == [(2,)]


def test_a_path_without_a_dump_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="does not exist"):
        import_dump(tmp_path / "nothing", tmp_path / "logdir")
    assert not (tmp_path / "logdir").exists()
