"""Declares which bad values do not stop a program, and why.

With `on_nonfinite`, a bad value (an infinity or a NaN) stops a program at the op that made it, unless the value is
masked. A value is masked if no op has computed with it yet, or if no op ever will. A masked value is recorded like any
other, and reported once in `capture_stat`. These tables decide which values are masked:

* `HARMLESS_OUTPUTS`: outputs of ops that hold bad values in healthy programs.
* `CARRYING_OPS`, `TESTING_OPS` and calls of functions: ops that do not compute with the values that they take. A bad
  value is masked if only such ops use it. The output of a carrying op is judged separately. So a value that `tf.where`
  does not select does not stop the program. A value that goes through a reshape stops the program at the first op that
  computes with it.
"""

from __future__ import annotations

from collections.abc import Collection

from tfdbg_arrow.schema.op_traits import Trait, types_with

_BATCH_NORM = "batch statistics of an empty batch, and what is reserved for the gradient, may be NaN"
_BATCH_NORM_SLOTS = {"FusedBatchNorm": 4, "FusedBatchNormV2": 4, "FusedBatchNormV3": 5}

# Source: IGNORE_OP_OUTPUTS in tensorflow/python/debug/lib/check_numerics_callback.py.
HARMLESS_OUTPUTS = {
    (op_type, slot): _BATCH_NORM for op_type, last in _BATCH_NORM_SLOTS.items() for slot in range(1, last + 1)
}
"""Why an output may be bad without harm, by the type of the op and the slot."""

# These tables contain SAFE_OPS of tensorflow/python/debug/lib/check_numerics_callback.py.
CARRYING_OPS = types_with(Trait.CARRIES)
"""Types of ops that select some of the values they take, or pass them on. Their outputs are judged separately."""
TESTING_OPS = types_with(Trait.TESTS)
"""Types of ops that test values, or read only their shape. The outputs of these ops hold none of the values.
CheckNumerics is one of these ops, because it is TensorFlow's own way to stop."""
_CALLS = types_with(Trait.CALLS | Trait.BRANCHES | Trait.LOOPS | Trait.RESULT)
"""Types of ops that pass values to another graph, which decides about these values."""


def harmless_reason(op_type: str, slot: int) -> str | None:
    """Returns why an output of an op may be bad without harm; None if a bad output is not harmless."""
    return HARMLESS_OUTPUTS.get((op_type, slot))


def stop_rules() -> tuple[list[str], list[tuple[str, int]]]:
    """Returns the rules for the native core, which decides for the nodes that TensorFlow runs.

    Returns:
        The types of ops that do not compute with their inputs, and the outputs that may be bad without harm, as
        (type of the op, slot). The native core itself adds the types with `Dataset` in their name, which do not compute
        with their inputs either.
    """
    return sorted(CARRYING_OPS | TESTING_OPS | _CALLS), sorted(HARMLESS_OUTPUTS)


def computes(op_type: str) -> bool:
    """Returns True if an op computes with the values that it takes, and False if it only carries or tests them.

    For a function that is called, or that a dataset keeps, the function's own graph decides.
    """
    return not (op_type in CARRYING_OPS or op_type in TESTING_OPS or op_type in _CALLS or "Dataset" in op_type)


def mask_reason(op_type: str, slot: int, *, users: Collection[str], is_returned: bool) -> str | None:
    """Returns why a bad output of an op in a graph does not stop the program; None if it does.

    Args:
        op_type: The type of the op.
        slot: The index of the output, from 0.
        users: Types of the ops that take the output.
        is_returned: Whether the graph returns the output to an unknown user: eager code, or a loop's next iteration.
    """
    harmless = harmless_reason(op_type, slot)
    if harmless is not None:
        return harmless
    if is_returned or any(computes(user) for user in users):
        return None
    if not users:
        return "nothing in its graph computes with it"
    return f"nothing computes with it: {', '.join(sorted(set(users)))} only select, pass on or test values"
