"""Spares Python's garbage collector the objects that the import of TensorFlow makes.

The import makes some 300,000 objects that live as long as the process. Python's collector examines all of them in
several full collections: during the import, while functions are traced, and at the end of the process. The objects of a
recording make these collections more frequent. One full collection at the end of the import replaces them, which saves
a second of processor time.

Source: https://docs.python.org/3/library/gc.html, `gc.freeze`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_FROZEN_S = 60.0
"""For how many seconds the objects are left out. If an object that the program made before the import becomes garbage
later, the first collection after this time frees it. In a longer program, full collections are a small share of the
time."""


@contextmanager
def frozen_at_end() -> Iterator[None]:
    """Pauses the garbage collector, and then leaves the objects that exist at the end out of the next collections.

    Does nothing if the collector is already off, because then the program or an outer call controls it. If the block
    raises an exception, only ends the pause.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        _Frozen().begin()
    finally:
        gc.enable()


class _Frozen:
    """The objects that collections leave out for some time."""

    def begin(self) -> None:
        """Frees garbage, and leaves out all other objects that exist now."""
        gc.collect()  # TensorFlow's import leaves 17 MiB of garbage
        gc.freeze()
        self._num_objects = gc.get_freeze_count()
        self._end_s: float | None = time.monotonic() + _FROZEN_S
        # The callback stays in the list: if it removed itself, Python would skip the next callback.
        gc.callbacks.append(self._note_collection)

    def _note_collection(self, phase: str, info: Mapping[str, int]) -> None:
        """Returns the objects to the collector at the first collection after the time has passed."""
        if self._end_s is None or phase != "start" or time.monotonic() < self._end_s:
            return
        self._end_s = None
        if gc.get_freeze_count() <= self._num_objects:  # otherwise the program has frozen objects of its own
            gc.unfreeze()
