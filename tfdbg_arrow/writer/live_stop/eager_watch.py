"""Watches bad eager tensors, which stop the program when an op takes them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tfdbg_arrow.spool.records import NO_VALUE
from tfdbg_arrow.writer.live_stop.masking import computes, harmless_reason

_MAX_WATCHED = 1 << 16
"""How many bad eager tensors are watched; beyond this number, the oldest are forgotten."""

Note = Callable[[str, str], None]
"""`(subject, reason)`: called for a bad tensor that does not stop the program."""


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
        tensor_id: Returns the ID of an eager tensor; -1 for anything else.
        set_watching: Sets whether every op is reported.
        is_function: Returns True if the name is that of a function; then the function's graph decides.
        note: `(subject, reason)`: called for a bad tensor that does not stop the program.
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
        """Notes an op that ran; returns the events of the bad tensors that it computed with and that are new.

        The outputs of such an op are not reported later. With `raise` they never reach the program.

        Args:
            op_type: The type of the op, or the name of a function.
            inputs: The inputs of the op.
            bad: The bad tensors since the last call: (tensor ID, output slot or -1, event index or -1).
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
            self._note(f"the input of {op_type}", f"{op_type} does not compute with it: the next ops decide")
        return sorted(each.event_index for each in taken if is_computed_with and not each.is_told)

    def take_idle(self) -> list[_Watched]:
        """Returns the bad tensors that no op has taken so far, each once, ordered by event."""
        with self._lock:
            idle = [each for each in self._watched.values() if not each.is_taken and not each.is_told]
            for each in idle:
                each.is_taken = True
        return sorted(idle, key=lambda each: each.event_index)

    def _add(self, op_type: str, bad: Sequence[tuple[int, int, int]]) -> list[_Watched]:
        """Adds new bad tensors; returns those that are outputs of the op."""
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
