"""Test that the event files of export_tensorboard have the numbers of the query layer's answers."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import urllib.request
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.tensorflow_stub.errors import OutOfRangeError
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New
from tensorboard.util.tensor_util import make_ndarray

from tfdbg_arrow.errors import ExportError, LogdirError, MissingDependencyError, QueryError
from tfdbg_arrow.query import (
    RunEvents,
    TensorBoardExport,
    distributions,
    export_tensorboard,
    first_nonfinite,
    layer_health,
    open_logdir,
)
from tfdbg_arrow.query import training_curves as curves_of
from tfdbg_arrow.query.exports import training_events
from tfdbg_arrow.query.exports.event_files import scalar
from tfdbg_arrow.storage.layout import part_number

from .builder import CLEAN, START_NS, RunBuilder, numerics
from .manifests import resealed
from .test_distributions import measured
from .test_model_health import scalar as scalar_health

STEPS = (0, 1, 2, 7, 150, 199, 200, 201, 399, 5000, 5001)
"""Steps in three windows. Some steps are at the borders of a window."""
SHORT = (0, 1, 2, 3, 4, 5, 6, 9)


@dataclass
class Events:
    """The content of a directory of event files: the summaries by tag and step, and the time of each step."""

    scalars: dict[tuple[str, int], float] = field(default_factory=dict)
    histograms: dict[tuple[str, int], Any] = field(default_factory=dict)
    texts: dict[tuple[str, int], str] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)

    def tags(self) -> set[str]:
        return {tag for tag, _ in (*self.scalars, *self.histograms, *self.texts)}


def read(directory: Path) -> Events:
    """Reads the event file of a run with TensorBoard's own reader. This reader verifies the checksums."""
    found = Events()
    (path,) = directory.iterdir()
    reader = PyRecordReader_New(str(path))
    is_first = True
    while True:
        try:
            reader.GetNext()
        except OutOfRangeError:
            return found
        event = Event.FromString(reader.record())
        assert (event.file_version == "brain.Event:2") == is_first
        is_first = False
        for value in event.summary.value:
            key = value.tag, event.step
            assert key not in found.scalars | found.histograms | found.texts
            if value.HasField("simple_value"):
                found.scalars[key] = value.simple_value
                found.seconds[event.step] = event.wall_time
            elif value.metadata.plugin_data.plugin_name == "histograms":
                found.histograms[key] = make_ndarray(value.tensor)
            else:
                assert value.metadata.plugin_data.plugin_name == "text"
                found.texts[key] = make_ndarray(value.tensor).item().decode()


def training(
    run_id: str = "run-a", *, steps: tuple[int, ...] = STEPS, loss: str = "loss", **settings: Any
) -> RunBuilder:
    """Returns a run with a layer, a loss, a gradient and marks. In the last step, the loss is NaN."""
    run = RunBuilder(run_id, **{"tensor_debug_mode": "FULL_NUMERICS", **settings})
    graph = run.graph("train")
    graph.op("dense", "Relu", layer="net/dense", role="forward")
    graph.op(loss, "Mean", ["dense"], role="loss")
    graph.op("dense_grad", "ReluGrad", [loss], role="gradient", forward_graph_id=0, forward_op_name="dense")
    run.rows["graph_op_output"][1]["static_shape"] = []
    graph.function("__inference_train_1", [], [loss])
    random = np.random.default_rng(1)
    for number, step in enumerate(steps):
        run.add("mark", event_index=run.next_event_index, step=step, label="step", value=str(step))
        elements = np.maximum(random.normal(size=6) * 10.0**number, 0).tolist()
        execution = run.execution("__inference_train_1", graph=graph, outputs={number: "float32"})
        for name, columns in (
            ("dense", measured(elements) | numerics(*elements, dtype="float64")),
            (loss, scalar_health(math.nan if step == steps[-1] else 1 / (1 + number))),
            ("dense_grad", measured(elements[::-1]) | numerics(*elements[::-1], dtype="float64")),
        ):
            run.tensor(graph, name, {**columns, "step": step}, execution=execution)
        run.add(
            "mark",
            event_index=run.next_event_index,
            wall_time_ns=START_NS + 10**9 * number,
            step=step,
            label="accuracy",
            value=str(number / 7),
        )
    run.execution("AssignVariableOp", inputs=[99, len(steps) - 1])  # the NaN does harm, because it is assigned
    return run


