"""Stops the program at a bad value, or calls the program's callable.

EagerWatch watches bad eager tensors, which stop the program when an op takes them. GraphJudge decides which tensors of
graphs stop the program. The query layer finds where bad values come from; it is not imported here.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.errors import NonFiniteError
from tfdbg_arrow.spool.records import NO_VALUE, Flag, Kind
from tfdbg_arrow.writer.graphs.node_defs import TensorBatch
from tfdbg_arrow.writer.live_stop.masking import computes, harmless_reason, mask_reason

MAX_CALLS = 100
"""A callable is called for at most this many origins of one recording."""
_MAX_EVENTS_ASKED = 50
"""After one call, at most this many bad tensors of graphs are looked up."""
_MAX_WATCHED = 1 << 16
"""Maximum number of bad eager tensors that are watched; beyond this number, the oldest are forgotten."""
Note = Callable[[str, str], None]
"""`(subject, reason)`: called for a bad tensor that does not stop the program."""


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
        find: Callable[[Sequence[int]], Sequence[Origin]],
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
        # Reentrant, because a signal handler or a finalizer can run eager ops or end the recording.
        self._lock = threading.RLock()
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
        marked = self._marker.search(text)
        if marked is None or self._callable is not None:
            return None
        return self._error(int(marked[1]))

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
        idle = [watched.event_index for watched in self._watch.take_idle()]
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
            f"{text}\n  {self._mark(event_index)}" if origin is not None else f"{text} {self._mark(event_index)}",
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
        """Ignores bad values in the `with` block, such as those of the callable's ops; they are still recorded."""
        self._thread.is_inside = True
        try:
            yield
        finally:
            self._thread.is_inside = False


class GraphJudge:
    """Decides which tensors of graphs stop the program if they are bad.

    GraphJudge decides for the graphs that XLA compiles. For the graphs that TensorFlow runs, the native core decides by
    the same rules. The core reports the tensors that do not stop the program, and GraphJudge keeps the reasons.

    Args:
        is_used_by_graph: Returns True if another graph uses the results of a graph; the other graph then decides about
            these results.
    """

    def __init__(self, *, is_used_by_graph: Callable[[Any], bool]) -> None:
        self.is_used_by_graph = is_used_by_graph
        self._masked: dict[int, tuple[str, str]] = {}

    def judge(self, graph: Any, batches: list[TensorBatch]) -> list[TensorBatch]:
        """Returns the batches of a function's graph with `decides` set for each tensor."""
        returned = set() if self.is_used_by_graph(graph) else {id(tensor) for tensor in graph.outputs}
        return [self._judged(batch, returned) for batch in batches]

    def note_masked(self, node: int, op_name: str, op_type: str, slot: int, users: Sequence[str]) -> None:
        """Notes a tensor that does not stop the program, given its key and the types of the ops that take it."""
        reason = mask_reason(op_type, slot, users=users, is_returned=False)
        if reason is not None:
            self._masked[node] = (f"{op_name}:{slot} ({op_type})", reason)

    def masked(self, node: int) -> tuple[str, str] | None:
        """Returns the name of a tensor that does not stop the program, and the reason; None for other tensors."""
        return self._masked.get(node)

    def _judged(self, batch: TensorBatch, returned: set[int]) -> TensorBatch:
        decides = []
        for tensor, node in zip(batch.tensors, batch.nodes, strict=True):
            op_type, slot = batch.op.type, tensor.value_index
            users = [user.type for user in tensor.consumers()]
            reason = mask_reason(op_type, slot, users=users, is_returned=id(tensor) in returned)
            if reason is not None:
                self._masked[node] = (f"{batch.op.name}:{slot} ({op_type})", reason)
            decides.append(reason is None)
        return replace(batch, decides=tuple(decides))


@dataclass
class _Watched:
    """A bad eager tensor.

    Attributes:
        event_index: The index of its event; -1 if there was no room for the event.
        is_taken: Whether an op has taken it, or take_idle() has returned it.
        is_told: Whether it was reported, or was computed from a tensor that was reported.
    """

    event_index: int
    is_taken: bool = False
    is_told: bool = False


