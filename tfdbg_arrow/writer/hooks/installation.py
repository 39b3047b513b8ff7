"""Installs and removes the hooks of one recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfdbg_arrow.writer.hooks.autograph import hook_autograph
from tfdbg_arrow.writer.hooks.calls import hook_calls, hook_errors, hook_failed_ops
from tfdbg_arrow.writer.hooks.data_sets import hook_data_sets
from tfdbg_arrow.writer.hooks.exports import hook_work_for_others, keep_exports_clean, keep_remote_calls_clean
from tfdbg_arrow.writer.hooks.keras_parts import hook_keras
from tfdbg_arrow.writer.hooks.observation import Observation, hook_graph_ops, hook_op_callbacks, hook_threads
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.hooks.scoping import hook_gradients, hook_layers
from tfdbg_arrow.writer.hooks.tracing import hook_compiled_calls, hook_tracing
from tfdbg_arrow.writer.hooks.unobserved import tell_no_more, tell_when_connected
from tfdbg_arrow.writer.hooks.variable_reads import hook_variable_reads
from tfdbg_arrow.writer.own_frames import RecursionRoom

if TYPE_CHECKING:
    from tfdbg_arrow.writer.recording.function_observer import FunctionObserver


class Hooks:
    """The hooks of one recording, except the hooks into sessions.

    Args:
        observer: Takes the reports of the hooks.
    """

    def __init__(self, observer: FunctionObserver) -> None:
        self._observer = observer
        self._observation = Observation(observer)
        self._patches = Patches()

    def install(self) -> None:
        """Installs all hooks; observes the calling thread and every thread that starts later."""
        keep_exports_clean()
        keep_remote_calls_clean()
        observation, patches = self._observation, self._patches
        observation.is_active = True
        room = RecursionRoom()
        patches.when_removed(room.give_back)
        room.take()
        tell_when_connected(self._observer.note_connected)
        hook_calls(observation, patches)
        hook_autograph(observation, patches)
        hook_tracing(observation, patches)
        hook_work_for_others(observation, patches)
        hook_gradients(observation, patches)
        hook_layers(observation, patches)
        hook_keras(observation, patches)
        hook_data_sets(observation, patches)
        hook_variable_reads(observation, patches)
        hook_compiled_calls(observation, patches)
        hook_threads(observation, patches)
        hook_op_callbacks(observation, patches)
        hook_graph_ops(observation, patches)
        hook_failed_ops(observation, patches)
        if self._observer.stop is not None:
            hook_errors(observation, patches)
        observation.begin()

    def observe_thread(self) -> None:
        """Observes the calling thread."""
        self._observation.observe_thread()

    def remove(self) -> None:
        """Removes the hooks; functions that were created meanwhile keep working."""
        self._observation.is_active = False
        tell_no_more(self._observer.note_connected)
        self._patches.remove()
        self._observation.end()
