"""Functions that make summary rows of tensors, and that XLA compiles into the functions of the program.

A row has the columns of `graphs/summary_columns.py`, followed by the iterations of the loops that the tensor is
computed in, starting with the innermost loop. Unused columns hold -1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.framework import op_def_registry

from tfdbg_arrow.writer.graphs.summary_columns import (
    COUNT_COLUMNS,
    DIM_COLUMNS,
    MAX_LOOPS,
    NOT_RUN,
    NUM_COLUMNS,
    NUM_COMPILED_COLUMNS,
    NUM_DEVICE_COUNTS,
    NUM_FINITE_COLUMN,
    OTHER_COUNTS,
    OTHER_MAGNITUDES,
)
from tfdbg_arrow.writer.hooks.runtime import RuntimeFunctions
from tfdbg_arrow.writer.hooks.unobserved import unobserved
from tfdbg_arrow.writer.settings import TensorDebugMode
from tfdbg_arrow.writer.tensorflow_backend import summary
from tfdbg_arrow.writer.tensorflow_backend.elements import FORMATS, NUM_BAD_KINDS, Format, magnitudes, without_loss

_NO_LOOPS = [-1.0] * MAX_LOOPS
_INT64, _DOUBLE = tf.int64.as_datatype_enum, tf.float64.as_datatype_enum
_ROW = 0
"""Used instead of a dtype number if the operand is a row, not a tensor."""
_FORMATS = FORMATS | {tf.float16: Format(tf.uint16, 10, 16, 2.0**-24)}
_ROWS = tf.TensorSpec([None, NUM_COMPILED_COLUMNS], tf.float64)
_INDEX = tf.TensorSpec([], tf.int64)
_FLAG = tf.TensorSpec([], tf.bool)


class CompiledSummaries(RuntimeFunctions):
    """TensorFlow's runtime functions, and the functions that make rows.

    Args:
        mode: The mode to measure in.
        host_calls: The names of the native core's calls, for functions that are compiled for the CPU: the call that
            summarizes a tensor, and the call that concatenates matrices. None means that XLA's own ops do this work.
            These ops take longer to compile, but run on all devices.
    """

    def __init__(self, mode: TensorDebugMode, *, host_calls: tuple[str, str] | None) -> None:
        self._mode = mode
        self._host_calls = host_calls
        self._functions: dict[object, Any] = {}

    def output_names(self, node_def: Any) -> list[str]:
        """Returns how other nodes of a FunctionDef refer to each output of a node."""
        names = []
        for argument in op_def_registry.get(node_def.op).output_arg:
            count = 1
            if argument.number_attr:
                count = node_def.attr[argument.number_attr].i
            elif argument.type_list_attr:
                count = len(node_def.attr[argument.type_list_attr].list.type)
            names += [f"{node_def.name}:{argument.name}:{index}" for index in range(count)]
        return names

    def is_pure(self, op_type: str) -> bool:
        """Returns True if it makes no difference how often ops of this type run."""
        op_def = op_def_registry.get(op_type)
        return op_type == "ReadVariableOp" or (op_def is not None and not op_def.is_stateful)

    def row_of_constant(self, tensor: Any) -> Sequence[float]:
        """Returns the row of a TensorProto."""
        row = summary.measure_array(tf.make_ndarray(tensor), mode=self._mode)
        return [*row.tolist(), *_NO_LOOPS]

    def row_node(self, dtype_number: int, rank: int | None) -> Any:
        """Returns a node that makes the row of a tensor; None for a dtype without rows.

        The row has the shape [1, NUM_COMPILED_COLUMNS].

        The node is a NodeDef without name and inputs. A PartitionedCall takes the tensor. Any other op takes the tensor
        and its shape as int64. If the first operand of that op has another dtype than the tensor, the shape replaces
        the tensor.
        """
        dtype = tf.as_dtype(dtype_number)
        if not summary.can_measure(dtype):
            return None
        if self._host_calls is not None and rank is not None:
            # If the elements are not needed, the shape replaces the tensor, so that XLA need not compute the tensor.
            operand = dtype_number if self._mode.measures_health else _INT64
            return self._host_call_node(0, f"{dtype_number} {int(self._mode)} {rank}", (operand, _INT64))
        node = tf.compat.v1.NodeDef(op="PartitionedCall")
        make_row = functools.partial(_row, mode=self._mode)
        node.attr["f"].func.name = self._function(dtype_number, make_row, tf.TensorSpec(None, dtype))
        node.attr["Tin"].list.type.append(dtype_number)
        node.attr["Tout"].list.type.append(_DOUBLE)
        return node

    def same_values_node(self, rank: int | None) -> Any:
        """Returns a node that makes the row of a tensor from the row of another tensor with the same elements.

        In the tensor, each element of the other tensor occurs equally often. The node is a NodeDef without name and
        inputs, and its op takes the row and the shape as int64. None means that there is no such op.
        """
        if self._host_calls is None or rank is None:
            return None
        return self._host_call_node(0, f"{_ROW} {int(self._mode)} {rank}", (_DOUBLE, _INT64))

    def join_node(self, nums_rows: Sequence[int]) -> Any:
        """Returns a node that concatenates matrices with these numbers of rows; None means to use ConcatV2.

        The node is a NodeDef without name and inputs.
        """
        if self._host_calls is None:
            return None
        return self._host_call_node(1, " ".join(map(str, nums_rows)), [_DOUBLE] * len(nums_rows), sum(nums_rows))

    def _host_call_node(self, which: int, configuration: str, operand_types: Sequence[int], num_rows: int = 1) -> Any:
        assert self._host_calls is not None
        node = tf.compat.v1.NodeDef(op="XlaCustomCallV2")
        node.attr["call_target_name"].s = self._host_calls[which].encode()
        node.attr["backend_config"].s = configuration.encode()
        node.attr["has_side_effect"].b = False
        node.attr["operand_dtypes"].list.type.extend(operand_types)
        node.attr["result_dtypes"].list.type.append(_DOUBLE)
        shape = node.attr["result_shapes"].list.shape.add()
        for size in (num_rows, NUM_COMPILED_COLUMNS):
            shape.dim.add().size = size
        return node

    def next_iteration_function(self) -> str:
        """Returns the function that ends an iteration of a loop.

        The function returns the state of the loop: the number of iterations, the rows of the last iteration, the rows
        of the first bad iteration, whether there was a bad iteration, and its index. The arguments of the function are
        the index and the rows of the iteration, followed by the rest of the previous state.
        """
        return self._function("next", _next_iteration, _INDEX, _ROWS, _ROWS, _ROWS, _FLAG, _INDEX)

    def last_condition_function(self) -> str:
        """Returns the function that labels the rows of the last check of a loop's condition with the iteration."""
        return self._function("last", _labelled, _ROWS, _INDEX)

    def end_loop_function(self) -> str:
        """Returns the function that makes the rows of a loop (first bad iteration, last iteration) from its state."""
        return self._function("end", _end_loop, _INDEX, _ROWS, _ROWS, _FLAG, _INDEX)

    def _function(self, key: object, python_function: Callable[..., Any], *specs: tf.TensorSpec) -> str:
        if key not in self._functions:
            with tf.init_scope(), tf.device(None), unobserved():
                function = tf.function(python_function, autograph=False).get_concrete_function(*specs)
            # A finalizer may have called this method for the same key meanwhile.
            self._functions.setdefault(key, function)
        return str(self._functions[key].function_def.signature.name)


