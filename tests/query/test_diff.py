"""Test diff: compare two small runs that differ in one fact, and check the first divergence."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import Diff, diff

from .builder import CLEAN, CPU, INF, RunBuilder, counts, numerics

Health = Mapping[str, Any]


def keep(run: RunBuilder, event_index: int, values: np.ndarray[Any, Any], dtype: str | None = None) -> int:
    """Adds the elements of a tensor to a run, and returns the event_index of the tensor."""
    run.add(
        "tensor_value",
        event_index=event_index,
        dtype=dtype or str(values.dtype),
        shape=list(values.shape),
        value=values.tobytes(),
    )
    return event_index


class Pair:
    """Two runs to compare."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.a = RunBuilder("run-a", **settings)
        self.b = RunBuilder("run-b", **settings)
        self._path = path

    def both(self, program: Callable[..., None], **of_b: Any) -> Pair:
        program(self.a)
        program(self.b, **of_b)
        return self

    def diff(self, **arguments: Any) -> Diff:
        self.a.write(self._path)
        return diff(self.b.write(self._path), **arguments)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path, tensor_debug_mode="FULL_NUMERICS")


def place(found: Diff) -> tuple[object, ...]:
    """Returns the kind of the divergence, and the op, iteration and step of its tensor in run A."""
    side = found.divergence.a
    return found.divergence.kind, side.op_name or side.op_type, side.iteration, side.step


def chain(
    run: RunBuilder,
    *,
    healths: Mapping[str, Health] | None = None,
    step_id: int = 1,
    name: str = "__inference_f_1",
    order: tuple[str, ...] = ("x", "Square", "Log"),
) -> None:
    """Adds one call of x -> Square -> Log."""
    graph = run.graph("f").op("x", "Placeholder").op("Square", inputs=["x"]).op("Log", inputs=["Square"])
    graph.function(name, ["x"], ["Log"])
    call = run.execution(name, graph=graph, inputs=[7], outputs={8: "float32"})
    for op in order:
        health = (healths or {}).get(op, numerics(1.0, 2.0))
        run.tensor(graph, op, health, execution=call, step=step_id)


def test_runs_that_differ_only_in_their_numbering_do_not_diverge(pair: Pair) -> None:
    chain(pair.a)
    pair.b.graph("another graph that comes first")
    chain(pair.b, step_id=99, name="__inference_f_4711", order=("Log", "x", "Square"))
    found = pair.diff()
    assert found.divergence is None
    assert (found.num_aligned, found.num_compared, found.num_differing) == (3, 3, 0)
    assert (found.num_aligned_executions, found.num_aligned_ops) == (1, 3)
    assert found.unaligned == found.environment == found.incomparable == ()


def test_the_first_divergence_follows_data_flow_not_the_order_of_events(pair: Pair) -> None:
    chain(pair.a, order=("Log", "Square", "x"))
    chain(pair.b, order=("Log", "Square", "x"), healths={"Square": numerics(1.0, 9.0), "Log": numerics(1.0, 5.0)})
    found = pair.diff()
    assert place(found) == ("magnitudes", "Square", 0, None)
    assert found.num_differing == 2
    assert found.divergence.is_proven
    assert [(source.a.op_name, source.excess) for source in found.divergence.inputs] == [("x", 0.0)]


