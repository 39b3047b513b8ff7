"""Programs that record faster than events can be written."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tests.sampling import mostly_slow
from tfdbg_arrow.spool.records import RECORD_DTYPE
from tfdbg_arrow.storage.layout import spool_paths
from tfdbg_arrow.writer.memory import MemoryShares
from tfdbg_arrow.writer.native import _core as core
from tfdbg_arrow.writer.sink.sink import Sink

from .tables import rows

pytestmark = pytest.mark.usefixtures("not_recording")

SPOOL_RECORDS = 4096
NUM_OPS = 4000
"""Each op has two records: one for the op, and one for its output. All records together need about twice the space of
the spool."""


@pytest.mark.parametrize("health_backend", mostly_slow(["native", "tensorflow"], fast=["native"]))
def test_events_without_room_are_dropped_and_counted(
    health_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_take = threading.Event()
    take_all = Sink._take_all

    def take_when_allowed(sink: Sink, **options: Any) -> None:
        may_take.wait()
        take_all(sink, **options)

    monkeypatch.setattr(Sink, "_take_all", take_when_allowed)
    monkeypatch.setattr(MemoryShares, "spool_records", SPOOL_RECORDS)
    x = tf.constant(1.0)
    tfdbg_arrow.enable(tmp_path, when_full="drop", health_backend=health_backend)
    for _ in range(NUM_OPS):
        tf.sqrt(x)
    may_take.set()
    tfdbg_arrow.flush()
    tf.square(x)
    tfdbg_arrow.disable()
    executions = rows(tmp_path, "execution")
    assert [row["op_type"] for row in executions][-1] == "Square", "there is room again"
    assert len(executions) <= SPOOL_RECORDS // 2 + 1
    (dropped,) = [row for row in rows(tmp_path, "capture_stat") if "no room" in row["reason"]]
    num_records = 2 * NUM_OPS - dropped["num_events"]
    assert abs(num_records - SPOOL_RECORDS) <= 2
    assert rows(tmp_path, "run")[0]["is_clean_end"] is False


def test_a_spool_that_does_not_wait(tmp_path: Path) -> None:
    paths = spool_paths(tmp_path, run_id="a")
    paths.spool.parent.mkdir()
    spool = core.Recording(str(paths.spool), str(paths.values), 1024, 3, 0, 1, waits=False)
    records = np.zeros(1, RECORD_DTYPE).view(np.uint8)
    for _ in range(1024):
        assert spool.append(records)
    has_returned = threading.Event()

    def make_room_for_who_waits() -> None:
        if not has_returned.wait(2.0):
            spool.drain(10)
            spool.release(10, 0)

    thread = threading.Thread(target=make_room_for_who_waits)
    thread.start()
    was_taken = spool.append(records)
    has_returned.set()
    thread.join()
    assert not was_taken
    assert spool.num_dropped() == 1
    spool.drain(10)
    spool.release(10, 0)
    assert spool.append(records), "there is room again"