def _row(tensor: Any, *, mode: TensorDebugMode) -> Any:
    shape = tf.shape(tensor, out_type=tf.int64)
    size = tf.cast(tf.size(tensor, out_type=tf.int64), tf.float64)
    dims = tf.concat([shape[-6:], tf.zeros([6], tf.int64)], axis=0)[:6]
    columns = [tf.cast(tf.size(shape), tf.float64)[None], size[None], tf.cast(dims, tf.float64)]
    width = DIM_COLUMNS.stop
    flat = tf.reshape(tensor, [-1])
    if mode.measures_health:
        counts = _counts(flat, size, mode=mode)
        columns += [counts, tf.constant(OTHER_COUNTS, tf.float64)]
        width = COUNT_COLUMNS.stop
    if mode is TensorDebugMode.FULL_NUMERICS:
        num_finite = tf.reduce_sum(counts[NUM_BAD_KINDS:], keepdims=True)
        columns += [magnitudes(flat, without_loss(flat)), tf.constant(OTHER_MAGNITUDES, tf.float64), num_finite]
        width = NUM_FINITE_COLUMN + 1
    columns.append(tf.constant([0.0] * (NUM_COLUMNS - width) + _NO_LOOPS, tf.float64))
    return tf.concat(columns, axis=0)[None]


