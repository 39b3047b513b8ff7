"""The row of the `run` table."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import time

from tfdbg_arrow._version import __version__
from tfdbg_arrow.schema import FORMAT_VERSION
from tfdbg_arrow.writer.rows import Row, to_json
from tfdbg_arrow.writer.settings import Settings


def run_row(
    settings: Settings,
    *,
    run_id: str,
    start_ns: int,
    health_backend: str,
    xla: str,
    local_task: str,
    is_clean_end: bool,
) -> Row:
    """Returns the row of a run.

    Args:
        settings: The settings of the recording.
        run_id: The ID of the run.
        start_ns: The time when the run started, in nanoseconds since the epoch.
        health_backend: The backend that measures health.
        xla: How to treat functions with jit_compile=True: `inside`, `observe` or `keep`.
        local_task: The address of this process in the cluster that it is connected to; empty if there is none.
        is_clean_end: Whether the run ends now and all of it was written.
    """
    import numpy
    import tensorflow as tf

    keras = sys.modules.get("keras")
    return {
        "run_id": run_id,
        "wall_time_ns": start_ns,
        "end_wall_time_ns": time.time_ns() if is_clean_end else None,
        "is_clean_end": is_clean_end,
        "format_version": FORMAT_VERSION,
        "tfdbg_arrow_version": __version__,
        "tensorflow_version": tf.__version__,
        "keras_version": getattr(keras, "__version__", None),
        "python_version": platform.python_version(),
        "platform": platform.platform(),
        "host_name": socket.gethostname(),
        "pid": os.getpid(),
        "worker": _worker_of(os.environ.get("TF_CONFIG")) or _worker_at(local_task),
        "command_line": to_json(sys.orig_argv),
        "working_directory": _working_directory(),
        "tensor_debug_mode": settings.mode.name,
        "circular_buffer_size": settings.circular_buffer_size,
        "op_regex": settings.op_regex.pattern if settings.op_regex is not None else None,
        "tensor_dtypes": settings.tensor_dtypes_text,
        "health_backend": health_backend,
        "settings": to_json(
            {
                **settings.recorded(),
                "xla": xla,
                "numpy_version": numpy.__version__,
                "num_cpus": os.cpu_count(),
            }
        ),
        "run_name": settings.run_name,
        "tags": to_json(settings.tags) if settings.tags else None,
        "notes": settings.notes,
    }


def _worker_of(tf_config: str | None) -> str | None:
    """Returns task type and index from the value of TF_CONFIG; None if the value has no task."""
    try:
        task = json.loads(tf_config or "{}").get("task", {})
        return f"{task['type']}:{task['index']}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _worker_at(task: str) -> str | None:
    """Returns task type and index from an address such as `/job:chief/replica:0/task:0`; None for other addresses."""
    parts = dict(part.split(":", 1) for part in task.split("/") if ":" in part)
    return f"{parts['job']}:{parts['task']}" if "job" in parts and "task" in parts else None


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""
