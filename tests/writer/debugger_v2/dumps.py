"""Reads dumps with TensorFlow's own reader, monitor and messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.dataset as ds
from tensorboard.plugins.debugger_v2 import debug_data_multiplexer
from tensorboard.plugins.debugger_v2.debug_data_multiplexer import DebuggerV2EventMultiplexer
from tensorflow.core.protobuf import debug_event_pb2
from tensorflow.python.debug.lib.debug_events_monitors import InfNanMonitor
from tensorflow.python.debug.lib.debug_events_reader import DebugDataReader

from tfdbg_arrow.debugger_v2.file_sets import RecordReader

MODES = ("NO_TENSOR", "CURT_HEALTH", "CONCISE_HEALTH", "FULL_HEALTH", "SHAPE", "FULL_TENSOR")
MONITORED = tuple(mode for mode in MODES if mode != "FULL_TENSOR")
"""With FULL_TENSOR the monitor deadlocks: it takes a lock that its reader holds."""

Alert = tuple[Any, ...]
Row = dict[str, Any]


@contextmanager
def opened(dump: Path) -> Iterator[DebugDataReader]:
    with DebugDataReader(str(dump)) as reader:
        reader.update()
        yield reader


def alerts(dump: Path) -> list[Alert]:
    """Returns each alert's time, op type, slot, size, counts, and position among the executions and traces."""
    with DebugDataReader(str(dump)) as reader:
        monitor = InfNanMonitor(reader)
        reader.update()
        return [
            (
                alert.wall_time,
                alert.op_type,
                alert.output_slot,
                alert.size,
                alert.num_neg_inf,
                alert.num_pos_inf,
                alert.num_nan,
                alert.execution_index,
                alert.graph_execution_trace_index,
            )
            for alert in monitor.alerts()
        ]


def read_by_tensorboard(dump: Path) -> tuple[DebuggerV2EventMultiplexer, str]:
    """Returns the data source of TensorBoard's page, and its run. The data source has read the dump."""
    with mock.patch.object(debug_data_multiplexer, "run_repeatedly_in_background", _run_once):
        plugin = DebuggerV2EventMultiplexer(str(dump))
        (run,) = plugin.Runs()
    return plugin, run


def _run_once(target: Callable[[], None], interval_sec: float) -> tuple[None, None]:
    """Reads the dump once, instead of again and again in a thread."""
    del interval_sec
    target()
    return None, None


def messages(dump: Path) -> dict[str, list[Any]]:
    """Returns the records of each file as TensorFlow's messages, by the name of the file."""
    found = {}
    for path in sorted(dump.iterdir()):
        with open(path, "rb") as file:
            reader = RecordReader(file)
            found[path.name] = [debug_event_pb2.DebugEvent.FromString(record) for record in reader]
            assert reader.damage is None
    return found


def rows(logdir: Path, table: str) -> list[Row]:
    return ds.dataset(logdir / table).to_table().to_pylist()
