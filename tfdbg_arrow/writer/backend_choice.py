"""Chooses the backend of a recording."""

from __future__ import annotations

from tfdbg_arrow.errors import RecordingError
from tfdbg_arrow.spool.journal import Journal
from tfdbg_arrow.storage.layout import SpoolPaths
from tfdbg_arrow.writer.backend import Backend, native_core, require_native_core
from tfdbg_arrow.writer.settings import Settings


def choose_backend(settings: Settings, *, paths: SpoolPaths, journal: Journal, generation: int) -> Backend:
    """Returns the backend that the settings ask for; `auto` is `tensorflow` if there is a GPU, otherwise `native`.

    Args:
        settings: The settings of the recording.
        paths: The files for events and kept tensor values.
        journal: Takes the strings that records refer to.
        generation: The number of the recording in this process.

    Raises:
        RecordingError: There is no native core, or it does not support this TensorFlow or its devices.
        OSError: The spool cannot be created.
    """
    from tfdbg_arrow.writer.hooks import runtime
    from tfdbg_arrow.writer.tensorflow_backend.backend import TensorFlowBackend

    core = require_native_core()
    accelerators = runtime.accelerator_types()
    if accelerators - {"GPU"}:
        raise RecordingError(
            f"TensorFlow has devices of the types {sorted(accelerators)}; recording supports only CPUs and GPUs"
        )
    counts_on_device = settings.health_backend == "tensorflow" or (settings.health_backend == "auto" and accelerators)
    backend = TensorFlowBackend if counts_on_device else Backend
    return backend(settings, core=core, paths=paths, journal=journal, generation=generation)


def compiled_calls() -> tuple[str, str] | None:
    """Returns the names of the native core's custom calls for functions that XLA compiles; None if there are none.

    The first call summarizes a tensor, the second concatenates matrices.
    """
    from tfdbg_arrow.writer.hooks import runtime

    core = native_core()
    if runtime.has_accelerator():
        return None
    cc_path = runtime.library_paths()[1]
    return (core.SUMMARIZE_CALL, core.JOIN_CALL) if core.register_compiled_calls(cc_path) else None
