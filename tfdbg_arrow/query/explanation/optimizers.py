"""Rules for the ops of an optimizer: divisions that need an epsilon, and ops that apply a gradient to a variable."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from tfdbg_arrow.query.explanation.computed import Computed, Explanation, bad_text, infs, zeros
from tfdbg_arrow.query.explanation.kinds import OVERFLOW
from tfdbg_arrow.query.explanation.linear import STEP_COUNTER
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.schema.op_traits import OPTIMIZERS, READER

_OF_DIVISORS = frozenset({"Add", "AddV2", "Maximum", "Mul", "RealDiv", "Sqrt", "Sub"})
"""Types of ops between the variables of an optimizer and the divisor of its update."""
_MAX_OPS = 5
"""Between the divisor of an update and the optimizer's variables, at most this many ops are examined."""
_EPSILON_OF = {
    f"{variable}{op}": index
    for variable in ("Apply", "ResourceApply")
    for op, index in (("Adadelta", 5), ("Adam", 8), ("RMSProp", 6))
}
"""Types of ops that divide by the root of an average of squares plus an epsilon, and the epsilon's input index."""


def update_of_variable(computed: Computed) -> Explanation | None:
    """Explains an op of an optimizer that applies a gradient to a variable."""
    if not computed.has_finite_inputs:
        return None
    epsilon = computed.inputs.get(_EPSILON_OF[computed.op]) if computed.op in _EPSILON_OF else None
    if epsilon is not None and zeros(epsilon):
        return Explanation(
            f"{computed.op}: its epsilon is 0 in {epsilon.dtype}, so it divides by 0 where its average of the squares "
            "of the gradient is 0.",
            _optimizer_epsilon(epsilon),
        )
    if not computed.op.startswith(OPTIMIZERS):
        return None
    sentence = f"{computed.op} wrote {bad_text(computed.output)} to a variable, and all its inputs are finite."
    if computed.op == "ResourceApplyGradientDescent":
        return Explanation(f"Overflow: {sentence}", OVERFLOW)
    return Explanation(
        sentence,
        "Give the optimizer an epsilon that the dtype can represent or a smaller learning rate, or clip the gradients.",
    )


def _optimizer_epsilon(row: TensorEvent) -> str:
    """Returns the fix for an optimizer whose epsilon is 0 in the dtype of a tensor."""
    if row.dtype == "float16":
        return "Give the optimizer an epsilon such as 1e-4: the usual 1e-7 and 1e-8 are too small in float16."
    return "Give the optimizer an epsilon such as 1e-7."


def of_optimizer(explanation: Explanation, computed: Computed) -> Explanation:
    """Returns the explanation of a division. The fix says if the optimizer's epsilon or step counter is the cause."""
    root, divisor = computed.inputs.get(0), computed.inputs.get(1)
    is_by_variable = computed.op == "Rsqrt" and root is not None and root.op_type == "ReadVariableOp"
    is_by_zero = computed.op == "RealDiv" and divisor is not None and zeros(divisor) > 0
    zero = divisor if computed.op in ("Div", "RealDiv") else root
    is_scalar_0 = zero is not None and zero.shape == () and zeros(zero) > 0
    if zero is not None and is_scalar_0 and zero.op_type == "Cast" and computed.constant(zero) is None:
        return replace(explanation, repair=STEP_COUNTER)
    if is_by_variable or (is_by_zero and divisor is not None and _is_of_optimizer(computed, divisor)):
        return replace(explanation, repair=_optimizer_epsilon(computed.output))
    return explanation


def _is_of_optimizer(computed: Computed, divisor: TensorEvent) -> bool:
    """Returns whether a divisor's zeros come from a variable through elementwise ops, as in an optimizer.

    The user's schedules and constraints also run inside the optimizer, but they use other ops. A schedule casts the
    number of the step, and a constraint sums the elements of a kernel.
    """
    to_follow = deque([divisor])
    for _ in range(_MAX_OPS):
        if not to_follow:
            return False
        row = to_follow.popleft()
        made_by = computed.made_by(row)
        if made_by == READER:
            return True
        if made_by in _OF_DIVISORS:
            # TensorFlow may run the reciprocal of a root in place of the root. The reciprocal is infinite where the
            # root is 0.
            to_follow += [source for source in computed.made_from(row).values() if zeros(source) or infs(source)]
    return False