def expected_scalars(logdir: Path, *, run_id: str, max_columns: int) -> dict[tuple[str, int], float]:
    """Returns the values that the viewer's pages show, if each position has its own column."""
    curves, health_ = (
        answer(logdir, run_id=run_id, max_columns=max_columns)  # type: ignore[operator]
        for answer in (curves_of, layer_health)
    )
    series = {
        "nonfinite/share_of_tensors" if curve.name == "bad_share" else f"training/{curve.name}": curve.values
        for curve in curves.curves
    }
    for measure in health_.measures:
        for row, values in zip(health_.rows, health_.values[measure.name], strict=True):
            series[f"{measure.name}/{row.side}/{'role:' if row.kind == 'role' else ''}{row.layer}"] = values
    found = {
        (tag, column.first): float(np.float32(value))
        for tag, values in series.items()
        for column, value in zip(curves.columns, values, strict=True)
        if value is not None
    }
    position = "step" if curves.axis == "step" else "execution_index"
    with open_logdir(logdir) as opened:
        for step, *numbers in opened.rows(
            f"SELECT {position}, count(*) FILTER (WHERE has_inf_or_nan), sum(num_nan), sum(num_pos_inf + num_neg_inf) "
            f"FROM tensor_health WHERE run_id = ? AND {position} IS NOT NULL GROUP BY 1",
            [run_id],
        ):
            names = ("tensors", "nan_elements", "infinite_elements")
            found |= {
                (f"nonfinite/{name}", step): float(number)
                for name, number in zip(names, numbers, strict=True)
                if number is not None
            }
    return found


def differing(a: dict[tuple[str, int], float], b: dict[tuple[str, int], float]) -> list[object]:
    """Returns the keys for which two series differ. Two NaN count as equal."""
    return sorted(key for key in a.keys() | b.keys() if not np.array_equal(a.get(key), b.get(key), equal_nan=True))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TensorBoardExport]:
    """Returns a logdir and its export."""
    path = tmp_path_factory.mktemp("exported")
    logdir = training().write(path / "logdir")
    return logdir, export_tensorboard(logdir, path / "out")


