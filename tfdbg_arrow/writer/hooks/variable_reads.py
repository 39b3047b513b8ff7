"""Makes a separate eager op read each variable that an eager op takes.

TensorFlow's core reads the variables that a program gives to an eager op, and calls no op callback for these reads. The
recorded input of the op would then look like a tensor from outside.

| hook | purpose |
|---|---|
| `pywrap_tfe.TFE_Py_FastPathExecute` | reads the variables that an op takes before the op is executed |
"""

from __future__ import annotations

import functools
from typing import Any

from tensorflow.python import pywrap_tfe
from tensorflow.python.framework import dtypes, op_def_registry
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.hooks.unobserved import this_thread
from tfdbg_arrow.writer.own_frames import own_frames_left_out


def hook_variable_reads(observation: Observation, patches: Patches) -> None:
    """Installs the hook."""

    def make(original: Any) -> Any:
        def execute_with_variables(context: Any, op_type: str, name: str | None, *arguments: Any) -> Any:
            with own_frames_left_out:
                if observation.is_active and not this_thread.is_unobserved and not _takes_resource(op_type):
                    arguments = tuple(map(_read, arguments))
                return original(context, op_type, name, *arguments)

        return observation.observer.op_executor(original, BaseResourceVariable, execute_with_variables)

    patches.put(pywrap_tfe, "TFE_Py_FastPathExecute", make)


@functools.cache
def _takes_resource(op_type: str) -> bool:
    """Returns True if an op takes a resource. Such an op may take a variable itself, and not the variable's value."""
    definition = op_def_registry.get(op_type)
    resource = dtypes.resource.as_datatype_enum
    return definition is None or any(argument.type == resource for argument in definition.input_arg)


def _read(argument: Any) -> Any:
    """Returns an argument of an op, with variables replaced by their values; an argument may be a list of tensors."""
    if isinstance(argument, (list, tuple)):
        return [_value(item) for item in argument]
    return _value(argument)


def _value(tensor: Any) -> Any:
    return tensor.value() if isinstance(tensor, BaseResourceVariable) else tensor
