"""explain: explains in one sentence why an op made a bad value, if the counts prove it, and how to fix it."""

from __future__ import annotations

from tfdbg_arrow.query.explanation.explanation import Computed, Explanation, bad_text, is_counted
from tfdbg_arrow.query.explanation.rules import GRADIENTS, RULES


def explain(computed: Computed) -> Explanation | None:
    """Returns why an op made an infinity or a NaN, or None if the counts prove nothing.

    A rule only answers if there is no other possible cause. For example, if an overflow and a division by zero would
    give the same counts, the answer is None.

    Args:
        computed: The op's output and inputs.
    """
    output = computed.output
    if not output.has_inf_or_nan:
        return None
    if output.op_type is None:
        where = f"no recorded op made it, and it holds {bad_text(output)}"
        return Explanation(
            f"The tensor was bad before the recorded program used it: {where}.",
            "Check the data for NaN and infinities before training.",
        )
    if output.op_type == "Const" and computed.program_ops:
        return _of_constants(bad_text(output), computed.program_ops)
    rule = RULES.get(output.op_type)
    found = None if rule is None or not is_counted(output) else rule(computed)
    if found is None and len(computed.program_ops) > 1 and computed.has_finite_inputs:
        found = _of_fused_op(output.op_type, computed.program_ops)
    return found if found is None or computed.forward_type is None else _of_gradient(computed.forward_type, found)


def _of_constants(bad: str, program_ops: tuple[str, ...]) -> Explanation:
    names = ", ".join(dict.fromkeys(program_ops))
    return Explanation(
        f"TensorFlow computed {names} on constants in advance, and the result holds {bad}.",
        "Check the constants. A recording with graphs='traced' shows each of these ops.",
    )


def _of_fused_op(op_type: str, program_ops: tuple[str, ...]) -> Explanation:
    names = ", ".join(dict.fromkeys(program_ops))
    return Explanation(
        f"All inputs are finite: {op_type}, which TensorFlow ran for {names}, created the bad value. A recording "
        "with graphs='traced' shows each of these ops."
    )


def _of_gradient(forward_type: str, found: Explanation) -> Explanation:
    """Returns the explanation of an op in a gradient, extended with the op whose gradient it computes."""
    if found.sentence.startswith("The gradient of"):
        return found
    sentence = found.sentence.removeprefix("In a gradient, ")
    return Explanation(f"The gradient of {forward_type}: {sentence}", GRADIENTS.get(forward_type, found.repair))
