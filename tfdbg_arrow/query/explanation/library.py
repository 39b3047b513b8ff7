"""The fix for an op inside a function of TensorFlow or Keras: the user cannot change the op, only the call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import PurePath

from tfdbg_arrow.query.explanation.kinds import NEGATIVE_VARIANCE
from tfdbg_arrow.query.stacks import Frame


@dataclass(frozen=True)
class _Function:
    """A function of a library.

    Attributes:
        module: The name of the function's file, without the suffix.
        name: The function's name, as in a stack.
        op_type: The type of the op that makes the bad value, directly or through the gradient of the op.
        repair: The fix: usually the code to write in place of the call.
        is_negative: Whether the repair is for a negative argument of the op; None if the repair is for any argument.
    """

    module: str
    name: str
    op_type: str
    repair: str
    is_negative: bool | None = None


_NORMALIZATION_EPSILON = (
    "Give the normalization an epsilon above 0: the epsilon of the Keras layer, or the variance_epsilon of "
    "tf.nn.batch_normalization."
)


_SCHEDULE = (
    "The division is the learning rate schedule's, not yours: give it decay_steps and a decay_rate with which its "
    "divisor is never 0."
)
_SCHEDULES = ("CosineDecay", "CosineDecayRestarts", "ExponentialDecay", "InverseTimeDecay", "PolynomialDecay")
_FUNCTIONS = (
    _Function(
        "math_ops", "reduce_std", "Sqrt",
        "The standard deviation is a root. In place of tf.math.reduce_std(x), use "
        "tf.sqrt(tf.math.reduce_variance(x) + 1e-7), with the same axis.",
    ),
    _Function(
        "linalg_ops", "norm", "Sqrt",
        "The norm is a root. In place of tf.norm(x), use tf.sqrt(tf.reduce_sum(tf.square(x)) + 1e-12), with the same "
        "axis.",
    ),
    _Function(
        "nn_impl", "normalize", "RealDiv",
        "The norm is 0. In place of tf.linalg.normalize(x), use tf.math.l2_normalize(x), or for another ord "
        "tf.math.divide_no_nan(x, tf.norm(x, keepdims=True)), with the same ord and axis. They return 0 there.",
    ),
    _Function(
        "ragged_math_ops", "reduce_mean", "RealDiv",
        "A row of the ragged tensor is empty. In place of its mean, divide its sum by its number of elements with "
        "tf.math.divide_no_nan, or remove empty rows.",
    ),
    _Function(
        "image_ops_impl", "ssim_multiscale", "Pow",
        "The contrast of two images is 0 or negative at a scale, for example if an image is constant, and the power of "
        "0 has an infinite slope. Use tf.image.ssim, or leave out such images.",
    ),
    _Function(
        "image_ops_impl", "psnr", "Log",
        "Two images are equal, so that their mean squared error is 0. In place of tf.image.psnr, compute "
        "10 * log10(max_val ** 2 / (error + 1e-10)) from the mean squared error, with tf.math.log(x) / "
        "tf.math.log(10.0) for log10.",
    ),
    _Function(
        "losses", "poisson", "Log",
        "The Poisson loss takes the logarithm of the predictions. Keep them above 0, for example with the activation "
        "'softplus' in the last layer.",
    ),
    _Function(
        "nn", "categorical_crossentropy", "RealDiv",
        "The loss divides the predictions by their sum, which is 0. End the model with the activation 'softmax', or "
        "remove the last activation and pass from_logits=True to the loss.",
    ),
    *(
        _Function("learning_rate_schedule", f"{schedule}.__call__", "RealDiv", _SCHEDULE)
        for schedule in _SCHEDULES
    ),
    _Function(
        "nn_impl", "l2_normalize", "Rsqrt",
        "Pass an epsilon to tf.math.l2_normalize that is not 0 in the dtype.",
    ),
    _Function("nn_impl", "batch_normalization", "Rsqrt", _NORMALIZATION_EPSILON, is_negative=False),
    _Function("nn_impl", "batch_normalization", "Rsqrt", NEGATIVE_VARIANCE, is_negative=True),
    _Function("nn", "_layer_normalization", "Rsqrt", _NORMALIZATION_EPSILON),
    _Function("nn", "_rms_normalization", "Rsqrt", _NORMALIZATION_EPSILON),
    _Function("group_normalization", "GroupNormalization._apply_normalization", "Rsqrt", _NORMALIZATION_EPSILON),
    _Function(
        "ftrl", "Ftrl.update_step", "RealDiv",
        "The division is the optimizer's, not yours: begin the schedule of the learning rate above 0, and construct "
        "it with an initial_accumulator_value above 0.",
    ),
    _Function(
        "adam", "Adam.update_step", "Sqrt",
        "The root is the optimizer's, not yours: construct it with a beta_2 that is at least 0 and below 1.",
        is_negative=True,
    ),
)  # fmt: skip


def repair_of_call(stack: Iterable[Frame], op_type: str | None, *, is_negative: bool = False) -> str | None:
    """Returns the fix for an op that a library function created; None if the fix for the op itself applies.

    Args:
        stack: The stack that created the op, innermost frame first. For an op of a gradient, this is the stack of the
            forward op.
        op_type: The type of the op of this stack. The gradient of a gradient has the type of a fused gradient, such as
            SqrtGrad.
        is_negative: Whether the op is bad because its argument is negative.
    """
    names = library_functions(stack)
    of_type = (
        function
        for function in _FUNCTIONS
        if op_type in (function.op_type, f"{function.op_type}Grad") and function.is_negative in (None, is_negative)
    )
    return next((function.repair for function in of_type if (function.module, function.name) in names), None)


IN_LOGSUMEXP = ("math_ops", "reduce_logsumexp")
"""The module and the name of tf.reduce_logsumexp."""


def library_functions(stack: Iterable[Frame]) -> frozenset[tuple[str, str]]:
    """Returns (module, name) of the library functions between an op and the user's code."""
    inside = takewhile(lambda frame: not frame.is_user, stack)
    return frozenset((PurePath(frame.file_path).stem, frame.func) for frame in inside)
