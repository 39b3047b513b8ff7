"""Test the queries of docs/querying.md that follow values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.compat.make_golden import GOLDEN
from tests.query.builder import CLEAN, INF, NAN, RunBuilder
from tfdbg_arrow.query import open_logdir

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "querying.md").read_text(encoding="utf-8")
SECTION = PAGE.split("### Where values come from\n")[1].split("\n## ")[0]
QUERIES = dict(re.findall(r"^([A-Z][^\n]*):\n\n```sql\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL))
LOGDIRS = sorted(path.parent for path in GOLDEN.glob("*/*/tfdbg_arrow.json"))


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two calls of f(x) = x / Exp(v). Between the calls, an eager op sets v, so that the second call is bad."""
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Placeholder").op("v", "Placeholder", dtypes=["resource"])
    graph.op("read", "ReadVariableOp", ["v"], layer="net").op("Exp", inputs=["read"], layer="net")
    graph.op("div", "RealDiv", ["x", "Exp"], layer="net/out").function("f_1", ["x"], ["div"], captures=["v"])
    run.execution("VarHandleOp", outputs={1: "resource"})
    for step, (value, health) in enumerate(((2, CLEAN), (3, INF))):
        made = run.execution("Neg", outputs={value: "float32"})
        run.eager(made, health, tensor_id=value)
        run.execution("AssignVariableOp", inputs=[1, value])
        call = run.execution("f_1", inputs=[value, 1], outputs={value + 10: "float32"}, graph=graph)
        for name in ("read", "Exp", "div"):
            zero = {"num_zero": 1} if name == "Exp" and step else {}
            bad = NAN if name == "div" and step else health if name == "read" else CLEAN
            run.tensor(graph, name, {**bad, **zero}, execution=call, step=step)
    return run.write(tmp_path_factory.mktemp("queries") / "logdir")


def answer(logdir: Path, heading: str) -> list[tuple[Any, ...]]:
    with open_logdir(logdir) as opened:
        return opened.rows(QUERIES[heading])


def test_the_page_has_ten_queries() -> None:
    assert len(QUERIES) == SECTION.count("```sql") == 10


@pytest.mark.parametrize("golden", LOGDIRS, ids=[f"{path.parent.name}-{path.name}" for path in LOGDIRS])
def test_each_query_runs_on_golden_logdirs(golden: Path) -> None:
    with open_logdir(golden) as opened:
        for run_id in opened.run_ids():
            for query in QUERIES.values():
                opened.of_run(run_id).rows(query)


def test_the_answers_about_a_division(logdir: Path) -> None:
    neg, read, exp, div = 9, 12, 13, 14  # the tensors of the second call
    assert {heading: answer(logdir, heading) for heading in QUERIES} == {
        "All tensors from which a tensor was made": [
            (neg, "Neg", None, None, True),
            (read, "ReadVariableOp", "read", None, True),
            (exp, "Exp", "Exp", None, False),
        ],
        "All layers that the first bad value passed, with the step": [
            (None, None, None, neg, 1),
            (None, "net", None, read, 1),
            (None, "net/out", None, div, 1),
        ],
        "The nearest recorded inputs of each bad tensor, and whether they are bad": [
            (read, neg, "Neg", True),
            (div, neg, "Neg", True),
            (div, exp, "Exp", False),
        ],
        "The bad tensors of which no recorded input is bad": [(neg, "Neg", None)],
        "The variables' contents that a tensor depends on, and in which step they were written": [
            (None, None, "Neg", neg)
        ],
        "The longest way from the first bad tensor, counted in recorded tensors": [(3,)],
        "Where the first bad tensor was used directly": [],
        "Which kinds of inputs the ops have": [
            ("Exp", "tensor", 2),
            ("ReadVariableOp", "variable", 2),
            ("RealDiv", "tensor", 4),
        ],
        "Tensors of which an input is not recorded, so that nothing is proven about them": [],
        "Ops that divide by a tensor with a zero": [(div, "div", "Exp", 1)],
    }