def test_ops_are_aligned_although_an_additional_op_renumbers_them(pair: Pair) -> None:
    def program(run: RunBuilder, *, is_longer: bool = False) -> None:
        line = run.stack(("/m.py", 3, "f", "x = x * x", "user"))
        other = run.stack(("/m.py", 2, "f", "x = x * 1.0", "user"))
        graph = run.graph("f").op("x", "Placeholder")
        names = ["mul", "mul_1", "mul_2"][: 3 if is_longer else 2]
        for index, name in enumerate(names):
            stack = other if is_longer and index == 0 else line
            graph.op(name, "Mul", inputs=["x" if index == 0 else names[index - 1]], stack=stack)
        graph.function("__inference_f_1", ["x"])
        call = run.execution("__inference_f_1", graph=graph)
        run.tensor(graph, "x", numerics(1.0), execution=call)
        for name, value in zip(names, (3.0, 3.0, 5.0) if is_longer else (3.0, 4.0), strict=True):
            run.tensor(graph, name, numerics(value), execution=call)

    found = pair.both(program, is_longer=True).diff()
    assert (found.divergence.a.op_name, found.divergence.b.op_name) == ("mul_1", "mul_2")
    assert [(op.side, op.op_name, op.num_tensors, op.is_in_other) for op in found.unaligned] == [("b", "mul", 1, False)]
    assert found.only_b.num_ops == 1


def mixed(run: RunBuilder, *, is_half: bool = False, product: float = 1000.0, square: float = 1e6) -> None:
    """Adds one call of x -> MatMul -> Square, in float32 or with casts to float16."""
    graph = run.graph("f").op("x", "Placeholder").op("w", "Const")
    dtype = "float16" if is_half else "float32"
    inputs = ["x", "w"]
    if is_half:
        graph.op("Cast", inputs=["x"], dtypes=["float16"]).op("Cast_1", "Cast", inputs=["w"], dtypes=["float16"])
        inputs = ["Cast", "Cast_1"]
    graph.op("MatMul", inputs=inputs, dtypes=[dtype]).op("Square", inputs=["MatMul"], dtypes=[dtype])
    graph.function("__inference_f_1", ["x"])
    call = run.execution("__inference_f_1", graph=graph)
    for name in ("x", "w", *(("Cast", "Cast_1") if is_half else ())):
        health = numerics(1.0, 2.0, dtype="float16" if "Cast" in name else "float32")
        run.tensor(graph, name, health, execution=call)
    run.tensor(graph, "MatMul", numerics(product, dtype=dtype), execution=call)
    run.tensor(graph, "Square", numerics(square, dtype=dtype), execution=call)


def test_half_precision_is_aligned_across_casts_and_its_rounding_is_not_a_divergence(pair: Pair) -> None:
    found = pair.both(mixed, is_half=True, product=1002.0, square=1.004e6).diff()
    assert found.divergence is None
    assert [(change.a, change.b, change.num_tensors) for change in found.dtype_changes] == [("float32", "float16", 2)]
    assert {op.op_name for op in found.unaligned} == {"Cast", "Cast_1"}


def test_an_overflow_in_half_precision_is_a_divergence(pair: Pair) -> None:
    found = pair.both(mixed, is_half=True, product=1002.0, square=float("inf")).diff()
    assert place(found) == ("nonfinite", "Square", 0, None)
    assert found.divergence.excess is None
    assert found.divergence.notes == ("A computes it in float32, B in float16.",)


@pytest.mark.slow
def test_the_same_difference_in_single_precision_is_a_divergence(pair: Pair) -> None:
    found = pair.both(mixed, product=1002.0, square=1.004e6).diff()
    assert place(found) == ("magnitudes", "MatMul", 0, None)
    assert found.divergence.excess == pytest.approx(2.0 / (16 * 2.0**-23 * 1002.0))
    assert pair.diff(rtol=0.01).divergence is None


def test_a_tensor_that_is_all_zeros_in_only_one_run_is_a_divergence(pair: Pair) -> None:
    found = pair.both(mixed, is_half=True, product=0.0, square=1.004e6).diff()
    assert place(found) == ("magnitudes", "MatMul", 0, None)


def test_rounding_that_grows_from_op_to_op_is_not_a_divergence(pair: Pair) -> None:
    def program(run: RunBuilder, *, error: float = 0.0) -> None:
        graph = run.graph("f").op("op_0", "Placeholder")
        call = run.execution("__inference_f_1", graph=graph)
        graph.function("__inference_f_1", ["op_0"])
        for index in range(1, 9):
            graph.op(f"op_{index}", "Mul", inputs=[f"op_{index - 1}"])
        for index in range(9):
            run.tensor(graph, f"op_{index}", numerics(1.0 + error * 5**index), execution=call)

    found = pair.both(program, error=1e-9).diff()
    assert (found.divergence, found.num_differing) == (None, 4)


