"""Test that the first bad tensor is the earliest origin by data flow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import (
    CallSite,
    Frame,
    FunctionCall,
    InputTensor,
    NonFinite,
    Producer,
    TensorHealth,
    first_nan,
    first_nonfinite,
    nonfinite,
    open_logdir,
)
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.origins import Origins
from tfdbg_arrow.query.recorded import KINDS

from .builder import CLEAN, CPU, INF, NAN, NEG_INF, START_NS, GraphBuilder, RunBuilder, counts

USER = ("/home/me/train.py", 12, "loss", "tf.math.log(probs)", "user")
FRAMEWORK = ("/site/tensorflow/ops.py", 99, "apply", "return op()", "framework")


NO_NUMERICS = dict.fromkeys(
    ("num_subnormal", "min_finite", "max_finite", "mean_finite", "stddev_finite", "max_abs_finite")
)
"""The columns that only FULL_NUMERICS measures."""
NO_PLACE = dict.fromkeys(("first_bad_index", "num_bad_slices"))
"""The columns with the places of bad elements. The columns are None for healthy tensors."""


def health(event_index: int, columns: dict[str, object]) -> TensorHealth:
    return TensorHealth(
        event_index=event_index,
        dtype="float32",
        shape=tuple(columns["shape"]),  # type: ignore[arg-type]
        **NO_NUMERICS,
        **NO_PLACE,
        **{name: value for name, value in columns.items() if name not in ("shape", "rank")},  # type: ignore[arg-type]
    )


def names(found: NonFinite | None) -> tuple[str | None, int, bool]:
    return found.op_name, found.event_index, found.is_origin


def test_all_attributes_of_a_bad_tensor(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    stack = run.stack(FRAMEWORK, USER, FRAMEWORK)
    graph = run.graph("loss").op("probs", "Softmax").op("Log", inputs=["probs"], stack=stack)
    graph.function("__inference_loss_1", results=["Log"])
    call = run.execution("__inference_loss_1", graph=graph)
    zeros = counts(zero=1, pos=2)
    run.tensor(graph, "probs", zeros, execution=call)
    place = {"first_bad_index": 1, "num_bad_slices": 1}
    run.tensor(graph, "Log", counts(neg_inf=1, neg=2) | place, execution=call)

    assert first_nonfinite(run.write(tmp_path)) == NonFinite(
        run_id="run-a",
        event_index=2,
        wall_time_ns=START_NS + 2000,
        op_type="Log",
        op_name="Log",
        graph_name="loss",
        iteration=None,
        output_slot=0,
        device_name=CPU,
        dtype="float32",
        shape=(3,),
        size=3,
        has_inf_or_nan=True,
        **NO_NUMERICS,
        first_bad_index=1,
        num_bad_slices=1,
        num_neg_inf=1,
        num_pos_inf=0,
        num_nan=0,
        num_neg_finite=2,
        num_zero=0,
        num_pos_finite=0,
        is_origin=True,
        inputs=(
            InputTensor(
                0,
                health(1, zeros),
                Producer("Softmax", "probs", "loss", 0, event_index=1, execution_index=0, how="graph"),
            ),
        ),
        stack=(Frame(*FRAMEWORK), Frame(*USER), Frame(*FRAMEWORK)),
        source=Frame(*USER),
        called_from=(CallSite(function="loss", op_name=None, graph_name=None, layer=None, source=None),),
        call=FunctionCall("loss", 1, 0),
        headline="`tf.math.log(probs)` at train.py:12 made -Inf in call 1 of loss.",
    )


def test_a_healthy_run_has_no_bad_tensor(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Mul")
    run.tensor(graph, "x", CLEAN)
    assert first_nonfinite(run.write(tmp_path)) is None


def test_an_empty_logdir_has_no_bad_tensor(tmp_path: Path) -> None:
    assert first_nonfinite(RunBuilder("run-a").write(tmp_path)) is None


def test_a_bad_tensor_computed_from_an_origin_is_not_an_origin(tmp_path: Path) -> None:
    run = chain(RunBuilder("run-a"))
    assert [names(found) for found in nonfinite(run.write(tmp_path))] == [("b", 1, True), ("c", 2, False)]


def test_the_limit_of_the_list(tmp_path: Path) -> None:
    logdir = chain(RunBuilder("run-a")).write(tmp_path)
    assert [found.op_name for found in nonfinite(logdir, limit=1)] == ["b"]
    assert nonfinite(logdir, limit=0) == []
    assert len(nonfinite(logdir, limit=None)) == 2


def chain(run: RunBuilder, **settings: int | None) -> RunBuilder:
    graph = run.graph("f").op("a", "Mul").op("b", "Log", ["a"]).op("c", "Exp", ["b"])
    run.tensors(graph, {"a": CLEAN, "b": NAN, "c": NAN})
    return run


def test_a_consumer_recorded_before_its_producer_is_not_the_first(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("a", "Mul").op("b", "Log", ["a"]).op("c", "Exp", ["b"]).op("d", "Neg", ["c"])
    run.tensors(graph, {"d": NAN, "c": NAN, "b": NAN, "a": CLEAN})
    assert names(first_nonfinite(run.write(tmp_path))) == ("b", 2, True)


def test_an_origin_behind_clean_tensors_is_the_first_even_if_recorded_later(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("a", "Log").op("clip", "Maximum", ["a"]).op("b", "Sqrt", ["clip"])
    run.tensors(graph, {"b": NAN, "clip": CLEAN, "a": NAN})
    assert names(first_nonfinite(run.write(tmp_path))) == ("a", 2, True)


def test_the_first_of_two_origins(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("a", "Log").op("b", "Sqrt").op("c", "Neg", ["b"])
    run.tensors(graph, {"c": NAN, "a": NAN, "b": NAN})
    assert names(first_nonfinite(run.write(tmp_path))) == ("a", 1, True)


class TestKinds:
    def logdir(self, tmp_path: Path) -> Path:
        run = RunBuilder("run-a")
        graph = run.graph("f").op("a", "Mul").op("b", "Exp", ["a"]).op("c", "Sub", ["b", "b"]).op("d", "Neg", ["c"])
        run.tensors(graph, {"a": CLEAN, "b": INF, "c": NAN, "d": NAN})
        return run.write(tmp_path)

    def test_a_nan_made_from_infinities_is_an_origin_of_nan(self, tmp_path: Path) -> None:
        assert names(first_nan(self.logdir(tmp_path))) == ("c", 2, True)

    def test_only_infinities(self, tmp_path: Path) -> None:
        logdir = self.logdir(tmp_path)
        assert names(first_nonfinite(logdir, kinds=("inf",))) == ("b", 1, True)
        assert [found.op_name for found in nonfinite(logdir, kinds=("inf",))] == ["b"]

    def test_each_kind_has_its_own_origin(self, tmp_path: Path) -> None:
        assert [names(found) for found in nonfinite(self.logdir(tmp_path))] == [
            ("b", 1, True),
            ("c", 2, True),
            ("d", 3, False),
        ]

    def test_the_error_for_an_unknown_kind(self, tmp_path: Path) -> None:
        with pytest.raises(QueryError, match="kind 'zero' is unknown, expected 'nan', 'inf' or both"):
            first_nonfinite(self.logdir(tmp_path), kinds=("zero",))
        with pytest.raises(QueryError, match="expected 'nan', 'inf' or both"):
            first_nonfinite(self.logdir(tmp_path), kinds=())

    def test_a_mode_that_does_not_distinguish_the_kinds_counts_for_either(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a", tensor_debug_mode="CURT_HEALTH")
        graph = run.graph("f").op("a", "Log").op("b", "Neg", ["a"])
        run.tensors(graph, {"a": {"has_inf_or_nan": True}, "b": {"has_inf_or_nan": True}})
        logdir = run.write(tmp_path)
        assert [names(found) for found in nonfinite(logdir, kinds=("nan",))] == [("a", 0, True), ("b", 1, False)]


def nested(run: RunBuilder) -> tuple[GraphBuilder, GraphBuilder]:
    inner = run.graph("inner").op("x", "Placeholder").op("Log", inputs=["x"])
    inner.function("__inference_inner_1", ["x"], ["Log"])
    outer = run.graph("outer").op("a", "Mul").op("b", "Exp")
    for name, source in (("scope/call", "a"), ("scope/call_1", "b")):
        outer.op(name, "StatefulPartitionedCall", [source], not_recorded="op_type")
        outer.calls(name, "__inference_inner_1", inner)
    outer.op("sum", "AddV2", ["scope/call", "scope/call_1"])
    return inner, outer


def test_two_calls_of_a_function_are_distinguished(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    inner, outer = nested(run)
    call = run.execution("__inference_outer_2", graph=outer)
    run.tensors(outer, {"a": CLEAN, "b": counts(zero=1)}, execution=call)
    run.tensor(inner, "x", CLEAN, execution=call, site="scope/call")
    run.tensor(inner, "x", counts(zero=1), execution=call, site="scope/call_1")
    run.tensor(inner, "Log", CLEAN, execution=call, site="scope/call")
    log = run.tensor(inner, "Log", NEG_INF, execution=call, site="scope/call_1")
    run.tensor(outer, "sum", NEG_INF, execution=call)
    logdir = run.write(tmp_path)

    first, second = nonfinite(logdir)
    assert names(first) == ("Log", log, True)
    assert first.inputs == (
        InputTensor(
            0,
            health(4, counts(zero=1)),
            Producer("Exp", "b", "outer", 0, event_index=2, execution_index=0, how="argument"),
        ),
    )
    assert names(second) == ("sum", 7, False)
    assert [(input_.producer.op_name, input_.producer.event_index) for input_ in second.inputs if input_.producer] == [
        ("Log", 5),
        ("Log", log),
    ]
    assert {input_.producer.how for input_ in second.inputs if input_.producer} == {"call"}


def loop(run: RunBuilder) -> tuple[GraphBuilder, GraphBuilder, GraphBuilder]:
    body = run.graph("while_body").op("i", "Placeholder").op("v", "Placeholder").op("k", "Placeholder")
    body.op("add", "AddV2", ["v", "k"]).op("next", "Identity", ["add"], not_recorded="op_type")
    body.op("kept", "Identity", ["k"], not_recorded="op_type").function(
        "body_1", ["i", "v"], ["i", "next", "kept"], captures=["k"]
    )
    cond = run.graph("while_cond").op("i", "Placeholder").op("v", "Placeholder").op("k", "Placeholder")
    cond.op("Mean", inputs=["v"]).function("cond_1", ["i", "v", "k"], ["Mean"])
    outer = run.graph("train").op("zero", "Const", dtypes=["int32"]).op("start", "Mul").op("konst", "Exp")
    outer.op(
        "while", "While", ["zero", "start", "konst"], dtypes=["int32", "float32", "float32"], not_recorded="op_type"
    )
    outer.calls("while", "body_1", body, attribute="body").calls("while", "cond_1", cond, attribute="cond")
    outer.op("after", "Neg", ["while:1"]).op("unchanged", "Neg", ["while:2"])
    return body, cond, outer


def test_a_loop_variable_comes_from_the_previous_iteration(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    body, cond, outer = loop(run)
    call = run.execution("__inference_train_2", graph=outer)
    run.tensors(outer, {"start": CLEAN, "konst": CLEAN}, execution=call)
    events = {}
    for iteration in range(6):
        value, result = (NAN if iteration > 3 else CLEAN), (NAN if iteration >= 3 else CLEAN)
        place = {"execution": call, "frame": 77, "iteration": iteration}
        run.tensor(cond, "Mean", value, site="while/cond/_10", **place)
        if iteration < 5:
            run.tensor(body, "v", value, site="while/body/_9", **place)
            events[iteration] = run.tensor(body, "add", result, site="while/body/_9", **place)
    after = run.tensor(outer, "after", NAN, execution=call)
    run.tensor(outer, "unchanged", CLEAN, execution=call)
    logdir = run.write(tmp_path)

    first = first_nonfinite(logdir)
    assert names(first) == ("add", events[3], True)
    assert first.iteration == 3
    assert [input_.producer for input_ in first.inputs] == [
        Producer("AddV2", "add", "while_body", 0, event_index=events[2], execution_index=0, how="loop"),
        Producer("Exp", "konst", "train", 0, event_index=2, execution_index=0, how="loop"),
    ]
    others = nonfinite(logdir)[1:]
    assert [found.is_origin for found in others] == [False] * len(others)
    last = others[-1]
    assert names(last) == ("after", after, False)
    assert last.inputs[0].producer == Producer(
        "AddV2", "add", "while_body", 0, event_index=events[4], execution_index=0, how="loop"
    )


def test_the_first_iteration_uses_the_inputs_of_the_loop(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    body, _, outer = loop(run)
    call = run.execution("__inference_train_2", graph=outer)
    start = run.tensor(outer, "start", counts(zero=2), execution=call)
    run.tensor(body, "add", NAN, execution=call, site="while/body/_9", frame=77)
    first = first_nonfinite(run.write(tmp_path))
    assert first.inputs[0] == InputTensor(
        0,
        health(start, counts(zero=2)),
        Producer("Mul", "start", "train", 0, event_index=start, execution_index=0, how="argument"),
    )
    assert first.inputs[1].health is None
    assert not first.is_origin


def test_each_entry_of_an_inner_loop_belongs_to_its_outer_iteration(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    inner = run.graph("inner_body").op("v", "Placeholder").op("Log", inputs=["v"]).function("inner_1", ["v"], ["Log"])
    body = run.graph("body").op("v", "Placeholder").op("Abs", inputs=["v"])
    body.op("while", "While", ["Abs"], not_recorded="op_type").function("body_1", ["v"], ["while"])
    body.calls("while", "inner_1", inner, attribute="body")
    outer = run.graph("f").op("start", "Mul").op("loop/while", "While", ["start"], not_recorded="op_type")
    outer.calls("loop/while", "body_1", body, attribute="body")
    call = run.execution("__inference_f_2", graph=outer)
    run.tensor(outer, "start", CLEAN, execution=call)
    for iteration in range(3):
        bad = iteration == 2
        absolute = run.tensor(
            body, "Abs", counts(zero=1) if bad else CLEAN, execution=call, site="loop/while/body/_1", frame=5,
            iteration=iteration,
        )  # fmt: skip
        log = run.tensor(
            inner, "Log", NEG_INF if bad else CLEAN, execution=call, site="loop/while/body/_1/while/body/_2",
            frame=100 - iteration,
        )  # fmt: skip
    first = first_nonfinite(run.write(tmp_path))
    assert names(first) == ("Log", log, True)
    assert first.inputs[0].producer == Producer(
        "Abs", "Abs", "body", 0, event_index=absolute, execution_index=0, how="argument"
    )


def test_two_loops_with_similar_names_are_distinguished(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    inner = run.graph("inner").op("x", "Placeholder").op("Log", inputs=["x"]).function("inner_1", ["x"], ["Log"])
    outer = run.graph("f").op("a", "Mul").op("b", "Exp")
    for name, source in (("while", "a"), ("while_1", "b")):
        body = run.graph(f"{name}_body").op("x", "Placeholder")
        body.op("call", "StatefulPartitionedCall", ["x"]).calls("call", "inner_1", inner)
        body.function(f"{name}_body_1", ["x"], ["call"])
        outer.op(name, "While", [source]).calls(name, f"{name}_body_1", body, attribute="body")
    call = run.execution("__inference_f_2", graph=outer)
    run.tensors(outer, {"a": CLEAN, "b": CLEAN}, execution=call)
    for name, health_ in (("while", CLEAN), ("while_1", NAN)):
        run.tensor(inner, "Log", health_, execution=call, frame=len(name), site=f"{name}/body/_7/call")
    first = first_nonfinite(run.write(tmp_path))
    assert first.inputs[0].producer == Producer("Exp", "b", "f", 0, event_index=2, execution_index=0, how="argument")


@pytest.mark.parametrize("taken", ["then_branch", "else_branch"])
def test_data_flow_into_and_out_of_a_branch(tmp_path: Path, taken: str) -> None:
    run = RunBuilder("run-a")
    branches = {}
    outer = run.graph("f").op("p", "Const", dtypes=["bool"]).op("x", "Mul").op("y", "Exp")
    outer.op("cond", "If", ["p", "x", "y"], not_recorded="op_type").op("after", "Neg", ["cond"])
    for attribute, argument in (("then_branch", "a"), ("else_branch", "b")):
        graph = run.graph(attribute).op("a", "Placeholder").op("b", "Placeholder").op("Log", inputs=[argument])
        graph.function(f"{attribute}_1", ["a", "b"], ["Log"])
        outer.calls("cond", f"{attribute}_1", graph, attribute=attribute)
        branches[attribute] = graph
    call = run.execution("__inference_f_2", graph=outer)
    sources = {"then_branch": run.tensor(outer, "x", CLEAN), "else_branch": run.tensor(outer, "y", CLEAN)}
    for row in run.rows["tensor_health"]:
        row["execution_index"] = call
    site = {"then_branch": "cond/then/_4", "else_branch": "cond/else/_5"}[taken]
    log = run.tensor(branches[taken], "Log", NAN, execution=call, site=site)
    run.tensor(outer, "after", NAN, execution=call)
    first, after = nonfinite(run.write(tmp_path))
    assert names(first) == ("Log", log, True)
    assert first.inputs[0].producer.event_index == sources[taken]
    assert not after.is_origin
    assert after.inputs[0].producer == Producer("Log", "Log", taken, 0, event_index=log, execution_index=0, how="call")


def test_an_argument_is_traced_through_eager_code_into_the_previous_call(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    model = run.graph("model").op("Softmax").op("Identity", inputs=["Softmax"], not_recorded="op_type")
    model.function("__inference_model_1", results=["Identity"])
    loss = run.graph("loss").op("probs", "Placeholder").op("Log", inputs=["probs"])
    loss.function("__inference_loss_2", ["probs"], ["Log"])
    first_call = run.execution("__inference_model_1", outputs={100: "float32"}, graph=model)
    zeros = counts(zero=1, pos=1)
    softmax = run.tensor(model, "Softmax", zeros, execution=first_call, step=11)
    second_call = run.execution("__inference_loss_2", inputs=[100], outputs={101: "float32"}, graph=loss)
    probs = run.tensor(loss, "probs", zeros, execution=second_call, step=12)
    log = run.tensor(loss, "Log", NEG_INF, execution=second_call, step=12)
    run.eager(second_call, NEG_INF, tensor_id=101)
    first, result = nonfinite(run.write(tmp_path))
    assert names(first) == ("Log", log, True)
    assert first.inputs == (
        InputTensor(
            0,
            health(probs, zeros),
            Producer("Softmax", "Softmax", "model", 0, event_index=softmax, execution_index=0, how="argument"),
        ),
    )
    assert (result.op_type, result.op_name, result.is_origin) == ("__inference_loss_2", None, False)
    assert result.inputs[0].producer == Producer(
        "Log", "Log", "loss", 0, event_index=log, execution_index=1, how="call"
    )


def test_eager_ops_are_connected_by_tensor_id(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    stack = run.stack(USER)
    first_op = run.execution("Exp", inputs=[1], outputs={2: "float32"}, stack=stack)
    outside = run.external(1, CLEAN, execution=first_op)
    exp = run.eager(first_op, INF, tensor_id=2)
    run.eager_op("Neg", INF, tensor_id=3, inputs=[2])
    first, second = nonfinite(run.write(tmp_path))
    assert (first.op_type, first.event_index, first.is_origin, first.source) == ("Exp", exp, True, Frame(*USER))
    assert first.inputs == (
        InputTensor(0, health(outside, CLEAN), Producer(None, None, None, None, outside, None, "external")),
    )
    assert (second.op_type, second.is_origin) == ("Neg", False)
    assert second.inputs[0].producer == Producer("Exp", None, None, 0, exp, 0, "eager")


def test_bad_data_from_outside_is_the_origin(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    stack = run.stack(FRAMEWORK, USER)
    graph = run.graph("f").op("x", "Placeholder").op("Neg", inputs=["x"]).function("__inference_f_1", ["x"], ["Neg"])
    call = run.execution("__inference_f_1", inputs=[7], graph=graph, stack=stack)
    outside = run.external(7, NAN, execution=call)
    run.tensors(graph, {"x": NAN, "Neg": NAN}, execution=call)
    first, *others = nonfinite(run.write(tmp_path))
    assert first_nonfinite(tmp_path) == first
    assert (first.event_index, first.op_type, first.is_origin, first.inputs) == (outside, None, True, ())
    assert first.source == Frame(*USER)
    assert [(found.op_name, found.is_origin) for found in others] == [("x", False), ("Neg", False)]


class TestVariables:
    def training(self, tmp_path: Path, *, written: dict[str, object] | None) -> list[NonFinite]:
        """Returns the bad tensors of a step that reads a variable.

        Args:
            written: The health of the value that eager code assigned before the step. None means that eager code
                assigned no value.
        """
        run = RunBuilder("run-a")
        graph = run.graph("step").op("w", "Placeholder", dtypes=["resource"], not_recorded="dtype")
        graph.op("ReadVariableOp", inputs=["w"]).function("__inference_step_1", captures=["w"])
        if written is not None:
            run.eager_op("Fill", written, tensor_id=50)
            run.execution("AssignVariableOp", inputs=[9, 50])
        call = run.execution("__inference_step_1", inputs=[9], graph=graph)
        run.tensor(graph, "ReadVariableOp", NAN, execution=call)
        return nonfinite(run.write(tmp_path))

    def test_a_read_has_the_health_of_the_assigned_value(self, tmp_path: Path) -> None:
        *_, read = self.training(tmp_path, written=NAN)
        assert names(read)[::2] == ("ReadVariableOp", False)
        assert read.inputs == (
            InputTensor(
                0,
                health(1, NAN),
                Producer("AssignVariableOp", None, None, None, None, execution_index=1, how="variable"),
            ),
        )

    def test_a_bad_variable_that_nothing_wrote_comes_from_outside(self, tmp_path: Path) -> None:
        (read,) = self.training(tmp_path, written=None)
        assert read.is_origin
        assert read.inputs == (
            InputTensor(0, None, Producer(None, None, None, None, None, execution_index=None, how="external")),
        )

    def test_an_update_in_an_earlier_call_is_found(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a")
        graph = run.graph("step").op("w", "Placeholder", dtypes=["resource"], not_recorded="dtype")
        graph.op("ReadVariableOp", inputs=["w"]).op("grad", "Mul", ["ReadVariableOp"])
        graph.op("update", "AssignSubVariableOp", ["w", "grad"], dtypes=[]).function("step_1", captures=["w"])
        for step, (value, gradient) in enumerate([(CLEAN, INF), (INF, INF)]):
            call = run.execution("step_1", inputs=[9], graph=graph)
            run.tensors(graph, {"ReadVariableOp": value, "grad": gradient}, execution=call, step=step)
        found = nonfinite(run.write(tmp_path))
        assert [names(item) for item in found] == [
            ("grad", 2, True),
            ("ReadVariableOp", 4, False),
            ("grad", 5, False),
        ]
        assert found[1].inputs[0].producer == Producer(
            "AssignSubVariableOp", "update", "step", None, None, execution_index=0, how="variable"
        )

    def test_a_read_has_the_value_of_an_earlier_write_in_the_same_call(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a")
        inner = run.graph("inner").op("v", "Placeholder", dtypes=["resource"]).op("value", "Log")
        inner.op("assign", "AssignVariableOp", ["v", "value"], dtypes=[]).function("inner_1", ["v"])
        graph = run.graph("step").op("w", "Placeholder", dtypes=["resource"])
        graph.op("call", "StatefulPartitionedCall", ["w"], dtypes=[]).calls("call", "inner_1", inner)
        graph.op("ReadVariableOp", inputs=["w"]).function("step_1", captures=["w"])
        call = run.execution("step_1", inputs=[9], graph=graph)
        run.tensor(inner, "value", NAN, execution=call, site="call")
        run.tensor(graph, "ReadVariableOp", NAN, execution=call)
        read = nonfinite(run.write(tmp_path))[1]
        assert not read.is_origin
        assert read.inputs[0].producer == Producer(
            "AssignVariableOp", "assign", "inner", None, None, execution_index=0, how="variable"
        )
        assert read.inputs[0].health == health(1, NAN)


class TestUnrecorded:
    def test_an_op_with_an_unrecorded_input_is_not_a_proven_origin(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a", op_regex="Log")
        graph = run.graph("f").op("a", "Softmax", not_recorded="op_regex").op("Log", inputs=["a"])
        run.tensor(graph, "Log", NAN)
        found = first_nonfinite(run.write(tmp_path))
        assert names(found) == ("Log", 0, False)
        assert found.inputs == (InputTensor(0, None, Producer("Softmax", "a", "f", 0, None, None, "graph")),)

    def test_the_search_continues_through_unrecorded_ops(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a", op_regex="Log|Exp")
        graph = (
            run.graph("f").op("Log").op("hidden", "Neg", ["Log"], not_recorded="op_regex").op("Exp", inputs=["hidden"])
        )
        run.tensors(graph, {"Exp": NAN, "Log": NAN})
        assert names(first_nonfinite(run.write(tmp_path))) == ("Log", 1, True)

    def test_an_unrecorded_integer_input_does_not_matter(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a")
        graph = (
            run.graph("f").op("shape", "Const", dtypes=["int32"], not_recorded="dtype").op("Empty", inputs=["shape"])
        )
        run.tensor(graph, "Empty", NAN)
        assert names(first_nonfinite(run.write(tmp_path))) == ("Empty", 0, True)

    def test_data_flow_through_a_tensor_list(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a")
        graph = run.graph("f").op("Log").op("list", "TensorListFromTensor", ["Log"], dtypes=["variant"])
        graph.op("Stack", "TensorListStack", ["list"])
        run.tensors(graph, {"Stack": NAN, "Log": NAN})
        assert names(first_nonfinite(run.write(tmp_path))) == ("Log", 1, True)


class TestGradients:
    """To compute a gradient, TensorFlow creates new functions and loops. Recorded calls do not contain their names."""

    def test_a_loop_that_was_recreated_is_recognized_by_its_number(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a")
        body, _, outer = loop(run)
        call = run.execution("__forward_train_9", graph=outer)
        start = run.tensor(outer, "start", CLEAN, execution=call)
        konst = run.tensor(outer, "konst", CLEAN, execution=call)
        add = run.tensor(body, "add", NAN, execution=call, site="while_9/body/_10", frame=77)
        after = run.tensor(outer, "after", NAN, execution=call)
        first, second = nonfinite(run.write(tmp_path))
        assert names(first) == ("add", add, True)
        assert [input_.health and input_.health.event_index for input_ in first.inputs] == [start, konst]
        assert names(second) == ("after", after, False)

    def test_a_result_that_only_the_forward_function_has(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a")
        inner = run.graph("inner").op("x", "Placeholder").op("Log", inputs=["x"]).op("Neg", inputs=["Log"])
        inner.function("__inference_inner_1", ["x"], ["Neg"]).function("__forward_inner_2", ["x"], ["Neg", "Log"])
        outer = run.graph("outer").op("a", "Mul")
        outer.op("call", "PartitionedCall", ["a"], dtypes=["float32", "float32"], not_recorded="op_type")
        outer.calls("call", "__inference_inner_1", inner).op("after", "Exp", ["call:1"])
        run.tensor(outer, "a", CLEAN)
        log = run.tensor(inner, "Log", NAN, site="call")
        run.tensor(outer, "after", NAN)
        after = nonfinite(run.write(tmp_path))[-1]
        assert names(after) == ("after", 2, False)
        assert after.inputs[0].producer == Producer("Log", "Log", "inner", 0, log, None, "call")

    def test_a_call_without_rows_does_not_get_the_rows_of_another_call(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a")
        inner, outer = nested(run)
        call = run.execution("__inference_outer_2", graph=outer)
        run.tensor(inner, "Log", NAN, execution=call, site="scope/call")
        run.tensor(outer, "sum", NAN, execution=call)
        total = nonfinite(run.write(tmp_path))[-1]
        assert [input_.health is None for input_ in total.inputs] == [False, True]

    def test_data_flow_through_an_optional(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a")
        graph = run.graph("f").op("Log").op("kept", "OptionalFromValue", ["Log"], dtypes=["variant"])
        graph.op("Get", "OptionalGetValue", ["kept"])
        run.tensors(graph, {"Log": CLEAN, "Get": NAN})
        assert names(first_nonfinite(run.write(tmp_path))) == ("Get", 1, True)


class TestWithoutContext:
    """The rows come from a backend without step IDs, so the columns of the context are NULL."""

    def test_the_nearest_preceding_row_is_the_input(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a", health_backend="tensorflow")
        graph = run.graph("f").op("a", "Mul").op("b", "Log", ["a"]).op("c", "Neg", ["b"])
        for columns in (CLEAN, NAN):
            call = run.execution("f_1", graph=graph)
            run.tensors(graph, {"a": CLEAN, "b": columns, "c": columns}, execution=call, step=None)
        found = nonfinite(run.write(tmp_path))
        assert [names(item) for item in found] == [("b", 6, True), ("c", 7, False)]
        assert found[0].iteration is None

    def test_the_only_op_that_calls_a_function_is_the_caller(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a", health_backend="tensorflow")
        inner = run.graph("inner").op("x", "Placeholder").op("Log", inputs=["x"]).function("inner_1", ["x"], ["Log"])
        outer = run.graph("outer").op("a", "Mul").op("call", "PartitionedCall", ["a"]).calls("call", "inner_1", inner)
        call = run.execution("outer_2", graph=outer)
        run.tensor(outer, "a", CLEAN, execution=call, step=None)
        run.tensor(inner, "Log", NAN, execution=call, step=None)
        found = first_nonfinite(run.write(tmp_path))
        assert names(found) == ("Log", 2, True)
        assert found.inputs[0].producer == Producer("Mul", "a", "outer", 0, 1, 0, "argument")


class TestRuns:
    def logdir(self, tmp_path: Path) -> Path:
        chain(RunBuilder("run-b", wall_time_ns=START_NS + 10**12)).write(tmp_path)
        run = RunBuilder("run-c", wall_time_ns=START_NS)
        graph = run.graph("g").op("x", "Sqrt")
        run.tensor(graph, "x", NAN)
        run.write(tmp_path)
        RunBuilder("run-a").write(tmp_path)
        return tmp_path

    def test_the_run_that_was_bad_first_comes_first(self, tmp_path: Path) -> None:
        found = first_nonfinite(self.logdir(tmp_path), run_id="all")
        assert (found.run_id, found.op_name) == ("run-c", "x")

    def test_the_first_bad_tensor_of_one_run(self, tmp_path: Path) -> None:
        logdir = self.logdir(tmp_path)
        found = first_nonfinite(logdir, run_id="run-b")
        assert (found.run_id, found.op_name) == ("run-b", "b")
        assert first_nonfinite(logdir, run_id="run-a") is None
        assert {found.run_id for found in nonfinite(logdir, run_id="run-b")} == {"run-b"}

    def test_the_error_for_an_unknown_run(self, tmp_path: Path) -> None:
        with pytest.raises(QueryError, match=r"run 'run-z' is not in .*; it holds run-[abc], run-[abc], run-[abc]"):
            first_nonfinite(self.logdir(tmp_path), run_id="run-z")


def test_names_in_any_script(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    inner = run.graph("内").op("入力", "Placeholder").op("Ж", "Log", ["入力"]).function("内_1", ["入力"], ["Ж"])
    outer = run.graph("外'\"%_").op("層/λ.[*]", "Mul").op("呼出/(1)", "PartitionedCall", ["層/λ.[*]"])
    outer.calls("呼出/(1)", "内_1", inner)
    call = run.execution("f_2", graph=outer)
    run.tensor(outer, "層/λ.[*]", CLEAN, execution=call)
    run.tensor(inner, "Ж", NAN, execution=call, site="呼出/(1)")
    found = first_nonfinite(run.write(tmp_path))
    assert names(found) == ("Ж", 2, True)
    assert found.inputs[0].producer == Producer("Mul", "層/λ.[*]", "外'\"%_", 0, 1, 0, "argument")


def test_methods_return_the_same_as_functions(tmp_path: Path) -> None:
    with open_logdir(chain(RunBuilder("run-a")).write(tmp_path)) as logdir:
        assert logdir.first_nonfinite() == first_nonfinite(tmp_path)
        assert logdir.nonfinite(kinds=("nan",)) == nonfinite(logdir)
        assert first_nan(logdir) == logdir.first_nonfinite()


@pytest.mark.parametrize(("num_zero", "origin"), [(2, "masked"), (3, "log")], ids=["each from -Inf", "one underflow"])
def test_a_logarithm_of_exponentials_has_the_infinities_that_these_took(
    tmp_path: Path, num_zero: int, origin: str
) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("masked", "Neg").op("exp", "Exp", ["masked"]).op("sum", "Sum", ["exp"])
    graph.op("log", "Log", ["sum"]).function("f_1", results=["log"])
    call = run.execution("f_1", graph=graph, outputs={1: "float32"})
    run.tensors(
        graph,
        {
            "masked": counts(neg_inf=2, neg=2),
            "exp": counts(zero=num_zero, pos=4 - num_zero),
            "sum": counts(zero=1, pos=1),
            "log": counts(neg_inf=1, neg=1),
        },
        execution=call,
    )
    run.eager(call, counts(neg_inf=1, neg=1), tensor_id=1)
    assert names(first_nonfinite(run.write(tmp_path)))[0] == origin


W, M, V, VALUE = range(1, 5)
"""The IDs of eager tensors: the handles of a variable and of the optimizer's state, and a value from outside."""


