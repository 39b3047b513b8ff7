"""Test doctor on incomplete, filtered, partly copied and broken logdirs, and on paths that are not logdirs."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tfdbg_arrow.cli import app
from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.query import Diagnosis, Finding, doctor
from tfdbg_arrow.query.capture_stats import REASON_KINDS, STAT_KINDS
from tfdbg_arrow.storage.layout import MARKER_NAME

from .builder import CLEAN, NAN, RunBuilder

WRITER = Path(__file__).resolve().parents[2] / "tfdbg_arrow" / "writer"


def healthy(run_id: str = "run-a", **settings: Any) -> RunBuilder:
    run = RunBuilder(run_id, **settings)
    graph = run.graph("f").op("x", "Exp")
    run.tensor(graph, "x", CLEAN, execution=run.execution("__inference_f_1", graph=graph))
    return run


def stat(
    run: RunBuilder,
    name: str,
    subject: str,
    reason: str,
    *,
    num_events: int | None = None,
    code: str | None = None,
) -> None:
    columns = {"stat": name, "subject": subject, "reason": reason, "num_events": num_events, "reason_code": code}
    run.add("capture_stat", event_index=run.next_event_index, **columns)


def found(path: Path) -> list[tuple[str, str, str | None]]:
    return [(finding.kind, finding.severity, finding.run_id) for finding in doctor(path).findings]


def only(path: Path) -> Finding:
    (finding,) = doctor(path).findings
    return finding


def test_a_healthy_logdir_has_no_finding(tmp_path: Path) -> None:
    healthy().write(tmp_path, parts=3)
    assert doctor(tmp_path) == Diagnosis(path=str(tmp_path), findings=())
    assert doctor(tmp_path).is_healthy


class TestPathsThatAreNotLogdirs:
    def test_a_path_that_does_not_exist_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(LogdirError, match="does not exist"):
            doctor(tmp_path / "nowhere")

    def test_an_empty_directory_means_that_no_recording_started(self, tmp_path: Path) -> None:
        finding = only(tmp_path)
        assert (finding.kind, finding.severity) == ("empty_directory", "error")
        assert "no recording ever started" in finding.sentence
        assert "TFDBG_ARROW is not 0" in finding.advice

    def test_the_advice_for_a_dump_of_debugger_v2_is_to_import_it(self, tmp_path: Path) -> None:
        (tmp_path / "tfdbg_events.1.host.metadata").write_bytes(b"")
        finding = only(tmp_path)
        assert (finding.kind, finding.advice) == (
            "debugger_v2_dump", f"Convert it to a logdir: tfdbg-arrow import {tmp_path} LOGDIR."
        )  # fmt: skip

    def test_parents_and_subdirectories_of_logdirs_and_other_paths_are_distinguished(self, tmp_path: Path) -> None:
        logdir = healthy().write(tmp_path / "above" / "logdir")
        (part,) = (logdir / "run" / "run=run-a").iterdir()
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "notes.txt").write_text("x")
        assert [only(path).kind for path in (tmp_path / "above", logdir / "run", part, tmp_path / "other")] == [
            "above_logdirs", "inside_a_logdir", "inside_a_logdir", "not_a_logdir"
        ]  # fmt: skip
        assert str(logdir) in only(tmp_path / "above").advice
        assert only(part).advice == f"Pass {logdir}."
        assert only(tmp_path / "other" / "notes.txt").sentence == "This is a file."

    def test_missing_damaged_and_newer_markers(self, tmp_path: Path) -> None:
        marker = healthy().write(tmp_path) / MARKER_NAME
        text = json.loads(marker.read_text())
        marker.write_text(json.dumps({**text, "format_version": "99.0"}))
        assert only(tmp_path).kind == "newer_format"
        assert "99.0" in only(tmp_path).evidence
        marker.write_text("{")
        assert only(tmp_path).kind == "broken_marker"
        marker.unlink()
        assert only(tmp_path).kind == "missing_marker"


class TestParts:
    def test_changed_truncated_and_missing_parts_are_reported(self, tmp_path: Path) -> None:
        healthy().write(tmp_path)
        paths = [next((tmp_path / name / "run=run-a").iterdir()) for name in ("run", "graph", "execution")]
        content = bytearray(paths[0].read_bytes())
        content[20] ^= 1
        paths[0].write_bytes(bytes(content))
        paths[1].write_bytes(paths[1].read_bytes()[:-8])
        paths[2].unlink()
        finding = only(tmp_path)
        assert (finding.kind, finding.severity, finding.run_id) == ("broken_part", "error", "run-a")
        assert finding.sentence.startswith("3 parts of the run cannot be trusted")
        for words in ("run/run=run-a/part-000000.parquet does not match its SHA-256", "bytes, not", "is missing"):
            assert words in finding.evidence

    def test_a_damaged_manifest_is_reported(self, tmp_path: Path) -> None:
        healthy().write(tmp_path)
        manifest = tmp_path / "manifest" / "run-a.jsonl"
        manifest.write_text("nonsense\n" + manifest.read_text())
        assert found(tmp_path) == [("broken_manifest", "error", "run-a")]

    def test_parts_that_no_manifest_lists_are_reported(self, tmp_path: Path) -> None:
        healthy().write(tmp_path)
        healthy("run-b").write(tmp_path)
        (part,) = (tmp_path / "mark" / "run=run-a").iterdir()
        shutil.copy(part, part.with_name("part-000007.parquet"))
        (tmp_path / "manifest" / "run-b.jsonl").unlink()
        assert sorted(found(tmp_path)) == [
            ("missing_manifest", "warning", "run-b"), ("unlisted_part", "warning", "run-a")
        ]  # fmt: skip
        (tmp_path / "manifest" / "run-a.jsonl").unlink()
        assert found(tmp_path) == [("missing_manifest", "error", "run-a"), ("missing_manifest", "error", "run-b")]


class TestEndOfRun:
    def test_killed_runs_are_distinguished_from_runs_that_still_record(self, tmp_path: Path) -> None:
        open_ = {"end_wall_time_ns": None, "is_clean_end": False}
        healthy("run-a", **open_, host_name="elsewhere").write(tmp_path)
        healthy("run-b", **open_, host_name=socket.gethostname(), pid=os.getpid()).write(tmp_path)
        healthy("run-c", **open_, host_name=socket.gethostname(), pid=2**22 + 1).write(tmp_path)
        healthy("run-d", is_clean_end=False).write(tmp_path)
        healthy("run-e", **open_, health_backend="debugger_v2").write(tmp_path)
        (tmp_path / "spool").mkdir()
        (tmp_path / "spool" / "run-c.spool").write_bytes(b"x")
        findings = doctor(tmp_path).findings
        assert [(each.kind, each.severity, each.run_id) for each in findings] == [
            ("not_closed", "warning", "run-a"),
            ("not_closed", "warning", "run-c"),
            ("events_lost", "warning", "run-d"),
            ("dump_not_whole", "warning", "run-e"),
            ("still_recording", "info", "run-b"),
        ]
        assert [("spool/run-c.spool" in each.evidence) for each in findings[:2]] == [False, True]

    def test_a_logdir_without_runs(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a")
        run.rows = {name: [] for name in run.rows}
        assert only(run.write(tmp_path)).kind == "no_run"


class TestRecordedData:
    @pytest.mark.parametrize(
        ("settings", "kind", "severity", "words"),
        [
            ({}, "nothing_recorded", "warning", "no op ran in this process"),
            ({"settings": '{"steps": "5:"}'}, "nothing_recorded", "warning", "no step of the schedule ran"),
            ({"settings": '{"dump_on": "nonfinite"}'}, "black_box_never_fired", "info", "no bad value appeared"),
        ],
    )
    def test_a_run_without_events_is_explained(
        self, settings: dict[str, str], kind: str, severity: str, words: str, tmp_path: Path
    ) -> None:
        finding = only(RunBuilder("run-a", **settings).write(tmp_path))
        assert (finding.kind, finding.severity, words in finding.sentence) == (kind, severity, True)

    def test_graphs_that_never_ran(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a")
        run.graph("f").op("x", "Exp")
        assert found(run.write(tmp_path)) == [("graphs_never_ran", "warning", "run-a")]

    @pytest.mark.parametrize("mode", ["NO_TENSOR", "SHAPE"])
    def test_a_mode_that_measures_nothing(self, mode: str, tmp_path: Path) -> None:
        finding = only(healthy(tensor_debug_mode=mode).write(tmp_path))
        assert (finding.kind, mode in finding.sentence) == ("mode_measures_nothing", True)

    def test_only_eager_ops_are_an_info_and_calls_of_unknown_functions_a_warning(self, tmp_path: Path) -> None:
        eager = RunBuilder("run-a")
        eager.eager_op("Exp", CLEAN, tensor_id=1)
        eager.write(tmp_path)
        late = RunBuilder("run-b")
        late.eager_op("__inference_step_7", CLEAN, tensor_id=1)
        late.write(tmp_path)
        assert found(tmp_path) == [("unknown_functions", "warning", "run-b"), ("only_eager", "info", "run-a")]
        assert "before recording began" in doctor(tmp_path).findings[0].sentence

    def test_missing_rows_of_graphs_are_an_error(self, tmp_path: Path) -> None:
        run = healthy()
        run.rows["graph"].clear()  # the disk was full when the rows about the graph were written
        finding = only(run.write(tmp_path))
        assert (finding.kind, finding.severity) == ("graphs_missing", "error")

    def test_filters_are_an_info_and_a_filter_that_leaves_no_tensor_is_a_warning(self, tmp_path: Path) -> None:
        run = healthy(op_regex="Exp", tensor_dtypes='["float32"]')
        run.graph("g").op("y", "Log", dtypes=("float32", "int32"), not_recorded="op_regex")
        run.write(tmp_path)
        assert found(tmp_path) == [("filtered", "info", "run-a"), ("filtered", "info", "run-a")]
        assert (
            "op_regex=Exp. Outputs of ops in graphs that could be bad and were left out: 1. "
            in doctor(tmp_path).findings[0].sentence
        )
        assert doctor(tmp_path).is_healthy
        empty = RunBuilder("run-b", op_regex="Nothing")
        empty.execution("Exp", graph=empty.graph("f").op("x", "Exp", not_recorded="op_regex"))
        assert ("no_tensor", "warning", "run-b") in found(empty.write(tmp_path))

    def test_unobserved_outputs_are_counted_by_reason(self, tmp_path: Path) -> None:
        run = healthy()
        run.graph("g").op("y", "Exp", not_recorded="xla").op("z", "Shape", dtypes=("int32",), not_recorded="dtype")
        finding = only(run.write(tmp_path))
        assert (finding.kind, finding.severity) == ("unobserved_outputs", "warning")
        assert finding.sentence == "Outputs of ops in graphs that could be bad but were not recorded (xla): 1."
        assert finding.advice.endswith(f"tfdbg-arrow coverage {tmp_path} --run run-a.")


class TestCaptureStats:
    def test_each_kind_is_a_finding_and_requested_limits_are_infos(self, tmp_path: Path) -> None:
        run = healthy()
        for index in range(5):
            stat(run, "unobservable", f"f{index}", "was traced before recording began and is held")
        stat(run, "dropped", "event", "The spool had no room: events came faster.", num_events=7, code="spool_full")
        last = "The circular buffer kept only the last ones."
        stat(run, "dropped", "execution", last, num_events=2, code="circular_buffer")
        stat(run, "failed", "step", "ValueError: x")
        stat(run, "changed", "g", "runs without XLA while recording")
        stat(run, "masked", "Log:0", "nothing in its graph computes with it")
        stat(run, "brand_new", "x", "of a later version")
        findings = doctor(run.write(tmp_path)).findings
        late = "f0, f1, f2 and 2 more could not be observed: was traced before recording began and is held"
        assert [(each.kind, each.severity, each.sentence) for each in findings] == [
            ("noted", "warning", "x was noted: of a later version"),
            ("dropped", "warning", "event was dropped: The spool had no room: events came faster."),
            ("failed", "warning", "step was not recorded in full because of an error: ValueError: x"),
            ("unobservable", "warning", late),
            ("changed", "info", "g ran differently than without recording: runs without XLA while recording"),
            ("dropped", "info", "execution was dropped: The circular buffer kept only the last ones."),
            ("masked", "info", "Log:0 was bad and did not stop the program: nothing in its graph computes with it"),
        ]
        assert "max_memory_bytes" in findings[1].advice
        assert findings[1].evidence == "The table capture_stat (stat dropped, 7 events)."

    def test_the_recorder_writes_the_codes_that_the_reader_knows(self) -> None:
        sources = "\n".join(path.read_text() for path in WRITER.rglob("*.py"))
        assert set(re.findall(r'reason_code="(\w+)"', sources)) == set(REASON_KINDS)

    def test_a_reason_without_a_code_gets_the_general_advice(self, tmp_path: Path) -> None:
        run = healthy()
        stat(run, "dropped", "event", "The spool had no room: events came faster.", num_events=7)
        (finding,) = doctor(run.write(tmp_path)).findings
        assert finding.advice == STAT_KINDS["dropped"].advice

    def test_every_kind_in_the_specification_is_declared(self) -> None:
        spec = (WRITER.parents[1] / "spec" / "README.md").read_text()
        sentence = spec[spec.index("`capture_stat.stat` is one of:") :].split("\n\n")[0].replace("\n", " ")
        assert all(f"`{name}` (" in sentence for name in STAT_KINDS)
        assert sentence.count("` (") == len(STAT_KINDS)

    def test_masked_values_do_not_make_the_coverage_incomplete(self, tmp_path: Path) -> None:
        run = healthy()
        stat(run, "masked", "Log:0", "nothing in its graph computes with it")
        result = CliRunner().invoke(app, ["coverage", str(run.write(tmp_path))])
        assert (result.exit_code, result.stdout.splitlines()[0]) == (0, "Every tensor that could be bad was looked at.")

    def test_first_nonfinite_reports_a_gap_once(self, tmp_path: Path) -> None:
        run = healthy()
        stat(run, "dropped", "execution", "The circular buffer kept only the last ones.", num_events=2)
        stat(run, "dropped", "graph tensor", "The circular buffer kept only the last ones.", num_events=5)
        stat(run, "unobservable", "f", "was traced before")
        result = CliRunner().invoke(app, ["first-nonfinite", str(run.write(tmp_path))])
        assert result.stdout.splitlines()[1:] == [
            "But the recording of run run-a is incomplete: The circular buffer kept only the last ones. (7 events)",
            f"Not looked at: 1 noted as unobservable; see: tfdbg-arrow coverage {tmp_path}",
        ]


class TestCommand:
    def run(self, *arguments: object) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["doctor", *map(str, arguments)])
        return result.exit_code, result.stdout, result.stderr

    def test_exit_codes_and_text_output(self, tmp_path: Path) -> None:
        healthy(op_regex="\x1b[31mExp").write(tmp_path / "fine")
        code, text, _ = self.run(tmp_path / "fine")
        assert (code, text.splitlines()[0]) == (0, f"{tmp_path / 'fine'}: nothing is wrong.")
        assert "info in run run-a: The recording was filtered by op_regex=\\x1b[31mExp" in text
        (tmp_path / "empty").mkdir()
        code, text, _ = self.run(tmp_path / "empty")
        assert code == 1
        assert text.startswith("error: The directory is empty")
        assert "    evidence " in text
        assert "    advice   Call enable()" in text
        code, text, error = self.run(tmp_path / "nowhere")
        assert (code, text, error.count("\n")) == (2, "", 1)

    def test_json_output(self, tmp_path: Path) -> None:
        run = healthy(is_clean_end=False)
        run.tensor(run.graph("g").op("y", "Log"), "y", NAN)
        code, text, _ = self.run(run.write(tmp_path), "--json")
        found = json.loads(text)
        assert (code, found["is_healthy"], len(found["findings"])) == (1, False, 1)
        assert list(found["findings"][0]) == ["kind", "severity", "run_id", "sentence", "evidence", "advice"]