class TestSeries:
    def test_scalars_are_those_of_the_curves_and_the_map_at_each_step(
        self, exported: tuple[Path, TensorBoardExport]
    ) -> None:
        logdir, result = exported
        found = read(result.path / "run-a")
        assert differing(found.scalars, expected_scalars(logdir, run_id="run-a", max_columns=6000)) == []
        assert found.scalars["training/loss", 2] == np.float32(1 / 3)
        assert math.isnan(found.scalars["training/loss", 5001])
        assert found.scalars["training/accuracy", 399] == np.float32(8 / 7)
        assert found.seconds[0] == (START_NS + 3000) / 1e9  # the time of the last tensor of the step, not of a mark
        assert list(found.seconds.values())[1:] == [(START_NS + 10**9 * n) / 1e9 for n in range(1, len(STEPS))]
        (run,) = result.runs
        assert (run.axis, run.num_positions, run.num_scalars) == ("step", len(STEPS), len(found.scalars))
        assert (run.num_histograms, run.notes) == (len(found.histograms), ())
        assert result.size_bytes == sum(file.stat().st_size for file in result.path.glob("*/*"))

    def test_histograms_are_those_of_distributions(self, exported: tuple[Path, TensorBoardExport]) -> None:
        logdir, result = exported
        found = read(result.path / "run-a").histograms
        for layer, side, tag in (
            ("net/dense", "forward", "distribution/forward/net/dense"),
            ("net", "gradient", "distribution/gradient/net"),
        ):
            wanted = distributions(logdir, layer=layer, side=side, max_columns=6000)
            steps = {step for name, step in found if name == tag}
            assert steps == {column.first for i, column in enumerate(wanted.columns) if wanted.num_tensors[i]}
            for step in steps:
                buckets = [tuple(bucket) for bucket in found[tag, step] if bucket[2] and bucket[0] >= 0]
                counted = wanted.positive[step]
                assert buckets == [(*wanted.bounds(i), count) for i, count in enumerate(counted) if count]
                assert found[tag, step][:, 2].sum() == sum(counted) + wanted.num_zero[step]

    def test_buckets_go_from_negative_to_positive_without_a_gap(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a")
        graph = run.graph("f").op("x", "Mul", layer="enc").op("y", "Mul", layer="dec").op("z", "Mul", layer="bad")
        for name, elements in (
            ("x", [-3.0, -0.5, -0.6, 0.0, 0.0, 1.5, 6.0, math.nan, math.inf]),
            ("y", [0.0, 1.75e308]),
            ("z", [math.nan]),
        ):
            run.tensor(graph, name, {**measured(elements), "step": 4})
        export_tensorboard(run.write(tmp_path / "logdir"), tmp_path / "out")
        found = read(tmp_path / "out" / "run-a").histograms
        assert found["distribution/forward/enc", 4].tolist() == [
            [-4, -2, 1], [-2, -1, 0], [-1, -0.5, 2], [-0.5, 0.5, 2], [0.5, 1, 0], [1, 2, 1], [2, 4, 0], [4, 8, 1],
        ]  # fmt: skip
        assert found["distribution/forward/dec", 4].tolist() == [
            [-(2.0**1023), 2.0**1023, 1],
            [2.0**1023, np.finfo(np.float64).max, 1],
        ]
        assert ("distribution/forward/bad", 4) not in found

    def test_a_program_without_layers_has_one_distribution(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a")
        graph = run.graph("f").op("x", "Mul", stack=run.stack(("/home/me/train.py", 12, "f", "x * y", "user")))
        run.tensor(graph, "x", {**measured([1.0, 3.0]), "step": 0})
        export_tensorboard(run.write(tmp_path / "logdir"), tmp_path / "out")
        found = read(tmp_path / "out" / "run-a")
        assert found.histograms["distribution/all", 0].tolist() == [[1, 2, 1], [2, 4, 1]]
        assert found.scalars["bad_share/forward//home/me/train.py:12", 0] == 0

    def test_executions_are_the_steps_of_a_program_without_steps(self, tmp_path: Path) -> None:
        """Marks of one window do not count in another window."""
        run = RunBuilder("run-a", tensor_debug_mode="FULL_NUMERICS")
        for number in range(210):
            run.add("mark", event_index=run.next_event_index, label="lr", value=str(number))
            run.eager_op("Mul", numerics(float(number)), tensor_id=number)
        logdir = run.write(tmp_path / "logdir")
        result = export_tensorboard(logdir, tmp_path / "out")
        found = read(tmp_path / "out" / "run-a").scalars
        assert differing(found, expected_scalars(logdir, run_id="run-a", max_columns=1000)) == []
        assert [found["training/lr", number] for number in (198, 199, 200, 208)] == [199, 200, 201, 209]
        assert result.runs[0].axis == "execution"

    def test_the_answer_is_a_text_at_its_step_that_markdown_leaves_alone(self, tmp_path: Path) -> None:
        logdir = training(steps=(1, 8), loss="![x](/evil.png)").write(tmp_path / "logdir")
        export_tensorboard(logdir, tmp_path / "out")
        answer = first_nonfinite(logdir)
        texts = read(tmp_path / "out" / "run-a").texts
        assert texts == {("first_nonfinite", 8): f"    {answer.headline}"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from tensorboard.plugin_util import markdown_to_safe_html

            assert "<img" in markdown_to_safe_html(answer.headline)  # without indentation, Markdown shows an image
            assert "<img" not in markdown_to_safe_html(texts["first_nonfinite", 8])

    def test_a_finite_number_beyond_float32_stays_finite(self) -> None:
        largest = float(np.finfo(np.float32).max)
        numbers = [scalar("x", number).simple_value for number in (1e300, -1e300, math.inf, -math.inf, 0.5)]
        assert numbers == [largest, -largest, math.inf, -math.inf, 0.5]
        assert math.isnan(scalar("x", math.nan).simple_value)

    def test_equal_runs_give_equal_files(self, tmp_path: Path) -> None:
        logdir = training(steps=(1,), host_name="../ho st\x1b", pid=-5).write(tmp_path / "logdir")
        for name in ("a", "b"):
            export_tensorboard(logdir, tmp_path / name)
        (a,), (b,) = ((tmp_path / name / "run-a").iterdir() for name in ("a", "b"))
        assert (a.name, a.read_bytes()) == (b.name, b.read_bytes())
        assert a.name == "events.out.tfevents.1700000000...-ho-st-.0.0.tfdbg_arrow"


class TestRuns:
    def test_each_run_is_a_directory_and_one_can_be_chosen(self, tmp_path: Path) -> None:
        logdir = tmp_path / "logdir"
        training("run-a", steps=(1, 2), run_name="first try").write(logdir)
        training("run-b", steps=(3,)).write(logdir)
        RunBuilder("run-c").write(logdir)
        result = export_tensorboard(logdir, tmp_path / "out")
        assert [(run.run_id, run.run_name, run.num_positions) for run in result.runs] == [
            ("run-a", "first try", 2), ("run-b", None, 1), ("run-c", None, 0),
        ]  # fmt: skip
        assert result.runs[2].notes == ("No tensor is recorded.",)
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["run-a", "run-b"]
        assert read(tmp_path / "out" / "run-a").texts["run_name", 1] == "    first try"
        assert {step for _, step in read(tmp_path / "out" / "run-b").scalars} == {3}
        export_tensorboard(logdir, tmp_path / "one", run_id="first try")
        assert [path.name for path in (tmp_path / "one").iterdir()] == ["run-a"]
        with pytest.raises(QueryError, match="run 'run-z' is not in"):
            export_tensorboard(logdir, tmp_path / "two", run_id="run-z")
        assert not (tmp_path / "two").exists()

    def test_names_of_a_stranger_neither_lead_out_nor_collide(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a", run_name="../../x\n![](http://evil)")
        graph = run.graph("f")
        hostile = ("../../etc", "/etc", "a\x1b[31m", "a\\x1b[31m", "role:loss", "x" * 5000, "x" * 5001)
        for number, layer in enumerate(hostile):
            graph.op(f"op{number}", "Mul", layer=layer)
            run.tensor(graph, f"op{number}", {**CLEAN, "step": 0})
        run.tensor(graph.op("loss", "Mul", role="loss"), "loss", {**CLEAN, "step": 0})
        for label in ("loss", "../../y", "\u202e", "\ud800".encode("utf-8", "replace").decode()):
            run.add("mark", event_index=0, step=0, label=label, value="1")
        logdir = run.write(tmp_path / "logdir")
        export_tensorboard(logdir, tmp_path / "out")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["logdir", "out"]
        found = read(tmp_path / "out" / "run-a")
        assert all(tag.isprintable() and len(tag) <= 210 for tag in found.tags())
        with open_logdir(logdir) as opened:
            answer = opened.layer_health()
        shares = {tag for tag in found.tags() if tag.startswith("bad_share/")}
        assert len(shares) == len(answer.rows) >= len(hostile) + 1
        assert {"bad_share/forward/role:loss", "bad_share/forward/role:loss 2"} <= shares
        assert {"training/../../y", "training/\\u202e"} <= found.tags()

    def test_a_run_id_that_leads_out_is_refused(self, tmp_path: Path) -> None:
        run = training(steps=(1,))
        run.rows["run"][0]["run_id"] = "../../x"
        logdir = run.write(tmp_path / "logdir")
        with pytest.raises(LogdirError, match="gives the run id"):
            export_tensorboard(logdir, tmp_path / "out")
        assert [path.name for path in tmp_path.iterdir()] == ["logdir"]

    def test_extreme_steps(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a")
        graph = run.graph("f").op("x", "Mul")
        steps = {-(2**63), 0, 2**63 - 1}
        for step in steps:
            run.tensor(graph, "x", {**measured([1.0]), "step": step})
        export_tensorboard(run.write(tmp_path / "logdir"), tmp_path / "out")
        assert {step for _, step in read(tmp_path / "out" / "run-a").histograms} == steps


class TestModes:
    @pytest.mark.parametrize(
        ("mode", "words"),
        [
            ("NO_TENSOR", ["The loss is not known", "FULL_HEALTH or FULL_NUMERICS", "need the mode FULL_NUMERICS"]),
            ("FULL_HEALTH", ["The loss is not known", "Largest magnitudes, means, norms and update ratios"]),
        ],
    )
    def test_what_a_mode_lacks_is_said_with_what_to_record(self, mode: str, words: list[str], tmp_path: Path) -> None:
        run = RunBuilder("run-a", tensor_debug_mode=mode)
        graph = run.graph("f").op("x", "Mul")
        run.tensor(graph, "x", {**(CLEAN if mode == "FULL_HEALTH" else {}), "step": 0})
        run.add("mark", event_index=1, step=0, label="accuracy", value="0.5")
        (found,) = export_tensorboard(run.write(tmp_path / "logdir"), tmp_path / "out").runs
        assert len(found.notes) == len(words) + 1
        assert all(word in note for word, note in zip(words, found.notes, strict=False))
        assert "histograms=True" in found.notes[-1]
        assert read(tmp_path / "out" / "run-a").scalars["training/accuracy", 0] == 0.5


class TestTarget:
    def test_only_an_export_is_replaced_and_only_on_request(self, tmp_path: Path) -> None:
        logdir, target = training(steps=(1,)).write(tmp_path / "logdir"), tmp_path / "out"
        export_tensorboard(logdir, target)
        with pytest.raises(ExportError, match="already exists; give another path, or --overwrite"):
            export_tensorboard(logdir, target)
        export_tensorboard(logdir, target, overwrite=True)
        (target / "run-a" / "model.keras").write_text("mine")
        with pytest.raises(ExportError, match="not a directory with only the event files of an export"):
            export_tensorboard(logdir, target, overwrite=True)
        with pytest.raises(ExportError, match="is a logdir of tfdbg_arrow"):
            export_tensorboard(logdir, logdir)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["logdir", "out"]

    def test_a_failed_export_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        logdir = training(steps=(1,)).write(tmp_path / "logdir")

        def fail(run_id: str, axis: str, position: int) -> None:
            raise OSError("No space left on device")

        with pytest.raises(ExportError, match=r"cannot be written \(No space.*; nothing was left there"):
            export_tensorboard(logdir, tmp_path / "out", progress=fail)
        monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
        with pytest.raises(MissingDependencyError, match="tensorboard is not installed; run: pip install 'tensorboard"):
            export_tensorboard(logdir, tmp_path / "out")
        assert [path.name for path in tmp_path.iterdir()] == ["logdir"]


class TestFollow:
    @pytest.fixture
    def stages(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
        """Returns functions that show more and more parts of a logdir. After the last one, the recording has ended."""
        logdir = training(steps=SHORT, run_name="live").write(tmp_path / "logdir", parts=4)
        manifest = logdir / "manifest" / "run-a.jsonl"
        lines = [json.loads(line) for line in manifest.read_text().splitlines()]
        recording, growing = frozenset({"run-a"}), ("mark", "execution", "tensor_health")

        def show(number: int) -> None:
            shown = [line for line in lines if line["table"] not in growing or part_number(line["path"]) <= number]
            manifest.write_text(resealed("".join(json.dumps(line) + "\n" for line in shown)))

        monkeypatch.setattr(training_events, "recording_runs", lambda logdir: recording if later else frozenset())
        later: list[Callable[[], None]] = [lambda number=number: show(number) for number in (1, 2, 3, 3)]  # type: ignore[misc]
        show(0)
        return later

    def test_complete_steps_are_appended_until_the_recording_has_ended(
        self, stages: list[Callable[[], None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        logdir, directory = tmp_path / "logdir", tmp_path / "live" / "run-a"
        contents: list[bytes] = []
        lasts: list[tuple[int, int]] = []

        def wait(started_s: float, *, interval_s: float) -> None:
            with open_logdir(logdir) as opened:
                ((seen,),) = opened.rows("SELECT max(step) FROM tensor_health")
            if directory.exists():
                contents.append(next(directory.iterdir()).read_bytes())
                lasts.append((max((step for _, step in read(directory).scalars), default=-1), seen))
            stages.pop(0)()

        monkeypatch.setattr(training_events, "wait_after_look", wait)
        result = export_tensorboard(logdir, tmp_path / "live", follow=True)
        contents.append(next(directory.iterdir()).read_bytes())
        assert len(contents) == 4
        assert all(after.startswith(before) and len(after) > len(before) for before, after in pairwise(contents))
        assert all(written < seen for written, seen in lasts)
        whole = export_tensorboard(logdir, tmp_path / "whole")
        assert result.runs == whole.runs
        live, at_once = (read(tmp_path / name / "run-a") for name in ("live", "whole"))
        assert differing(live.scalars, at_once.scalars) == []
        assert (live.texts, live.seconds) == (at_once.texts, at_once.seconds)
        assert {key: value.tolist() for key, value in live.histograms.items()} == {
            key: value.tolist() for key, value in at_once.histograms.items()
        }

    def test_an_interrupt_leaves_whole_records(
        self, stages: list[Callable[[], None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def wait(started_s: float, *, interval_s: float) -> None:
            if len(stages) == 2:
                raise KeyboardInterrupt
            stages.pop(0)()

        monkeypatch.setattr(training_events, "wait_after_look", wait)
        (run,) = export_tensorboard(tmp_path / "logdir", tmp_path / "live", follow=True).runs
        found = read(tmp_path / "live" / "run-a")
        assert 0 < run.num_positions < len(SHORT)
        assert (run.num_scalars, run.num_positions) == (len(found.scalars), len(found.seconds))

    def test_a_recording_without_complete_steps(
        self, stages: list[Callable[[], None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def wait(started_s: float, *, interval_s: float) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(training_events, "wait_after_look", wait)
        result = export_tensorboard(tmp_path / "logdir", tmp_path / "live", follow=True)
        assert result.runs == (
            RunEvents(
                run_id="run-a",
                run_name="live",
                axis=None,
                num_positions=0,
                num_scalars=0,
                num_histograms=0,
                notes=("No step was complete.",),
            ),
        )
        assert list((tmp_path / "live").iterdir()) == []


_PROGRAM = """
import sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("tensorboard.compat.notf")
from tensorboard import default, program
board = program.TensorBoard(plugins=default.get_static_plugins())
board.configure(argv=[None, "--load_fast=false", "--host=127.0.0.1", "--port=0", "--logdir", sys.argv[1]])
print(board.launch(), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_tensorboard_serves_it(tmp_path: Path) -> None:
    logdir = training(steps=SHORT, run_name="my run").write(tmp_path / "logdir")
    code = (
        "import sys\nfrom tfdbg_arrow.query import export_tensorboard\nexport_tensorboard(*sys.argv[1:])\n"
        "assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(logdir), str(tmp_path / "out")], check=True)
    wanted = read(tmp_path / "out" / "run-a")
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as board:
        url = board.stdout.readline().strip()

        def get(path: str) -> Any:
            with urllib.request.urlopen(f"{url}data/{path}", timeout=60) as answer:
                return json.load(answer)

        for _ in range(100):
            if get("runs") == ["run-a"] and get("plugin/scalars/tags"):
                break
        assert set(get("plugin/scalars/tags")["run-a"]) == {tag for tag, _ in wanted.scalars}
        series = get("plugin/scalars/scalars?run=run-a&tag=training/accuracy")
        assert [(step, np.float32(value)) for _, step, value in series] == [
            (step, wanted.scalars["training/accuracy", step]) for step in SHORT
        ]
        tag = "distribution/forward/net/dense"
        shown = get(f"plugin/histograms/histograms?run=run-a&tag={tag}")
        assert {step: buckets for _, step, buckets in shown} == {
            step: buckets.tolist() for (name, step), buckets in wanted.histograms.items() if name == tag
        }
        (text,) = get("plugin/text/text?run=run-a&tag=first_nonfinite")
        assert (text["step"], "<code>" in text["text"]) == (SHORT[-1], True)
        board.communicate()
