"""Records eager ops that raise an error, for which TensorFlow calls no op callback.

| hook | purpose |
|---|---|
| `execute.execute_with_callbacks` | notes the failure of an op that Python executes |
| `ops.raise_from_not_ok_status` | notes the failure of an op that TensorFlow's core executes for `gen_*_ops` |
"""

from __future__ import annotations

import re
import sys
from types import FrameType
from typing import Any

from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute
from tensorflow.python.framework import ops as framework_ops

from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.patches import Patches

_OP_TYPE = re.compile(r"\[Op:(\w+)\]")
"""The op in the error messages of TensorFlow's core."""


def hook_failed_ops(observation: Observation, patches: Patches) -> None:
    """Installs the hooks that record eager ops that raise an error."""
    observer = observation.observer

    def is_observed(callbacks: list[Any]) -> bool:
        return observation.is_active and observer.op_callback in callbacks

    def make_execute_with_callbacks(original: Any) -> Any:
        def execute_with_callbacks(
            op_name: Any, num_outputs: int, inputs: Any, attrs: Any, ctx: Any, name: Any = None
        ) -> Any:
            callbacks = ctx.op_callbacks
            if not is_observed(callbacks):
                return original(op_name, num_outputs, inputs, attrs, ctx, name)
            try:
                tensors = execute.quick_execute(op_name, num_outputs, inputs, attrs, ctx, name)
            except BaseException as error:
                observer.note_failed_op(op_name, inputs, type(error).__name__)
                raise
            for each in callbacks:
                each(op_name, tuple(inputs), attrs, tensors, name)
            return tensors

        return execute_with_callbacks

    def make_raise_from_not_ok_status(original: Any) -> Any:
        def raise_from_not_ok_status(status: Any, name: Any) -> None:
            op_type = _OP_TYPE.search(status.message)
            try:
                original(status, name)
            except BaseException as error:
                if op_type is not None and is_observed(eager_context.context().op_callbacks):
                    observer.note_failed_op(op_type[1], _arguments(sys._getframe(1)), type(error).__name__)
                raise

        return raise_from_not_ok_status

    patches.put(execute, "execute_with_callbacks", make_execute_with_callbacks)
    patches.put(framework_ops, "raise_from_not_ok_status", make_raise_from_not_ok_status)


def _arguments(frame: FrameType) -> list[Any]:
    """Returns the eager tensors among the arguments of a running function, in order."""
    found: list[Any] = []
    for name in frame.f_code.co_varnames[: frame.f_code.co_argcount]:
        value = frame.f_locals.get(name)
        values = value if isinstance(value, (list, tuple)) else [value]
        found += [each for each in values if type(each) is framework_ops.EagerTensor]
    return found
