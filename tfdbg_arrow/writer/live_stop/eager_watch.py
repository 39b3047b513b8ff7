"""Bad eager tensors: they stop the program when an op takes them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tfdbg_arrow.spool.records import NO_VALUE
from tfdbg_arrow.writer.live_stop.masking import computes, harmless_reason

_MAX_WATCHED = 1 << 16
"""Bad eager tensors whose users are looked for; the oldest beyond are forgotten."""

Note = Callable[[str, str], None]
"""`(subject, reason)`: told of a bad tensor that does not stop the program."""


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
