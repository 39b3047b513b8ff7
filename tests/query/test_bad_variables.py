"""Test that a search skips the steps in which a variable stays bad, and only those."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.query.bad_tensor import BadTensorReader
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import KINDS, TensorEvent

from .builder import NAN, GraphBuilder, RunBuilder, counts_of

HANDLE, OTHER_HANDLE = 9, 8
NEW_VALUES = {
    "sub": operator.sub,
    "computed": lambda old, delta: old * 0.5 + delta,
    "replaced": lambda old, delta: delta,
    "maximum": np.fmax,
}
"""The functions of `train` that write to the variable, by what they write."""


class Training:
    """A run in which several functions and eager ops read and write one variable."""

    def __init__(self) -> None:
        self.run = RunBuilder("run-a")
        self.graphs = {name: self._graph(name) for name in NEW_VALUES}
        self._next_id = 100
        self.last_read, self.last_read_id = np.zeros(3), 99

    def _graph(self, name: str) -> GraphBuilder:
        graph = self.run.graph(name).op("w", "Placeholder", dtypes=["resource"], not_recorded="dtype")
        graph.op("ReadVariableOp", inputs=["w"]).op("delta", "Placeholder")
        if name == "sub":
            graph.op("update", "AssignSubVariableOp", ["w", "delta"], dtypes=[])
        else:
            types = {"computed": ["Mul", "AddV2"], "replaced": [], "maximum": ["Maximum"]}[name]
            value = "delta" if name == "replaced" else "ReadVariableOp"
            for op_type in types:
                graph.op(op_type, inputs=[value] if op_type == "Mul" else [value, "delta"])
                value = op_type
            graph.op("update", "AssignVariableOp", ["w", value], dtypes=[])
        return graph.function(f"{name}_1", captures=["w"])

    def step(self, name: str, value: np.ndarray, delta: np.ndarray, *, step_id: int) -> tuple[int, np.ndarray]:
        """Adds a call that reads the variable and writes to it. Returns the row of the read and the new value."""
        graph = self.graphs[name]
        call = self.run.execution(f"{name}_1", inputs=[HANDLE], graph=graph)
        healths = {"ReadVariableOp": counts_of(value), "delta": counts_of(delta)}
        rows = self.run.tensors(graph, healths, execution=call, step=step_id)
        with np.errstate(all="ignore"):
            return rows[0], NEW_VALUES[name](value, delta)

    def read(self, value: np.ndarray, *, handle: int = HANDLE) -> int:
        """Adds an eager read, and returns its row."""
        return self._eager("ReadVariableOp", value, inputs=[handle])

    def assign(self, delta: np.ndarray) -> np.ndarray:
        """Adds eager ops that write `old / 2 + delta`, where `old` was read last. Returns the new value."""
        with np.errstate(all="ignore"):
            half = self.last_read * 0.5
            new_value: np.ndarray = half + delta
        self._eager("Mul", half, inputs=[self.last_read_id])
        self._eager("AddV2", new_value, inputs=[self._next_id])
        self.run.execution("AssignVariableOp", inputs=[HANDLE, self._next_id])
        return new_value

    def _eager(self, op_type: str, value: np.ndarray, *, inputs: Iterable[int]) -> int:
        self._next_id += 1
        if op_type == "ReadVariableOp":
            self.last_read, self.last_read_id = value, self._next_id
        return self.run.eager_op(op_type, counts_of(value), tensor_id=self._next_id, inputs=inputs)


def first_read(flow: DataFlow, event_index: int) -> TensorEvent | None:
    """Returns the first read of which BadVariables says that it had the same bad elements."""
    event = flow.events.event(event_index)
    assert event is not None
    (place, how), *_ = flow._input_places(event)
    return flow._contents._bad_variables.first_equally_bad_read(flow.trace(place, how=how, near=event_index), event)


ELEMENTS = st.lists(st.sampled_from([0.0, 1.0, -2.0, np.nan, np.inf, -np.inf]), min_size=3, max_size=3)
NAMES = ["read", "read", "assign", *NEW_VALUES]
STEPS = st.lists(st.tuples(st.sampled_from(NAMES), ELEMENTS), min_size=1, max_size=12)


@given(steps=STEPS)
@settings(max_examples=80, deadline=None)
def test_the_first_read_has_the_same_bad_elements_as_the_later_one(steps: list[tuple[str, list[float]]]) -> None:
    training = Training()
    value = np.zeros(3)
    read_values: dict[int, np.ndarray] = {}
    for step_id, (name, elements) in enumerate(steps):
        if name == "read":
            read_values[training.read(value)] = value
        elif name == "assign":
            value = training.assign(np.array(elements))
        else:
            row, new_value = training.step(name, value, np.array(elements), step_id=step_id)
            read_values[row] = value
            value = new_value
    with TemporaryDirectory() as directory, open_logdir(training.run.write(Path(directory))) as logdir:
        flow = DataFlow(logdir, run_id="run-a")
        for event_index, read_value in read_values.items():
            first = first_read(flow, event_index)
            if first is not None:
                assert first.event_index < event_index
                between = [
                    ~np.isfinite(other)
                    for other_index, other in read_values.items()
                    if first.event_index <= other_index <= event_index
                ]
                assert all((bad == ~np.isfinite(read_value)).all() for bad in between)


@pytest.mark.parametrize("name", ["sub", "computed"])
def test_a_path_skips_the_steps_in_which_a_variable_stays_bad(name: str, tmp_path: Path) -> None:
    training = Training()
    good, bad = np.ones(3), np.array([1.0, 1.0, np.nan])
    value = good
    reads = []
    for step_id in range(200):
        row, value = training.step(name, value, bad if step_id == 20 else good, step_id=step_id)
        reads.append(row)
    with open_logdir(training.run.write(tmp_path)) as logdir:
        provenance = logdir.provenance(reads[-1])
        assert [hop.event_index for hop in provenance.hops[:2]] == [reads[-1], reads[21]]
        assert provenance.origin is not None
        assert (provenance.origin.op_name, provenance.origin.event_index) == ("delta", reads[20] + 1)
        assert not provenance.is_cut


@pytest.mark.parametrize("source", ["old value", "older value", "other variable"])
def test_eager_writes_of_a_computed_value(source: str, tmp_path: Path) -> None:
    """Only if a value was computed from the last value of the variable, all bad elements stay bad."""
    training = Training()
    bad, good = np.array([1.0, 1.0, np.nan]), np.ones(3)
    rows = []
    for _ in range(3):
        rows.append(training.read(bad))
        if source == "other variable":
            training.read(bad, handle=OTHER_HANDLE)
        training.assign(good)
        if source == "older value":
            training.assign(good)
    rows.append(training.read(bad))
    with open_logdir(training.run.write(tmp_path)) as logdir:
        flow = DataFlow(logdir, run_id="run-a")
        firsts = [first_read(flow, row) for row in rows]
        expected = rows[0] if source == "old value" else None
        assert [None if first is None else first.event_index for first in firsts] == [None, *[expected] * 3]


@pytest.mark.parametrize("name", ["replaced", "maximum"])
def test_a_path_does_not_skip_steps_that_could_replace_a_bad_element(name: str, tmp_path: Path) -> None:
    training = Training()
    bad = np.array([1.0, np.nan])
    reads = [training.step(name, bad, bad, step_id=step_id)[0] for step_id in range(5)]
    with open_logdir(training.run.write(tmp_path)) as logdir:
        flow = DataFlow(logdir, run_id="run-a")
        assert [first_read(flow, row) for row in reads] == [None] * 5


def test_a_read_of_another_variable_is_not_the_first_read(tmp_path: Path) -> None:
    training = Training()
    bad = np.array([1.0, np.nan])
    call = training.run.execution("sub_1", inputs=[OTHER_HANDLE], graph=training.graphs["sub"])
    training.run.tensor(training.graphs["sub"], "ReadVariableOp", counts_of(bad), execution=call, step=50)
    training.read(bad, handle=OTHER_HANDLE)
    reads = [training.step("sub", bad, bad, step_id=0)[0], training.read(bad)]
    with open_logdir(training.run.write(tmp_path)) as logdir:
        flow = DataFlow(logdir, run_id="run-a")
        assert [first_read(flow, row) for row in reads] == [None, None]


def test_the_effect_is_unknown_if_too_many_tensors_lie_before_a_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Placeholder", dtypes=["float32"])
    names = ["x"]
    for number in range(30):
        names.append(f"y{number}")
        graph.op(names[-1], "Neg", [names[-2]])
    graph.function("f_1")
    call = run.execution("f_1", graph=graph)
    rows = run.tensors(graph, dict.fromkeys(names, NAN), execution=call)
    with open_logdir(run.write(tmp_path)) as logdir:
        reader = BadTensorReader(logdir, run_id="run-a", kinds=KINDS)
        last = reader.flow.events.event(rows[-1])
        assert last is not None
        whole = reader.own_effect(last)
        monkeypatch.setattr("tfdbg_arrow.query.bad_tensor._MAX_FOLLOWED", len(names))
        assert reader.own_effect(last) == whole
        monkeypatch.setattr("tfdbg_arrow.query.bad_tensor._MAX_FOLLOWED", len(names) - 1)
        effect = reader.own_effect(last)
        assert (effect.name, effect.expected_reason) == (None, None)
