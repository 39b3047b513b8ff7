"""Test that the search for the origin does not read the writes to variables before the first bad tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.query import Logdir, Producer, nonfinite, open_logdir
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.events import EventReader

from .builder import CLEAN, NAN, RunBuilder

HANDLE = 9


def training(run: RunBuilder, *, updates: int, read: Mapping[str, Any] = CLEAN) -> RunBuilder:
    """Adds calls of a function that updates a variable, and a call of a function that reads the variable.

    The second function has bad tensors.
    """
    step = run.graph("step").op("w", "Placeholder", dtypes=["resource"], not_recorded="dtype").op("grad", "Mul")
    step.op("update", "AssignSubVariableOp", ["w", "grad"], dtypes=[]).function("step_1", captures=["w"])
    loss = run.graph("loss").op("w", "Placeholder", dtypes=["resource"], not_recorded="dtype")
    loss.op("ReadVariableOp", inputs=["w"]).op("Log", inputs=["ReadVariableOp"]).op("Sum", inputs=["Log"])
    loss.function("loss_1", captures=["w"])
    for number in range(updates):
        call = run.execution("step_1", inputs=[HANDLE], graph=step)
        run.tensor(step, "grad", CLEAN, execution=call, step=number)
    call = run.execution("loss_1", inputs=[HANDLE], graph=loss)
    run.tensors(loss, {"ReadVariableOp": read, "Log": NAN, "Sum": NAN}, execution=call, step=updates)
    return run


def test_early_updates_of_a_variable_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    table = Logdir.table

    def counted(self: Logdir, query: str, parameters: Any = None) -> Any:
        asked.append(query)
        return table(self, query, parameters)

    monkeypatch.setattr(Logdir, "table", counted)
    numbers = []
    for updates in (3, 40):
        path = training(RunBuilder("run-a"), updates=updates).write(tmp_path / str(updates))
        asked.clear()
        with open_logdir(path) as logdir:
            found = logdir.first_nonfinite()
            assert (found.op_name, found.is_origin) == ("Log", True)
            logdir.provenance(found.event_index + 1)
        numbers.append(len(asked))
    assert numbers[0] == numbers[1]


def test_a_bad_read_is_an_origin_if_all_earlier_updates_are_clean(tmp_path: Path) -> None:
    read = nonfinite(training(RunBuilder("run-a"), updates=40, read=NAN).write(tmp_path))[0]
    assert (read.op_name, read.is_origin) == ("ReadVariableOp", True)
    assert read.inputs[0].producer == Producer(
        "AssignSubVariableOp", "update", "step", None, None, execution_index=39, how="variable"
    )


def test_recent_sources_omit_writes_before_the_first_bad_tensor(tmp_path: Path) -> None:
    with open_logdir(training(RunBuilder("run-a"), updates=5).write(tmp_path)) as logdir:
        flow = DataFlow(logdir, run_id="run-a")
        read = flow.events.event(11)
        assert read is not None
        assert [source.event_index for source in flow.sources_of(read).events] == [1, 3, 5, 7, 9]
        assert flow.recent_sources_of(read) == ()
        assert [(index, how, row.event_index) for index, how, row in flow.taken_by(read)] == [
            (0, "variable", event_index) for event_index in (9, 7, 5, 3, 1)
        ]
        assert flow.taken_by(read, is_recent=True) == []


@pytest.mark.parametrize(
    ("executions", "first"), [((), 0), ((2, 3), 2), ((3, 2), 2), ((2, None), 0), ((None,), 0)]
)  # fmt: skip
def test_the_first_bad_execution_is_0_unless_every_bad_tensor_has_an_execution(
    executions: Sequence[int | None], first: int, tmp_path: Path
) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Mul")
    run.tensor(graph, "x", CLEAN, execution=1)
    for execution in executions:
        run.tensor(graph, "x", NAN, execution=execution)
    with open_logdir(run.write(tmp_path)) as logdir:
        assert EventReader(logdir, run_id="run-a").first_bad_execution() == first