def test_the_tolerance_of_a_difference_that_cancels_follows_its_inputs(pair: Pair) -> None:
    def program(run: RunBuilder, *, error: float = 0.0) -> None:
        graph = run.graph("f").op("x", "Placeholder").op("y", "Placeholder").op("Sub", inputs=["x", "y"])
        call = run.execution("__inference_f_1", graph=graph)
        graph.function("__inference_f_1", ["x", "y"])
        run.tensors(
            graph, {"x": numerics(1000.0), "y": numerics(999.9999), "Sub": numerics(1e-4 + error)}, execution=call
        )

    assert pair.both(program, error=6e-5).diff().divergence is None


def loop(run: RunBuilder, *, frame: int = 5, bad_iteration: int | None = None, name: str = "while") -> None:
    outer = run.graph("f").op("x", "Placeholder")
    body = run.graph("body").op("a", "Placeholder").op("mul", "Mul", inputs=["a", "a"])
    outer.op(name, "StatelessWhile", inputs=["x"]).calls(name, "body_1", body, attribute="body")
    outer.function("__inference_f_1", ["x"], [name])
    body.function("body_1", ["a"], ["mul"])
    call = run.execution("__inference_f_1", graph=outer)
    run.tensor(outer, "x", numerics(1.0), execution=call)
    is_bad = False
    for iteration in range(4):
        where = {"execution": call, "frame": frame, "iteration": iteration, "site": f"{name}/body/_{frame}"}
        run.tensor(body, "a", numerics(2.0 if is_bad else 1.0), **where)
        is_bad = is_bad or iteration == bad_iteration
        run.tensor(body, "mul", numerics(2.0 if is_bad else 1.0), **where)
    run.tensor(outer, name, numerics(2.0 if is_bad else 1.0), execution=call)


def test_loops_are_compared_iteration_by_iteration(pair: Pair) -> None:
    found = pair.both(loop, frame=77, bad_iteration=2).diff()
    assert (found.num_aligned, found.num_differing) == (10, 4)
    assert place(found) == ("magnitudes", "mul", 2, None)


def test_the_divergence_is_in_the_caller_not_in_the_argument_of_the_called_function(pair: Pair) -> None:
    def program(run: RunBuilder, *, value: float = 1.0, site: str = "call") -> None:
        inner = run.graph("inner").op("y", "Placeholder").op("Exp", inputs=["y"])
        inner.function("inner_1", ["y"], ["Exp"])
        outer = run.graph("outer").op("x", "Placeholder").op("Neg", inputs=["x"])
        outer.op(site, "PartitionedCall", inputs=["Neg"]).calls(site, "inner_1", inner)
        outer.function("__inference_outer_1", ["x"], [site])
        call = run.execution("__inference_outer_1", graph=outer)
        run.tensors(inner, {"y": numerics(value), "Exp": numerics(value * 3)}, execution=call, site=site)
        run.tensors(outer, {"Neg": numerics(value), "x": numerics(1.0), site: numerics(value * 3)}, execution=call)

    found = pair.both(program, value=2.0, site="call_1").diff()
    assert (found.num_aligned, found.num_differing) == (5, 4)
    assert place(found) == ("magnitudes", "Neg", 0, None)


