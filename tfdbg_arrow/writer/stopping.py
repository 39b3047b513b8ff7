"""What a recording does about bad values under `on_nonfinite`: stops the program, or calls the user's callable.

Which bad values matter is decided in three places, by the rules of `masking.py`:

* In graphs, when a function is made: `GraphJudge` says of each tensor whether it stops the program. Its record op
  then fails the step (`raise`) or notes the tensor (a callable).
* In eager code, when an op takes a bad tensor: until then, `tf.where` may still leave the value out. `EagerWatch`
  keeps the ids of bad tensors.
* At a boundary (a mark, a flush, the end of the recording) a bad tensor that no op has taken counts as it is.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.errors import NonFiniteError
from tfdbg_arrow.writer.graphs.description import is_function_graph
from tfdbg_arrow.writer.graphs.own_ops import TensorBatch
from tfdbg_arrow.writer.masking import computes, harmless_reason, mask_reason
from tfdbg_arrow.writer.records import NO_VALUE, Flag, Kind

MAX_CALLS = 100
"""A callable is called for at most so many origins of one recording."""
_MAX_WATCHED = 1 << 16
"""Bad eager tensors whose users are looked for; the oldest beyond are forgotten."""
_MAX_EVENTS_ASKED = 50
"""Bad tensors of graphs whose origins are looked for after one call."""
_OF_A_SESSION = "it is of a graph that a session runs, which is recorded and not stopped"

Find = Callable[[Sequence[int]], Sequence["Origin"]]
Note = Callable[[str, str], None]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where bad values come from, as the query layer answers it.

    Attributes:
        nonfinite: The answer, for the program to look at.
        text: The answer as a paragraph.
        key: Tells origins apart: one op in one place has one, however often it runs.
    """

    nonfinite: Any
    text: str
    key: object


FindOrigins = Callable[[Path, str, Sequence[int]], Sequence[Origin]]
_find_origins: FindOrigins = lambda logdir, run_id, event_indexes: ()  # noqa: E731


def look_up_origins_with(find_origins: FindOrigins) -> None:
    """Says how a recording with `on_nonfinite` finds its answer; the query layer knows it, which is not imported here.

    Args:
        find_origins: `(logdir, run_id, event_indexes)`: returns the origins that bad tensors go back to, each once.
    """
    global _find_origins
    _find_origins = find_origins


def find_origins(logdir: Path, run_id: str, event_indexes: Sequence[int]) -> Sequence[Origin]:
    """Returns the origins that bad tensors of a run go back to, as far as anybody knows."""
    return _find_origins(logdir, run_id, event_indexes)


class GraphJudge:
    """Says which tensors of graphs stop the program if they are bad.

    Args:
        is_used_by_graph: Whether another graph, which decides in its turn, uses what a graph returns.
    """

    def __init__(self, *, is_used_by_graph: Callable[[Any], bool]) -> None:
        self._is_used_by_graph = is_used_by_graph
        self._masked: dict[int, tuple[str, str]] = {}

    def judge(self, graph: Any, batches: list[TensorBatch]) -> list[TensorBatch]:
        """Returns the batches of a graph with what each tensor does."""
        if not is_function_graph(graph):
            for batch in batches:
                for tensor, node in zip(batch.tensors, batch.nodes, strict=True):
                    self._masked[node] = (f"{batch.op.name}:{tensor.value_index} ({batch.op.type})", _OF_A_SESSION)
            return batches
        returned = set() if self._is_used_by_graph(graph) else {id(tensor) for tensor in graph.outputs}
        return [self._judged(batch, returned) for batch in batches]

    def masked(self, node: int) -> tuple[str, str] | None:
        """Returns name and reason of a tensor that does not stop the program, given its key; None where it does."""
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
        event_index: Its event, -1 where it found no room.
        is_taken: Whether an op has taken it, or it has been told of.
        is_told: Whether the callable has been told of it, or of what it was computed from.
    """

    event_index: int
    is_taken: bool = False
    is_told: bool = False


class EagerWatch:
    """The bad eager tensors, and who takes them.

    Args:
        tensor_id: Returns the id of an eager tensor, -1 for anything else.
        set_watching: Says whether every op is to be told of.
        is_function: Whether a name is that of a function, which decides in its own graph.
        note: `(subject, reason)`: a bad tensor does not stop the program.
    """

    def __init__(
        self,
        *,
        tensor_id: Callable[[Any], int],
        set_watching: Callable[[bool], None],
        is_function: Callable[[str], bool],
        note: Note,
    ) -> None:
        self._tensor_id = tensor_id
        self._set_watching = set_watching
        self._is_function = is_function
        self._note = note
        self._lock = threading.Lock()
        self._watched: OrderedDict[int, _Watched] = OrderedDict()

    def see(self, op_type: str, inputs: Sequence[Any], bad: Sequence[tuple[int, int, int]]) -> list[int]:
        """Takes in an op that ran; returns the events of the bad tensors that it computed with and that are news.

        What the op put out is no news later: under `raise` it never reaches the program.

        Args:
            op_type: Its type, or the name of a function.
            inputs: Its inputs.
            bad: Bad tensors met since the last time: (tensor id, output slot or -1, event index or -1).
        """
        with self._lock:
            fresh = self._add(op_type, bad)
            taken = [each for each in map(self._watched.get, map(self._tensor_id, inputs)) if each is not None]
            for each in taken:
                each.is_taken = True
            is_computed_with = computes(op_type) and not self._is_function(op_type)
            if is_computed_with or any(each.is_told for each in taken):
                for each in fresh if taken else ():
                    each.is_told = True
        if taken and not is_computed_with:
            self._note(f"the input of {op_type}", f"{op_type} computes nothing with it: what takes its output decides")
        return sorted(each.event_index for each in taken if is_computed_with and not each.is_told)

    def take_idle(self) -> list[_Watched]:
        """Returns the bad tensors that no op has taken so far, each once, by event."""
        with self._lock:
            idle = [each for each in self._watched.values() if not each.is_taken and not each.is_told]
            for each in idle:
                each.is_taken = True
        return sorted(idle, key=lambda each: each.event_index)

    def _add(self, op_type: str, bad: Sequence[tuple[int, int, int]]) -> list[_Watched]:
        """Returns those of the new bad tensors that the op put out."""
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