class EagerWatch:
    """The bad eager tensors, and the ops that take them.

    Args:
        lock: The lock of the recording; see Journal.
        tensor_id: Returns the ID of an eager tensor; -1 for anything else.
        set_watching: Sets whether every op is reported.
        is_function: Returns True for the name of a function; then the function's graph decides.
        note: `(subject, reason)`: called for a bad tensor that does not stop the program.
    """

    def __init__(
        self,
        *,
        lock: AbstractContextManager[object],
        tensor_id: Callable[[Any], int],
        set_watching: Callable[[bool], None],
        is_function: Callable[[str], bool],
        note: Note,
    ) -> None:
        self._tensor_id = tensor_id
        self._set_watching = set_watching
        self._is_function = is_function
        self._note = note
        self._lock = lock
        self._watched: OrderedDict[int, _Watched] = OrderedDict()

    def see(self, op_type: str, inputs: Sequence[Any], bad: Sequence[tuple[int, int, int]]) -> list[int]:
        """Notes an op that ran; returns the events of new bad tensors that the op computed with.

        The outputs of such an op are not reported later. With `raise` they never reach the program.

        Args:
            op_type: The type of the op, or the name of a function.
            inputs: The inputs of the op.
            bad: The bad tensors since the last call: (tensor ID, output slot or -1, event index or -1).
        """
        with self._lock:
            fresh = self._add(op_type, bad)
            taken = [watched for watched in map(self._watched.get, map(self._tensor_id, inputs)) if watched is not None]
            for watched in taken:
                watched.is_taken = True
            is_computed_with = computes(op_type) and not self._is_function(op_type)
            if is_computed_with or any(watched.is_told for watched in taken):
                for watched in fresh if taken else ():
                    watched.is_told = True
        if taken and not is_computed_with:
            self._note(f"the input of {op_type}", f"{op_type} does not compute with it: the next ops decide")
        return sorted(watched.event_index for watched in taken if is_computed_with and not watched.is_told)

    def take_idle(self) -> list[_Watched]:
        """Returns the bad tensors that no op has taken so far, each once, ordered by event."""
        with self._lock:
            # The copy is made by one C call: a signal handler may add tensors during the loop.
            all_watched = list(self._watched.values())
            idle = [watched for watched in all_watched if not watched.is_taken and not watched.is_told]
            for watched in idle:
                watched.is_taken = True
        return sorted(idle, key=lambda watched: watched.event_index)

    def _add(self, op_type: str, bad: Sequence[tuple[int, int, int]]) -> list[_Watched]:
        """Adds new bad tensors; returns those of them that are outputs of the op."""
        put_out: list[_Watched] = []
        for tensor_id, slot, event_index in bad:
            reason = harmless_reason(op_type, slot)
            if reason is not None:
                self._note(f"{op_type}:{slot}, run eagerly", reason)
            elif tensor_id not in self._watched:
                watched = self._watched[tensor_id] = _Watched(event_index)
                if slot != NO_VALUE:
                    put_out.append(watched)
        if bad:
            self._set_watching(bool(self._watched))
        while len(self._watched) > _MAX_WATCHED:
            self._watched.popitem(last=False)
        return put_out


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The origin of bad values, as found by the query layer.

    Attributes:
        nonfinite: The answer as an object for the program.
        text: The answer as text of several lines.
        key: Identifies the origin. An op in one place has one key, no matter how often it runs.
    """

    nonfinite: Any
    text: str
    key: object


FindOrigins = Callable[[Path, str, Sequence[int]], Sequence[Origin]]


_find_origins: FindOrigins = lambda logdir, run_id, event_indexes: ()  # noqa: E731


def look_up_origins_with(find_origins: FindOrigins) -> None:
    """Sets the function of the query layer that finds origins for recordings with `on_nonfinite`.

    Args:
        find_origins: `(logdir, run_id, event_indexes)`: returns the origins of bad tensors, each origin once.
    """
    global _find_origins
    _find_origins = find_origins


def find_origins(logdir: Path, run_id: str, event_indexes: Sequence[int]) -> Sequence[Origin]:
    """Returns the origins of bad tensors of a run; empty if no function to find them was set."""
    return _find_origins(logdir, run_id, event_indexes)