def test_two_traces_of_a_function_are_aligned_with_its_only_trace_in_the_other_run(pair: Pair) -> None:
    def program(run: RunBuilder, *, is_retraced: bool = True, value: float = 1.0) -> None:
        graphs = []
        for number in range(2 if is_retraced else 1):
            graph = run.graph("f").op("x", "Placeholder").op("Exp", inputs=["x"])
            graph.function(f"__inference_f_{number}", ["x"], ["Exp"])
            graphs.append(graph)
        for step in range(4):
            number = step // 2 if is_retraced else 0
            call = run.execution(f"__inference_f_{number}", graph=graphs[number])
            run.tensor(graphs[number], "x", numerics(1.0), execution=call, step=step)
            health = numerics(value if step == 3 else 1.0)
            run.tensor(graphs[number], "Exp", health, execution=call, step=step)

    found = pair.both(program, is_retraced=False, value=2.0).diff()
    assert (found.num_aligned, found.num_aligned_executions) == (8, 4)
    assert (found.divergence.a.op_name, found.divergence.a.execution_index) == ("Exp", 3)
    assert found.only_a.num_ops == found.only_b.num_ops == 0


def eager(run: RunBuilder, *, is_longer: bool = False, value: float = 1.0) -> None:
    tensor = 100 if is_longer else 0
    lines = [run.stack(("/m.py", number, "<module>", f"line {number}", "user")) for number in range(3)]
    run.eager_op("Exp", numerics(1.0), tensor_id=tensor, stack=lines[0])
    for index in range(3):
        if is_longer and index == 1:
            run.eager_op("Exp", numerics(9.0), tensor_id=tensor + 50, inputs=[tensor], stack=lines[2])
        run.eager_op(
            "Exp", numerics(value if index == 2 else 1.0), tensor_id=tensor + 1, inputs=[tensor], stack=lines[1]
        )
        tensor += 1


def test_eager_ops_are_aligned_around_an_op_that_only_one_run_executes(pair: Pair) -> None:
    found = pair.both(eager, is_longer=True, value=1.5).diff()
    assert (found.num_aligned_executions, found.only_a.num_executions, found.only_b.num_executions) == (4, 0, 1)
    assert (found.divergence.a.execution_index, found.divergence.b.execution_index) == (3, 4)
    assert [(source.a.op_type, source.excess) for source in found.divergence.inputs] == [("Exp", 0.0)]
    assert found.divergence.b.source.code == "line 1"


def test_marked_steps_are_aligned_by_step_number(pair: Pair) -> None:
    def program(run: RunBuilder, *, steps: range = range(4)) -> None:
        for step in steps:
            execution = run.execution("Exp", outputs={step: "float32"})
            run.rows["execution"][-1]["step"] = step
            run.eager(execution, numerics(float(step)), tensor_id=step)

    found = pair.both(program, steps=range(2, 6)).diff()
    assert (found.divergence, found.num_aligned, found.only_a.num_tensors, found.only_b.num_tensors) == (None, 2, 2, 2)


@pytest.mark.parametrize(
    ("health", "kind"),
    [
        (numerics(1.0, 2.0, 3.0), "shape"),
        (numerics(1.0, 2.0, dtype="int64"), "dtype"),
        (numerics(1.0, float("nan")), "nonfinite"),
        (numerics(1.0, 2.5), "magnitudes"),
        ({**counts(neg=1, pos=1), "dtype": "float32"}, "counts"),
    ],
)
def test_the_kind_of_a_divergence(pair: Pair, health: Health, kind: str) -> None:
    chain(pair.a)
    chain(pair.b, healths={"Square": health})
    assert place(pair.diff())[:2] == (kind, "Square")


