"""Test the bad eager tensors that live stop watches."""

from __future__ import annotations

import threading

from tfdbg_arrow.writer.live_stop.masking import HARMLESS_OUTPUTS
from tfdbg_arrow.writer.live_stop.stop import EagerWatch


def test_a_signal_handler_may_end_the_recording_while_an_op_is_noted() -> None:
    """The handler runs in the thread that holds the lock of the watch."""
    idle: list[int] = []

    def interrupted(subject: str, reason: str) -> None:
        del subject, reason
        idle.extend(watched.event_index for watched in watch.take_idle())
        watch.see("Log", [], [(8, 0, 31)])

    watch = EagerWatch(
        lock=threading.RLock(),
        tensor_id=lambda tensor: int(tensor),
        set_watching=lambda is_watching: None,
        is_function=lambda name: False,
        note=interrupted,
    )
    op_type, slot = next(iter(HARMLESS_OUTPUTS))

    def run() -> None:
        watch.see("Log", [], [(7, 0, 30)])
        watch.see(op_type, [], [(9, slot, 32)])

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert idle == [30]
    assert [watched.event_index for watched in watch.take_idle()] == [31]
