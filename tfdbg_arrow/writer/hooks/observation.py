"""The state that the hooks of a recording share, and the threads that the recording observes.

| hook | purpose |
|---|---|
| op callback of each thread | every eager op |
| `ops.Graph._create_op_helper` | every op that is created in a graph |
| `threading.Thread._bootstrap_inner`, `FuncRegistry.__call__` | new threads, and TensorFlow's threads that run Python |
| `op_callbacks.should_invoke_op_callbacks` | avoids calls of our callback for ops of graphs, because it ignores them |
| `op_callbacks.remove_op_callback` | keeps our callback when another one is removed |
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any

from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute
from tensorflow.python.framework import op_callbacks
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import script_ops

from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.own_frames import own_frames_left_out

if TYPE_CHECKING:
    from tfdbg_arrow.writer.recording.function_observer import FunctionObserver


class Observation:
    """The state of one recording that its hooks share.

    Args:
        observer: Takes the reports of the hooks.

    Attributes:
        observer: As given.
        is_active: Whether the recording is active.
    """

    def __init__(self, observer: FunctionObserver) -> None:
        self.observer = observer
        self.is_active = False
        self._callback_lists: list[list[Any]] = []
        self._has_begun = self._are_others_elsewhere = False

    def begin(self) -> None:
        """Observes the calling thread, and makes TensorFlow call its op callbacks."""
        is_on = execute.execute is not execute.quick_execute
        self._are_others_elsewhere = is_on and not eager_context.context().op_callbacks
        self._has_begun = True
        self.observe_thread()
        execute.execute = execute.execute_with_callbacks

    def observe_thread(self) -> None:
        """Adds our op callback to the calling thread's list; TensorFlow keeps one list for each thread.

        Our callback is the first in the list, so that it gets the op's own outputs, even if another callback raises an
        error.
        """
        callbacks = eager_context.context().op_callbacks
        if self.is_active and self.observer.op_callback not in callbacks:
            # There is no lock, because the thread that calls end() must not wait for one. Either that thread sees this
            # list, or this thread sees that the recording has ended.
            self._callback_lists.append(callbacks)
            callbacks.insert(0, self.observer.op_callback)
            self._remove_if_ended(callbacks)

    def end(self) -> None:
        """Removes our op callback from all threads; call it when `is_active` is False, from any thread."""
        for callbacks in self._callback_lists:
            self._remove_if_ended(callbacks)
        if self._has_begun:
            keeps_callbacks = any(self._callback_lists) or self._are_others_elsewhere
            execute.execute = execute.execute_with_callbacks if keeps_callbacks else execute.quick_execute

    def _remove_if_ended(self, callbacks: list[Any]) -> None:
        if not self.is_active:
            with contextlib.suppress(ValueError):  # the callback is not there, or another thread removes it
                callbacks.remove(self.observer.op_callback)


def hook_op_callbacks(observation: Observation, patches: Patches) -> None:
    """Installs the hooks that keep our op callback and other callbacks from affecting each other."""
    callback = observation.observer.op_callback

    def make_should_invoke(original: Any) -> Any:
        def should_invoke_op_callbacks() -> bool:
            # TensorFlow calls this only for ops of graphs, and prepares costly arguments if the result is True.
            # The function runs for every such op, so it uses a loop, which is faster than any().
            for other in eager_context.context().op_callbacks:
                if other is not callback:
                    return bool(original())
            return False

        return should_invoke_op_callbacks

    def make_remove_op_callback(original: Any) -> Any:
        def remove_op_callback(op_callback: Any) -> None:
            if op_callback is callback and observation.is_active:
                return  # clear_op_callbacks() removes all callbacks
            original(op_callback)
            if observation.is_active:
                # If the thread has no other callback, TensorFlow switches off the callbacks of all threads.
                execute.execute = execute.execute_with_callbacks

        return remove_op_callback

    patches.put(op_callbacks, "should_invoke_op_callbacks", make_should_invoke)
    patches.put(op_callbacks, "remove_op_callback", make_remove_op_callback)


def hook_graph_ops(observation: Observation, patches: Patches) -> None:
    """Installs the hook that notes the ops of graphs. Op callbacks would report the same at several times the cost."""

    def make_create_op_helper(original: Any) -> Any:
        @functools.wraps(original)
        def create_op_helper(graph: Any, op: Any, *args: Any, **kwargs: Any) -> None:
            with own_frames_left_out:
                original(graph, op, *args, **kwargs)
            if observation.is_active:
                observation.observer.note_created(op)

        return create_op_helper

    # TensorFlow has stored the op's stack by then, so that this function is not in the stack.
    patches.put(framework_ops.Graph, "_create_op_helper", make_create_op_helper)


def hook_threads(observation: Observation, patches: Patches) -> None:
    """Installs the hooks that observe every new thread, and every thread in which TensorFlow runs Python."""

    def make_observed_entry(original: Any) -> Any:
        def run_observed(*args: Any, **kwargs: Any) -> Any:
            if observation.is_active:
                observation.observe_thread()
            with own_frames_left_out:
                return original(*args, **kwargs)

        return run_observed

    patches.put(threading.Thread, "_bootstrap_inner", make_observed_entry)
    patches.put(script_ops.FuncRegistry, "__call__", make_observed_entry)
