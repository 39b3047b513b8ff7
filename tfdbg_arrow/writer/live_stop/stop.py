"""Stops the program at a bad value, or calls the program's callable."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.errors import NonFiniteError
from tfdbg_arrow.spool.records import NO_VALUE, Flag, Kind
from tfdbg_arrow.writer.live_stop.eager_watch import EagerWatch, Note
from tfdbg_arrow.writer.live_stop.graph_judge import GraphJudge
from tfdbg_arrow.writer.live_stop.origins import Origin

MAX_CALLS = 100
"""A callable is called for at most this many origins of one recording."""

_MAX_EVENTS_ASKED = 50
"""How many bad tensors of graphs are looked up after one call."""

Find = Callable[[Sequence[int]], Sequence[Origin]]


class _Thread(threading.local):
    is_inside = False


class Stop:
    """Stops the program or calls the callable, as `on_nonfinite` asks, for one recording.

    Args:
        on_nonfinite: `raise`, or the user's callable.
        logdir: The logdir of the recording; a URL is a string.
        run_id: The ID of the run.
        find: Returns the origins of bad tensors, given their event indexes; may raise.
        watch: Watches eager tensors.
        judge: Decides about tensors of graphs.
        note: `(subject, reason)`: called for a bad tensor that does not stop the program.
        take_notes: Returns the event indexes of bad tensors of graphs that were noted for the callable.
        let_pass: Marks an error so that frameworks pass it on unchanged.
        on_error: `(what, error)`: called when something failed.
    """

    def __init__(
        self,
        on_nonfinite: str | Callable[[Any], object],
        *,
        logdir: Path | str,
        run_id: str,
        find: Find,
        watch: EagerWatch,
        judge: GraphJudge,
        note: Note,
        take_notes: Callable[[], list[int]],
        let_pass: Callable[[Exception], Exception],
        on_error: Callable[[str, object], None],
    ) -> None:
        self._callable = on_nonfinite if callable(on_nonfinite) else None
        self._logdir = logdir
        self._run_id = run_id
        self._find = find
        self._watch = watch
        self._judge = judge
        self._note = note
        self._take_notes = take_notes
        self._let_pass = let_pass
        self._on_error = on_error
        self._marker = re.compile(rf"\(event (-?\d+) of run {re.escape(run_id)}\)")
        self._lock = threading.Lock()
        self._told: set[object] = set()
        self._masked: set[int] = set()
        self._thread = _Thread()
        self.first_error: NonFiniteError | None = None
        """The first error that stopped the program."""

    def on_eager_op(self, op_type: str | bytes, inputs: Sequence[Any], bad: Sequence[tuple[int, int, int]], /) -> None:
        """Handles an eager op or a call that ran; raises the error that stops the program, or the callable's error."""
        if self._thread.is_inside:
            return
        name = op_type.decode(errors="backslashreplace") if isinstance(op_type, bytes) else op_type
        events = self._watch.see(name, inputs, bad)
        if events and self._callable is None:
            raise self._error(events[0])
        if events:
            self._tell(events)

    def error_in(self, text: str) -> Exception | None:
        """Returns our error for the message of a TensorFlow error; None if the error is not ours."""
        found = self._marker.search(text)
        if found is None or self._callable is not None:
            return None
        return self._error(int(found[1]))

    def after_call(self) -> None:
        """Calls the callable for bad tensors of graphs after a call has returned; raises the callable's errors."""
        if self._callable is None or self._thread.is_inside:
            return
        events = self._take_notes()
        if events:
            self._tell(sorted(events)[:_MAX_EVENTS_ASKED])

    def at_boundary(self) -> None:
        """Handles the bad values that no op has taken; raises the error that stops the program."""
        if self._thread.is_inside:
            return
        self.after_call()
        idle = [each.event_index for each in self._watch.take_idle()]
        if idle and self._callable is None:
            raise self._error(idle[0])
        if idle:
            self._tell(idle[:_MAX_EVENTS_ASKED])

    def see_records(self, records: npt.NDArray[np.void]) -> None:
        """Notes the masked bad tensors of graphs among records that are being written, each tensor once."""
        is_bad = (records["kind"] == Kind.GRAPH_TENSOR) & (records["flags"] & Flag.BAD != 0)
        for node in np.unique(records["node"][is_bad]).tolist():
            masked = None if node in self._masked else self._judge.masked(node)
            if masked is not None:
                self._masked.add(node)
                self._note(*masked)

    def _tell(self, event_indexes: Sequence[int]) -> None:
        """Calls the callable for the origins that are new."""
        assert self._callable is not None
        with self._lock:
            if len(self._told) >= MAX_CALLS:
                return
        try:
            with self._inside():
                origins = self._find([index for index in event_indexes if index != NO_VALUE])
        except Exception as error:
            self._on_error("looking for the origin of a bad value", error)
            return
        for origin in origins:
            with self._lock:
                if origin.key in self._told or len(self._told) >= MAX_CALLS:
                    continue
                self._told.add(origin.key)
                is_last = len(self._told) == MAX_CALLS
            if is_last:
                self._note("on_nonfinite", f"the callable was called {MAX_CALLS} times and is not called again")
            with self._inside():
                self._callable(origin.nonfinite)

    def _error(self, event_index: int) -> NonFiniteError:
        origin: Origin | None = None
        text = f"A NaN or an infinity occurred, but its record was lost, so its origin is unknown; see {self._logdir}."
        try:
            with self._inside():
                origins = self._find([event_index]) if event_index != NO_VALUE else ()
            origin = next(iter(origins), None)
        except Exception as failure:
            self._on_error("looking for the origin of a bad value", failure)
            why = f"{type(failure).__name__}: {failure}"
            text = f"A NaN or an infinity occurred; its origin could not be looked up in {self._logdir} ({why})."
        if origin is not None:
            text = origin.text
        error = NonFiniteError(
            f"{text} {self._mark(event_index)}",
            nonfinite=None if origin is None else origin.nonfinite,
            logdir=self._logdir,
        )
        self._let_pass(error)
        self.first_error = self.first_error or error
        return error

    def _mark(self, event_index: int) -> str:
        return f"(event {event_index} of run {self._run_id})"

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Ignores bad values of ops that run within it, such as those of the callable; they are still recorded."""
        self._thread.is_inside = True
        try:
            yield
        finally:
            self._thread.is_inside = False