@pytest.mark.slow
def test_elements_are_compared_if_both_runs_recorded_them(tmp_path: Path) -> None:
    pair = Pair(tmp_path, tensor_debug_mode="FULL_TENSOR")

    def program(run: RunBuilder, *, last: float = 4.0) -> None:
        graph = run.graph("f").op("x", "Placeholder").op("Mul", inputs=["x"])
        graph.function("__inference_f_1", ["x"])
        call = run.execution("__inference_f_1", graph=graph)
        # The counts of both runs are equal, so only the elements differ.
        values = np.array([[1.0, 2.0], [3.0, last]], np.float32)
        health = {**counts(pos=4), "rank": 2, "shape": [2, 2]}
        keep(run, run.tensor(graph, "x", health, execution=call), np.ones((2, 2), np.float32))
        keep(run, run.tensor(graph, "Mul", health, execution=call), values)

    found = pair.both(program, last=4.0000005).diff()
    assert (found.divergence, found.num_compared) == (None, 2)
    pair = Pair(tmp_path / "more", tensor_debug_mode="FULL_TENSOR")
    found = pair.both(program, last=4.5).diff()
    assert place(found)[:2] == ("values", "Mul")
    assert (found.divergence.worst.index, found.divergence.worst.a, found.divergence.worst.b) == ((1, 1), 4.0, 4.5)
    assert (found.divergence.difference, found.divergence.tolerance) == (
        0.5,
        pytest.approx(16 * 2.0**-23 * 4.5),
    )


@pytest.mark.parametrize(
    ("dtype", "raw", "other", "diverges"),
    [
        ("bfloat16", [0x3F80, 0x4000], [0x3F81, 0x4000], False),
        ("bfloat16", [0x3F80, 0x4000], [0x4000, 0x4040], True),
        ("float16", [0x3C00], [0x3E00], True),
        ("float8_e5m2", [0x3C], [0x48], True),
    ],
)
def test_the_tolerance_follows_the_dtype(
    tmp_path: Path, dtype: str, raw: list[int], other: list[int], diverges: bool
) -> None:
    pair = Pair(tmp_path, tensor_debug_mode="FULL_TENSOR")
    for run, bits in ((pair.a, raw), (pair.b, other)):
        execution = run.execution("Exp", outputs={1: dtype})
        event = run.eager(execution, {**counts(pos=len(raw)), "dtype": dtype}, tensor_id=1)
        keep(run, event, np.array(bits, np.uint8 if "float8" in dtype else np.uint16), dtype)
    assert (pair.diff().divergence is not None) == diverges


def test_a_nan_in_a_different_place_is_a_divergence_despite_equal_counts(tmp_path: Path) -> None:
    pair = Pair(tmp_path, tensor_debug_mode="FULL_TENSOR")
    for run, values in ((pair.a, [np.nan, 1.0]), (pair.b, [1.0, np.nan])):
        event = run.eager_op("Exp", counts(nan=1, pos=1), tensor_id=1)
        keep(run, event, np.array(values, np.float32))
    assert place(pair.diff())[:2] == ("nonfinite", "Exp")


@pytest.mark.parametrize("is_seed", [True, False])
def test_the_note_on_different_random_seeds(tmp_path: Path, *, is_seed: bool) -> None:
    """A tensor that only gives the shape of the random numbers is no seed."""
    pair = Pair(tmp_path, tensor_debug_mode="FULL_TENSOR")

    def program(run: RunBuilder, *, seed: int = 1) -> None:
        graph = run.graph("init").op("seed", "Const", dtypes=["int32"]).op("shape", "Const", dtypes=["int32"])
        inputs = ["shape", "seed"] if is_seed else ["seed", "shape"]
        graph.op("normal", "StatelessRandomNormal", inputs=inputs).function("__inference_init_1")
        call = run.execution("__inference_init_1", graph=graph)
        number = np.array([seed], np.int32)
        keep(run, run.tensor(graph, "seed", {**counts(pos=1), "dtype": "int32"}, execution=call), number)
        drawn = np.array([1.0 / seed, 1.0], np.float32)
        keep(run, run.tensor(graph, "normal", counts(pos=2), execution=call), drawn)

    found = pair.both(program, seed=2).diff()
    assert place(found)[:2] == ("values", "seed")
    note = "It is a constant: the programs themselves differ here."
    if is_seed:
        note = "It is the seed of a StatelessRandomNormal: the runs use different random numbers."
    assert found.divergence.notes == (note,)


