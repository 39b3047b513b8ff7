"""Access to TensorFlow's runtime: devices, libraries, functions, graphs and the IDs of tensors."""

from __future__ import annotations

import glob
import os
from typing import Any

import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import c_api_util, op_def_registry
from tensorflow.python.framework import config as framework_config
from tensorflow.python.framework import ops as framework_ops

from tfdbg_arrow._version import SUPPORTED_TENSORFLOW
from tfdbg_arrow.errors import RecordingError


def eager_tensor_id(tensor: Any) -> int:
    """Returns the ID of an eager tensor; -1 for anything else."""
    return tensor._id if type(tensor) is framework_ops.EagerTensor else -1


def is_graph_mode() -> bool:
    """Returns True if the program builds graphs for sessions outside of functions."""
    return not tf.compat.v1.executing_eagerly_outside_functions()


def is_op_determinism_enabled() -> bool:
    """Returns True if the program asked for deterministic ops."""
    return bool(framework_config.is_op_determinism_enabled())


def has_accelerator() -> bool:
    """Returns True if TensorFlow sees a device other than the CPU."""
    return bool(accelerator_types())


def accelerator_types() -> set[str]:
    """Returns the types of the devices that TensorFlow sees besides the CPU, such as `GPU`."""
    return {device.device_type for device in tf.config.list_physical_devices()} - {"CPU"}


def refuses_counting_on_accelerators() -> bool:
    """Returns True if there is an accelerator, and TensorFlow's counting op (DenseBincount) fails there."""
    return is_op_determinism_enabled() and has_accelerator()


def library_paths() -> tuple[str, str, str]:
    """Returns the paths of TensorFlow's framework, runtime and Python binding libraries.

    Raises:
        RecordingError: The libraries are not where the supported versions of TensorFlow have them.
    """
    root = os.path.dirname(tf.__file__)
    libraries: list[str] = []
    for patterns in (
        ("libtensorflow_framework.so.2", "libtensorflow_framework*.dylib"),
        ("libtensorflow_cc.so.2", "libtensorflow_cc*.dylib"),
        ("python/lib_pywrap_tensorflow_common.*", "python/_pywrap_tensorflow_internal.so"),
    ):
        paths = [path for pattern in patterns for path in sorted(glob.glob(os.path.join(root, pattern)))]
        if not paths:
            raise RecordingError(
                f"TensorFlow {tf.__version__} in {root} has no library {patterns[0]}; recording supports "
                f"TensorFlow {SUPPORTED_TENSORFLOW}"
            )
        libraries.append(paths[0])
    return libraries[0], libraries[1], libraries[2]


def serialized_graph(graph: Any) -> bytes:
    """Returns the serialized GraphDef of a graph, with the ops in order of creation."""
    with c_api_util.tf_buffer() as buffer, graph._c_graph.get() as c_graph:
        pywrap_tf_session.TF_GraphToGraphDef(c_graph, buffer)
        serialized: bytes = pywrap_tf_session.TF_GetBuffer(buffer)
    return serialized


def parse_attribute(serialized: bytes) -> Any:
    """Parses a serialized AttrValue."""
    return tf.compat.v1.AttrValue.FromString(serialized)


class RuntimeFunctions:
    """TensorFlow's runtime functions in the eager context."""

    def function_def(self, name: str) -> Any:
        """Returns a copy of a function's FunctionDef."""
        return eager_context.context().get_function_def(name)

    def add_function_def(self, function_def: Any) -> None:
        """Adds a function."""
        eager_context.context().add_function_def(function_def)

    def keeps_state(self, op_type: str) -> bool:
        """Returns True if ops of this type are stateful and do not take a resource that holds the state."""
        op_def = op_def_registry.get(op_type)
        if op_def is None:
            return True
        return bool(op_def.is_stateful) and not any(
            arg.type == tf.resource.as_datatype_enum for arg in op_def.input_arg
        )
