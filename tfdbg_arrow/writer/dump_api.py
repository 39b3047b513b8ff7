"""TensorFlow's entry points enable_dump_debug_info() and disable_dump_debug_info(), which make a tfdbg_arrow recording.

`tfdbg-arrow run` replaces TensorFlow's functions with these in the program that it runs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from tfdbg_arrow.errors import SettingError
from tfdbg_arrow.writer import session
from tfdbg_arrow.writer.settings import Request, Settings


class DumpWriter:
    """The result of enable_dump_debug_info, with the methods that TensorFlow documents for it.

    Attributes:
        dump_root: The dump_root that the program requested.
    """

    def __init__(self, dump_root: str) -> None:
        self.dump_root = dump_root

    def FlushNonExecutionFiles(self) -> None:  # noqa: N802
        """Writes everything recorded so far."""
        session.flush()

    def FlushExecutionFiles(self) -> None:  # noqa: N802
        """Writes everything recorded so far, including the content of the circular buffers."""
        session.flush()


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Describes how `tfdbg-arrow run` records a program that calls enable_dump_debug_info.

    Attributes:
        request: The logdir, and the settings that the program cannot choose.
        begin: Replaces the active recording with a new one; returns the id of its run, or None if recording is off.
        end: Ends the active recording.
    """

    request: Request
    begin: Callable[[Request], str | None]
    end: Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class _InForce:
    request: Request
    settings: Settings
    run_id: str | None


class _State:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.launch: Launch | None = None
        self.in_force: _InForce | None = None


_state = _State()


def follow(launch: Launch | None) -> None:
    """Directs later recordings to the logdir of a launch; None directs them to their dump_root."""
    with _state.lock:
        _state.launch, _state.in_force = launch, None


def enable_dump_debug_info(
    dump_root: str | os.PathLike[str],
    tensor_debug_mode: str = "NO_TENSOR",
    circular_buffer_size: int = 1000,
    op_regex: str | None = None,
    tensor_dtypes: Collection[Any] | Callable[[Any], bool] | None = None,
) -> DumpWriter:
    """Records this process, with the arguments and defaults of tf.debugging.experimental.enable_dump_debug_info.

    A second call with the same settings does nothing, except that another `dump_root` ends the recording and begins a
    new one there. The content of the circular buffers is written when the writer is flushed, when a bad value occurs,
    and when the recording ends.

    Args:
        dump_root: The logdir. Under `tfdbg-arrow run` it is ignored, because that command chooses the logdir.
        tensor_debug_mode: How much of each tensor to record. FULL_NUMERICS, which TensorFlow only declares, is also
            supported.
        circular_buffer_size: Keep only this many of the last executions and of the last graph tensors; 0 or less means
            all.
        op_regex: Record tensors only of ops whose type matches (`re.match`).
        tensor_dtypes: Record tensors only of these dtypes (a list of dtypes or their names), or of dtypes for which the
            callable returns True; None or an empty list means the dtypes of the mode.

    Returns:
        A writer with `FlushNonExecutionFiles()`, `FlushExecutionFiles()` and `dump_root`.

    Raises:
        SettingError: A setting is not valid, or differs from the earlier call. It is a ValueError.
        LogdirError: The dump_root cannot be written.
        RecordingError: A recording that enable() began is active, or recording cannot start.
        MissingDependencyError: TensorFlow is not installed.
    """
    writer = DumpWriter(os.fspath(dump_root))
    if session.is_turned_off():
        return writer
    with _state.lock:
        launch = _state.launch
        request = replace(
            Request(logdir=dump_root) if launch is None else launch.request,
            tensor_debug_mode=tensor_debug_mode,
            circular_buffer_size=circular_buffer_size,
            op_regex=op_regex,
            tensor_dtypes=tensor_dtypes or None,  # in TensorFlow, an empty list means no filter
        )
        before = _in_force()
        if before is None:
            _begin(request, launch)
        else:
            settings = session.check(request)
            _check_same(before, _InForce(request=request, settings=settings, run_id=before.run_id))
            if settings.logdir != before.settings.logdir:
                session.disable()
                _begin(request, launch)
    return writer


def disable_dump_debug_info() -> None:
    """Ends the recording that enable_dump_debug_info() began; does nothing if there is none."""
    with _state.lock:
        before, _state.in_force = _in_force(), None
        if before is not None:
            end = session.disable if _state.launch is None else _state.launch.end
            end()


def _begin(request: Request, launch: Launch | None) -> None:
    settings = session.check(request)
    run_id = session.start(request) if launch is None else launch.begin(request)
    _state.in_force = None
    if run_id is not None:
        _state.in_force = _InForce(request=request, settings=settings, run_id=run_id)


def _in_force() -> _InForce | None:
    """Returns the recording that this module began, unless it has ended in the meantime."""
    found = _state.in_force
    return found if found is not None and found.run_id == session.run_id() else None


def _check_same(before: _InForce, now: _InForce) -> None:
    """Raises an error if settings differ from those of the active recording; TensorFlow ignores another filter."""
    for name, old, new in (
        ("tensor_debug_mode", before.settings.mode, now.settings.mode),
        ("circular_buffer_size", before.settings.circular_buffer_size, now.settings.circular_buffer_size),
        ("op_regex", before.settings.op_regex, now.settings.op_regex),
        ("tensor_dtypes", before.settings.dtypes, now.settings.dtypes),
    ):
        if old != new:
            raise SettingError(
                f"{name} is {getattr(now.request, name)!r}, but enable_dump_debug_info() has already been called with "
                f"{getattr(before.request, name)!r}; call disable_dump_debug_info() first"
            )
