"""PartStacks: where the program made the parts of Keras and the optimizers of TensorFlow 1.

The stack of the ops of a part often has only one frame of the program, the frame that calls `fit` or `minimize`. So the
line that made the part is noted, too.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from tfdbg_arrow.spool.records import NO_VALUE
from tfdbg_arrow.writer.hooks.autograph import original_location
from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.own_frames import PACKAGE_DIRECTORY, own_frames_left_out
from tfdbg_arrow.writer.scopes import Scope
from tfdbg_arrow.writer.stacks import FrameOwners

_RUNNERS = ("__call__", "fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
"""Functions of Keras that run parts. These functions make some parts late, such as the metric for a name given to
compile."""


class PartStacks:
    """The stacks that made parts.

    Args:
        intern_stack: Returns the ID of the calling thread's Python stack without some of its innermost frames.
    """

    def __init__(self, intern_stack: Callable[[int], int]) -> None:
        self._intern_stack = intern_stack
        self._owner = functools.cache(FrameOwners().owner)
        self._stack_ids: dict[int, tuple[weakref.ref[Any], int | None]] = {}
        """Keyed by the id() of the part, because a part must not be hashed. None means a part that was made late, while
        another part ran."""

    def note(self, part: Any) -> None:
        """Notes where a part is made; call it in a constructor of the part."""
        key = id(part)
        if key in self._stack_ids:
            return
        num_inner, maker = _maker(part)
        stack_id = None if self._is_made_late(maker) else self._intern_stack(num_inner)
        forget = functools.partial(_forget, self._stack_ids, key)
        self._stack_ids[key] = (weakref.ref(part, forget), stack_id)

    def in_part(self, scope: Scope, part: Any) -> Scope:
        """Returns a scope for the ops of a part; a part that was made late keeps the stack of the outer part."""
        _, stack_id = self._stack_ids.get(id(part), (None, NO_VALUE))
        return scope if stack_id is None or stack_id == scope.part_stack else scope._replace(part_stack=stack_id)

    def _is_made_late(self, maker: FrameType | None) -> bool:
        """Returns True if Keras makes a part only at run time; the program's frame then says nothing about the part."""
        while maker is not None:
            code = maker.f_code
            converted = original_location(code.co_filename, maker.f_lineno)
            path = code.co_filename if converted is None else converted[0]
            owner = "library" if path.startswith(PACKAGE_DIRECTORY) else self._owner(path)
            if owner == "user":
                return False
            if owner == "framework" and code.co_name in _RUNNERS:
                return True
            maker = maker.f_back
        return False


def _forget(stack_ids: dict[int, tuple[weakref.ref[Any], int | None]], key: int, reference: object) -> None:
    stack_ids.pop(key, None)


def _maker(part: Any) -> tuple[int, FrameType | None]:
    """Returns the number of frames from our caller to a part's outermost constructor, and the constructor's caller.

    The first of these frames is the caller's own, and the second is that of the hook around the base constructor. The
    call of the outermost constructor makes the part.
    """
    frame = sys._getframe(2).f_back
    depth, outermost = 2, (2, frame)
    while frame is not None:
        depth += 1
        code = frame.f_code
        is_constructor = code.co_name == "__init__" and code.co_argcount > 0
        if is_constructor and frame.f_locals.get(code.co_varnames[0]) is part:
            outermost = (depth, frame.f_back)
        frame = frame.f_back
    return outermost


def noting_constructor(observation: Observation, stacks: PartStacks, original: Any) -> Any:
    """Returns a constructor that notes where a part is made, and calls the original one."""

    @functools.wraps(original)
    def construct(part: Any, /, *args: Any, **kwargs: Any) -> None:
        if observation.is_active:
            try:
                stacks.note(part)
            except Exception as error:
                observation.observer.note_failure("noting where a layer, loss, metric or optimizer was made", error)
        with own_frames_left_out:
            original(part, *args, **kwargs)

    construct.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return construct
