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
"""A callable is called for at most so many origins of one recording."""

_MAX_EVENTS_ASKED = 50
"""Bad tensors of graphs whose origins are looked for after one call."""

Find = Callable[[Sequence[int]], Sequence[Origin]]


class _Thread(threading.local):
    is_inside = False


class Stop:
    """Does what `on_nonfinite` asks, for one recording.

    Args:
        on_nonfinite: `raise`, or the user's callable.
        logdir: The recording's, as it can be shown: a URL as text.
        run_id: Its run.
        find: Returns the origins of bad tensors, given their event indexes; may raise.
        watch: The eager tensors.
        judge: The tensors of graphs.
        note: `(subject, reason)`: a bad tensor does not stop the program.
        take_notes: Returns the event indexes of bad tensors of graphs that were noted for the callable.
        let_pass: Marks an error so that frameworks hand it on as it is.
        on_error: `(what, error)`: something failed.
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
        self._notes: list[int] = []
        self._noted_nodes: set[int] = set()
        self._thread = _Thread()
        self.first_error: NonFiniteError | None = None
        """The first error that stopped the program."""

    def on_eager_op(self, op_type: str | bytes, inputs: Sequence[Any], bad: Sequence[tuple[int, int, int]], /) -> None:
        """An eager op or a call ran; raises where that is to stop the program, and what the callable raises."""
        if self._thread.is_inside:
            return
        name = op_type.decode(errors="backslashreplace") if isinstance(op_type, bytes) else op_type
        events = self._watch.see(name, inputs, bad)
        if events and self._callable is None:
            raise self._error(events[0])
        if events:
            self._tell(events)

    def on_bad_graph_tensors(self, pairs: Sequence[tuple[int, int]], /) -> None:
        """Tensors of a graph, as (key, event index), are bad that can stop the program; raises to fail the step."""
        if self._callable is None:
            event_index = min(event_index for _, event_index in pairs)
            raise RuntimeError(f"tfdbg_arrow stopped the program {self._mark(event_index)}")
        with self._lock:
            self._notes += [event_index for node, event_index in pairs if node not in self._noted_nodes]
            self._noted_nodes.update(node for node, _ in pairs)

    def error_in(self, text: str) -> Exception | None:
        """Returns our error for the text of one of TensorFlow's; None for an error that is not about us."""
        found = self._marker.search(text)
        if found is None or self._callable is not None:
            return None
        return self._error(int(found[1]))

    def after_call(self) -> None:
        """A call has returned: tells the callable of what came up in graphs; raises what it raises."""
        if self._callable is None or self._thread.is_inside:
            return
        with self._lock:
            events, self._notes = [*self._notes, *self._take_notes()], []
        if events:
            self._tell(sorted(events)[:_MAX_EVENTS_ASKED])

    def at_boundary(self) -> None:
        """Bad values that no op has taken count now; raises where that is to stop the program."""
        if self._thread.is_inside:
            return
        self.after_call()
        idle = [each.event_index for each in self._watch.take_idle()]
        if idle and self._callable is None:
            raise self._error(idle[0])
        if idle:
            self._tell(idle[:_MAX_EVENTS_ASKED])

    def see_records(self, records: npt.NDArray[np.void]) -> None:
        """Notes the masked ones among the bad tensors of graphs that are being written, each op once."""
        is_bad = (records["kind"] == Kind.GRAPH_TENSOR) & (records["flags"] & Flag.BAD != 0)
        for node in np.unique(records["node"][is_bad]).tolist():
            masked = None if node in self._masked else self._judge.masked(node)
            if masked is not None:
                self._masked.add(node)
                self._note(*masked)

    def _tell(self, event_indexes: Sequence[int]) -> None:
        """Calls the callable for the origins that it has not been called for."""
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
                self._note("on_nonfinite", f"the callable was called {MAX_CALLS} times and is not called any more")
            with self._inside():
                self._callable(origin.nonfinite)

    def _error(self, event_index: int) -> NonFiniteError:
        origin: Origin | None = None
        text = f"A NaN or an infinity came up, but its record was lost, so its origin is not known; see {self._logdir}."
        try:
            with self._inside():
                origins = self._find([event_index]) if event_index != NO_VALUE else ()
            origin = next(iter(origins), None)
        except Exception as failure:
            self._on_error("looking for the origin of a bad value", failure)
            why = f"{type(failure).__name__}: {failure}"
            text = f"A NaN or an infinity came up; its origin could not be looked up in {self._logdir} ({why})."
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
        """What the callable runs itself is recorded, but not looked at."""
        self._thread.is_inside = True
        try:
            yield
        finally:
            self._thread.is_inside = False