def optimizer_with_a_bad_variable(
    run: RunBuilder,
    *,
    is_eager: bool,
    assigned: int | None = None,
    value: dict[str, object] = NAN,
    held: dict[str, object] = NAN,
) -> int:
    """Adds a step in which an optimizer writes to a variable, and a second step that reads bad values from it.

    Args:
        run: The run.
        is_eager: Whether the op of the optimizer runs outside the function.
        assigned: The handle to which the program assigns a value: the state's handle before the step, or the variable's
            handle after the step.
        value: The health of the assigned value.
        held: The health of the tensor that the read returns.

    Returns:
        The event_index of the read.
    """
    scalars = ["beta1_power", "beta2_power", "rate", "beta1", "beta2", "epsilon"]
    graph = run.graph("train").op("w", "Placeholder", dtypes=["resource"])
    graph.op("m", "Placeholder", dtypes=["resource"]).op("v", "Placeholder", dtypes=["resource"])
    for name in scalars:
        graph.op(name, "Const")
    graph.op("read", "ReadVariableOp", inputs=["w"]).op("gradient", "Mul", inputs=["read"], role="gradient")
    if not is_eager:
        stack = run.stack(("/home/me/train.py", 20, "train", "optimizer.apply_gradients(pairs)", "user"))
        taken = ["w", "m", "v", *scalars, "gradient"]
        graph.op("apply", "ResourceApplyAdam", inputs=taken, dtypes=[], role="optimizer", stack=stack)
    graph.function("train", captures=["w", "m", "v"], results=["gradient"])

    def assign() -> None:
        execution = run.execution("AssignVariableOp", inputs=[assigned or W, VALUE])
        run.external(VALUE, value, execution=execution)

    rows = []
    for number, read in enumerate((CLEAN, held)):
        if number == 0 and assigned not in (None, W):
            assign()
        call = run.execution("train", inputs=[W, M, V], outputs={10 + number: "float32"}, graph=graph)
        rows.append(run.tensor(graph, "read", read, step=number, execution=call))
        for name in scalars:
            run.tensor(graph, name, counts(zero=1) if name == "epsilon" else CLEAN, step=number, execution=call)
        run.tensor(graph, "gradient", read if number else counts(zero=1, pos=2), step=number, execution=call)
        if is_eager and number == 0:
            for index in range(6):
                run.external(20 + index, counts(zero=1) if index == 5 else CLEAN, execution=call + 1)
            run.eager(call, counts(zero=1, pos=2), tensor_id=10)
            run.execution("ResourceApplyAdam", inputs=[W, M, V, *range(20, 26), 10])
        if number == 0 and assigned == W:
            assign()
    return rows[1]