class _Kinds:
    """Masks of the kinds of elements, for a flat tensor of real numbers."""

    def __init__(self, flat: Any) -> None:
        if flat.dtype.is_floating:
            self._from_bits(flat)
        else:
            numbers = tf.cast(flat, tf.int32) if flat.dtype == tf.bool else flat
            self.is_zero = tf.equal(numbers, tf.zeros([], numbers.dtype))
            self.is_negative = tf.less(numbers, tf.zeros([], numbers.dtype))
            self.is_nan = self.is_neg_inf = self.is_pos_inf = tf.zeros_like(self.is_zero)

    def _from_bits(self, flat: Any) -> None:
        # A processor may treat subnormal numbers as zeros when it compares or converts them. In float32, no float8
        # value is subnormal.
        values = flat if flat.dtype in _FORMATS else tf.cast(flat, tf.float32)
        form = _FORMATS[values.dtype]
        bits = tf.bitcast(values, form.bits)
        magnitude = tf.bitwise.bitwise_and(bits, form.constant(form.sign - 1))
        self.is_negative = tf.greater_equal(bits, form.constant(form.sign))
        self.is_zero = tf.equal(magnitude, form.constant(0))
        self.is_nan = tf.greater(magnitude, form.constant(form.infinity))
        is_infinite = tf.equal(magnitude, form.constant(form.infinity))
        self.is_neg_inf = is_infinite & self.is_negative
        self.is_pos_inf = is_infinite & ~self.is_negative


def _counts(flat: Any, size: Any, *, mode: TensorDebugMode) -> Any:
    """Returns the number of elements of each kind, in the order of the columns, as float64 of shape [6]."""
    if flat.dtype.is_complex:
        real, imag = _Kinds(tf.math.real(flat)), _Kinds(tf.math.imag(flat))
        is_nan = real.is_nan | imag.is_nan
        is_neg_inf = (real.is_neg_inf | imag.is_neg_inf) & ~is_nan
        is_pos_inf = (real.is_pos_inf | imag.is_pos_inf) & ~is_nan & ~is_neg_inf
        is_zero = real.is_zero & imag.is_zero
        is_negative = (real.is_negative & ~real.is_zero) | (real.is_zero & imag.is_negative)
    else:
        kinds = _Kinds(flat)
        is_nan, is_neg_inf, is_pos_inf = kinds.is_nan, kinds.is_neg_inf, kinds.is_pos_inf
        is_zero, is_negative = kinds.is_zero, kinds.is_negative
    is_finite = ~(is_nan | is_neg_inf | is_pos_inf)
    bad = [is_neg_inf, is_pos_inf, is_nan]
    if mode in (TensorDebugMode.CURT_HEALTH, TensorDebugMode.CONCISE_HEALTH):
        return tf.concat([_count_all(bad), tf.zeros([NUM_DEVICE_COUNTS - NUM_BAD_KINDS], tf.float64)], axis=0)
    counts = _count_all([*bad, is_negative & ~is_zero & is_finite, is_zero & is_finite])
    return tf.concat([counts, (size - tf.reduce_sum(counts))[None]], axis=0)


def _count_all(masks: Sequence[Any]) -> Any:
    """Returns how often each mask is true, as float64, computed in one pass."""
    specs = [tf.TensorSpec([], tf.int32)] * (2 * len(masks))
    number = len(masks)
    add = tf.function(lambda *args: tuple(args[i] + args[number + i] for i in range(number)), autograph=False)
    counts = gen_xla_ops.xla_variadic_reduce_v2(
        [tf.cast(mask, tf.int32) for mask in masks], [tf.constant(0)] * number, [0], add.get_concrete_function(*specs)
    )
    # As unsigned numbers, the counts are correct for fewer than 2**32 elements. 64-bit sums take four times as long.
    return tf.stack([tf.cast(tf.bitcast(count, tf.uint32), tf.float64) for count in counts])


def _labelled(rows: Any, iteration: Any) -> Any:
    """Returns the rows with the iteration of a loop added after the iterations of the loops inside it."""
    inner_labels = rows[:, NUM_COLUMNS:]
    is_next = tf.concat([tf.fill([tf.shape(rows)[0], 1], True), inner_labels[:, :-1] >= 0], axis=1) & (inner_labels < 0)
    labels = tf.where(is_next, tf.cast(iteration, tf.float64), inner_labels)
    return tf.concat([rows[:, :NUM_COLUMNS], labels], axis=1)


def _next_iteration(iteration: Any, rows: Any, last: Any, first_bad: Any, has_bad: Any, bad_iteration: Any) -> Any:
    del last  # a Placeholder gets the argument's name, and TensorFlow warns if that is `_`
    labelled = _labelled(rows, iteration)
    is_bad = tf.reduce_any(rows[:, COUNT_COLUMNS][:, :NUM_BAD_KINDS] > 0)
    return (
        iteration + 1,
        labelled,
        tf.where(has_bad, first_bad, labelled),
        has_bad | is_bad,
        tf.where(has_bad, bad_iteration, iteration),
    )


def _end_loop(num_iterations: Any, last: Any, first_bad: Any, has_bad: Any, bad_iteration: Any) -> Any:
    is_another = has_bad & tf.not_equal(bad_iteration, num_iterations - 1)
    nothing = tf.fill(tf.shape(last), tf.constant(NOT_RUN, tf.float64))
    return tf.concat([tf.where(is_another, first_bad, nothing), last], axis=0)
