"""Small runs and single rows whose bad tensors are explained, and the texts that several tests expect."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfdbg_arrow.query.explanation import Computed, Explanation, explain, read_reasons
from tfdbg_arrow.query.recorded import TensorEvent

from ..builder import GraphBuilder, RunBuilder, counts

ZERO = counts(zero=1, pos=1)
ONE = {**counts(pos=1), "rank": 0, "shape": []}
LOG_OF_0 = "Log of 0: 1 of 2 elements is 0, and the logarithm of 0 is -Inf."
OVER = "1 of 2 elements is beyond the largest float32, 3.40282e+38."
ABOVE_0 = "Keep the argument above 0 with an epsilon such as 1e-7."
LOGSUMEXP = (
    "Use tf.reduce_logsumexp in place of the exponentials, their sum and the logarithm: it neither overflows nor "
    "underflows."
)
ABOVE_0_BEFORE_ROOT = (
    "Keep the argument above 0, for example with tf.maximum(x, 1e-7). A maximum with 0 is not enough if the program "
    "differentiates the root or divides by it: at 0, the gradient of the root is infinite, and so is the quotient."
)
BEFORE_ROOT = (
    "Before the root, add an epsilon such as 1e-7 (1e-4 in float16). A norm, a standard deviation and a power of 0.5 "
    "take a root, too."
)
LOGARITHMS = (
    "Add the logarithms of the factors in place of the product (tf.reduce_sum or tf.cumsum of tf.math.log), or "
    "scale the factors."
)
OVERFLOW_OF_PRODUCT = (
    "Add the logarithms of the factors in place of the product (tf.reduce_sum or tf.cumsum of tf.math.log). If the "
    "program needs the product itself, clip this sum from above before tf.exp, for example with tf.minimum(x, 22.0), "
    "or scale or clip the factors."
)
SIGNED = "Use tf.linalg.slogdet: it returns the sign of the determinant and the logarithm of its magnitude."


def numbers(low: float, high: float, **kinds: int) -> dict[str, Any]:
    return {**counts(**kinds), "min_finite": low, "max_finite": high, "max_abs_finite": max(abs(low), abs(high))}


def reason_of(run: RunBuilder, event: int, tmp_path: Path) -> Explanation:
    explanation = read_reasons(run.write(tmp_path), event, run_id="run-a").explanation
    assert explanation is not None
    return explanation


def reason_of_last(run: RunBuilder, tmp_path: Path) -> Explanation:
    return reason_of(run, run.next_event_index - 1, tmp_path)


class Step:
    """A call of a graph, `f(x)`: the first or a later call. Each op is added with the health of its result."""

    def __init__(self, *, is_first: bool = True) -> None:
        self.run = RunBuilder("run-a")
        self.graph: GraphBuilder = self.run.graph("f").op("x", "Placeholder", role="forward")
        if not is_first:
            self.run.execution("f", inputs=[8], outputs={9: "float32"}, graph=self.graph)
        self.execution = self.run.execution("f", inputs=[1], outputs={2: "float32"}, graph=self.graph)
        self.events: dict[str, int] = {}

    def takes(self, health: Mapping[str, Any]) -> Step:
        self.run.external(1, health, execution=self.execution)
        return self._tensor("x", health)

    def op(
        self, name: str, op_type: str, inputs: list[str], health: Mapping[str, Any], role: str = "forward", **of: Any
    ) -> Step:
        self.graph.op(name, op_type, inputs, role=role, **of)
        return self._tensor(name, health)

    def gradient(self, name: str, op_type: str, inputs: list[str], health: Mapping[str, Any], of: str) -> Step:
        return self.op(name, op_type, inputs, health, "gradient", forward_graph_id=0, forward_op_name=of)

    def _tensor(self, name: str, health: Mapping[str, Any], **columns: Any) -> Step:
        self.events[name] = self.run.tensor(self.graph, name, health, execution=self.execution, **columns)
        return self

    def update(self, gradient: str) -> Step:
        """Adds an op that subtracts a gradient from a variable."""
        self.graph.op("w", "Placeholder", dtypes=("resource",), not_recorded="dtype")
        self.graph.op("update", "AssignSubVariableOp", ["w", gradient], dtypes=(), role="optimizer")
        return self

    def reason(self, name: str, tmp_path: Path, *, result: str | None = None) -> Explanation:
        """Returns the explanation of an op's result. The call returns this result, or the result of the op `result`."""
        self.graph.function("f", ["x"], [result or name])
        return reason_of(self.run, self.events[name], tmp_path)


def written_variable(code: str, num_writes: int) -> RunBuilder:
    """Returns a run in which a line assigns values to a new variable, whose handle is the tensor 7."""
    run = RunBuilder("run-a")
    run.execution("VarHandleOp", outputs={7: "resource"})
    stack = run.stack(("/home/me/train.py", 3, "<module>", code, "user"))
    for _ in range(num_writes):
        run.execution("AssignVariableOp", inputs=[7, 1], stack=stack)
    return run


def row(op_type: str | None, health: Mapping[str, Any], *, slot: int = 0, dtype: str = "float32") -> TensorEvent:
    facts = dict.fromkeys(TensorEvent.__dataclass_fields__)
    facts |= {"event_index": 1, "scope": "graph", "op_type": op_type, "output_slot": slot, "dtype": dtype}
    facts |= {name: value for name, value in health.items() if name in facts}
    return TensorEvent(**{**facts, "shape": tuple(health["shape"])})  # type: ignore[arg-type]


def explained(op_type: str, health: Mapping[str, Any], *inputs: TensorEvent, **facts: Any) -> Explanation | None:
    """Returns the explanation of a result of an op. `facts` are other attributes of Computed."""
    return explain(Computed(output=row(op_type, health), inputs=dict(enumerate(inputs)), **facts))
