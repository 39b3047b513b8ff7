"""Checks that a recording changes no bit of three trainings with deterministic ops."""

from __future__ import annotations

import importlib
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

import tfdbg_arrow
from tools.gpu.machine import REPOSITORY
from tools.gpu.record import backend, pretended_accelerator
from tools.gpu.results import Result

PROGRAMS = ("mlp", "cnn", "transformer")
NUM_STEPS, NUM_STEPS_ON_CPU = 20, 4


def identical(*, is_cpu: bool) -> Iterator[Result]:
    """Runs each program three times: without a recording, with a recording, and without a recording again."""
    # The benchmarks are scripts, which import each other from their own directory.
    sys.path.append(str(REPOSITORY / "benchmarks"))
    benchmarks = importlib.import_module("programs")
    tf.config.experimental.enable_op_determinism()
    num_steps = NUM_STEPS_ON_CPU if is_cpu else NUM_STEPS
    with pretended_accelerator(is_cpu=is_cpu):
        for name in PROGRAMS:
            run = benchmarks.PROGRAMS[name]
            plain = _numbers(run, num_steps)
            with tempfile.TemporaryDirectory() as logdir:
                with tfdbg_arrow.capture(logdir, **backend(is_cpu=is_cpu)):
                    recorded = _numbers(run, num_steps)
                ((num_tensors,),) = tfdbg_arrow.open_logdir(logdir).rows("SELECT count(*) FROM tensor_health")
            is_deterministic = _numbers(run, num_steps) == plain
            num_different = sum(one != other for one, other in itertools.zip_longest(plain, recorded))
            told = f"{num_different} of {len(plain)} variables differ after {num_steps} steps; {num_tensors} tensors"
            yield Result(
                item=name,
                is_right=num_different == 0 and is_deterministic and bool(plain) and num_tensors > 0,
                told=told if is_deterministic else "two trainings without a recording differ from each other",
                facts={"num_variables": len(plain), "num_tensors": num_tensors, "num_different": num_different},
            )


def _numbers(run: Callable[[int], object], num_steps: int) -> list[bytes]:
    """Runs a training, and returns the bytes of each variable that it creates, in the order of their creation.

    The variables are the weights, the moments of the optimizer, and the sums of losses and metrics.
    """
    variables: list[tf.Variable] = []

    def create(next_creator: Callable[..., Any], **arguments: Any) -> Any:
        variables.append(next_creator(**arguments))
        return variables[-1]

    with tf.variable_creator_scope(create):
        run(num_steps)
    return [variable.numpy().tobytes() for variable in variables]