def test_the_note_on_a_random_op_whose_seed_was_not_recorded(pair: Pair) -> None:
    def program(run: RunBuilder, *, value: float = 1.0) -> None:
        run.eager_op("RandomStandardNormal", numerics(value, 1.0), tensor_id=1)

    found = pair.both(program, value=0.5).diff()
    assert found.divergence.notes[0].startswith("RandomStandardNormal draws random numbers: the runs have different ")


@pytest.mark.slow
def test_the_search_continues_behind_ops_that_are_known_to_diverge(pair: Pair) -> None:
    chain(pair.a)
    chain(pair.b, healths={"Square": numerics(8.0, 16.0), "Log": numerics(float("inf"), 16.0)})
    assert place(pair.diff()) == ("magnitudes", "Square", 0, None)
    assert place(pair.diff(known="Sq.*")) == ("nonfinite", "Log", 0, None)


@pytest.mark.parametrize(
    ("mode", "health", "diverges", "text"),
    [
        ("CURT_HEALTH", {"has_inf_or_nan": False}, False, "whether a tensor holds an infinity or a NaN"),
        ("CURT_HEALTH", {"has_inf_or_nan": True}, True, "whether a tensor holds an infinity or a NaN"),
        ("FULL_HEALTH", counts(neg=1, pos=1), True, "how many elements are infinite, NaN, negative"),
        ("SHAPE", {"rank": 1, "shape": [3]}, True, "only dtypes and shapes"),
    ],
)
def test_runs_in_different_modes_are_compared_by_what_both_modes_measure(
    pair: Pair, mode: str, health: Health, diverges: bool, text: str
) -> None:
    chain(pair.a)
    chain(pair.b, healths={name: health if name == "Log" else {} for name in ("x", "Square", "Log")})
    pair.b.rows["run"][0]["tensor_debug_mode"] = mode
    found = pair.diff()
    assert (found.divergence is not None) == diverges
    (sentence,) = found.incomparable
    assert sentence.startswith(f"A was recorded in FULL_NUMERICS, B in {mode}: ")
    assert text in sentence


def test_calls_of_a_dataset_function_may_come_in_any_order(pair: Pair) -> None:
    def program(run: RunBuilder, *, order: tuple[int, ...] = (0, 1, 2, 3)) -> None:
        run.eager_op("Exp", numerics(1.0), tensor_id=1)
        graph = run.graph("map").op("x", "Placeholder").op("Neg", inputs=["x"]).function("map_1", ["x"])
        for place_, number in enumerate(order):
            for name in ("x", "Neg"):
                run.tensor(graph, name, numerics(float(number)), step=50 + place_)

    found = pair.both(program, order=(2, 0, 3, 1)).diff()
    assert (found.divergence, found.num_aligned) == (None, 9)


def test_the_note_on_different_data_from_outside(pair: Pair) -> None:
    def program(run: RunBuilder, *, value: float = 1.0) -> None:
        run.external(5, numerics(value), execution=0)
        run.eager_op("Exp", numerics(value * 2), tensor_id=6, inputs=[5])

    found = pair.both(program, value=3.0).diff()
    assert found.divergence.a.op_type is None
    assert found.divergence.notes == ("It came from outside both programs: they received different data.",)


