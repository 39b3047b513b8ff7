"""What the hooks tell a recording, and which threads it observes.

| hook | why |
|---|---|
| op callback of each thread | every eager op, and the Python stack of every op created in a graph |
| `threading.Thread._bootstrap_inner`, `FuncRegistry.__call__` | threads that start, and TensorFlow's that run Python |
| `op_callbacks.invoke_op_callbacks` | our callback alone changes nothing of what TensorFlow does with an op's outputs |
| `op_callbacks.remove_op_callback` | the removal of another callback does not end ours |
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute
from tensorflow.python.framework import op_callbacks
from tensorflow.python.ops import script_ops
from tensorflow.python.util import tf_stack

from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.recording.fit_marks import FitMarks
from tfdbg_arrow.writer.scopes import Scopes


class Stop(Protocol):
    """What turns TensorFlow's error of a step that we failed into ours."""

    def error_in(self, text: str) -> Exception | None:
        """Returns our error for the text of one of TensorFlow's; None for an error that is not about us."""


class Observer(Protocol):
    """What the hooks tell a recording. Nothing of it may raise."""

    op_callback: Callable[..., Any]
    generation: int
    inlines_all: bool
    scopes: Scopes
    fit_marks: FitMarks

    @property
    def stop(self) -> Stop | None:
        """Set where the recording may stop the program."""

    def begin_call(self, function_name: bytes, runs_as: bytes, inputs: Sequence[Any], num_outputs: int, /) -> int:
        """A call of a function from eager code begins; returns its execution index, -1 for none.

        `runs_as` is the function that TensorFlow runs for it: this one or a copy.
        """

    def end_call(self, execution_index: int, outputs: Sequence[Any] | None, error_type: str | None, /) -> None:
        """The call has returned its outputs, or raised an error of a class, by name."""

    def note_failed_op(self, op_type: str | bytes, inputs: Sequence[Any], error_type: str, /) -> None:
        """An eager op raised an error of a class, by name; no op callback hears of it."""

    def xla_choice(self) -> str:
        """Returns what becomes of a function that asks for XLA: `inside`, `observe` or `keep`."""

    def copy_to_record(self, function_name: bytes, /) -> bytes:
        """Returns which function is to run where a function is called, so that what XLA compiles in it is recorded."""

    def note_refused(self, function_name: bytes, error: Exception) -> None:
        """XLA has not compiled our copy of a function, but the function itself."""

    def note_compiled(self, function_name: str) -> None:
        """A function that asked for XLA is compiled with it, and recorded."""

    def before_function(
        self, function_name: str, graph: Any, unobserved_for: str | None, /, *, is_compiled: bool = False
    ) -> None:
        """A runtime function is about to be made of a graph, of which nothing may be recorded for a reason, if any."""

    def after_function(self, function_name: str, graph: Any, function_def: Callable[[], Any]) -> None:
        """A runtime function was made of a graph; `function_def` gives its FunctionDef."""

    def note_without_xla(self, function_name: str) -> None:
        """A function that asked for XLA is compiled without it."""

    def note_kept_xla(self, function_name: str) -> None:
        """A function that asked for XLA is compiled with it, and not recorded."""

    def note_connected(self) -> None:
        """The process is connected to others, whose devices it can use."""

    def note_remote(self, function_name: str, device_name: str | None) -> None:
        """A function is made for, or called on, a device of another process."""

    def note_not_inlined(self, function_name: str) -> None:
        """A function with loops or branches of graph mode is kept as a call."""

    def note_failure(self, what: str, error: object) -> None:
        """Something of ours failed, or is not there in this version of TensorFlow."""

    def note_call_op(self, op: Any) -> None:
        """An op of a graph that calls a function was created."""

    def note_taped(self, attrs: object, outputs: Sequence[Any]) -> None:
        """A gradient tape keeps an op of a graph, with these attributes and outputs."""

    def function_to_run(self, function_name: bytes, /) -> bytes:
        """Returns which function is to run where a function is called."""


class Observation:
    """One recording, as its hooks know it.

    Args:
        observer: Is told of calls and functions.

    Attributes:
        observer: The same.
        is_active: Whether the recording lasts.
    """

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.is_active = False
        self._callback_lists: list[list[Any]] = []
        self._lock = threading.Lock()
        self._are_others_elsewhere = False

    def begin(self) -> None:
        """Observes the calling thread, and lets TensorFlow ask its callbacks."""
        is_on = execute.execute is not execute.quick_execute
        self._are_others_elsewhere = is_on and not eager_context.context().op_callbacks
        self.observe_thread()
        execute.execute = execute.execute_with_callbacks

    def observe_thread(self) -> None:
        """Gives the calling thread our op callback: TensorFlow keeps a list of them for each thread.

        Ours is the first of the list: it sees the op's own outputs, and is told even where another callback raises.
        """
        callbacks = eager_context.context().op_callbacks
        callback = self.observer.op_callback
        if callback not in callbacks:
            with self._lock:
                if self.is_active:
                    callbacks.insert(0, callback)
                    self._callback_lists.append(callbacks)

    def end(self) -> None:
        """Takes our op callback from all threads."""
        callback = self.observer.op_callback
        with self._lock:
            for callbacks in self._callback_lists:
                if callback in callbacks:
                    callbacks.remove(callback)
            has_others = any(self._callback_lists) or bool(eager_context.context().op_callbacks)
            self._callback_lists.clear()
        keeps_callbacks = has_others or self._are_others_elsewhere
        execute.execute = execute.execute_with_callbacks if keeps_callbacks else execute.quick_execute


def hook_op_callbacks(observation: Observation, patches: Patches) -> None:
    """From here on our op callback and others do not disturb each other."""
    callback = observation.observer.op_callback

    def make_invoke_op_callbacks(original: Any) -> Any:
        def invoke_op_callbacks(
            op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
        ) -> Any:
            if any(each is not callback for each in eager_context.context().op_callbacks):
                # The ops that others add have the stack of the program alone.
                with tf_stack.CurrentModuleFilter():
                    return original(op_type, inputs, attrs, outputs, op_name=op_name, graph=graph)
            original(op_type, inputs, attrs, outputs, op_name=op_name, graph=graph)
            return None  # the outputs stay as they are

        return invoke_op_callbacks

    def make_remove_op_callback(original: Any) -> Any:
        def remove_op_callback(op_callback: Any) -> None:
            if op_callback is callback and observation.is_active:
                return  # clear_op_callbacks() removes all that it finds
            original(op_callback)
            if observation.is_active:
                # In a thread without ours TensorFlow switches the callbacks of all threads off.
                execute.execute = execute.execute_with_callbacks

        return remove_op_callback

    patches.put(op_callbacks, "invoke_op_callbacks", make_invoke_op_callbacks)
    patches.put(op_callbacks, "remove_op_callback", make_remove_op_callback)


def hook_threads(observation: Observation, patches: Patches) -> None:
    """From here on every thread is observed that starts, or that TensorFlow runs Python in."""

    def make_observed_entry(original: Any) -> Any:
        def run_observed(*args: Any, **kwargs: Any) -> Any:
            if observation.is_active:
                observation.observe_thread()
            return original(*args, **kwargs)

        return run_observed

    patches.put(threading.Thread, "_bootstrap_inner", make_observed_entry)
    patches.put(script_ops.FuncRegistry, "__call__", make_observed_entry)
