"""Test that the comparison detects missing and different facts, and that no explanation covers these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from .compare import compare
from .differences import MODES, explanation_of
from .recording import Execution, Graph, GraphOp, Recording, Trace

_STACK = (
    ("/home/ada/tests/parity/programs.py", 10, "program"),
    ("/usr/lib/site-packages/tensorflow/wrapper.py", 5, "wrapper"),
    ("/home/ada/tests/parity/programs.py", 20, "f"),
)
_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def _op(name: str, op_type: str, *inputs: str) -> GraphOp:
    return GraphOp(graph_id="1", op_name=name, op_type=op_type, num_outputs=1, input_names=inputs, stack=_STACK)


def _trace(name: str, op_type: str, *value: float) -> Trace:
    return Trace(graph_id="1", op_name=name, op_type=op_type, output_slot=0, device_name=_CPU, value=value)


def recording(*, is_ours: bool) -> Recording:
    """Returns a recording of a program with two ops in a function, and three executions."""
    value: Any = ("float32", (1.0, 0.0)) if is_ours else (1.0, 0.0)
    call = Execution(
        op_type="__inference_f_7", graph_id="1", input_ids=(3,), output_ids=(4,), values=(value,), stack=_STACK
    )
    return Recording(
        mode="CONCISE_HEALTH",
        graphs=[
            Graph(graph_id="0", name="outer", outer_graph_id=None),
            Graph(graph_id="1", name="f", outer_graph_id="0"),
        ],
        ops=[
            replace(_op("x", "Placeholder"), graph_id="0"),
            _op("x", "Placeholder"),
            _op("Log", "Log", "x:0"),
            _op("Exp", "Exp", "Log:0"),
        ],
        executions=[
            call,
            replace(call, op_type="Mul", graph_id=None, input_ids=(4, 4), output_ids=(5,)),
            replace(call, op_type="Mul", graph_id=None, input_ids=(5, 4), output_ids=(6,)),
        ],
        traces=[_trace("Log", "Log", 2.0, 1.0), _trace("Log", "Log", 2.0, 0.0), _trace("Exp", "Exp", 2.0, 0.0)],
        source_files={"/home/ada/tests/parity/programs.py": "text"},
    )


def _without(field: str, index: int) -> Callable[[Recording], Recording]:
    def change(ours: Recording) -> Recording:
        return replace(ours, **{field: [item for i, item in enumerate(getattr(ours, field)) if i != index]})

    return change


def _with(field: str, index: int, **changes: Any) -> Callable[[Recording], Recording]:
    def change(ours: Recording) -> Recording:
        items = list(getattr(ours, field))
        items[index] = replace(items[index], **changes)
        return replace(ours, **{field: items})

    return change


_OTHER_LINE = (*_STACK[:2], (_STACK[2][0], 21, "f"))

LOSSES: dict[str, tuple[str, Callable[[Recording], Recording]]] = {
    "graph": ("graph", _without("graphs", 1)),
    "outer graph": ("outer_graph", _with("graphs", 1, outer_graph_id=None)),
    "op": ("op", _without("ops", 3)),
    "op type": ("op_type", _with("ops", 2, op_type="Log1p")),
    "number of outputs": ("op_num_outputs", _with("ops", 2, num_outputs=2)),
    "edge": ("op_inputs", _with("ops", 3, input_names=("x:0",))),
    "edge left out": ("op_inputs", _with("ops", 3, input_names=())),
    "line of an op": ("op_stack", _with("ops", 2, stack=_OTHER_LINE)),
    "frame of an op": ("op_stack", _with("ops", 2, stack=_STACK[:1])),
    "frame of a library": ("library_frames", _with("executions", 0, stack=(_STACK[0], _STACK[2]))),
    "call": ("execution", _without("executions", 0)),
    "execution": ("execution", _without("executions", 2)),
    "number of inputs": ("execution", _with("executions", 1, input_ids=(4,))),
    "graph of a call": ("execution_graph", _with("executions", 0, graph_id=None)),
    "tensor that went in": ("tensor_ids", _with("executions", 2, input_ids=(4, 5))),
    "new id for a tensor": ("tensor_ids", _with("executions", 1, input_ids=(8, 8))),
    "one id for two tensors": ("tensor_ids", _with("executions", 2, output_ids=(5,))),
    "line of an execution": ("execution_stack", _with("executions", 1, stack=_OTHER_LINE)),
    "value of an execution": ("execution_value", _with("executions", 1, values=(("float32", (1.0, 1.0)),))),
    "no value of an execution": ("execution_value", _with("executions", 1, values=(("float32", None),))),
    "time that a tensor was computed": ("trace_count", _without("traces", 0)),
    "all of a tensor": ("trace", _without("traces", 2)),
    "value of a tensor": ("trace_value", _with("traces", 0, value=(2.0, 2.0))),
    "device": ("trace_value", _with("traces", 2, device_name=_CPU.replace("CPU:0", "CPU:1"))),
    "source text": (
        "source_file",
        lambda ours: replace(ours, source_files={**ours.source_files, _STACK[0][0]: "other"}),
    ),
    "source file": ("source_file", lambda ours: replace(ours, source_files={})),
}


def test_equal_recordings_have_no_differences() -> None:
    comparison = compare(recording(is_ours=False), recording(is_ours=True))

    assert comparison.differences == []
    assert comparison.equal["trace_value"] == 2
    assert sum(comparison.only_ours.values()) == 0


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_detected_and_not_explained(name: str) -> None:
    kind, change = LOSSES[name]
    differences = compare(recording(is_ours=False), change(recording(is_ours=True))).differences

    assert kind in {difference.kind for difference in differences}
    for difference in differences:
        if difference.kind == kind:
            assert [explanation_of(difference, mode) for mode in MODES] == [None] * len(MODES)