def test_differences_of_the_environment_are_listed(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.b.rows["run"][0].update(tensorflow_version="2.17.0", settings=json.dumps({"xla": "keep"}), pid=1)
    pair.b.add("device", device_id=1, device_name="GPU:0")
    pair.both(chain)
    assert [(setting.name, setting.a, setting.b) for setting in pair.diff().environment] == [
        ("tensorflow_version", "2.21.0", "2.17.0"),
        ("devices", CPU, f"{CPU}, GPU:0"),
        ("settings.xla", None, '"keep"'),
    ]


def test_a_limited_list_of_unaligned_ops_is_marked_as_cut(pair: Pair) -> None:
    chain(pair.a)
    chain(pair.b)
    for index in range(5):
        pair.b.eager_op(f"Ünary{index}", CLEAN, tensor_id=index)
    found = pair.diff(limit=3)
    assert [op.op_type for op in found.unaligned] == ["Ünary0", "Ünary1", "Ünary2"]
    assert (found.is_cut, found.only_b.num_tensors) == (True, 5)


@pytest.mark.slow
def test_the_older_of_two_runs_in_a_logdir_is_run_a(tmp_path: Path) -> None:
    for name, start, health in (("newer", 2, INF), ("older", 1, CLEAN)):
        run = RunBuilder(name, wall_time_ns=start)
        chain(run, healths={"Log": health})
        run.write(tmp_path)
    found = diff(tmp_path)
    assert (found.run_a, found.run_b, place(found)[:2]) == ("older", "newer", ("nonfinite", "Log"))
    assert diff(tmp_path, run_a="newer").run_b == "older"
    assert diff(tmp_path, tmp_path, run_a="older", run_b="older").divergence is None


def test_the_newest_runs_of_two_logdirs_are_compared(tmp_path: Path) -> None:
    for path, name, start, health in (("a", "old", 1, INF), ("a", "new", 2, CLEAN), ("b", "other", 3, CLEAN)):
        run = RunBuilder(name, wall_time_ns=start, end_wall_time_ns=start)
        chain(run, healths={"Log": health})
        run.write(tmp_path / path)
    found = diff(tmp_path / "a", tmp_path / "b")
    assert (found.run_a, found.run_b, found.divergence) == ("new", "other", None)


def test_a_logdir_with_more_than_two_runs_needs_a_choice_of_run(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        run = RunBuilder(name)
        chain(run)
        run.write(tmp_path)
    with pytest.raises(QueryError, match=r"has 3 runs \(one, three, two\); choose one with run_b \(--run-b\)"):
        diff(tmp_path, run_a="one")
    with pytest.raises(QueryError, match="nowhere"):
        diff(tmp_path, run_a="nowhere", run_b="one")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"rtol": -1.0}, "rtol is -1.0"),
        ({"atol": float("nan")}, "atol is nan"),
        ({"growth": 0.5}, "growth is 0.5"),
        ({"limit": -1}, "limit is -1"),
        ({"known": "("}, "not a valid regular expression"),
    ],
)
def test_errors_for_invalid_parameters(tmp_path: Path, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(QueryError, match=text):
        diff(tmp_path, tmp_path, **arguments)


def test_the_error_for_runs_with_nothing_in_common(pair: Pair) -> None:
    chain(pair.a)
    with pytest.raises(QueryError, match="run run-a and run run-b have nothing in common"):
        pair.diff()


@pytest.mark.slow
def test_last_step_limits_the_comparison_to_the_first_steps(pair: Pair) -> None:
    def program(run: RunBuilder, *, bad: tuple[int, ...] = ()) -> None:
        graph = run.graph("f").op("x", "Placeholder").op("Square", inputs=["x"])
        graph.function("__inference_f_1", ["x"], ["Square"])
        for step in range(4):
            call = run.execution("__inference_f_1", graph=graph)
            run.rows["execution"][call]["step"] = step
            run.tensor(graph, "x", {**numerics(1.0), "step": step}, execution=call, step=step)
            value = 9.0 if step in bad else 1.0
            run.tensor(graph, "Square", {**numerics(value), "step": step}, execution=call, step=step)

    pair.both(program, bad=(2, 3))
    whole = pair.diff()
    assert (place(whole), whole.num_aligned) == (("magnitudes", "Square", 0, 2), 8)
    part = pair.diff(last_step=2)
    assert part.divergence == whole.divergence
    assert (part.num_aligned, part.num_aligned_executions, part.num_differing) == (6, 3, 1)
    assert (part.only_a, part.only_b) == (whole.only_a, whole.only_b)
    assert pair.diff(last_step=1).divergence is None
    with pytest.raises(QueryError, match="last_step is -1; expected a training step of 0 or more"):
        pair.diff(last_step=-1)