@pytest.mark.parametrize("is_eager", [False, True])
def test_the_op_of_an_optimizer_is_named_for_what_it_wrote_to_a_variable(is_eager: bool, tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    read = optimizer_with_a_bad_variable(run, is_eager=is_eager)
    found = first_nonfinite(run.write(tmp_path / "logdir"))
    assert (found.op_type, found.event_index, found.is_origin) == ("ResourceApplyAdam", read, True)
    assert (found.op_name, found.output_slot, len(found.inputs)) == (None if is_eager else "apply", None, 10)
    if not is_eager:
        assert (found.call.function, found.call.number) == ("train", 1)
        assert (found.role, found.source and found.source.lineno) == ("optimizer", 20)


@pytest.mark.parametrize("assigned", [None, W])
def test_infinities_that_an_optimizer_wrote_are_not_those_of_the_program(assigned: int | None, tmp_path: Path) -> None:
    run, infinities = RunBuilder("run-a"), counts(pos_inf=3)
    read = optimizer_with_a_bad_variable(run, is_eager=False, assigned=assigned, value=infinities, held=infinities)
    with open_logdir(run.write(tmp_path / "logdir")) as logdir:
        flow = DataFlow(logdir, run_id="run-a")
        row = flow.events.event(read)
        assert row is not None
        assert Origins(flow, kinds=KINDS).is_literal(row) == (assigned is not None)


@pytest.mark.parametrize(
    ("assigned", "value", "op_type"), [(W, NAN, None), (M, NAN, None), (W, CLEAN, "ReadVariableOp")]
)
@pytest.mark.parametrize("is_eager", [False, True])
def test_an_optimizer_did_not_make_what_the_program_assigned(
    is_eager: bool, assigned: int, value: dict[str, object], op_type: str | None, tmp_path: Path
) -> None:
    run = RunBuilder("run-a")
    optimizer_with_a_bad_variable(run, is_eager=is_eager, assigned=assigned, value=value)
    found = first_nonfinite(run.write(tmp_path / "logdir"))
    assert (found.op_type, found.outside_name is None) == (op_type, value is CLEAN)
